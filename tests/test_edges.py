"""Values and gradients at the edges: sums that leave 64 bits, ends of ranges, ties, NaN, the origin; repeated axes."""

from __future__ import annotations

import math

import pytest

import tensorplay as tp
from tensorplay import errors


def leaf(*values: float, dtype=tp.float64):
    return tp.tensor(list(values), dtype=dtype, requires_grad=True)


def test_means_of_int64_do_not_wrap() -> None:
    """The sum is taken in 128 bits: exact up to the one rounding at the end."""
    big = 2**62
    assert tp.mean(tp.tensor([big, big, big])).item() == float(big)
    assert tp.mean(tp.tensor([2**63 - 1] * 7)).item() == float(2**63)
    assert tp.mean(tp.tensor([-(2**63)] * 5)).item() == -float(2**63)
    assert tp.mean(tp.tensor([big, 3, -big, 3] * 1000)).item() == 1.5
    rows = tp.tensor([[big, -big], [big, big]])
    assert tp.mean(rows, axis=0).tolist() == [float(big), 0.0]
    assert tp.mean(rows, axis=1, keepdims=True).tolist() == [[0.0], [float(big)]]
    assert tp.mean(tp.tensor([], dtype=tp.int64)).isnan().item()


def test_deviations_of_large_integers_are_finite() -> None:
    """Squares of int64 leave float32: they are added in float64."""
    x = tp.tensor([2**62, -(2**62)])
    assert tp.std(x).item() == float(2**62)
    assert tp.var(x).item() == pytest.approx(float(2**124), rel=1e-6)
    y = tp.tensor([2**31 - 1, -(2**31)], dtype=tp.int32)
    assert tp.std(y).item() == pytest.approx(2.0**31, rel=1e-6)
    # A small spread around a large mean.
    assert tp.std(tp.tensor([10**9, 10**9 + 2])).item() == 1.0


@pytest.mark.parametrize("dtype", [tp.float16, tp.bfloat16, tp.float32, tp.float64], ids=str)
def test_uniform_numbers_stay_below_the_upper_end(dtype) -> None:
    for low, high in ((0.0, 1.0), (0.0, 3.0), (-1.0, 0.0), (-3.0, -1.0), (5.0, 5.01), (0.1, 0.3)):
        x = tp.uniform((20000,), low=low, high=high, dtype=dtype).astype(tp.float64)
        assert (x.max() < high).item(), (low, high)
        # The lower end itself may round to an element below it.
        assert (x.min() >= tp.tensor(low, dtype=dtype).astype(tp.float64)).item(), (low, high)
        middle = x.mean().item()
        assert abs(middle - (low + high) / 2) < 0.02 * (high - low) + 0.02 * abs(high)
    assert set(tp.uniform((9,), low=2.0, high=2.0, dtype=dtype).tolist()) == {2.0}


def test_parameters_that_no_distribution_has_are_refused() -> None:
    """Eager and captured."""
    for f, code in (
        (lambda x: x + tp.normal((2,), std=-1.0), "TP1142"),
        (lambda x: x + tp.normal((2,), std=math.nan), "TP1142"),
        (lambda x: x + tp.uniform((2,), low=1.0, high=0.0), "TP1130"),
        (lambda x: x + tp.uniform((2,), low=0.0, high=math.inf), "TP1142"),
        (lambda x: x + tp.uniform((2,), low=math.nan, high=1.0), "TP1142"),
    ):
        for run in (f, tp.compile(f)):
            with pytest.raises(errors.InvalidValueError) as caught:
                run(tp.ones((2,)))
            assert caught.value.code == code
    assert tp.normal((2,), mean=3.0, std=0.0).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("extremum", [tp.max, tp.min])
def test_the_gradient_of_an_extremum_that_is_nan_is_nan(extremum) -> None:
    """Of its group only; infinite cotangents do not spread to elements that were not chosen."""
    x = leaf(1.0, math.nan)
    extremum(x).backward()
    assert all(math.isnan(g) for g in x.grad.tolist())
    rows = tp.tensor([[1.0, math.nan], [2.0, 2.0], [3.0, 4.0]], requires_grad=True)
    extremum(rows, axis=1).backward(tp.tensor([1.0, 1.0, math.inf]))
    first, second, third = rows.grad.tolist()
    assert all(math.isnan(g) for g in first)
    assert second == [0.5, 0.5]
    assert sorted(third) == [0.0, math.inf]


