"""Grad modes as context managers and decorators, and the entry points `grad` and `backward`."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tensorplay as tp
from leaves import leaf
from tensorplay import autograd
from tensorplay.errors import ArgumentError, AutogradError


def test_context_managers_nest_and_restore() -> None:
    assert tp.is_grad_enabled()
    quiet = tp.no_grad()
    with quiet:
        assert not tp.is_grad_enabled()
        with tp.enable_grad():
            assert tp.is_grad_enabled()
            with quiet:
                assert not tp.is_grad_enabled()
            assert tp.is_grad_enabled()
        assert not tp.is_grad_enabled()
    assert tp.is_grad_enabled()
    with pytest.raises(KeyError), tp.no_grad():
        raise KeyError
    assert tp.is_grad_enabled()


def test_decorators_with_and_without_parentheses() -> None:
    @tp.no_grad()
    def a(x, *, k=1):
        """Doc."""
        return tp.is_grad_enabled(), k

    @tp.no_grad
    def b():
        return tp.is_grad_enabled()

    @tp.enable_grad
    def c():
        return tp.is_grad_enabled()

    assert a(1, k=2) == (False, 2)
    assert (a.__name__, a.__doc__) == ("a", "Doc.")
    assert b() is False
    with tp.no_grad():
        assert c() is True
    assert tp.is_grad_enabled()


def test_set_grad_enabled_acts_at_once_and_as_a_context() -> None:
    mode = tp.set_grad_enabled(False)
    assert not tp.is_grad_enabled()
    tp.set_grad_enabled(True)
    assert tp.is_grad_enabled()
    del mode
    with tp.set_grad_enabled(False):
        assert not tp.is_grad_enabled()
    assert tp.is_grad_enabled()

    @tp.set_grad_enabled(False)
    def f():
        return tp.is_grad_enabled()

    assert tp.is_grad_enabled()
    assert f() is False


def test_generators_switch_at_every_step() -> None:
    @tp.no_grad()
    def steps():
        got = yield tp.is_grad_enabled()
        try:
            yield (got, tp.is_grad_enabled())
        except ValueError:
            yield ("caught", tp.is_grad_enabled())
        return 5

    g = steps()
    assert next(g) is False
    assert tp.is_grad_enabled()
    assert g.send("x") == ("x", False)
    assert g.throw(ValueError()) == ("caught", False)
    with pytest.raises(StopIteration) as e:
        next(g)
    assert e.value.value == 5
    assert tp.is_grad_enabled()


def test_coroutines_are_refused() -> None:
    async def f(): ...

    with pytest.raises(ArgumentError, match="grad mode belongs to the thread"):
        tp.no_grad()(f)


def test_modes_belong_to_the_thread() -> None:
    seen = []
    with tp.no_grad():
        thread = threading.Thread(target=lambda: seen.append(tp.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_grad() -> None:
    x, y = leaf(2.0, 3.0), leaf(5.0, 7.0)
    out = x * y
    gx, gy = autograd.grad(out, [x, y], tp.tensor([1.0, 10.0]))
    assert (gx.tolist(), gy.tolist()) == ([5.0, 70.0], [2.0, 30.0])
    assert x.grad is None
    (g,) = autograd.grad((x * 3.0).sum(), x)
    assert g.tolist() == [3.0, 3.0]


def test_grad_of_an_unused_input() -> None:
    x, unused = leaf(1.0), leaf(1.0, 2.0)
    with pytest.raises(AutogradError):
        autograd.grad((x * 2).sum(), [x, unused])
    g, none = autograd.grad((x * 2).sum(), [x, unused], allow_unused=True)
    assert (g.tolist(), none) == ([2.0], None)
    g, zeros = autograd.grad((x * 2).sum(), [x, unused], materialize_grads=True)
    assert (g.tolist(), zeros.tolist()) == ([2.0], [0.0, 0.0])


def test_backward_of_several() -> None:
    x = leaf(2.0)
    autograd.backward([x * 3.0, (x * x).sum()], [tp.tensor([10.0]), None])
    assert x.grad.tolist() == [34.0]
    with pytest.raises(ArgumentError, match="grad_tensors has length 1 for 2 outputs"):
        autograd.backward([x * 1, x * 1], [None])


def test_detect_anomaly() -> None:
    x = leaf(0.0)
    y = tp.sqrt(x) * 0.0
    with pytest.raises(AutogradError, match=r"NaN|nan"), autograd.detect_anomaly():
        y.sum().backward()


def test_anomaly_mode_tells_who_gave_the_nan() -> None:
    """6.17: a hook, also one on a leaf, whose gradient no node looks at, or the caller; not the node that it went to."""
    nan = float("nan")
    x = leaf(1.0, 2.0)
    y = x * 3.0
    handle = y.register_hook(lambda g: g * nan)
    with autograd.detect_anomaly():
        with pytest.raises(AutogradError, match=r"tp::mul.Scalar: a hook gave a NaN for its gradient"):
            y.sum().backward()
        handle.remove()
        z = x * 3.0
        with pytest.raises(
            AutogradError, match=r"tp::mul.Scalar: the gradient given for output 0 holds a NaN"
        ) as e:
            z.backward(tp.tensor([1.0, nan]))
        assert e.value.code == "TP3016"
        x.register_hook(lambda g: g * nan)
        with pytest.raises(AutogradError, match=r"a hook gave a NaN for its gradient"):
            (x * 3.0).sum().backward()
        assert x.grad is None
    (x * 3.0).sum().backward()
    assert np.isnan(x.grad.numpy()).all()


def test_flags_are_true_or_false() -> None:
    """As words and by keyword; NumPy's bools too, and nothing else."""
    x = tp.ones([2])
    assert x.requires_grad_(requires_grad=True).requires_grad
    assert not x.requires_grad_(requires_grad=False).requires_grad
    assert x.requires_grad_(np.bool_(True)).requires_grad
    for wrong in ("yes", 1, None, 0.0, [True]):
        for call in (
            lambda wrong=wrong: x.requires_grad_(wrong),
            lambda wrong=wrong: setattr(x, "requires_grad", wrong),
        ):
            with pytest.raises(ArgumentError, match="requires_grad is True or False, got") as e:
                call()
            assert e.value.code == "TP1042"
        for name in ("create_graph", "retain_graph"):
            if wrong is not None or name == "create_graph":
                with pytest.raises(
                    ArgumentError, match=f"backward: argument '{name}' must be True or False, got"
                ):
                    (x * 2.0).sum().backward(**{name: wrong})
    with pytest.raises(ArgumentError, match="unknown keyword argument 'on'"):
        x.requires_grad_(on=True)
    with pytest.raises(ArgumentError, match="at most 1 argument, got 2"):
        x.requires_grad_(True, True)
    assert x.grad is None
    (x * 2.0).sum().backward(retain_graph=None, create_graph=np.bool_(False))
    assert x.grad.tolist() == [2.0, 2.0]
