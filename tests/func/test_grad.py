"""`tp.func`: grad, value_and_grad, vjp and jacobian, nested, over nests of arguments, through custom ops."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import ArgumentError, AutogradError
from tensorplay.func import grad, jacobian, value_and_grad, vjp, vmap

X = np.array([0.5, -1.0, 2.0])


def t(values) -> Tensor:
    return tp.tensor(np.asarray(values, dtype=np.float64))


def cube(x):
    return x * x * x


def test_three_orders_by_nesting() -> None:
    """6.12: first, second and third derivative, detached where nobody differentiates on."""
    first = grad(cube)
    second, third = grad(first), grad(grad(first))
    x = t(2.0)
    assert (first(x).item(), second(x).item(), third(x).item()) == (12.0, 12.0, 6.0)
    assert not first(x).requires_grad
    assert x.grad is None
    assert not x.requires_grad


def test_arguments_in_nests_and_argnums() -> None:
    """Dicts, lists and tuples; an int gives the gradient, a tuple a tuple; negative positions."""

    def loss(p, scale, q):
        return tp.sum(p["w"] * p["b"][0] * scale * q)

    p = {"w": t(X), "b": [t([1.0, 2.0, 3.0])]}
    found = grad(loss)(p, 2.0, t(1.0))
    assert list(found) == ["w", "b"]
    np.testing.assert_allclose(found["w"].numpy(), [2.0, 4.0, 6.0])
    np.testing.assert_allclose(found["b"][0].numpy(), 2.0 * X)
    first, last = grad(loss, argnums=(0, -1))(p, 2.0, t(1.0))
    np.testing.assert_allclose(first["w"].numpy(), [2.0, 4.0, 6.0])
    np.testing.assert_allclose(last.item(), 2.0 * (X * [1, 2, 3]).sum())


def test_value_and_aux() -> None:
    """Has_aux hands on what is not differentiated, without history."""
    fn = lambda x: (tp.sum(cube(x)), {"seen": x * 2.0, "n": 3})  # noqa: E731
    (value, aux), g = value_and_grad(fn, has_aux=True)(t(X))
    assert value.item() == pytest.approx((X**3).sum())
    np.testing.assert_allclose(g.numpy(), 3 * X**2)
    np.testing.assert_allclose(aux["seen"].numpy(), 2 * X)
    assert aux["n"] == 3
    assert not aux["seen"].requires_grad
    assert not value.requires_grad
    plain = value_and_grad(lambda x: tp.sum(cube(x)))(t(X))
    assert plain[0].item() == pytest.approx((X**3).sum())
    np.testing.assert_allclose(grad(fn, has_aux=True)(t(X))[0].numpy(), 3 * X**2)


def test_perturbations_are_not_confused() -> None:
    """The inner derivative does not see the outer variable: d/dx x * d/dy (x + y) = 1."""
    fn = lambda x: x * grad(lambda y: x + y)(t(1.0))  # noqa: E731
    assert grad(fn)(t(5.0)).item() == 1.0
    by_x = lambda x: x * grad(lambda y: x * y * y)(t(3.0))  # noqa: E731
    assert grad(by_x)(t(5.0)).item() == 2 * 5.0 * 2 * 3.0


def test_the_tape_goes_on_through_a_transform() -> None:
    """Gradients of a parameter in the closure, and of an input that requires one, reach backward()."""
    w, x = t(3.0).requires_grad_(), t(2.0).requires_grad_()
    g = grad(lambda v: w * cube(v))(x)
    assert g.requires_grad
    g.backward()
    assert (w.grad.item(), x.grad.item()) == (12.0, 36.0)
    with tp.no_grad():
        assert not grad(lambda v: w * cube(v))(x).requires_grad
        assert grad(lambda v: w * cube(v))(x).item() == 36.0


def test_an_argument_without_influence_has_zeros() -> None:
    """Zeros of its shape and dtype, also where nothing is recorded at all."""
    found = grad(lambda x, y: tp.sum(x), argnums=(0, 1))(t(X), tp.ones((2,)))
    assert found[1].tolist() == [0.0, 0.0]
    assert found[1].dtype == tp.float32
    assert grad(lambda x: tp.sum(tp.ones((2,))))(t(X)).tolist() == [0.0, 0.0, 0.0]


def test_vjp() -> None:
    """Pulled back any number of times, differentiable itself, nested like output and primals."""
    out, pull, aux = vjp(
        lambda x, y: ({"s": x * y, "t": tp.sum(y)}, 7), t(X), t([1.0, 2.0, 3.0]), has_aux=True
    )
    assert aux == 7
    np.testing.assert_allclose(out["s"].numpy(), X * [1, 2, 3])
    for scale in (1.0, 2.0):
        gx, gy = pull({"s": t([scale] * 3), "t": t(10.0)})
        np.testing.assert_allclose(gx.numpy(), np.array([1, 2, 3]) * scale)
        np.testing.assert_allclose(gy.numpy(), X * scale + 10.0)
    second = grad(lambda v: tp.sum(vjp(cube, t(X))[1](v)[0]))(t([1.0, 1.0, 1.0]))
    np.testing.assert_allclose(second.numpy(), 3 * X**2)


def test_vjp_of_batched_cotangents() -> None:
    """A pull made outside of vmap and used inside of it gives the whole Jacobian."""
    _, pull = vjp(cube, t(X))
    rows = vmap(lambda v: pull(v)[0])(tp.eye(3, dtype=tp.float64))
    np.testing.assert_allclose(rows.numpy(), np.diag(3 * X**2))


def test_jacobian() -> None:
    """Shape output + input, nested like output and arguments, empty outputs, second order."""
    m = np.arange(6.0).reshape(2, 3)
    found = jacobian(lambda x, y: [tp.matmul(t(m), x) * y], argnums=(0, 1))(t(X), t(2.0))
    np.testing.assert_allclose(found[0][0].numpy(), 2.0 * m)
    np.testing.assert_allclose(found[0][1].numpy(), m @ X)
    hessian = jacobian(grad(lambda x: tp.sum(cube(x))))(t(X))
    np.testing.assert_allclose(hessian.numpy(), np.diag(6 * X))
    assert jacobian(lambda x: x[:0])(t(X)).shape == (0, 3)
    value, aux = jacobian(lambda x: (tp.sum(x), x), has_aux=True)(t(X))
    assert value.tolist() == [1.0, 1.0, 1.0]
    assert not aux.requires_grad
    batched = vmap(jacobian(cube))(t([X, 2 * X])).numpy()
    np.testing.assert_allclose(batched, [np.diag(3 * X**2), np.diag(12 * X**2)])


def test_a_custom_op_under_functional_grad(ns: str) -> None:
    """G4, 6.15: `grad(lambda x: op(x, 3.0).sum())(x)` is 3, with setup_context and without, in any order."""

    @library.custom_op(f"{ns}::scale", mutates_args=())
    def scale(x: Tensor, k: float) -> Tensor:
        return x * k

    @scale.register_autograd
    def _(ctx, g):
        return g * 3.0, None

    assert grad(lambda x: scale(x, 3.0).sum())(t(X)).tolist() == [3.0, 3.0, 3.0]

    @library.custom_op(f"{ns}::cube", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return tp.tensor(x.detach().numpy() ** 3)

    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    op.register_autograd(
        lambda ctx, g: g * 3.0 * ctx.saved_tensors[0] * ctx.saved_tensors[0], setup_context=setup
    )
    total = lambda x: tp.sum(op(x))  # noqa: E731
    np.testing.assert_allclose(grad(total)(t(X)).numpy(), 3 * X**2)
    np.testing.assert_allclose(jacobian(grad(total))(t(X)).numpy(), np.diag(6 * X))
    np.testing.assert_allclose(jacobian(op)(t(X)).numpy(), np.diag(3 * X**2))
    third = grad(lambda x: tp.sum(grad(lambda y: tp.sum(grad(total)(y)))(x)))
    np.testing.assert_allclose(third(t(X)).numpy(), [6.0] * 3)


def test_an_op_without_a_formula_is_named(ns: str) -> None:
    """6.10, 6.15: the op's own error, under a transform as anywhere."""
    op = library.custom_op(f"{ns}::f", lambda x: tp.clone(x), mutates_args=(), schema="(Tensor x) -> Tensor")
    with pytest.raises(AutogradError, match=f"{ns}::f"):
        grad(lambda x: tp.sum(op(x)))(t(X))


