"""`gradcheck` passes right rules and names the element, the factor and the habit of wrong ones."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.autograd import GradcheckError, gradcheck, gradgradcheck


def f64(data):
    return tp.tensor(data, dtype=tp.float64, requires_grad=True)


def scaled(name: str, backward):
    op = library.custom_op(f"gradcheck::{name}", lambda x: x * 2.0, mutates_args=())
    op.register_autograd(backward)
    return op


def test_right_gradients_pass() -> None:
    assert gradcheck(lambda x, y: tp.tanh(x) * y + x, (f64([[0.3, -1.0], [2.0, 0.1]]), f64([0.5, -0.5])))
    assert gradcheck(tp.exp, f64(0.3))
    assert gradcheck(lambda x: (tp.sin(x), x * x), f64([0.1, 0.2]))
    assert gradcheck(scaled("right", lambda ctx, g: g * 2.0), f64([1.0, 2.0]))


def test_inputs_that_do_not_lie_in_order() -> None:
    base = tp.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=tp.float64)
    for x in (base.T, base[:, ::2], base[1:, 1]):
        assert gradcheck(lambda x: x * x * x, x.detach().requires_grad_())


def test_second_derivatives() -> None:
    assert gradgradcheck(lambda x, y: tp.exp(x) * y, (f64([0.1, -0.3]), f64([2.0, 0.5])))
    assert gradgradcheck(lambda x: x * x * x, f64(0.7))


def test_a_missing_factor_is_found_and_said() -> None:
    """E5: worst element, both values, and the constant ratio."""
    op = scaled("factor", lambda ctx, g: g)
    with pytest.raises(GradcheckError) as e:
        gradcheck(op, f64([[1.0, 2.0], [3.0, 4.0]]))
    text = str(e.value)
    assert (
        "gradcheck::factor: gradient of output 0 with respect to input 0 is wrong in 4 of 16 elements" in text
    )
    assert "analytic 1, numeric 2 " in text
    assert "Worst at x[" in text
    assert "Ratio numeric / analytic is 2 for every element: is a factor missing in backward?" in text
    assert e.value.code == "TP3105"
    assert gradcheck(op, f64([1.0]), raise_exception=False) is False


def test_one_wrong_element_is_named() -> None:
    def backward(ctx, g):
        return g * tp.tensor([[2.0, 2.0], [2.0, 3.0]], dtype=tp.float64)

    with pytest.raises(
        GradcheckError, match=r"wrong in 1 of 16 elements\. Worst at x\[1, 1\].*analytic 3, numeric 2"
    ):
        gradcheck(scaled("element", backward), f64([[1.0, 2.0], [3.0, 4.0]]))


def test_a_backward_that_reads_memory_order() -> None:
    """A kernel that walks the gradient's memory is right for contiguous gradients only."""
    import numpy as np

    def backward(ctx, g):
        flat = np.lib.stride_tricks.as_strided(g.numpy(), (g.size,), (g.numpy().itemsize,))
        return tp.tensor(flat.reshape(g.shape).copy()) * 2.0

    op = scaled("order", lambda ctx, g: g * 2.0 if 0 in g.stride() else backward(ctx, g))
    with pytest.raises(GradcheckError, match="cotangent that is transposed: backward reads memory order"):
        gradcheck(op, f64([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))


def test_a_backward_that_changes_its_answer() -> None:
    calls = []

    def backward(ctx, g):
        calls.append(1)
        return g * (2.0 + 1e-3 * len(calls))

    with pytest.raises(GradcheckError, match="two backward calls gave different gradients"):
        gradcheck(scaled("state", backward), f64([1.0]), rtol=1.0)


def test_what_cannot_be_checked() -> None:
    with pytest.raises(
        GradcheckError, match=r"input 0 is tensorplay\.float32: finite differences need float64"
    ):
        gradcheck(tp.exp, tp.tensor([1.0], requires_grad=True))
    with pytest.raises(GradcheckError, match="no input requires a gradient"):
        gradcheck(tp.exp, tp.tensor([1.0], dtype=tp.float64))
    with pytest.raises(GradcheckError, match="no output requires a gradient"):
        gradcheck(lambda x: x.detach() * 1, f64([1.0]))
    wide = tp.expand(tp.tensor([1.0], dtype=tp.float64), [3]).detach().requires_grad_()
    with pytest.raises(GradcheckError, match="elements that share memory"):
        gradcheck(tp.exp, wide)
