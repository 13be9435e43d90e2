"""Indexing: reading and assigning by every kind of key, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import errors
from tensorplay.errors import ArgumentError, IndexOutOfRangeError, InvalidValueError

N = None
FULL = slice(None)

BASIC = [
    0,
    -1,
    (1, 2),
    (1, -1, 3),
    FULL,
    slice(1, None),
    slice(None, None, 2),
    slice(-2, None),
    slice(5, 1),
    slice(0, 100),
    (FULL, 1),
    (..., 1),
    (1, ...),
    ...,
    (),
    N,
    (N, 0, N),
    (..., N),
    (FULL, N, slice(1, 3), 0),
    (0, slice(None, None, 3)),
    (slice(1, 1), 0),
    np.int64(1),
]

BACKWARDS = [
    slice(None, None, -1),
    slice(2, 0, -1),
    (FULL, slice(None, None, -2)),
    (slice(None, None, -1), 0, slice(3, None, -3)),
    slice(0, 2, -1),
]

ARRAYS = [
    [0, 1],
    [1, -1, 0],
    [],
    [[0, 1], [1, 0]],
    (FULL, [0, 2]),
    ([0, 1], [2, 0]),
    ([0, 1], FULL, [3, 3]),
    (0, FULL, [1, 2]),
    (0, [1, 2]),
    (FULL, [0, 1], N, [1, 2]),
    (..., [3, 0]),
    ([1, 0], ..., 2),
    (FULL, [0, 2, 1], ..., [3, 3, 0]),
    (FULL, [0, 2, 1], ..., 1),
    (N, [0, 1, 1], [0, 2, 0], ..., 2),
    (FULL, ..., [0, 2, 1], [3, 3, 0]),
    ([[0], [1]], ..., N, [0, 2, 1], 3),
    (slice(0, 1), [[0], [2]], [1, 2, 3]),
    True,
    False,
    (FULL, True),
    np.array([1, 0]),
]


def as_key(key):
    """Lists of integers as tensors, at any place."""
    if isinstance(key, tuple):
        return tuple(as_key(k) for k in key)
    return tp.tensor(key, dtype=tp.int64) if isinstance(key, list) else key


def numbered() -> tuple[np.ndarray, tp.Tensor]:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    return a, tp.tensor(a)


def listed(key):
    return np.array(key, dtype=np.int64) if isinstance(key, list) else key


def numpy_key(key):
    return tuple(listed(k) for k in key) if isinstance(key, tuple) else listed(key)


@pytest.mark.parametrize("key", BASIC + BACKWARDS + ARRAYS, ids=repr)
def test_reading(key) -> None:
    a, x = numbered()
    want = a[numpy_key(key)]
    for form in (key, as_key(key)):
        got = x[form]
        assert got.shape == want.shape
        assert got.tolist() == want.tolist()


@pytest.mark.parametrize("key", BASIC, ids=repr)
def test_basic_keys_give_views(key) -> None:
    a, x = numbered()
    got = x[key]
    assert got is not x
    got += 100
    a[key] += 100
    assert x.tolist() == a.tolist()


@pytest.mark.parametrize("key", BASIC + BACKWARDS + ARRAYS, ids=repr)
def test_assigning_numbers_and_tensors(key) -> None:
    a, x = numbered()
    a[numpy_key(key)] = -1
    x[as_key(key)] = -1
    assert x.tolist() == a.tolist()
    values = -np.arange(a[numpy_key(key)].size, dtype=np.float32).reshape(a[numpy_key(key)].shape)
    a[numpy_key(key)] = values
    x[as_key(key)] = tp.tensor(values)
    assert x.tolist() == a.tolist()


@pytest.mark.parametrize("key", BASIC + BACKWARDS, ids=repr)
def test_assigning_under_the_tape(key) -> None:
    a, _ = numbered()
    leaf = tp.tensor(a, requires_grad=True)
    y = leaf * 1.0
    y[key] = 5.0
    a[key] = 5.0
    assert y.tolist() == a.tolist()
    y.sum().backward()
    mask = np.ones_like(a)
    mask[key] = 0.0
    assert leaf.grad.tolist() == mask.tolist()


def test_gradients_reach_what_was_assigned() -> None:
    x = tp.zeros([3])
    w = tp.tensor(2.0, requires_grad=True)
    x[1] = w * w
    x.sum().backward()
    assert x.tolist() == [0.0, 4.0, 0.0]
    assert w.grad.item() == 4.0


def test_masks() -> None:
    a, x = numbered()
    mask = a % 2 == 0
    assert x[tp.tensor(mask)].tolist() == a[mask].tolist()
    assert x[mask].tolist() == a[mask].tolist()
    rows = np.array([True, False])
    assert x[tp.tensor(rows)].tolist() == a[rows].tolist()
    assert x[1, tp.tensor(mask[1])].tolist() == a[1, mask[1]].tolist()
    assert x[:, tp.tensor(mask[0])].tolist() == a[:, mask[0]].tolist()
    x[tp.tensor(mask)] = 0
    a[mask] = 0
    assert x.tolist() == a.tolist()
    x[tp.tensor(rows)] = tp.tensor(-a[1])
    a[rows] = -a[1]
    assert x.tolist() == a.tolist()
    with pytest.raises(IndexOutOfRangeError, match="does not fit"):
        x[tp.tensor([True, False, True])]


def test_values_are_cast_and_broadcast() -> None:
    _, x = numbered()
    x[0] = [1, 2, 3, 4]
    assert x[0].tolist() == [[1.0, 2.0, 3.0, 4.0]] * 3
    x[1, 0] = np.array([[9, 8, 7, 6]])
    assert x[1, 0].tolist() == [9.0, 8.0, 7.0, 6.0]
    n = tp.arange(3)
    n[0] = 2.9
    assert n.tolist() == [2, 1, 2]
    n[:] = tp.tensor([1.7, -1.7, 0.0])
    assert n.tolist() == [1, -1, 0]


def test_overlapping_assignment() -> None:
    x = tp.arange(6)
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 2, 3, 4]
    x[::-1] = x
    assert x.tolist() == [4, 3, 2, 1, 0, 0]


def test_augmented_assignment_writes_once() -> None:
    x = tp.arange(3)
    x[0] += 5
    assert x.tolist() == [5, 1, 2]
    assert x._version == 1


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (2, IndexOutOfRangeError, "index 2 is out of range for axis 0 of size 2"),
        (-3, IndexOutOfRangeError, "index -3"),
        ((0, 0, 0, 0), IndexOutOfRangeError, "too many indices: 4 for 3"),
        ((..., ...), IndexOutOfRangeError, "one Ellipsis"),
        (1.0, IndexOutOfRangeError, "got float"),
        ("a", IndexOutOfRangeError, "got str"),
        ([0.5], IndexOutOfRangeError, "integer or bool, got float32"),
    ],
)
def test_bad_keys(key, error, message) -> None:
    _, x = numbered()
    with pytest.raises(error, match=message):
        x[key]
    with pytest.raises(error, match=message):
        x[key] = 0


def test_bad_assignments() -> None:
    _, x = numbered()
    with pytest.raises(ArgumentError, match="deleted"):
        del x[0]
    with pytest.raises(ArgumentError, match=r"None cannot be stored"):
        x[0] = None
    with pytest.raises(ValueError, match=r"expand|broadcast"):
        x[0] = tp.zeros([5])
    frozen = tp.from_numpy(np.broadcast_to(np.float32(1), (2,)))
    with pytest.raises(InvalidValueError, match="read-only"):
        frozen[0] = 1
    with pytest.raises(IndexError):
        x[tp.tensor([5])]


@pytest.mark.parametrize(
    "key", [([0, 1],), (FULL, [0, 2]), ([1, 0], ..., 2), (True,), (0, ..., [3, 0])], ids=repr
)
def test_leading_ones_of_a_value_are_dropped(key) -> None:
    """NumPy's rule, for keys with arrays as for those without."""
    a, x = numbered()
    shape = a[numpy_key(key)].shape
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(1, 1, *shape) + 100
    a[numpy_key(key)] = values
    x[as_key(key)] = tp.from_numpy(values)
    assert x.tolist() == a.tolist()
    learned = tp.from_numpy(values).clone().requires_grad_()
    y = tp.zeros_like(x)
    y[as_key(key)] = learned
    y.sum().backward()
    assert learned.grad.tolist() == np.ones_like(values).tolist()
    with pytest.raises(errors.ShapeError):
        x[as_key(key)] = tp.ones((2, 1, *shape))


@pytest.mark.parametrize(
    "key", [([], 3), ([], [3]), (False, 2), ([], FULL, -5), (tp.tensor([False, False]), 7)], ids=repr
)
def test_indices_beside_an_empty_one_are_checked(key) -> None:
    """The key reads nothing, and what is out of range in it is an error all the same, as in NumPy."""
    _, x = numbered()
    before = x.tolist()
    with pytest.raises(IndexOutOfRangeError, match="out of range for axis") as caught:
        x[key]
    assert caught.value.code == "TP1106"
    with pytest.raises(IndexOutOfRangeError, match="out of range for axis"):
        x[key] = 1
    assert x.tolist() == before
    assert x[[], 2].shape == (0, 4)
    assert x[[], -3].shape == (0, 4)
