"""Pointwise chains fused with the op over their rows: one native step, eager's bits, and no tensor in between."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

import tensorplay as tp

ROWS = {
    "sum": lambda x: tp.sum(x, axis=-1),
    "prod": lambda x: tp.prod(x, axis=-1, keepdims=True),
    "mean": lambda x: tp.mean(x, axis=x.ndim - 1),
    "var": lambda x: tp.var(x, axis=-1),
    "max": lambda x: tp.max(x, axis=-1),
    "min": lambda x: tp.min(x, axis=(-1,), keepdims=True),
    "logsumexp": lambda x: tp.logsumexp(x, axis=-1),
    "softmax": lambda x: tp.softmax(x, axis=-1),
    "log_softmax": lambda x: tp.log_softmax(x),
}
# Rows that fill blocks exactly, rows that do not, a block of one row, and three axes.
SHAPES = ((1024, 512), (777, 701), (20, 30_000), (31, 65, 401))


def sample(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> tp.Tensor:
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    x.flat[:: x.size // 7] = [np.nan, np.inf, -np.inf, -0.0, 1e-40, 3e38, 0.0, 1.0][
        : len(x.flat[:: x.size // 7])
    ]
    return tp.astype(tp.from_numpy(x), getattr(tp, dtype))


def same(got: tp.Tensor, want: tp.Tensor) -> bool:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return False
    a, b = tp.astype(got, tp.float64).numpy(), tp.astype(want, tp.float64).numpy()
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(
        np.signbit(a[a == 0]), np.signbit(b[b == 0])
    )


def steps(compiled: Callable, *args: tp.Tensor) -> tuple[tp.Tensor, list[tuple[str, ...]]]:
    got, report = compiled.run(*args)
    assert all(r.marker.executor == "native" and r.reason is None for r in report.forward)
    return got, [tuple(op.removeprefix("tp::").split(".")[0] for op in r.ops) for r in report.forward]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_a_chain_and_the_op_over_its_rows_are_one_step(name: str, shape: tuple[int, ...]) -> None:
    """5.3: one region with a tile proof, and eager's bits, special values among them."""
    x, fn = sample(shape), lambda x: ROWS[name](tp.tanh(x) * 2.0 + x)
    compiled = tp.compile(fn)
    got, ops = steps(compiled, x)
    assert ops == [("tanh", "mul", "add", name)]
    assert compiled.last_run.forward[0].marker.proof.startswith("tile:")
    assert same(got, fn(x))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int64", "bool"])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "softmax"])
def test_every_dtype_of_a_fused_row_is_eagers(name: str, dtype: str) -> None:
    """5.3: halves round where eager rounds, ints add up in int64."""
    x, fn = sample((1030, 515), dtype), lambda x: ROWS[name](tp.maximum(x, 0) * x)
    got, ops = steps(tp.compile(fn), x)
    assert ops == [("maximum", "mul", name)]
    assert same(got, fn(x))


def test_broadcasts_and_views_are_fused_too() -> None:
    """5.3: operands with strides, one per row and one per column; the layer norm is three steps."""
    x, scale = sample((900, 640)), tp.linspace(0.5, 1.5, 640)

    def norm(x: tp.Tensor, scale: tp.Tensor) -> tp.Tensor:
        centred = x - tp.mean(x, axis=-1, keepdims=True)
        return centred * tp.rsqrt(tp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5) * scale

    x = tp.where(tp.isfinite(x), x, 0.25)
    fn = lambda x, y: tp.sum(x * y + 1.0, axis=-1)  # noqa: E731
    for args in ((x, scale), (sample((640, 900)).T, x), (x, sample((900, 1)))):
        got, ops = steps(tp.compile(fn), *args)
        assert ops == [("mul", "add", "sum")]
        assert same(got, fn(*args))
    assert same(tp.compile(norm)(x, scale), norm(x, scale))


