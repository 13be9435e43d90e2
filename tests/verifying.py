"""Ops to verify, honest and planted, and the look-up of one failure in a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorplay as tp
from tensorplay import library
from tensorplay.verify import VerifyReport

Tensor = tp.Tensor


def failed(report: VerifyReport, name: str) -> str:
    """The detail of the one failure that starts with `name`; the report must have it."""
    found = [check for check in report.failures if check.name.startswith(name)]
    assert found, report.text()
    assert not report.passed
    return found[0].detail


def verdicts(report: VerifyReport, name: str) -> set[str]:
    """What the checks of that name among VALUES say."""
    return {check.verdict for check in report.values if check.name == name}


def define(name: str, body: Callable[..., Any], **options: Any) -> Any:
    """An op with a fake rule for outputs like its first argument."""
    options.setdefault("mutates_args", ())
    op = library.custom_op(name, body, **options)
    if body.__annotations__.get("return") in (None, "Tensor", Tensor):
        op.register_fake(lambda x, *_: tp.empty_like(x))
    return op


def good(name: str) -> Any:
    """An honest op with a fake rule, a gradient and a second kernel."""

    def body(x: Tensor, k: float = 2.0) -> Tensor:
        return tp.mul(tp.mul(x, x), k)

    op = define(name, body)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return tp.mul(tp.mul(grad, x), 2 * ctx.k), None

    op.register_autograd(backward, setup_context=setup)
    op.register_kernel("cpu", lambda x, k=2.0: tp.mul(tp.mul(x, k), x), name="other")
    return op


def differentiable(
    name: str,
    backward: Callable[..., Any],
    body: Callable[..., Any] | None = None,
    setup: Callable[..., None] | None = None,
) -> Any:
    op = define(name, body or (lambda x: tp.mul(x, 3.0)))
    op.register_autograd(backward, setup_context=setup)
    return op
