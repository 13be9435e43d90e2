//! Guards of arguments one by one: what each tensor and literal must be.

use crate::capture::literal;
use crate::guard::{python_bool, tuple};
use crate::guard_sizes::{Arrangement, SizedGuard};
use crate::ir::{Const, Operand};
use tp_dispatch::Arg;
use tp_tensor::dim::Dims;
use tp_tensor::layout::same_dims;
use tp_tensor::{DType, Device, Dim, Tensor, keybits};

#[derive(Debug)]
pub(crate) enum ArgGuard {
    Tensor(TensorGuard),
    Literal(Operand),
    /// A tensor with symbolic sizes.
    Sized(Box<SizedGuard>),
}

impl ArgGuard {
    /// Whether an argument is what is guarded here, sizes apart.
    pub fn is_like(&self, arg: &Arg<'_>) -> bool {
        match (self, arg) {
            (ArgGuard::Tensor(g), Arg::Tensor(t)) => g.is_like(t),
            (ArgGuard::Sized(g), Arg::Tensor(t)) => g.is_like(t),
            (ArgGuard::Literal(c), arg) => literal_holds(c, arg),
            _ => false,
        }
    }

    /// The size of an axis; None where it is a symbol.
    pub fn size(&self, axis: usize) -> Option<i64> {
        let sizes = match self {
            ArgGuard::Tensor(g) => &g.sizes,
            ArgGuard::Sized(g) => &g.sizes,
            ArgGuard::Literal(_) => return None,
        };
        Dim::from_raw(*sizes.get(axis)?).as_known()
    }

    pub fn requires_grad(&self) -> bool {
        match self {
            ArgGuard::Tensor(g) => g.requires_grad(),
            ArgGuard::Sized(g) => g.requires_grad(),
            ArgGuard::Literal(_) => false,
        }
    }
}

#[derive(Debug)]
pub struct TensorGuard {
    /// Dtype, device, contiguity, fake or not, requires a gradient or not.
    kind: u64,
    sizes: Dims,
    contiguous: bool,
    dtype: DType,
    device: Device,
    keys: u16,
    /// Compared only when not contiguous.
    strides: Dims,
}

impl TensorGuard {
    pub fn of(t: &Tensor) -> TensorGuard {
        TensorGuard {
            kind: t.kind(),
            dtype: t.dtype(),
            contiguous: t.is_contiguous(),
            keys: t.keys(),
            device: t.device(),
            sizes: t.sizes().into(),
            strides: t.strides().into(),
        }
    }

    #[inline(always)]
    pub fn holds(&self, t: &Tensor) -> bool {
        t.kind() == self.kind
            && same_dims(t.sizes(), &self.sizes)
            && (self.contiguous || same_dims(t.strides(), &self.strides))
    }

    /// All but the sizes.
    fn is_like(&self, t: &Tensor) -> bool {
        t.kind() == self.kind
            && (self.contiguous
                || Arrangement::of(t.sizes(), t.strides()) == Arrangement::of(&self.sizes, &self.strides))
    }

    pub fn requires_grad(&self) -> bool {
        self.keys & keybits::AUTOGRAD != 0
    }

    pub fn texts(&self, name: &str, out: &mut Vec<String>) {
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

/// Literals of the common kinds without building an operand.
pub(crate) fn literal_holds(guard: &Operand, arg: &Arg<'_>) -> bool {
    match (guard, arg) {
        (Operand::Const(Const::None), Arg::None) => true,
        (Operand::Const(Const::Int(a)), Arg::Int(b)) => a == b,
        (Operand::Const(Const::Float(a)), Arg::Float(b)) => a.to_bits() == b.to_bits(),
        (Operand::Const(Const::Bool(a)), Arg::Bool(b)) => a == b,
        (Operand::Const(Const::Str(a)), Arg::Str(b)) => &**a == *b,
        _ => literal(arg).is_some_and(|c| c == *guard),
    }
}
