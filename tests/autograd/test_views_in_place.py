"""Writes in place through views, and views that are read after a write: exact numbers, lifetimes, what is refused."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from leaves import leaf
from tensorplay import Tensor, _native, library
from tensorplay.autograd import Function
from tensorplay.errors import AutogradError, InvalidValueError


def grads(loss: Tensor, *inputs: Tensor) -> list[Any]:
    return [g.tolist() for g in tp.autograd.grad(loss, list(inputs), retain_graph=True)]


def refused(code: str, call: Callable[[], Any]) -> None:
    with pytest.raises(AutogradError) as e:
        call()
    assert e.value.code == code


def test_a_write_through_a_view_reaches_the_gradient_of_its_base() -> None:
    """6.13: `y[0].mul_(2)`, then y."""
    x = leaf(1.0, 2.0, 3.0)
    y = x * 1.0
    y[0].mul_(2.0)
    assert y.tolist() == [2.0, 2.0, 3.0]
    assert y.grad_fn.name() == "write_through_view"
    assert grads((y * tp.tensor([1.0, 10.0, 100.0])).sum(), x) == [[2.0, 10.0, 100.0]]


@pytest.mark.parametrize(
    ("write", "of_x", "of_w"),
    [
        (lambda v, w: v.mul_(w), [1.0, 5.0, 7.0], [4.0, 9.0]),
        (lambda v, w: v.add_(w), [1.0, 2.0, 3.0], [2.0, 3.0]),
        (lambda v, w: v.sub_(w), [1.0, 2.0, 3.0], [-2.0, -3.0]),
        (lambda v, w: v.copy_(w), [1.0, 0.0, 0.0], [2.0, 3.0]),
        (lambda v, w: v.fill_(3.0).add_(w), [1.0, 0.0, 0.0], [2.0, 3.0]),
        (lambda v, w: v.zero_().add_(w), [1.0, 0.0, 0.0], [2.0, 3.0]),
        (lambda v, w: v.mul_(v).mul_(w), [1.0, 2 * 2.0 * 2.0 * 2.5, 3 * 2 * 3.0 * 7 / 3], [8.0, 27.0]),
    ],
)
def test_every_kind_of_write_through_a_view(write: Any, of_x: list[float], of_w: list[float]) -> None:
    """6.13: with y = x, v = y[1:] and loss = sum(y * [1, 2, 3])."""
    x, w = leaf(1.0, 2.0, 3.0), leaf(2.5, 7.0 / 3)
    y = x * 1.0
    write(y[1:], w)
    own = tp.autograd.grad((y * tp.tensor([1.0, 2.0, 3.0])).sum(), [x, w])
    np.testing.assert_allclose(own[0].numpy(), of_x, rtol=1e-6)
    np.testing.assert_allclose(own[1].numpy(), of_w, rtol=1e-6)


def test_assignment_by_key_is_recorded() -> None:
    """6.13: a number, a tensor, a slice with a step, a negative step, an array, a mask."""
    x, w = leaf(1.0, 2.0, 3.0, 4.0), leaf(5.0, 6.0)
    y = x * 1.0
    y[0] = 2.0
    y[1:3] = w
    assert grads((y * y).sum(), x, w) == [[0.0, 0.0, 0.0, 8.0], [10.0, 12.0]]
    y = x * 1.0
    y[::-2] = w
    assert y.tolist() == [1.0, 6.0, 3.0, 5.0]
    assert grads((y * tp.tensor([1.0, 2.0, 3.0, 4.0])).sum(), x, w) == [[1.0, 0.0, 3.0, 0.0], [4.0, 2.0]]
    y = x * 1.0
    y[1:][[0, 2]] = w
    y[tp.tensor([True, False, False, False])] = w[0]
    assert grads((y * tp.tensor([1.0, 2.0, 3.0, 4.0])).sum(), x, w) == [[0.0, 0.0, 3.0, 0.0], [3.0, 4.0]]
    y = x * 1.0
    y[1:3] += w
    y[...] *= 2.0
    assert grads(y.sum(), x, w) == [[2.0] * 4, [2.0, 2.0]]


def test_one_view_is_written_to_and_the_others_are_read() -> None:
    """6.13: siblings, overlapping or not, follow the base."""
    x = leaf(1.0, 2.0, 3.0, 4.0)
    y = x * 1.0
    left, middle, right = y[:2], y[1:3], y[2:]
    middle.mul_(10.0)
    assert left.grad_fn.name() == "view_of_base"
    assert (left.tolist(), right.tolist()) == ([1.0, 20.0], [30.0, 4.0])
    assert grads(left.sum(), x) == [[1.0, 10.0, 0.0, 0.0]]
    assert grads(right.sum() * 2.0, x) == [[0.0, 0.0, 20.0, 2.0]]
    assert grads(middle.sum(), x) == [[0.0, 10.0, 10.0, 0.0]]
    left.mul_(right)
    assert y.tolist() == [30.0, 80.0, 30.0, 4.0]
    assert grads(y.sum(), x) == [[30.0, 40.0, 10 * 1.0 + 10.0, 20.0 + 1.0]]


def test_an_older_view_follows_a_write_to_its_base() -> None:
    """6.13: views of views, turned, after the base was written to."""
    x = tp.from_numpy(np.arange(1.0, 7.0)).requires_grad_()
    y = x.reshape((2, 3)) * 1.0
    view = y.T[1:]
    deeper = view[:, 1]
    y.mul_(y)
    assert deeper.tolist() == [25.0, 36.0]
    assert grads(deeper.sum(), x) == [[0.0, 0.0, 0.0, 0.0, 10.0, 12.0]]
    assert grads(view.sum(), x) == [[0.0, 4.0, 6.0, 0.0, 10.0, 12.0]]


def test_views_whose_base_is_gone_follow_each_other() -> None:
    """6.13: three parts of one result, one of them scaled."""
    x = leaf(1.0, 2.0, 3.0)
    q, k, v = [(x * 2.0).reshape((3, 1))[i] for i in range(3)]
    parts = (x * 2.0).reshape((3, 1))
    q, k, v = parts[0], parts[1], parts[2]
    del parts
    q.mul_(0.5)
    assert grads((q + k + v).sum(), x) == [[1.0, 2.0, 2.0]]
    for part in (x * 2.0).split(1):
        part.mul_(3.0)
    first, second, _ = (x * 2.0).split(1)
    first.mul_(3.0)
    assert grads((first * second).sum(), x) == [[2.0 * 3 * 4.0, 2.0 * 6.0, 0.0]]


def test_an_expanded_view_follows_and_is_not_written_to() -> None:
    """7: writing to elements that share a place is refused; their gradients add up."""
    x = leaf(1.0, 2.0)
    y = x * 1.0
    wide = tp.broadcast_to(y, (3, 2))
    y.mul_(2.0)
    assert grads(wide.sum(), x) == [[6.0, 6.0]]
    with pytest.raises(InvalidValueError) as e:
        wide.mul_(2.0)
    assert e.value.code == "TP1602"
    wide[1].mul_(5.0)
    assert y.tolist() == [10.0, 20.0]
    assert grads(wide.sum(), x) == [[30.0, 30.0]]


@pytest.mark.parametrize("dtype", [tp.float16, tp.bfloat16, tp.float32, tp.float64])
def test_small_and_empty_views(dtype: Any) -> None:
    """6.13: 0-d, zero-size, one element; every float dtype."""
    x = tp.tensor([1.0, 2.0], dtype=dtype).requires_grad_()
    y = x * 1.0
    y[1:1].mul_(3.0)
    y[0].mul_(4.0)
    y[None, :, None].add_(1.0)
    scalar = x[1] * 1.0
    scalar[...].mul_(5.0)
    assert grads(y.sum() + scalar, x) == [[4.0, 6.0]]
    none = (x * 1.0)[:0]
    none[:0].mul_(2.0)
    assert grads(none.sum() + x.sum(), x) == [[1.0, 1.0]]


def test_plain_memory_gets_a_history_through_a_view() -> None:
    """6.13: buffers that are filled part by part."""
    x = leaf(1.0, 2.0)
    rows = tp.zeros((3, 2))
    for i in range(3):
        rows[i].add_(x * (i + 1.0))
    rows[0, 1] = x[0]
    assert rows.requires_grad
    assert grads(rows.sum(), x) == [[7.0, 5.0]]
    out = tp.ones((4,))
    out[1:3] += x
    out[0] *= x[1]
    assert grads((out * tp.tensor([1.0, 10.0, 100.0, 1000.0])).sum(), x) == [[10.0, 101.0]]


def test_second_derivatives_go_through_writes() -> None:
    """11: create_graph, twice."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * x
        y[1:].mul_(w)
        y[:2].mul_(y[1:])
        return y

    rng = np.random.default_rng(0)
    x = tp.from_numpy(rng.uniform(0.5, 1.5, 3)).clone().requires_grad_()
    w = tp.from_numpy(rng.uniform(0.5, 1.5, 2)).clone().requires_grad_()
    assert tp.autograd.gradcheck(f, (x, w))
    assert tp.autograd.gradgradcheck(f, (x, w))


