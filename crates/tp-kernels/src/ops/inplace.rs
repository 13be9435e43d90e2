//! Rows that write to their first argument and return it. The arithmetic ones are the functional rows' scalar
//! expressions, written back; the tag names the functional form.

use crate::cpu::inplace as cpu;
use crate::fake::inplace as fake;
use crate::row::{Cpu, MUTATES, Row, Scalars, ZERO_GRAD, op};
use tp_dispatch::GradSpec::{Expr, NotDifferentiable};

/// `inplace!("name", "expression over x1 and x2", grad)`: the row `name_`, in two forms.
macro_rules! inplace {
    ($name:literal, $expr:expr, $grad:expr) => {
        Row {
            schemas: &[
                concat!($name, "_(Tensor(a!) x1, Tensor x2) -> Tensor(a!)"),
                concat!($name, "_.Scalar(Tensor(a!) x1, Scalar x2) -> Tensor(a!)"),
            ],
            effects: MUTATES,
            fake: None,
            cpu: Cpu::InPlace(Scalars { expr: $expr, typed: &[], short: None }),
            grad: $grad,
            tags: &[concat!("inplace=tp::", $name)],
            doc: "",
            file: file!(),
            line: line!(),
        }
    };
}

const BITWISE: tp_dispatch::GradSpec = NotDifferentiable("bitwise operations have no derivative");

pub static ROWS: &[Row] = &[
    inplace!("add", "x1 + x2", Expr(&[Some("grad"), Some("grad")])),
    inplace!("sub", "x1 - x2", Expr(&[Some("grad"), Some("-grad")])),
    inplace!("mul", "x1 * x2", Expr(&[Some("grad * x2"), Some("grad * x1")])),
    inplace!("div", "x1 / x2", Expr(&[Some("grad / x2"), Some("-grad * out / x2")])),
    inplace!("pow", "x1 ** x2", super::binary::POW_GRAD),
    inplace!("floor_divide", "x1 // x2", Expr(&[Some(ZERO_GRAD), Some(ZERO_GRAD)])),
    inplace!("remainder", "x1 % x2", Expr(&[Some("grad"), Some("-grad * (x1 // x2)")])),
    inplace!("bitwise_and", "x1 & x2", BITWISE),
    inplace!("bitwise_or", "x1 | x2", BITWISE),
    inplace!("bitwise_xor", "x1 ^ x2", BITWISE),
    inplace!("left_shift", "x1 << x2", BITWISE),
    inplace!("right_shift", "x1 >> x2", BITWISE),
    // Copies convert to the argument's dtype, whatever the source's.
    op!(
        ["copy_(Tensor(a!) x, Tensor source) -> Tensor(a!)"],
        Some(fake::copy_),
        cpu::copy_,
        Expr(&[Some(ZERO_GRAD), Some("grad")]),
        effects = MUTATES,
        doc = "Writes `source`, broadcast and converted to the dtype of `x`, to `x`. Returns `x`."
    ),
    op!(
        ["fill_(Tensor(a!) x, Scalar value) -> Tensor(a!)"],
        Some(fake::fill_),
        cpu::fill_,
        Expr(&[Some(ZERO_GRAD), None]),
        effects = MUTATES,
        doc = "Writes one number to every element of `x`. Returns `x`."
    ),
    op!(
        ["zero_(Tensor(a!) x) -> Tensor(a!)"],
        Some(fake::zero_),
        cpu::zero_,
        Expr(&[Some(ZERO_GRAD)]),
        effects = MUTATES,
        doc = "Writes zero to every element of `x`. Returns `x`."
    ),
];
