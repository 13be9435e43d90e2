"""Backward rules registered from Python: what they get, what they must return, and what happens without one."""

from __future__ import annotations

import pytest

import tensorplay as tp
from leaves import leaf
from tensorplay import Tensor, library
from tensorplay.errors import AutogradError, ContractError, OpCheckError, RegistrationError


def product(name: str):
    @library.custom_op(name, mutates_args=())
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    return f


@pytest.mark.parametrize(
    ("returned", "count"),
    [(lambda g: g, 1), (lambda g: (g,), 1), (lambda g: (g, g, g), 3), (lambda g: (g, g, None), 3)],
)
def test_the_number_of_gradients(ns: str, returned, count: int) -> None:
    """G1, G2: right numbers and the op's name, also for an extra None."""
    f = product(f"{ns}::f")
    f.register_autograd(lambda ctx, g: returned(g))
    y = f(leaf(1.0), leaf(2.0))
    what = "1 gradient" if count == 1 else f"{count} gradients"
    with pytest.raises(RuntimeError, match=rf"{ns}::f: backward returned {what}: expected 2, got {count}"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("args", "kwargs", "k"), [((), {}, 2), ((2,), {}, 2), ((3,), {}, 3), ((), {"k": 3}, 3), ((), {"k": 2}, 2)]
)
def test_defaults_reach_setup_and_backward(ns: str, args, kwargs, k: int) -> None:
    """G3: two inputs each time, whatever was passed."""
    seen = []

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor, k: int = 2) -> Tensor:
        return x * k

    def setup(ctx, inputs, output):
        ctx.k = inputs[1]
        seen.append(len(inputs))

    def backward(ctx, g):
        seen.append((len(ctx.needs_input_grad), ctx.needs_input_grad[1]))
        return g * ctx.k, None

    f.register_autograd(backward, setup_context=setup)
    x = leaf(1.0)
    f(x, *args, **kwargs).sum().backward()
    assert x.grad.tolist() == [float(k)]
    assert seen == [2, (2, False)]


def test_an_op_without_a_rule(ns: str) -> None:
    """G6: forward works, backward names the op and the way out; nothing is recorded under no_grad."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=())
    y = f(leaf(1.0))
    assert y.requires_grad
    assert y.tolist() == [2.0]
    with pytest.raises(AutogradError, match=f"{ns}::f") as e:
        y.sum().backward()
    assert any("register_autograd" in text for text in [str(e.value), *e.value.__notes__])
    with tp.no_grad():
        assert not f(leaf(1.0)).requires_grad


def test_a_non_differentiable_op(ns: str) -> None:
    """G5."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=())
    assert f.register_autograd(None) is None
    y = f(leaf(1.0))
    assert not y.requires_grad
    assert "autograd not differentiable" in repr(f)


def test_grad_mode_is_off_in_a_kernel(ns: str) -> None:
    """G7."""
    seen = []

    def f(x: Tensor) -> Tensor:
        with tp.enable_grad():
            inside = x * 2
        seen.append((tp.is_grad_enabled(), x.requires_grad, inside.requires_grad))
        return inside

    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    op.register_autograd(lambda ctx, g: g * 2)
    x = leaf(1.0)
    op(x).sum().backward()
    assert seen == [(False, True, False)]
    assert x.grad.tolist() == [2.0]
    assert tp.is_grad_enabled()


def test_the_decorator_gives_the_function_back(ns: str) -> None:
    f = product(f"{ns}::f")

    @f.register_autograd
    def backward(ctx, g):
        return g, g

    assert backward.__name__ == "backward"
    g = product(f"{ns}::g")

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @g.register_autograd(setup_context=setup)
    def rule(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, grad * x

    assert rule.__name__ == "rule"
    x, y = leaf(3.0), leaf(5.0)
    g(x, y).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([5.0], [3.0])
    assert f"autograd custom, {__file__}:" in repr(g)


def test_setup_context_gets_keywords(ns: str) -> None:
    """L21 on the autograd path: keyword-only arguments in a dict of their own."""
    seen = []

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor, *, k: float = 2.0) -> Tensor:
        return x * k

    def setup(ctx, inputs, output, keyword_only_inputs):
        seen.append((len(inputs), keyword_only_inputs, output.tolist()))
        ctx.k = keyword_only_inputs["k"]

    f.register_autograd(lambda ctx, g: g * ctx.k, setup_context=setup)
    x = leaf(1.0)
    f(x, k=3.0).sum().backward()
    assert seen == [(1, {"k": 3.0}, [3.0])]
    assert x.grad.tolist() == [3.0]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (lambda g: tp.ones([7]), "shape"),
        (lambda g: 2.0, "must be a Tensor or None, got float"),
        (lambda g: [g], "must return a tuple, got a list"),
    ],
)
def test_gradients_are_checked(ns: str, bad, text: str) -> None:
    """W4: shape and kind, naming the op."""
    f = library.custom_op(f"{ns}::f", lambda x: x * 2, mutates_args=())
    f.register_autograd(lambda ctx, g: bad(g))
    with pytest.raises(RuntimeError, match=f"{ns}::f.*{text}"):
        f(leaf(1.0, 2.0)).sum().backward()


