//! The guard on one tensor: all that a capture sees of it beside its data.

use super::{python_bool, tuple};
use tp_tensor::dim::Dims;
use tp_tensor::layout::same_dims;
use tp_tensor::{DType, Device, Tensor, keybits};

/// What a capture saw of a tensor.
#[derive(Debug)]
pub struct TensorGuard {
    dtype: DType,
    contiguous: bool,
    /// Device kind, fake or not, requires a gradient or not.
    keys: u16,
    device: Device,
    sizes: Dims,
    /// Compared only when not contiguous.
    strides: Dims,
}

impl TensorGuard {
    pub fn of(t: &Tensor) -> TensorGuard {
        TensorGuard {
            dtype: t.dtype(),
            contiguous: t.is_contiguous(),
            keys: t.keys(),
            device: t.device(),
            sizes: t.sizes().into(),
            strides: t.strides().into(),
        }
    }

    #[inline]
    pub fn holds(&self, t: &Tensor) -> bool {
        t.keys() == self.keys
            && t.dtype() == self.dtype
            && t.device() == self.device
            && t.is_contiguous() == self.contiguous
            && same_dims(t.sizes(), &self.sizes)
            && (self.contiguous || same_dims(t.strides(), &self.strides))
    }

    pub(super) fn requires_grad(&self) -> bool {
        self.keys & keybits::AUTOGRAD != 0
    }

    pub(super) fn texts(&self, name: &str, out: &mut Vec<String>) {
        out.push(format!("{name}.dtype == {}", self.dtype));
        out.push(format!("{name}.device == {}", self.device));
        out.push(format!("{name}.ndim == {}", self.sizes.len()));
        out.extend(self.sizes.iter().enumerate().map(|(i, s)| format!("{name}.shape[{i}] == {s}")));
        if self.contiguous {
            out.push(format!("{name}.is_contiguous() == True"));
        } else {
            out.push(format!("{name}.stride() == {}", tuple(&self.strides)));
        }
        out.push(format!("{name}.requires_grad == {}", python_bool(self.requires_grad())));
    }

    /// The first fact that does not hold, and what was found.
    pub fn miss(&self, name: &str, t: &Tensor) -> String {
        if t.dtype() != self.dtype {
            return format!("{name}.dtype == {}, got {}", self.dtype, t.dtype());
        }
        if t.device() != self.device {
            return format!("{name}.device == {}, got {}", self.device, t.device());
        }
        if t.ndim() != self.sizes.len() {
            return format!("{name}.ndim == {}, got {}", self.sizes.len(), t.ndim());
        }
        if let Some(i) = (0..t.ndim()).find(|&i| t.sizes()[i] != self.sizes[i]) {
            return format!("{name}.shape[{i}] == {}, got {}", self.sizes[i], t.sizes()[i]);
        }
        if t.requires_grad() != self.requires_grad() {
            let want = python_bool(self.requires_grad());
            return format!("{name}.requires_grad == {want}, got {}", python_bool(t.requires_grad()));
        }
        if self.contiguous && !t.is_contiguous() {
            return format!("{name}.is_contiguous() == True, got False");
        }
        format!("{name}.stride() == {}, got {}", tuple(&self.strides), tuple(t.strides()))
    }
}
