"""Random programs of choices and loops, nested in each other, eager and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorplay as tp

# A program is a nest: how a vector is made of the vectors in scope. All of it is data, so that it reads in a failure.
_LEAVES = st.one_of(st.tuples(st.just("name"), st.integers(0, 9)), st.just(("number", 0.5)))


def _larger(inner: Any) -> Any:
    return st.one_of(
        st.tuples(st.just("add"), inner, inner),
        st.tuples(st.just("mul"), inner, inner),
        st.tuples(st.just("tanh"), inner),
        st.tuples(st.just("flip"), inner),
        st.tuples(st.just("written"), inner),
        st.tuples(st.just("cond"), inner, inner, inner, st.booleans()),
        st.tuples(st.just("let"), inner, inner),
    )


_TREES = st.recursive(_LEAVES, _larger, max_leaves=12)
_LOOPS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(_larger(inner), st.tuples(st.just("while"), inner, inner, st.integers(0, 4))),
    max_leaves=12,
)


def _run(tree: Any, scope: tuple[Any, ...]) -> Any:
    """The vector that a program makes; what it does not get as an operand it closes over."""
    kind, *parts = tree
    if kind == "name":
        return scope[parts[0] % len(scope)]
    if kind == "number":
        return scope[0] * 0.0 + parts[0]
    if kind == "cond":
        asked, yes, no, passed = parts
        pred = _run(asked, scope).sum() > 0.0
        if passed:
            return tp.cond(pred, lambda *s: _run(yes, s), lambda *s: _run(no, s), scope)
        return tp.cond(pred, lambda: _run(yes, scope), lambda: _run(no, scope))
    if kind == "while":
        first, body, trips = parts

        def step(i: Any, y: Any) -> Any:
            return i + 1, (_run(body, (y, *scope)) * 0.5).tanh()

        return tp.while_loop(lambda i, y: i < trips, step, (tp.tensor(0), _run(first, scope)))[1]
    if kind == "let":
        return _run(parts[1], (_run(parts[0], scope), *scope))
    values = [_run(part, scope) for part in parts]
    if kind == "add":
        return values[0] + values[1]
    if kind == "mul":
        return values[0] * values[1]
    if kind == "tanh":
        return values[0].tanh()
    if kind == "flip":
        return tp.flip(values[0], (0,))
    return (values[0] * 1.0).add_(0.25)  # to what is made here a branch may write


_SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_NUMBERS = st.lists(st.floats(-2.0, 2.0, width=32), min_size=3, max_size=3)


@_SETTINGS
@given(_LOOPS, st.lists(_NUMBERS, min_size=3, max_size=3))
def test_compiled_values_are_the_eager_ones(tree: Any, inputs: Any) -> None:
    """5.6: bit for bit, whichever branches run and however many trips, from one graph; its text reads back."""
    w = tp.tensor([0.75, -0.5, 0.25])
    compiled = tp.compile(lambda x: _run(tree, (x, w)))
    for numbers in inputs:
        x = tp.tensor(numbers, dtype=tp.float32)
        want, got = _run(tree, (x, w)), compiled(x)
        assert np.array_equal(want.numpy(), got.numpy(), equal_nan=True), compiled.graphs[0].text()
    graph = tp.graph.capture(lambda x: _run(tree, (x, w)), x)
    again = tp.graph.parse(graph.text())
    assert again == graph
    assert again.verify() == []
    assert np.array_equal(graph(x).numpy(), want.numpy(), equal_nan=True)


@_SETTINGS
@given(_TREES, st.lists(_NUMBERS, min_size=3, max_size=3))
def test_compiled_gradients_are_the_eager_ones(tree: Any, inputs: Any) -> None:
    """5.6: of the branch that ran, by the argument and by what is closed over; sums may come in another order."""
    w = tp.tensor([0.75, -0.5, 0.25]).requires_grad_()

    def loss(x: Any) -> Any:
        return (_run(tree, (x, w)) * x).sum()

    compiled = tp.compile(loss)
    for numbers in inputs:
        found = []
        for fn in (loss, compiled):
            x = tp.tensor(numbers, dtype=tp.float32).requires_grad_()
            w.grad = None
            fn(x).backward()
            found.append(
                [t.grad.numpy().copy() if t.grad is not None else np.zeros(3, np.float32) for t in (x, w)]
            )
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
