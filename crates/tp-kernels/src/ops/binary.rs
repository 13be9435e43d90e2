//! Pointwise rows of two operands. One row is three ops: two tensors, tensor and number, number and tensor; the
//! number is weak, so it never widens the tensor's dtype within its kind.

use crate::cpu::short;
use crate::row::{Row, ZERO_GRAD, pointwise};
use tp_dispatch::GradSpec::{Expr, NotDifferentiable};

/// `binary!("name", "expression over x1 and x2", grad)`.
macro_rules! binary {
    ($name:literal, $expr:expr, $grad:expr $(, $($rest:tt)*)?) => {
        pointwise!(
            [
                concat!($name, "(Tensor x1, Tensor x2) -> Tensor"),
                concat!($name, ".Scalar(Tensor x1, Scalar x2) -> Tensor"),
                concat!($name, ".ScalarLeft(Scalar x1, Tensor x2) -> Tensor"),
            ],
            $expr,
            $grad
            $(, $($rest)*)?
        )
    };
}

const BOOLEAN: tp_dispatch::GradSpec = NotDifferentiable("its result is boolean");
const BITWISE: tp_dispatch::GradSpec = NotDifferentiable("bitwise operations have no derivative");

/// Of `pow` and of its form in place. Another base where 0 times infinity or NaN would come out, here and in the second
/// derivative: a `select` hides what is not chosen from the value, but its derivative still multiplies it by zero.
pub(super) const POW_GRAD: tp_dispatch::GradSpec = Expr(&[
    Some("grad * x2 * select((x2 == 0) & ((x1 == 0) | (x1 != x1)), 1, x1) ** (x2 - 1)"),
    Some("z = (x1 == 0) & (x2 >= 0); select(z, 0, grad * out * log(select(z, 1, x1)))"),
]);

pub static ROWS: &[Row] = &[
    // Arithmetic.
    binary!("add", "x1 + x2", Expr(&[Some("grad"), Some("grad")]), short = short::ADD),
    binary!("sub", "x1 - x2", Expr(&[Some("grad"), Some("-grad")]), short = short::SUB),
    binary!("mul", "x1 * x2", Expr(&[Some("grad * x2"), Some("grad * x1")]), short = short::MUL),
    binary!("div", "x1 / x2", Expr(&[Some("grad / x2"), Some("-grad * out / x2")]), short = short::DIV),
    binary!("floor_divide", "x1 // x2", Expr(&[Some(ZERO_GRAD), Some(ZERO_GRAD)])),
    binary!("remainder", "x1 % x2", Expr(&[Some("grad"), Some("-grad * (x1 // x2)")])),
    binary!("pow", "x1 ** x2", POW_GRAD),
    // Choice: at a tie each operand gets half of the gradient.
    binary!(
        "maximum",
        "max(x1, x2)",
        Expr(&[
            Some("select(x1 == x2, 0.5 * grad, select(x1 < x2, 0, grad))"),
            Some("select(x1 == x2, 0.5 * grad, select(x1 > x2, 0, grad))"),
        ])
    ),
    binary!(
        "minimum",
        "min(x1, x2)",
        Expr(&[
            Some("select(x1 == x2, 0.5 * grad, select(x1 > x2, 0, grad))"),
            Some("select(x1 == x2, 0.5 * grad, select(x1 < x2, 0, grad))"),
        ])
    ),
    // Geometry.
    binary!(
        "atan2",
        "atan2(x1, x2)",
        Expr(&[
            // No squares: those of large and of small operands have no place in their dtype.
            Some("r = hypot(x1, x2); z = r == 0; s = select(z, 1, r); select(z, 0, grad * (x2 / s) / s)"),
            Some("r = hypot(x1, x2); z = r == 0; s = select(z, 1, r); select(z, 0, -grad * (x1 / s) / s)"),
        ])
    ),
    // At the origin zero lies between the slopes of all directions.
    binary!(
        "hypot",
        "hypot(x1, x2)",
        Expr(&[
            Some("z = out == 0; select(z, 0, grad * x1 / select(z, 1, out))"),
            Some("z = out == 0; select(z, 0, grad * x2 / select(z, 1, out))"),
        ])
    ),
    binary!(
        "copysign",
        "copysign(x1, x2)",
        Expr(&[Some("select(signbit(x1) == signbit(x2), grad, -grad)"), Some(ZERO_GRAD)])
    ),
    // Equal operands are apart, because inf - inf is no difference.
    binary!(
        "logaddexp",
        "select(x1 == x2, x1 + 0.6931471805599453, max(x1, x2) + log1p(exp(-abs(cast_float(x1) - cast_float(x2)))))",
        Expr(&[
            // Zero apart at ties of infinities alone: at any other tie the difference has a derivative.
            Some("d = x1 - x2; grad * sigmoid(select((x1 == x2) & (d != 0), 0, d))"),
            Some("d = x2 - x1; grad * sigmoid(select((x1 == x2) & (d != 0), 0, d))"),
        ])
    ),
    // Comparisons.
    binary!("eq", "x1 == x2", BOOLEAN),
    binary!("ne", "x1 != x2", BOOLEAN),
    binary!("lt", "x1 < x2", BOOLEAN),
    binary!("le", "x1 <= x2", BOOLEAN),
    binary!("gt", "x1 > x2", BOOLEAN),
    binary!("ge", "x1 >= x2", BOOLEAN),
    // Logic and bits.
    binary!("logical_and", "cast_bool(x1) & cast_bool(x2)", BOOLEAN),
    binary!("logical_or", "cast_bool(x1) | cast_bool(x2)", BOOLEAN),
    binary!("logical_xor", "cast_bool(x1) ^ cast_bool(x2)", BOOLEAN),
    binary!("bitwise_and", "x1 & x2", BITWISE),
    binary!("bitwise_or", "x1 | x2", BITWISE),
    binary!("bitwise_xor", "x1 ^ x2", BITWISE),
    binary!("left_shift", "x1 << x2", BITWISE),
    binary!("right_shift", "x1 >> x2", BITWISE),
];
