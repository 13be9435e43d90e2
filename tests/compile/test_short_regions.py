"""Graphs that are one pointwise region over sizes that each run finds: the short cut keeps values, executors and errors."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import Tensor


def test_one_short_region_over_symbolic_sizes_keeps_values_and_errors() -> None:
    """C02: contiguous, strided, empty and long arguments; scalars beside them; a zero divisor names its op."""

    def program(x: Tensor, s: Tensor) -> Tensor:
        return x * 2.0 + s

    compiled = tp.compile(program, dynamic=True)
    s = tp.tensor(0.25)
    for n in (5, 64, 65, 3000, 1 << 17):
        x = tp.arange(n).astype(tp.float32)
        assert compiled(x, s).tolist() == program(x, s).tolist()
        assert [run.marker.executor for run in compiled.last_run.forward] == ["native"]
        strided = tp.arange(2 * n).astype(tp.float32)[::2]
        assert compiled(strided, s).tolist() == program(strided, s).tolist()
    across = tp.compile(lambda x, row: x + row, dynamic=True)
    for rows in (3, 7):
        x = tp.arange(rows * 5).reshape((rows, 5))
        assert across(x, x[0]).tolist() == (x + x[0]).tolist()
    assert (len(compiled.graphs), len(across.graphs)) == (2, 1)
    divided = tp.compile(lambda a, b: (a + 1) // b, dynamic=True)
    a = tp.arange(7)
    assert divided(a, a + 1).tolist() == ((a + 1) // (a + 1)).tolist()
    with pytest.raises(tp.errors.DivisionByZeroError) as caught:
        divided(a, a)
    assert caught.value.op == "tp::floor_divide"
