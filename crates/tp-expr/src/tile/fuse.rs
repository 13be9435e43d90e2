//! Pairs of arithmetic instructions that run as one step, which saves a pass over a tile. The bits do not change:
//! both results are rounded.

use tp_tensor::DType;

use crate::prim::Prim;
use crate::program::{Program, ValueId};

/// What becomes of an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A step of its own.
    Alone,
    /// Computed within the one step that uses it.
    Inner,
    /// Computes its inner instruction as well: its value, its other operand, and whether that comes first.
    Outer { inner: ValueId, other: ValueId, swapped: bool },
}

/// The role of each instruction.
pub(super) fn roles(program: &Program) -> Vec<Role> {
    let instrs = program.instrs();
    let mut uses = vec![0_u32; instrs.len()];
    for &id in instrs.iter().flat_map(|i| i.args()) {
        uses[id as usize] += 1;
    }
    // An output has to be written by a step of its own.
    for &id in program.outputs() {
        uses[id as usize] += 2;
    }
    let fuses = |id: ValueId| {
        let instr = &instrs[id as usize];
        instr.dtype == DType::F32 && matches!(instr.prim, Prim::Add | Prim::Sub | Prim::Mul)
    };
    let mut roles = vec![Role::Alone; instrs.len()];
    for (k, instr) in instrs.iter().enumerate() {
        if !fuses(k as ValueId) {
            continue;
        }
        let [left, right] = [instr.operands[0], instr.operands[1]];
        let candidates = [(left, right, false), (right, left, true)];
        let found = candidates.into_iter().find(|&(inner, _, _)| {
            uses[inner as usize] == 1 && fuses(inner) && roles[inner as usize] == Role::Alone
        });
        if let Some((inner, other, swapped)) = found {
            roles[inner as usize] = Role::Inner;
            roles[k] = Role::Outer { inner, other, swapped };
        }
    }
    roles
}