@pytest.mark.parametrize(
    ("call", "match", "code"),
    [
        (lambda: grad(cube)(t(X)), r"one 0-d tensor, got shape \(3,\)", "TP3413"),
        (lambda: grad(lambda x: (x, x))(t(1.0)), "one 0-d tensor, got tuple", "TP3413"),
        (lambda: grad(lambda x: 1.0)(t(1.0)), "the output must be a tensor", "TP3411"),
        (lambda: grad(lambda x: tp.sum(x > 0))(t(X)), "only floating tensors", "TP3012"),
        (lambda: grad(lambda x: x)(3.0), "argument 0 must be a tensor", "TP3411"),
        (lambda: grad(tp.sum)(tp.tensor([1, 2])), "argument 0 is tensorplay.int64", "TP3012"),
        (lambda: grad(cube, has_aux=True)(t(1.0)), "with has_aux", "TP3413"),
        (lambda: jacobian(lambda x: x > 0)(t(X)), "only floating tensors", "TP3012"),
    ],
)
def test_functions_that_cannot_be_differentiated(call, match: str, code: str) -> None:
    """Clear AutogradErrors that name the transform."""
    with pytest.raises(AutogradError, match=match) as caught:
        call()
    assert caught.value.code == code


@pytest.mark.parametrize("argnums", [1, -2, (0, 0), (0, 1), (), "x"])
def test_argnums_are_checked(argnums) -> None:
    """Positions that are not there, twice or none."""
    with pytest.raises(ArgumentError, match="argnums"):
        grad(cube, argnums=argnums)(t(1.0))


