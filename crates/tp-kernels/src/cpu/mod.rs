//! CPU kernels: what the rows of the op table run. Each module is one kind of loop; none knows the registry.

pub mod cast;
pub mod copy;
pub mod create;
pub mod gather;
pub mod index;
pub mod inplace;
pub mod isa;
pub mod join;
pub mod matmul;
pub mod place;
pub mod pointwise;
pub mod reduce;
pub mod reduce_ops;
pub mod rows;
pub mod scan;
pub mod shared;
pub mod short;
pub mod softmax;
pub mod softmax_rows;
mod softmax_strips;
pub mod sort;
pub mod view;
