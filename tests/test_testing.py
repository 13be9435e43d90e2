"""Comparison with stated tolerances, inputs in every layout, and poisoned memory."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import testing
from tensorplay.testing import assert_close, assert_equal, compare_tensors, make_tensor, with_layout


@pytest.mark.parametrize(
    ("dtype", "inside", "outside"),
    [
        ("float16", 1.0009765625, 1.0029296875),
        ("bfloat16", 1.0078125, 1.03125),
        ("float32", 1.000011, 1.00002),
        ("float64", 1.0000001, 1.0000003),
    ],
)
def test_default_tolerances_follow_the_dtype(dtype: str, inside: float, outside: float) -> None:
    one = tp.ones((3,), dtype=getattr(tp, dtype))
    assert_close(tp.full((3,), inside, dtype=one.dtype), one)
    with pytest.raises(AssertionError, match="3 of 3 elements differ"):
        assert_close(tp.full((3,), outside, dtype=one.dtype), one)


def test_integers_are_compared_exactly() -> None:
    big = tp.tensor([2**53, 2**53])
    assert_close(big, big.clone())
    with pytest.raises(AssertionError, match="allowed: none, exact"):
        assert_close(tp.tensor([2**53 + 1, 2**53]), big)


def test_the_worst_element_is_shown_with_its_distance() -> None:
    want = tp.tensor([[1.0, 2.0], [3.0, 4.0]])
    got = tp.tensor([[1.0, 2.5], [3.0, 8.0]])
    comparison = compare_tensors(got, want)
    assert not comparison.ok
    assert (comparison.bad, comparison.total, comparison.max_abs) == (2, 4, 4.0)
    assert "worst at [1, 1]: got 8, expected 4 (abs 4, rel 1, 8.39e+06 ulp)" in comparison.detail
    assert compare_tensors(got, want, atol=10.0).ok


def test_nan_infinities_shapes_and_dtypes() -> None:
    odd = tp.tensor([float("nan"), float("inf"), -float("inf")])
    assert_close(odd, odd.clone(), equal_nan=True)
    with pytest.raises(AssertionError):
        assert_close(odd, odd.clone())
    with pytest.raises(AssertionError):
        assert_close(tp.tensor([float("inf")]), tp.tensor([-float("inf")]))
    with pytest.raises(AssertionError):
        assert_close(tp.tensor([float("inf")]), tp.tensor([1e30]), rtol=1.0)
    with pytest.raises(AssertionError, match="shape differs"):
        assert_close(tp.ones((2,)), tp.ones((2, 1)))
    with pytest.raises(AssertionError, match="dtype differs"):
        assert_close(tp.ones((2,)), tp.ones((2,), dtype=tp.float64))
    assert_close(tp.ones((2,)), tp.ones((2,), dtype=tp.float64), check_dtype=False)


def test_containers_numbers_and_arrays() -> None:
    assert_close([tp.ones((2,)), {"a": 1.0}], [tp.ones((2,)), {"a": 1.0 + 1e-9}])
    assert_close(tp.ones((2,)), np.ones(2, dtype=np.float32))
    with pytest.raises(AssertionError, match=r"at \[1\]\['a'\]"):
        assert_close([tp.ones((2,)), {"a": 1.0}], [tp.ones((2,)), {"a": 2.0}])
    with pytest.raises(AssertionError, match="lengths differ"):
        assert_close([1.0], [1.0, 2.0])
    with pytest.raises(AssertionError, match="keys differ"):
        assert_close({"a": 1.0}, {"b": 1.0})
    with pytest.raises(AssertionError, match="in words\nvalues"):
        assert_close(1.0, 2.0, msg="in words")


def test_equal_means_every_bit() -> None:
    assert_equal(tp.tensor([float("nan"), 1.0]), tp.tensor([float("nan"), 1.0]))
    with pytest.raises(AssertionError):
        assert_equal(tp.tensor([0.0]), tp.tensor([-0.0]))


@pytest.mark.parametrize("layout", testing.LAYOUTS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_layouts_keep_shape_and_contents(layout: str, shape: tuple[int, ...], dtype: str) -> None:
    plain = make_tensor(shape, dtype, seed=1)
    laid = with_layout(plain, layout)
    assert (tuple(laid.shape), laid.dtype) == (shape, plain.dtype)
    if layout == "expanded":
        if shape and shape[0] > 1:
            assert laid.stride()[0] == 0
            assert_equal(laid[1], plain[0])
    else:
        assert_equal(laid, plain)
    if shape == (3, 4):
        assert laid.is_contiguous() is (layout == "offset")


def test_contents_are_reproducible() -> None:
    assert_equal(make_tensor((5,), seed=3), make_tensor((5,), seed=3))
    assert not compare_tensors(make_tensor((5,), seed=3), make_tensor((5,), seed=4)).ok
    special = make_tensor((24,), fill="special").numpy()
    assert np.isnan(special).any()
    assert np.isinf(special).any()
    assert (np.signbit(special) & (special == 0)).any()
    assert make_tensor((6,), "int32", fill="counting").tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ValueError, match="fill must be one of"):
        make_tensor((2,), fill="nope")


def test_poisoned_memory_shows_in_what_is_never_written() -> None:
    with testing.poisoned([4096]):
        assert np.isnan(tp.empty((1024,)).numpy()).all()


def test_unchanged_sees_writes_and_undone_writes() -> None:
    x = tp.tensor([1.0, 2.0])
    assert testing.assert_unchanged(tp.neg, x).tolist() == [-1.0, -2.0]
    with pytest.raises(AssertionError, match=r"was written to$"):
        testing.assert_unchanged(lambda t: t.add_(1.0), x)
    with pytest.raises(AssertionError, match="and restored"):
        testing.assert_unchanged(lambda t: (t.add_(1.0), t.sub_(1.0)), x)


def test_executors_lists_what_ran() -> None:
    assert testing.executors(lambda x: tp.neg(tp.exp(x)), tp.ones((2,))) == [
        ("tp::exp.default", "native"),
        ("tp::neg.default", "native"),
    ]
