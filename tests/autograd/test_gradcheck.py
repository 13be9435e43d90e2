"""`gradcheck` passes right rules and names the element, the factor and the habit of wrong ones."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.autograd import GradcheckError, gradcheck, gradgradcheck


def f64(data):
    return tp.tensor(data, dtype=tp.float64, requires_grad=True)


def scaled(name: str, backward):
    op = library.custom_op(name, lambda x: x * 2.0, mutates_args=())
    op.register_autograd(backward)
    return op


def test_right_gradients_pass(ns: str) -> None:
    assert gradcheck(lambda x, y: tp.tanh(x) * y + x, (f64([[0.3, -1.0], [2.0, 0.1]]), f64([0.5, -0.5])))
    assert gradcheck(tp.exp, f64(0.3))
    assert gradcheck(lambda x: (tp.sin(x), x * x), f64([0.1, 0.2]))
    assert gradcheck(scaled(f"{ns}::right", lambda ctx, g: g * 2.0), f64([1.0, 2.0]))


def test_inputs_that_do_not_lie_in_order() -> None:
    base = tp.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=tp.float64)
    for x in (base.T, base[:, ::2], base[1:, 1]):
        assert gradcheck(lambda x: x * x * x, x.detach().requires_grad_())


def test_second_derivatives() -> None:
    assert gradgradcheck(lambda x, y: tp.exp(x) * y, (f64([0.1, -0.3]), f64([2.0, 0.5])))
    assert gradgradcheck(lambda x: x * x * x, f64(0.7))


def test_a_missing_factor_is_found_and_said(ns: str) -> None:
    """E5: worst element, both values, and the constant ratio."""
    op = scaled(f"{ns}::factor", lambda ctx, g: g)
    with pytest.raises(GradcheckError) as e:
        gradcheck(op, f64([[1.0, 2.0], [3.0, 4.0]]))
    text = str(e.value)
    assert f"{ns}::factor: gradient of output 0 with respect to input 0 is wrong in 4 of 16 elements" in text
    assert "analytic 1, numeric 2 " in text
    assert "Worst at x[" in text
    assert "Ratio numeric / analytic is 2 for every element: is a factor missing in backward?" in text
    assert e.value.code == "TP3105"
    assert gradcheck(op, f64([1.0]), raise_exception=False) is False


def test_one_wrong_element_is_named(ns: str) -> None:
    def backward(ctx, g):
        return g * tp.tensor([[2.0, 2.0], [2.0, 3.0]], dtype=tp.float64)

    with pytest.raises(
        GradcheckError, match=r"wrong in 1 of 16 elements\. Worst at x\[1, 1\].*analytic 3, numeric 2"
    ):
        gradcheck(scaled(f"{ns}::element", backward), f64([[1.0, 2.0], [3.0, 4.0]]))


def test_a_backward_that_reads_memory_order(ns: str) -> None:
    """A kernel that walks the gradient's memory is right for contiguous gradients only."""
    import numpy as np

    def backward(ctx, g):
        flat = np.lib.stride_tricks.as_strided(g.numpy(), (g.size,), (g.numpy().itemsize,))
        return tp.tensor(flat.reshape(g.shape).copy()) * 2.0

    op = scaled(f"{ns}::order", lambda ctx, g: g * 2.0 if 0 in g.stride() else backward(ctx, g))
    with pytest.raises(GradcheckError, match="cotangent that is transposed: backward reads memory order"):
        gradcheck(op, f64([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))


def test_a_backward_that_changes_its_answer(ns: str) -> None:
    calls = []

    def backward(ctx, g):
        calls.append(1)
        return g * (2.0 + 1e-3 * len(calls))

    with pytest.raises(GradcheckError, match="two backward calls gave different gradients"):
        gradcheck(scaled(f"{ns}::state", backward), f64([1.0]), rtol=1.0)


def test_what_cannot_be_checked() -> None:
    with pytest.raises(
        GradcheckError, match=r"input 0 is tensorplay\.float32: finite differences need float64"
    ):
        gradcheck(tp.exp, tp.tensor([1.0], requires_grad=True))
    with pytest.raises(GradcheckError, match="no input requires a gradient"):
        gradcheck(tp.exp, tp.tensor([1.0], dtype=tp.float64))
    with pytest.raises(GradcheckError, match="no output requires a gradient"):
        gradcheck(lambda x: x.detach() * 1, f64([1.0]))
    wide = tp.expand(tp.tensor([1.0], dtype=tp.float64), [3]).detach().requires_grad_()
    with pytest.raises(GradcheckError, match="elements that share memory"):
        gradcheck(tp.exp, wide)


def test_a_gradient_cut_off_the_tape_fails_beside_one_that_is_recorded(ns: str) -> None:
    """11: gradgradcheck does not leave out a gradient that backward took through NumPy or detached."""

    def product(name: str, cut):
        op = library.custom_op(name, lambda x, y: x * y, mutates_args=())

        def setup(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, cut(g, x)

        op.register_autograd(backward, setup_context=setup)
        return op

    inputs = (f64([1.0, 2.0]), f64([3.0, 0.5]))
    assert gradgradcheck(product(f"{ns}::whole", lambda g, x: g * x), inputs)
    for name, cut in {
        "detached": lambda g, x: (g * x).detach(),
        "half": lambda g, x: g * x.detach(),
        "numpy": lambda g, x: tp.tensor(g.detach().numpy() * x.detach().numpy()),
    }.items():
        assert gradcheck(product(f"{ns}::{name}1", cut), inputs)
        with pytest.raises(GradcheckError) as caught:
            gradgradcheck(product(f"{ns}::{name}", cut), inputs)
        assert caught.value.code == ("TP3105" if name == "half" else "TP3321"), name


def test_a_constant_gradient_is_not_cut_off() -> None:
    """11: what does not depend on the inputs may be off the tape."""
    assert gradgradcheck(lambda x, y: x * x + tp.floor(y), (f64([1.0, 2.0]), f64([3.3, 0.5])))


def test_options_in_the_order_of_torch(ns: str) -> None:
    """11: eps, atol, rtol, raise_exception, nondet_tol, check_undefined_grad, check_grad_dtypes, by place and name."""
    wrong = scaled(f"{ns}::loose", lambda ctx, g: g * 2.001)
    assert not gradcheck(wrong, f64([1.0]), 1e-6, 1e-6, 1e-6, False)
    assert gradcheck(wrong, f64([1.0]), 1e-4, 0.01, 0.0, True, 0.0, True, True)
    assert gradgradcheck(lambda x: x * x, f64([1.0]), None, 1e-6, 1e-5, 1e-3, True, True, 0.0)
    for option in ("check_forward_ad", "check_batched_grad", "check_batched_forward_grad", "masked"):
        with pytest.raises(TypeError, match="gradients here go backward") as caught:
            gradcheck(tp.exp, f64([1.0]), **{option: True})
        assert caught.value.code == "TP3323"
    with pytest.raises(TypeError, match="without backward"):
        gradcheck(tp.exp, f64([1.0]), check_backward_ad=False)
    with pytest.raises(TypeError, match="forward-mode"):
        gradgradcheck(tp.exp, f64([1.0]), check_fwd_over_rev=True)


def test_fast_mode_looks_at_directions_and_finds_one_wrong_element(ns: str) -> None:
    """11: two calls per input instead of two per element, and the same message where it fails."""
    calls = []

    def counted(x):
        calls.append(1)
        return tp.sin(x) * 2.0

    x = tp.ones((8, 8), dtype=tp.float64).requires_grad_()
    assert gradcheck(counted, x, fast_mode=True)
    assert len(calls) <= 4
    assert gradgradcheck(lambda x: tp.exp(x) * x, f64([[0.1, 0.2], [0.3, 0.4]]), fast_mode=True)

    def backward(ctx, g):
        return g * tp.tensor([[2.0, 2.0], [2.0, 3.0]], dtype=tp.float64)

    with pytest.raises(GradcheckError, match=r"Worst at x\[1, 1\].*analytic 3, numeric 2"):
        gradcheck(scaled(f"{ns}::fast", backward), f64([[1.0, 2.0], [3.0, 4.0]]), fast_mode=True)


def test_overlapping_inputs_are_named() -> None:
    """11: strides that reach an element twice, not only stride 0."""
    base = tp.tensor([1.0, 2.0, 3.0, 4.0], dtype=tp.float64)
    twice = tp.from_dlpack(_Strided())
    for x in (base.expand((2, 4)), twice):
        with pytest.raises(GradcheckError, match="elements that share memory") as caught:
            gradcheck(lambda x: x * 2.0, x.detach().requires_grad_())
        assert caught.value.code == "TP3313"


class _Strided:
    """A window over four numbers whose rows overlap."""

    def __init__(self) -> None:
        import numpy as np

        self._array = np.lib.stride_tricks.as_strided(np.arange(4.0), (3, 2), (8, 8))

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_a_backward_that_needs_every_gradient(ns: str) -> None:
    """11: check_undefined_grad leaves outputs out; a rule that takes None for zeros may not break."""

    def pair(name: str, backward):
        op = library.custom_op(
            name,
            lambda x: (x * 2.0, x * 3.0),
            mutates_args=(),
            schema="(Tensor x) -> (Tensor, Tensor)",
        )
        op.register_autograd(
            backward, setup_context=lambda ctx, inputs, output: ctx.set_materialize_grads(False)
        )
        return op

    careless = pair(f"{ns}::careless", lambda ctx, a, b: a * 2.0 + b * 3.0)
    with pytest.raises(GradcheckError, match="only output 0 has a gradient") as caught:
        gradcheck(careless, f64([1.0, 2.0]))
    assert caught.value.code == "TP3322"
    assert gradcheck(careless, f64([1.0, 2.0]), check_undefined_grad=False)

    def careful(ctx, a, b):
        parts = [g * k for g, k in ((a, 2.0), (b, 3.0)) if g is not None]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    assert gradcheck(pair(f"{ns}::careful", careful), f64([1.0, 2.0]))


def test_noise_within_nondet_tol_passes(ns: str) -> None:
    """11: nondet_tol holds for cotangents in other memory as well."""
    state = [0]

    def backward(ctx, g):
        state[0] += 1
        return g * (2.0 + 1e-9 * (state[0] % 7))

    op = scaled(f"{ns}::noisy", backward)
    assert gradcheck(op, f64([[1.0, 2.0], [3.0, 4.0]]), nondet_tol=1e-6)
    with pytest.raises(GradcheckError, match="different gradients"):
        gradcheck(op, f64([[1.0, 2.0], [3.0, 4.0]]))


def test_builtin_functions_have_their_op_s_name() -> None:
    """11: the message says tp::floor, not the name of the type it is bound to."""
    with pytest.raises(GradcheckError, match=r"^\[TP3310\] tp::floor: no input"):
        gradcheck(tp.floor, tp.tensor([1.5], dtype=tp.float64))
    assert issubclass(GradcheckError, tp.errors.GradcheckError)


@pytest.mark.parametrize("fast", [False, True])
def test_each_place_of_an_input_has_its_own_gradient(fast: bool) -> None:
    """11, i18: one tensor in two places, in a closure too, or beside a view of itself, is no wrong gradient."""
    x = tp.tensor([1.0, 2.0], dtype=tp.float64, requires_grad=True)
    version = x._version
    for check in (gradcheck, gradgradcheck):
        assert check(lambda a, b: a * b * b, (x, x), fast_mode=fast)
        assert check(lambda a: a * a * x, (x,), fast_mode=fast)
        assert check(lambda a, b: a * b * b, (x, x[:]), fast_mode=fast)
        assert check(lambda a, b: a * b * b, (x, x * 1.0), fast_mode=fast)
    assert (x.tolist(), x._version, x.grad) == ([1.0, 2.0], version, None)


@pytest.mark.parametrize("fast", [False, True])
def test_inputs_in_lists_and_dicts_are_checked(ns: str, fast: bool) -> None:
    """11, 6.5: a wrong gradient for an item of a list is found; None and numbers stay where they are."""
    f = library.custom_op(
        f"{ns}::f",
        lambda a, b, xs, k: a * xs[0] * k + xs[1],
        mutates_args=(),
        schema="(Tensor a, Tensor? b, Tensor[] xs, float k) -> Tensor",
    )

    def register(factor: float) -> None:
        def setup(ctx, inputs, output) -> None:
            ctx.save_for_backward(inputs[0], inputs[2][0])
            ctx.k = inputs[3]

        def backward(ctx, g):
            a, first = ctx.saved_tensors
            return g * first * ctx.k, None, [g * a * ctx.k, g * factor], None

        f.register_autograd(backward, setup_context=setup)

    a, b, c = (tp.tensor([v, v + 1.0], dtype=tp.float64, requires_grad=True) for v in (1.0, 3.0, 5.0))
    register(1.0)
    assert gradcheck(f, (a, None, [b, c], 2.0), fast_mode=fast)
    assert gradgradcheck(f, (a, None, [b, c], 2.0), fast_mode=fast)
    assert gradcheck(lambda nest: nest["x"] * nest["y"][0], ({"x": a, "y": (b, 3)},), fast_mode=fast)
    register(0.5)
    with pytest.raises(GradcheckError, match="input 3 is wrong"):
        gradcheck(f, (a, None, [b, c], 2.0), fast_mode=fast)
