//! Rows about order. Sorting values is `take_along_axis` of `argsort`.

use crate::cpu::sort as cpu;
use crate::fake::sort as fake;
use crate::row::{Row, op};
use tp_dispatch::GradSpec::NotDifferentiable;

pub static ROWS: &[Row] = &[
    // Stable. NaN comes last, or first when descending.
    op!(
        ["argsort(Tensor x, int axis=-1, *, bool descending=False) -> Tensor"],
        Some(fake::argsort),
        cpu::argsort,
        NotDifferentiable("its result is a list of positions"),
        doc = "The positions that sort `x` along `axis`, stably; a NaN comes last, or first with `descending`. dtype: int64."
    ),
    op!(
        ["searchsorted(Tensor x1, Tensor x2, *, bool right=False) -> Tensor"],
        Some(fake::searchsorted),
        cpu::searchsorted,
        NotDifferentiable("its result is a list of positions"),
        doc = "For each element of `x2` where it fits into the sorted `x1` (one dimension): before equal elements, or behind them with `right`. Shape: that of `x2`. dtype: int64."
    ),
];
