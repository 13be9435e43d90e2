"""More than 2^31 elements, and elements that lie more than 2^31 bytes apart: eager, native and TVM count in 64 bits.

Memory that nothing writes to costs nothing, so that views into it are in every run; outputs of that size take gigabytes,
and ask for the capability "memory".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensorplay as tp

EXECUTORS = ["eager", "native", pytest.param("tvm", marks=pytest.mark.requires("tvm"))]
LONG = 2**31


def by(executor: str, fn: Callable, *args: tp.Tensor) -> tp.Tensor:
    """The result, by that executor and no other."""
    if executor == "eager":
        return fn(*args)
    got, report = tp.compile(fn, backend=executor, on_fallback="error").run(*args)
    assert [(r.marker.executor, r.reason) for r in report.forward] == [(executor, None)]
    return got


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float64"])
def test_views_with_elements_more_than_2_to_31_bytes_apart(dtype: str, executor: str) -> None:
    """5.4: long strides, negative ones, offsets past 2^31 bytes, and both with a broadcast."""
    size = np.dtype(dtype).itemsize
    array = np.empty((LONG + LONG // 16) // size, dtype)
    step = len(array) // 40
    for view in (array[::step], array[::-step], array[-97:], array[len(array) - 97 :][::-1]):
        view[...] = np.arange(len(view))[::-1] % 100
    fn = lambda x, y: (x + y) * 3 - x  # noqa: E731
    for view in (array[::step], array[::-step], array[-97:], array[-97::7], array[len(array) - 97 :][::-1]):
        spread = abs(view.strides[0]) * (len(view) - 1)
        assert max(spread, abs(view.ctypes.data - array.ctypes.data)) > LONG
        x = tp.from_numpy(view)
        for other, shape in ((view[:5].reshape(5, 1), (5, len(view))), (view[::-1], view.shape)):
            got = by(executor, fn, x, tp.from_numpy(other))
            want = ((view + other) * 3 - view).astype(dtype)
            assert got.shape == shape
            assert np.array_equal(got.numpy(), want)


ROWS, COLUMNS = 65_537, 32_769


def windows() -> list[slice]:
    """Rows at the beginning, around element 2^31, and at the end."""
    middle = LONG // COLUMNS
    return [slice(0, 20), slice(middle - 10, middle + 10), slice(ROWS - 20, ROWS)]


@pytest.mark.thread_unsafe(reason="takes gigabytes")
@pytest.mark.requires("memory")
@pytest.mark.parametrize("executor", EXECUTORS)
def test_more_than_2_to_31_elements(executor: str) -> None:
    """5.4: an output of loops with strides, then one of a single loop over it; no element is computed from another's place."""
    assert ROWS * COLUMNS > LONG + 17
    rng = np.random.default_rng(7)
    a = rng.integers(0, 256, (ROWS, 1), np.uint8)
    b = rng.integers(0, 256, (1, COLUMNS), np.uint8)
    # One op each: eager calls of several would take as many gigabytes again.
    out = by(executor, lambda a, b: a ^ b, tp.from_numpy(a), tp.from_numpy(b))
    assert out.numel() == ROWS * COLUMNS
    for rows in windows():
        assert np.array_equal(out[rows].numpy(), a[rows] ^ b)
    flat = by(executor, lambda x: x * 5, out.reshape((ROWS * COLUMNS,)))
    for rows in windows():
        want = (a[rows] ^ b) * np.uint8(5)
        got = flat[rows.start * COLUMNS : rows.stop * COLUMNS].numpy()
        assert np.array_equal(got, want.reshape(-1))


@pytest.mark.thread_unsafe(reason="takes gigabytes")
@pytest.mark.requires("memory")
def test_a_reduction_over_more_than_2_to_31_elements() -> None:
    """5.3: counts and positions are 64-bit: the sum of as many ones, and the place of the one that is different."""
    x = tp.ones((LONG + 17,), dtype=tp.bool)
    assert tp.sum(x).item() == LONG + 17
    with tp.no_grad():
        x[-1:].copy_(tp.zeros((1,), dtype=tp.bool))
    assert tp.sum(x).item() == LONG + 16
    assert not tp.all(x).item()
    assert tp.all(x[:-1]).item()