def test_cotangents_are_checked() -> None:
    """Structure and shape of what is pulled back."""
    _, pull = vjp(lambda x: (x, x), t(X))
    for wrong in (t(X), (t(X),), (t(X), 1.0), (t(X), t(1.0))):
        with pytest.raises(ArgumentError, match="cotangent"):
            pull(wrong)
    with pytest.raises(ArgumentError, match="at least one primal"):
        vjp(lambda: t(1.0))


def test_transforms_and_compile() -> None:
    """A transform inside of a compiled function, recorded as ops of the graph."""
    x = t(X)
    for fn in (
        grad(lambda v: tp.sum(tp.sin(v))),
        vmap(grad(tp.sin)),
        jacobian(tp.sin),
        grad(lambda v: tp.sum(grad(lambda u: tp.sum(cube(u)))(v))),
    ):
        compiled = tp.compile(fn)
        np.testing.assert_allclose(compiled(x).numpy(), fn(x).numpy())
        np.testing.assert_allclose(compiled(x * 2.0).numpy(), fn(x * 2.0).numpy())
        assert len(compiled.graphs) == 1


def test_grad_mode_comes_back() -> None:
    """After a transform, also one that raised, grad mode is as before."""
    for mode in (True, False):
        with tp.set_grad_enabled(mode):
            grad(cube)(t(1.0))
            with pytest.raises(ZeroDivisionError):
                grad(lambda x: 1 // 0)(t(1.0))
            assert tp.is_grad_enabled() is mode


def test_a_transform_inside_of_a_kernel_is_right_or_refused(ns: str) -> None:
    """Never zeros where nothing can be recorded."""
    op = library.custom_op(
        f"{ns}::f",
        lambda x: grad(lambda v: tp.sum(cube(v)))(x),
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )
    try:
        found = op(t(X))
    except AutogradError as error:
        assert error.code == "TP3414"  # noqa: PT017
    else:
        np.testing.assert_allclose(found.numpy(), 3 * X**2)
