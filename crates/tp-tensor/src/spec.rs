//! What is known of a tensor without its data: dtype, shape, strides, device. A fake rule computes these.

use crate::dim::{Dim, Dims};
use crate::layout;
use crate::{DType, Device, Tensor};
use std::fmt;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorSpec {
    pub dtype: DType,
    pub sizes: Dims,
    pub strides: Dims,
    pub device: Device,
}

impl TensorSpec {
    /// A C-contiguous spec. Symbolic sizes give symbolic strides.
    pub fn contiguous(sizes: &[i64], dtype: DType, device: Device) -> TensorSpec {
        TensorSpec {
            dtype,
            sizes: Dims::from_slice(sizes),
            strides: layout::contiguous_strides(sizes),
            device,
        }
    }

    pub fn of(t: &Tensor) -> TensorSpec {
        TensorSpec {
            dtype: t.dtype(),
            sizes: Dims::from_slice(t.sizes()),
            strides: Dims::from_slice(t.strides()),
            device: t.device(),
        }
    }
}

/// `float32[2, 3]`, with strides and device only where they are not the usual ones.
impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, Dim::slice(&self.sizes))?;
        if self.strides != layout::contiguous_strides(&self.sizes) {
            write!(f, " strides {:?}", Dim::slice(&self.strides))?;
        }
        if self.device != Device::CPU {
            write!(f, " on {}", self.device)?;
        }
        Ok(())
    }
}
