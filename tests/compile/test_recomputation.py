"""What a training region keeps for its backward, and what the backward makes again instead: the same bits, fewer bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.errors import AutogradError

N = 1 << 16


def gelu(x):
    """In ten pointwise operations."""
    cube = x * x * x
    inner = (x + cube * 0.044715) * 0.7978845608
    return x * 0.5 * (tp.tanh(inner) + 1.0)


def gradients(f: Callable[..., Any], *inputs: Any) -> list[bytes]:
    """Bits of the results and of the gradients of the sum of their squares."""
    leaves = [tp.clone(t).requires_grad_() for t in inputs]
    out = f(*leaves)
    outs = out if isinstance(out, tuple) else (out,)
    kept = [np.asarray(o.detach()).tobytes() for o in outs]
    total = sum(tp.sum(tp.astype(o, tp.float32) * 0.5) for o in outs)
    total.backward()
    return kept + [b"" if t.grad is None else np.asarray(t.grad).tobytes() for t in leaves]


def kept(compiled: Any) -> tuple[int, int, int]:
    """Values and bytes kept, and the bytes without making anything again."""
    (line,) = [line for line in compiled.report.memory if line.startswith("kept")]
    values, held = re.match(r"kept for the backward: (\d+) values? of (\d+) bytes", line).groups()
    whole = re.search(r"or (\d+) bytes", line)
    return int(values), int(held), int(whole[1]) if whole else int(held)


def normal(n: int = N, seed: int = 0) -> Any:
    return tp.from_numpy(np.random.default_rng(seed).standard_normal(n).astype(np.float32))


def test_a_chain_keeps_its_input_alone():
    """C: gelu of ten pointwise calls keeps x; its backward makes the rest again, and gradients are eager's to the bit."""
    compiled = tp.compile(gelu)
    x = normal()
    assert gradients(compiled, x) == gradients(gelu, x) == gradients(compiled, x)
    values, held, whole = kept(compiled)
    assert (values, held) == (1, 4 * N)
    assert whole >= 4 * held
    assert [i for i in compiled.graphs[0].backward._structure()["inputs"] if i[2] == "saved"] != []
    assert "tp::tanh.default" in [n.target for n in compiled.graphs[0].backward.nodes]


def test_what_a_call_makes_is_kept():
    """C: results of matrix products, sums, random and user's ops are never made again."""

    @library.custom_op("recompute::twice", mutates_args=())
    def twice(x: tp.Tensor) -> tp.Tensor:
        return x * 2.0

    twice.register_fake(lambda x: tp.empty_like(x))
    twice.register_autograd(lambda ctx, g: g * 2.0)

    def f(x, w):
        h = tp.exp(tp.tanh(tp.matmul(x, w)))
        r = tp.exp(tp.tanh(twice(x)))
        d = tp.tanh(tp.exp(x * tp.uniform((256, 256))))
        return h, r, d

    compiled = tp.compile(f)
    x, w = normal().reshape((256, 256)), normal(seed=1).reshape((256, 256))
    pair = []
    for g in (f, compiled):
        tp.manual_seed(3)
        pair.append(gradients(g, x, w))
    assert pair[0] == pair[1]
    again = [n.target for n in compiled.graphs[0].backward.nodes]
    assert not {"tp::uniform.default", "recompute::twice.default"} & set(again)
    assert again.count("tp::matmul.default") == 2
    _, held, whole = kept(compiled)
    assert held < whole


def test_an_argument_that_eager_lets_go_may_be_written_to():
    """C: what the backward does not read is not kept in place of what it does: the caller may write to it."""

    def f(a, b):
        return tp.tanh(tp.exp(a + b))

    compiled = tp.compile(f)
    found = []
    for g in (f, compiled):
        a, b = normal().requires_grad_(), normal(seed=2)
        c = tp.clone(b)
        out = g(a, c)
        c.add_(1.0)
        out.backward(tp.ones((N,)))
        found.append(np.asarray(a.grad).tobytes())
    assert found[0] == found[1]


def test_a_kept_argument_that_is_written_to_is_refused():
    """C: what is made again is made of what the forward had; a write in between is an error, as in eager."""
    compiled = tp.compile(gelu)
    x = normal().requires_grad_()
    y = x * 1.0
    out = compiled(y)
    with tp.no_grad():
        y.add_(1.0)
    with pytest.raises(AutogradError) as found:
        out.backward(tp.ones((N,)))
    assert found.value.code == "TP3003"


def test_small_regions_keep_what_they_read():
    """C: a few kilobytes are not worth making again."""
    compiled = tp.compile(gelu)
    gradients(compiled, normal(64))
    assert kept(compiled)[1] == kept(compiled)[2]


def test_recomputation_with_symbolic_sizes():
    """C: one entry for all sizes makes the same values again in each."""
    compiled = tp.compile(gelu, dynamic=True)
    for n in (N, N + 3, 7, 2 * N):
        x = normal(n, seed=n)
        assert gradients(compiled, x) == gradients(gelu, x)
    assert len(compiled.graphs) == 1
    assert "tp::tanh.default" in [n.target for n in compiled.graphs[0].backward.nodes]


@pytest.mark.requires("tvm")
def test_recomputation_on_a_backend():
    """C: the backward's regions, those that make values again included, are offered to the backend."""
    compiled = tp.compile(gelu, backend="tvm", on_fallback="error")
    x = normal()
    assert gradients(compiled, x) == gradients(gelu, x)
    assert kept(compiled)[0] == 1
    assert {r.marker.executor for r in compiled.last_run.backward} == {"tvm"}


def program(draw: random.Random) -> Callable[..., Any]:
    """A function of two tensors: pointwise calls, and some that are not, over whatever there is."""
    unary = ["tanh", "exp", "neg", "abs", "sigmoid", "square", "relu", "sin", "half", "mean", "clone"]
    steps = []
    for _ in range(draw.randint(4, 16)):
        kind = draw.choice(["unary", "unary", "add", "mul", "sub", "maximum", "where", "scale"])
        steps.append((kind, draw.choice(unary), draw.random(), draw.random(), draw.uniform(-1, 1)))

    def f(x, y):
        made = [x, y]
        for kind, name, p, q, number in steps:
            a, b = made[int(p * len(made))], made[int(q * len(made))]
            if kind == "scale":
                out = a * number + 0.25
            elif kind == "where":
                out = tp.where(a > b, a, b * 0.5)
            elif kind != "unary":
                out = getattr(tp, kind)(a, b)
            elif name == "half":
                out = tp.astype(tp.astype(a, tp.float16), tp.float32)
            elif name == "mean":
                out = a - tp.mean(a)
            else:
                out = getattr(tp, name)(a)
            made.append(tp.tanh(out))
        return made[-1], made[-2] * made[-3]

    return f


@pytest.mark.parametrize("seed", range(25))
def test_random_training_programs_have_eagers_gradients_to_the_bit(seed):
    """C: whatever is kept and whatever is made again, results and gradients are eager's, and no more bytes are kept."""
    f = program(random.Random(seed))
    compiled = tp.compile(f)
    inputs = normal(1 << 14, seed), normal(1 << 14, seed + 1)
    assert gradients(compiled, *inputs) == gradients(f, *inputs)
    _, held, whole = kept(compiled)
    assert held <= whole
    for graph in (compiled.graphs[0], compiled.graphs[0].backward):
        assert graph.verify() == []
