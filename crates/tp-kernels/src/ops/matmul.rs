//! Products of matrices.

use crate::cpu;
use crate::fake;
use crate::row::{Row, op};
use tp_dispatch::GradSpec::Rule;

pub static ROWS: &[Row] = &[op!(
    ["matmul(Tensor x1, Tensor x2) -> Tensor"],
    Some(fake::matmul::matmul),
    cpu::matmul::matmul,
    Rule("matmul")
)];
