"""`verify` on what a tolerance or a first derivative hides: second gradients, signs of zero, effects that never show."""

from __future__ import annotations

from typing import Any

import tensorplay as tp
from tensorplay import library
from tensorplay.autograd import once_differentiable
from tensorplay.testing import make_tensor
from tensorplay.verify import opcheck, verify
from verifying import define, failed, good, verdicts

Tensor = tp.Tensor
SECOND = "second gradient against differences"


def cube(name: str, rule: Any) -> Any:
    op = define(name, lambda x: tp.mul(tp.mul(x, x), x))
    op.register_autograd(rule, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))
    return op


def test_a_wrong_second_derivative_is_found() -> None:
    """11.8: the first one is right; half of the dependence is cut off the tape."""

    def rule(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3.0 * x * x.detach()

    report = verify(cube("vts::half", rule), (make_tensor((2, 3)),))
    detail = failed(report, SECOND)
    assert "differences say" in detail
    assert [c.name for c in report.failures] == [SECOND]
    results = opcheck("vts::half", (make_tensor((2, 3)),), raise_exception=False)
    assert SECOND in results["test_aot_dispatch_dynamic"]


def test_right_second_derivatives_pass_and_others_say_why_not() -> None:
    """11.8: pass, or a skip with its reason."""
    right = cube("vts::right", lambda ctx, grad: grad * 3.0 * ctx.saved_tensors[0] * ctx.saved_tensors[0])
    assert verdicts(verify(right, (make_tensor((2, 3)),)), SECOND) == {"pass"}
    assert verdicts(verify(good("vts::good")), SECOND) == {"pass"}
    assert verdicts(verify(tp.tanh, (make_tensor((3,)),)), SECOND) == {"pass"}
    # A kink and a jump of the gradient are passed over.
    assert verify(tp.ops.tp.relu, (tp.tensor([0.0, 1.0, -2.0]),)).passed
    once = cube("vts::once", once_differentiable(lambda ctx, grad: grad * 3.0 * ctx.saved_tensors[0] ** 2.0))
    report = verify(once, (make_tensor((2, 3)),))
    (skip,) = [c for c in report.skips if c.name == SECOND]
    assert "once_differentiable" in skip.detail
    assert report.passed
    cut = cube("vts::cut", lambda ctx, grad: grad.detach() * 3.0 * ctx.saved_tensors[0].detach() ** 2.0)
    (skip,) = [c for c in verify(cut, (make_tensor((2, 3)),)).skips if c.name == SECOND]
    assert "no gradient is recorded" in skip.detail


def test_a_kernel_with_other_signs_of_zero_is_told() -> None:
    """-0.0 is equal to 0.0 and another value: within a tolerance a skip, where bits are asked for a failure."""
    op = define("vts::zeros", lambda x: tp.mul(x, 1.0))
    op.register_kernel("cpu", lambda x: tp.add(x, 0.0), name="add")
    given = (tp.tensor([-0.0, 1.0, 0.0]),)
    report = verify(op, given, sweep=False)
    name = "kernel add/cpu against default/default: signs of zeros"
    found = [c for c in report.skips if c.name.endswith("signs of zeros")]
    assert report.passed, report.text()
    assert [c.name.split(":")[-1] for c in found] == [name.split(":")[-1]]
    assert "first at [0]: got 0, expected -0" in found[0].detail
    exact = verify(op, given, sweep=False, rtol=0.0, atol=0.0)
    assert [c.name for c in exact.failures] == [found[0].name]
    assert "signs of zeros" in str(exact.to_json())
    op.register_kernel("cpu", lambda x: tp.mul(1.0, x), name="add")
    assert not [c for c in verify(op, given, sweep=False).skips if c.name.endswith("signs of zeros")]


def test_declared_effects_that_never_show_are_told() -> None:
    """8.4: a draw that no seed changes is a skip that says so; what no call can show is taken on trust, and said."""
    name = "declared effects are seen"
    noise = library.custom_op(
        "vts::noise", lambda x: x + tp.uniform(x.shape), mutates_args=(), effects="random"
    )
    noise.register_fake(lambda x: tp.empty_like(x))
    assert verdicts(verify(noise, (tp.ones((4,)),)), name) == {"pass"}
    calm = define("vts::calm", lambda x: tp.mul(x, 2.0), effects="random")
    report = verify(calm, (tp.ones((4,)),))
    (skip,) = [c for c in report.skips if c.name == name]
    assert "two seeds gave the same bits" in skip.detail
    assert skip.detail in report.text()
    ordered = define("vts::ordered", lambda x: tp.mul(x, 2.0), effects="ordered")
    (skip,) = [c for c in verify(ordered, (tp.ones((4,)),)).skips if c.name == name]
    assert "taken on trust" in skip.detail
