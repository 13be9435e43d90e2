"""Backward rules in detail: what setup and backward are given, what may come back, who may write, what passes through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import tensorplay as tp
from leaves import leaf
from tensorplay import Tensor, library
from tensorplay.errors import AutogradError, SchemaError


def op(name: str, body: Callable[..., Any], **options: Any) -> Any:
    return library.custom_op(name, body, mutates_args=options.pop("mutates_args", ()), **options)


def test_setup_runs_only_where_a_gradient_may_be_needed(ns: str) -> None:
    """6.1: not without a gradient, not under no_grad; `output` is the object that is returned."""
    seen = []

    def setup(ctx, inputs, output):
        seen.append(output)

    f = op(f"{ns}::f", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    f.register_autograd(lambda ctx, g: g * 2, setup_context=setup)
    f(tp.ones([1]))
    with tp.no_grad():
        f(leaf(1.0))
    assert seen == []
    y = f(leaf(1.0))
    assert seen[0] is y


def test_setup_with_other_parameter_names_is_an_error(ns: str) -> None:
    """6.1: they are passed by keyword, which the registration checks."""
    f = op(f"{ns}::f", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    with pytest.raises(SchemaError, match="missing a required argument: 'c'"):
        f.register_autograd(lambda ctx, g: g, setup_context=lambda c, i, o: None)


def test_backward_gets_one_gradient_per_output(ns: str) -> None:
    """6.2: None for a number, zeros for an int output, a list for a list."""
    seen = []

    def body(x: Tensor) -> tuple[Tensor, int, Tensor, Sequence[Tensor]]:
        return x * 2, 3, tp.tensor([1, 2]), [x * 3, x * 4]

    def backward(ctx, g, number, index, many):
        seen.append((g.tolist(), number, index.tolist(), index.dtype, [m.tolist() for m in many]))
        return g * 2 + many[0] * 3 + many[1] * 4

    f = op(f"{ns}::f", body, schema="(Tensor x) -> (Tensor, int, Tensor, Tensor[])")
    f.register_autograd(backward)
    x = leaf(1.0)
    y, number, index, many = f(x)
    assert (number, index.requires_grad) == (3, False)
    (y + many[1]).sum().backward()
    assert seen == [([1.0], None, [0, 0], tp.int64, [[0.0], [1.0]])]
    assert x.grad.tolist() == [6.0]


def test_gradients_of_unused_outputs(ns: str) -> None:
    """6.8: zeros, or None after set_materialize_grads(False); marked outputs need no gradient."""
    seen = []

    def setup(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1], output[2][0])

    def body(x: Tensor) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        return x * 2, x * 3, [x * 4, x * 5]

    def backward(ctx, g, marked, many):
        seen.append((g, marked, many[0], many[1].tolist()))
        return many[1] * 5

    f = op(f"{ns}::f", body, schema="(Tensor x) -> (Tensor, Tensor, Tensor[])")
    f.register_autograd(backward, setup_context=setup)
    x = leaf(1.0)
    y, marked, many = f(x)
    assert [t.requires_grad for t in (y, marked, *many)] == [True, False, False, True]
    many[1].sum().backward()
    assert seen == [(None, None, None, [1.0])]
    assert x.grad.tolist() == [5.0]


def test_a_kernel_cannot_leave_grad_mode_changed(ns: str) -> None:
    """6.11."""

    def body(x: Tensor) -> Tensor:
        tp.set_grad_enabled(True)
        return x.detach() * 2

    f = op(f"{ns}::f", body)
    with tp.no_grad():
        f(tp.ones([1]))
        assert not tp.is_grad_enabled()
    assert tp.is_grad_enabled()


def test_the_second_derivative_through_an_op_without_a_rule(ns: str) -> None:
    """6.12: that op's error."""
    inner = op(f"{ns}::inner", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    outer = op(f"{ns}::outer", lambda x: x * x, schema="(Tensor x) -> Tensor")
    outer.register_autograd(
        lambda ctx, g: g * inner(ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    x = leaf(3.0)
    (g,) = tp.autograd.grad(outer(x).sum(), x, create_graph=True)
    assert g.tolist() == [6.0]
    with pytest.raises(AutogradError, match=f"{ns}::inner"):
        tp.autograd.grad(g.sum(), x)


@pytest.mark.parametrize("what", ["leaf", "computed", "view", "alias", "item"])
def test_an_op_that_writes_refuses_what_requires_grad(ns: str, what: str) -> None:
    """6.13: nothing is written."""

    def body(xs: Sequence[Tensor]) -> None:
        xs[-1].fill_(7.0)

    f = op(f"{ns}::f", body, mutates_args=("xs",))
    x = leaf(1.0, 2.0)
    target = {"leaf": x, "computed": x * 1, "view": x[:], "alias": (x * 1)[:], "item": x}[what]
    before = target.tolist()
    with pytest.raises(AutogradError, match="requires grad") as e:
        f([tp.ones([1]), target] if what == "item" else [target])
    assert e.value.code == "TP3018"
    assert target.tolist() == before
    f([x.detach()])
    with tp.no_grad():
        f([x])
    assert x.tolist() == [7.0, 7.0]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, StopIteration])
@pytest.mark.parametrize("where", ["setup", "backward"])
def test_exceptions_pass_through_and_a_retry_works(ns: str, error: type[BaseException], where: str) -> None:
    """6.19: the same object, from setup_context and from backward."""
    mine = error("mine")
    fail = [where]

    def setup(ctx, inputs, output):
        if fail == ["setup"]:
            raise mine
        ctx.save_for_backward(inputs[0])

    def backward(ctx, g):
        if fail == ["backward"]:
            raise mine
        return g * ctx.saved_tensors[0]

    f = op(f"{ns}::f", lambda x: x * x, schema="(Tensor x) -> Tensor")
    f.register_autograd(backward, setup_context=setup)
    x = leaf(3.0)

    def run(y: Tensor | None = None) -> Tensor:
        total = f(x).sum() if y is None else y
        total.backward()
        return total

    if where == "setup":
        with pytest.raises(error) as e:
            run()
    else:
        y = f(x).sum()
        with pytest.raises(error) as e:
            run(y)
        fail.clear()
        run(y)
        assert x.grad.tolist() == [3.0]
        x.grad = None
    assert e.value is mine
    fail.clear()
    run()
    assert x.grad.tolist() == [3.0]
    assert tp.is_grad_enabled()


def test_saved_things_are_tensors_or_none(ns: str) -> None:
    """6.7: a TypeError otherwise; the tensors are the caller's own objects."""
    seen = []
    given: list[Any] = []
    f = op(f"{ns}::f", lambda x: x * 2, schema="(Tensor x) -> Tensor")

    def backward(ctx, g):
        seen.extend(ctx.saved_tensors)
        return g

    f.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*given, inputs[0])
    )
    given[:] = [3]
    with pytest.raises(TypeError, match="tensors or None, got int") as e:
        f(leaf(1.0))
    assert e.value.code == "TP3305"  # type: ignore[attr-defined]
    given[:] = [None]
    x = leaf(1.0)
    f(x).sum().backward()
    assert seen[0] is None
    assert seen[1] is x


