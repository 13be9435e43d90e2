"""Random graphs under a collector that runs all the time: gradients stay right, and nothing is left."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import Tensor, _native, library
from tensorplay.autograd import Function, grad


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_and_cycles(ns: str, seed: int) -> None:
    """G8: each value is a product of powers of two and the leaf, so that its gradient is known."""
    rng = random.Random(seed)
    boxes: list[list[Any]] = []

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*(rng.choice([inputs[0], output, None]) for _ in range(2)))
        box: list[Any] = [output, inputs[0], ctx]
        if rng.random() < 0.5:
            ctx.box = box
        if boxes and rng.random() < 0.3:
            ctx.other = rng.choice(boxes)
        if rng.random() < 0.2:
            boxes.append(box)

    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")

    def backward(ctx, g):
        for t in ctx.saved_tensors:
            assert t is None or t.dtype == tp.float64
        return g * 2

    f.register_autograd(backward, setup_context=setup)
    before = _native.live_nodes()
    threshold = gc.get_threshold()
    gc.set_threshold(7, 2, 2)
    try:
        for _ in range(60):
            x = tp.tensor([1.0], dtype=tp.float64, requires_grad=True)
            pool: list[tuple[Tensor, float]] = [(x, 1.0)]
            for _ in range(rng.randrange(1, 25)):
                t, slope = rng.choice(pool)
                kind = rng.randrange(4)
                if kind == 0:
                    pool.append((f(t), 2 * slope))
                elif kind == 1:
                    other, more = rng.choice(pool)
                    pool.append((t + other, slope + more))
                elif kind == 2:
                    pool.append((t * 3.0, 3 * slope))
                elif t is not x:
                    t.register_hook(lambda g, t=t: None if t is not None else g)
                if len(pool) > 6:
                    pool.pop(rng.randrange(1, len(pool)))
            if rng.random() < 0.3:
                boxes.clear()
            t, slope = pool[-1]
            (g,) = tp.autograd.grad(t.sum(), x, retain_graph=rng.random() < 0.5)
            assert g.item() == slope
    finally:
        gc.set_threshold(*threshold)
    boxes.clear()
    del x, t, g, pool, other
    # Hooks come late here, to nodes that others lead to unseen: what those hold goes one collection later.
    for _ in range(5):
        gc.collect()
    assert _native.live_nodes() == before


class Scale(Function):
    """In a cycle with its own output and context."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k, ctx.me, ctx.y = k, ctx, x * k
        return ctx.y

    @staticmethod
    def backward(ctx, g):
        assert len(ctx.saved_tensors) == 1
        return g * ctx.k, None


class Pair(Function):
    @staticmethod
    def forward(a, b):
        return a + b, a - b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx, g, h):
        return g + h, g - h


class Write(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2.0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        assert len(ctx.saved_tensors) == 1
        return g * 2.0


def program(seed: int, x: Tensor, *, by_functions: bool) -> Tensor:
    """A random program, by Functions or by the operations that they stand for."""
    rng = random.Random(seed)
    pool = [x * 1.0, x + 1.0]
    for _ in range(rng.randrange(3, 15)):
        kind, a, b = rng.randrange(3), rng.choice(pool), rng.choice(pool)
        if kind == 0:
            pool.append(Scale.apply(a, 1.5) if by_functions else a * 1.5)
        elif kind == 1:
            pool.extend(Pair.apply(a, b) if by_functions else (a + b, a - b))
        else:
            own = a * 1.0
            pool.append(Write.apply(own) if by_functions else own.mul_(2.0))
    return sum((t.sum() for t in pool), tp.zeros([]))


def test_random_programs_of_functions() -> None:
    """G8: values and gradients are those of the operations, retained graphs and second passes included."""
    before = _native.live_nodes()
    threshold = gc.get_threshold()
    gc.set_threshold(7, 2, 2)
    try:
        for seed in range(300):
            x = tp.tensor([1.0, 2.0], requires_grad=True)
            ours, plain = (program(seed, x, by_functions=f) for f in (True, False))
            assert ours.tolist() == plain.tolist()
            (want,) = grad(plain, x)
            (found,) = grad(ours, x, retain_graph=True)
            (again,) = grad(ours, x, create_graph=seed % 2 == 0)
            assert found.tolist() == again.tolist() == want.tolist(), seed
    finally:
        gc.set_threshold(*threshold)
    del x, ours, plain, again
    gc.collect()
    assert _native.live_nodes() == before
