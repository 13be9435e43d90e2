"""Gradients that used to be lost, or to be somebody else's tensor, without a word."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import tensorplay as tp
from leaves import leaf
from tensorplay import Tensor, library
from tensorplay.autograd import Function
from tensorplay.errors import ArgumentError, AutogradError, ContractError, InvalidValueError


def test_a_saved_parameter_given_back_as_gradient_is_copied(ns: str) -> None:
    """b1: x.grad is no alias of the parameter, and has no history."""
    f = library.custom_op(
        f"{ns}::f", lambda x, y: x * y, mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor"
    )
    f.register_autograd(
        lambda ctx, g: (ctx.saved_tensors[0], None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
    )
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    f(x, y).sum().backward()
    assert x.grad is not y
    assert not x.grad.requires_grad
    with tp.no_grad():
        x.grad.fill_(0.0)
    assert y.tolist() == [3.0, 4.0]
    (g,) = tp.autograd.grad(f(x, y).sum(), x)
    assert g is not y
    assert not g.requires_grad
    assert g.tolist() == [3.0, 4.0]
    (g,) = tp.autograd.grad(f(x, y).sum(), x, create_graph=True)
    assert g is not y
    assert tp.autograd.grad(g.sum(), y)[0].tolist() == [1.0, 1.0]


def test_a_gradient_has_history_only_where_one_is_asked_for(ns: str) -> None:
    """b2: also when backward switches recording on."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    weight = leaf(3.0)

    def backward(ctx, g):
        with tp.enable_grad():
            return g * weight

    f.register_autograd(backward)
    x = leaf(1.0)
    f(x).sum().backward()
    assert (x.grad.tolist(), x.grad.requires_grad) == ([3.0], False)
    y = f(x)
    y.retain_grad()
    (y * weight).sum().backward()
    assert not y.grad.requires_grad
    f(x).sum().backward(create_graph=True)
    assert x.grad.requires_grad


@pytest.mark.parametrize("how", ["flag", "closure", "cached"])
def test_a_kernel_output_with_a_history_is_refused(ns: str, how: str) -> None:
    """b3: its gradient would be lost, or go to another call's input."""
    outside, cache = leaf(1.0), {}

    def body(x: Tensor) -> Tensor:
        if how == "flag":
            return (x * 2).requires_grad_()
        return outside if how == "closure" else cache.setdefault("y", x * 2)

    f = library.custom_op(f"{ns}::f", body, mutates_args=())
    f.register_autograd(lambda ctx, g: g * 2)
    first = f(leaf(1.0)) if how == "cached" else None
    with pytest.raises(ContractError, match="requires grad already") as e:
        f(leaf(1.0))
    assert e.value.code == "TP3211"
    del first


def test_a_gradient_for_what_can_have_none_is_an_error(ns: str) -> None:
    """6.4: an int, a Tensor? that was None, an int64 tensor."""

    def body(x: Tensor, k: int, y: Tensor | None, i: Tensor) -> Tensor:
        return x * k

    f = library.custom_op(f"{ns}::f", body, mutates_args=())
    given: list = []
    f.register_autograd(lambda ctx, g: tuple(given))
    g = tp.ones([1])
    for place, name in ((1, "k"), (2, "y"), (3, "i")):
        given[:] = [g, None, None, None]
        given[place] = g
        with pytest.raises(ContractError, match=rf"gradient for '{name}', which was no floating-point") as e:
            f(leaf(1.0), 2, None, tp.tensor([1])).sum().backward()
        assert e.value.code == "TP3212"
        what = {"k": "its type is int", "y": "it was None, or had an integer or bool dtype"}
        assert what.get(name, "it had an integer or bool dtype") + "; return None" in e.value.__notes__[0]
    x = leaf(1.0)
    given[:] = [g, None, g, None]
    f(x, 2, tp.ones([1]), tp.tensor([1])).sum().backward()
    assert x.grad.tolist() == [1.0]


def test_a_gradient_of_another_dtype_or_shape_is_fitted(ns: str) -> None:
    """6.4: any dtype is cast, a broadcast shape is summed."""
    given: list = []
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_autograd(lambda ctx, g: given[0])
    for grad, want in (
        (tp.tensor([1, 2]), [1.0, 2.0]),
        (tp.tensor([True, False]), [1.0, 0.0]),
        (tp.tensor([1.5, 2.0], dtype=tp.float64), [1.5, 2.0]),
        (tp.tensor([1.5, 2.0], dtype=tp.float16), [1.5, 2.0]),
        (tp.tensor([[1.0, 2.0], [3.0, 4.0]]), [4.0, 6.0]),
        (tp.full([200, 2], 1, dtype=tp.int8), [200.0, 200.0]),
    ):
        given[:] = [grad]
        x = leaf(1.0, 1.0)
        f(x).sum().backward()
        assert (x.grad.dtype, x.grad.tolist()) == (tp.float32, want)


