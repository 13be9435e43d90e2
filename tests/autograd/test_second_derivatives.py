"""Second derivatives of every pointwise formula where formulas have their cases: ties, zeros, ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import _native, library

SPECIAL = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
EDGES = (*SPECIAL, -0.0, 3.0, 1e300, 1e-300, -1e300, 800.0, float("inf"), float("-inf"), float("nan"))
H = 1e-5


def formulas() -> list[str]:
    """Pointwise overloads of Tensors alone whose gradient is a formula, those that write in place among them."""
    infos = {name: _native.op_info(name) for name in library.list_ops("tp")}
    written = {name for name in infos if name.endswith("_") and name[:-1] in infos}
    return [
        name
        for name, info in infos.items()
        if (info["pointwise"] is not None or name in written)
        and info["autograd"] == "expression"
        and {a.type for a in library.Schema.parse(info["schema"]).arguments} == {"Tensor"}
        and not name.startswith(("tp::where", "tp::copy_"))
    ]


def operator(name: str):
    """The op as a function that returns a new tensor."""
    op = library.get_op(name)
    return (lambda x, *rest: op(x.clone(), *rest)) if name.endswith("_") else op


def first(op, arrays: list[np.ndarray], i: int) -> np.ndarray:
    args = [tp.tensor(a, requires_grad=k == i) for k, a in enumerate(arrays)]
    grad = tp.autograd.grad(op(*args).sum(), [args[i]], allow_unused=True)[0]
    return np.zeros_like(arrays[i]) if grad is None else grad.numpy()


def second(op, arrays: list[np.ndarray], i: int, j: int) -> np.ndarray:
    args = [tp.tensor(a, requires_grad=True) for a in arrays]
    grad = tp.autograd.grad(op(*args).sum(), [args[i]], create_graph=True, allow_unused=True)[0]
    if grad is None or not grad.requires_grad:
        return np.zeros_like(arrays[i])
    found = tp.autograd.grad(grad.sum(), [args[j]], allow_unused=True)[0]
    return np.zeros_like(arrays[i]) if found is None else found.numpy()


@pytest.mark.parametrize("name", formulas())
def test_a_second_derivative_agrees_with_differences_of_the_first(name: str) -> None:
    """R7, 6.12: at every special point at which the first derivative is smooth."""
    op, count = operator(name), len(library.Schema.parse(_native.op_info(name)["schema"]).arguments)
    points = np.array(list(itertools.product(SPECIAL, repeat=count))).T
    for i, j in itertools.product(range(count), repeat=2):

        def moved(by: float, i: int = i, j: int = j) -> np.ndarray:
            return first(op, [p + by if k == j else p.copy() for k, p in enumerate(points)], i)

        with np.errstate(all="ignore"):
            here, up, down = moved(0.0), moved(H), moved(-H)
            left, right = (here - down) / H, (up - here) / H
            # A jump by as much on both sides is no slope.
            smooth = np.isfinite(left + right) & (np.abs(left) < 1e3)
            smooth &= np.abs(left - right) < 1e-3 * (1 + np.abs(left))
            wanted = (left + right)[smooth] / 2
        found = second(op, [p.copy() for p in points], i, j)[smooth]
        assert np.allclose(found, wanted, rtol=1e-3, atol=1e-4), (i, j, points[:, smooth], found, wanted)


@pytest.mark.parametrize("name", formulas())
def test_a_gradient_that_is_finite_is_linear_in_the_one_it_was_given(name: str) -> None:
    """R7, 6.12: at ties, zeros, infinities: what a formula hides of the value does not come back as a NaN."""
    op, count = operator(name), len(library.Schema.parse(_native.op_info(name)["schema"]).arguments)
    points = np.array(list(itertools.product(EDGES, repeat=count))).T
    args = [tp.tensor(p, requires_grad=True) for p in points]
    given = tp.ones(points.shape[1:], dtype=tp.float64).requires_grad_()
    out = op(*args)
    for i, grad in enumerate(tp.autograd.grad(out, args, given, create_graph=True, allow_unused=True)):
        if grad is None or not grad.requires_grad:
            continue
        (by_given,) = tp.autograd.grad(grad.sum(), [given], retain_graph=True, materialize_grads=True)
        value = grad.detach().numpy()
        at = np.isfinite(value)
        assert np.allclose(by_given.numpy()[at], value[at], rtol=1e-12, atol=0.0), (i, points[:, at])


def test_a_deviation_of_zero_has_derivatives_of_every_order() -> None:
    """R7, 6.12: zero, not a NaN, for what is constant, alone or beside what is not; and no NaN from jvp."""
    x = tp.tensor([[1.0, 1.0], [1.0, 3.0]], dtype=tp.float64, requires_grad=True)
    given = tp.ones((2,), dtype=tp.float64).requires_grad_()
    (grad,) = tp.autograd.grad(tp.std(x, 1), [x], given, create_graph=True)
    assert grad.tolist() == [[0.0, 0.0], [-0.5, 0.5]]
    found = tp.autograd.grad((grad * tp.tensor([[1.0, 2.0], [1.0, 2.0]])).sum(), [x, given])
    assert found[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert found[1].tolist() == [0.0, 0.5]
    value, tangent = tp.func.jvp(tp.std, (tp.ones((3,)),), (tp.tensor([1.0, 2.0, 3.0]),))
    assert (value.item(), tangent.item()) == (0.0, 0.0)


def test_formulas_are_looked_at() -> None:
    """The table has them; logaddexp at a tie of numbers, and of infinities, is among the cases that it must know."""
    assert {"tp::logaddexp", "tp::pow", "tp::pow_", "tp::tanh"} <= set(formulas())
    a = tp.tensor([0.0, float("inf")], dtype=tp.float64, requires_grad=True)
    (grad,) = tp.autograd.grad(tp.logaddexp(a, a.detach()).sum(), [a], create_graph=True)
    assert grad.tolist() == [0.5, 0.5]
    assert tp.autograd.grad(grad[0], [a])[0].tolist()[0] == 0.25
    b = tp.tensor([0.0], dtype=tp.float64, requires_grad=True)
    (grad,) = tp.autograd.grad((b**0).sum(), [b], create_graph=True)
    assert grad.tolist() == [0.0]
    assert tp.autograd.grad(grad.sum(), [b])[0].tolist() == [0.0]
