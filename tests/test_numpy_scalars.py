"""NumPy scalars have a dtype: tensors made of them keep it, alone and in lists; beside a tensor they are weak."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay.errors import ArgumentError, DTypeError, TensorPlayError

NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


def named(name: str) -> Any:
    return getattr(tp, name)


@pytest.mark.parametrize("make", [tp.tensor, tp.asarray])
@pytest.mark.parametrize("name", NAMES)
def test_a_scalar_keeps_its_dtype(make: Any, name: str) -> None:
    """`numpy.float64`, which is a Python float too, is no exception; an array of no dimensions is such a scalar."""
    scalar = np.dtype(name).type(1)
    for data in (
        scalar,
        [scalar],
        [[scalar], [scalar]],
        (scalar, scalar),
        [np.array(scalar)],
        [np.array([scalar])],
    ):
        found = make(data)
        assert found.dtype is named(name), data
        assert found.shape == np.shape(data)
        assert found.tolist() == np.asarray(data).tolist()


def test_no_digit_of_a_float64_is_lost() -> None:
    assert tp.tensor(np.float64(0.1)).item() == 0.1
    assert tp.tensor([np.float64(0.1), np.float64(1e300)]).tolist() == [0.1, 1e300]
    assert tp.tensor([np.array(0.1)]).tolist() == [0.1]
    assert tp.tensor([np.array([0.1, 0.2])]).tolist() == [[0.1, 0.2]]
    assert tp.tensor([tp.tensor(0.1, dtype=tp.float64)]).tolist() == [0.1]


class Celsius(float):
    """A float of somebody's own, without a dtype."""


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (0.1, "float32"),
        ([0.1, 2], "float32"),
        ([Celsius(0.1)], "float32"),
        (Celsius(0.1), "float32"),
        ([1, 2], "int64"),
        ([True], "bool"),
        ([np.float64(1), 2.5], "float64"),
        ([2.5, np.float16(1)], "float16"),
        ([np.int8(1), 2], "int8"),
        ([np.int8(1), 2.5], "float32"),
        ([np.bool_(True), 2], "int64"),
        ([np.uint8(1), np.int8(1)], "int16"),
        ([np.float16(1), np.float32(1)], "float32"),
        ([np.int64(1), np.float64(1)], "float64"),
        ([np.uint64(1)], "int64"),
        ([], "float32"),
    ],
)
def test_typed_and_weak_numbers_promote_as_operands_do(data: Any, name: str) -> None:
    assert tp.tensor(data).dtype is named(name)


def test_a_dtype_that_is_asked_for_wins() -> None:
    assert tp.tensor([np.float64(0.1)], dtype=tp.float32).dtype is tp.float32
    assert tp.tensor(np.float64(0.1), dtype=tp.float16).dtype is tp.float16
    assert tp.tensor([np.longdouble(1)], dtype=tp.float64).tolist() == [1.0]


def test_numbers_that_no_dtype_holds_are_refused() -> None:
    """The imaginary part, or digits, would go without a word."""
    for data in ([np.complex64(1j)], [np.longdouble(1)], [np.array([1j])]):
        with pytest.raises(DTypeError, match="have no tensorplay dtype") as caught:
            tp.tensor(data)
        assert caught.value.code == "TP1230"
    with pytest.raises(ArgumentError, match=r"data\[0\] is no number: got one of dtype datetime64"):
        tp.tensor([np.datetime64("2020")])
    with pytest.raises(TensorPlayError, match="300"):
        tp.tensor([np.int8(1), 300])


@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.sub, operator.truediv, operator.pow])
def test_beside_a_tensor_a_scalar_is_weak(op: Any) -> None:
    """As an operand and as a fill value any NumPy scalar is the Python number that it equals."""
    x = tp.ones((2,))
    for scalar in (np.float64(0.5), np.float32(0.5), np.int64(2), np.float16(2)):
        assert op(x, scalar).dtype is tp.float32
        assert op(scalar, x).dtype is tp.float32
        assert op(x, scalar).tolist() == op(x, scalar.item()).tolist()
    assert op(tp.ones((2,), dtype=tp.float16), np.float64(0.5)).dtype is tp.float16
    assert tp.full((2,), np.float64(0.5)).dtype is tp.float32
    assert tp.where(tp.tensor([True]), x, np.float64(0.5)).dtype is tp.float32


def test_items_of_numpy_index_and_are_stored() -> None:
    x = tp.tensor([1.0, 2.0, 3.0])
    for kind in (np.int8, np.int64, np.uint8):
        assert x[[kind(0), kind(2)]].tolist() == [1.0, 3.0]
    x[[0, 1]] = [np.float64(5.0), np.float64(6.0)]
    assert x.tolist() == [5.0, 6.0, 3.0]
    assert x.dtype is tp.float32


def test_the_way_out_for_an_array_operand_is_from_numpy() -> None:
    with pytest.raises(ArgumentError) as caught:
        tp.ones((2,)) + np.ones((2,))
    assert any("tensorplay.from_numpy(x)" in note for note in caught.value.__notes__)