def test_the_gradient_of_a_list_is_a_list_like_it(ns: str) -> None:
    """6.5: a list of the same length; no tuple, no bare None, no gradient for an item that is not there."""

    def body(xs: Sequence[Tensor], n: Sequence[int]) -> Tensor:
        return xs[0] * 2

    given: list = []
    f = library.custom_op(f"{ns}::f", body, mutates_args=())
    f.register_autograd(lambda ctx, g: (given[0], None))
    g = tp.ones([1])
    for wrong in ((g, None, None), None, [g], [g, None], [g, None, None, None], [g, None, None, g]):
        given[:] = [wrong]
        with pytest.raises(ContractError, match="must be a list of 3 like the input") as e:
            f([leaf(1.0), tp.ones([1]), tp.tensor([1])], [1]).sum().backward()
        assert e.value.code == "TP3231"
    given[:] = [[g, None, g]]
    with pytest.raises(ContractError, match=r"xs\[2\]"):
        f([leaf(1.0), tp.ones([1]), tp.tensor([1])], [1]).sum().backward()
    x = leaf(1.0)
    given[:] = [[g * 3, g, None]]
    f([x, tp.ones([1]), tp.tensor([1])], [1]).sum().backward()
    assert x.grad.tolist() == [3.0]


def test_needs_input_grad_of_lists_has_full_length(ns: str) -> None:
    """6.5: nested like the inputs, in setup_context and in backward alike."""
    seen = []

    def body(xs: Sequence[Tensor], n: Sequence[int], ys: Sequence[Tensor], k: int = 1) -> Tensor:
        return xs[0] * 2

    f = library.custom_op(f"{ns}::f", body, mutates_args=())

    def backward(ctx, g):
        seen.append(ctx.needs_input_grad)
        return [g * 2, None, None], None, [], None

    f.register_autograd(backward)
    args = ([leaf(1.0), tp.ones([1]), tp.ones([1])], [1, 2], [])
    f(*args).sum().backward()
    f.register_autograd(backward, setup_context=lambda ctx, inputs, output: seen.append(ctx.needs_input_grad))
    f(*args).sum().backward()
    assert seen == [([True, False, False], False, [], False)] * 3


def test_an_op_that_writes_refuses_elements_that_share_memory(ns: str) -> None:
    """7e: as built-in ops do, before anything is written."""
    ran = []
    f = library.custom_op(
        f"{ns}::f", lambda x: ran.append(x), mutates_args=("x",), schema="(Tensor(a!) x) -> ()"
    )
    with pytest.raises(InvalidValueError, match="share one place in memory") as e:
        f(tp.ones([1]).expand([3]))
    assert (e.value.code, e.value.op, ran) == ("TP1602", f"{ns}::f", [])
    f(tp.ones([3]))
    assert len(ran) == 1


def test_a_kernel_that_writes_and_raises_moves_the_version(ns: str) -> None:
    """7b: what was saved before is known to be stale."""

    def body(x: Tensor) -> None:
        x.fill_(7.0)
        raise ValueError("after writing")

    f = library.custom_op(f"{ns}::f", body, mutates_args=("x",))
    y, x = tp.ones([1]), leaf(1.0)
    out = (x * y).sum()
    with pytest.raises(ValueError, match="after writing"):
        f(y)
    assert y._version > 0
    with pytest.raises(AutogradError, match="modified by an in-place operation"):
        out.backward()


def test_a_root_gradient_has_the_shape_of_the_output() -> None:
    """A larger one is no broadcast of anything."""
    x = leaf(1.0, 2.0)
    with pytest.raises(AutogradError, match="shape") as e:
        (x * 2).backward(tp.ones([2, 2]))
    assert e.value.code == "TP3006"
    (x * 2).backward(tp.tensor([1, 2]))
    assert x.grad.tolist() == [2.0, 4.0]


