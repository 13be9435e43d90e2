"""A checkpoint runs again under what was in force when it ran first, wherever backward is called."""

from __future__ import annotations

import threading

import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.autograd import checkpoint
from tensorplay.errors import InvalidValueError


def gradients(fn, *values: list) -> list[list]:
    leaves = [tp.tensor(v, requires_grad=True) for v in values]
    loss = fn(*leaves)
    return [g.tolist() for g in tp.autograd.grad(loss, leaves)]


def test_a_checkpoint_runs_again_under_its_autocast() -> None:
    """6.17, G14: backward is called outside of the context, as it usually is."""
    x, w = [[1.0, 2.0], [3.0, 4.0]], [[1.001, 0.5], [0.25, -1.0]]

    def block(x: Tensor, w: Tensor) -> Tensor:
        return tp.tanh(x @ w)

    with tp.autocast("cpu", dtype=tp.bfloat16):
        assert block(tp.tensor(x), tp.tensor(w)).dtype == tp.bfloat16

    def kept(x: Tensor, w: Tensor) -> Tensor:
        with tp.autocast("cpu", dtype=tp.bfloat16):
            return block(x, w).sum()

    def again(x: Tensor, w: Tensor) -> Tensor:
        with tp.autocast("cpu", dtype=tp.bfloat16):
            return checkpoint(block, x, w).sum()

    assert gradients(again, x, w) == gradients(kept, x, w)


def test_a_checkpoint_runs_again_without_the_autocast_of_backward() -> None:
    """6.17, G14: and what is in force when backward is called comes back afterwards."""
    x = tp.tensor([[1.001, 2.0]], requires_grad=True)
    w = tp.tensor([[3.003], [4.0]])
    dtypes = []

    def block(x: Tensor) -> Tensor:
        dtypes.append((x @ w).dtype)
        return tp.exp(x * 0.5) * 2.0

    loss = checkpoint(block, x).sum()
    with tp.autocast("cpu", dtype=tp.bfloat16):
        loss.backward()
        assert (x @ w).dtype == tp.bfloat16
    assert dtypes == [tp.float32, tp.float32]
    assert (x @ w).dtype == tp.float32


def test_an_autocast_comes_back_after_a_second_run_that_failed() -> None:
    """6.17, 3.11: the exception passes through."""
    runs = []

    def block(x: Tensor) -> Tensor:
        runs.append(1)
        if len(runs) > 1:
            raise KeyError("again")
        return x * x

    with tp.autocast("cpu", dtype=tp.bfloat16):
        loss = checkpoint(block, tp.tensor([2.0], requires_grad=True)).sum()
    with pytest.raises(KeyError, match="again"):
        loss.backward()
    one = tp.ones((1, 1))
    assert (one @ one).dtype == tp.float32
    assert tp.is_grad_enabled()


def test_a_checkpoint_inside_of_a_vmap_runs_again_after_it(ns: str) -> None:
    """8.1, 6.17: batched arguments and closures, custom ops, one level and two."""
    square = library.custom_op(f"{ns}::f", lambda x: x * x, mutates_args=(), schema="(Tensor x) -> Tensor")
    square.register_autograd(
        lambda ctx, g: g * 2.0 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    square.register_vmap(lambda info, in_dims, x: (square(x), in_dims[0]))

    def block(x: Tensor, w: Tensor) -> Tensor:
        return tp.sin(square(x)) * w

    def sample(run):
        return lambda x, w: run(lambda a: block(a, w) * x, x).sum()

    def call(fn, *args):
        return fn(*args)

    x, w = [[0.5, 1.0], [2.0, -1.0]], [[3.0, 4.0], [5.0, 6.0]]
    want = gradients(lambda x, w: sample(call)(x, w), x, w)
    one = tp.func.vmap(sample(checkpoint))
    assert gradients(lambda x, w: one(x, w).sum(), x, w) == want
    two = tp.func.vmap(tp.func.vmap(sample(checkpoint)))
    assert gradients(lambda x, w: two(x, w).sum(), x, w) == want
    # A thread without the vmap asks for the gradient.
    found = []
    leaves = [tp.tensor(v, requires_grad=True) for v in (x, w)]
    loss = one(*leaves).sum()
    asking = threading.Thread(target=lambda: found.extend(tp.autograd.grad(loss, leaves)))
    asking.start()
    asking.join()
    assert [g.tolist() for g in found] == want


def test_a_checkpoint_inside_of_a_vmap_draws_the_same_numbers() -> None:
    """8.1, 6.17: one draw per sample, twice."""

    def block(x: Tensor) -> Tensor:
        return x * x * tp.uniform((3,))

    x = tp.ones((2, 3)).requires_grad_()
    y = tp.func.vmap(lambda a: checkpoint(block, a), randomness="different")(x)
    y.sum().backward()
    assert x.grad.tolist() == [[2.0 * v for v in row] for row in y.tolist()]


def test_the_word_of_torch_for_the_only_way_is_accepted() -> None:
    """6.17: `use_reentrant=False` is what every caller of torch's checkpoint writes."""
    x = tp.tensor([2.0], requires_grad=True)
    checkpoint(lambda a: a * a * a, x, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == [12.0]
    with pytest.raises(InvalidValueError, match="no reentrant way") as found:
        checkpoint(lambda a: a * a, x, use_reentrant=True)
    assert found.value.code == "TP3324"
