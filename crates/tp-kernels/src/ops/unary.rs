//! Pointwise rows of one tensor. Each is its scalar function and the gradient in terms of `x`, `out` and `grad`.

use crate::cpu::short;
use crate::row::{Row, ZERO_GRAD, pointwise};
use tp_dispatch::GradSpec::{Expr, NotDifferentiable};

/// `unary!("name", "expression over x", grad)`.
macro_rules! unary {
    ($name:literal, $expr:expr, $grad:expr $(, $($rest:tt)*)?) => {
        pointwise!([concat!($name, "(Tensor x) -> Tensor")], $expr, $grad $(, $($rest)*)?)
    };
}

const BOOLEAN: tp_dispatch::GradSpec = NotDifferentiable("its result is boolean");
const BITWISE: tp_dispatch::GradSpec = NotDifferentiable("bitwise operations have no derivative");

pub static ROWS: &[Row] = &[
    // Identity and signs.
    unary!("clone", "x", Expr(&[Some("grad")]), tags = ["copy"]),
    unary!("positive", "x", Expr(&[Some("grad")])),
    unary!("neg", "-x", Expr(&[Some("-grad")]), short = short::NEG),
    unary!("abs", "abs(x)", Expr(&[Some("grad * sign(x)")])),
    unary!("sign", "sign(x)", Expr(&[Some(ZERO_GRAD)])),
    // Powers.
    unary!("square", "x * x", Expr(&[Some("2 * grad * x")])),
    unary!("sqrt", "sqrt(x)", Expr(&[Some("grad / (2 * out)")])),
    unary!("rsqrt", "rsqrt(x)", Expr(&[Some("-0.5 * grad * out * out * out")])),
    unary!("reciprocal", "1 / x", Expr(&[Some("-grad * out * out")])),
    // Exponentials and logarithms.
    unary!("exp", "exp(x)", Expr(&[Some("grad * out")])),
    unary!("exp2", "exp2(x)", Expr(&[Some("grad * out * 0.6931471805599453")])),
    unary!("expm1", "expm1(x)", Expr(&[Some("grad * (out + 1)")])),
    unary!("log", "log(x)", Expr(&[Some("grad / x")])),
    unary!("log1p", "log1p(x)", Expr(&[Some("grad / (x + 1)")])),
    unary!("log2", "log2(x)", Expr(&[Some("grad / (x * 0.6931471805599453)")])),
    unary!("log10", "log10(x)", Expr(&[Some("grad / (x * 2.302585092994046)")])),
    // Trigonometry.
    unary!("sin", "sin(x)", Expr(&[Some("grad * cos(x)")])),
    unary!("cos", "cos(x)", Expr(&[Some("-grad * sin(x)")])),
    unary!("tan", "tan(x)", Expr(&[Some("grad * (1 + out * out)")])),
    unary!("asin", "asin(x)", Expr(&[Some("grad * rsqrt(1 - x * x)")])),
    unary!("acos", "acos(x)", Expr(&[Some("-grad * rsqrt(1 - x * x)")])),
    unary!("atan", "atan(x)", Expr(&[Some("grad / (1 + x * x)")])),
    unary!("sinh", "sinh(x)", Expr(&[Some("grad * cosh(x)")])),
    unary!("cosh", "cosh(x)", Expr(&[Some("grad * sinh(x)")])),
    unary!("tanh", "tanh(x)", Expr(&[Some("grad * (1 - out * out)")])),
    unary!("asinh", "asinh(x)", Expr(&[Some("grad / hypot(x, 1)")])),
    unary!("acosh", "acosh(x)", Expr(&[Some("grad * rsqrt(x - 1) * rsqrt(x + 1)")])),
    unary!("atanh", "atanh(x)", Expr(&[Some("grad / (1 - x * x)")])),
    // Activations. `gelu.tanh` is the usual approximation of `gelu`.
    unary!("erf", "erf(x)", Expr(&[Some("grad * 1.1283791670955126 * exp(-x * x)")])),
    unary!("sigmoid", "sigmoid(x)", Expr(&[Some("grad * out * (1 - out)")])),
    unary!("relu", "max(x, 0)", Expr(&[Some("select(out > 0, grad, 0)")])),
    unary!("silu", "x * sigmoid(x)", Expr(&[Some("s = sigmoid(x); grad * s * (1 + x * (1 - s))")])),
    unary!("softplus", "max(x, 0) + log1p(exp(-abs(cast_float(x))))", Expr(&[Some("grad * sigmoid(x)")])),
    unary!(
        "gelu",
        "0.5 * x * (1 + erf(x * 0.7071067811865476))",
        Expr(&[Some(
            "grad * (0.5 * (1 + erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * exp(-0.5 * x * x))"
        )])
    ),
    unary!(
        "gelu.tanh",
        "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))",
        Expr(&[Some(
            // Beyond 16 the tangent is 1 to the last bit of any dtype, and a square may not fit into the dtype.
            "c = max(min(x, 16), -16); t = tanh(0.7978845608028654 * (c + 0.044715 * c * c * c)); \
             grad * 0.5 * (1 + t + c * (1 - t * t) * 0.7978845608028654 * (1 + 0.134145 * c * c))"
        )])
    ),
    // Rounding.
    unary!("floor", "floor(x)", Expr(&[Some(ZERO_GRAD)])),
    unary!("ceil", "ceil(x)", Expr(&[Some(ZERO_GRAD)])),
    unary!("trunc", "trunc(x)", Expr(&[Some(ZERO_GRAD)])),
    unary!("round", "rint(x)", Expr(&[Some(ZERO_GRAD)]), doc = "Halves go to the even neighbour."),
    // Questions.
    unary!("isnan", "isnan(x)", BOOLEAN),
    unary!("isinf", "isinf(x)", BOOLEAN),
    unary!("isfinite", "isfinite(x)", BOOLEAN),
    unary!("signbit", "signbit(x)", BOOLEAN),
    unary!("logical_not", "~cast_bool(x)", BOOLEAN),
    unary!("bitwise_invert", "~x", BITWISE),
];