def test_unused_inputs_are_an_error_none_or_zeros() -> None:
    """The combinations of allow_unused and materialize_grads."""
    x, y = leaf(1.0), leaf(2.0)
    grad = tp.autograd.grad
    for options in ({}, {"allow_unused": False}):
        with pytest.raises(AutogradError, match="does not influence"):
            grad((x * 2).sum(), [x, y], **options)
    assert grad((x * 2).sum(), [x, y], allow_unused=True)[1] is None
    for options in ({}, {"allow_unused": True}):
        assert grad((x * 2).sum(), [x, y], materialize_grads=True, **options)[1].tolist() == [0.0]
    with pytest.raises(ValueError, match="contradicts"):
        grad((x * 2).sum(), [x, y], materialize_grads=True, allow_unused=False)
    with pytest.raises(ArgumentError, match="argument 'outputs\\[0\\]' must be Tensor, got int"):
        grad([3], [x])  # type: ignore[list-item]


def test_only_outputs_can_be_marked_non_differentiable(ns: str) -> None:
    """6.8."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_autograd(
        lambda ctx, g: g, setup_context=lambda ctx, inputs, output: ctx.mark_non_differentiable(inputs[0])
    )
    with pytest.raises(ContractError, match="no output") as e:
        f(leaf(1.0))
    assert e.value.code == "TP3213"

    class Bad(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_non_differentiable(x)
            return x * 2

    with pytest.raises(ContractError, match=r"Bad\.forward"):
        Bad.apply(leaf(1.0))


def test_a_kept_gradient_outlives_a_write_in_place() -> None:
    """The gradient of the tensor as it is at the end."""
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    y.mul_(3.0)
    assert y.retains_grad
    (y * y).sum().backward()
    assert y.grad.tolist() == [12.0]
    assert x.grad.tolist() == [72.0]


def test_a_kernel_may_differentiate_what_it_makes(ns: str) -> None:
    """H3, b9: under enable_grad; the arguments of the call stay plain values."""
    seen = []

    def body(x: Tensor) -> Tensor:
        with tp.enable_grad():
            own = x.detach().requires_grad_()
            (g,) = tp.autograd.grad((own * own * x).sum(), own)
            seen.append((x * 2).requires_grad)
        return g

    f = library.custom_op(f"{ns}::f", body, mutates_args=())
    f.register_autograd(lambda ctx, g: g)
    x = leaf(3.0)
    y = f(x)
    assert (y.tolist(), seen) == ([18.0], [False])
    y.sum().backward()
    assert x.grad.tolist() == [1.0]


MIXED = {
    "add": tp.add,
    "pow": tp.pow,
    "where": lambda x, y: tp.where(tp.tensor([True, False]), x, y),
    "clamp": lambda x, y: tp.clamp(x, y, y + 1.0),
    "matmul": tp.matmul,
    "concat": lambda x, y: tp.concat([x, y]),
    "stack": lambda x, y: tp.stack([x, y]),
    "copy_": lambda x, y: x.clone().copy_(y),
    "mul_": lambda x, y: x.clone().mul_(y),
    "scatter_add": lambda x, y: tp.scatter_add(x, 0, tp.tensor([0]), y),
    "index_add": lambda x, y: tp.index_add(x, 0, tp.tensor([0, 0]), y),
    "index_put": lambda x, y: tp.index_put(x, [tp.tensor([1, 0])], y),
    "index_put accumulating": lambda x, y: tp.index_put(x, [tp.tensor([0, 0])], y, accumulate=True),
    "setitem": lambda x, y: _with_items(x, y),
}
DERIVATIVES = {"scatter_add": [1.0, 0.0], "index_add": [1.0, 1.0], "setitem": [2.0]}


def _with_items(x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x[tp.tensor([0, 1])] = y[:1]
    return x


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("other", [tp.float16, tp.bfloat16, tp.float64])
def test_a_gradient_has_the_dtype_of_its_input(name: str, other: tp.dtype) -> None:
    """6.4: of each operand, whatever the dtype of the result; second derivatives too; and `.grad` of a leaf."""
    f = MIXED[name]
    for first, second in ((tp.float32, other), (other, tp.float32)):
        x = tp.tensor([1.0, 2.0], dtype=first, requires_grad=True)
        y = tp.tensor([1.5, 2.5], dtype=second, requires_grad=True)
        found = tp.autograd.grad(f(x, y).sum(), [x, y], create_graph=True, materialize_grads=True)
        assert [g.dtype for g in found] == [first, second]
        if name in DERIVATIVES:
            assert found[1].tolist()[: len(DERIVATIVES[name])] == DERIVATIVES[name]
        (tp.square(f(x, y))).sum().backward(inputs=[y])
        assert y.grad.dtype == second
