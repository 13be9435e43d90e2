"""`verify` and `opcheck` on inputs as people have them: leaves, views, expanded and overlapping memory, numbers as results.

An honest op passes with each of them; nothing is raised.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import graph, library
from tensorplay._verify.inputs import TensorRecipe, capture_args
from tensorplay.library import opcheck
from tensorplay.verify import verify
from verifying import define, failed

Tensor = tp.Tensor
GIVEN = [[0.5, -0.25, 0.0], [1.0, 2.0, 3.0]]

_numbers = itertools.count()


@pytest.fixture
def ns() -> str:
    """A namespace that no other test uses."""
    return f"vti{next(_numbers)}"


def leaf(**options: Any) -> Tensor:
    return tp.tensor(GIVEN, requires_grad=True, **options)


def scaled(name: str) -> Any:
    op = define(name, lambda x: tp.mul(x, 2.0))
    op.register_autograd(lambda ctx, grad: tp.mul(grad, 2.0))
    return op


ASKING: dict[str, Callable[[], Tensor]] = {
    "leaf": leaf,
    "computed": lambda: leaf() * 1.0,
    "row": lambda: leaf()[0],
    "transposed": lambda: leaf().T,
    "expanded": lambda: tp.expand(tp.tensor([1.0, 2.0], requires_grad=True), (3, 2)),
    "expanded inside": lambda: tp.expand(tp.tensor([[1.0], [2.0]], requires_grad=True), (2, 3)),
    "every other": lambda: leaf()[:, ::2],
    "empty": lambda: tp.tensor([], requires_grad=True),
    "rank 0": lambda: tp.tensor(1.5, requires_grad=True),
    "float64": lambda: leaf(dtype=tp.float64),
    "bfloat16": lambda: leaf(dtype=tp.bfloat16),
    "expanded bfloat16": lambda: tp.expand(
        tp.tensor([1.0, 2.0], dtype=tp.bfloat16, requires_grad=True), (3, 2)
    ),
}


@pytest.mark.parametrize("how", ASKING)
def test_inputs_that_require_a_gradient_are_inputs_like_others(how: str, ns: str) -> None:
    """11: no variant of an input keeps a gradient that its dtype cannot have, and every layout can be differentiated."""
    op = scaled(f"{ns}::scaled")
    report = verify(op, (ASKING[how](),))
    assert report.passed, report.text()
    assert set(opcheck(op, (ASKING[how](),)).values()) == {"SUCCESS"}


def test_builtin_ops_and_functions_take_inputs_that_require_a_gradient() -> None:
    """11: README's calls: an op by its name in `tp.ops`, one of several overloads, indices beside, a plain function."""
    assert verify(tp.ops.tp.tanh, (leaf(),)).passed
    assert verify(tp.mul, (leaf(), leaf())).passed
    x = leaf()
    assert verify(tp.mul, (x, x)).passed
    assert verify(tp.take, (leaf(), tp.tensor([0, 1])), {"axis": 0}).passed
    assert verify(lambda a: tp.sum(a * a), (leaf(),)).passed

    def writes_to_its_own(a: Tensor) -> Tensor:
        b = a * 1.0
        return b.mul_(2.0)

    assert verify(writes_to_its_own, (leaf(),)).passed
    assert verify(tp.ops.tp.zero_, (leaf(),)).passed


def test_a_gradient_asked_of_an_op_that_writes_is_told_as_such(ns: str) -> None:
    """11: such a call raises, whatever is registered; inputs without a gradient pass."""

    def body(x: Tensor, y: Tensor) -> None:
        x.add_(y)

    op = library.custom_op(f"{ns}::write", body, mutates_args=("x",))
    op.register_fake(lambda x, y: None)
    for args in ((leaf(), leaf()), (leaf() * 1.0, leaf()), (leaf().detach(), leaf())):
        assert "writes to its arguments has none" in failed(verify(op, args), "gradient is registered")
    assert verify(op, (leaf().detach(), leaf().detach())).passed


def test_only_floating_variants_of_a_recipe_require_a_gradient() -> None:
    """11: the dtype decides, and it comes back with the dtype of the next cast from the recipe that asked."""
    (recipe,) = capture_args((leaf(),), {}, ("x",), "given").recipes()
    assert recipe.requires_grad
    assert not recipe.cast("int64").requires_grad
    assert not recipe.cast("bool").build()[0].requires_grad
    assert recipe.cast("float64").build()[0].requires_grad


SHARING: dict[str, Callable[[], Tensor]] = {
    "expanded": lambda: tp.expand(tp.tensor([1.0, 2.0]), (3, 2)),
    "windows": lambda: tp.from_numpy(np.lib.stride_tricks.sliding_window_view(np.arange(6.0), 3)),
    "backwards": lambda: tp.from_numpy(np.arange(6.0)[::-1]),
    "backwards windows": lambda: tp.from_numpy(
        np.lib.stride_tricks.sliding_window_view(np.arange(6.0), 3)[::-1]
    ),
    "spread": lambda: tp.from_numpy(np.arange(12.0).reshape(3, 4)[:, ::2]),
    "empty": lambda: tp.from_numpy(np.zeros((0, 3)).T),
}


