"""Tensors over the memory of arrays in a captured function: one value in every run, eager's, or a refusal by line."""

from __future__ import annotations

import array
import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from made import as_eager, fresh, gradients_as_eager, values, x
from tensorplay.errors import CaptureError

SHARED: dict[str, Callable[[Any], Any]] = {
    "from_numpy": tp.from_numpy,
    "asarray": tp.asarray,
    "from_dlpack": tp.from_dlpack,
    "a view": lambda a: tp.from_numpy(a[:]),
    "a strided view": lambda a: tp.from_numpy(a[::-1]),
}

COPIED: dict[str, Callable[[Any], Any]] = {
    "tensor": tp.tensor,
    "tensor of a view": lambda a: tp.tensor(a[::-1]),
    "asarray to float64": lambda a: tp.asarray(a, dtype=tp.float64).astype(tp.float32),
    "asarray with a copy": lambda a: tp.asarray(a, copy=True),
    "tensor of a memoryview": lambda a: tp.tensor(memoryview(a)),
    "tensor of a bytearray": lambda a: tp.tensor(bytearray(a.astype(np.uint8))).astype(tp.float32),
    "tensor of array.array": lambda a: tp.tensor(array.array("f", a.tolist())),
}


def write_item(a):
    a[0] = 7.0


def write_in_a_helper(a):
    write_item(a)


def write_through_a_view(a):
    a[1:][0] = 7.0


def write_by_copyto(a):
    np.copyto(a, 4.0)


def write_by_a_sum(a):
    a += 1.0


def write_by_out(a):
    np.add(a, 1.0, out=a)


def write_by_a_sort(a):
    a.sort()


def write_by_fill(a):
    a.fill(3.0)


def write_through_memory(a):
    memoryview(a)[0] = 7.0


WRITES: list[Callable[[Any], None]] = [
    write_item,
    write_in_a_helper,
    write_through_a_view,
    write_by_copyto,
    write_by_a_sum,
    write_by_out,
    write_by_a_sort,
    write_by_fill,
    write_through_memory,
]


def line_of(error: CaptureError, start: str) -> tuple[str, int]:
    (note,) = [note for note in error.__notes__ if note.startswith(start)]
    file, line = note.removeprefix(start).strip().rsplit(":", 1)
    return Path(file).name, int(line)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("share", SHARED.values(), ids=SHARED)
def test_a_write_between_two_uses_of_a_shared_tensor_is_refused(share, write):
    """A: a graph has one value for both uses, eager two: refused by line, right in segments."""

    def twice(x):
        a = fresh()
        t = share(a)
        y = t * x
        write(a)
        return y + t * x

    with pytest.raises(CaptureError, match="between two uses") as caught:
        tp.compile(twice, fullgraph=True)(x())
    assert caught.value.code == "TP4037"
    first = twice.__code__.co_firstlineno
    assert line_of(caught.value, "and read before at") == (Path(__file__).name, first + 3)
    assert line_of(caught.value, "captured at") == (Path(__file__).name, first + 5)
    compiled = as_eager(twice, fullgraph=False)
    assert any(line.startswith("[TP4037]") for line in compiled.report.breaks)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("share", SHARED.values(), ids=SHARED)
def test_the_value_of_a_shared_tensor_is_that_of_its_use(share, write):
    """A: a write before the first use, or after the last, is what eager sees: the op reads the memory when it is called."""

    def before(x):
        a = fresh()
        t = share(a)
        write(a)
        return t * x

    def after(x):
        a = fresh()
        y = share(a) * x
        write(a)
        return y

    def restored(x):
        a = fresh()
        t = share(a)
        write(a)
        y = t * x
        a[:] = fresh()
        return y

    def two(x):
        a = fresh()
        y = share(a) * x
        write(a)
        return y + share(a) * x

    for fn in (before, after, restored, two):
        compiled = as_eager(fn)
        assert len(compiled.graphs) == 1
        assert compiled.last_run.forward[0].marker.executor == "native"


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("make", COPIED.values(), ids=COPIED)
def test_a_copy_is_not_written_to(make, write):
    def copied(x):
        a = fresh()
        t = make(a)
        y = t * x
        write(a)
        return y + t * x + make(a) * x

    assert len(as_eager(copied).graphs) == 1


def test_a_view_made_before_the_write_is_refused_too():
    def viewed(x):
        a = fresh()
        t = tp.from_numpy(a)
        y = t.reshape((3, 1))[:, 0] * x
        z = t[1:]
        write_item(a[1:])
        return y + tp.sum(z)

    with pytest.raises(CaptureError) as caught:
        tp.compile(viewed)(x())
    assert caught.value.code == "TP4037"
    as_eager(viewed, fullgraph=False)


def test_an_index_and_stored_values_are_those_of_the_call():
    """A: arrays as keys and as values to store are read by the call that gets them."""

    def indexed(x):
        i = np.array([0, 1])
        y = x[i]
        i[0] = 2
        v = np.array([5.0, 6.0], dtype=np.float32)
        y[:] = v
        v[0] = 9.0
        return y + x[i]

    as_eager(indexed)


def test_the_result_counts_as_a_use():
    def returned(x):
        a = fresh()
        t = tp.from_numpy(a)
        y = t * x
        write_item(a)
        return y, t

    with pytest.raises(CaptureError) as caught:
        tp.compile(returned)(x())
    assert caught.value.code == "TP4037"


