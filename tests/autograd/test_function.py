"""`Function`: forward and backward written together."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay.autograd import Function, gradcheck, gradgradcheck
from tensorplay.errors import AutogradError, ContractError


class Cube(Function):
    @staticmethod
    def forward(ctx, x, k=1.0):
        assert not tp.is_grad_enabled()
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * x * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3.0 * x * x * ctx.k, None


def test_forward_and_backward() -> None:
    x = tp.tensor([2.0, -1.0], requires_grad=True)
    y = Cube.apply(x, 2.0)
    assert y.tolist() == [16.0, -2.0]
    y.sum().backward()
    assert x.grad.tolist() == [24.0, 6.0]
    with tp.no_grad():
        assert not Cube.apply(x, 1.0).requires_grad
    assert Cube.apply(tp.tensor([2.0]), 1.0).tolist() == [8.0]


def test_derivatives_of_a_function() -> None:
    x = tp.tensor([0.5, -1.5], dtype=tp.float64, requires_grad=True)
    assert gradcheck(lambda x: Cube.apply(x, 2.0), x)
    assert gradgradcheck(lambda x: Cube.apply(x, 2.0), x)


def test_several_outputs_and_setup_context() -> None:
    class Both(Function):
        @staticmethod
        def forward(x, y):
            return x + y, 3, x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g_sum, g_number, g_product):
            assert g_number is None
            x, y = ctx.saved_tensors
            return g_sum + g_product * y, g_sum + g_product * x

    x, y = tp.tensor([2.0], requires_grad=True), tp.tensor([5.0], requires_grad=True)
    total, number, product = Both.apply(x, y)
    assert (total.tolist(), number, product.tolist()) == ([7.0], 3, [10.0])
    (total + product).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([6.0], [3.0])


def test_needs_input_grad_has_one_entry_per_argument() -> None:
    seen = []

    class Look(Function):
        @staticmethod
        def forward(ctx, x, k, y):
            return x * k * y

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.needs_input_grad)
            return g, None, None

    Look.apply(tp.tensor([1.0], requires_grad=True), 2.0, tp.tensor([1.0])).sum().backward()
    assert seen == [(True, False, False)]


def test_wrong_gradients() -> None:
    class Short(Function):
        @staticmethod
        def forward(ctx, x, k):
            return x * k

        @staticmethod
        def backward(ctx, g):
            return (g,)

    class Extra(Short):
        @staticmethod
        def backward(ctx, g):
            return g, g

    class Missing(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

    def run(function, *args):
        function.apply(tp.tensor([1.0], requires_grad=True), *args).sum().backward()

    with pytest.raises(ContractError, match=r"Short\.backward must return 2 gradients, got 1"):
        run(Short, 2.0)
    with pytest.raises(
        ContractError, match=r"Extra\.backward returned a gradient for argument 1, which is no tensor"
    ):
        run(Extra, 2.0)
    with pytest.raises(AutogradError, match="Missing has no backward"):
        run(Missing)


def test_a_saved_tensor_that_was_written_to() -> None:
    x = tp.tensor([2.0], requires_grad=True)
    middle = x * 1.0
    y = Cube.apply(middle, 1.0)
    middle.detach().fill_(0.0)
    with pytest.raises(AutogradError):
        y.sum().backward()
