//! Rows that read and write by index.

use crate::cpu::{gather, index};
use crate::fake::{gather as gather_fake, index as index_fake};
use crate::row::{MUTATES, Row, op};
use tp_dispatch::GradSpec::{NotDifferentiable, Rule};

pub static ROWS: &[Row] = &[
    // Along one axis. Indices of `take` may have any shape.
    op!(
        ["take(Tensor x, Tensor indices, int? axis=None) -> Tensor"],
        Some(gather_fake::take),
        gather::take,
        Rule("take"),
        doc = "The elements at `indices` along `axis`; with `axis=None` those of the flattened tensor. Negative positions count from the end. dtype: that of `x`."
    ),
    op!(
        ["index_select(Tensor x, int axis, Tensor index) -> Tensor"],
        Some(gather_fake::index_select),
        gather::index_select,
        Rule("index_select"),
        doc = "The slices at the positions `index` (one dimension) along `axis`. dtype: that of `x`."
    ),
    op!(
        ["gather(Tensor x, int axis, Tensor index) -> Tensor"],
        Some(gather_fake::gather),
        gather::gather,
        Rule("gather"),
        doc = "For each element of `index` the element of `x` at that position along `axis`, in the same place otherwise. Shape: that of `index`. dtype: that of `x`."
    ),
    op!(
        ["take_along_axis(Tensor x, Tensor indices, int axis=-1) -> Tensor"],
        Some(gather_fake::take_along_axis),
        gather::take_along_axis,
        Rule("take_along_axis"),
        doc = "As `gather`, with the other dimensions broadcast. dtype: that of `x`."
    ),
    // The adjoints: a copy of x with the source added at the indices.
    op!(
        ["scatter_add(Tensor x, int axis, Tensor index, Tensor source) -> Tensor"],
        Some(gather_fake::scatter_add),
        gather::scatter_add,
        Rule("scatter_add"),
        doc = "A copy of `x` with each element of `source` added at the position along `axis` that `index` names."
    ),
    op!(
        ["index_add(Tensor x, int axis, Tensor index, Tensor source) -> Tensor"],
        Some(gather_fake::index_add),
        gather::index_add,
        Rule("index_add"),
        doc = "A copy of `x` with the slices of `source` added at the positions `index` (one dimension) along `axis`."
    ),
    // Several axes at once.
    op!(
        ["index(Tensor x, Tensor?[] indices) -> Tensor"],
        Some(index_fake::index),
        index::index,
        Rule("index"),
        doc = "The elements that index tensors choose, as `x[i, j]` does; None keeps a dimension. The indices broadcast together. dtype: that of `x`."
    ),
    op!(
        ["index_put(Tensor x, Tensor?[] indices, Tensor values, *, bool accumulate=False) -> Tensor"],
        Some(index_fake::index_put),
        index::index_put,
        Rule("index_put"),
        doc = "A copy of `x` with `values` put, or with `accumulate` added, where the indices say."
    ),
    op!(
        [
            "index_put_(Tensor(a!) x, Tensor?[] indices, Tensor values, *, bool accumulate=False) -> Tensor(a!)"
        ],
        Some(index_fake::index_put_),
        index::index_put_,
        Rule("index_put"),
        effects = MUTATES,
        doc = "Puts `values` into `x`, or with `accumulate` adds them, where the indices say. Returns `x`."
    ),
    op!(
        ["nonzero(Tensor x) -> Tensor"],
        Some(index_fake::nonzero),
        index::nonzero,
        NotDifferentiable("its result is a list of positions"),
        doc = "The positions of the elements that are not zero, one row each. Shape: (how many, dimensions of `x`). dtype: int64."
    ),
];
