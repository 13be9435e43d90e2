"""Calls that read only literals run once, when a function is compiled: the same bits, and nobody can tell."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import library


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(x)).tobytes()


def table(x):
    """Positions, a mask and a scale, none of which depends on x."""
    positions = tp.arange(6, dtype=tp.float32).reshape((2, 3))
    mask = tp.eye(3) * 0.1 + tp.full((3,), 0.2)
    return tp.matmul(x + tp.sin(positions), mask) * tp.sqrt(tp.full((), 3.0))


def targets(graph):
    return [node.target for node in graph.nodes]


def kinds(graph):
    return [kind for _, _, kind in graph._structure()["inputs"]]


def test_calls_on_literals_run_once_with_the_bits_of_eager():
    """C: what reads only literals is computed when the function is compiled; the result is eager's to the bit."""
    compiled = tp.compile(table)
    x = tp.tensor([[0.5, -1.0, 2.0], [float("inf"), -0.0, 3.0]])
    first = compiled(x)
    with tp.trace() as events:
        second = compiled(x)
    assert bits(first) == bits(second) == bits(table(x))
    ran = " ".join(event.op for event in events)
    assert not any(name in ran for name in ("arange", "eye", "full", "sin", "sqrt"))
    (graph,) = compiled.graphs
    assert "constant" in kinds(graph)
    assert graph.verify() == []
    assert {"tp::arange.default", "tp::sin.default"} <= set(compiled.report.removed)


def test_a_result_is_a_new_tensor_in_each_run():
    """C: what is returned, and what shares its memory, is made anew, so that the caller may write to it."""

    def made(x):
        y = tp.ones((3,)) * 2.0
        z = tp.zeros((4,))
        return y, z.reshape((2, 2)), x + y

    compiled = tp.compile(made)
    x = tp.tensor([1.0, 2.0, 3.0])
    for _ in range(3):
        got, want = compiled(x), made(x)
        assert [bits(g) for g in got] == [bits(w) for w in want]
        for tensor in got:
            tensor.add_(7.0)


def test_a_tensor_that_is_written_to_is_new_in_each_run():
    """C: a buffer made of literals and written to starts from its literals every time."""

    def counted(x):
        count = tp.zeros((3,))
        count += tp.ones((3,))
        count[0] = x[0]
        return count * 2.0

    compiled = tp.compile(counted)
    for start in (1.0, 5.0, -2.0):
        x = tp.tensor([start, 0.0, 0.0])
        assert bits(compiled(x)) == bits(counted(x))


def test_a_kernel_of_the_users_gets_a_tensor_of_its_own():
    """C: a Python kernel may keep its argument, or write to it when nobody looks: no run sees another's."""
    kept = []

    @library.custom_op("constants::keeps", mutates_args=())
    def keeps(x: tp.Tensor) -> tp.Tensor:
        kept.append(x)
        return x + 1.0

    @keeps.register_fake
    def _(x):
        return tp.empty_like(x)

    compiled = tp.compile(lambda x: keeps(tp.ones((2,)) * 3.0) + x)
    x = tp.tensor([1.0, 2.0])
    compiled(x)
    kept[0].add_(100.0)
    assert compiled(x).tolist() == [5.0, 6.0]
    assert kept[0] is not kept[1]


def test_what_the_caller_is_shown_is_no_tensor_of_a_run():
    """C: `graph.constants` gives copies of what was computed; writing to them changes no run."""
    compiled = tp.compile(table)
    x = tp.ones((2, 3))
    want = bits(compiled(x))
    for tensor in compiled.graphs[0].constants.values():
        tensor.add_(1.0)
    assert bits(compiled(x)) == want


def test_a_new_kernel_is_used_from_then_on():
    """C: a kernel registered for an op whose calls were computed ahead makes a new entry."""
    compiled = tp.compile(lambda x: x + tp.sin(tp.ones((2,))))
    x = tp.zeros((2,))
    compiled(x)
    with library.Library("tp", "IMPL") as lib:
        lib.impl("sin", lambda t: tp.full(t.shape, 5.0), "CPU")
        assert compiled(x).tolist() == [5.0, 5.0]
    assert compiled(x).tolist() == tp.sin(tp.ones((2,))).tolist()


def test_sizes_of_a_run_are_no_constants():
    """C: what depends on a symbolic size is computed in each run."""

    def numbered(x):
        return x + tp.cumsum(tp.full((x.shape[0],), 0.1), axis=0) * tp.exp(tp.full((1,), 2.0))

    compiled = tp.compile(numbered, dynamic=True)
    for n in (3, 5, 8):
        x = tp.ones((n,))
        assert bits(compiled(x)) == bits(numbered(x))
    (graph,) = compiled.graphs
    assert "tp::cumsum.default" in targets(graph)
    assert "tp::exp.default" not in targets(graph)


def test_gradients_flow_past_constants():
    """C: a training entry computes ahead in both halves, and its gradients are eager's."""

    def loss(x):
        return tp.sum(tp.tanh(x * tp.full((3,), 0.3)) * tp.arange(3, dtype=tp.float32))

    compiled = tp.compile(loss)
    found = []
    for f in (loss, compiled, compiled):
        x = tp.tensor([0.5, -1.0, 2.0], requires_grad=True)
        value = f(x)
        value.backward()
        found.append((bits(value.detach()), bits(x.grad)))
    assert found[0] == found[1] == found[2]


