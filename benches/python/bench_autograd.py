"""The tape: recording on it, and running it backward."""

from __future__ import annotations

import tensorplay as tp


def leaf():
    return tp.tensor([1.0] * 8, requires_grad=True)


def chain(x, times: int = 100):
    for _ in range(times):
        x = x * 1.01
    return x


def bench_record_one_op(benchmark) -> None:
    x = leaf()
    assert benchmark(lambda: x * 2.0).requires_grad


def bench_record_chain_of_100(benchmark) -> None:
    assert benchmark(chain, leaf()).requires_grad


def bench_chain_of_100_forward_and_backward(benchmark) -> None:
    x, ones = leaf(), tp.ones(8)
    benchmark(lambda: chain(x).backward(ones))
    assert x.grad is not None


def bench_sum_backward(benchmark) -> None:
    x = leaf()
    benchmark(lambda: (x * 2).sum().backward())
    assert x.grad is not None


def bench_mlp_step(benchmark) -> None:
    weights = [tp.tensor([[0.01] * 64] * 64, requires_grad=True) for _ in range(3)]
    x = tp.ones((32, 64))

    def step() -> None:
        h = x
        for w in weights:
            h = tp.relu(h @ w)
        tp.mean(h * h).backward()

    benchmark(step)
    assert all(w.grad is not None for w in weights)
