"""`verify` finds what shows only beside the inputs it was given: other sizes, ranks, numbers, and state left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import tensorplay as tp
from tensorplay.verify import verify
from verifying import define, differentiable, failed

Tensor = tp.Tensor

LOG: list[int] = []
KEPT: list[Tensor] = []


def seeds(x: Tensor) -> Tensor:
    tp.manual_seed(0)
    return x * 2.0


def logs(x: Tensor) -> Tensor:
    LOG.append(1)
    return x * 2.0


def keeps_output(x: Tensor) -> Tensor:
    y = x * 2.0
    KEPT.append(y)
    return y


def keeps_input(x: Tensor) -> Tensor:
    KEPT.append(x)
    return x * 2.0


@pytest.mark.parametrize(
    ("body", "what"),
    [(seeds, "manual_seed"), (logs, "'LOG' has"), (keeps_output, "'KEPT' has"), (keeps_input, "'KEPT' has")],
)
def test_state_that_outlives_a_call_is_found(body: Callable[..., Any], what: str) -> None:
    state = tp._native.rng_state()
    report = verify(define(f"vmf::{body.__name__}", body), (tp.ones((2, 3)),), sweep=False)
    assert tp._native.rng_state() == state or body is seeds
    detail = failed(report, "repeated calls agree")
    assert "state outlives a call" in detail
    assert what in detail


def test_a_fake_rule_of_another_rank_is_a_failure() -> None:
    op = define("vmf::rank", lambda x: x * 2.0)
    op.register_fake(lambda x: tp.empty((*x.shape, 1)))
    assert "(2, 3, 1)" in failed(verify(op, (tp.ones((2, 3)),), sweep=False), "fake rule")


def test_one_element_and_no_dimension_are_tried() -> None:
    op = define("vmf::one", lambda x: x * 2.0)
    op.register_kernel("cpu", lambda x: x * 2.0 if x.numel() != 1 else x * 3.0, name="fast")
    assert "one element" in failed(verify(op, (tp.ones((2, 3)),)), "kernel cpu/fast")
    op = define("vmf::same", lambda x: x if x.ndim == 0 else x * 2.0)
    report = verify(op, (tp.ones((2, 3)),))
    assert any("rank 0" in check.detail for check in report.failures), report.text()


@pytest.mark.parametrize("inputs", [(tp.ones((2, 3)), 2.0), None])
def test_a_gradient_that_ignores_a_number_is_found(inputs: Any) -> None:
    def body(x: Tensor, k: float = 2.0) -> Tensor:
        return x * k

    op = differentiable(f"vmf::number_{inputs is None}", lambda ctx, g: (g * 2.0, None), body)
    assert "k=" in failed(verify(op, inputs), "gradient")


def test_a_gradient_wrong_in_float32_alone_is_found() -> None:
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * (3.0 if grad.dtype == tp.float64 else 3.0015)

    op = differentiable("vmf::narrow", backward)
    assert "'x' is off by" in failed(verify(op, (tp.ones((2, 3)),), sweep=False), "gradient in float32")


@pytest.mark.parametrize(("factor", "axis", "holds"), [(2.0, 0, True), (2.001, 0, False), (2.0, None, False)])
def test_a_batching_rule_is_held_against_a_loop(factor: float, axis: int | None, holds: bool) -> None:
    def rule(info: Any, in_dims: Any, x: Tensor, k: float) -> Any:
        return x * factor * k, in_dims[0] if axis is not None else (0 if in_dims[0] else 1)

    op = define(
        f"vmf::batch_{factor}_{axis}".replace(".", "_"),
        lambda x, k=1.0: x * 2.0 * k,
        schema="(Tensor x, float k=1.0) -> Tensor",
    )
    op.register_vmap(rule)
    report = verify(op, (tp.tensor([[1.0, 2.0], [3.0, 4.0]]),))
    if holds:
        assert report.passed, report.text()
        assert any(check.name == "batching rule against a loop" for check in report.values)
    else:
        assert "in_dims" in failed(report, "batching rule")


SHARED: dict[str, Tensor] = {}


def test_a_rule_that_reads_another_call_is_found() -> None:
    """What setup_context leaves in a global is the newest call's."""

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        SHARED["x"] = ctx.x = inputs[0]

    square = lambda x: x * x  # noqa: E731
    wrong = differentiable("vmf::shared", lambda ctx, g: g * SHARED["x"] * 2.0, square, keep)
    right = differentiable("vmf::own", lambda ctx, g: g * ctx.x * 2.0, square, keep)
    x = (tp.tensor([1.0, 2.0, 3.0]),)
    assert "keep what backward needs on ctx" in failed(verify(wrong, x), "gradient of its own call")
    assert verify(right, x).passed


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def speechless(x: Tensor) -> Tensor:
    raise Speechless


def test_an_error_without_a_text_is_a_verdict_all_the_same() -> None:
    detail = failed(verify(define("vmf::speechless", speechless), (tp.ones((2,)),)), "inputs")
    assert "Speechless: (its text raises RuntimeError)" in detail


def test_threads_that_verify_at_once_do_not_see_each_other() -> None:
    """The state of the process that one of them uses is no fault of another one's op."""
    op = differentiable("vmf::honest", lambda ctx, g: g * 3.0)
    reports: list[Any] = []

    def check() -> None:
        reports.append(verify(op, (tp.tensor([[1.0, 2.0], [3.0, 4.0]]),)))

    threads = [threading.Thread(target=check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.passed for report in reports] == [True] * 4, [report.text() for report in reports]