def test_a_graph_with_writes_is_retained() -> None:
    """6: two passes give the same, and a gradient that the user holds is not written to."""
    x = leaf(1.0, 2.0)
    y = x * 1.0
    y[0].mul_(3.0)
    y[1].mul_(5.0)
    given = tp.tensor([1.0, 1.0])
    for n in (1.0, 2.0):
        y.backward(given, retain_graph=True)
        assert x.grad.tolist() == [3.0 * n, 5.0 * n]
        assert given.tolist() == [1.0, 1.0]


def test_hooks_and_kept_gradients_are_of_the_new_value() -> None:
    """6: hooks on what was written to see the gradient of the present value."""
    x = leaf(1.0, 2.0)
    y = x * 1.0
    y.retain_grad()
    view = y[:1]
    view.retain_grad()
    view.mul_(4.0)
    seen: list[Any] = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    view.register_hook(lambda g: g * 10.0)
    (y * tp.tensor([1.0, 2.0])).sum().backward()
    assert seen == [[1.0, 2.0]]
    assert y.grad.tolist() == [1.0, 2.0]
    assert view.grad.tolist() == [10.0]
    assert x.grad.tolist() == [40.0, 2.0]


def test_a_saved_value_that_a_view_was_written_over_is_noticed() -> None:
    """7: views share the version counter."""
    x = leaf(1.0, 2.0)
    y = x * 1.0
    z = y * y
    y[0].mul_(2.0)
    refused("TP3003", z.sum().backward)
    assert grads((y * y).sum(), x) == [[8.0, 4.0]]


