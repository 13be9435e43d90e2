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
        Rule("take")
    ),
    op!(
        ["index_select(Tensor x, int axis, Tensor index) -> Tensor"],
        Some(gather_fake::index_select),
        gather::index_select,
        Rule("index_select")
    ),
    op!(
        ["gather(Tensor x, int axis, Tensor index) -> Tensor"],
        Some(gather_fake::gather),
        gather::gather,
        Rule("gather")
    ),
    op!(
        ["take_along_axis(Tensor x, Tensor indices, int axis=-1) -> Tensor"],
        Some(gather_fake::take_along_axis),
        gather::take_along_axis,
        Rule("take_along_axis")
    ),
    // The adjoints: a copy of x with the source added at the indices.
    op!(
        ["scatter_add(Tensor x, int axis, Tensor index, Tensor source) -> Tensor"],
        Some(gather_fake::scatter_add),
        gather::scatter_add,
        Rule("scatter_add")
    ),
    op!(
        ["index_add(Tensor x, int axis, Tensor index, Tensor source) -> Tensor"],
        Some(gather_fake::index_add),
        gather::index_add,
        Rule("index_add")
    ),
    // Several axes at once.
    op!(
        ["index(Tensor x, Tensor?[] indices) -> Tensor"],
        Some(index_fake::index),
        index::index,
        Rule("index")
    ),
    op!(
        ["index_put(Tensor x, Tensor?[] indices, Tensor values, *, bool accumulate=False) -> Tensor"],
        Some(index_fake::index_put),
        index::index_put,
        Rule("index_put")
    ),
    op!(
        [
            "index_put_(Tensor(a!) x, Tensor?[] indices, Tensor values, *, bool accumulate=False) -> Tensor(a!)"
        ],
        Some(index_fake::index_put_),
        index::index_put_,
        Rule("index_put"),
        effects = MUTATES
    ),
    op!(
        ["nonzero(Tensor x) -> Tensor"],
        Some(index_fake::nonzero),
        index::nonzero,
        NotDifferentiable("its result is a list of positions")
    ),
];
