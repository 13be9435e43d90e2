"""The formulas of pointwise gradients over the whole range of each dtype: no square on the way that does not fit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, _native, library

# Largest and smallest normal magnitude, and the spacing at one.
RANGES = {
    tp.float16: (65504.0, 6.2e-5, 2.0**-10),
    tp.bfloat16: (3e38, 1.2e-38, 2.0**-7),
    tp.float32: (3e38, 1.2e-38, 2.0**-23),
}


def formulas() -> list[str]:
    """Pointwise overloads of floating tensors whose gradient is a formula, one by one and by pairs."""
    infos = {name: _native.op_info(name) for name in library.list_ops("tp")}
    return [
        name
        for name, info in infos.items()
        if info["pointwise"] is not None
        and info["autograd"] == "expression"
        and {a.type for a in library.Schema.parse(info["schema"]).arguments} == {"Tensor"}
        and len(library.Schema.parse(info["schema"]).arguments) < 3
    ]


def gradients(op, args: list[Tensor]) -> tuple[np.ndarray, list[np.ndarray]]:
    args = [x.detach().requires_grad_() for x in args]
    out = op(*args)
    found = tp.autograd.grad(out.sum(), args, materialize_grads=True)
    return out.detach().astype(tp.float64).numpy(), [g.astype(tp.float64).numpy() for g in found]


@pytest.mark.parametrize("dtype", RANGES, ids=str)
@pytest.mark.parametrize("name", formulas())
def test_a_gradient_agrees_with_that_in_a_wider_dtype(name: str, dtype: tp.dtype) -> None:
    """R7, 6.12: wherever value and gradient have a place in the dtype, from its smallest to its largest number."""
    op, count = library.get_op(name), len(library.Schema.parse(_native.op_info(name)["schema"]).arguments)
    large, small, spacing = RANGES[dtype]
    some = np.geomspace(small, large, 48 if count == 1 else 14)
    points = np.array(list(itertools.product([*some, *-some, 0.0, 1.0, -1.0], repeat=count))).T
    narrow = [tp.tensor(p).astype(dtype) for p in points]
    value, found = gradients(op, narrow)
    _, wanted = gradients(op, [x.astype(tp.float64) for x in narrow])
    for i, (got, want) in enumerate(zip(found, wanted, strict=True)):
        # A product may pass the largest number on its way to one that does not.
        at = np.isfinite(value) & np.isfinite(want) & (np.abs(want) < large / 16)
        if name == "tp::pow":
            at &= points[0] >= 0.0  # of a large exponent less one no narrow dtype knows whether it is even
        with np.errstate(all="ignore"):
            # What cancels, as in 1 - sigmoid(x), is right to the spacing at one.
            near = np.abs(got - want) <= 64 * spacing * np.abs(want) + spacing / 2
        assert near[at].all(), (i, points[:, at & ~near])


def test_the_slope_of_gelu_is_one_far_out() -> None:
    """R7: a number there, for large ones and infinity, and flat: no NaN in the second derivative either."""
    x = tp.tensor([300.0, 1e4, float("inf"), -1e4, 17.0], dtype=tp.float16, requires_grad=True)
    (slope,) = tp.autograd.grad(tp.gelu(x, approximate="tanh").sum(), [x], create_graph=True)
    assert slope.tolist() == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert tp.autograd.grad(slope.sum(), [x])[0].tolist() == [0.0] * 5


def test_an_angle_has_a_gradient_for_large_and_small_operands() -> None:
    """R7: those whose squares are no numbers of the dtype."""
    for scale, dtype in ((100.0, tp.float16), (1e-4, tp.float16), (1e25, tp.float32), (1e-25, tp.float32)):
        y = tp.tensor([3.0 * scale], dtype=dtype, requires_grad=True)
        x = tp.tensor([4.0 * scale], dtype=dtype, requires_grad=True)
        found = tp.autograd.grad(tp.atan2(y, x).sum(), [y, x])
        wanted = [0.16 / scale, -0.12 / scale]
        assert [g.item() for g in found] == pytest.approx(wanted, rel=1e-2)


@pytest.mark.parametrize("dtype", [tp.float16, tp.bfloat16])
@pytest.mark.parametrize("axis", [None, 1, (0, 1)])
def test_the_weights_of_logsumexp_add_up_to_one_however_large_it_is(dtype, axis):
    """The saved result is rounded to the dtype: at 1000 by up to a quarter, which would be a factor of 1.28."""
    values = 1000.0 + 0.5 * np.arange(12.0).reshape(3, 4) % 3.0
    x = tp.tensor(values, dtype=dtype).requires_grad_()
    wide = tp.tensor(x.detach().astype(tp.float64).numpy(), requires_grad=True)
    for t in (x, wide):
        tp.sum(tp.logsumexp(t, axis)).backward()
    assert x.grad.dtype == dtype
    tolerance = 2e-3 if dtype == tp.float16 else 1.6e-2  # one rounding of the weight
    np.testing.assert_allclose(x.grad.astype(tp.float64).numpy(), wide.grad.numpy(), rtol=tolerance)