def test_nothing_between_is_allocated() -> None:
    """5.3: a fused sum over 64 MB asks for no memory of that size; the same chain with a second reader does."""
    code = """
import re
from pathlib import Path
import tensorplay as tp

def peak():  # of this process; `getrusage` starts from that of the one before
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def grown(fn, x):
    before = peak()
    tp.compile(fn)(x)
    return peak() - before

def twice(x):
    y = tp.exp(x) * 0.5
    return tp.sum(y, axis=-1), tp.max(y, axis=-1)

x = tp.ones((4096, 4096))
print(grown(lambda x: tp.sum(tp.exp(x) * 0.5, axis=-1), x), grown(twice, x))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    fused, apart = map(int, done.stdout.split())
    assert fused < 16 << 10 < 48 << 10 < apart


def test_what_does_not_pay_or_cannot_be_is_two_steps() -> None:
    """5.3: few elements, another axis, rows longer than a block, and a second reader."""
    big, small = sample((1024, 512)), sample((8, 9))
    two = lambda x: tp.sum(x * 2.0, axis=-1)  # noqa: E731
    assert steps(tp.compile(two), small)[1] == [("mul",), ("sum",)]
    long = sample((3, 300_000))
    for fn, x in ((lambda x: tp.sum(x * 2.0, axis=0), big), (lambda x: tp.sum(x * 2.0), big), (two, long)):
        got, ops = steps(tp.compile(fn), x)
        assert ops == [("mul",), ("sum",)]
        assert same(got, fn(x))

    def twice(x: tp.Tensor) -> tp.Tensor:
        y = x * 2.0
        return tp.sum(y, axis=-1, keepdims=True) + tp.max(y, axis=-1, keepdims=True)

    got, ops = steps(tp.compile(twice), big)
    assert ops[0] == ("mul",)
    assert same(got, twice(big))


def test_a_division_by_zero_names_its_op() -> None:
    """5.3: a region that divides integers is not fused, so that its error is the one of eager."""
    x = tp.ones((1024, 1024), dtype=tp.int64)
    with pytest.raises(ZeroDivisionError, match="floor_divide"):
        tp.compile(lambda x: tp.sum(x // (x - 1), axis=-1))(x)


REASON = "works over rows: native code runs it and the pointwise ops before it in one step"


@pytest.mark.requires("tvm")
@pytest.mark.parametrize("name", ROWS)
def test_tvm_leaves_a_chain_and_the_op_over_its_rows_to_native_code(name: str) -> None:
    """5.4: one native step that says whose turn it was, naming the reduction; no kernel is made; strict runs raise."""
    x, fn = sample((1024, 1024)), lambda x: ROWS[name](tp.tanh(x) * 2.0)
    compiled = tp.compile(fn, backend="tvm", on_fallback="record")
    got, report = compiled.run(x)
    (region,) = report.forward
    assert [op.split(".")[0] for op in region.ops] == ["tp::tanh", "tp::mul", f"tp::{name}"]
    assert region.marker.executor == "native"
    assert region.marker.proof.startswith("tile:")
    assert (region.reason.kind, region.reason.op.split(".")[0]) == ("UnsupportedOp", f"tp::{name}")
    assert f"tp::{name}.default: {REASON}" in str(region.reason)
    assert compiled.builds == []
    assert same(got, fn(x))
    with pytest.raises(tp.errors.FallbackError, match=f"tp::{name}.default: {REASON}"):
        tp.compile(fn, backend="tvm", on_fallback="error")(x)


@pytest.mark.requires("tvm")
def test_tvm_leaves_rows_in_a_backward_too(ns: str) -> None:
    """5.4: a backward rule that sums products over rows is one native step, beside a chain that stays TVM's."""

    @tp.library.custom_op(f"{ns}::scaled", mutates_args=())
    def scaled(x: tp.Tensor, factor: tp.Tensor) -> tp.Tensor:
        return x * factor

    scaled.register_fake(lambda x, factor: tp.empty_like(x))

    def backward(ctx, grad: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor]:
        x, factor = ctx.saved_tensors
        return grad * factor, tp.sum(grad * x * 0.5, axis=-1, keepdims=True) * 2.0

    scaled.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    )
    data = tp.where(tp.isfinite(sample((1024, 600))), 0.5, 0.25).numpy()
    fn = lambda x, factor: tp.mean(scaled(tp.tanh(x) * 2.0, factor) * x, axis=-1)  # noqa: E731
    compiled = tp.compile(fn, backend="tvm", on_fallback="record")
    grads = []
    for run in (fn, compiled):
        factor = tp.full((1024, 1), 0.75).requires_grad_()
        run(tp.tensor(data), factor).backward(tp.ones((1024,)))
        grads.append(factor.grad)
    assert same(*grads)
    report = compiled.last_run
    for runs, op in ((report.forward, "mean"), (report.backward, "sum")):
        fused = [run for run in runs if run.ops[-1].startswith(f"tp::{op}.") and len(run.ops) > 1]
        assert [run.marker.executor for run in fused] == ["native"], runs
        assert f"tp::{op}.default: {REASON}" in str(fused[0].reason)
        assert any(run.marker.executor == "tvm" and run.reason is None for run in runs)


