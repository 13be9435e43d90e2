"""``fullgraph=False``: what functions read, write, raise, draw and start is eager's."""

from __future__ import annotations

import copy
import pickle
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from segmented import Function, agrees, broken_at, line_of, outcome, plain, read_in_the_middle, vector
from tensorplay import Tensor, library
from tensorplay.errors import DivisionByZeroError


def test_statements_run_once_per_call_and_in_order() -> None:
    """5.segments: also in the call that tries to capture the whole."""
    seen: list[Any] = []
    state = {"calls": 0}

    def fn(x: Tensor) -> Tensor:
        seen.append("begin")
        y = x * 2.0
        state["calls"] += 1
        seen.append(y.tolist())
        z = y + 1.0
        seen.append(z)
        return z * 2.0

    compiled = tp.compile(fn, fullgraph=False)
    for i in range(1, 4):
        assert compiled(vector()).tolist() == [6.0, 10.0, 14.0]
        assert state["calls"] == i
        assert seen[-3] == "begin"
        assert seen[-2] == [2.0, 4.0, 6.0]
        assert seen[-1].tolist() == [3.0, 5.0, 7.0]
        assert len(seen) == 3 * i


def test_tensors_kept_outside_live_past_the_call_with_their_data() -> None:
    """5.segments: in containers and attributes, as what they are: the same object, no fake."""
    kept: dict[str, Any] = {}

    def fn(x: Tensor) -> Tensor:
        y = x * 2.0
        kept["y"], kept["view"] = y, y[1:]
        return y

    out = tp.compile(fn, fullgraph=False)(vector())
    assert kept["y"] is out
    assert not out.is_fake
    assert kept["view"].tolist() == [4.0, 6.0]
    out.add_(1.0)
    assert kept["view"].tolist() == [5.0, 7.0]


READS: list[Function] = [
    lambda x: (x * 2.0).tolist(),
    lambda x: [float(v) for v in x * 2.0],
    lambda x: bool((x * 2.0).sum() > 3.0),
    lambda x: int((x * 2.0)[0]),
    lambda x: f"{x * 2.0} {x + 1.0!r}",
    lambda x: np.asarray(x * 2.0).tolist(),
    lambda x: (x * 2.0).numpy().tolist(),
    lambda x: np.from_dlpack(x * 2.0).tolist(),
    lambda x: bytes(memoryview(x * 2.0)),
    lambda x: pickle.loads(pickle.dumps(x * 2.0)),
    lambda x: copy.deepcopy(x * 2.0) + copy.copy(x + 1.0),
    lambda x: (x * 2.0).data_ptr() != 0,
    lambda x: ((x * 2.0).shape, (x + 1.0).dtype, len(x * 3.0), (x * 2.0).stride(), (x * 2.0).is_contiguous()),
    lambda x: ((x * 2.0)._version, (x * 2.0).is_view, (x * 2.0)[1:].storage_offset(), (x * 2.0).is_leaf),
    lambda x: ((x * 2.0).grad, (x * 2.0).grad_fn, (x * 2.0).requires_grad, (x * 2.0).is_fake),
    lambda x: tp.tensor([(x * 2.0)[0], (x * 2.0).sum()]),
    lambda x: 1.0 in (x * 0.5).tolist() or (x * 2.0)[int(x[0] + 1.0)],
]


@pytest.mark.parametrize("read", READS)
def test_every_way_to_read_a_tensor_finds_its_data(read: Function) -> None:
    """5.segments: as a number, text, array, buffer, address, file or fact."""
    seen: list[int] = []

    def fn(x: Tensor) -> Any:
        seen.append(1)
        return read(x)

    compiled = tp.compile(fn, fullgraph=False)
    for i in (1, 2):
        assert plain(compiled(vector())) == plain(read(vector()))
        assert len(seen) == i


def test_writes_come_after_what_was_to_read_and_before_what_reads_next() -> None:
    """5.segments: to arguments, results and views, by ops, arrays and custom ops."""

    def by_ops(x: Tensor) -> Any:
        a = x * 2.0
        x.add_(1.0)
        b = x * a
        x[0] = 5.0
        c = b.clone()
        c.mul_(a)
        float(c.sum())
        return a, b, c, x

    compiled = agrees(by_ops)
    assert broken_at(compiled, "TP4041")

    def by_array(x: Tensor) -> Any:
        y = x * 2.0
        array = x.numpy()
        z = x * 3.0
        array[0] = 100.0
        return y, z, x * 4.0

    agrees(by_array)

    def by_view(x: Tensor) -> Any:
        y = x * 2.0
        view = y[1:]
        float(y.sum())
        w = y * 1.0
        view.add_(10.0)
        return y, view, w, y * 1.0

    agrees(by_view)

    def to_a_pending_view(x: Tensor) -> Any:
        str(x)
        y = x * 2.0
        column = y.reshape((3, 1))
        row = column.T
        row.mul_(3.0)
        return y, column, row, column.is_view, y.is_view

    agrees(to_a_pending_view)


def test_custom_ops_run_at_their_place(ns: str) -> None:
    """5.segments: with and without a fake rule, mutating ones, and those that raise."""
    order: list[str] = []

    @library.custom_op(f"{ns}::loud", mutates_args=())
    def loud(x):  # type: ignore[no-untyped-def]
        order.append(f"op {x[0].item()}")
        if x[0].item() > 100.0:
            raise ValueError("too loud")
        return x * 3.0

    @library.custom_op(f"{ns}::into", mutates_args=("x",))
    def into(x) -> None:  # type: ignore[no-untyped-def]
        x.add_(1.0)

    def fn(x: Tensor) -> Any:
        order.append("begin")
        y = loud(x * 2.0) + 1.0
        order.append("middle")
        into(x)
        into(y)
        try:
            loud(y * 100.0)
        except ValueError as error:
            order.append(str(error))
        return y * x

    assert outcome(fn, vector()) == outcome(tp.compile(fn, fullgraph=False), vector())
    assert order == ["begin", "op 2.0", "middle", "op 800.0", "too loud"] * 2

    loud.register_fake(lambda x: tp.empty_like(x * 3.0))
    compiled = tp.compile(fn, fullgraph=False)
    compiled(vector())
    assert order[10:] == order[:5]
    assert broken_at(compiled, "TP4041")[0] == line_of(fn, 2)


