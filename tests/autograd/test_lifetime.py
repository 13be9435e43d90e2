"""What keeps a graph alive, and what lets it go: cycles through Python objects, and everything else at once."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tensorplay as tp
from leaves import leaf
from tensorplay import Tensor, _native, library
from tensorplay.autograd import Function
from tensorplay.errors import AutogradError


@pytest.fixture(autouse=True)
def no_garbage_before() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()


def doubled(ns: str, setup: Callable[..., Any] | None) -> Any:
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_autograd(lambda ctx, g: g * 2, setup_context=setup)
    return f


def test_an_output_kept_on_ctx_is_collected(ns: str) -> None:
    """G8: 10 000 forwards with ctx.y = output and no backward leave no node."""

    def setup(ctx, inputs, output):
        ctx.y = output

    f, x = doubled(ns, setup), leaf(1.0)
    before = _native.live_nodes()
    for _ in range(10_000):
        f(x)
    gc.collect()
    assert _native.live_nodes() == before


@pytest.mark.parametrize(
    "kept",
    [lambda y: y[:1], lambda y: y[:1][:1], lambda y: y.reshape((1, 1)), lambda y: {"views": [y[None]]}],
    ids=["view", "view of a view", "reshape", "container"],
)
@pytest.mark.parametrize("saved", [False, True])
def test_a_view_of_an_output_kept_on_ctx_goes(ns: str, kept: Callable[[Tensor], Any], saved: bool) -> None:
    """G8: a view owns its base, whose history owns ctx: the collector does not see such a cycle, so there is none."""

    def setup(ctx, inputs, output):
        view = kept(output)
        if saved and isinstance(view, Tensor):
            ctx.save_for_backward(view)
        else:
            ctx.y = view

    f, x = doubled(ns, setup), leaf(1.0)
    before = _native.live_nodes()
    for _ in range(100):
        f(x)
    gc.collect()
    assert _native.live_nodes() == before


def test_views_of_a_list_of_outputs_kept_on_ctx_go(ns: str) -> None:
    """G8: every output counts, and a view made of one after the call is a view of it again."""
    contexts = []

    def setup(ctx, inputs, output):
        ctx.y = output[1][:1]
        contexts.append(weakref.ref(ctx))

    f = library.custom_op(
        f"{ns}::f", lambda x: [x * 2, x * 3], mutates_args=(), schema="(Tensor x) -> Tensor[]"
    )
    f.register_autograd(lambda ctx, g: g[0] * 2 + g[1] * 3, setup_context=setup)
    x = leaf(1.0, 2.0)
    for _ in range(10):
        y = f(x)[1]
    y[:1].mul_(10.0)
    y.sum().backward()
    assert x.grad.tolist() == [30.0, 3.0]
    del y
    gc.collect()
    assert [c for c in contexts if c() is not None] == []


def test_a_saved_output_goes_at_once_without_the_collector(ns: str) -> None:
    """G8: no cycle, so the context goes with the last tensor."""
    contexts = []

    def setup(ctx, inputs, output):
        ctx.save_for_backward(output)
        contexts.append(weakref.ref(ctx))

    f, x = doubled(ns, setup), leaf(1.0)
    gc.disable()
    try:
        before = _native.live_nodes()
        for _ in range(100):
            f(x)
        assert [c for c in contexts if c() is not None] == []
        assert _native.live_nodes() == before
    finally:
        gc.enable()


def test_a_hook_goes_with_its_tensor() -> None:
    """6.7: at once where the hook is no part of a cycle."""

    class Hook:
        def __call__(self, grad):
            return None

    gc.disable()
    try:
        hook = Hook()
        alive = weakref.ref(hook)
        y = leaf(1.0) * 2
        y.register_hook(hook)
        del hook
        assert alive() is not None
        del y
        assert alive() is None
    finally:
        gc.enable()


class Marker:
    """Something that a weak reference can watch."""


def watched_hook(t: Tensor, marker: Marker) -> Callable[[Tensor], None]:
    def hook(grad: Tensor) -> None:
        assert (t, marker) is not None

    return hook


@pytest.mark.parametrize("where", ["leaf", "output", "below"])
def test_a_hook_that_holds_its_tensor_is_collected(where: str) -> None:
    """6.7: closures over the tensor itself, or over one computed from it later."""
    marker = Marker()
    alive = weakref.ref(marker)
    x = leaf(1.0)
    if where == "leaf":
        x.register_hook(watched_hook(x, marker))
    elif where == "output":
        y = x * 2
        y.register_hook(watched_hook(y, marker))
        del y
    else:
        box: list[Any] = [marker]
        x.register_hook(lambda g: box.clear())
        box.append((x * 2) * 3)
        del box
    del x, marker
    gc.collect()
    assert alive() is None


def test_the_context_of_a_function_is_collected() -> None:
    """6.7: ctx.y = the output, and arguments of other kinds."""
    alive = []

    class Keep(Function):
        @staticmethod
        def forward(ctx, x, marker):
            alive.append(weakref.ref(marker))
            ctx.marker = marker
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2, None

    class Cycle(Function):
        @staticmethod
        def forward(x, holder):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.holder = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * 2, None

    x = leaf(1.0)
    y = Keep.apply(x, Marker())
    assert alive[0]() is not None
    del y
    assert alive[0]() is None
    before = _native.live_nodes()
    for _ in range(100):
        holder: list[Any] = []
        holder.append(Cycle.apply(x, holder))
        del holder
    gc.collect()
    assert _native.live_nodes() == before


def test_what_a_live_tensor_uses_is_not_cleared(ns: str) -> None:
    """A collection in the middle of everything changes no gradient."""

    def setup(ctx, inputs, output):
        ctx.y = output
        ctx.save_for_backward(inputs[0], output)

    f = library.custom_op(f"{ns}::f", lambda x: x * x, mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_autograd(lambda ctx, g: g * 2 * ctx.saved_tensors[0], setup_context=setup)
    x = leaf(3.0)
    inner = f(x)
    a, b = inner * inner, f(inner) + inner
    del inner
    gc.collect()
    gc.collect()
    total = (a + b).sum()
    del a, b
    gc.collect()
    total.backward(retain_graph=True)
    gc.collect()
    total.backward()
    # x^4 + x^4 + x^2, twice
    assert x.grad.tolist() == [2 * (8 * 27.0 + 6.0)]
    del total
    gc.collect()


def test_a_gradient_with_a_history_is_collected_with_its_leaf() -> None:
    """X.grad made with create_graph leads back to x."""
    before = _native.live_nodes()
    for _ in range(50):
        x = leaf(1.0, 2.0)
        (x * x * x).sum().backward(create_graph=True)
        assert x.grad.requires_grad
    (second,) = tp.autograd.grad(x.grad.sum(), x)
    gc.collect()
    assert second.tolist() == [6.0, 12.0]
    assert tp.autograd.grad((x * x).sum(), x)[0].tolist() == [2.0, 4.0]
    del x, second
    gc.collect()
    assert _native.live_nodes() == before


def test_saved_tensors_are_gone_after_backward(ns: str) -> None:
    """6.7: reading them then is an error, not an empty tuple."""
    kept = []

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        kept.append(ctx)
        assert len(ctx.saved_tensors) == 1

    f = doubled(ns, setup)
    y = f(leaf(1.0))
    with pytest.raises(AutogradError, match="until backward runs"):
        _ = kept[0].saved_tensors
    y.sum().backward()
    with pytest.raises(AutogradError, match="freed") as e:
        _ = kept[0].saved_tensors
    assert e.value.code == "TP3004"


def test_a_pass_inside_of_a_pass_over_one_graph(ns: str) -> None:
    """6.7: both see their own saved tensors."""
    seen = []
    depth = [0]

    def backward(ctx, g):
        before = ctx.saved_tensors
        if depth[0] < 2:
            depth[0] += 1
            tp.autograd.grad(total, x, retain_graph=True)
        (saved,) = ctx.saved_tensors
        seen.append(before[0] is saved)
        return g * saved

    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))
    x = leaf(5.0)
    total = f(x).sum()
    assert tp.autograd.grad(total, x, retain_graph=True)[0].tolist() == [5.0]
    assert seen == [True, True, True]


def test_threads_over_one_retained_graph(ns: str) -> None:
    """6.18: each thread reads what was saved, whatever the others do."""

    def backward(ctx, g):
        (first,) = ctx.saved_tensors
        total = g * first
        for _ in range(20):
            total = total * 1.0
        (second,) = ctx.saved_tensors
        assert first is second
        return total

    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))
    x = leaf(5.0)
    y = f(x).sum()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                assert tp.autograd.grad(y, x, retain_graph=True)[0].tolist() == [5.0]
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
