//! `TileKernel`: a program over arrays. The program is run one instruction at a time over tiles that stay in the
//! first-level cache, each instruction by a loop compiled for the machine's vector unit; contiguous operands are
//! streamed from and to their own memory.
//!
//! Memory is reached through raw pointers only, read and written without alignment: the caller promises that they
//! cover the iteration space. Kernels are in `kernels`, slots in `compile`, programs of one instruction in `direct`, pairs of
//! instructions in `fuse`, strided operands in `gather`, the loop
//! over tiles in `run`.

mod cast;
mod compile;
mod direct;
mod fuse;
mod gather;
mod isa;
mod kernels;
mod run;

pub use compile::TileKernel;
pub use direct::DirectStep;
pub use isa::Isa;

/// One operand of [`TileKernel::run`]: its first element and its strides in elements, one per dimension of the
/// iteration shape.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    pub ptr: *mut u8,
    pub strides: &'a [isize],
}