def test_errors_come_where_eager_raises_them() -> None:
    """5.segments: of shapes and of values, caught and not; what was computed before is there."""
    kept: list[Tensor] = []

    def caught(x: Tensor) -> Any:
        y = x * 2.0
        kept.append(y)
        told = []
        for other in (tp.ones((2,)), "text", tp.ones((3,))):
            try:
                told.append(plain(y + other))  # type: ignore[operator]
            except Exception as error:
                told.append(f"{type(error).__name__}: {error}")
        whole = tp.tensor([4, 6, 8]) * 1
        try:
            told.append(plain(whole // (whole - 4)))
        except ZeroDivisionError:
            told.append("by zero")
        return told, y * 1.0

    compiled = agrees(caught)
    assert compiled(vector())[0][3] == "by zero"
    assert kept[-1].tolist() == [2.0, 4.0, 6.0]

    def raises(x: Tensor) -> Any:
        y = x * 2.0
        kept.append(y)
        z = y * 3.0
        raise KeyError(float(z.sum()))

    agrees(raises)
    assert kept[-1].tolist() == [2.0, 4.0, 6.0]
    # The thread is as it was.
    assert (vector() * 2.0).is_fake is False
    assert tp.compile(lambda x: x * 2.0)(vector()).tolist() == [2, 4, 6]


def test_a_whole_graph_that_fails_by_values_runs_again_in_segments() -> None:
    """5.segments: the function may catch what an op raises."""

    def fn(x: Tensor) -> Any:
        try:
            return x // (x - 2)
        except DivisionByZeroError:
            return x * 10

    compiled = tp.compile(fn, fullgraph=False)
    for numbers in ([4, 5, 6], [1, 2, 3], [4, 5, 6]):
        assert compiled(tp.tensor(numbers)).tolist() == fn(tp.tensor(numbers)).tolist()
    assert len([g for g in compiled.graphs if len(g.nodes) == 2]) == 1


@pytest.mark.thread_unsafe(reason="the generator is the process's")
def test_random_numbers_are_eagers_stream() -> None:
    """5.segments: drawn in order, also between breaks and where a draw's parameter is pending."""

    def fn(x: Tensor) -> Any:
        tp.manual_seed(11)
        noise = tp.uniform((3,)) * x
        more = tp.normal((3,))
        first = float(noise.sum())
        return noise + more, first, tp.uniform((2,)), tp.where(tp.uniform((3,)) > 0.5, noise, more)

    agrees(fn)


def test_threads_read_and_write_what_is_pending() -> None:
    """5.segments: another thread gets the data; one that writes waits for what was to read; many threads call at once."""

    def on_thread(work: Callable[[], Any]) -> Any:
        box: queue.Queue[Any] = queue.Queue()
        thread = threading.Thread(target=lambda: box.put(work()))
        thread.start()
        thread.join()
        return box.get()

    def reads(x: Tensor) -> Any:
        y = x * 2.0
        return on_thread(lambda: (y + 1.0).tolist()), on_thread(y.tolist), y * 1.0

    agrees(reads)

    def writes(x: Tensor) -> Any:
        y = x * 2.0
        on_thread(lambda: x.add_(1.0))
        z = x * 3.0
        on_thread(lambda: x.numpy().fill(7.0))
        return y, z, x * 1.0

    agrees(writes)

    compiled = tp.compile(read_in_the_middle, fullgraph=False)
    wrong: list[Any] = []

    def many() -> None:
        for i in range(20):
            x = vector(float(i), 1.0, -1.0)
            if compiled(x).tolist() != read_in_the_middle(x).tolist():
                wrong.append(i)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nested_functions_modes_and_captures_are_as_they_are() -> None:
    """5.segments: other compiled functions, vmap, autocast, trace, no_grad, graph.capture."""
    inner = tp.compile(lambda a: tp.tanh(a) * 2.0)
    broken = tp.compile(lambda a: a * float(a.sum()), fullgraph=False)

    def fn(x: Tensor) -> Any:
        y = x * 2.0
        z = inner(y) + inner(x) + broken(y)
        batch = tp.func.vmap(lambda a: a * a + 1.0)(y)
        with tp.autocast(dtype=tp.bfloat16):
            half = y.reshape((3, 1)) @ x.reshape((1, 3))
        with tp.trace() as events:
            traced = y + 1.0
        graph = tp.graph.capture(lambda a: a * y, x)
        return z, batch, half, [e.op for e in events], traced, len(graph.nodes), tp.func.grad(tp.sum)(y)

    agrees(fn)


def test_a_refusal_of_one_kind_of_arguments_leaves_the_others() -> None:
    """5.segments: arguments for which the function captures have an entry of their own."""

    def fn(x: Tensor, is_checked: bool) -> Tensor:
        y = tp.sin(x) * 2.0
        if is_checked:
            float(y.sum())
        return y + 1.0

    compiled = tp.compile(fn, fullgraph=False)
    for flag in (True, False, True, False):
        assert compiled(vector(), flag).tolist() == fn(vector(), flag).tolist()
    assert sorted(len(graph.nodes) for graph in compiled.graphs) == [1, 3, 3]
