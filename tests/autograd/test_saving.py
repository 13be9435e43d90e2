"""Hooks on saved tensors, checkpoints, gradients of one order, anomaly mode, and the rest of the entry points."""

from __future__ import annotations

import gc
import inspect
import weakref

import pytest

import tensorplay as tp
from leaves import leaf
from messages import notes
from tensorplay import Tensor, library
from tensorplay.autograd import (
    Function,
    checkpoint,
    detect_anomaly,
    once_differentiable,
    saved_tensors_hooks,
    set_detect_anomaly,
)
from tensorplay.errors import ArgumentError, AutogradError, ContractError, SchemaError


def test_saved_tensors_are_kept_by_hooks(ns: str) -> None:
    """6.17: built-in and custom ops alike; the innermost hooks pack."""
    log: list[str] = []

    def pack(t: Tensor) -> list[float]:
        log.append("pack")
        assert not tp.is_grad_enabled()
        return t.tolist()

    def unpack(kept: list[float]) -> Tensor:
        log.append("unpack")
        return tp.tensor(kept)

    f = library.custom_op(f"{ns}::f", lambda x: x * x, mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_autograd(
        lambda ctx, g: g * 2 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    x = leaf(3.0)
    with saved_tensors_hooks(pack, unpack):
        y = f(x) * x
    assert log == ["pack"] * 3
    y.sum().backward()
    assert x.grad.tolist() == [27.0]
    assert log == ["pack"] * 3 + ["unpack"] * 3
    with saved_tensors_hooks(pack, unpack), saved_tensors_hooks(lambda t: t, lambda t: t):
        x * x
    assert log.count("pack") == 3
    x * x
    assert log.count("pack") == 3


def test_hooks_that_cannot_be_are_refused() -> None:
    """At registration, not in backward."""
    y = leaf(1.0) * 2
    with pytest.raises(ArgumentError, match="must be callable, got int") as e:
        y.register_hook(3)  # type: ignore[arg-type]
    assert e.value.code == "TP3306"
    with pytest.raises(ArgumentError, match="pack_hook must be callable"):
        saved_tensors_hooks(3, lambda t: t)  # type: ignore[arg-type]
    x = leaf(1.0)
    with saved_tensors_hooks(lambda t: t, lambda t: 3):  # type: ignore[arg-type, return-value]
        y = x * x
    with pytest.raises(ContractError, match="unpack_hook must return a Tensor, got int"):
        y.sum().backward()
    with pytest.raises(ZeroDivisionError), saved_tensors_hooks(lambda t: 1 // 0, lambda t: t):
        x * x
    with (
        pytest.raises(ContractError, match="a pack_hook wrote to the tensor that it was given") as wrote,
        saved_tensors_hooks(lambda t: t.add_(1.0), lambda t: t),
    ):
        x * x
    assert wrote.value.code == "TP3217"


def test_tensor_hooks_see_and_replace_gradients() -> None:
    """6.17: in order, removable, on leaves and on others."""
    seen = []
    x = leaf(1.0)
    y = x * 2
    first = y.register_hook(lambda g: seen.append(g.tolist()))
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: seen.append(g.tolist()))
    (y * 3).sum().backward()
    assert (seen, x.grad.tolist()) == ([[3.0], [60.0]], [60.0])
    first.remove()
    first.remove()
    y.register_hook(lambda g: "no")
    with pytest.raises(ContractError, match="must return a Tensor or None"):
        (y * 3).sum().backward()


def test_a_checkpoint_keeps_nothing_and_runs_again() -> None:
    """6.17: values, gradients of closures, of any order, with the same random numbers."""
    runs = []
    w = leaf(2.0, 3.0)

    def block(x: Tensor, k: float) -> Tensor:
        runs.append(tp.is_grad_enabled())
        h = tp.tanh(x * w)
        return h * h * k

    def gradients(call) -> list[list[float]]:
        x = tp.tensor([0.5, -0.5], requires_grad=True)
        y = call(x).sum()
        first = tp.autograd.grad(y, [x, w], create_graph=True)
        second = tp.autograd.grad(first[0].sum() + first[1].sum(), [x, w])
        return [y.tolist(), *[g.tolist() for g in (*first, *second)]]

    plain = gradients(lambda x: block(x, 3.0))
    runs.clear()
    again = gradients(lambda x: checkpoint(block, x, k=3.0))
    assert len(runs) >= 2
    assert again[0] == plain[0]
    for a, b in zip(again[1:], plain[1:], strict=True):
        assert a == pytest.approx(b, rel=1e-6)
    with tp.no_grad():
        runs.clear()
        assert not checkpoint(block, w, 1.0).requires_grad
    assert runs == [False]


def test_a_checkpoint_draws_the_same_random_numbers() -> None:
    masks = []

    def block(x: Tensor) -> Tensor:
        mask = tp.uniform([4])
        masks.append(mask.tolist())
        return x * x * mask

    x = leaf(1.0, 1.0, 1.0, 1.0)
    y = checkpoint(block, x)
    after = tp.uniform([2])
    y.sum().backward()
    assert masks[0] == masks[1]
    assert x.grad.tolist() == pytest.approx([2 * m for m in masks[0]])
    assert tp.uniform([2]).tolist() != after.tolist()


def test_a_checkpoint_that_does_something_else_is_found() -> None:
    runs: list[int] = []

    def block(x: Tensor) -> Tensor:
        runs.append(1)
        return x * x if len(runs) == 1 else x * x * x

    y = checkpoint(block, leaf(1.0))
    with pytest.raises(ContractError, match="saved other tensors") as e:
        y.sum().backward()
    assert e.value.code == "TP3308"


def test_a_backward_of_one_order_refuses_the_second(ns: str) -> None:
    """6.12."""
    f = library.custom_op(f"{ns}::f", lambda x: x * x, mutates_args=(), schema="(Tensor x) -> Tensor")

    @once_differentiable
    def backward(ctx, g):
        assert not tp.is_grad_enabled()
        return g * 2 * ctx.saved_tensors[0]

    f.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))
    x = leaf(3.0)
    f(x).sum().backward()
    assert x.grad.tolist() == [6.0]
    (g,) = tp.autograd.grad(f(x).sum(), x, create_graph=True)
    assert g.tolist() == [6.0]
    with pytest.raises(AutogradError, match="a second time") as e:
        tp.autograd.grad(g.sum(), x)
    assert e.value.code == "TP3307"


