//! Reduction rows, and the rows along one axis: softmax, cumulative sums.

use crate::cpu::{reduce_ops as cpu, scan, short, softmax};
use crate::fake::reduce as fake;
use crate::row::{Row, op};
use tp_dispatch::GradSpec::{NotDifferentiable, Rule};

pub static ROWS: &[Row] = &[
    // Sums. Integers and bool add up in int64.
    op!(
        ["sum(Tensor x, SymInt[1]? axis=None, *, ScalarType? dtype=None, bool keepdims=False) -> Tensor"],
        Some(fake::sum),
        cpu::sum,
        Rule("sum"),
        short = short::SUM,
        tags = ["rows"],
        doc = "The sum over `axis` (an int, several, or None for all). Without axes left: 0-d; `keepdims` keeps them with size 1. dtype: int64 for ints and bool, else that of `x`, unless given."
    ),
    op!(
        ["prod(Tensor x, SymInt[1]? axis=None, *, ScalarType? dtype=None, bool keepdims=False) -> Tensor"],
        Some(fake::sum),
        cpu::prod,
        Rule("prod"),
        tags = ["rows"],
        doc = "The product over `axis` (an int, several, or None for all); `keepdims` keeps the dimensions with size 1. dtype: int64 for ints and bool, else that of `x`, unless given."
    ),
    op!(
        ["mean(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::mean),
        cpu::mean,
        Rule("mean"),
        tags = ["rows"],
        doc = "The mean over `axis` (an int, several, or None for all); `keepdims` keeps the dimensions with size 1. dtype: that of `x`; float32 for ints and bool."
    ),
    op!(
        ["var(Tensor x, SymInt[1]? axis=None, *, float correction=0.0, bool keepdims=False) -> Tensor"],
        Some(fake::var),
        cpu::var,
        Rule("var"),
        tags = ["rows"],
        doc = "The variance over `axis` (an int, several, or None for all), divided by the count less `correction`; `keepdims` keeps the dimensions with size 1. dtype: that of `x`; float32 for ints and bool."
    ),
    op!(
        ["std(Tensor x, SymInt[1]? axis=None, *, float correction=0.0, bool keepdims=False) -> Tensor"],
        Some(fake::var),
        cpu::std,
        Rule("std"),
        doc = "The standard deviation over `axis`: the root of `var`. dtype: that of `x`; float32 for ints and bool."
    ),
    op!(
        ["logsumexp(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::mean),
        cpu::logsumexp,
        Rule("logsumexp"),
        tags = ["rows"],
        doc = "log(sum(exp(x))) over `axis` without overflow; `keepdims` keeps the dimensions with size 1. dtype: that of `x`; float32 for ints and bool."
    ),
    // The inverse of broadcasting.
    op!(
        ["sum_to_size(Tensor x, SymInt[] shape) -> Tensor"],
        Some(fake::sum_to_size),
        cpu::sum_to_size,
        Rule("sum_to_size"),
        doc = "The sum over what broadcasting from `shape` would have added: the inverse of `broadcast_to`. Shape: `shape`. dtype: that of `x`."
    ),
    // Choice. A NaN is the largest and the smallest element.
    op!(
        ["max(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::extremum),
        cpu::max,
        Rule("max"),
        tags = ["rows"],
        doc = "The largest element over `axis` (an int, several, or None for all); a NaN wins. `keepdims` keeps the dimensions with size 1. dtype: that of `x`."
    ),
    op!(
        ["min(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::extremum),
        cpu::min,
        Rule("min"),
        tags = ["rows"],
        doc = "The smallest element over `axis` (an int, several, or None for all); a NaN wins. `keepdims` keeps the dimensions with size 1. dtype: that of `x`."
    ),
    op!(
        ["argmax(Tensor x, int? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::index),
        cpu::argmax,
        NotDifferentiable("its result is an index"),
        doc = "The position of the first largest element along `axis`, or in the flattened tensor; a NaN wins. dtype: int64."
    ),
    op!(
        ["argmin(Tensor x, int? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::index),
        cpu::argmin,
        NotDifferentiable("its result is an index"),
        doc = "The position of the first smallest element along `axis`, or in the flattened tensor; a NaN wins. dtype: int64."
    ),
    op!(
        ["any(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::truth),
        cpu::any,
        NotDifferentiable("its result is boolean"),
        doc = "Whether any element over `axis` (an int, several, or None for all) is not zero. dtype: bool."
    ),
    op!(
        ["all(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::truth),
        cpu::all,
        NotDifferentiable("its result is boolean"),
        doc =
            "Whether every element over `axis` (an int, several, or None for all) is not zero. dtype: bool."
    ),
    // Along one axis.
    op!(
        ["cumsum(Tensor x, int axis, *, ScalarType? dtype=None) -> Tensor"],
        Some(fake::cumulative),
        scan::cumsum,
        Rule("cumsum"),
        doc = "The running sum along `axis`. Shape: that of `x`. dtype: int64 for ints and bool, else that of `x`, unless given."
    ),
    op!(
        ["softmax(Tensor x, int axis=-1) -> Tensor"],
        Some(fake::softmax),
        softmax::softmax,
        Rule("softmax"),
        tags = ["rows"],
        doc = "exp(x) over its sum along `axis`, without overflow. Shape: that of `x`. dtype: that of `x`; float32 for ints and bool."
    ),
    op!(
        ["log_softmax(Tensor x, int axis=-1) -> Tensor"],
        Some(fake::softmax),
        softmax::log_softmax,
        Rule("log_softmax"),
        tags = ["rows"],
        doc = "The logarithm of `softmax` along `axis`. Shape: that of `x`. dtype: that of `x`; float32 for ints and bool."
    ),
    op!(
        ["softmax_backward(Tensor grad, Tensor out, int axis) -> Tensor"],
        Some(fake::softmax_backward),
        softmax::softmax_backward,
        Rule("softmax_backward"),
        doc = "The gradient of `softmax` from its result."
    ),
    op!(
        ["log_softmax_backward(Tensor grad, Tensor out, int axis) -> Tensor"],
        Some(fake::softmax_backward),
        softmax::log_softmax_backward,
        Rule("log_softmax_backward"),
        doc = "The gradient of `log_softmax` from its result."
    ),
];
