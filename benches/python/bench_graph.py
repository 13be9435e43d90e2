"""Capture, and calls of what was compiled: the guards and the launch, on arrays that cost nothing."""

from __future__ import annotations

import tensorplay as tp


def chain(x, times: int = 200):
    for _ in range(times):
        x = x * 1.01
    return x


def bench_capture_200_ops(benchmark) -> None:
    assert len(benchmark(tp.graph.capture, chain, tp.ones(8)).nodes) == 200


def bench_graph_text_200_ops(benchmark) -> None:
    graph = tp.graph.capture(chain, tp.ones(8))
    assert tp.graph.parse(benchmark(graph.text)).text() == graph.text()


def bench_compiled_call_8_floats(benchmark) -> None:
    compiled = tp.compile(lambda x: x * 2 + 1)
    assert benchmark(compiled, tp.ones(8)).tolist() == [3.0] * 8
    assert [region.marker.executor for region in compiled.last_run.forward] == ["native"]


def bench_compiled_training_step(benchmark) -> None:
    compiled = tp.compile(lambda x: (x * 2 + 1).sum())
    x = tp.tensor([1.0] * 8, requires_grad=True)
    benchmark(lambda: compiled(x).backward())
    assert x.grad is not None
