"""Graphs with sizes that depend on data: what runs with them, what runs are held to, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from dynamic_sizes import pair, positives, some_positives, vector
from tensorplay import Tensor, library
from tensorplay.errors import CaptureError, ContractError

PROGRAMS = {
    "pointwise": lambda y, w: tp.tanh(y * 2.0 + 1.0),
    "broadcast": lambda y, w: y + w,
    "number": lambda y, w: (y > 1.5).astype(tp.float32) - y,
    "reduce": lambda y, w: (
        tp.sum(y),
        tp.sum(y, axis=0),
        tp.amax(y, axis=1),
        tp.sum(y, axis=1, keepdims=True),
    ),
    "mean": lambda y, w: tp.mean(y, axis=0),
    "matmul": lambda y, w: y @ w.reshape((3, 1)),
    "transposed": lambda y, w: (
        w.reshape((1, 3)) @ tp.permute_dims(y, (1, 0)),
        y @ tp.permute_dims(y, (1, 0)),
    ),
    "flat": lambda y, w: y.reshape((-1,)) * 2.0,
    "flatten": lambda y, w: (
        y.flatten(),
        y.flatten(0, 1) * 2.0,
        y.size + 0,
        y[None].squeeze(0),
        tp.flip(y, axis=0),
    ),
    "back": lambda y, w: tp.reshape(y.reshape((-1,)), (y.shape[0], 3)) + y.reshape((-1, 3)),
    "cat": lambda y, w: tp.concat([y, w.reshape((1, 3)), y * 2.0], axis=0) + 1.0,
    "stack": lambda y, w: tp.stack([y, y + 1.0]),
    "softmax": lambda y, w: tp.softmax(y, axis=-1),
    "columns": lambda y, w: (y[:, 1], y[:, :2] * 3.0, y[:, None] + 1.0, y[::2], y[1:]),
    "select": lambda y, w: y[0] + y[-1],
    "shape": lambda y, w: (tp.zeros((y.shape[0], 2)) + 1.0, tp.full((y.shape[0] * 2,), 3.0), y.shape[0] + 1),
    "expand": lambda y, w: tp.expand(w, (y.shape[0], 3)) * y,
    "index": lambda y, w: tp.take(y, tp.tensor([0, 1]), axis=0) if y.shape[0] >= 2 else y,
    "inplace": lambda y, w: y.clone().add_(w),
    "where": lambda y, w: tp.where(y > 1.0, y, tp.zeros_like(y)),
    "clone": lambda y, w: tp.permute_dims(y, (1, 0)).clone() * 2.0,
}


def leaves(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple) else [out]


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_serves_every_size(ns: str, name: str) -> None:
    """5.6: built-in ops behind a size that depends on data, one graph, values and shapes of eager for every size."""
    program, w = PROGRAMS[name], vector(0.5, -1.0, 2.0)
    op = positives(f"{ns}::f", 2, columns=3)
    f = tp.compile(lambda x: program(op(x), w))
    for k in (2, 7, 2, 33, 5):
        x = some_positives(k, 40)
        got, want = leaves(f(x)), leaves(program(op(x), w))
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert type(a) is type(b)
            if isinstance(b, Tensor):
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
            else:
                assert a == b
    assert len(f.graphs) == 1
    (graph,) = f.graphs
    assert graph.verify() == []
    assert tp.graph.parse(graph.text()) == graph


def test_empty_and_single_results(ns: str) -> None:
    """5.6: sizes 0 and 1 run through the graph that was captured for any."""
    op = positives(f"{ns}::f", columns=4)
    f = tp.compile(
        lambda x: (tp.sum(op(x) * 2.0), op(x).reshape((-1,)), tp.permute_dims(op(x), (1, 0)) + 1.0)
    )
    for values in ((-1.0, -2.0), (3.0, -1.0), (1.0, 2.0)):
        x = vector(*values)
        got, want = f(x), (tp.sum(op(x) * 2.0), op(x).reshape((-1,)), tp.permute_dims(op(x), (1, 0)) + 1.0)
        assert [t.tolist() for t in got] == [t.tolist() for t in want]
    assert len(f.graphs) == 1


def test_twenty_lengths_make_two_graphs_at_most(ns: str) -> None:
    """5.6: a data-dependent op does not make a function compile anew."""
    op = positives(f"{ns}::f")
    f = tp.compile(lambda x: tp.sum(op(x) * 2.0))
    for k in range(20):
        x = tp.tensor([1.0] * k + [-1.0] * (20 - k))
        assert f(x).item() == 2.0 * k
    assert len(f.graphs) == 1


def test_a_size_outside_of_its_range_is_an_error_of_the_run(ns: str) -> None:
    """5.7: named are the op, the axis, the size and the declared range; eager does not look."""
    op = positives(f"{ns}::f", 2, 4)
    f = tp.compile(lambda x: op(x) + 1.0)
    assert f(vector(1, 2, 3, -1, -1)).tolist() == [2.0, 3.0, 4.0]
    for x, size in ((vector(1, -1, -1, -1, -1), 1), (vector(1, 2, 3, 4, 5), 5)):
        assert op(x).shape == (size,)
        text = rf"{ns}::f: axis 0 of output 0 .* size {size}, .* declared u0 in \[2, 4\]"
        with pytest.raises(ContractError, match=text) as caught:
            f(x)
        assert caught.value.code == "TP3250"
        assert caught.value.op == f"{ns}::f"
    assert len(f.graphs) == 1


def test_rank_and_dtype_are_held_to_the_promise_as_well(ns: str) -> None:
    """5.7: a symbolic size excuses nothing else."""
    made: dict[str, Tensor] = {}
    op = library.custom_op(
        f"{ns}::f", lambda x: made["out"].clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )

    @op.register_fake
    def fake(x: Tensor) -> Tensor:
        return tp.empty((library.get_ctx().new_dynamic_size(), 2))

    f = tp.compile(lambda x: op(x) * 2.0)
    x = vector(1)
    made["out"] = tp.ones((3, 2))
    assert f(x).tolist() == [[2.0, 2.0]] * 3
    for wrong, text in (
        (tp.ones((6,)), r"shape \(6,\), the fake rule promised \(u0, 2\)"),
        (tp.ones((3, 4)), "size 4, where 2 is 2"),
        (tp.ones((3, 2), dtype=tp.float64), "dtype float64, the fake rule promised float32"),
    ):
        made["out"] = wrong
        with pytest.raises(ContractError, match=text):
            f(x)


def test_outputs_that_share_a_size_agree(ns: str) -> None:
    """5.7: two outputs of one symbol are one size, in every run."""
    good, bad = pair(f"{ns}::good", same=True), pair(f"{ns}::bad", same=False)
    f = tp.compile(lambda x: tp.add(*good(x)))
    assert f(vector(5, -1, 7)).tolist() == [5.0, 8.0]
    assert f(vector(5, 6, 7)).tolist() == [5.0, 7.0, 9.0]
    g = tp.compile(lambda x: tp.add(*bad(x)))
    assert g(vector(5, 6, -1)).tolist() == [5.0, 7.0]
    with pytest.raises(
        ContractError, match=f"{ns}::bad: axis 0 of output 1 .* size 4, where u0 is 3"
    ) as caught:
        g(vector(5, 6, 7))
    assert caught.value.code == "TP3251"


def test_a_multiple_of_a_size_tells_it(ns: str) -> None:
    """5.7: u0 is found from 2*u0 + 1, and a size that no u0 gives is refused."""

    @library.custom_op(f"{ns}::f", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return tp.ones((int(x.sum().item()),))

    op.register_fake(lambda x: tp.empty((2 * library.get_ctx().new_dynamic_size(1) + 1,)))
    f = tp.compile(lambda x: (op(x) + 1.0, (op(x).shape[0] - 1) // 2))
    out, half = f(vector(3, 4))
    assert (out.shape, half) == ((7,), 3)
    with pytest.raises(ContractError, match=r"size 8, which 2\*u0 \+ 1 cannot be"):
        f(vector(4, 4))
    with pytest.raises(ContractError, match="size 0, the fake rule declared u0 >= 1"):
        f(vector(1, 0))


def test_debug_mode_knows_such_sizes(ns: str) -> None:
    """5.7: eager calls are checked as well where one asks for it."""
    op = positives(f"{ns}::f", 2)
    with library.debug_checks():
        assert op(vector(1, 2)).tolist() == [1.0, 2.0]
        with pytest.raises(ContractError, match=f"{ns}::f: axis 0 of output 0 .* declared u0 >= 2"):
            op(vector(1, -2))


def differentiable(name: str) -> Any:
    """`positives` with its gradient: what was kept gets it, the rest zero."""
    op = positives(name)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    back = library.custom_op(
        f"{name}_back",
        lambda grad, x: tp.tensor(_scattered(grad.numpy(), x.numpy())),
        mutates_args=(),
        schema="(Tensor grad, Tensor x) -> Tensor",
    )
    back.register_fake(lambda grad, x: tp.empty_like(x))
    op.register_autograd(lambda ctx, grad: back(grad, ctx.saved_tensors[0]), setup_context=setup)
    return op


def _scattered(grad: Any, x: Any) -> Any:
    out = np.zeros_like(x)
    out[x > 0] = grad
    return out


@pytest.mark.parametrize(
    "program",
    [
        lambda y: tp.sum(y * y),
        lambda y: tp.sum(tp.exp(y.reshape((-1, 1))) * 2.0),
        lambda y: tp.sum(y),
        lambda y: tp.sum(tp.concat([y, y * 2.0], axis=0) * 3.0),
        lambda y: y * 3.0,
        lambda y: tp.sum(y) + tp.mean(tp.concat([y, tp.ones((1,))], axis=0)),
    ],
)
def test_training_through_such_an_op(ns: str, program: Any) -> None:
    """5.6: gradients of one compiled training entry for runs of different sizes."""
    op = differentiable(f"{ns}::f")
    f = tp.compile(lambda x: program(op(x)))
    for values in ((1.0, -1.0, 2.0, 0.5), (1.0, -1.0, -2.0, 0.5), (-1.0, -1.0, -2.0, -0.5)):
        a, b = vector(*values).requires_grad_(), vector(*values).requires_grad_()
        got, want = f(a), program(op(b))
        assert got.tolist() == want.tolist()
        got.backward(tp.ones_like(got))
        want.backward(tp.ones_like(want))
        assert a.grad is not None
        assert b.grad is not None
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-6)
    assert len(f.graphs) == 1


def test_a_number_that_needs_the_size_is_refused(ns: str) -> None:
    """5.6: an op's scalar that only a run knows."""
    op = differentiable(f"{ns}::f")
    x = vector(1, 2).requires_grad_()
    with pytest.raises(CaptureError, match="u0") as caught:
        tp.compile(lambda x: tp.sum(x) * float(op(x).shape[0]))(x)
    assert caught.value.code == "TP4002"


