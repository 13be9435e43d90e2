"""Python numbers that meet a dtype which cannot hold them: an error, never another number; comparisons are exact."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import errors

INTS = (tp.int8, tp.uint8, tp.int16, tp.int32)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
BACKENDS = ("eager", "native", pytest.param("tvm", marks=pytest.mark.requires("tvm")))


def limits(dtype) -> tuple[int, int]:
    info = np.iinfo(str(dtype).removeprefix("tensorplay."))
    return int(info.min), int(info.max)


def under(backend: str, f):
    return f if backend == "eager" else tp.compile(f, backend=backend, on_fallback="record")


def numbers(dtype):
    least, most = limits(dtype)
    return [least - 1, most + 1, least - 257, most + 257, -(2**63), 2**63 - 1]


def refused(f, *args) -> errors.TensorPlayError:
    with pytest.raises(errors.InvalidValueError, match="does not fit in") as caught:
        f(*args)
    assert caught.value.code == "TP1154"
    return caught.value


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_comparisons_with_numbers_out_of_range_are_exact(dtype, backend: str) -> None:
    """As NumPy 2 compares: mathematically, on either side."""
    least, most = limits(dtype)
    x = tp.tensor([least, 0, 1, most], dtype=dtype)
    a = x.numpy()
    for number in numbers(dtype):
        for compare in COMPARISONS:
            got = under(backend, lambda x, compare=compare, number=number: compare(x, number))(x)
            assert got.dtype == tp.bool
            assert got.tolist() == compare(a, number).tolist(), (compare, number)
            left = under(backend, lambda x, compare=compare, number=number: compare(number, x))(x)
            assert left.tolist() == compare(number, a).tolist(), (compare, number)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bounds_out_of_range_bound_nothing(backend: str) -> None:
    """clamp and its halves: a bound beyond the dtype changes nothing; one that nothing could meet is an error."""
    x = tp.tensor([-128, 1, 100], dtype=tp.int8)
    u = tp.tensor([0, 1, 200], dtype=tp.uint8)
    for f, t, want in (
        (lambda x: tp.clamp(x, -300, 300), x, [-128, 1, 100]),
        (lambda x: tp.clamp(x, -1, 50), u, [0, 1, 50]),
        (lambda x: tp.clamp(x, 5, 300), u, [5, 5, 200]),
        (lambda x: tp.clamp(x, max=300), x, [-128, 1, 100]),
        (lambda x: tp.clamp(x, min=-300), x, [-128, 1, 100]),
        (lambda x: tp.minimum(x, 300), x, [-128, 1, 100]),
    ):
        got = under(backend, f)(t)
        assert (got.dtype, got.tolist()) == (t.dtype, want)
    for f in (
        lambda x: tp.clamp(x, 200, 300),
        lambda x: tp.clamp(x, -300, -200),
        lambda x: tp.maximum(x, 300),
        lambda x: tp.minimum(x, -300),
    ):
        refused(under(backend, f), x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_out_of_range_are_refused(backend: str) -> None:
    """Where the number becomes a value of the dtype, as NumPy 2 refuses it; eager and captured alike."""
    x = tp.tensor([1, 100], dtype=tp.int8)
    i = tp.tensor([1, 100], dtype=tp.int32)
    functions = (
        lambda x: x + 300,
        lambda x: 300 - x,
        lambda x: x & 300,
        lambda x: tp.masked_fill(x, x > 50, 300),
        lambda x: tp.where(x > 50, x, 300),
        lambda x: tp.where(x > 50, -129, x),
        lambda x: x.clone().fill_(300),
        lambda x: x.clone().add_(300),
        lambda x: tp.full((1,), 300, dtype=tp.int8),
        lambda x: tp.full_like(x, 300),
        lambda x: tp.full((1,), float("nan"), dtype=tp.int32),
        lambda x: tp.full((1,), float("inf"), dtype=tp.int64),
        lambda x: tp.full((1,), 2.0**63, dtype=tp.int64),
        lambda x: tp.arange(0, 300, 1, dtype=tp.int8),
        lambda x: tp.linspace(0.0, 300.0, 3, dtype=tp.uint8),
        lambda x: tp.randint(0, 300, (2,), dtype=tp.uint8),
    )
    for f in functions:
        error = refused(under(backend, f), x)
        assert "to" in str(error)
    refused(under(backend, lambda i: i + 2**31), i)
    refused(under(backend, lambda i: i * -(2**31) - 2**31 - 1), i)
    assert under(backend, lambda i: i + (2**31 - 101))(i).tolist() == [2**31 - 100, 2**31 - 1]


def test_refused_writes_change_nothing() -> None:
    x = tp.tensor([1, 100], dtype=tp.int8)
    for write in (lambda: x.fill_(300), lambda: x.add_(300), lambda: operator.setitem(x, 0, 300)):
        refused(write)
        assert x.tolist() == [1, 100]
    refused(lambda: tp.tensor([float("nan")], dtype=tp.int32))
    refused(lambda: tp.tensor([1e10], dtype=tp.int32))


def test_logic_takes_every_number_by_its_truth() -> None:
    """256 has a zero low byte and is true."""
    x = tp.tensor([0, 1], dtype=tp.uint8)
    assert tp.logical_and(x, 256).tolist() == [False, True]
    assert tp.logical_or(x, 256).tolist() == [True, True]


def test_both_ways_to_write_a_number_agree() -> None:
    """`q[0] = 1.5` and `fill_(1.5)` convert as copies do: a fraction is cut off, and NaN fits no integer."""
    for number, want in ((1.5, 1), (-1.5, -1), (True, 1), (3, 3)):
        q = tp.tensor([7, 7])
        q[0] = number
        assert q.tolist() == [want, 7]
        assert tp.tensor([7]).fill_(number).tolist() == [want]
        q[[0, 1]] = number
        assert q.tolist() == [want, want]
        assert tp.compile(lambda x, number=number: x.clone().fill_(number))(q).tolist() == [want, want]
    q = tp.tensor([1, 2])
    for number in (float("nan"), float("inf"), 1e30):
        refused(lambda number=number: operator.setitem(q, 0, number))
        refused(lambda number=number: operator.setitem(q, [0, 1], number))
        refused(lambda number=number: q.fill_(number))
    assert q.tolist() == [1, 2]
    mask = tp.tensor([False, False])
    mask[0] = 1
    assert (mask.tolist(), mask.fill_(2).tolist()) == ([True, False], [True, True])


def test_numbers_that_fit_are_as_before() -> None:
    """Fractions are cut off where a dtype is asked for, and the ends of each range fit."""
    assert tp.full((1,), 1.9, dtype=tp.int32).tolist() == [1]
    assert tp.full((1,), -128.9, dtype=tp.int8).tolist() == [-128]
    assert tp.tensor([1.9], dtype=tp.int8).tolist() == [1]
    for dtype in (*INTS, tp.int64):
        least, most = limits(dtype)
        x = tp.tensor([0], dtype=dtype)
        assert (x + most).tolist() == [most]
        assert (x | least).tolist() == [least]
        assert tp.full((2,), least, dtype=dtype).tolist() == [least] * 2
        assert tp.arange(most - 1, most, 1, dtype=dtype).tolist() == [most - 1]
    assert np.asarray(tp.ones((1,), dtype=tp.float16) * 70000).tolist() == [float("inf")]


FLOATING_UNARY = [
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "sigmoid",
    "silu",
    "softplus",
    "gelu",
]
FLOATING_BINARY = ["div", "atan2", "hypot", "copysign", "logaddexp"]


def edges_of(dtype) -> list[int]:
    least, most = limits(dtype)
    return sorted(
        {least, least + 1, -2, -1, 0, 1, 2, 3, most // 2, most - 1, most} & set(range(least, most + 1))
    )


def floats_agree(got: tp.Tensor, want: tp.Tensor, what: object) -> None:
    assert got.dtype == want.dtype
    assert np.allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=0.0, equal_nan=True), (what, got, want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [tp.int8, tp.uint8, tp.int16], ids=str)
def test_float_functions_of_integers_compute_in_floats(dtype, backend: str) -> None:
    """i1: what an op that gives floats computes on its way does not wrap around in the integers' width."""
    x = tp.tensor(edges_of(dtype), dtype=dtype)
    f = x.astype(tp.float32)
    for name in FLOATING_UNARY:
        op = under(backend, getattr(tp, name))
        floats_agree(op(x), getattr(tp, name)(f), name)
    n = len(x)
    a, b = x.reshape((n, 1)).expand((n, n)).clone(), x.reshape((1, n)).expand((n, n)).clone()
    for name in FLOATING_BINARY:
        op = getattr(tp, name)
        floats_agree(under(backend, op)(a, b), op(a.astype(tp.float32), b.astype(tp.float32)), name)
        for number in (0, 3, 100):
            right = under(backend, lambda t, op=op, number=number: op(t, number))
            left = under(backend, lambda t, op=op, number=number: op(number, t))
            floats_agree(right(x), op(f, number), (name, number))
            floats_agree(left(x), op(number, f), (number, name))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_float_functions_take_every_number_beside_integers(dtype, backend: str) -> None:
    """The number meets floats there, and never becomes a value of the integers: u8 / -2 is no error."""
    least, most = limits(dtype)
    x = tp.tensor([least, 1, 3, most], dtype=dtype)
    f = x.astype(tp.float32)
    for name in FLOATING_BINARY:
        op = getattr(tp, name)
        for number in (least - 1, most + 1, -2, 300, 2**63 - 1, -(2**63)):
            right = under(backend, lambda t, op=op, number=number: op(t, number))
            left = under(backend, lambda t, op=op, number=number: op(number, t))
            floats_agree(right(x), op(f, number), (name, number))
            floats_agree(left(x), op(number, f), (number, name))
    assert (tp.tensor([1, 2], dtype=tp.uint8) / -2).tolist() == [-0.5, -1.0]
    for op in (operator.add, operator.floordiv, operator.mod):
        refused(under(backend, lambda t, op=op: op(t, 2**40)), x)


def test_the_soft_functions_of_small_integers_are_numpys() -> None:
    """i1: against NumPy in float64."""
    for dtype in (np.int8, np.uint8):
        info = np.iinfo(dtype)
        a = np.arange(info.min, info.max + 1, 5).astype(dtype)
        x, y = np.meshgrid(a, a)
        got = tp.logaddexp(tp.from_numpy(x), tp.from_numpy(y)).numpy()
        assert np.allclose(got, np.logaddexp(x.astype(np.float64), y.astype(np.float64)), rtol=1e-6)
        assert np.allclose(
            tp.softplus(tp.from_numpy(a)).numpy(), np.logaddexp(0.0, a.astype(np.float64)), rtol=1e-6
        )
