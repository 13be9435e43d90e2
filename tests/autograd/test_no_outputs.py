"""Calls that return no tensor, on tensors that require gradients: nothing is recorded, and nothing else changes."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.autograd import checkpoint


def show(ns: str) -> library.CustomOpDef:
    def nothing(x: Tensor) -> None:
        assert x.shape == (3,) or x.shape == ()

    op = library.custom_op(f"{ns}::show", nothing, mutates_args=())
    op.register_fake(lambda x: None)
    return op


def results(ns: str) -> dict[str, Any]:
    """One op per kind of result without a tensor in it, each called with one tensor."""

    def number(x: Tensor) -> int:
        return 3

    def real(x: Tensor) -> float:
        return 0.5

    def truth(x: Tensor) -> bool:
        return True

    def empty(x: Tensor) -> list[Tensor]:
        return []

    def of_list(xs: list[Tensor]) -> int:
        return len(xs)

    def written(buffers: list[Tensor], x: Tensor) -> None:
        for b in buffers:
            b.fill_(1.0)

    listed = library.custom_op(f"{ns}::of_list", of_list, mutates_args=())
    writes = library.custom_op(f"{ns}::written", written, mutates_args=("buffers",))
    made = {
        f.__name__: library.custom_op(f"{ns}::{f.__name__}", f, mutates_args=())
        for f in (number, real, truth, empty)
    }
    library.define(f"{ns}::schema", "(Tensor x) -> ()")
    library.impl(f"{ns}::schema", "cpu")(lambda x: None)
    return {
        **made,
        "nothing": show(ns),
        "of list": lambda x: listed([x, x * 2.0]),
        "empty list": lambda x: writes([], x.detach()),
        "schema": library.get_op(f"{ns}::schema"),
    }


KINDS = ("number", "real", "truth", "empty", "nothing", "of list", "empty list", "schema")


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_without_a_tensor_result_records_nothing(ns: str, kind: str) -> None:
    """Such a call on leaves and on results leaves the graph as it was, however often, and gradients are right."""
    call = results(ns)[kind]
    w = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    for _ in range(50):
        call(w)
        y = w * 2.0
        call(y)
        tp.sum(y * y).backward()
    gc.collect()
    assert w.grad is not None
    assert w.grad.tolist() == [400.0, 800.0, 1200.0]
    del y
    assert (w * 3.0).tolist() == [3.0, 6.0, 9.0]


def test_under_transforms_and_compilation(ns: str) -> None:
    """Inside of grad, vmap, checkpoint and a compiled training step."""
    op = show(ns)

    def program(x: Tensor) -> Tensor:
        op(x)
        return tp.sum(x * x)

    w = tp.tensor([1.0, 2.0, 3.0], requires_grad=True)
    assert tp.func.grad(program)(w.detach()).tolist() == [2.0, 4.0, 6.0]
    compiled = tp.compile(program)
    for step in (compiled, lambda x: checkpoint(program, x)):
        w.grad = None
        step(w).backward()
        assert w.grad is not None
        assert w.grad.tolist() == [2.0, 4.0, 6.0]
    assert tp.compile(lambda x: op(x))(w) is None
    with pytest.warns(UserWarning, match="no batching rule"):
        assert tp.func.vmap(lambda x: (op(x), x * 2.0)[1])(w).tolist() == [2.0, 4.0, 6.0]
