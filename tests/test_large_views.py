"""Views that repeat one element more often than memory has bytes: refused where their size leaves 63 bits."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import errors

LIMITS = [(tp.float64, 2**60 - 1), (tp.float32, 2**61 - 1), (tp.int16, 2**62 - 1), (tp.int8, 2**63 - 1)]


@pytest.mark.parametrize(("dtype", "most"), LIMITS, ids=lambda v: str(v))
def test_the_bytes_of_a_view_fit_in_63_bits(dtype, most: int) -> None:
    """Up to there the exported buffer tells the truth; beyond, NumPy's answer: an error."""
    one = tp.ones((1,), dtype=dtype)
    item = one.element_size()
    most = (2**63 - 1) // item
    for make in (lambda n: one.expand((n,)), lambda n: tp.broadcast_to(one, (n,)), lambda n: one.expand(n)):
        large = make(most)
        assert memoryview(large).nbytes == most * item
        assert memoryview(large[5:]).nbytes == (most - 5) * item
        if item > 1:
            with pytest.raises(errors.ShapeError, match="too large") as caught:
                make(most + 1)
            assert caught.value.code == "TP1109"
    if item > 1:
        for shape in ((2**31, 2**32), (3, 2**62)):
            for f in (
                lambda x, shape=shape: x.expand(shape),
                lambda x, shape=shape: tp.ones_like(x).expand(shape),
            ):
                with pytest.raises(errors.ShapeError):
                    f(one)
                with pytest.raises(errors.ShapeError):
                    tp.compile(f)(one)


def test_exports_of_large_views_are_as_long_as_they_say() -> None:
    large = tp.ones((1,), dtype=tp.float64).expand((2**40,))
    view = memoryview(large)
    assert (view.nbytes, view.shape, view.strides) == (8 * 2**40, (2**40,), (0,))
    assert view[2**39] == 1.0
    for n in (2**61, 2**61 + 1, 2**60):
        with pytest.raises(errors.ShapeError):
            tp.ones((1,), dtype=tp.float64).expand((n,))
