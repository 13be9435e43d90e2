"""``fullgraph=False``: gradients through segments, places of the tape in between, and random programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from segment_programs import leaves, program
from segmented import Function, agrees, plain, vector
from tensorplay import Tensor
from tensorplay.errors import AutogradError


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


def test_a_second_derivative_is_refused_and_never_wrong() -> None:
    """5.segments: as through every compiled region."""

    def fn(w: Tensor) -> Tensor:
        y = tp.sin(w) * w
        str(y)
        (first,) = tp.autograd.grad(tp.sum(y * y), [w], create_graph=True)
        return tp.autograd.grad(tp.sum(first), [w])[0]

    with pytest.raises(AutogradError) as caught:
        tp.compile(fn, fullgraph=False)(vector().requires_grad_())
    assert caught.value.code == "TP3022"


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


# ---- random programs ----


def _run(fn: Function, seed: int) -> tuple[list[Any], Any]:
    """Every value that a program gives or reads, and the gradient of its leaf."""
    tp.manual_seed(seed)
    x, w = leaves(seed)
    log: list[Any] = []
    loss, last = fn(seed, x, w, log)
    if loss.requires_grad:
        loss.backward()
    values = [plain(v) if isinstance(v, Tensor) else v for v in [loss, last, *log]]
    return values, None if w.grad is None else w.grad.tolist()


@pytest.mark.thread_unsafe(reason="the generator is the process's")
@pytest.mark.parametrize("block", range(6))
def test_random_programs_with_breaks_at_random_are_eagers(block: int) -> None:
    """5.segments: values to the bit, gradients but for the order of their sums."""
    for seed in range(25 * block, 25 * block + 25):
        compiled = tp.compile(program, fullgraph=False)
        expected, gradient = _run(program, seed)
        for _ in range(2):
            got, own = _run(compiled, seed)
            assert repr(got) == repr(expected), seed
            assert (own is None) == (gradient is None)
            if gradient is not None:
                scale = max(1.0, float(np.nanmax(np.abs(gradient), initial=0.0)))
                np.testing.assert_allclose(own, gradient, rtol=1e-5, atol=1e-6 * scale, err_msg=str(seed))
