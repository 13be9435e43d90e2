"""Sizes of inputs where Python and native code take numbers: the same values as eager, for every size."""

from __future__ import annotations

import decimal
import fractions
import json
import pickle
from collections import deque
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor
from tensorplay.errors import CaptureError

SIZES = (3, 5, 8, 2, 3, 7)

# Expressions of a size `n`.
NUMBERS = {
    "equal to a float": lambda n: n == 3.0,
    "a float equal to it": lambda n: 3.0 != n,  # noqa: SIM300
    "below a fraction": lambda n: (n < 3.5, n <= 3.5, n > 3.5, n >= 3.5, n < 3.0, n >= 3.0),
    "infinity": lambda n: (n < float("inf"), n > float("-inf"), n == float("nan"), n != float("nan")),
    "beyond 64 bits": lambda n: (n < 1e30, n > -1e30, n < 2.0**63, n >= -(2.0**63)),
    "a key": lambda n: {3.0: 1, 5.0: 2}.get(n, 0),
    "among floats": lambda n: n in [3.0, 8.5],
    "plus": lambda n: (n + 0.5, 0.5 + n, n - 0.5, 0.5 - n),
    "times": lambda n: (n * 0.5, 0.5 * n, n * -0.0),
    "divided": lambda n: (n // 2.0, n % 2.0, divmod(n, 2.0), 2.5 // n, divmod(7.5, n)),
    "modular power": lambda n: (pow(2, n, 5), pow(n, 2, 3)),
    "complex": lambda n: (n + 1j, n == 3 + 0j),
    "fraction": lambda n: (
        n * fractions.Fraction(1, 2),
        fractions.Fraction(n, 2),
        n == fractions.Fraction(3),
    ),
    "decimal": lambda n: (decimal.Decimal(2) * n, n < decimal.Decimal(4)),
    "largest": lambda n: (max(n, 3.5), min(n, 2.5), sorted([n, 3.5])[0]),
    "numpy scalars": lambda n: (
        n * np.float32(0.5),
        np.float64(0.5) * n,
        n == np.int64(3),
        np.int64(3) < n,
        n + np.int64(1),
    ),
    "numpy functions": lambda n: (float(np.sqrt(n)), np.array([n, 1]).dtype.name, (n * np.ones(2)).tolist()),
    "parts": lambda n: (n.real, n.imag, n.numerator, n.denominator, n.conjugate()),
    "bits": lambda n: (n.bit_length(), n.bit_count(), n.to_bytes(2, "big"), n.as_integer_ratio()),
    "json": lambda n: json.dumps({"n": [n], n: 1}),
    "pickle": lambda n: pickle.dumps(n),
    "bounded": lambda n: list(deque([1, 2, 3, 4], n)),
    "its type": lambda n: (type(n) is int, type(n).__name__),
    "is it one": lambda n: n is None,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_size_is_a_number_wherever_an_int_is(name: str, dynamic: bool | None) -> None:
    """C02: compared with floats, in calculations, in NumPy and in native code; never another value than eager's."""

    def program(x: Tensor) -> tuple[Tensor, Any]:
        return x * 2.0, NUMBERS[name](x.shape[0])

    # Both read what native code keeps to itself: a table of types, the thread's context.
    vouched = [pickle.dumps, decimal.Decimal]
    compiled = tp.compile(program, dynamic=dynamic, assume_constant=vouched)
    for n in SIZES:
        x = tp.tensor(np.arange(n, dtype=np.float32))
        got, expected = compiled(x), program(x)
        assert got[0].tolist() == expected[0].tolist()
        assert repr(got[1]) == repr(expected[1])
        assert compiled.last_run.forward[0].marker.executor == "native"


def test_comparing_a_size_with_a_float_keeps_the_symbol() -> None:
    """C02: `n < 3.5` is a guard like `n < 4`, and infinity needs none: one graph on each side."""

    def program(x: Tensor) -> Tensor:
        if x.shape[0] == float("inf") or x.shape[0] == 4.5:
            return x
        return x + 1.0 if x.shape[0] < 3.5 else x + 2.0

    compiled = tp.compile(program, dynamic=True)
    for n in (2, 3, 4, 5, 9, 3, 100):
        assert compiled(tp.zeros((n,))).tolist() == [1.0 if n < 3.5 else 2.0] * n
    assert len(compiled.graphs) == 2
    assert compiled.report.recompiles == ["graph 1: x.shape[0] < 4, got 4"]


def test_a_marked_size_whose_type_is_asked_for_is_refused() -> None:
    """C02: no object but an int says yes to `type(n) is int`, so that a mark cannot be kept: an error, not a wrong branch."""
    x = tp.ones((4,))
    tp.compiler.mark_dynamic(x, 0)
    with pytest.raises(
        CaptureError, match=r"x\.shape\[0\] is marked dynamic, and the function needs"
    ) as caught:
        tp.compile(lambda x: x * 2.0 if type(x.shape[0]) is int else x)(x)
    assert caught.value.code == "TP4040"


def test_what_a_capture_wrote_before_it_is_tried_again_is_taken_back() -> None:
    """C02: native code refuses a symbol, the function runs again with the sizes as they are, and writes once."""
    seen: list[int] = []

    def program(x: Tensor) -> Tensor:
        seen.append(1)
        deque([1.0], x.shape[0])
        raise TypeError("own")

    with pytest.raises(TypeError, match="own"):
        tp.compile(program, dynamic=True)(tp.ones((3,)))
    assert seen == [1]


def test_a_number_of_a_size_that_only_a_run_knows_is_refused() -> None:
    """5.6: calculation and questions without a symbolic form name what was asked for; they have no quiet answer."""
    for ask in (
        lambda n: n * 0.5,
        lambda n: n.bit_length(),
        lambda n: np.sqrt(n),
        lambda n: n == fractions.Fraction(3),
    ):
        with pytest.raises(CaptureError) as caught:
            tp.graph.capture(lambda x, ask=ask: ask(tp.nonzero(x).shape[0]) and x, tp.ones((3,)))
        assert caught.value.code == "TP4002"
