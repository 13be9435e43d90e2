//! What is guarded of a tensor argument whether its sizes are known or symbols. How its elements lie is not here:
//! `guard_args` and `guard_sizes` tell that apart.

use crate::guard::python_bool;
use tp_tensor::dim::Dims;
use tp_tensor::{DType, Device, Dim, Tensor, keybits};

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Facts {
    dtype: DType,
    device: Device,
    /// Device kind, fake or not, requires a gradient or not.
    keys: u16,
    /// Known ones and symbols.
    pub sizes: Dims,
}

impl Facts {
    /// Of `t`, whose sizes are `sizes`.
    pub fn of(t: &Tensor, sizes: Dims) -> Facts {
        Facts { dtype: t.dtype(), device: t.device(), keys: t.keys(), sizes }
    }

    /// All but the sizes.
    pub fn is_like(&self, t: &Tensor) -> bool {
        t.keys() == self.keys
            && t.dtype() == self.dtype
            && t.device() == self.device
            && t.ndim() == self.sizes.len()
    }

    /// Whether a size is a number, and not that of `t`.
    fn differs(&self, axis: usize, t: &Tensor) -> bool {
        !is_symbol(self.sizes[axis]) && t.sizes()[axis] != self.sizes[axis]
    }

    /// Whether the sizes that are numbers are those of `t`, of the same rank.
    pub fn sizes_hold(&self, t: &Tensor) -> bool {
        !(0..t.ndim()).any(|axis| self.differs(axis, t))
    }

    pub fn requires_grad(&self) -> bool {
        self.keys & keybits::AUTOGRAD != 0
    }

    /// As text, with what `arrangement` says of how the elements lie.
    pub fn texts(&self, name: &str, arrangement: String, out: &mut Vec<String>) {
        out.push(format!("{name}.dtype == {}", self.dtype));
        out.push(format!("{name}.device == {}", self.device));
        out.push(format!("{name}.ndim == {}", self.sizes.len()));
        let known = self.sizes.iter().enumerate().filter(|(_, s)| !is_symbol(**s));
        out.extend(known.map(|(i, s)| format!("{name}.shape[{i}] == {s}")));
        out.push(arrangement);
        out.push(format!("{name}.requires_grad == {}", python_bool(self.requires_grad())));
    }

    /// The first fact that does not hold, and what was found; None where all of them do.
    pub fn miss(&self, name: &str, t: &Tensor) -> Option<String> {
        if t.dtype() != self.dtype {
            return Some(format!("{name}.dtype == {}, got {}", self.dtype, t.dtype()));
        }
        if t.device() != self.device {
            return Some(format!("{name}.device == {}, got {}", self.device, t.device()));
        }
        if t.ndim() != self.sizes.len() {
            return Some(format!("{name}.ndim == {}, got {}", self.sizes.len(), t.ndim()));
        }
        if let Some(i) = (0..t.ndim()).find(|&i| self.differs(i, t)) {
            return Some(format!("{name}.shape[{i}] == {}, got {}", self.sizes[i], t.sizes()[i]));
        }
        let [want, got] = [self.requires_grad(), t.requires_grad()];
        let said =
            |want, got| format!("{name}.requires_grad == {}, got {}", python_bool(want), python_bool(got));
        (want != got).then(|| said(want, got))
    }
}

fn is_symbol(size: i64) -> bool {
    Dim::from_raw(size).is_symbol()
}
