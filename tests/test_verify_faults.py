"""`verify` finds what a kernel, a fake rule or a backward must not do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.testing import make_tensor
from tensorplay.verify import verify
from verifying import define, differentiable, failed

Tensor = tp.Tensor


# --- mutation -------------------------------------------------------------------------------------------


def test_an_undeclared_write_through_raw_memory_is_found() -> None:
    def body(x: Tensor) -> Tensor:
        y = tp.mul(x, 2.0)
        memory = x.numpy()
        if memory.size:
            memory.reshape(-1)[0] += memory.dtype.type(1) if memory.dtype != bool else 0
        return y

    detail = failed(verify(define("vt::writes", body)), "inputs unchanged")
    assert "x was written to" in detail
    assert 'mutates_args=("x",)' in detail
    assert "replay: vt::writes(make_tensor(" in detail


def test_a_write_that_is_undone_is_found_by_its_version() -> None:
    def body(x: Tensor) -> Tensor:
        x.add_(1)
        y = tp.mul(x, 2)
        x.sub_(1)
        return y

    report = verify(define("vt::undone", body), (tp.tensor([1, 2, 3]),), sweep=False)
    assert "restored" in failed(report, "inputs unchanged")


def test_a_raw_write_that_is_undone_is_found_by_protected_memory() -> None:
    def body(x: Tensor) -> Tensor:
        memory = x.numpy()
        memory += 1
        y = tp.mul(x, 2)
        memory -= 1
        return y

    report = verify(define("vt::undone_raw", body), (tp.tensor([1, 2, 3]),), sweep=False)
    assert "writes to x during the call" in failed(report, "inputs unchanged")


def test_a_write_to_a_closure_tensor_is_found() -> None:
    total = tp.zeros((1,))

    def body(x: Tensor) -> Tensor:
        total.add_(1.0)
        return tp.mul(x, 2.0)

    report = verify(define("vt::closure", body), (tp.tensor([1.0, 2.0]),), sweep=False)
    assert "closure variable 'total' was written to" in failed(report, "inputs unchanged")


def test_a_declared_write_is_compared_and_passes() -> None:
    def body(x: Tensor, y: Tensor) -> None:
        x.mul_(2.0)

    op = library.custom_op("vt::declared", body, mutates_args=("x",))
    op.register_kernel("cpu", lambda x, y: (x.add_(x), None)[1], name="add")
    report = verify(op, (make_tensor((4,)), make_tensor((4,), seed=1)))
    assert report.passed, report.text()
    assert any(c.name == "'x' is written to" and c.verdict == "pass" for c in report.values)


def test_a_declared_write_that_never_happens_is_found() -> None:
    def body(x: Tensor, y: Tensor) -> Tensor:
        return tp.add(x, y)

    op = library.custom_op("vt::over", body, mutates_args=("y",))
    op.register_fake(lambda x, y: tp.empty_like(x))
    assert "declared but not seen: 'y'" in failed(verify(op), "'y' is written to")


# --- outputs --------------------------------------------------------------------------------------------


def test_a_returned_input_is_found() -> None:
    detail = failed(verify(define("vt::same", lambda x: x)), "outputs fit the schema")
    assert "output 0" in detail
    assert "'x'" in detail


def test_a_nondeterministic_op_is_found_unless_it_says_so() -> None:
    rng = np.random.default_rng(0)

    def body(x: Tensor) -> Tensor:
        return tp.add(x, float(rng.standard_normal()))

    assert "different bits" in failed(verify(define("vt::noise", body)), "repeated calls agree")
    assert verify(define("vt::declared_noise", body, deterministic=False)).passed


def test_state_that_outlives_a_call_is_found() -> None:
    count = itertools.count()

    def body(x: Tensor) -> Tensor:
        return tp.add(x, float(next(count)))

    assert "state that outlives" in failed(verify(define("vt::counter", body)), "repeated calls agree")


def test_a_result_kept_from_an_earlier_call_is_found() -> None:
    kept: dict[Any, Any] = {}

    def body(x: Tensor) -> Tensor:
        key = (tuple(x.shape), x.dtype.name)
        if key not in kept:
            kept[key] = tp.mul(x, 2.0)
        return kept[key].clone()

    assert "state outlives a call" in failed(verify(define("vt::kept", body)), "results do not depend")


def test_reading_memory_that_was_never_written_is_found() -> None:
    def body(x: Tensor) -> Tensor:
        out = tp.empty(x.shape, dtype=x.dtype)
        memory = out.numpy()
        half = memory.reshape(-1)[: memory.size // 2]
        half[...] = x.contiguous().numpy().reshape(-1)[: half.size]
        return out

    report = verify(define("vt::unwritten", body), (make_tensor((64,)),), sweep=False)
    assert "free memory" in failed(report, "no memory read before it is written")


# --- fake rules and graphs ------------------------------------------------------------------------------


def test_a_fake_rule_with_other_strides_is_found() -> None:
    op = library.custom_op("vt::strides", lambda x: tp.mul(x, 1.0).T.contiguous().T, mutates_args=())
    op.register_fake(lambda x: tp.empty_like(x))
    detail = failed(verify(op, (make_tensor((3, 4)),), sweep=False), "fake rule: strides")
    assert "vt::strides" in detail
    assert "(4, 1)" in detail
    assert "(1, 3)" in detail


@pytest.mark.parametrize(
    ("what", "rule"),
    [
        ("shape", lambda x: tp.empty((x.shape[0], 2 * x.shape[1]), dtype=x.dtype)),
        ("dtype", lambda x: tp.empty(x.shape, dtype=tp.float64)),
    ],
)
def test_a_fake_rule_with_another_shape_or_dtype_is_found(what: str, rule: Callable[..., Any]) -> None:
    op = library.custom_op(f"vt::fake_{what}", lambda x: tp.mul(x, 2.0), mutates_args=())
    op.register_fake(rule)
    detail = failed(verify(op, (make_tensor((3, 4)),), sweep=False), f"fake rule: {what}")
    assert f"the fake rule says {what}" in detail


def test_a_fake_rule_that_returns_its_input_is_found() -> None:
    def body(x: Tensor) -> tuple[Tensor, Tensor]:
        return tp.mul(x, 2.0), tp.mul(x, 3.0)

    op = library.custom_op("vt::fake_alias", body, mutates_args=())
    op.register_fake(lambda x: (x, tp.empty_like(x)))
    detail = failed(verify(op, (make_tensor((3, 4)),), sweep=False), "fake rule: aliasing")
    assert "aliasing mismatch" in detail
    assert "output 0" in detail


def test_an_inner_node_that_leaks_is_found() -> None:
    from tensorplay import graph
    from tensorplay._verify.graph_checks import examine
    from tensorplay._verify.report import Tally
    from tensorplay._verify.subject import subjects

    op = define("vt::leaky", lambda x: tp.mul(x, 2.0))
    honest = graph.capture(op, make_tensor((3,)))
    leaky = graph.capture(lambda x: tp.mul(op(x), 2.0), make_tensor((3,)))
    twice = graph.capture(lambda x: op(op(x)), make_tensor((3,)))
    for captured, complaint in (
        (honest, None),
        (leaky, "inner nodes leaked: ['tp::mul.Scalar']"),
        (twice, "2 nodes"),
    ):
        tally = Tally()
        examine(subjects(op)[0], captured, "", tally)
        failures = [check.detail for check in tally.checks() if check.verdict == "fail"]
        assert failures == [] if complaint is None else complaint in failures[0]


def test_an_op_without_a_fake_rule_is_a_skip_with_the_fix() -> None:
    op = library.custom_op("vt::no_fake", lambda x: tp.mul(x, 2.0), mutates_args=())
    report = verify(op, (make_tensor((3,)),), sweep=False)
    assert report.passed, report.text()
    assert any("register_fake" in check.detail for check in report.skips)


# --- gradients ------------------------------------------------------------------------------------------


def test_a_gradient_off_by_half_a_per_mille_is_found() -> None:
    op = differentiable("vt::grad_off", lambda ctx, grad: tp.mul(grad, 3.0015))
    detail = failed(verify(op), "gradient against differences in float64")
    assert "differences say" in detail
    assert verify(differentiable("vt::grad_right", lambda ctx, grad: tp.mul(grad, 3.0))).passed


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_wrong_number_of_gradients_is_found(count: int) -> None:
    op = differentiable(f"vt::grad_count_{count}", lambda ctx, grad: tuple([tp.mul(grad, 3.0)] * count))
    detail = failed(verify(op, (make_tensor((4,)),), sweep=False), "gradient has one value per input")
    assert f"expected 1, got {count}" in detail


def test_a_missing_gradient_is_found() -> None:
    op = differentiable("vt::grad_none", lambda ctx, grad: (None,))
    assert "backward returned None" in failed(verify(op), "gradient against differences")


def test_a_backward_that_reads_memory_order_is_found() -> None:
    def backward(ctx: Any, grad: Any) -> Any:
        import ctypes

        out = tp.empty(grad.shape, dtype=grad.dtype)
        if grad.size:
            raw = (ctypes.c_char * (grad.size * grad.dtype.itemsize)).from_address(grad.data_ptr())
            out.numpy()[...] = np.frombuffer(raw, dtype=grad.dtype.name).reshape(grad.shape) * 3
        return out

    op = differentiable("vt::grad_order", backward)
    assert "with a gradient that is" in failed(
        verify(op, (make_tensor((3, 4)),)), "gradient in any memory order"
    )


def test_a_backward_that_writes_to_the_gradient_is_found() -> None:
    def backward(ctx: Any, grad: Any) -> Any:
        out = tp.mul(grad, 3.0)
        if grad.size:
            grad.numpy()[...] = 0
        return out

    op = differentiable("vt::grad_writes", backward)
    assert "backward wrote to" in failed(verify(op, (make_tensor((3, 4)),), sweep=False), "backward leaves")


@pytest.mark.parametrize(("slope", "holds"), [(0.0, True), (0.3, True), (1.0, True), (1.5, False)])
def test_at_a_kink_any_one_sided_slope_will_do(slope: float, holds: bool) -> None:
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        rising = tp.where(x > 0, tp.ones_like(x), tp.zeros_like(x))
        return grad * tp.where(x == 0, tp.full_like(x, slope), rising)

    op = define(f"vt::kink_{int(slope * 10)}", tp_relu)
    op.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))
    report = verify(op, (tp.tensor([-1.0, 0.0, 2.0]),), sweep=False)
    assert report.passed is holds, report.text()


def tp_relu(x: Tensor) -> Tensor:
    return tp.maximum(x, 0.0)


def test_a_non_differentiable_op_is_held_to_it() -> None:
    op = define("vt::flat_grad", lambda x: tp.mul(x, 2.0))
    op.register_autograd(None)
    report = verify(op)
    assert report.passed, report.text()
    assert any(
        c.name == "gradient" and c.detail.startswith("1 case; non-differentiable") for c in report.values
    )


def test_a_backward_that_overwrites_what_it_saved_is_found() -> None:
    def backward(ctx: Any, grad: Any) -> Any:
        (y,) = ctx.saved_tensors
        out = tp.mul(grad, y)
        if y.size:
            y.detach().numpy()[...] = 0
        return out

    op = define("vt::saved", lambda x: tp.exp(x))
    op.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output))
    report = verify(op, (make_tensor((3, 4)),), sweep=False)
    assert "other gradients" in failed(report, "backward leaves")
