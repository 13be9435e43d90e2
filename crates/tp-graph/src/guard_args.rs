//! Guards of arguments one by one: what each tensor and literal must be.

use crate::capture::literal;
use crate::guard::tuple;
use crate::guard_facts::Facts;
use crate::guard_sizes::{Arrangement, SizedGuard};
use crate::ir::{Const, Operand};
use tp_dispatch::Arg;
use tp_tensor::dim::Dims;
use tp_tensor::layout::same_dims;
use tp_tensor::{Dim, Tensor};

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
            ArgGuard::Tensor(g) => &g.facts.sizes,
            ArgGuard::Sized(g) => &g.facts.sizes,
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
    /// Dtype, rank, device, contiguity, fake or not, requires a gradient or not: all but sizes and strides.
    kind: u64,
    facts: Facts,
    contiguous: bool,
    /// Compared only when not contiguous.
    strides: Dims,
}

impl TensorGuard {
    pub fn of(t: &Tensor) -> TensorGuard {
        TensorGuard {
            kind: t.kind(),
            facts: Facts::of(t, t.sizes().into()),
            contiguous: t.is_contiguous(),
            strides: t.strides().into(),
        }
    }

    #[inline(always)]
    pub fn holds(&self, t: &Tensor) -> bool {
        t.kind() == self.kind
            && same_dims(t.sizes(), &self.facts.sizes)
            && (self.contiguous || same_dims(t.strides(), &self.strides))
    }

    /// All but the sizes.
    fn is_like(&self, t: &Tensor) -> bool {
        let lie = || Arrangement::of(&self.facts.sizes, &self.strides);
        t.kind() == self.kind && (self.contiguous || Arrangement::of(t.sizes(), t.strides()) == lie())
    }

    pub fn requires_grad(&self) -> bool {
        self.facts.requires_grad()
    }

    pub fn texts(&self, name: &str, out: &mut Vec<String>) {
        let arrangement = match self.contiguous {
            true => format!("{name}.is_contiguous() == True"),
            false => format!("{name}.stride() == {}", tuple(&self.strides)),
        };
        self.facts.texts(name, arrangement, out);
    }

    /// The first fact that does not hold, and what was found.
    pub fn miss(&self, name: &str, t: &Tensor) -> String {
        self.facts.miss(name, t).unwrap_or_else(|| match self.contiguous && !t.is_contiguous() {
            true => format!("{name}.is_contiguous() == True, got False"),
            false => format!("{name}.stride() == {}, got {}", tuple(&self.strides), tuple(t.strides())),
        })
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