def test_a_gradient_left_out_is_zero_and_verify_finds_it(ns: str) -> None:
    """W4: None for an input that needs a gradient adds nothing, eager and compiled; against differences it is wrong."""
    f = product(f"{ns}::f")
    f.register_fake(library.fake_from_body)
    f.register_autograd(
        lambda ctx, g: (g * ctx.saved_tensors[0], None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
    )
    compiled = tp.compile(f)
    for call in (f, compiled):
        x, y = leaf(1.0, 3.0), leaf(2.0, 5.0)
        call(x, y).sum().backward()
        assert x.grad.tolist() == [2.0, 5.0]
        assert y.grad is None
        (call(x, y) + y).sum().backward()
        assert y.grad.tolist() == [1.0, 1.0]
    report = compiled.last_run
    assert [r.marker.executor for r in report.forward] == ["python"]
    assert {r.marker.executor for r in report.backward} == {"native"}
    with pytest.raises(AutogradError, match="input 1 does not influence the outputs") as e:
        tp.autograd.grad(f(x, y).sum(), [x, y])
    assert "a backward rule returned None for it, which stands for zero" in e.value.__notes__[1]
    inputs = (x.detach(), y.detach())
    (failure,) = tp.verify(f, inputs, sweep=False).failures
    assert failure.name == "gradient against differences in float64"
    assert "'y' at [0]: got 0, differences say" in failure.detail
    assert "backward returned None for it" in failure.detail
    with pytest.raises(OpCheckError, match="backward returned None"):
        library.opcheck(f, (x, y))


def test_what_is_no_tuple_is_named(ns: str) -> None:
    """6.4: a dict or a generator is not told to be one gradient of two; one Tensor for two inputs is a wrong count."""
    f = product(f"{ns}::f")
    for what, result in (
        ("dict", lambda g: {"x": g, "y": g}),
        ("generator", lambda g: (one for one in (g, g))),
        ("float", lambda g: 2.0),
        ("a list", lambda g: [g, g]),
    ):
        f.register_autograd(lambda ctx, g, result=result: result(g))
        with pytest.raises(ContractError, match=f"{ns}::f: backward must return a tuple, got {what}") as e:
            f(leaf(1.0), leaf(2.0)).sum().backward()
        assert e.value.code == "TP3230"
        assert "one gradient per input of the op, 2 in all" in e.value.__notes__[0]
    for alone in (lambda g: g, lambda g: None):
        f.register_autograd(lambda ctx, g, alone=alone: alone(g))
        with pytest.raises(AutogradError, match="expected 2, got 1"):
            f(leaf(1.0), leaf(2.0)).sum().backward()


def test_rules_that_cannot_be(ns: str) -> None:
    def write(x: Tensor) -> None:
        x.fill_(0.0)

    def look(x: Tensor) -> None: ...

    mutates = library.custom_op(f"{ns}::write", write, mutates_args=("x",))
    nothing = library.custom_op(f"{ns}::look", look, mutates_args=())
    with pytest.raises(RegistrationError, match="writes to 'x': an op that mutates has no backward rule"):
        mutates.register_autograd(lambda ctx: None)
    with pytest.raises(RegistrationError, match="returns nothing"):
        nothing.register_autograd(lambda ctx: None)


def test_a_saved_tensor_that_was_written_to(ns: str) -> None:
    f = product(f"{ns}::f")
    f.register_autograd(
        lambda ctx, g: (g * ctx.saved_tensors[0], None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
    )
    x, y = leaf(1.0), tp.tensor([2.0])
    out = f(x, y)
    y.fill_(7.0)
    with pytest.raises(AutogradError, match=r"version|written|in-place|in place"):
        out.sum().backward()


def test_second_derivatives_through_a_rule(ns: str) -> None:
    @library.custom_op(f"{ns}::cube", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x * x * x

    cube.register_autograd(
        lambda ctx, g: g * 3.0 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    x = tp.tensor([2.0, -1.0], dtype=tp.float64, requires_grad=True)
    assert tp.autograd.gradcheck(cube, x)
    assert tp.autograd.gradgradcheck(cube, x)
    (first,) = tp.autograd.grad(cube(x).sum(), x, create_graph=True)
    (second,) = tp.autograd.grad(first.sum(), x)
    assert first.tolist() == [12.0, 3.0]
    assert second.tolist() == [12.0, -6.0]
