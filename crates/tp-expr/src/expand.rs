//! The float32 transcendentals, each one written once over an `Algebra`: as instructions for backends
//! (`Program::expand`) and as inlined code for the native executors. Error bounds are stated at each function and
//! held by the tests here.

pub mod algebra;
mod double;
mod single;

use algebra::Algebra;

use crate::prim::Prim;

/// The expansion of `prim` on float32; `y` is ignored by the unary ones. `None` if `prim` is no transcendental.
#[inline(always)]
pub fn expand_with<A: Algebra>(a: &mut A, prim: Prim, x: A::F, y: A::F) -> Option<A::F> {
    Some(match prim {
        Prim::Exp => single::exp(a, x),
        Prim::Exp2 => double::exp2(a, x),
        Prim::Expm1 => double::expm1(a, x),
        Prim::Log => single::log(a, x),
        Prim::Log2 => double::log_scaled(a, x, std::f64::consts::LOG2_E),
        Prim::Log10 => double::log_scaled(a, x, std::f64::consts::LOG10_E),
        Prim::Log1p => double::log1p(a, x),
        Prim::Sigmoid => single::sigmoid(a, x),
        Prim::Tanh => single::tanh(a, x),
        Prim::Erf => single::erf(a, x),
        Prim::Sin => double::sin(a, x),
        Prim::Cos => double::cos(a, x),
        Prim::Tan => double::tan(a, x),
        Prim::Asin => double::asin(a, x),
        Prim::Acos => double::acos(a, x),
        Prim::Atan => double::atan(a, x),
        Prim::Sinh => double::sinh(a, x),
        Prim::Cosh => double::cosh(a, x),
        Prim::Asinh => double::asinh(a, x),
        Prim::Acosh => double::acosh(a, x),
        Prim::Atanh => double::atanh(a, x),
        Prim::Atan2 => double::atan2(a, x, y),
        Prim::Hypot => double::hypot(a, x, y),
        Prim::Pow => double::pow(a, x, y),
        _ => return None,
    })
}
