"""Tensors that a captured function makes of data are its own: each run has them anew, with their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from made import as_eager, fresh, gradients_as_eager, values, x
from tensorplay.errors import CaptureError

MADE: dict[str, Callable[[], Any]] = {
    "numbers": lambda: tp.tensor([1.0, 2.0, 3.0]),
    "an array": lambda: tp.tensor(fresh()),
    "asarray of numbers": lambda: tp.asarray([1.0, 2.0, 3.0]),
    "detached": lambda: tp.tensor([1.0, 2.0, 3.0]).detach(),
    "a view": lambda: tp.tensor([0.0, 1.0, 2.0, 3.0])[1:],
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_each_run_has_its_own(make):
    """A: a run that writes to a tensor of data, or gives it away, has a new one: nothing is left for the next run."""

    def written(x):
        return make().add_(x)

    def returned(x):
        t = make()
        return t * x, t

    def viewed(x):
        return make()[1:]

    as_eager(written)
    for fn in (returned, viewed):
        compiled = tp.compile(fn)
        for _ in range(3):
            result = compiled(x())
            assert values(result) == values(fn(x()))
            (result[1] if isinstance(result, tuple) else result).add_(5.0)
    graph = tp.compile(written)
    graph(x())
    assert graph.graphs[0].nodes[0].target == "tp::clone.default"
    assert graph.graphs[0].verify() == []


def test_what_is_only_read_is_not_copied():
    """C: a constant costs a run nothing."""
    compiled = as_eager(lambda x: x * tp.tensor([1.0, 2.0, 3.0]))
    assert [node.target for node in compiled.graphs[0].nodes] == ["tp::mul.default"]


def test_a_constant_of_an_entry_cannot_be_written_to_through_its_graph():
    compiled = tp.compile(lambda x: x * tp.tensor([1.0, 2.0, 3.0]))
    before = compiled(x()).tolist()
    for t in compiled.graphs[0].constants.values():
        t.add_(5.0)
    assert compiled(x()).tolist() == before


def test_a_tensor_of_data_takes_part_in_gradients():
    """A: a buffer that the function makes and fills is like one of zeros."""

    def filled(x):
        t = tp.tensor([0.0, 0.0, 1.0])
        t[0] = x[0] * 2.0
        t[1:] = t[1:] + x[1:]
        return tp.sum(t * t)

    def inner(x):
        w = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
        return tp.autograd.grad(tp.sum(w * w * x), [w])[0]

    gradients_as_eager(filled)
    as_eager(inner)


def test_a_returned_buffer_has_its_gradient():
    """A: a tensor of data that was written to is no input handed through."""

    def filled(x):
        t = tp.tensor([0.0, 0.0, 0.0])
        for i in range(3):
            t[i] = x[i] * float(i)
        return t

    compiled = tp.compile(filled)
    for _ in range(3):
        a, b = x().requires_grad_(), x().requires_grad_()
        tp.sum(filled(a) * 2.0).backward()
        tp.sum(compiled(b) * 2.0).backward()
        assert a.grad.tolist() == b.grad.tolist() == [0.0, 2.0, 4.0]


class Tables:
    @functools.cached_property
    def scale(self):
        return tp.tensor([1.0, 2.0, 3.0])

    @functools.cached_property
    def memory(self):
        return tp.from_numpy(fresh())

    @functools.cached_property
    def computed(self):
        return tp.zeros((3,))

    @functools.cached_property
    def more(self):
        return tp.ones((3,))


@pytest.mark.parametrize("fullgraph", [True, False])
def test_cached_properties_keep_tensors_of_data(fullgraph):
    """A: a table that is made on first use is the object's own, and a later write to it is seen."""
    tables, eager = Tables(), Tables()

    def function(tables):
        return lambda x: tables.scale * x + tables.memory

    compiled = tp.compile(function(tables), fullgraph=fullgraph)
    for _ in range(3):
        assert values(compiled(x())) == values(function(eager)(x()))
        for own in (tables, eager):
            assert not own.scale.is_fake
            own.scale.add_(1.0)
            own.memory.numpy()[0] += 1.0
    assert len(compiled.graphs) == 1
    assert compiled.last_run.forward[0].marker.executor == "native"


def test_cached_properties_of_computed_tensors_are_taken_away():
    """A: all of them, where the first is refused."""
    tables = Tables()

    def function(x):
        return tables.computed + tables.more + x

    with pytest.raises(CaptureError, match="would keep a tensor without data") as caught:
        tp.compile(function)(x())
    assert caught.value.code == "TP4031"
    assert vars(tables) == {}
    as_eager(function, fullgraph=False)
