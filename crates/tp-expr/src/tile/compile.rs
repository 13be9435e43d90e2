//! From a program to the steps of a `TileKernel`: a kernel for each instruction, and a place for each value. Values
//! share few slots, so that a tile of each stays in the first-level cache.

use smallvec::SmallVec;
use tp_tensor::DType;

use super::fuse::{Role, roles};
use super::isa::Isa;
use super::kernels::{KernelFn, chain_kernel, copy_kernel, kernel};
use super::run::{SMALL_PLACES, SMALL_SLOTS};
use crate::error::ExprError;
use crate::prim::{Class, Prim};
use crate::program::{Instr, Program, ValueId};

/// The bytes that the slots in use at once may take of a first-level cache.
const CACHE_BUDGET: usize = 24 * 1024;
const MIN_TILE: usize = 256;
const MAX_TILE: usize = 2048;
/// Inputs beyond this do not fit the set of uniform ones.
pub(super) const MAX_INPUTS: usize = 64;

/// A place in the pointer table of a run: inputs, then outputs, then constants, then slots.
pub(super) type Place = u16;

/// One instruction over one tile.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub kernel: KernelFn,
    pub out: Place,
    pub args: [Place; 3],
    /// Bit `i`: argument `i` is a constant.
    constants: u8,
    /// Bit `i`: argument `i` is an input.
    inputs: u8,
}

impl Step {
    /// Bit `i`: argument `i` is one element for all, when the inputs in `scalars` are.
    #[inline(always)]
    pub fn uniform(&self, scalars: u64) -> u32 {
        let mut bits = u32::from(self.constants);
        if scalars != 0 {
            for (i, &place) in self.args.iter().enumerate() {
                let scalar = (scalars >> (place & 63)) as u32 & 1;
                bits |= scalar << i & u32::from(self.inputs);
            }
        }
        bits
    }
}

/// A compiled program. Making one costs microseconds; keep it.
pub struct TileKernel {
    pub(super) steps: Box<[Step]>,
    pub(super) inputs: Box<[DType]>,
    pub(super) outputs: Box<[DType]>,
    /// Bit patterns, low bytes first.
    pub(super) constants: Box<[[u8; 8]]>,
    pub(super) slots: usize,
    /// Elements of a tile.
    pub(super) tile: usize,
    /// The widest element of a slot.
    pub(super) width: usize,
    /// What an element costs, in simple instructions.
    pub(super) weight: usize,
    /// Whether places and slots are few enough for a run on the stack.
    pub(super) is_small: bool,
    isa: Isa,
}

impl TileKernel {
    /// Compiles for this machine.
    pub fn compile(program: &Program) -> Result<TileKernel, ExprError> {
        TileKernel::compile_for(program, Isa::detect())
    }

    /// Compiles for an instruction set; an error if this machine does not have it.
    pub fn compile_for(program: &Program, isa: Isa) -> Result<TileKernel, ExprError> {
        program.verify()?;
        if !isa.is_available() {
            return Err(ExprError::Invalid(format!("this machine has no {}", isa.name())));
        }
        if program.inputs().len() > MAX_INPUTS || program.instrs().len() > usize::from(u16::MAX / 2) {
            return Err(ExprError::Invalid("too many inputs or instructions".to_owned()));
        }
        Allocation::new(program).compile(isa)
    }

    pub fn inputs(&self) -> &[DType] {
        &self.inputs
    }

    pub fn outputs(&self) -> &[DType] {
        &self.outputs
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// About how many simple instructions an instruction costs.
fn weight(instr: &Instr) -> usize {
    match (instr.prim.class(), instr.dtype) {
        (Class::Source, _) => 0,
        (Class::Transcendental, DType::F32) => 8,
        (Class::Transcendental, _) => 64,
        (Class::Int | Class::Native, _) => 24,
        _ => 1,
    }
}

/// The operands of the step that instruction `k` becomes.
fn operands(program: &Program, k: usize, role: Role) -> SmallVec<[ValueId; 3]> {
    match role {
        Role::Outer { inner, other, .. } => {
            let inner = program.instrs()[inner as usize].args();
            inner.iter().copied().chain([other]).collect()
        }
        _ => program.instrs()[k].args().into(),
    }
}

/// Places while they are given out.
struct Allocation<'a> {
    program: &'a Program,
    roles: Vec<Role>,
    /// The place of each value, once it has one.
    places: Vec<Place>,
    /// The instruction that uses each value last; its own index if none does.
    last_use: Vec<usize>,
    constants: Vec<[u8; 8]>,
    slots: usize,
    free: Vec<Place>,
}

impl<'a> Allocation<'a> {
    fn new(program: &'a Program) -> Self {
        let roles = roles(program);
        let mut last_use: Vec<usize> = (0..program.instrs().len()).collect();
        for (k, role) in roles.iter().enumerate().filter(|(_, role)| **role != Role::Inner) {
            for id in operands(program, k, *role) {
                last_use[id as usize] = k;
            }
        }
        let constants = program.instrs().iter().filter(|i| i.prim == Prim::Const);
        let constants = constants.map(|i| i.imm.to_le_bytes()).collect();
        Allocation {
            program,
            roles,
            places: vec![0; program.instrs().len()],
            last_use,
            constants,
            slots: 0,
            free: Vec::new(),
        }
    }

