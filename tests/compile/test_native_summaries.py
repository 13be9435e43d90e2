"""Native code inside of a captured function: known, or refused by name; and what the caller vouches for."""

from __future__ import annotations

import array
import datetime
import heapq
import random
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from captures import refused
from tensorplay import Tensor, _native
from tensorplay.errors import ArgumentError, CaptureError

pytestmark = pytest.mark.skipif(
    not _native.watches_python_state(),
    reason="frames of this version of Python are not known to the extension",
)


def _changed(fn: Callable[..., Any], change: Callable[[], Any]) -> tuple[Any, Any]:
    """What a compiled function gives before and after a change; eager code has to agree."""
    compiled = tp.compile(fn)
    before = compiled(tp.ones(()))
    assert before.item() == fn(tp.ones(())).item()
    change()
    after = compiled(tp.ones(()))
    assert after.item() == fn(tp.ones(())).item()
    return before.item(), after.item()


def test_elements_of_native_arrays_are_guarded_by_value() -> None:
    """C: NumPy arrays, views of them, `array.array` and `bytearray`, however they are read."""
    a, b, c = np.array([1.0, 2.0]), array.array("d", [1.0, 2.0]), bytearray(b"\x01\x02")
    assert _changed(lambda x: x * float(a[0]), lambda: a.__setitem__(0, 5.0)) == (1.0, 5.0)
    assert _changed(lambda x: x * float(a[1:].sum()), lambda: a.__setitem__(1, 6.0)) == (2.0, 6.0)
    assert _changed(lambda x: x * sum(b), lambda: b.append(4.0)) == (3.0, 7.0)
    assert _changed(lambda x: x * c[1], lambda: c.__setitem__(1, 9)) == (2.0, 9.0)


def test_an_unchanged_array_needs_no_new_graph() -> None:
    """C: another array of the same values at the same place is another object; the same one is not."""
    a = np.array([1.0, 2.0])
    compiled = tp.compile(lambda x: x * float(a[0]))
    for _ in range(3):
        assert compiled(tp.ones(())).item() == 1.0
    assert len(compiled.graphs) == 1
    assert "a holds the values of the capture" in "\n".join(compiled.report.guards)


def test_a_write_to_a_native_array_is_undone_and_refused() -> None:
    """C: by item, by a view, by a ufunc's `out`, by growth."""
    a, c = np.array([1.0, 2.0]), bytearray(b"ab")

    def view(x: Tensor) -> Tensor:
        part = a[:1]
        part[0] = 7.0
        return x * 2.0

    for fn in (
        view,
        lambda x: (np.add(a, 1.0, out=a), x * 2.0)[1],
        lambda x: (a.fill(3.0), x * 2.0)[1],
        lambda x: (c.extend(b"c"), x * 2.0)[1],
    ):
        with pytest.raises(CaptureError) as caught:
            tp.compile(fn)(tp.ones(()))
        assert caught.value.code == "TP4031"
        assert (a.tolist(), bytes(c)) == ([1.0, 2.0], b"ab")


def test_an_array_that_is_too_large_to_compare_is_refused() -> None:
    """C: by name; as a tensor it is a constant that is fetched."""
    big = np.zeros(1_000_000)
    error = refused("TP4036", lambda x: x * float(big[0]), tp.ones(()))
    assert "big" in str(error)


def test_writes_of_native_functions_are_undone_and_refused() -> None:
    """C: `heapq` on a list from outside."""
    heap = [2.0, 3.0]
    refused("TP4031", lambda x: (heapq.heappush(heap, 1.0), x * heap[0])[1], tp.ones(()))
    assert heap == [2.0, 3.0]


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("time.time", lambda x: x * time.time()),
        ("datetime.datetime.now", lambda x: x * datetime.datetime.now().year),
        ("_thread", lambda x: x * threading.get_ident()),
    ],
)
def test_unknown_native_code_is_refused_with_a_way_out(name: str, fn: Callable[..., Any]) -> None:
    """C: by name and line."""
    error = refused("TP4036", fn, tp.ones(()))
    assert name in str(error)
    assert any(note.startswith("move it out") and "assume_constant=[" in note for note in error.__notes__)


def test_attributes_of_unknown_native_objects_are_refused() -> None:
    """C: of `threading.local`."""
    local = threading.local()
    local.k = 2.0
    error = refused("TP4036", lambda x: x * local.k, tp.ones(()))
    assert "local" in str(error)
    assert tp.compile(lambda x: x * local.k, assume_constant=[local])(tp.ones(())).item() == 2.0


def test_what_is_vouched_for_is_called_once() -> None:
    """C: `assume_constant` takes functions, native and Python's, and their full names."""
    for assumed in ([time.time], ("time.time",)):
        compiled = tp.compile(lambda x: x * time.time(), assume_constant=assumed)
        first = compiled(tp.ones(())).item()
        assert [compiled(tp.ones(())).item() for _ in range(2)] == [first, first]
        assert len(compiled.graphs) == 1
    calls: list[int] = []

    def read() -> float:
        calls.append(1)
        return 3.0 * len(calls)

    compiled = tp.compile(lambda x: x * read(), assume_constant=(read,))
    assert [compiled(tp.ones(())).item() for _ in range(3)] == [3.0, 3.0, 3.0]
    compiled = tp.compile(lambda x: x * random.uniform(1.0, 2.0), assume_constant=[random.uniform])
    assert compiled(tp.ones(())).item() == compiled(tp.ones(())).item()


def test_a_name_that_is_vouched_for_is_not_guarded() -> None:
    """C: nor what it leads to; what stands beside it is."""
    n = types.SimpleNamespace(k=2.0, m=3.0)
    compiled = tp.compile(lambda x: x * n.k + n.m, assume_constant=["n.k"])
    assert compiled(tp.ones(())).item() == 5.0
    n.k = 10.0
    assert compiled(tp.ones(())).item() == 5.0
    n.m = 4.0
    assert compiled(tp.ones(())).item() == 14.0


def test_what_is_vouched_for_is_a_list() -> None:
    """C: a single function is not one."""
    with pytest.raises(ArgumentError) as caught:
        tp.compile(lambda x: x, assume_constant=time.time)
    assert caught.value.code == "TP1002"


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.random(),
        lambda: float(random.choice((1, 2))),
        lambda: random.Random(3).random(),
        lambda: time.perf_counter(),
    ],
)
def test_what_a_refusal_advises_to_vouch_for_is_enough(draw: Callable[[], float]) -> None:
    """C: the note of TP4036 names what `assume_constant` takes, methods of native classes included."""
    given: list[object] = []
    for _ in range(3):
        try:
            out = tp.compile(lambda x: x * draw(), assume_constant=given)(tp.ones(()))
        except CaptureError as error:
            advice = "".join(error.__notes__).rpartition("assume_constant=[")[2].partition("]")[0]
            given.append(eval(advice, {"random": random, "time": time}))
        else:
            assert isinstance(out.item(), float)
            return
    pytest.fail(f"still refused with {given}")
