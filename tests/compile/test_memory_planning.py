"""Which step of a plan writes over what another made, and that nobody can tell."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import library

N = 1 << 16


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(x.detach())).tobytes()


def normal(n: int = N, seed: int = 0) -> Any:
    return tp.from_numpy(np.random.default_rng(seed).standard_normal(n).astype(np.float32))


def forward(compiled: Any) -> str:
    (line,) = [line for line in compiled.report.memory if line.startswith("forward:")]
    return line


def chain(x):
    """Pointwise regions parted by sums."""
    for k in range(20):
        x = tp.tanh(x) * (1.0 + k) - tp.max(x)
    return x


def test_a_chain_takes_two_buffers_where_each_region_writes_over_the_last():
    """C: twenty regions of two results, parted by maxima, need two buffers of their size, and say so."""
    compiled = tp.compile(chain)
    x = normal()
    for _ in range(2):
        assert bits(compiled(x)) == bits(chain(x))
    line = forward(compiled)
    assert line.count("writes over") == 19
    assert 8 * N <= int(re.search(r"(\d+) bytes in use", line)[1]) < 9 * N
    assert "writes over" in str(compiled.report)


def test_arguments_results_and_kept_values_are_not_written_over():
    """C: what was passed, is returned or is kept for the backward holds what it held."""

    def f(x, y):
        a = tp.exp(x)
        b = a * tp.sum(a)
        c = b + tp.sum(b)
        d = c * tp.sum(y)
        return a, d, tp.transpose(c.reshape((256, 256)), 0, 1)

    compiled = tp.compile(f)
    x, y = normal(), normal(seed=1)
    kept = bits(x), bits(y)
    for _ in range(2):
        first, want = compiled(x, y), f(x, y)
        again = compiled(x, y)
        assert [bits(t) for t in first] == [bits(t) for t in want] == [bits(t) for t in again]
        assert (bits(x), bits(y)) == kept
        for t in again:
            t.fill_(0.0)
    leaves = [tp.clone(x).requires_grad_() for _ in range(2)]
    for g, leaf in zip((f, compiled), leaves, strict=True):
        out = g(leaf, y)
        (tp.sum(out[0]) + tp.sum(out[1])).backward()
    assert bits(leaves[0].grad) == bits(leaves[1].grad)


def test_what_a_kernel_kept_is_not_written_over():
    """C: a Python kernel that keeps its argument, its result or an array over either finds it as it was."""
    kept: list[Any] = []

    @library.custom_op("memory::keeps", mutates_args=())
    def keeps(x: tp.Tensor) -> tp.Tensor:
        out = x + 1.0
        kept.extend([x, np.asarray(x), out, out.reshape((256, 256))])
        return out

    keeps.register_fake(lambda x: tp.empty_like(x))

    def f(x):
        a = tp.exp(x)
        b = keeps(a)
        c = a * tp.sum(b)
        return c * tp.sum(c) + b * tp.sum(b)

    compiled = tp.compile(f)
    x = normal()
    eager = f(x)
    held = [np.array(k).tobytes() for k in kept]
    kept.clear()
    assert bits(compiled(x)) == bits(eager)
    assert [np.asarray(k).tobytes() for k in kept] == held


def test_an_integer_division_names_its_error_from_unharmed_operands():
    """C: a region that divides integers keeps its operands: they are read again for the error."""

    def f(x, d):
        y = x + 1
        s = tp.sum(y)
        return (y * 3) // d + s

    compiled = tp.compile(f)
    x = tp.arange(N)
    good = tp.ones((N,), dtype=tp.int64)
    assert bits(compiled(x, good)) == bits(f(x, good))
    bad = tp.clone(good)
    bad[N - 1] = 0
    with pytest.raises(ZeroDivisionError) as found:
        compiled(x, bad)
    assert found.value.op == "tp::floor_divide"


def program(draw: random.Random) -> Callable[..., Any]:
    """Large pointwise regions with several readers, parted by calls of other kinds."""
    steps = [(draw.randrange(9), draw.random(), draw.random()) for _ in range(draw.randint(6, 20))]
    picks = [draw.random() for _ in range(draw.randint(1, 3))]

    def f(x, y):
        made = [x, y]
        for kind, p, q in steps:
            a, b = made[int(p * len(made))], made[int(q * len(made))]
            match kind:
                case 0:
                    out = a + tp.sum(b)
                case 1:
                    out = tp.tanh(a) * b - tp.max(a)
                case 2:
                    out = tp.transpose(a.reshape((256, 256)), 0, 1).reshape((N,)) + a
                case 3:
                    out = tp.matmul(a.reshape((256, 256)), b.reshape((256, 256))).reshape((N,)) * 0.01
                case 4:
                    out = tp.clone(a)
                    out += tp.mean(b)
                case 5:
                    out = tp.flip(a) * 0.5
                case 6:
                    out = tp.astype(tp.astype(a * 3.0, tp.int32) + 1, tp.float32)
                case 7:
                    out = tp.where(a > tp.mean(b), a, b)
                case _:
                    out = a.reshape((256, 256))[::1].reshape((N,)) - 1.0
            made.append(tp.tanh(out))
        return tuple(made[2 + int(p * (len(made) - 2))] for p in picks)

    return f


@pytest.mark.parametrize("seed", range(30))
def test_random_plans_are_eagers_to_the_bit(seed):
    """C: whatever is written over whatever, results are eager's, arguments stay, and what a run returned stays."""
    f = program(random.Random(seed))
    compiled = tp.compile(f)
    x, y = normal(seed=seed), normal(seed=seed + 1)
    given = bits(x), bits(y)
    want = [bits(t) for t in f(x, y)]
    first = compiled(x, y)
    second = compiled(x, y)
    assert [bits(t) for t in first] == [bits(t) for t in second] == want
    assert (bits(x), bits(y)) == given
