"""Gradients that somebody puts in another's place: by a hook, by `.grad = `, by `backward(gradient)`."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import Tensor
from tensorplay.errors import AutogradError


@pytest.mark.parametrize("where", ["leaf", "inner"])
@pytest.mark.parametrize("shape", [(5, 2), (1, 2), (1,), (3,), ()])
def test_a_hook_cannot_change_the_shape_of_a_gradient(where: str, shape: tuple[int, ...]) -> None:
    """6.17: what would broadcast is no gradient of this tensor either, and is not summed up in silence."""
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3.0
    (x if where == "leaf" else y).register_hook(lambda g: tp.ones(shape))
    with pytest.raises(AutogradError, match=r"the tensor of a hook has shape .*, expected \[2\]") as found:
        y.sum().backward()
    assert found.value.code == "TP3006"
    assert x.grad is None


def test_a_hook_cannot_put_a_gradient_on_another_device() -> None:
    """6.17: `.grad` of a tensor with data has data."""
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    x.register_hook(lambda g: tp.empty((2,), device="meta"))
    with pytest.raises(AutogradError, match="is on meta, expected cpu") as found:
        (x * 3.0).sum().backward()
    assert found.value.code == "TP3008"
    assert x.grad is None


def test_a_hook_may_give_another_dtype() -> None:
    """6.17, 6.4: it is cast to the gradient's."""
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    x.register_hook(lambda g: tp.tensor([5.0, 6.0], dtype=tp.float64))
    (x * 3.0).sum().backward()
    assert (x.grad.dtype, x.grad.tolist()) == (tp.float32, [5.0, 6.0])


def test_backward_does_not_take_a_gradient_of_another_device() -> None:
    """6.4: from `backward`, from `grad`, and in a vjp."""
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    elsewhere = tp.empty((2,), device="meta")
    for ask in (
        lambda: (x * 2.0).backward(elsewhere),
        lambda: x.backward(elsewhere),
        lambda: tp.autograd.grad(x * 2.0, x, elsewhere),
    ):
        with pytest.raises(AutogradError, match="output 0 is on meta, expected cpu") as found:
            ask()
        assert found.value.code == "TP3008"
    assert x.grad is None


def test_a_tensor_is_not_its_own_gradient() -> None:
    """6.4: it would own itself, and backward would add to the parameter."""
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(AutogradError, match="its own gradient") as found:
        x.grad = x
    assert found.value.code == "TP3014"
    both = tp.zeros((6,))
    y, left, right = both[1:4].requires_grad_(), both[:3], both[4:]
    for alias in (y.detach(), left):
        with pytest.raises(AutogradError, match="its own gradient, nor can the gradient lie in its memory"):
            y.grad = alias
    y[1:].detach().grad = right
    assert x.grad is None
    assert y.grad is None
    x.grad = x.detach().clone()
    (x * 1.0).sum().backward()
    assert (x.tolist(), x.grad.tolist()) == ([1.0, 2.0], [2.0, 3.0])


@pytest.mark.parametrize("fill", [lambda: tp.ones((1,)).expand((3,)), lambda: tp.ones(()).expand((3,))])
def test_a_gradient_whose_elements_share_memory_is_added_to(fill) -> None:
    """6.4: an expanded `.grad` gives way to a sum of its own, and stays what it was."""
    x = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    given: Tensor = fill()
    x.grad = given
    (x * x).sum().backward()
    assert (x.grad.tolist(), given.tolist()) == ([3.0, 5.0, 7.0], [1.0, 1.0, 1.0])
    (x * x).sum().backward()
    assert x.grad.tolist() == [5.0, 9.0, 13.0]
