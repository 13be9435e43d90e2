//! `Program`: the typed SSA list that every pointwise executor lowers. Building one is in `builder`, its text form
//! and fingerprint in `text`, the rules of the form in `verify`.

mod builder;
mod text;
mod verify;

pub use builder::{Operand, ProgramBuilder};
use tp_tensor::DType;

use crate::prim::{Class, Prim};

/// Value `k` is the result of instruction `k`.
pub type ValueId = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instr {
    pub prim: Prim,
    /// The dtype of the result.
    pub dtype: DType,
    pub(crate) operands: [ValueId; 3],
    /// The input's index, or the constant's bit pattern; 0 otherwise.
    pub imm: u64,
}

impl Instr {
    #[inline]
    pub fn args(&self) -> &[ValueId] {
        &self.operands[..self.prim.arity()]
    }
}

/// Something a program may do that not every executor can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hazard {
    /// An integer `floordiv` or `mod` whose divisor is not a nonzero constant.
    IntegerDivisionByZero,
}

impl std::fmt::Display for Hazard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Hazard::IntegerDivisionByZero => f.write_str("division by zero"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    instrs: Box<[Instr]>,
    inputs: Box<[DType]>,
    outputs: Box<[ValueId]>,
}

impl Program {
    pub fn instrs(&self) -> &[Instr] {
        &self.instrs
    }

    pub fn inputs(&self) -> &[DType] {
        &self.inputs
    }

    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    pub fn output_dtypes(&self) -> impl ExactSizeIterator<Item = DType> + '_ {
        self.outputs.iter().map(|&id| self.instrs[id as usize].dtype)
    }

    /// The dtype of an instruction's operands: of the two alternatives for `select`, its own dtype for sources.
    pub fn operand_dtype(&self, instr: &Instr) -> DType {
        match (instr.prim.class(), instr.args().first()) {
            (Class::Compare | Class::Cast | Class::Bitcast, Some(&id)) => self.instrs[id as usize].dtype,
            _ => instr.dtype,
        }
    }

    /// What the program may do that an executor has to guard or refuse.
    pub fn hazards(&self) -> Vec<Hazard> {
        let divides = |instr: &Instr| {
            matches!(instr.prim, Prim::FloorDiv | Prim::Mod) && {
                let divisor = &self.instrs[instr.operands[1] as usize];
                !(divisor.prim == Prim::Const && divisor.imm != 0)
            }
        };
        if self.instrs.iter().any(divides) { vec![Hazard::IntegerDivisionByZero] } else { Vec::new() }
    }

    /// The first instruction outside the primitives a backend lowers, after [`Program::expand`]: a float64
    /// transcendental, or one only native executors have.
    pub fn unsupported(&self) -> Option<(Prim, DType)> {
        self.instrs
            .iter()
            .find(|i| matches!(i.prim.class(), Class::Transcendental | Class::Native))
            .map(|i| (i.prim, i.dtype))
    }

    /// Whether only primitives that every backend lowers are left.
    pub fn is_closed(&self) -> bool {
        self.unsupported().is_none()
    }

    /// The program with its float32 transcendentals written out in primitives; the same bits.
    pub fn expand(&self) -> Program {
        builder::expand(self)
    }
}
