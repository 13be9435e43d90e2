"""Tensors that a compiled function reads from places outside: fetched by each call, unless it matters which one it is."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import Tensor, _native

pytestmark = pytest.mark.skipif(
    not _native.watches_python_state(),
    reason="frames of this version of Python are not known to the extension",
)


def test_a_functional_training_loop_is_not_stale() -> None:
    """C: `w = (w.detach() - 0.1 * w.grad).requires_grad_()` makes a new tensor in each step."""
    x, t = tp.tensor([1.0, 2.0]), tp.tensor([3.0, 5.0])
    graphs: list[Any] = []

    def train(compile: Callable[[Any], Any]) -> list[float]:
        w = tp.tensor([0.5], requires_grad=True)
        loss = compile(lambda: tp.sum((w * x - t) * (w * x - t)))
        graphs.append(loss)
        out = []
        for _ in range(12):
            value = loss()
            value.backward()
            w = (w.detach() - 0.01 * w.grad).requires_grad_()
            out.append(value.item())
        return out

    wanted, got = train(lambda f: f), train(tp.compile)
    assert wanted == got
    assert wanted[-1] < wanted[0]
    assert len(graphs[1].graphs) == 1
    assert "closure w is a tensor like that of the capture" in graphs[1].report.guards


def test_a_tensor_at_a_place_is_fetched_by_each_call_and_guarded_by_its_kind() -> None:
    """C: another tensor of the same dtype, shape and flags needs no new graph; one of another shape does."""

    class Net:
        def __init__(self) -> None:
            self.w, self.ws, self.table = tp.ones((2,)), [tp.ones((2,))], {"b": tp.ones((2,))}

    m = Net()
    fn = lambda x: x * m.w + m.ws[0] * m.table["b"]  # noqa: E731
    compiled = tp.compile(fn)
    x = tp.tensor([1.0, 2.0])
    for i in range(4):
        assert compiled(x).tolist() == fn(x).tolist()
        m.w, m.ws[0], m.table["b"] = m.w + 1.0, m.ws[0] * 3.0, m.table["b"] - float(i)
    assert len(compiled.graphs) == 1
    m.w = tp.ones((1,))
    assert compiled(x).tolist() == fn(x).tolist()
    m.ws[0] = tp.ones((2,), dtype=tp.float64)
    assert compiled(x).tolist() == fn(x).tolist()
    m.ws[0] = 2.0
    assert compiled(x).tolist() == fn(x).tolist()
    assert compiled.report.recompiles == [
        "graph 1: m.w.shape[0] == 2, got 1",
        "graph 2: m.ws[0].dtype == float32, got float64",
        "graph 3: m.ws[0] is a tensor like that of the capture, got 2.0",
    ]


def _alias() -> tuple[Callable[..., Any], Callable[[], None]]:
    n = types.SimpleNamespace(a=tp.ones((2,)))
    n.b = n.a
    return lambda x: x * n.a + n.b, lambda: setattr(n, "b", tp.full((2,), 7.0))


def _asked() -> tuple[Callable[..., Any], Callable[[], None]]:
    n = types.SimpleNamespace(a=tp.ones((2,)))
    n.b = n.a
    return lambda x: x * n.a if n.a is n.b else x - n.a, lambda: setattr(n, "a", tp.full((2,), 7.0))


def _in_a_tuple() -> tuple[Callable[..., Any], Callable[[], None]]:
    w = tp.ones((2,))
    n = types.SimpleNamespace(a=w, both=(w, 1.0))
    return lambda x: x * n.a + n.both[0], lambda: setattr(n, "a", tp.full((2,), 7.0))


def _default() -> tuple[Callable[..., Any], Callable[[], None]]:
    w = tp.ones((2,))
    n = types.SimpleNamespace(a=w)

    def fn(x: Tensor, k: Tensor = w) -> Tensor:
        return x * n.a + k

    return fn, lambda: setattr(n, "a", tp.full((2,), 7.0))


def _in_a_list() -> tuple[Callable[..., Any], Callable[[], None]]:
    w = tp.ones((2,))
    n = types.SimpleNamespace(a=w, all=[w])
    return lambda x: x * sum(n.all) + n.a, lambda: setattr(n, "a", tp.full((2,), 7.0))


def _returned() -> tuple[Callable[..., Any], Callable[[], None]]:
    n = types.SimpleNamespace(a=tp.ones((2,)))
    n.get = lambda: n.a
    return lambda x: x * n.get() + n.a, lambda: setattr(n, "a", tp.full((2,), 7.0))


def _written() -> tuple[Callable[..., Any], Callable[[], None]]:
    n = types.SimpleNamespace(a=tp.ones((2,)))
    return lambda x: (n.a.add_(1.0), x * n.a)[1], lambda: setattr(n, "a", tp.full((2,), 7.0))


def _view() -> tuple[Callable[..., Any], Callable[[], None]]:
    base = tp.ones((4,))
    n = types.SimpleNamespace(a=base[:2], b=base[1:3])
    return lambda x: x * n.a + n.b, lambda: setattr(n, "a", tp.full((2,), 7.0))


@pytest.mark.parametrize(
    "make", [_alias, _asked, _in_a_tuple, _default, _in_a_list, _returned, _written, _view]
)
def test_a_tensor_met_by_two_ways_is_not_taken_for_another(make: Callable[[], Any]) -> None:
    """C: which tensor it is counts where it was met twice, compared, held by a tuple or a list, or written to."""
    x = tp.tensor([1.0, 2.0])
    (fn, change), (twin, change_twin) = make(), make()
    compiled = tp.compile(fn)
    for _ in range(2):
        assert compiled(x).tolist() == twin(x).tolist()
    change(), change_twin()
    for _ in range(2):
        assert compiled(x).tolist() == twin(x).tolist()


def test_an_argument_that_is_reached_otherwise_too_is_guarded() -> None:
    """C: `f(w)` where `f` reads `w` itself is another graph than `f(x)`."""
    w = tp.tensor([1.0])
    compiled = tp.compile(lambda x: x + w * 2.0)
    assert compiled(w).tolist() == [3.0]
    assert compiled(tp.tensor([10.0])).tolist() == [12.0]
    assert compiled(w).tolist() == [3.0]
    assert compiled.report.recompiles == [
        "graph 1: x is the tensor that the function reaches on its own, got another"
    ]
