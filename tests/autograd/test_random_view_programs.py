"""Random programs of views and writes in place, held against a functional reference.

The reference keeps the memory as one flat tensor and never writes to it: a view is an array of positions, reading is
`take`, writing is `take` out of the memory and the new values put side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorplay as tp

Draw = Any
BASES = {
    "contiguous": lambda x: x * 0.8,
    "turned": lambda x: (x.reshape((3, 4)) * 0.8).T,
    "strided": lambda x: (tp.stack([x, x], axis=1) * 0.8)[:, 1],
    "dead": lambda x: (x * 0.8).reshape((2, 2, 3)),
    "alias": lambda x: (x * 0.8)[...],
}


@dataclass
class Memory:
    """The reference: memory as a value, and for each live tensor the positions it shows."""

    flat: tp.Tensor
    places: list[np.ndarray] = field(default_factory=list)

    def read(self, k: int) -> tp.Tensor:
        place = self.places[k]
        return tp.take(self.flat, tp.from_numpy(place.reshape(-1).copy()), axis=0).reshape(place.shape)

    def write(self, k: int, value: tp.Tensor) -> None:
        place = self.places[k]
        n = self.flat.shape[0]
        source = np.arange(n)
        source[place.reshape(-1)] = n + np.arange(place.size)
        both = tp.concat([self.flat, tp.broadcast_to(value, place.shape).reshape((-1,))])
        self.flat = tp.take(both, tp.from_numpy(source), axis=0)


def _view(draw: Draw, t: tp.Tensor, place: np.ndarray) -> tuple[tp.Tensor, np.ndarray]:
    kinds = ["newaxis", "alias"]
    if t.ndim:
        kinds += ["select", "slice", "turn"]
    if t.is_contiguous():
        kinds.append("flatten")
    kind = draw(st.sampled_from(kinds))
    if kind == "newaxis":
        return t[None], place[None]
    if kind == "alias":
        return t[...], place[...]
    if kind == "flatten":
        return t.view((-1,)), place.reshape(-1)
    if kind == "turn":
        axes = draw(st.permutations(range(t.ndim)))
        return tp.permute_dims(t, tuple(axes)), place.transpose(axes)
    axis = draw(st.integers(0, t.ndim - 1))
    size = t.shape[axis]
    before = (slice(None),) * axis
    if kind == "select" and size:
        i = draw(st.integers(0, size - 1))
        return t[(*before, i)], place[(*before, i)]
    start, stop = draw(st.integers(0, size)), draw(st.integers(0, size))
    key = (*before, slice(start, stop, draw(st.integers(1, 2))))
    return t[key], place[key]


def _operand(draw: Draw, tensors: list[tp.Tensor], memory: Memory, w: tp.Tensor, k: int) -> tuple[Any, Any]:
    """A right-hand side for a write to tensor `k`, in both worlds."""
    kind = draw(st.sampled_from(["number", "weight", "tensor"]))
    if kind == "number":
        number = draw(st.sampled_from([0.5, -0.75, 1.25]))
        return number, number
    shape = memory.places[k].shape
    others = [j for j, place in enumerate(memory.places) if place.shape == shape]
    if kind == "tensor" and others:
        j = draw(st.sampled_from(others))
        return tensors[j] * 0.5, memory.read(j) * 0.5
    value = w[draw(st.integers(0, 3))] * 1.0
    return value, value


def _write(draw: Draw, tensors: list[tp.Tensor], memory: Memory, w: tp.Tensor) -> None:
    k = draw(st.integers(0, len(tensors) - 1))
    own, reference = _operand(draw, tensors, memory, w, k)
    before, kind = (
        memory.read(k),
        draw(st.sampled_from(["mul", "add", "sub", "set", "div", "square", "itself"])),
    )
    if kind == "mul":
        tensors[k].mul_(own)
        memory.write(k, before * reference)
    elif kind == "add":
        tensors[k].add_(own)
        memory.write(k, before + reference)
    elif kind == "sub":
        view = tensors[k]
        view -= own
        memory.write(k, before - reference)
    elif kind == "set":
        tensors[k][...] = own
        memory.write(k, reference if isinstance(reference, tp.Tensor) else tp.full_like(before, reference))
    elif kind == "div":
        tensors[k].div_(0.75)
        memory.write(k, before / 0.75)
    elif kind == "square":
        tensors[k].pow_(2.0)
        memory.write(k, before * before)
    else:
        tensors[k].mul_(tensors[k])
        memory.write(k, before * before)


def _run(
    draw: Draw, x: tp.Tensor, w: tp.Tensor, base: str
) -> tuple[list[tp.Tensor], Memory, tp.Tensor, tp.Tensor]:
    root = BASES[base](x)
    place = np.arange(12).reshape(4, 3) if base == "turned" else np.arange(12).reshape(root.shape)
    if base == "turned":
        memory = Memory((x.reshape((3, 4)) * 0.8).T.reshape((-1,)), [place])
    else:
        memory = Memory(x * 0.8, [place])
    tensors = [root]
    loss = reference = tp.sum(x) * 0.0
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["view", "view", "write", "write", "read", "forget"]))
        k = draw(st.integers(0, len(tensors) - 1))
        if kind == "view":
            view, place = _view(draw, tensors[k], memory.places[k])
            tensors.append(view)
            memory.places.append(place)
        elif kind == "write":
            _write(draw, tensors, memory, w)
        elif kind == "read":
            copy, value = tensors[k].clone(), memory.read(k)
            loss, reference = loss + tp.sum(copy * copy), reference + tp.sum(value * value)
        elif len(tensors) > 1:
            del tensors[k], memory.places[k]
    for k, t in enumerate(tensors):
        value = memory.read(k)
        loss = loss + tp.sum(tp.sin(t) * (k + 1.0))
        reference = reference + tp.sum(tp.sin(value) * (k + 1.0))
    return tensors, memory, loss, reference


def _close(a: tp.Tensor | None, b: tp.Tensor | None, like: tp.Tensor) -> None:
    left = np.zeros(like.shape) if a is None else a.detach().numpy()
    right = np.zeros(like.shape) if b is None else b.detach().numpy()
    np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9 * max(1.0, float(np.abs(right).max())))


@pytest.mark.parametrize("base", sorted(BASES))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_views_and_writes_give_the_values_and_gradients_of_functional_code(base: str, data: Any) -> None:
    """6.13: random programs of views and writes in place, first and second derivatives."""
    rng = np.random.default_rng(0)
    x = tp.from_numpy(rng.uniform(0.5, 1.5, 12)).clone().requires_grad_()
    w = tp.from_numpy(rng.uniform(0.5, 1.0, 4)).clone().requires_grad_()
    tensors, memory, loss, reference = _run(data.draw, x, w, base)
    for k, t in enumerate(tensors):
        np.testing.assert_allclose(
            t.detach().numpy(), memory.read(k).detach().numpy(), rtol=1e-12, atol=1e-12
        )
    own = tp.autograd.grad(loss, [x, w], create_graph=True, allow_unused=True)
    expected = tp.autograd.grad(reference, [x, w], create_graph=True, allow_unused=True)
    plain = tp.autograd.grad(loss, [x, w], retain_graph=True, allow_unused=True)
    for a, b, c, like in zip(own, expected, plain, (x, w), strict=True):
        _close(a, b, like)
        _close(c, b, like)
    first = [tp.sum(g * g) for g in own if g is not None and g.requires_grad]
    second = [tp.sum(g * g) for g in expected if g is not None and g.requires_grad]
    if first and len(first) == len(second):
        for a, b, like in zip(
            tp.autograd.grad(sum(first[1:], first[0]), [x, w], allow_unused=True),
            tp.autograd.grad(sum(second[1:], second[0]), [x, w], allow_unused=True),
            (x, w),
            strict=True,
        ):
            _close(a, b, like)


class _NoStrategies:
    """In place of `hypothesis.strategies` where all is drawn: making one writes to a cache of its own."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


