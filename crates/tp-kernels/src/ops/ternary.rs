//! Pointwise rows of three operands, and the ones with a parameter.

use crate::cpu;
use crate::fake;
use crate::row::{Row, op, pointwise};
use tp_dispatch::GradSpec::{Expr, Rule};

pub static ROWS: &[Row] = &[
    pointwise!(
        [
            "where(Tensor condition, Tensor x1, Tensor x2) -> Tensor",
            "where.Scalar(Tensor condition, Tensor x1, Scalar x2) -> Tensor",
            "where.ScalarLeft(Tensor condition, Scalar x1, Tensor x2) -> Tensor",
            "where.ScalarBoth(Tensor condition, Scalar x1, Scalar x2) -> Tensor",
        ],
        "select(condition, x1, x2)",
        Expr(&[None, Some("select(condition, grad, 0)"), Some("select(condition, 0, grad)")]),
        typed = ["condition: bool"]
    ),
    pointwise!(
        ["masked_fill(Tensor x, Tensor mask, Scalar value) -> Tensor"],
        "select(mask, value, x)",
        Expr(&[Some("select(mask, 0, grad)"), None, None]),
        typed = ["mask: bool"]
    ),
    // The upper bound wins where the bounds meet or cross: the result is that bound then, whatever x is.
    pointwise!(
        [
            "clamp(Tensor x, Scalar min, Scalar max) -> Tensor",
            "clamp.Tensor(Tensor x, Tensor min, Tensor max) -> Tensor",
        ],
        "clamp(x, min, max)",
        Expr(&[
            Some("select((x < min) | (x > max) | (max <= min), 0, grad)"),
            Some("select((x < min) & (min < max), grad, 0)"),
            Some("select((x > max) | (max <= min), grad, 0)"),
        ])
    ),
    pointwise!(
        ["leaky_relu(Tensor x, Scalar negative_slope=0.01) -> Tensor"],
        "select(x > 0, x, x * negative_slope)",
        Expr(&[Some("select(x > 0, grad, grad * negative_slope)"), None])
    ),
    // The dtype is a parameter, so this is no scalar expression; the tag says how to fuse it.
    op!(
        ["astype(Tensor x, ScalarType dtype) -> Tensor"],
        Some(fake::pointwise::astype),
        cpu::cast::astype,
        Rule("astype"),
        tags = ["cast"],
        doc = "The elements converted to another dtype; a new tensor."
    ),
];