@pytest.mark.thread_unsafe(reason="verify watches the state of the process")
def test_gradients_at_the_origin_are_zero() -> None:
    for f in (tp.atan2, tp.hypot):
        for start in ((0.0, 0.0), (-0.0, 0.0)):
            a, b = leaf(start[0]), leaf(start[1])
            f(a, b).sum().backward()
            assert (a.grad.tolist(), b.grad.tolist()) == ([0.0], [0.0])
            compiled = tp.compile(lambda a, b, f=f: f(a, b).sum())
            a, b = leaf(start[0]), leaf(start[1])
            compiled(a, b).backward()
            assert (a.grad.tolist(), b.grad.tolist()) == ([0.0], [0.0])
    a, b = leaf(3.0), leaf(4.0)
    tp.atan2(a, b).sum().backward()
    assert (a.grad.item(), b.grad.item()) == (pytest.approx(0.16), pytest.approx(-0.12))
    report = tp.verify(
        tp.hypot, (tp.zeros((2,), dtype=tp.float64), tp.zeros((2,), dtype=tp.float64)), sweep=False
    )
    assert report.passed, report.text()


@pytest.mark.thread_unsafe(reason="verify watches the state of the process")
def test_the_gradient_of_clamp_where_bounds_meet() -> None:
    """The result is the upper bound there, whatever x is; gradients lie between the one-sided slopes."""
    for value, want in (
        ((1.0, 1.0, 1.0), (0, 0, 1)),
        ((0.0, 1.0, 1.0), (0, 0, 1)),
        ((2.0, 1.0, 1.0), (0, 0, 1)),
    ):
        x, low, high = (leaf(v) for v in value)
        tp.clamp(x, low, high).sum().backward()
        assert tuple(t.grad.item() for t in (x, low, high)) == want
    for value, want in (
        ((0.0, 0.0, 1.0), (1, 0, 0)),
        ((1.0, 0.0, 1.0), (1, 0, 0)),
        ((0.5, 1.0, 0.0), (0, 0, 1)),
        ((-1.0, 0.0, 1.0), (0, 1, 0)),
        ((2.0, 0.0, 1.0), (0, 0, 1)),
    ):
        x, low, high = (leaf(v) for v in value)
        tp.clamp(x, low, high).sum().backward()
        assert tuple(t.grad.item() for t in (x, low, high)) == want
    x = leaf(1.0)
    tp.clamp(x, 1.0, 1.0).sum().backward()
    assert x.grad.item() == 0.0
    bound = tp.ones((2,), dtype=tp.float64)
    report = tp.verify(tp.ops.tp.clamp.Tensor, (bound, bound.clone(), bound.clone()), sweep=False)
    assert report.passed, report.text()


def test_an_axis_given_twice_is_refused_everywhere() -> None:
    """One error, which shows the axes as they were given."""
    x = tp.ones((1, 2, 1))
    functions = (
        lambda x: tp.flip(x, axis=(0, 0)),
        lambda x: tp.flip(x, axis=(0, -3)),
        lambda x: tp.squeeze(x, axis=(0, 0)),
        lambda x: tp.squeeze(x, axis=(2, -1)),
        lambda x: tp.sum(x, axis=(0, 0)),
        lambda x: tp.mean(x, axis=(0, -3)),
        lambda x: tp.max(x, axis=(1, 1)),
    )
    for f in functions:
        for run in (f, tp.compile(f)):
            with pytest.raises(
                errors.InvalidValueError, match=r"is given twice in \[-?\d, -?\d\]$"
            ) as caught:
                run(x)
            assert caught.value.code == "TP1131"
    assert tp.squeeze(x, axis=(0, 2)).shape == (2,)
    assert tp.flip(x, axis=(0, 1)).shape == (1, 2, 1)


def test_inverse_hyperbolic_functions_of_large_and_negative_numbers() -> None:
    """float64: no square of the argument overflows, and both signs are as exact."""
    big = [1e308, 1.7e308, 1e200, 2.0**600]
    for f, exact in ((tp.asinh, math.asinh), (tp.acosh, math.acosh)):
        got = f(tp.tensor(big, dtype=tp.float64)).tolist()
        assert got == pytest.approx([exact(v) for v in big], rel=1e-15)
    assert tp.asinh(tp.tensor(-1e308, dtype=tp.float64)).item() == -tp.asinh(leaf(1e308)).item()
    near = [0.9, 0.9999445539968957, 1 - 2.0**-40, 1e-9]
    got = tp.atanh(tp.tensor([*near, *(-v for v in near)], dtype=tp.float64)).tolist()
    assert got == pytest.approx([math.atanh(v) for v in near] + [-math.atanh(v) for v in near], rel=4e-16)


def test_no_tensor_contains_what_it_does_not_compare_with() -> None:
    class Equal:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None

    x = tp.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert 2.0 in x
    assert 5 not in x
    assert tp.tensor([1.0, 2.0]) in x
    for other in (None, "a", object(), (), {}):
        assert other not in x
    assert Equal() in x
