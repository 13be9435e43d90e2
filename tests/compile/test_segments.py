"""``fullgraph=False``: eager's values, effects, gradients and exceptions, with compiled segments between the breaks."""

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
from tensorplay import Tensor, library
from tensorplay.errors import DivisionByZeroError, FallbackError

Function = Callable[..., Any]


def vector(*values: float) -> Tensor:
    return tp.tensor(list(values or (1.0, 2.0, 3.0)))


def plain(value: Any) -> Any:
    """A result without tensors: values, dtype, and whether a gradient is required."""
    if isinstance(value, Tensor):
        return value.detach().tolist(), value.dtype, value.requires_grad
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def outcome(fn: Function, *args: Any) -> Any:
    try:
        return plain(fn(*args))
    except Exception as error:
        return type(error), str(error)


def agrees(fn: Function, make: Callable[[], Any] = vector, calls: int = 3, **options: Any) -> Any:
    """`fn` in segments does what it does by itself, the first time and later; the compiled function."""
    compiled = tp.compile(fn, fullgraph=False, **options)
    for _ in range(calls):
        assert outcome(compiled, make()) == outcome(fn, make())
    return compiled


def broken_at(compiled: Any, code: str) -> list[int]:
    """The lines of the breaks with that code, but for the one by which the whole was refused."""
    own = [b for b in compiled.report.breaks if b.startswith(f"[{code}]") and "no one graph" not in b]
    return [int(b.rpartition(":")[2]) for b in own]


def line_of(fn: Function, offset: int) -> int:
    return fn.__code__.co_firstlineno + offset


def ops_of(run: Any) -> list[tuple[str, ...]]:
    return [region.ops for region in run]


# ---- segments, reports, and what is compiled ----


def read_in_the_middle(x: Tensor) -> Tensor:
    y = tp.tanh(x * 2.0) + 1.0
    if y.sum().item() > 0.0:
        return tp.exp(y) * 0.5 - 1.0
    return y


def test_ops_between_two_breaks_are_one_compiled_segment() -> None:
    """5.segments: fused, found again by the second call, with the break's code and line and every region's marker."""
    compiled = agrees(read_in_the_middle)
    graphs = [[node.target for node in graph.nodes] for graph in compiled.graphs]
    assert graphs == [
        ["tp::mul.Scalar", "tp::tanh.default", "tp::add.Scalar", "tp::sum.default"],
        ["tp::exp.default", "tp::mul.Scalar", "tp::sub.Scalar"],
    ]
    assert broken_at(compiled, "TP4003") == [line_of(read_in_the_middle, 2)]
    whole = compiled.report.breaks[0]
    assert "no one graph" in whole
    assert f":{line_of(read_in_the_middle, 2)}" in whole
    run = compiled.last_run
    assert ops_of(run.forward) == [
        ("tp::mul.Scalar", "tp::tanh.default", "tp::add.Scalar"),
        ("tp::sum.default",),
        ("tp::exp.default", "tp::mul.Scalar", "tp::sub.Scalar"),
    ]
    assert [region.index for region in run.forward] == [0, 1, 2]
    assert {region.marker.executor for region in run.forward} == {"native"}
    assert compiled.graphs[0].nodes[0].location.endswith(f":{line_of(read_in_the_middle, 1)}")
    before = len(compiled.graphs)
    for _ in range(5):
        compiled(vector())
    assert len(compiled.graphs) == before == 2


@pytest.mark.requires("tvm")
def test_segments_run_by_the_backend_asked_for() -> None:
    """5.segments: TVM has every pointwise region of every segment, forward and backward."""

    def loss(w: Tensor) -> Tensor:
        y = tp.tanh(w * 2.0) + 1.0
        scale = float(y.sum())
        return tp.sum(tp.exp(y) * scale - 1.0)

    eager, w = vector().requires_grad_(), vector().requires_grad_()
    compiled = tp.compile(loss, fullgraph=False, backend="tvm", on_fallback="record")
    loss(eager).backward()
    compiled(w).backward()
    assert w.grad.tolist() == eager.grad.tolist()
    run = compiled.last_run
    executors = {region.ops: region.marker.executor for region in run.forward + run.backward}
    assert executors["tp::mul.Scalar", "tp::tanh.default", "tp::add.Scalar"] == "tvm"
    assert executors["tp::exp.default", "tp::mul.Scalar", "tp::sub.Scalar"] == "tvm"
    assert executors["tp::sum.default",] == "native"
    assert [r.marker.executor for r in run.backward if "tp::mul.default" in r.ops] == ["tvm", "tvm"]
    made = len(compiled.builds)
    compiled(w).backward()
    assert made == len(compiled.builds) > 0


