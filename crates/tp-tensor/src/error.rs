//! What can be wrong with values: shapes, strides, memory. Errors carry their operands.

use crate::dim::{Dim, Dims};
use crate::scalar::Misfit;
use crate::symbols::{listed, shown};
use crate::{DType, Device};
use thiserror::Error;

/// A number that was given, as a text.
fn one(raw: i64) -> String {
    shown(&[raw]).remove(0)
}

/// Why one shape does not stretch to another.
fn unequal(from: &Dims, to: &Dims, axis: usize, at_from: i64, at_to: i64) -> String {
    match (from.len(), to.len()) {
        (from, to) if from > to => format!("it has {from} dimensions, which do not become {to}"),
        (from, to) if axis < to - from && at_to == -1 => {
            format!("axis {axis} is a new one, whose size -1 does not say")
        }
        _ => format!("axis {axis} is {}, wanted {}", Dim::from_raw(at_from), one(at_to)),
    }
}

#[derive(Debug, Clone, PartialEq, Error)]
pub enum TensorError {
    #[error("sizes must not be negative, got {}", listed(.0))]
    NegativeSize(Dims),
    #[error("a tensor of shape {:?} is too large: its size in bytes does not fit in 63 bits", Dim::slice(.0))]
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
        "shapes {:?} and {:?} do not broadcast: axis {axis} is {} in the first and {} in the second",
        Dim::slice(.a), Dim::slice(.b), Dim::from_raw(*.at_a), Dim::from_raw(*.at_b)
    )]
    Broadcast { a: Dims, b: Dims, axis: usize, at_a: i64, at_b: i64 },
    #[error(
        "cannot expand shape {:?} to {}: {}",
        Dim::slice(.from), listed(.to), unequal(.from, .to, *.axis, *.at_from, *.at_to)
    )]
    Expand { from: Dims, to: Dims, axis: usize, at_from: i64, at_to: i64 },
    #[error(
        "cannot reshape {:?} ({}) to {}",
        Dim::slice(.from), counted(Dim::from_raw(*.numel), "element"), listed(.to)
    )]
    Reshape { from: Dims, to: Dims, numel: i64 },
    #[error("axis {axis} is out of range for {}", counted(.ndim, "dimension"))]
    Axis { axis: i64, ndim: usize },
    #[error("axes {axes:?} are not a permutation of {}", counted(.ndim, "dimension"))]
    Permutation { axes: Dims, ndim: usize },
    #[error(
        "index {} is out of range for axis {axis} of size {}",
        one(*.index), Dim::from_raw(*.size)
    )]
    Index { index: i64, axis: usize, size: i64 },
    #[error("slice step must be positive, got {}", one(*.0))]
    Step(i64),
    #[error("too many indices: {given} for {}", counted(.ndim, "dimension"))]
    TooManyIndices { given: usize, ndim: usize },
    #[error("device '{0}' is not available here; nothing was run")]
    NoDevice(Device),
    #[error("expected {wanted}, got {got}")]
    DType { wanted: DType, got: DType },
    #[error(transparent)]
    Number(#[from] Misfit),
    #[error("the size {} is not known before the run, and this needs it", Dim::from_raw(*.0))]
    Symbolic(i64),
    #[error("{0} is not known before the run, and this needs it")]
    Unknown(String),
    #[error("whether {0} is not known before the run, and what is captured depends on it")]
    Undecided(String),
}

/// A number with its noun: "1 element", "2 elements".
pub fn counted(n: impl std::fmt::Display, noun: &str) -> String {
    let n = n.to_string();
    if n == "1" { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_no_plural() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "item")), ["0 items", "1 item", "2 items"]);
        assert_eq!(
            TensorError::Axis { axis: 3, ndim: 1 }.to_string(),
            "axis 3 is out of range for 1 dimension"
        );
    }
}
