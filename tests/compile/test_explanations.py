"""What `explain()` says is true of the nodes and of the kernels that it names."""

from __future__ import annotations

from typing import Any

import pytest

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

from tensorplay import Tensor, library
from tensorplay.errors import CaptureError


def test_a_break_names_the_node_that_its_reason_is_true_of() -> None:
    """A pointwise node behind a reduction is not said to be none; each node is told once."""
    x = tp.ones((3,))
    assert tp.compile(lambda x: tp.sum(x + 1.0) * 2.0).explain(x).breaks == [
        "n1 (tp::sum.default): not pointwise"
    ]
    first = tp.compile(lambda x: tp.exp(tp.sum(x)) + tp.sum(x)).explain(x).breaks
    assert first == ["n0 (tp::sum.default): not pointwise"]
    view = tp.compile(lambda x: tp.reshape(x, (1, 3)) * 2.0).explain(x).breaks
    assert view == ["n0 (tp::reshape.default): a view, nothing to compute"]
    chain = tp.compile(lambda x: tp.cumulative_sum(tp.cumulative_sum(x, axis=0), axis=0)).explain(x).breaks
    assert [line.split(" ")[0] for line in chain] == ["n1"]
    assert tp.compile(lambda x: tp.exp(x) * 2.0).explain(x).breaks == []


def test_breaks_of_a_backward_are_true_too() -> None:
    explained = tp.compile(lambda x: tp.sum(x + 1.0) * 2.0).explain(tp.ones((3,)).requires_grad_())
    pointwise = [line for line in explained.breaks if "tp::mul" in line or "tp::add" in line]
    assert pointwise == []
    told = [line.partition(" (")[0] for line in explained.breaks if "tp::expand" in line]
    assert [line.split(" ")[0] for line in told] == ["backward"]


def op_of(ns: str) -> Any:
    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor) -> Tensor:
        return x * 2.0

    f.register_fake(lambda x: tp.empty_like(x))
    return f


def test_a_call_is_planned_for_the_kernels_it_has() -> None:
    """What the plan names is what the run names."""
    f = op_of("explained")
    compiled = tp.compile(lambda x: f(x) + 1.0)
    x = tp.ones((3,))
    assert compiled.explain(x).regions == [
        "forward 0: explained::f.default on python",
        "forward 1: tp::add.Scalar on native",
    ]
    compiled(x)
    assert [run.marker.executor for run in compiled.last_run.forward] == ["python", "native"]
    f.register_kernel("cpu", lambda x: x * 2.0, name="quick", when=lambda x: x.ndim == 2, executor="mine")
    again = tp.compile(lambda x: f(x) + 1.0)
    assert again.explain(x).regions[0] == "forward 0: explained::f.default on mine or python"
    f.register_kernel("cpu", lambda x: x * 2.0, name="always", executor="other")
    again = tp.compile(lambda x: f(x) + 1.0)
    assert again.explain(x).regions[0] == "forward 0: explained::f.default on other"


@pytest.mark.parametrize("read", [lambda x: x.numpy(), lambda x: float(x.sum()), lambda x: x.data_ptr()])
def test_a_body_that_reads_values_is_told_to_get_a_fake_rule(read: Any) -> None:
    """It is an op of its own already."""

    def body(x: Tensor) -> Tensor:
        read(x)
        return x * 2.0

    op = library.custom_op("explained::body", body, mutates_args=(), override=True)
    op.register_fake(library.fake_from_body)
    with pytest.raises(CaptureError) as caught:
        tp.graph.capture(lambda x: op(x), tp.ones((2,)))
    notes = " ".join(caught.value.__notes__)
    assert "write one with register_fake" in notes
    assert "custom_op" not in notes