def test_writes_under_no_grad_are_noticed() -> None:
    """7: through a view, a base or a detach; every member of the family is behind."""
    for write in (lambda y, v: y.mul_(2.0), lambda y, v: v.mul_(2.0), lambda y, v: y[1].fill_(0.0)):
        y = leaf(1.0, 2.0) * 1.0
        view = y[:1]
        view.mul_(3.0)
        with tp.no_grad():
            write(y, view)
        refused("TP3011", y.sum)
        refused("TP3011", view.sum)
        refused("TP3011", lambda y=y: y[0].mul_(2.0))
    y = leaf(1.0, 2.0) * 1.0
    y.detach()[0].mul_(2.0)
    refused("TP3011", y.sum)


def test_leaves_and_their_views_are_not_written_to() -> None:
    """6.13: a leaf's value stays under its gradient."""
    x = leaf(1.0, 2.0)
    for view in (x, x[0], x[...], x[None].T):
        refused("TP3010", lambda view=view: view.mul_(2.0))

    def assign() -> None:
        x[0] = 1.0

    refused("TP3010", assign)
    assert x.tolist() == [1.0, 2.0]


def test_memory_that_others_share_without_knowing_is_not_written_to() -> None:
    """6.13: a third view of plain memory, a detach of a recorded tensor."""
    w = leaf(5.0)
    buffer = tp.zeros((3,))
    one, other = buffer[:1], buffer[1:2]
    refused("TP3019", lambda: one.copy_(w))
    refused("TP3019", lambda: buffer.add_(w))
    assert buffer.tolist() == [0.0, 0.0, 0.0]
    del other
    one.copy_(w)
    assert grads(buffer.sum(), w) == [[1.0]]
    y = w * 1.0
    refused("TP3019", lambda: y.detach().copy_(w))
    refused("TP3019", lambda: y.detach()[:1].copy_(w))


def test_a_view_made_under_no_grad_is_not_written_to_by_recorded_values() -> None:
    """6.13: such a view is like a detach: alone it is memory of its own."""
    y = leaf(1.0, 2.0) * 1.0
    with tp.no_grad():
        view = y[:1]
    refused("TP3019", lambda: view.copy_(leaf(3.0) * 2.0))
    assert y.tolist() == [1.0, 2.0]
    del y
    w = leaf(3.0)
    view.copy_(w * 2.0)
    assert grads(view.sum(), w) == [[2.0]]


def test_a_view_from_an_op_with_its_own_rule_is_not_written_to(ns: str) -> None:
    """6.13: the write would go past the rule."""
    f = library.define(f"{ns}::f", "(Tensor(a) x) -> Tensor(a)")
    f.register_kernel("cpu", lambda x: x[:1])
    f.register_autograd(lambda ctx, grad: tp.broadcast_to(grad * 100.0, (2,)))
    y = leaf(1.0, 2.0) * 1.0
    view = f(y)
    refused("TP3025", lambda: view.mul_(2.0))
    y.mul_(3.0)
    refused("TP3025", view.sum)


