"""``fullgraph=False``: eager's values, effects, gradients and exceptions, with compiled segments between the breaks."""

from __future__ import annotations

from typing import Any

import pytest

import tensorplay as tp
from segmented import agrees, broken_at, line_of, ops_of, read_in_the_middle, vector
from tensorplay import Tensor
from tensorplay.errors import FallbackError


def test_ops_between_two_breaks_are_one_compiled_segment() -> None:
    """5.segments: fused, found again by the second call, with the break's code and line and every region's marker."""
    compiled = agrees(read_in_the_middle)
    graphs = [[node.target for node in graph.nodes] for graph in compiled.graphs]
    assert graphs == [
        ["tp::mul.Scalar", "tp::tanh.default", "tp::add.Scalar", "tp::sum.default"],
        ["tp::exp.default", "tp::mul.Scalar", "tp::sub.Scalar"],
    ]
    assert broken_at(compiled, "TP4003") == [line_of(read_in_the_middle, 2)]
    whole = compiled.report.breaks[0]
    assert "no one graph" in whole
    assert f":{line_of(read_in_the_middle, 2)}" in whole
    run = compiled.last_run
    assert ops_of(run.forward) == [
        ("tp::mul.Scalar", "tp::tanh.default", "tp::add.Scalar"),
        ("tp::sum.default",),
        ("tp::exp.default", "tp::mul.Scalar", "tp::sub.Scalar"),
    ]
    assert [region.index for region in run.forward] == [0, 1, 2]
    assert {region.marker.executor for region in run.forward} == {"native"}
    assert compiled.graphs[0].nodes[0].location.endswith(f":{line_of(read_in_the_middle, 1)}")
    before = len(compiled.graphs)
    for _ in range(5):
        compiled(vector())
    assert len(compiled.graphs) == before == 2


@pytest.mark.requires("tvm")
def test_segments_run_by_the_backend_asked_for() -> None:
    """5.segments: TVM has every pointwise region of every segment, forward and backward."""

    def loss(w: Tensor) -> Tensor:
        y = tp.tanh(w * 2.0) + 1.0
        scale = float(y.sum())
        return tp.sum(tp.exp(y) * scale - 1.0)

    eager, w = vector().requires_grad_(), vector().requires_grad_()
    compiled = tp.compile(loss, fullgraph=False, backend="tvm", on_fallback="record")
    loss(eager).backward()
    compiled(w).backward()
    assert w.grad.tolist() == eager.grad.tolist()
    run = compiled.last_run
    executors = {region.ops: region.marker.executor for region in run.forward + run.backward}
    assert executors["tp::mul.Scalar", "tp::tanh.default", "tp::add.Scalar"] == "tvm"
    assert executors["tp::exp.default", "tp::mul.Scalar", "tp::sub.Scalar"] == "tvm"
    assert executors["tp::sum.default",] == "native"
    assert [r.marker.executor for r in run.backward if "tp::mul.default" in r.ops] == ["tvm", "tvm"]
    made = len(compiled.builds)
    compiled(w).backward()
    assert made == len(compiled.builds) > 0


def test_a_function_that_captures_is_one_graph_as_with_fullgraph() -> None:
    """5.segments: the same graph, guards and entries; Python runs once."""
    calls = []

    def fn(x: Tensor, k: float = 2.0) -> Tensor:
        return tp.tanh(x * k) + 1.0

    def counted(x: Tensor) -> Tensor:
        return fn(x)

    one, other = tp.compile(counted), tp.compile(counted, fullgraph=False)
    for _ in range(3):
        assert one(vector()).tolist() == other(vector()).tolist()
    assert str(one.graphs[0]) == str(other.graphs[0])
    assert one.report.guards == other.report.guards
    assert not [b for b in other.report.breaks if b.startswith("[")]
    assert len(other.graphs) == 1
    assert calls == []


def test_sizes_and_numbers_that_change_do_not_compile_without_end() -> None:
    """5.segments: sizes become symbols, numbers have eight entries of a structure, then its steps run as they are."""

    def fn(x: Tensor, k: float) -> Tensor:
        y = x * k
        return y + float(y.sum())

    compiled = tp.compile(fn, fullgraph=False)
    for n in range(2, 9):
        assert compiled(tp.ones((n,)), 2.0).tolist() == fn(tp.ones((n,)), 2.0).tolist()
    assert len(compiled.graphs) < 14
    for k in range(40):
        assert compiled(tp.ones((3,)), float(k)).tolist() == fn(tp.ones((3,)), float(k)).tolist()
    assert len(compiled.graphs) <= 16
    assert compiled.last_run.forward[0].reason.kind == "RecompileLimit"


def test_structures_beyond_the_limit_run_as_they_are() -> None:
    """5.segments: a function whose segments never repeat keeps a bounded number of them."""

    def fn(x: Tensor, n: int) -> float:
        for _ in range(n):
            x = x * 1.0
        return float(x.sum())

    compiled = tp.compile(fn, fullgraph=False)
    for n in range(100):
        assert compiled(vector(), n) == 6.0
    assert len(compiled.graphs) <= 64
    assert compiled.last_run.forward[0].marker.executor == "eager"


@pytest.mark.thread_unsafe(reason="counters and loggers are the process's")
def test_counters_and_logs_tell_of_breaks(caplog: pytest.LogCaptureFixture) -> None:
    """5.log: each place once, by code."""
    before = tp.compiler.counters()
    with caplog.at_level("INFO", logger="tensorplay.graph"):
        agrees(read_in_the_middle)
    after = tp.compiler.counters()
    assert after["break.TP4003"] - before.get("break.TP4003", 0) == 2
    told = [r.getMessage() for r in caplog.records if "breaks off" in r.getMessage()]
    assert len(told) == 2
    assert "x.item()" in told[0]


def test_a_fallback_that_is_forbidden_is_an_error_in_segments_too() -> None:
    """5.segments: and what is pending then is computed all the same."""
    kept = []

    def fn(x: Tensor) -> Any:
        y = x * 2.0
        kept.append(y)
        return float(y.sum())

    compiled = tp.compile(fn, fullgraph=False, backend="triton", on_fallback="record")
    assert compiled(vector()) == 12.0
    assert compiled.last_run.forward[0].reason.kind == "BackendUnavailable"
    strict = tp.compile(fn, fullgraph=False, backend="tvm", on_fallback="error")
    with pytest.raises(FallbackError):
        strict(vector())
    assert kept[-1].tolist() == [2.0, 4.0, 6.0]
