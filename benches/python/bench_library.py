"""Custom ops: what the contract costs around a Python body, and reading a schema."""

from __future__ import annotations

import pytest

import tensorplay as tp


def double(x):
    return tp.mul(x, 2.0)


@pytest.fixture(scope="module")
def scaled():
    op = tp.library.custom_op("bench::scaled", double, mutates_args=())
    op.register_autograd(lambda ctx, grad: (tp.mul(grad, 2.0),))
    return op


def bench_body_alone(benchmark) -> None:
    assert benchmark(double, tp.ones(8)).tolist() == [2.0] * 8


def bench_custom_op(benchmark, scaled) -> None:
    assert benchmark(scaled, tp.ones(8)).tolist() == [2.0] * 8


def bench_custom_op_grad_recorded(benchmark, scaled) -> None:
    x = tp.tensor([1.0] * 8, requires_grad=True)
    assert benchmark(scaled, x).requires_grad


def bench_schema_parse(benchmark) -> None:
    text = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
    assert str(benchmark(tp.library.Schema.parse, text)) == text