@pytest.mark.parametrize("how", SHARING)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_memory_of_given_inputs_is_made_again(how: str, dtype: str, ns: str) -> None:
    """11: strides, negative and overlapping ones too; the contents of a recipe are those of its tensor after a change."""
    tensor = SHARING[how]()
    (recipe,) = capture_args((tensor,), {}, ("x",), "given").recipes()
    rebuilt, _ = recipe.build()
    assert rebuilt.stride() == tensor.stride() or not tensor.size
    assert rebuilt.tolist() == tensor.tolist()
    changed = recipe.cast(dtype)
    other = np.arange(recipe.values.size, dtype=changed.values.dtype).reshape(recipe.shape)
    moved = TensorRecipe(other, dtype, "x", strides=changed.strides)
    assert moved.build()[0].tolist() == moved.values.tolist()
    report = verify(scaled(f"{ns}::scaled"), (tensor.astype(getattr(tp, dtype)),), sweep=dtype == "float64")
    assert report.passed, report.text()


def test_a_wrong_gradient_is_found_on_expanded_inputs(ns: str) -> None:
    """11: elements that share a place are moved one by one."""
    op = define(f"{ns}::wrong", lambda x: tp.mul(x, 2.0))
    op.register_autograd(lambda ctx, grad: tp.mul(grad, 3.0))
    x = tp.expand(tp.tensor([1.0, 2.0], requires_grad=True), (3, 2))
    assert "differences say" in failed(verify(op, (x,), sweep=False), "gradient against differences")


def test_calls_that_no_overload_takes_are_a_failure() -> None:
    """11: a report in which nothing was checked does not pass."""
    x = tp.tensor([1.0, 2.0])
    assert "takes them: ArgumentError" in failed(verify(tp.mul, (x,), {"othr": x}), "inputs")
    assert "no call was given" in failed(verify(tp.mul, []), "inputs")


# --- ops that return numbers --------------------------------------------------------------------------


def count(x: Tensor) -> int:
    return x.size


def half(x: Tensor) -> float:
    return x.size / 2


def some(x: Tensor) -> bool:
    return x.size > 0


def nan(x: Tensor) -> float:
    return float("nan")


def mixed(x: Tensor) -> tuple[Tensor, int, Tensor]:
    return x * 2.0, x.size, x + 1.0


def pair(x: Tensor) -> tuple[int, bool]:
    return x.size, True


def numbered(ns: str, body: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    op = library.custom_op(f"{ns}::{body.__name__}", body, mutates_args=())
    op.register_fake(fake)
    return op


def mixed_fake(add: int) -> Callable[..., Any]:
    return lambda x: (tp.empty_like(x), x.size + add, tp.empty_like(x))


RIGHT = [(count, count), (half, half), (some, some), (nan, nan), (mixed, mixed_fake(0)), (pair, pair)]
WRONG = [
    (count, lambda x: 7, "the fake rule says int is 7, the kernel returned int is 6"),
    (half, lambda x: 2.5, "the fake rule says float is 2.5, the kernel returned float is 3.0"),
    (some, lambda x: False, "the fake rule says bool is False, the kernel returned bool is True"),
    (mixed, mixed_fake(1), "output 1 of"),
]


@pytest.mark.parametrize(("body", "fake"), RIGHT, ids=lambda f: f.__name__)
def test_a_right_fake_rule_of_numbers_passes(body: Any, fake: Any, ns: str) -> None:
    """11: int, float, bool, NaN, beside tensors and alone."""
    op = numbered(ns, body, fake)
    report = verify(op, (leaf().detach(),))
    assert report.passed, report.text()
    assert set(opcheck(op, (leaf().detach(),)).values()) == {"SUCCESS"}


@pytest.mark.parametrize(("body", "fake", "text"), WRONG, ids=lambda f: getattr(f, "__name__", ""))
def test_a_number_that_the_kernel_does_not_return_is_a_failure(
    body: Any, fake: Any, text: str, ns: str
) -> None:
    """11: kind and value are compared: a function is captured with the number that the rule gave."""
    op = numbered(ns, body, fake)
    assert text in failed(verify(op, (leaf().detach(),)), "fake rule: value")
    results = opcheck(op, (leaf().detach(),), raise_exception=False)
    assert text in results["test_faketensor"]


def test_a_list_of_numbers_is_as_many_promises(ns: str) -> None:
    """11: `int[]` and `float[]` results."""
    lists = library.custom_op(
        f"{ns}::lists", lambda x: [x.size, 1], mutates_args=(), schema="(Tensor x) -> int[]"
    )
    lists.register_fake(lambda x: [x.size, 1])
    assert verify(lists, (leaf().detach(),)).passed
    lists.register_fake(lambda x: [x.size, 2])
    assert "int is 2" in failed(verify(lists, (leaf().detach(),)), "fake rule: value")


def test_the_spec_of_a_number_is_a_type_of_its_own(ns: str) -> None:
    """5.9: node.spec names the type and holds the value of what is no tensor; the text form keeps both."""
    op = numbered(ns, mixed, mixed_fake(0))
    captured = graph.capture(lambda x: op(x)[0], leaf().detach())
    tensor, number, other = captured.nodes[0].spec
    assert number == graph.ValueSpec("int", 6)
    assert str(number) == "int is 6"
    assert number.to_dict() == {"type": "int", "value": 6}
    assert isinstance(tensor, graph.TensorSpec)
    assert tensor == other
    assert graph.parse(captured.text()).nodes[0].spec == captured.nodes[0].spec
