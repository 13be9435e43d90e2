"""`library.opcheck`: what torch's tests catch is caught, under the same names, and nothing right is refused."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import ArgumentError, ContractError, InvalidValueError, OpCheckError, RegistrationError
from tensorplay.library import opcheck
from tensorplay.verify import verify


def leaf() -> Tensor:
    return tp.tensor([1.0, -2.0, 3.0], requires_grad=True)


def op(name: str, body=lambda x: x * 2.0, backward=None, setup=None, **options):
    made = library.custom_op(
        f"opcheck::{name}", body, mutates_args=(), schema="(Tensor x) -> Tensor", **options
    )
    made.register_fake(lambda x: tp.empty_like(x))
    if backward is not None:
        made.register_autograd(backward, setup_context=setup)
    return made


def test_a_missing_formula_is_reported_where_a_gradient_is_asked_for() -> None:
    """11: an op without a rule and an input that requires a gradient is a failure; without such an input it is none."""
    missing = op("missing")
    results = opcheck(missing, (leaf(),), raise_exception=False)
    assert "no backward is registered" in results["test_aot_dispatch_dynamic"]
    assert [k for k, v in results.items() if v != "SUCCESS"] == ["test_aot_dispatch_dynamic"]
    assert set(opcheck(missing, (leaf().detach(),)).values()) == {"SUCCESS"}
    assert not verify(missing, (leaf(),), sweep=False).passed
    assert verify(missing, (leaf().detach(),), sweep=False).passed


def test_an_output_that_its_kernel_recorded_is_reported() -> None:
    """11: autograd done inside of a kernel is a failure of test_autograd_registration."""
    own = op("own", lambda x: (x * 2.0).detach().requires_grad_())
    results = opcheck(own, (leaf().detach(),), raise_exception=False)
    assert "requires grad already" in results["test_autograd_registration"]
    assert [k for k, v in results.items() if v != "SUCCESS"] == ["test_autograd_registration"]


def test_the_first_failure_is_an_opcheckerror() -> None:
    """11: OpCheckError, which is a ContractError, names test and op."""
    with pytest.raises(OpCheckError, match="test_aot_dispatch_dynamic") as caught:
        opcheck(op("first"), (leaf(),))
    assert isinstance(caught.value, ContractError)
    assert caught.value.op == "opcheck::first"


@pytest.mark.parametrize("target", [lambda x: x, 3, "opcheck::not_there", None, tp])
def test_what_is_no_op_is_a_value_error(target) -> None:
    """11: non-ops are rejected with a ValueError."""
    with pytest.raises(ValueError, match="opcheck needs an op"):
        opcheck(target, (leaf(),))


def test_several_overloads_are_listed() -> None:
    """11: a packet is refused with the names to choose from; one overload is checked."""
    for target in (tp.mul, tp.ops.tp.mul):
        with pytest.raises(
            InvalidValueError, match=r"name one of tp::mul, tp::mul\.Scalar, tp::mul\.ScalarLeft"
        ):
            opcheck(target, (leaf(), leaf()))
    lib = library.Library("opcheck_named", "DEF")
    for overload in ("f.a(Tensor x) -> Tensor", "f.b(Tensor x, int k) -> Tensor"):
        lib.define(overload)
    with pytest.raises(
        InvalidValueError, match=r"opcheck_named::f has several: name one of opcheck_named::f\.a"
    ):
        opcheck(tp.ops.opcheck_named.f, (leaf(),))
    assert set(opcheck("tp::mul.Scalar", (leaf(), 2.0)).values()) == {"SUCCESS"}


def test_an_unregistered_op_is_named() -> None:
    """11, U1: no IndexError for an op whose Library is gone."""
    lib = library.Library("opcheck_gone", "DEF")
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x * 2.0, "CPU")
    kept = tp.ops.opcheck_gone.f
    lib._destroy()
    with pytest.raises(RuntimeError, match="opcheck_gone::f was unregistered"):
        opcheck(kept, (leaf(),))


def test_tolerances_go_together() -> None:
    """11: only one of atol and rtol is a ValueError."""
    f = op("tolerances")
    for option in ("rtol", "atol"):
        with pytest.raises(ValueError, match=f"got {option} alone"):
            opcheck(f, (leaf().detach(),), **{option: 1e-3})
    assert set(opcheck(f, (leaf().detach(),), rtol=1e-3, atol=1e-3).values()) == {"SUCCESS"}


def test_the_static_test_can_be_asked_for() -> None:
    """11: test_aot_dispatch_static is known, and finds what the dynamic one finds."""
    wrong = op("static", backward=lambda ctx, g: g * 3.0)
    results = opcheck(wrong, (leaf(),), test_utils=["test_aot_dispatch_static"], raise_exception=False)
    assert list(results) == ["test_aot_dispatch_static"]
    assert results["test_aot_dispatch_static"] != "SUCCESS"
    with pytest.raises(ValueError, match="no test named 'test_other'"):
        opcheck(wrong, (leaf(),), test_utils=["test_other"])


def test_a_setup_context_that_computes_is_no_leak() -> None:
    """11: what setup_context runs is not part of the op's node."""

    def setup(ctx, inputs, output):
        ctx.save_for_backward(tp.clone(inputs[0]) * 1.0)

    square = op("setup", lambda x: x * x, lambda ctx, g: g * 2.0 * ctx.saved_tensors[0], setup)
    assert set(opcheck(square, (leaf(),)).values()) == {"SUCCESS"}
    report = verify(square, (leaf(),), sweep=False)
    assert report.passed, report.text()