def test_a_function_that_captures_is_one_graph_as_with_fullgraph() -> None:
    """5.segments: the same graph, guards and entries; Python runs once."""
    calls = []

    def fn(x: Tensor, k: float = 2.0) -> Tensor:
        return tp.tanh(x * k) + 1.0

    def counted(x: Tensor) -> Tensor:
        return fn(x)

    one, other = tp.compile(counted), tp.compile(counted, fullgraph=False)
    for _ in range(3):
        assert one(vector()).tolist() == other(vector()).tolist()
    assert str(one.graphs[0]) == str(other.graphs[0])
    assert one.report.guards == other.report.guards
    assert not [b for b in other.report.breaks if b.startswith("[")]
    assert len(other.graphs) == 1
    assert calls == []


def test_sizes_and_numbers_that_change_do_not_compile_without_end() -> None:
    """5.segments: sizes become symbols, numbers have eight entries of a structure, then its steps run as they are."""

    def fn(x: Tensor, k: float) -> Tensor:
        y = x * k
        return y + float(y.sum())

    compiled = tp.compile(fn, fullgraph=False)
    for n in range(2, 9):
        assert compiled(tp.ones((n,)), 2.0).tolist() == fn(tp.ones((n,)), 2.0).tolist()
    assert len(compiled.graphs) < 14
    for k in range(40):
        assert compiled(tp.ones((3,)), float(k)).tolist() == fn(tp.ones((3,)), float(k)).tolist()
    assert len(compiled.graphs) <= 16
    assert compiled.last_run.forward[0].reason.kind == "RecompileLimit"


def test_structures_beyond_the_limit_run_as_they_are() -> None:
    """5.segments: a function whose segments never repeat keeps a bounded number of them."""

    def fn(x: Tensor, n: int) -> float:
        for _ in range(n):
            x = x * 1.0
        return float(x.sum())

    compiled = tp.compile(fn, fullgraph=False)
    for n in range(100):
        assert compiled(vector(), n) == 6.0
    assert len(compiled.graphs) <= 64
    assert compiled.last_run.forward[0].marker.executor == "eager"


def test_counters_and_logs_tell_of_breaks(caplog: pytest.LogCaptureFixture) -> None:
    """5.log: each place once, by code."""
    before = tp.compiler.counters()
    with caplog.at_level("INFO", logger="tensorplay.graph"):
        agrees(read_in_the_middle)
    after = tp.compiler.counters()
    assert after["break.TP4003"] - before.get("break.TP4003", 0) == 2
    told = [r.getMessage() for r in caplog.records if "breaks off" in r.getMessage()]
    assert len(told) == 2
    assert "x.item()" in told[0]


def test_a_fallback_that_is_forbidden_is_an_error_in_segments_too() -> None:
    """5.segments: and what is pending then is computed all the same."""
    kept = []

    def fn(x: Tensor) -> Any:
        y = x * 2.0
        kept.append(y)
        return float(y.sum())

    compiled = tp.compile(fn, fullgraph=False, backend="tvm", on_fallback="error")
    with pytest.raises(FallbackError):
        compiled(vector())


# ---- what functions do ----


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


# ---- gradients ----


def gradients(fn: Function, calls: int = 2) -> Any:
    """Losses and gradients of the leaf are eager's."""
    compiled = tp.compile(fn, fullgraph=False)
    for _ in range(calls):
        eager, own = vector(0.5, -1.0, 2.0).requires_grad_(), vector(0.5, -1.0, 2.0).requires_grad_()
        expected, got = fn(eager), compiled(own)
        expected.backward()
        got.backward()
        assert got.tolist() == expected.tolist()
        np.testing.assert_allclose(own.grad.tolist(), eager.grad.tolist(), rtol=2e-6)
    return compiled