def line_of(text: str) -> int:
    lines, start = inspect.getsourcelines(test_anomaly_mode_names_the_line_of_every_failure)
    return start + next(i for i, line in enumerate(lines) if text in line)


def test_anomaly_mode_names_the_line_of_every_failure(ns: str) -> None:
    """6.17: the user's own exception, a wrong count, a written tensor, a freed graph, a NaN."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")

    def fails(ctx, g):
        raise ValueError("mine")

    here = __file__
    with detect_anomaly():
        f.register_autograd(fails)
        y = f(leaf(1.0))  # forward 1
        with pytest.raises(ValueError, match="mine") as own:
            y.sum().backward()
        assert f"{ns}::f was recorded at {here}:{line_of('# forward 1')}" in notes(own.value)
        f.register_autograd(lambda ctx, g: (g, g))
        y = f(leaf(1.0))  # forward 2
        with pytest.raises(AutogradError, match="expected 1, got 2") as count:
            y.sum().backward()
        assert f":{line_of('# forward 2')}" in notes(count.value)
        x = leaf(1.0)
        z = tp.exp(x)  # forward 3
        total = (z * 1.0).sum()
        z.detach().fill_(1.0)
        with pytest.raises(AutogradError, match="modified by an in-place") as stale:
            total.backward()
        assert f":{line_of('# forward 3')}" in notes(stale.value)
        w = (x * x).sum()  # forward 4
        w.backward()
        with pytest.raises(AutogradError, match="freed") as freed:
            w.backward()
        assert f":{line_of('# forward 4')}" in notes(freed.value)
        bad = tp.sqrt(leaf(0.0) * 0.0 - 1.0)  # forward 5
        with pytest.raises(AutogradError, match="NaN") as nan:
            bad.sum().backward()
        assert f":{line_of('# forward 5')}" in notes(nan.value)
    with detect_anomaly(check_nan=False):
        tp.sqrt(leaf(-1.0)).sum().backward()
    set_detect_anomaly(True)
    try:
        with pytest.raises(AutogradError, match="NaN"):
            tp.sqrt(leaf(-1.0)).sum().backward()
        with set_detect_anomaly(False):
            tp.sqrt(leaf(-1.0)).sum().backward()
        with pytest.raises(AutogradError, match="NaN"):
            tp.sqrt(leaf(-1.0)).sum().backward()
    finally:
        set_detect_anomaly(False)
    tp.sqrt(leaf(-1.0)).sum().backward()


def test_backward_to_some_inputs_alone() -> None:
    """As a function and as a method."""
    x, w = leaf(1.0), leaf(2.0)
    tp.autograd.backward((x * w).sum(), inputs=[x])
    assert (x.grad.tolist(), w.grad) == ([2.0], None)
    (x * w).sum().backward(inputs=w)
    assert (x.grad.tolist(), w.grad.tolist()) == ([2.0], [1.0])
    y = x * 3
    y.retain_grad()
    (y * y).sum().backward(inputs=[y])
    assert (y.grad.tolist(), x.grad.tolist()) == ([6.0], [2.0])
    for backward in (tp.autograd.backward, lambda y, inputs: y.backward(inputs=inputs)):
        for empty in ([], ()):
            with pytest.raises(ArgumentError, match="inputs is empty: name a tensor") as caught:
                backward((x * w).sum(), inputs=empty)
            assert caught.value.code == "TP3309"
    with pytest.raises(ArgumentError):
        (x * w).sum().backward(inputs=[3])  # type: ignore[list-item]


def test_a_rule_of_a_library_goes_with_it(ns: str) -> None:
    """6.16: the rule before comes back; the last registration counts; the string form is the same."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    library.register_autograd(f"{ns}::f", lambda ctx, g: g * 2)
    f.register_autograd(lambda ctx, g: g * 3)

    def gradient() -> list[float]:
        x = leaf(1.0)
        f(x).sum().backward()
        return x.grad.tolist()

    assert gradient() == [3.0]
    lib = library.Library(ns, "FRAGMENT")
    library.register_autograd(f"{ns}::f", lambda ctx, g: g * 5, lib=lib)
    x = leaf(1.0)
    recorded = f(x).sum()
    assert gradient() == [5.0]
    lib._destroy()
    assert gradient() == [3.0]
    recorded.backward()
    assert x.grad.tolist() == [5.0]
    lib = library.Library(ns, "FRAGMENT")
    library.register_autograd(f"{ns}::f", None, lib=lib)
    assert not f(leaf(1.0)).requires_grad
    lib._destroy()
    assert gradient() == [3.0]