def test_a_folded_graph_is_stored_and_shown_like_any_other(tmp_path):
    """C: text, source, JSON, files, scripts and calls of a graph with constants give the same program."""
    compiled = tp.compile(table)
    x = tp.tensor([[0.5, -1.0, 2.0], [1.0, -0.0, 3.0]])
    want = bits(compiled(x))
    (graph,) = compiled.graphs
    assert tp.graph.parse(graph.text()).text() == graph.text()
    assert bits(graph(x)) == want
    assert bits(tp.compile(graph)(x)) == want
    tp.graph.save(graph, tmp_path / "program.safetensors")
    loaded = tp.graph.load(tmp_path / "program.safetensors")
    assert loaded.text() == graph.text()
    assert bits(loaded(x)) == want
    assert tp.graph.from_json(graph.to_json()).text() == graph.text()
    compile(graph.code(), "code", "exec")
    graph.save_repro(tmp_path / "repro.py")
    done = subprocess.run(
        [sys.executable, tmp_path / "repro.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_error_of_a_constant_is_the_runs():
    """C: what the kernel refuses is refused when it would have run, not while the function is compiled."""

    def divided(x):
        return x + tp.arange(3) // tp.zeros((3,), dtype=tp.int64)

    compiled = tp.compile(divided)
    with pytest.raises(ZeroDivisionError) as found:
        compiled(tp.arange(3))
    assert found.value.op is not None


def program(draw: random.Random):
    """A function of x over constants of several dtypes, and what it does as text."""
    dtypes = [tp.float32, tp.float64, tp.int32, tp.int64, tp.float16, tp.bfloat16]
    makers = [
        lambda: (
            "full",
            draw.choice([0.1, -0.0, float("nan"), float("-inf"), 3, -7, 1e30]),
            draw.choice(dtypes),
        ),
        lambda: ("arange", draw.choice([-2, 0, 1]), draw.choice(dtypes)),
        lambda: ("eye", draw.choice([-1, 0, 1]), draw.choice(dtypes)),
    ]
    steps: list[Any] = [draw.choice(makers)() for _ in range(draw.randint(1, 3))]
    unary = ["neg", "abs", "exp", "tanh", "sqrt", "transpose", "sum", "cumsum", "flip", "clone"]
    for _ in range(draw.randint(3, 12)):
        if draw.random() < 0.5:
            steps.append((draw.choice(unary), draw.random()))
        else:
            steps.append(
                (
                    draw.choice(["add", "mul", "sub", "maximum", "matmul", "with_x"]),
                    draw.random(),
                    draw.random(),
                )
            )
    return steps


def run(steps, x):
    made = [x]
    for name, *rest in steps:
        pick = lambda p: made[int(p * len(made))]  # noqa: E731
        match name:
            case "full":
                value, dtype = rest
                bad = isinstance(value, float) and not dtype.is_floating_point
                out = tp.full((3, 3), 2 if bad or abs(value) > 60000 else value, dtype=dtype)
            case "arange":
                out = tp.astype(tp.arange(rest[0], rest[0] + 9), rest[1]).reshape((3, 3))
            case "eye":
                out = tp.eye(3, k=rest[0], dtype=rest[1])
            case "transpose":
                out = tp.transpose(pick(rest[0]), 0, 1)
            case "sum":
                out = tp.sum(pick(rest[0]), axis=0, keepdims=True) + tp.zeros((3, 3))
            case "cumsum":
                out = tp.cumsum(pick(rest[0]), axis=1)
            case "exp" | "tanh" | "sqrt":
                out = getattr(tp, name)(tp.astype(pick(rest[0]), tp.float32))
            case "matmul":
                out = tp.matmul(tp.astype(pick(rest[0]), tp.float32), tp.astype(pick(rest[1]), tp.float32))
            case "with_x":
                out = pick(rest[0]) + x * 0.5
            case "add" | "mul" | "sub" | "maximum":
                out = getattr(tp, name)(pick(rest[0]), pick(rest[1]))
            case _:
                out = getattr(tp, name)(pick(rest[0]))
        made.append(out)
    return tuple(made[-3:])


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_over_constants_are_eagers_to_the_bit(seed):
    """C: eager and compiled agree bit for bit, in the first run and the next, NaN's sign aside."""
    steps = program(random.Random(seed))
    compiled = tp.compile(run_of(steps))
    for start in (0.25, float("nan"), -3.0):
        x = tp.full((3, 3), start)
        for got, want in zip(compiled(x), run(steps, x), strict=True):
            assert got.dtype == want.dtype
            assert got.stride() == want.stride()
            pair = [np.asarray(tp.astype(t, tp.float64)) for t in (got, want)]
            np.testing.assert_array_equal(*pair)
            np.testing.assert_array_equal(*[np.signbit(p) & ~np.isnan(p) for p in pair])
            got.fill_(1)


def run_of(steps):
    return lambda x: run(steps, x)
