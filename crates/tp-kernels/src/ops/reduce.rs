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
        short = short::sum
    ),
    op!(
        ["prod(Tensor x, SymInt[1]? axis=None, *, ScalarType? dtype=None, bool keepdims=False) -> Tensor"],
        Some(fake::sum),
        cpu::prod,
        Rule("prod")
    ),
    op!(
        ["mean(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::mean),
        cpu::mean,
        Rule("mean")
    ),
    op!(
        ["var(Tensor x, SymInt[1]? axis=None, *, float correction=0.0, bool keepdims=False) -> Tensor"],
        Some(fake::var),
        cpu::var,
        Rule("var")
    ),
    op!(
        ["std(Tensor x, SymInt[1]? axis=None, *, float correction=0.0, bool keepdims=False) -> Tensor"],
        Some(fake::var),
        cpu::std,
        Rule("std")
    ),
    op!(
        ["logsumexp(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::mean),
        cpu::logsumexp,
        Rule("logsumexp")
    ),
    // The inverse of broadcasting.
    op!(
        ["sum_to_size(Tensor x, SymInt[] shape) -> Tensor"],
        Some(fake::sum_to_size),
        cpu::sum_to_size,
        Rule("sum_to_size")
    ),
    // Choice. A NaN is the largest and the smallest element.
    op!(
        ["max(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::extremum),
        cpu::max,
        Rule("max")
    ),
    op!(
        ["min(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::extremum),
        cpu::min,
        Rule("min")
    ),
    op!(
        ["argmax(Tensor x, int? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::index),
        cpu::argmax,
        NotDifferentiable("its result is an index")
    ),
    op!(
        ["argmin(Tensor x, int? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::index),
        cpu::argmin,
        NotDifferentiable("its result is an index")
    ),
    op!(
        ["any(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::truth),
        cpu::any,
        NotDifferentiable("its result is boolean")
    ),
    op!(
        ["all(Tensor x, SymInt[1]? axis=None, *, bool keepdims=False) -> Tensor"],
        Some(fake::truth),
        cpu::all,
        NotDifferentiable("its result is boolean")
    ),
    // Along one axis.
    op!(
        ["cumsum(Tensor x, int axis, *, ScalarType? dtype=None) -> Tensor"],
        Some(fake::cumulative),
        scan::cumsum,
        Rule("cumsum")
    ),
    op!(["softmax(Tensor x, int axis=-1) -> Tensor"], Some(fake::softmax), softmax::softmax, Rule("softmax")),
    op!(
        ["log_softmax(Tensor x, int axis=-1) -> Tensor"],
        Some(fake::softmax),
        softmax::log_softmax,
        Rule("log_softmax")
    ),
    op!(
        ["softmax_backward(Tensor grad, Tensor out, int axis) -> Tensor"],
        Some(fake::softmax_backward),
        softmax::softmax_backward,
        Rule("softmax_backward")
    ),
    op!(
        ["log_softmax_backward(Tensor grad, Tensor out, int axis) -> Tensor"],
        Some(fake::softmax_backward),
        softmax::log_softmax_backward,
        Rule("log_softmax_backward")
    ),
];