def test_a_gradient_reads_the_memory_too():
    """A: what the backward keeps of the memory is what the forward read."""

    def kept(x):
        a = fresh()
        y = tp.from_numpy(a) * x
        write_item(a)
        return tp.sum(y * y)

    with pytest.raises(CaptureError) as caught:
        tp.compile(kept)(x().requires_grad_())
    assert caught.value.code == "TP4037"

    def unwritten(x):
        return tp.sum(tp.from_numpy(fresh()) * x * x)

    gradients_as_eager(unwritten, runs=2)


def test_an_op_that_writes_to_an_array_is_refused():
    """A: the function could read the array afterwards, which the capture's op has not written to."""

    def written(x):
        a = fresh()
        t = tp.from_numpy(a)
        t.add_(1.0)
        return t * x + float(a[0])

    with pytest.raises(CaptureError, match="writes by an op") as caught:
        tp.compile(written)(x())
    assert caught.value.code == "TP4037"
    assert line_of(caught.value, "captured at") == (Path(__file__).name, written.__code__.co_firstlineno + 3)
    as_eager(written, fullgraph=False)


def test_a_tensor_of_data_in_branches_and_loops():
    def chosen(x):
        t = tp.tensor([1.0, 2.0, 3.0])
        y = tp.cond(tp.sum(x) > 0.0, lambda: t * x, lambda: tp.tensor([4.0, 5.0, 6.0]))
        return y, tp.cond(tp.sum(x) > 0.0, lambda: t, lambda: x)

    def shared(x):
        a = fresh()
        t = tp.from_numpy(a)
        y = t * x
        write_item(a)
        return tp.cond(tp.sum(x) > 0.0, lambda: t[:] * y, lambda: y)

    compiled = tp.compile(chosen)
    for _ in range(3):
        for given in (x(), -x()):
            result = compiled(given)
            assert values(result) == values(chosen(given))
            result[0].add_(5.0)
            if tp.sum(given).item() > 0.0:
                result[1].add_(5.0)
    with pytest.raises(CaptureError) as caught:
        tp.compile(shared)(x())
    assert caught.value.code == "TP4037"
    as_eager(shared, fullgraph=False)


def test_an_array_from_outside_is_guarded_and_not_written_to_meanwhile():
    """A: values of arrays from outside are guarded; a write that an op could see is refused, put back or not."""
    a = fresh()
    t = tp.from_numpy(a)

    def read(x):
        return tp.from_dlpack(a) * x + tp.from_numpy(a[:2])[0]

    def restored(x):
        v = a
        v[0] = 5.0
        y = tp.from_numpy(a) * x
        v[0] = 3.0
        return y

    def behind(x):
        a[:][0] = 5.0
        y = t * x
        a[:][0] = 3.0
        return y

    compiled = tp.compile(read)
    assert values(compiled(x())) == values(read(x()))
    a[0] = 30.0
    assert values(compiled(x())) == values(read(x()))
    assert len(compiled.graphs) == 2
    a[0] = 3.0
    for fn in (restored, behind):
        with pytest.raises(CaptureError) as caught:
            tp.compile(fn)(x())
        assert caught.value.code in ("TP4031", "TP4037")
        assert a.tolist() == [3.0, 2.0, 1.0]
        as_eager(fn, fullgraph=False)


def test_a_tensor_from_outside_is_no_data():
    """A: what a function makes of a tensor from outside follows that tensor."""
    w = x()
    ways = [tp.tensor, tp.asarray, tp.from_dlpack, copy.deepcopy, lambda w: tp.tensor(w, dtype=tp.float64)]
    for way in ways:

        def made(x, way=way):
            return way(w) * x

        compiled = tp.compile(made)
        for _ in range(3):
            assert values(compiled(x())) == values(made(x()))
            w.add_(1.0)


@pytest.mark.parametrize("read", [memoryview, lambda w: np.asarray(memoryview(w)), bytes], ids=range(3))
def test_the_memory_of_a_tensor_from_outside_is_not_lent(read):
    """A: its values would be baked in, and a write would be the capture's alone."""
    w = x()
    with pytest.raises(CaptureError) as caught:
        tp.compile(lambda x: x * float(len(read(w))))(x())
    assert caught.value.code == "TP4013"


def test_new_memory_is_not_returned():
    """A: every run would give away the same array, which the caller may write to."""
    for make in (fresh, lambda: bytearray(3), lambda: array.array("f", [1.0]), lambda: [{"a": fresh()}]):

        def both(x, make=make):
            return x * 2.0, make()

        with pytest.raises(CaptureError, match="which no run would make anew") as caught:
            tp.compile(both)(x())
        assert caught.value.code == "TP4033"
        compiled = tp.compile(both, fullgraph=False)
        assert compiled(x())[1] is not compiled(x())[1]
    old = fresh()
    assert tp.compile(lambda x: (x, old))(x())[1] is old


def test_another_thread_that_writes_is_refused_or_right():
    def threaded(x):
        a = fresh()
        t = tp.from_numpy(a)
        y = t * x
        other = threading.Thread(target=write_item, args=(a,))
        other.start()
        other.join()
        return y + t * x

    with pytest.raises(CaptureError):
        tp.compile(threaded)(x())
    as_eager(threaded, fullgraph=False)