@pytest.mark.requires("tvm")
def test_tvm_builds_once_for_every_size(ns: str) -> None:
    """5.6: one artifact whatever the sizes, 0 and 1 included."""
    op = positives(f"{ns}::f", columns=3)
    w = vector(0.5, -1.0, 2.0)
    f = tp.compile(lambda x: tp.tanh(op(x) * 2.0) + w, backend="tvm", on_fallback="record")
    for k in (4, 9, 0, 1, 30):
        x = some_positives(k, 40)
        np.testing.assert_allclose(f(x).numpy(), (tp.tanh(op(x) * 2.0) + w).numpy(), rtol=1e-6)
        fused = f.last_run.forward[-1]
        assert (fused.marker.executor, fused.reason) == ("tvm", None)
    assert len(f.graphs) == 1
    assert len(f.builds) == 1


def test_positions_and_masks_have_sizes_of_their_own() -> None:
    """5.6: nonzero and x[mask] are captured once for every number of hits, with gradients; other sizes still guard."""
    positions = tp.compile(lambda x: tp.nonzero(x > 2.0))
    picked = tp.compile(lambda x: x[x > 2.0] * 2.0)
    total = tp.compile(lambda x: tp.sum(x[x > 2.0] ** 2))
    for first in (-6.0, -3.0, 0.0, 3.0):
        a = np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(first)
        np.testing.assert_array_equal(positions(tp.tensor(a)).numpy(), np.stack(np.nonzero(a > 2), axis=1))
        np.testing.assert_array_equal(picked(tp.tensor(a)).numpy(), a[a > 2] * 2)
        x = tp.tensor(a, requires_grad=True)
        total(x).backward()
        assert x.grad is not None
        np.testing.assert_array_equal(x.grad.numpy(), np.where(a > 2, 2 * a, 0))
    for f in (positions, picked, total):
        assert len(f.graphs) == 1
        assert f.graphs[0].verify() == []
    assert positions(tp.ones((4,))).shape == (0, 1)
    assert len(positions.graphs) == 2


def test_the_verifier_holds_a_symbol_to_its_rule() -> None:
    """5.7: a graph whose size stands where the rule gives another range, or a number, is refused."""
    graph = tp.graph.capture(tp.nonzero, tp.ones((2, 3)))
    text = graph.text()
    assert graph.verify() == []
    for old, new in (("[0, 6]", "[0, 7]"), ("int64[u0, 2]", "int64[4, 2]"), ("int64[u0, 2]", "int64[u0, 3]")):
        assert old in text
        found = [str(v) for v in tp.graph.parse(text.replace(old, new)).verify()]
        assert any("fake-rule" in v for v in found), (new, found)


def test_positions_need_data() -> None:
    """5.8: on meta there will never be any."""
    with pytest.raises(CaptureError) as e:
        tp.nonzero(tp.empty((2,), device="meta"))
    assert e.value.code == "TP4018"