class Scale(Function):
    @staticmethod
    def forward(ctx, x, k):
        return x * k

    @staticmethod
    def backward(ctx, g):
        return tp.ones([7]), None


def test_a_function_is_known_by_its_name() -> None:
    """In grad_fn and in the errors of its gradients."""
    x = leaf(1.0, 2.0)
    y = Scale.apply(x, 2.0)
    assert y.grad_fn.name() == "Scale"
    with pytest.raises(AutogradError, match=r"Scale: .*argument 0 has shape"):
        y.sum().backward()


def test_a_function_knows_in_forward_who_needs_a_gradient() -> None:
    seen = []

    class Look(Function):
        @staticmethod
        def forward(ctx, x, k, y):
            seen.append(ctx.needs_input_grad)
            return x * y

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.needs_input_grad)
            return g, None, None

    Look.apply(leaf(1.0), 2, tp.ones([1])).sum().backward()
    with tp.no_grad():
        Look.apply(leaf(1.0), 2, tp.ones([1]))
    assert seen == [(True, False, False)] * 2 + [(False, False, False)]


@pytest.mark.parametrize("how", ["itself", "view", "twice", "leaf"])
def test_a_function_may_return_what_it_was_given(how: str) -> None:
    """As a copy with a gradient of its own."""
    outside = leaf(1.0, 2.0)

    class Give(Function):
        @staticmethod
        def forward(ctx, x):
            if how == "twice":
                y = x * 1.0
                return y, y
            return {"itself": x, "view": x[:], "leaf": outside}[how]

        @staticmethod
        def backward(ctx, *grads):
            return sum(grads[1:], grads[0]) * 10

    x = leaf(1.0, 2.0)
    y = Give.apply(x)
    y = y[0] + y[1] if how == "twice" else y
    assert y is not x
    assert y.tolist() == ([2.0, 4.0] if how == "twice" else [1.0, 2.0])
    y.sum().backward()
    assert x.grad.tolist() == ([20.0, 20.0] if how == "twice" else [10.0, 10.0])
    assert outside.grad is None