@pytest.mark.requires("tvm")
def test_a_chain_before_few_rows_stays_with_tvm() -> None:
    """5.4: what is not worth one native step is TVM's chain and a call; so are rows longer than a block."""
    for shape in ((8, 9), (3, 300_000)):
        x, fn = sample(shape), lambda x: tp.sum(tp.tanh(x) * 2.0, axis=-1)
        got, report = tp.compile(fn, backend="tvm", on_fallback="record").run(x)
        assert [r.marker.executor for r in report.forward] == ["tvm", "native"]
        assert (report.forward[1].reason.kind, report.forward[1].reason.op.split(".")[0]) == (
            "UnsupportedOp",
            "tp::sum",
        )
        assert same(got, fn(x))


def test_an_absent_backend_does_not_take_a_fused_row_apart() -> None:
    """5.3: a backend that is not there is the reason of one step; one that is there gets the chain."""
    from backends.numpy_backend import NumPy

    class Absent(NumPy):
        def probe(self) -> str | None:
            return "no such machine"

    x, fn = sample((1024, 512)), lambda x: tp.sum(x * 2.0, axis=-1)
    for kind, executors, reason in (
        (Absent, ["native"], "no such machine"),
        (NumPy, ["rows_plugged", "native"], "not pointwise"),
    ):
        tp.backends.register("rows_plugged", kind)
        try:
            got, report = tp.compile(fn, backend="rows_plugged", on_fallback="record").run(x)
        finally:
            tp.backends.unregister("rows_plugged")
        assert [r.marker.executor for r in report.forward] == executors
        assert reason in str(report.forward[-1].reason)
        assert same(got, fn(x))


def test_gradients_of_a_fused_row_are_eagers() -> None:
    """5.3: the forward of a training region keeps what the backward needs, fused or not."""
    data = tp.where(tp.isfinite(sample((1024, 600))), 0.5, 0.25)
    grads = []
    for wrap in (lambda f: f, tp.compile):
        x = tp.tensor(data.numpy(), requires_grad=True)
        wrap(lambda x: tp.sum(tp.tanh(x) * x, axis=-1))(x).backward(tp.ones((1024,)))
        grads.append(x.grad)
    assert same(*grads)


def test_a_kernel_that_somebody_registered_is_called(ns: str) -> None:
    """5.3: threads do not change a bit, and an op of the user's is never fused, whatever its tags say."""

    @tp.library.custom_op(f"{ns}::total", mutates_args=(), tags=("rows",))
    def total(x: tp.Tensor, axis: int) -> tp.Tensor:
        return tp.sum(x, axis=axis)

    total.register_fake(lambda x, axis: tp.empty(x.shape[:-1]))
    x = sample((1024, 1024))
    report = tp.compile(lambda x: total(x * 2.0, -1)).run(x)[1]
    assert [r.marker.executor for r in report.forward] == ["native", "python"]


def test_threads_change_no_bit() -> None:
    """5.3: blocks are shared out among threads; each row is computed as by one."""
    x, fn = sample((2050, 513)), tp.compile(lambda x: tp.softmax(tp.sin(x) * 3.0, axis=-1))
    before = tp.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            tp.set_num_threads(threads)
            results.append(fn(x))
    finally:
        tp.set_num_threads(before)
    assert same(results[0], results[1])
    assert same(results[0], results[2])
