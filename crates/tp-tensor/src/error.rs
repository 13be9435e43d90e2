//! What can be wrong with values: shapes, strides, memory. Errors carry their operands.

use crate::dim::Dims;
use crate::{DType, Device};
use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Error)]
pub enum TensorError {
    #[error("sizes must not be negative, got {0:?}")]
    NegativeSize(Dims),
    #[error("a tensor of shape {0:?} is too large: its size in bytes does not fit in 63 bits")]
    TooLarge(Dims),
    #[error("a tensor has at most 64 dimensions, got {0}")]
    TooManyDims(usize),
    #[error("out of memory: {bytes} bytes on {device}")]
    OutOfMemory { bytes: usize, device: Device },
    #[error(
        "layout with sizes {sizes:?}, strides {strides:?}, offset {offset} reaches outside a storage of {nbytes} bytes"
    )]
    OutOfStorage { sizes: Dims, strides: Dims, offset: i64, nbytes: usize },
    #[error(
        "shapes {a:?} and {b:?} do not broadcast: axis {axis} is {at_a} in the first and {at_b} in the second"
    )]
    Broadcast { a: Dims, b: Dims, axis: usize, at_a: i64, at_b: i64 },
    #[error("cannot expand shape {from:?} to {to:?}: axis {axis} is {at_from}, wanted {at_to}")]
    Expand { from: Dims, to: Dims, axis: usize, at_from: i64, at_to: i64 },
    #[error("cannot reshape {from:?} ({numel} elements) to {to:?}")]
    Reshape { from: Dims, to: Dims, numel: i64 },
    #[error("axis {axis} is out of range for {ndim} dimensions")]
    Axis { axis: i64, ndim: usize },
    #[error("axes {axes:?} are not a permutation of {ndim} dimensions")]
    Permutation { axes: Dims, ndim: usize },
    #[error("index {index} is out of range for axis {axis} of size {size}")]
    Index { index: i64, axis: usize, size: i64 },
    #[error("slice step must be positive, got {0}")]
    Step(i64),
    #[error("too many indices: {given} for {ndim} dimensions")]
    TooManyIndices { given: usize, ndim: usize },
    #[error("device '{0}' is not available here; nothing was run")]
    NoDevice(Device),
    #[error("expected {wanted}, got {got}")]
    DType { wanted: DType, got: DType },
    #[error("the size of a symbolic dimension is not known here")]
    Symbolic,
}
