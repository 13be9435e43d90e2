//! A program of one instruction over few elements, with everything looked up but the addresses of a run. Not here:
//! programs of several instructions, and loops over tiles.

use super::compile::TileKernel;
use super::kernels::KernelFn;
use super::run::SMALL;

/// What [`TileKernel::direct`] gives. It keeps nothing of the kernel that it was made from.
pub struct DirectStep {
    kernel: KernelFn,
    /// Where each operand is: an input by number, or one of `constants`.
    operands: [Operand; 3],
    constants: [[u8; 8]; 3],
    /// Bit `i`: operand `i` is one element for all.
    uniform: u32,
    n: usize,
}

#[derive(Clone, Copy)]
enum Operand {
    Input(u32),
    Constant,
}

impl TileKernel {
    /// The one instruction of this program over `n` elements, contiguous but for the inputs in `scalars`, which are one
    /// element for all. None where the program has more of them, or there are no elements or too many for one go.
    /// `input` says what number input `k` has among those that a run is given.
    pub fn direct(&self, n: usize, scalars: u64, input: impl Fn(usize) -> Option<u32>) -> Option<DirectStep> {
        let ([step], [_]) = (&*self.steps, &*self.outputs) else { return None };
        if !self.is_small || !(1..=SMALL).contains(&n) {
            return None;
        }
        let mut direct = DirectStep {
            kernel: step.kernel,
            operands: [Operand::Constant; 3],
            constants: [[0; 8]; 3],
            uniform: step.uniform(scalars),
            n,
        };
        for (k, &place) in step.args.iter().enumerate() {
            let place = usize::from(place);
            // Places are inputs, then the output, then constants.
            match place.checked_sub(self.inputs.len() + 1) {
                None => direct.operands[k] = Operand::Input(input(place)?),
                Some(constant) => direct.constants[k] = *self.constants.get(constant)?,
            }
        }
        Some(direct)
    }
}

impl DirectStep {
    /// Runs over inputs whose addresses `input` gives by number. False when an integer was divided by zero.
    ///
    /// # Safety
    /// Every address is valid for the elements that it stands for; the output is no input's memory.
    #[inline(always)]
    pub unsafe fn run(&self, input: impl Fn(u32) -> *const u8, output: *mut u8) -> bool {
        let place = |k: usize| match self.operands[k] {
            Operand::Input(i) => input(i),
            Operand::Constant => self.constants[k].as_ptr(),
        };
        // SAFETY: the caller's promise; constants are as wide as any element.
        unsafe { !(self.kernel)(output, [place(0), place(1), place(2)], self.uniform, self.n) }
    }
}