@pytest.mark.thread_unsafe(reason="it puts something else in the place of a global of this module")
@settings(max_examples=60, deadline=None)
@given(data=st.data(), base=st.sampled_from(sorted(BASES)))
def test_compiled_views_and_writes_give_the_values_and_gradients_of_functional_code(
    data: Any, base: str
) -> None:
    """A8: the same programs inside of a compiled training region, beside the reference in the same region."""
    rng = np.random.default_rng(0)
    x = tp.from_numpy(rng.uniform(0.5, 1.5, 12)).clone().requires_grad_()
    w = tp.from_numpy(rng.uniform(0.5, 1.0, 4)).clone().requires_grad_()
    drawn: list[Any] = []

    def draw(strategy: Any) -> Any:
        drawn.append(data.draw(strategy))
        return drawn[-1]

    def program(x: tp.Tensor, w: tp.Tensor) -> Any:
        # What was drawn once, for a compiled function cannot advance what hypothesis draws from.
        again = iter(drawn)
        return _run(lambda _: next(again), x, w, base)[2:]

    _run(draw, x, w, base)
    with mock.patch.dict(globals(), st=_NoStrategies()):
        loss, reference = tp.compile(program)(x, w)
    np.testing.assert_allclose(loss.item(), reference.item(), rtol=1e-12)
    own = tp.autograd.grad(loss, [x, w], allow_unused=True, retain_graph=True)
    expected = tp.autograd.grad(reference, [x, w], allow_unused=True)
    for a, b, like in zip(own, expected, (x, w), strict=True):
        _close(a, b, like)
