"""What decides whether a kernel runs says so with a bool, and what is registered shows where it was written."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import AutogradError, ContractError, SchemaError

THIS = os.path.abspath(__file__)  # noqa: PTH100


def doubled(name: str) -> Any:
    @library.custom_op(name, mutates_args=())
    def f(x: Tensor, k: float = 2.0) -> Tensor:
        return x * k

    return f


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (lambda x, k: x, "Tensor"),
        (lambda x, k: (x > 0.0).all(), "Tensor"),
        (lambda x, k: None, "None"),
        (lambda x, k: 1, "int"),
        (lambda x, k: "no", "str"),
        (lambda x, k: [False], "list"),
        (lambda x, k: np.array([True]), "ndarray"),
        (lambda x, k: np.float64(1.0), "float64"),
    ],
)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_predicate_answers_with_a_bool(ns: str, answer: Any, got: str, shape: tuple[int, ...]) -> None:
    """Anything else is told with the op and the kernel, whatever its truth is."""
    op = doubled(f"{ns}::f")
    op.register_kernel("cpu", lambda x, k: x * 5.0, name="quick", when=answer)
    with pytest.raises(ContractError, match=f"of kernel 'quick' must return True or False, got {got}") as e:
        op(tp.ones(shape))
    assert (e.value.code, e.value.op) == ("TP3243", f"{ns}::f")


def test_bools_of_numpy_are_bools(ns: str) -> None:
    op = doubled(f"{ns}::f")
    op.register_kernel("cpu", lambda x, k: x * 5.0, name="quick", when=lambda x, k: np.float32(k) > 3)
    assert op(tp.ones((1,))).tolist() == [2.0]
    assert op(tp.ones((1,)), 4.0).tolist() == [5.0]


def test_what_a_predicate_raises_passes_unchanged(ns: str) -> None:
    op = doubled(f"{ns}::f")

    def when(x: Tensor, k: float) -> bool:
        raise KeyError("mine")

    op.register_kernel("cpu", lambda x, k: x * 5.0, name="quick", when=when)
    with pytest.raises(KeyError, match="mine") as caught:
        op(tp.ones((1,)))
    assert getattr(caught.value, "__notes__", []) == []


@pytest.mark.parametrize(
    "rule",
    [
        lambda x: (x, 0),
        lambda info, x, k: (x, 0),
        lambda info, in_dims, x: (x, 0),
        lambda info, in_dims, x, k, more: (x, 0),
        lambda info, in_dims, x, k, *, flag: (x, 0),
    ],
)
def test_a_batching_rule_that_cannot_be_called_is_refused_at_registration(ns: str, rule: Any) -> None:
    """With what vmap will hand over, as every other rule; the rule before stays."""
    op = doubled(f"{ns}::f")
    op.register_vmap(lambda info, in_dims, x, k: (x * k * 10.0, in_dims[0]))
    with pytest.raises(SchemaError, match="the batching rule '<lambda>' does not fit") as caught:
        op.register_vmap(rule)
    assert caught.value.code == "TP1315"
    assert caught.value.__notes__ == ["it is called with (info, in_dims, x, k)"]
    assert tp.func.vmap(op)(tp.ones((2,))).tolist() == [20.0, 20.0]


def test_a_batching_rule_gets_keyword_only_arguments_by_name(ns: str) -> None:
    op = library.custom_op(
        f"{ns}::f", lambda x, *, k=1: x * k, mutates_args=(), schema="(Tensor x, *, int k=1) -> Tensor"
    )
    with pytest.raises(SchemaError, match="'k'"):
        op.register_vmap(lambda info, in_dims, x: (x, 0))
    op.register_vmap(lambda info, in_dims, *args, **keywords: (args[0] * keywords["k"], in_dims[0]))
    assert tp.func.vmap(lambda x: op(x, k=3))(tp.ones((2,))).tolist() == [3.0, 3.0]


def test_saved_tensors_without_a_setup_function_are_an_error_that_says_so(ns: str) -> None:
    """An empty tuple would fail somewhere else."""
    op = doubled(f"{ns}::f")

    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x, None

    op.register_autograd(backward)
    for _ in range(2):
        with pytest.raises(AutogradError, match="registered without setup_context") as caught:
            op(tp.ones((2,)).requires_grad_()).sum().backward()
        assert caught.value.code == "TP3317"
    single = library.custom_op(f"{ns}::g", lambda x: x * 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    kept = []

    def keeps(ctx: Any, grad: Tensor) -> Tensor:
        kept.append(ctx)
        return grad * len(ctx.saved_tensors)

    single.register_autograd(keeps)
    with pytest.raises(AutogradError, match="registered without setup_context"):
        single(tp.ones((2,)).requires_grad_()).sum().backward()
    with pytest.raises(AutogradError, match="registered without setup_context"):
        _ = kept[0].saved_tensors
    assert "context" in repr(kept[0])


def test_a_setup_function_that_saves_nothing_leaves_an_empty_tuple(ns: str) -> None:
    op = doubled(f"{ns}::f")
    seen = []

    def backward(ctx: Any, grad: Tensor) -> Any:
        seen.append(ctx.saved_tensors)
        return grad, None

    op.register_autograd(backward, setup_context=lambda ctx, inputs, output: None)
    op(tp.ones((2,)).requires_grad_()).sum().backward()
    assert seen == [()]


def test_an_op_shows_its_batching_rule_and_autocast_with_file_and_line(ns: str) -> None:
    op = doubled(f"{ns}::f")
    assert "vmap" not in repr(op)
    assert op.to_dict()["vmap"] == {"kind": "missing", "location": None}

    def rule(info: Any, in_dims: Any, x: Any, k: Any) -> Any:
        return x * k, in_dims[0]

    with library.Library(ns, "FRAGMENT") as lib:
        op.register_vmap(rule, lib=lib)
        library.register_autocast(f"{ns}::f", "cpu", tp.bfloat16, lib=lib)
        line = rule.__code__.co_firstlineno
        assert f"vmap     python, {THIS}:{line}" in repr(op)
        assert f"autocast cpu: tensorplay.bfloat16, {THIS}:" in repr(op)
        facts = json.loads(json.dumps(op.to_dict()))
        assert facts["vmap"] == {"kind": "python", "location": f"{THIS}:{line}"}
        assert facts["autocast"]["cpu"]["dtype"] == "bfloat16"
        assert facts["autocast"]["cpu"]["location"].startswith(f"{THIS}:")
    assert "vmap" not in repr(op)
    assert "autocast" not in repr(op)
    op.register_vmap(rule)
    op.register_vmap(None)
    assert op.to_dict()["vmap"]["kind"] == "missing"


def test_signatures_and_types_can_be_read() -> None:
    import inspect

    assert "object object" not in str(inspect.signature(library.CustomOpDef.register_vmap))
    for described in (library.CustomOpDef, tp.compiler.CompiledFunction):
        assert described.__doc__
    for name in ("table", "to_dot", "to_dict", "outputs", "input_names"):
        assert getattr(tp.graph.Graph, name).__doc__
