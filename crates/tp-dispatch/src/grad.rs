//! How an op says that it can be differentiated. The rules themselves live in tp-autograd; here is only what a
//! row of the op table writes down, and the opaque object a registration carries.

use std::any::Any;
use std::sync::Arc;

/// A differentiation rule that somebody registered: tp-autograd's own type.
pub type GradRule = dyn Any + Send + Sync;

#[derive(Clone, Default)]
pub enum GradSpec {
    /// Nothing said: forward works, backward through it is an error that names the op.
    #[default]
    Missing,
    /// Never differentiable, and why (comparisons, argmax, integer results). Outputs do not require grad.
    NotDifferentiable(&'static str),
    /// One scalar expression per argument in schema order (`None` for arguments without a gradient), over the
    /// argument names, `out` and `grad`; tp-autograd evaluates it with ops and sums to each operand's shape.
    Expr(&'static [Option<&'static str>]),
    /// A rule of tp-autograd, by name.
    Rule(&'static str),
    /// Registered by a user.
    Custom(Arc<GradRule>),
}
