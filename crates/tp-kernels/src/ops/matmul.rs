//! Products of matrices.

use crate::cpu;
use crate::fake;
use crate::row::{Row, op};
use tp_dispatch::GradSpec::Rule;

pub static ROWS: &[Row] = &[op!(
    ["matmul(Tensor x1, Tensor x2) -> Tensor"],
    Some(fake::matmul::matmul),
    cpu::matmul::matmul,
    Rule("matmul"),
    doc = "The matrix product. Dimensions before the last two broadcast; a vector counts as a row on the left, as a column on the right, and that dimension is left out of the result. dtype: the promoted one."
)];
