"""What vmap does with matters of single tensors: hooks on gradients, leaves, and readings of memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor
from tensorplay.errors import AutogradError, CaptureError, ContractError
from tensorplay.func import grad, vmap


def values(*shape: int) -> Tensor:
    return tp.arange(1, 1 + int(np.prod(shape)), dtype=tp.float32).reshape(shape)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_hook_inside_of_a_vmap_sees_one_sample(axis: int) -> None:
    """8.1, 6.17: its shape and its values, whichever axis the batch has; what it returns replaces them."""
    seen = []
    scale = values(4)

    def f(x: Tensor) -> Tensor:
        y = x * 2.0

        def hook(g: Tensor) -> Tensor:
            seen.append(g.shape)
            return g * y.detach() + scale

        y.register_hook(hook)
        return (y * y).sum()

    def by_hand(x: np.ndarray) -> np.ndarray:
        y = 2.0 * x
        return 2.0 * (2.0 * y * y + scale.numpy())

    x = values(3, 5, 4)
    x = x.permute(*[[0, 1, 2], [1, 0, 2], [1, 2, 0]][axis])
    got = vmap(vmap(grad(f)), in_dims=axis, out_dims=axis)(x)
    want = np.moveaxis(by_hand(np.moveaxis(x.numpy(), axis, 0)), 0, axis)
    assert np.allclose(got.numpy(), want)
    assert seen == [(4,)]


def test_a_hook_inside_of_a_vmap_is_called_by_a_backward_outside_of_it() -> None:
    """8.1, 6.17: on what the tape recorded for all samples, until it is removed."""
    handles = []

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        handles.append(y.register_hook(lambda g: g * x))
        return y.sum()

    x, w = values(3, 2), tp.ones((2,)).requires_grad_()
    loss = vmap(f, in_dims=(0, None))(x, w).sum()
    loss.backward(retain_graph=True)
    assert w.grad.tolist() == (x.numpy() ** 2).sum(0).tolist()
    w.grad = None
    handles[0].remove()
    loss.backward()
    assert w.grad.tolist() == x.numpy().sum(0).tolist()


def test_a_hook_inside_of_a_vmap_may_return_what_all_samples_share() -> None:
    """8.1, 6.17: and nothing, and is held to the gradient's shape and kind."""

    def gradient(hook):
        def f(x: Tensor) -> Tensor:
            y = x * 3.0
            y.register_hook(hook)
            return y.sum()

        return vmap(grad(f), in_dims=1)(values(2, 3))

    assert gradient(lambda g: tp.tensor([5.0, 7.0])).tolist() == [[15.0, 21.0]] * 3
    assert gradient(lambda g: None).tolist() == [[3.0, 3.0]] * 3
    with pytest.raises(AutogradError, match="the tensor of a hook has shape"):
        gradient(lambda g: g.sum())
    with pytest.raises(ContractError, match="must return a Tensor or None"):
        gradient(lambda g: 1.0)
    with pytest.raises(KeyError, match="mine"):
        gradient(lambda g: {}["mine"])
    assert vmap(lambda a: a + 1.0)(tp.ones((2,))).tolist() == [2.0, 2.0]


def test_a_batched_tensor_is_made_no_leaf() -> None:
    """8.1: the tape holds whole batches; the way to gradients of samples is named."""
    for switch in (lambda a: a.requires_grad_(), lambda a: setattr(a, "requires_grad", True)):
        with pytest.raises(AutogradError, match=r"inside of vmap") as found:
            vmap(lambda a, switch=switch: (switch(a), a)[1])(tp.ones((2,)))
        assert found.value.code == "TP3416"
        assert any("tensorplay.func.grad" in note for note in found.value.__notes__)
    assert vmap(lambda a: a.requires_grad_(False) * 2.0)(tp.ones((2,))).tolist() == [2.0, 2.0]
    leaf = tp.ones((2,)).requires_grad_()
    for ask in (lambda a: (a * a).backward(), lambda a: tp.autograd.grad(a * a, [a])):
        with pytest.raises(AutogradError, match="output 0 is batched: the tape holds whole batches") as found:
            vmap(ask)(leaf)
        assert found.value.code == "TP3416"
        assert any("tensorplay.func.grad" in note for note in found.value.__notes__)


@pytest.mark.parametrize(
    "read",
    [
        lambda a: a.data_ptr(),
        lambda a: a.__dlpack__(),
        lambda a: memoryview(a),
        lambda a: np.asarray(a),
        lambda a: pickle.dumps(a),
        lambda a: a.to("meta"),
        lambda a: a.tolist(),
    ],
)
def test_memory_read_inside_of_a_vmap_is_said_to_be_the_vmaps(read) -> None:
    """8.1: no capture goes on, and none is named."""
    with pytest.raises(CaptureError, match="the value of a batched tensor was read inside of vmap") as found:
        vmap(lambda a: (read(a), a)[1])(tp.ones((2, 3)))
    assert found.value.code == "TP4021"