class Double_(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2.0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * 2 * (y / y)


def test_a_function_that_writes_in_place() -> None:
    """6.8: mark_dirty; the argument itself comes back with the new history."""
    x = leaf(3.0)
    y = x * 1.0
    out = Double_.apply(y)
    assert out is y
    (y * y).sum().backward()
    assert x.grad.tolist() == [24.0]
    with pytest.raises(AutogradError, match="leaf"):
        Double_.apply(leaf(1.0))
    plain = tp.ones([1])
    assert Double_.apply(plain) is plain
    assert plain.tolist() == [2.0]


def test_mark_dirty_of_something_else(ns: str) -> None:
    """6.8."""

    class Bad(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x * 2

    with pytest.raises(ContractError, match=r"Bad\.forward") as e:
        Bad.apply(leaf(1.0))
    assert e.value.code == "TP3214"
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_autograd(lambda ctx, g: g, setup_context=lambda ctx, inputs, output: ctx.mark_dirty(inputs[0]))
    with pytest.raises(ContractError, match="mark_dirty is for"):
        f(leaf(1.0))


def test_a_checkpoint_sees_a_write_to_its_arguments() -> None:
    z = leaf(1.0, 2.0) * 1.0
    y = checkpoint(lambda a: a * a, z)
    z.add_(1.0)
    with pytest.raises(AutogradError, match="argument of a checkpoint was written to") as caught:
        y.sum().backward()
    assert caught.value.code == "TP3003"


@pytest.mark.thread_unsafe(reason="counts what a collection leaves alive")
def test_a_checkpoint_and_a_hook_that_keeps_tensors_are_collected() -> None:
    """The second run of a checkpoint, and a pack hook in a cycle with what it packed: nothing stays."""
    alive = []

    def pack_into(seen: list[Tensor]):
        def pack(t: Tensor) -> Tensor:
            seen.append(t)
            return t

        return pack

    for _ in range(20):
        x = leaf(1.0, 2.0)
        checkpoint(lambda a: tp.exp(a) * a, x).sum().backward()
        with saved_tensors_hooks(pack_into([]), lambda t: t):
            y = (x * x) * x
        alive.append(weakref.ref(x))
    del x, y
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []


@pytest.mark.parametrize("backward", [lambda ctx: None, lambda ctx, g, h: (g, h)])
def test_a_rule_that_cannot_be_called_is_refused_at_once(ns: str, backward) -> None:
    f = library.custom_op(f"{ns}::f", lambda x: x * 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    with pytest.raises(SchemaError, match="does not fit") as caught:
        f.register_autograd(backward)
    assert caught.value.code == "TP1315"
    assert caught.value.__notes__ == ["it is called with (ctx, grad)"]
    f.register_autograd(lambda *args: args[1])