    fn first_output(&self) -> usize {
        self.program.inputs().len()
    }

    fn first_constant(&self) -> usize {
        self.first_output() + self.program.outputs().len()
    }

    fn first_slot(&self) -> usize {
        self.first_constant() + self.constants.len()
    }

    fn take_slot(&mut self) -> Place {
        self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            (self.first_slot() + self.slots - 1) as Place
        })
    }

    fn compile(mut self, isa: Isa) -> Result<TileKernel, ExprError> {
        let program = self.program;
        let mut steps = Vec::with_capacity(program.instrs().len());
        let mut constant = self.first_constant();
        for (k, instr) in program.instrs().iter().enumerate() {
            match instr.prim {
                Prim::Input => self.places[k] = instr.imm as Place,
                Prim::Const => {
                    self.places[k] = constant as Place;
                    constant += 1;
                }
                _ if self.roles[k] == Role::Inner => {}
                _ => steps.push(self.step(k, isa)?),
            }
        }
        steps.extend(self.copies(isa));
        let widths = program.instrs().iter().map(|i| i.dtype.itemsize());
        let width = widths.max().unwrap_or(8);
        // The streams count as well: their tiles pass through the same cache.
        let live = (self.slots + self.first_constant()).max(1);
        let tile = (CACHE_BUDGET / (live * width)).clamp(MIN_TILE, MAX_TILE);
        let is_small = self.slots <= SMALL_SLOTS && self.first_slot() + self.slots <= SMALL_PLACES;
        Ok(TileKernel {
            steps: steps.into(),
            inputs: program.inputs().into(),
            outputs: program.output_dtypes().collect(),
            constants: self.constants.into(),
            slots: self.slots,
            tile: 1 << tile.ilog2(),
            width,
            weight: program.instrs().iter().map(weight).sum::<usize>().max(1),
            is_small,
            isa,
        })
    }

    fn step(&mut self, k: usize, isa: Isa) -> Result<Step, ExprError> {
        let role = self.roles[k];
        let kernel = self.kernel_of(k, role, isa)?;
        let operands = operands(self.program, k, role);
        let mut args = [0; 3];
        for (place, &id) in args.iter_mut().zip(&operands) {
            *place = self.places[id as usize];
        }
        // The result's slot is taken before the operands' are given back: a kernel's result never overlaps an operand,
        // or its loop would not vectorise.
        let out = match self.program.outputs().iter().position(|&id| id as usize == k) {
            Some(o) => (self.first_output() + o) as Place,
            None => self.take_slot(),
        };
        self.places[k] = out;
        let first_slot = self.first_slot();
        for (i, &id) in operands.iter().enumerate() {
            let seen = operands[..i].contains(&id);
            let place = self.places[id as usize];
            if self.last_use[id as usize] == k && !seen && usize::from(place) >= first_slot {
                self.free.push(place);
            }
        }
        if self.last_use[k] == k && usize::from(out) >= first_slot {
            self.free.push(out);
        }
        Ok(self.place_step(kernel, out, args, operands.len()))
    }

    fn kernel_of(&self, k: usize, role: Role, isa: Isa) -> Result<KernelFn, ExprError> {
        let instr = &self.program.instrs()[k];
        let operand = self.program.operand_dtype(instr);
        let kernel = match role {
            Role::Outer { inner, swapped, .. } => {
                chain_kernel(isa, self.program.instrs()[inner as usize].prim, instr.prim, swapped)
            }
            _ => kernel(isa, instr.prim, instr.dtype, operand),
        };
        kernel.ok_or(ExprError::UnsupportedDType { prim: instr.prim.name(), dtype: operand })
    }

    fn place_step(&self, kernel: KernelFn, out: Place, mut args: [Place; 3], arity: usize) -> Step {
        // Arguments a kernel does not have are given the first one's place, which is always a valid one.
        let first = args[0];
        args[arity..].fill(first);
        let mut step = Step { kernel, out, args, constants: 0, inputs: 0 };
        for (i, &place) in args[..arity].iter().enumerate() {
            let place = usize::from(place);
            let is_constant = (self.first_constant()..self.first_slot()).contains(&place);
            step.constants |= u8::from(is_constant) << i;
            step.inputs |= u8::from(place < self.first_output()) << i;
        }
        step
    }

    /// Outputs that are inputs, constants, or outputs a second time are copied.
    fn copies(&self, isa: Isa) -> Vec<Step> {
        let mut steps = Vec::new();
        for (o, &id) in self.program.outputs().iter().enumerate() {
            let out = (self.first_output() + o) as Place;
            let source = self.places[id as usize];
            if source != out {
                let width = self.program.instrs()[id as usize].dtype.itemsize();
                steps.push(self.place_step(copy_kernel(isa, width), out, [source, 0, 0], 1));
            }
        }
        steps
    }
}
