"""Second derivatives of every pointwise formula where formulas have their cases: ties, zeros, ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import _native, library

SPECIAL = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
H = 1e-5


def formulas() -> list[str]:
    """Pointwise overloads of Tensors alone whose gradient is a formula."""
    infos = {name: _native.op_info(name) for name in library.list_ops("tp")}
    return [
        name
        for name, info in infos.items()
        if info["pointwise"] is not None
        and info["autograd"] == "expression"
        and {a.type for a in library.Schema.parse(info["schema"]).arguments} == {"Tensor"}
        and not name.startswith("tp::where")
    ]


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
    op, count = library.get_op(name), len(library.Schema.parse(_native.op_info(name)["schema"]).arguments)
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


def test_formulas_are_looked_at() -> None:
    """The table has them; logaddexp at a tie of numbers, and of infinities, is among the cases that it must know."""
    assert {"tp::logaddexp", "tp::pow", "tp::tanh"} <= set(formulas())
    a = tp.tensor([0.0, float("inf")], dtype=tp.float64, requires_grad=True)
    (grad,) = tp.autograd.grad(tp.logaddexp(a, a.detach()).sum(), [a], create_graph=True)
    assert grad.tolist() == [0.5, 0.5]
    assert tp.autograd.grad(grad[0], [a])[0].tolist()[0] == 0.25
    b = tp.tensor([0.0], dtype=tp.float64, requires_grad=True)
    (grad,) = tp.autograd.grad((b**0).sum(), [b], create_graph=True)
    assert grad.tolist() == [0.0]
    assert tp.autograd.grad(grad.sum(), [b])[0].tolist() == [0.0]