def test_a_function_may_write_to_a_view() -> None:
    """6.8: mark_dirty on a view gives its base the Function's history."""

    class Cube(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.clone())
            x.copy_(x * x * x)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * x * x * 3.0

    x = leaf(1.0, 2.0, 3.0)
    y = x * 1.0
    other = y[::2]
    view = y[1:]
    assert Cube.apply(view) is view
    assert y.tolist() == [1.0, 8.0, 27.0]
    assert grads(y.sum(), x) == [[1.0, 12.0, 27.0]]
    assert grads(view.sum(), x) == [[0.0, 12.0, 27.0]]
    assert grads(other.sum(), x) == [[1.0, 0.0, 27.0]]


def test_a_detach_of_a_detach_stays_out() -> None:
    """7: detach shares memory and version, and no history."""
    x = leaf(1.0, 2.0)
    y = x * 1.0
    apart = y.detach()[:1].detach()
    y[0].mul_(3.0)
    assert apart.tolist() == [3.0]
    assert not apart.requires_grad
    assert grads(y.sum(), x) == [[3.0, 1.0]]


def test_a_view_keeps_its_base_and_no_more() -> None:
    """6: a cycle of base, view, hook and node is collected; without one nothing waits for the collector."""
    x = leaf(1.0, 2.0)
    gc.collect()
    gc.disable()
    try:
        before = _native.live_nodes()
        y = x * 1.0
        view = y[:1]
        view.mul_(2.0)
        view.div_(leaf(2.0))
        gone = weakref.ref(y), weakref.ref(view)
        del y, view
        assert [r() for r in gone] == [None, None]
        assert _native.live_nodes() == before
    finally:
        gc.enable()
    held: list[Tensor] = []
    y = x * 1.0
    y.register_hook(lambda g, held=held: None)
    view, other = y[:1], y[1:]
    view.mul_(2.0)
    held += [y, view, other, y[:]]
    gone = [weakref.ref(t) for t in held]
    del y, view, other, held
    gc.collect()
    assert [r() for r in gone] == [None] * 4


@pytest.mark.thread_unsafe(reason="counts the nodes of the process")
def test_a_tensor_that_its_own_new_history_saved_is_collected() -> None:
    """G8: y is saved, then written to by what was computed from it: a cycle without a Python object."""
    x = leaf(1.0, 2.0)

    def whole() -> None:
        y = x * 1.0
        y.add_(y * y)

    def through() -> None:
        y = x * 1.0
        y[:1] = (y[1:] * y[1:])[:1]

    for f in (whole, through):
        gc.collect()
        before = _native.live_nodes()
        for _ in range(100):
            f()
        gc.collect()
        assert _native.live_nodes() <= before + 1


def test_many_writes_cost_what_they_write() -> None:
    """6: 20,000 writes through views of 20,000 elements, forward and backward, without recursion."""
    n = 20_000
    scale = leaf(2.0)
    y = tp.ones((n,)) * leaf(1.0)
    for i in range(n):
        y[i : i + 1].mul_(scale)
    assert grads(y.sum(), scale) == [[float(n)]]
    del y


@pytest.mark.thread_unsafe(reason="starts threads of its own")
def test_threads_read_views_of_one_base() -> None:
    """11: views that are behind grow their histories at once."""
    x = leaf(*[1.0] * 64)
    y = x * 1.0
    views = [y[i : i + 2] for i in range(60)]
    y[:].mul_(3.0)
    out: list[Any] = []

    def work() -> None:
        out.extend(tuple(tp.autograd.grad(v.sum(), [x])[0].tolist()) for v in views)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(out) == 240
    assert {sum(row) for row in out} == {6.0}


def test_compiled_training_regions_agree_or_refuse() -> None:
    """A8: views and writes inside of a compiled function; what it reaches from outside is refused."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * 1.0
        left, right = y[:2], y[1:]
        left.mul_(w)
        right[1] = w[0] * 3.0
        y += 1.0
        return (left * left).sum() + right.sum()

    x, w = leaf(1.0, 2.0, 3.0), leaf(4.0, 5.0)
    eager = grads(f(x, w), x, w)
    compiled = tp.compile(f)
    for _ in range(2):
        assert grads(compiled(x, w), x, w) == eager
    y = x * 1.0
    inside = tp.compile(lambda: y[:1].mul_(2.0).sum() + y.sum())
    with pytest.raises(tp.errors.TensorPlayError):
        inside()
    outside = x * 1.0
    with pytest.raises(tp.errors.CaptureError) as e:
        tp.compile(lambda t: t[:1].mul_(2.0).sum())(outside)
    assert e.value.code == "TP4034"


def test_a_view_that_a_compiled_function_returned_is_not_written_to() -> None:
    """A8: its gradient is that of the compiled region."""
    x = leaf(1.0, 2.0)
    y = x * 1.0
    view = tp.compile(lambda t: t[:1])(y)
    assert view.tolist() == [1.0]
    if view.requires_grad:
        refused("TP3025", lambda: view.mul_(2.0))