def test_outputs_that_hold_nan_are_no_failure() -> None:
    """11.5: a NaN where a NaN is, in outputs, repeated calls and compiled runs; where the values differ it is one."""
    log = op("log", lambda x: tp.log(x))
    assert set(opcheck(log, (tp.tensor([-1.0, 0.0, 2.0]),)).values()) == {"SUCCESS"}
    calls = iter(range(10**6))
    other = op("other", lambda x: tp.log(x) + (1.0 if next(calls) % 2 else 0.0))
    found = opcheck(other, (tp.tensor([-1.0, 0.0, 2.0]),), raise_exception=False)
    assert "SUCCESS" not in found["test_aot_dispatch_dynamic"]


def test_a_noisy_backward_of_a_nondeterministic_op_passes() -> None:
    """11: deterministic=False covers the last bits of its gradients, in every memory order."""
    rng = np.random.default_rng(0)

    def backward(ctx, g):
        return g * (2.0 + float(rng.uniform(-1e-7, 1e-7)))

    noisy = op("noisy", backward=backward, deterministic=False)
    report = verify(noisy, (tp.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True),), sweep=False)
    assert report.passed, report.text()
    strict = op("strict", backward=lambda ctx, g: g * (2.0 + float(rng.uniform(-1e-3, 1e-3))))
    assert not verify(strict, (leaf(),), sweep=False).passed


def divides(x: Tensor) -> Tensor:
    raise ZeroDivisionError("by nothing")


@pytest.mark.parametrize(
    ("body", "args", "told"),
    [
        (divides, (leaf(),), "ZeroDivisionError: by nothing"),
        (lambda x: x * 2.0, (3,), "must be Tensor, got int"),
    ],
)
def test_what_the_op_raises_is_in_the_verdict(body, args, told: str) -> None:
    """11: an op that takes none of the inputs says why."""
    failing = op("failing", body, override=True)
    with pytest.raises(OpCheckError, match=told):
        opcheck(failing, args)
    assert told in verify(failing, args).failures[0].detail
    assert "no call was given" in verify(failing, []).failures[0].detail


def test_names_of_tests_are_held_to_be_names() -> None:
    """11."""
    with pytest.raises(ArgumentError, match="argument 'test_utils' must be the name of a test or several"):
        opcheck(op("names"), (leaf(),), test_utils=3)
    assert opcheck(op("names", override=True), (leaf(),), test_utils=()) == {}


def test_an_op_that_is_gone_is_told_in_one_way() -> None:
    """U1."""
    with library.Library("opcheck_gone", "DEF") as lib:
        gone = lib.define("f(Tensor x) -> Tensor")
    for check in (opcheck, verify):
        with pytest.raises(RegistrationError, match="opcheck_gone::f was unregistered") as e:
            check(gone, (leaf(),))
        assert e.value.code == "TP1305"