def test_backward_goes_through_several_segments_to_the_leaves() -> None:
    """5.segments: each is one node on the tape; against differences as well."""

    def loss(w: Tensor) -> Tensor:
        hidden = tp.sin(w) * 2.0 + w
        if hidden.sum() > 0.0:
            hidden = hidden * float(hidden.max())
        out = tp.exp(hidden * 0.1) * w
        str(out)
        return tp.sum(out * out)

    compiled = gradients(loss)
    w = vector(0.5, -1.0, 2.0).requires_grad_()
    out = compiled(w)
    assert out.grad_fn is not None
    assert out.grad_fn.name() == "compiled"
    out.backward()
    run = compiled.last_run
    assert len(run.backward) >= 3
    assert {region.marker.executor for region in run.forward + run.backward} == {"native"}
    assert [graph.backward is not None for graph in compiled.graphs].count(True) >= 3

    def smooth(w: Tensor) -> Tensor:
        y = tp.sin(w) * 2.0
        str(y)
        return tp.sum(y * y * w)

    point = tp.tensor([0.5, -1.0, 2.0], dtype=tp.float64, requires_grad=True)
    assert tp.autograd.gradcheck(tp.compile(smooth, fullgraph=False), (point,))


def test_tensors_in_between_are_places_of_the_tape() -> None:
    """5.segments: gradients with respect to a tensor that the function holds, its hooks and its retained gradient."""

    def fn(w: Tensor) -> Any:
        w = w.requires_grad_()
        h = tp.sin(w) * 2.0
        view = h.reshape((3, 1))
        loss = tp.sum(h * h) + tp.sum(view * 3.0)
        float(loss)
        by_h, by_view, by_w = tp.autograd.grad(loss, [h, view, w], retain_graph=True)
        seen: list[Any] = []
        h.retain_grad()
        h.register_hook(lambda g: seen.append(g.tolist()))
        k = loss * 2.0
        k.backward()
        return by_h, by_view, by_w, h.grad, w.grad, seen

    agrees(fn)


def test_grad_modes_are_those_of_each_call() -> None:
    """5.segments: a block of no_grad, requires_grad_ in the middle, detach, and a mode that is left changed."""

    def fn(x: Tensor) -> Any:
        early = x * 2.0
        x = x.requires_grad_()
        a = x * 2.0
        with tp.no_grad():
            b = a * 3.0
        c = a * b
        d = c.detach() * x
        return early, a, b, c, d, early.is_leaf, a.is_leaf

    agrees(fn)

    def leaves(x: Tensor) -> Any:
        x = x.requires_grad_()
        a = x * 2.0
        tp.autograd.set_grad_enabled(False)
        b = a * 2.0
        assert not b.requires_grad
        return tp.is_grad_enabled() if hasattr(tp, "is_grad_enabled") else tp.autograd.is_grad_enabled()

    try:
        assert tp.compile(leaves, fullgraph=False)(vector()) is False
        assert tp.autograd.is_grad_enabled() is False
    finally:
        tp.autograd.set_grad_enabled(True)


def test_functions_checkpoints_and_hooks_on_saved_tensors() -> None:
    """5.segments: code of the user on the tape runs at its place, over data."""

    class Square(tp.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            assert float(x.sum()) != 0.0
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * 2.0 * x

    def fn(w: Tensor) -> Any:
        w = w.requires_grad_()
        seen: list[Any] = []
        h = Square.apply(tp.sin(w) * 2.0) + 1.0

        def pack(t: Tensor) -> Tensor:
            seen.append(t.tolist())
            return t

        with tp.autograd.saved_tensors_hooks(pack, lambda t: t):
            y = tp.exp(h * 0.1)
        z = tp.autograd.checkpoint(lambda a: tp.sin(a) * a, y * 2.0)
        z.sum().backward()
        return w.grad, seen

    agrees(fn)


def test_a_training_loop_compiles_once() -> None:
    """5.segments: weights from outside, ten steps with a break in each, one set of graphs."""
    weight = vector(0.5, -0.5, 0.25).requires_grad_()
    twin = weight.detach().clone().requires_grad_()
    losses: list[float] = []

    def step(w: Tensor, x: Tensor) -> Tensor:
        loss = tp.sum((tp.tanh(w * x) - 1.0) ** 2.0)
        losses.append(loss.item())
        return loss * 1.5

    compiled = tp.compile(step, fullgraph=False)
    for _ in range(10):
        for w, fn in ((weight, compiled), (twin, step)):
            w.grad = None
            fn(w, vector()).backward()
            with tp.no_grad():
                w.sub_(w.grad * 0.1)
        assert weight.tolist() == twin.tolist()
    assert losses[0::2] == losses[1::2]
    assert len(compiled.graphs) == 2
