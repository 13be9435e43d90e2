"""Eager calls from Python on 8 float32: dispatch, not arithmetic; and one large array for the contrast."""

from __future__ import annotations

import tensorplay as tp


def bench_add(benchmark) -> None:
    x, y = tp.ones(8), tp.ones(8)
    assert benchmark(tp.add, x, y).tolist() == [2.0] * 8


def bench_add_operator(benchmark) -> None:
    x = tp.ones(8)
    assert benchmark(lambda: x + x).tolist() == [2.0] * 8


def bench_mul_by_a_python_float(benchmark) -> None:
    x = tp.ones(8)
    assert benchmark(lambda: x * 2.0).tolist() == [2.0] * 8


def bench_add_broadcast(benchmark) -> None:
    x, y = tp.ones((4, 8)), tp.ones(8)
    assert benchmark(tp.add, x, y).shape == (4, 8)


def bench_add_a_million(benchmark) -> None:
    x = tp.ones(1 << 20)
    assert benchmark(tp.add, x, x).shape == (1 << 20,)


def bench_matmul_256(benchmark) -> None:
    x = tp.ones((256, 256))
    assert benchmark(tp.matmul, x, x).shape == (256, 256)
