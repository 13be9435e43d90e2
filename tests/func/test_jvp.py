"""`tp.func.jvp`: the product with a tangent, by two pullbacks; what cannot be done so is an error, never zeros."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.autograd import once_differentiable
from tensorplay.errors import ArgumentError, AutogradError
from tensorplay.func import grad, jvp, vmap

X, V = tp.tensor([1.0, 2.0, 3.0]), tp.tensor([4.0, 5.0, 6.0])


def test_the_tangent_is_the_directional_derivative() -> None:
    """6.14: values against the derivative written by hand; outputs are nested as the function gives them."""
    output, tangent = jvp(lambda x, y: {"a": (x * x * y).sum(), "b": [x * 2.0]}, (X, V), (V, X))
    assert output["a"].item() == 1 * 4 + 4 * 5 + 9 * 6
    assert tangent["a"].item() == sum(2 * x * v * v + x**3 for x, v in [(1, 4), (2, 5), (3, 6)])
    assert tangent["b"][0].tolist() == [8.0, 10.0, 12.0]
    _, tangent = jvp(tp.sin, (X,), (V,))
    np.testing.assert_allclose(tangent.numpy(), np.cos([1.0, 2.0, 3.0]) * [4.0, 5.0, 6.0], rtol=1e-6)


def test_it_nests_with_grad() -> None:
    """6.14: the derivative of a directional derivative."""
    second = grad(lambda x: jvp(lambda y: (y * y * y).sum(), (x,), (V,))[1])
    assert second(X).tolist() == [6 * x * v for x, v in [(1, 4), (2, 5), (3, 6)]]


@pytest.mark.filterwarnings("ignore:vmap.*runs once per sample")
def test_custom_ops(ns: str) -> None:
    """6.14: a rule made of recorded ops works; none, one for once and one off the tape are errors."""

    def save(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    def square(name):
        return library.custom_op(f"{ns}::{name}", lambda x: x * x, mutates_args=())

    def twice(ctx, g):
        return g * 2.0 * ctx.saved_tensors[0]

    good = square("good")
    good.register_autograd(twice, setup_context=save)
    assert jvp(good, (X,), (V,))[1].tolist() == [8.0, 20.0, 36.0]
    once = square("once")
    once.register_autograd(once_differentiable(twice), setup_context=save)
    cut = square("cut")
    cut.register_autograd(lambda ctx, g: twice(ctx, g).detach(), setup_context=save)
    for op, code in ((square("none"), "TP3001"), (once, "TP3307"), (cut, "TP3415")):
        for call in (
            lambda op=op: jvp(op, (X,), (V,)),
            lambda op=op: vmap(lambda v: jvp(op, (X,), (v,))[1])(tp.stack([V, V])),
            lambda op=op: vmap(lambda x: jvp(op, (x,), (V,))[1])(tp.stack([X, X])),
        ):
            with pytest.raises(AutogradError) as e:
                call()
            assert e.value.code == code
    rows = vmap(lambda x, v: jvp(good, (x,), (v,))[1])(tp.stack([X, V]), tp.stack([V, X]))
    assert rows.tolist() == [[8.0, 20.0, 36.0]] * 2


def test_primals_and_tangents_go_together() -> None:
    for tangents in ((), (tp.ones((4,)),), (1.0,), ([V],)):
        with pytest.raises(ArgumentError, match="tangent") as e:
            jvp(tp.sin, (X,), tangents)
        assert e.value.code == "TP3412"