def test_versions_of_everything_declared_as_written(ns: str) -> None:
    """7a, 7c: items of lists, arguments by keyword, None skipped, views and detach share the counter."""

    def body(xs: Sequence[Tensor], z: Tensor, y: Tensor | None = None) -> None: ...

    f = op(
        f"{ns}::f",
        body,
        mutates_args=("xs", "y", "z"),
        schema="(Tensor(a!)[] xs, Tensor(b!) z, Tensor(c!)? y=None) -> ()",
    )
    a, b, z, y = (tp.ones([2]) for _ in range(4))
    view, alias = a[:1], a.detach()
    f([a, b], z=z)
    assert [t._version for t in (a, b, z, view, alias)] == [1] * 5
    f([a], y=y, z=z)
    assert [t._version for t in (a, b, z, y)] == [2, 1, 2, 1]
    view.fill_(0.0)
    assert (a._version, alias._version) == (3, 3)


def test_third_derivatives() -> None:
    x = tp.tensor([0.7], dtype=tp.float64, requires_grad=True)
    y = x**5
    for want in (5 * 0.7**4, 20 * 0.7**3, 60 * 0.7**2):
        (y,) = tp.autograd.grad(y.sum(), x, create_graph=True)
        assert y.item() == pytest.approx(want)


@pytest.mark.parametrize("kind", ["built-in", "custom", "ctx"])
def test_deep_graphs(ns: str, kind: str) -> None:
    """Neither backward nor the end of the graph recurses."""

    def setup(ctx, inputs, output):
        ctx.note = inputs[0]

    f = op(f"{ns}::f", lambda x: x * 1.0, schema="(Tensor x) -> Tensor")
    f.register_autograd(lambda ctx, g: g, setup_context=setup if kind == "ctx" else None)
    x = leaf(2.0)
    y = x
    for _ in range(20_000):
        y = y * 1.0 if kind == "built-in" else f(y)
    y.sum().backward()
    assert x.grad.tolist() == [1.0]
    y = x
    for _ in range(20_000):
        y = y * 1.0 if kind == "built-in" else f(y)
    del y
