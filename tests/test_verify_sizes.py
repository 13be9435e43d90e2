"""`verify` varies sizes one by one where the given ones are equal: a rule that takes one size for another is found."""

from __future__ import annotations

from typing import Any

import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.testing import make_tensor, resized
from tensorplay.verify import verify
from verifying import failed

Tensor = tp.Tensor
SHAPE = "fake rule: shape"


def op_of(name: str, body: Any, fake: Any) -> Any:
    op = library.custom_op(name, body, mutates_args=())
    op.register_fake(fake)
    return op


def transposed(x: Tensor) -> Tensor:
    return tp.permute_dims(x, (1, 0)).clone()


def product(a: Tensor, b: Tensor) -> Tensor:
    return tp.matmul(a, b)


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return tp.matmul(x, w) + b


def given(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(make_tensor(shape, seed=i) for i, shape in enumerate(shapes))


WRONG: dict[str, tuple[Any, Any, tuple[Tensor, ...]]] = {
    "square": (transposed, lambda x: tp.empty_like(x), given((2, 2))),
    "one element": (transposed, lambda x: tp.empty_like(x), given((1, 1))),
    "empty": (transposed, lambda x: tp.empty_like(x), given((0, 0))),
    "two squares": (product, lambda a, b: tp.empty_like(a), given((2, 2), (2, 2))),
    "larger": (product, lambda a, b: tp.empty_like(a), given((3, 3), (3, 3))),
    "one square": (product, lambda a, b: tp.empty_like(a), given((2, 3), (3, 3))),
    "inner size": (product, lambda a, b: tp.empty((a.shape[1], b.shape[1])), given((3, 3), (3, 2))),
    "three": (linear, lambda x, w, b: tp.empty_like(x), given((4, 4), (4, 4), (4,))),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_rule_that_takes_one_of_two_equal_sizes_for_the_other_is_found(case: str) -> None:
    """Each dimension alone, and some of the equal ones while others stay."""
    body, fake, args = WRONG[case]
    report = verify(op_of(f"vsz::{case.replace(' ', '_')}", body, fake), args)
    assert "the fake rule says shape" in failed(report, SHAPE)


def test_one_tensor_given_twice_is_varied_as_two() -> None:
    """Op(x, x) says nothing of sizes that have to be equal."""
    (x,) = given((3, 3))
    assert not verify(op_of("vsz::twice", product, lambda a, b: tp.empty_like(a)), (x, x)).passed


def test_inputs_made_from_the_schema_vary_too() -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        if a.ndim != 2:
            raise ValueError("matrices only")
        return tp.matmul(a, b)

    report = verify(op_of("vsz::made", body, lambda a, b: tp.empty_like(a)))
    assert any("shape[1] alone" in check.detail for check in report.failures)


def test_an_honest_rule_passes_and_what_the_op_refuses_is_a_skip() -> None:
    """Sizes that have to be equal are no fault of anyone."""

    def fake(a: Tensor, b: Tensor) -> Tensor:
        return tp.empty((a.shape[0], b.shape[1]), dtype=a.dtype)

    report = verify(op_of("vsz::honest", product, fake), given((2, 2), (2, 2)))
    assert report.passed, report.text()
    refused = [c for c in report.skips if c.name.endswith("alone")]
    assert any("a.shape[1] alone" in check.name for check in refused)
    assert all("refuses them: ShapeError" in check.detail for check in refused)
    same = op_of("vsz::same", lambda x, y: tp.add(x, y), lambda x, y: tp.empty_like(x))
    for args in (given((2, 2), (2, 2)), given((1, 1), (1, 1)), given((3,), (3,))):
        assert verify(same, args).passed


def test_what_the_fake_rule_refuses_and_nobody_gave_is_not_asked_of_the_backward() -> None:
    """The body takes a number for a vector; neither the fake rule nor the backward does."""

    def outer(a: Tensor, b: Tensor) -> Tensor:
        return tp.reshape(a, (-1, 1)) * tp.reshape(b, (1, -1))

    op = op_of("vsz::outer", outer, lambda a, b: tp.empty((a.shape[0], b.shape[0]), dtype=a.dtype))
    op.register_autograd(
        lambda ctx, g: (tp.matmul(g, ctx.saved_tensors[1]), tp.matmul(g.T, ctx.saved_tensors[0])),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    report = verify(op, given((4,), (4,)))
    assert report.passed, report.text()
    assert any("rank 0" in c.detail for c in report.skips if c.name.startswith("fake rule: accepts"))
    assert "IndexError" in failed(verify(op, given((), ())), "fake rule: accepts")


def test_a_resized_tensor_may_keep_the_other_dimensions() -> None:
    x = tp.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert resized(x, 2, 3, 1).tolist() == [[1.0, 2.0, 1.0], [3.0, 4.0, 3.0]]
    assert resized(x, 2, 3, 0).shape == (3, 2)
    assert resized(x, 2, 3).shape == (3, 3)
    assert resized(x, 7, 3, 0).shape == (2, 2)


def test_a_comparison_in_float64_has_errors_of_float64() -> None:
    """What gradients are compared at has the dtype of the output, a 0-d one too."""
    op = library.custom_op(
        "vsz::total", lambda x: tp.sum(x * x), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    op.register_fake(lambda x: tp.empty((), dtype=x.dtype))
    op.register_autograd(
        lambda ctx, grad: grad * 2.0 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    report = verify(op, (tp.tensor([0.5, -1.25, 3.0]),))
    details = [c.detail for c in report.values if "compiled" in c.name and "gradient" in c.name]
    assert details
    assert not [d for d in details if "e+0" in d]
    assert "1 elements" not in report.text()


def test_counts_have_the_noun_of_one() -> None:
    op = library.custom_op("vsz::one", lambda x: x * 2.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    op.register_fake(lambda x: tp.empty_like(x))
    text = verify(op, (tp.tensor([2.0]),), sweep=False).text()
    assert "1 element, equal" in text
    assert "1 of 1 case accepted" in text
    assert repr(tp.graph.capture(lambda x: x + 1.0, tp.ones((1,)))).startswith("<Graph of 1 node>")
    compiled = tp.compile(lambda x: x + 1.0)
    compiled(tp.ones((1,)))
    assert repr(compiled).endswith(", 1 graph>")
    with pytest.raises(Exception, match=r"\(1 element\) to"):
        tp.reshape(tp.ones((1,)), (2,))
    with pytest.raises(Exception, match=r"out of range for 1 dimension$"):
        tp.sum(tp.ones((1,)), axis=3)
    with pytest.raises(Exception, match="takes 1 positional argument, the schema has 2"):
        library.custom_op("vsz::two", lambda x, y: x * y, mutates_args=()).register_kernel("cpu", lambda x: x)
