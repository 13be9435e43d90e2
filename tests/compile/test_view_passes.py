"""Views that lead back to an earlier one, and views of views, in compiled functions: the same values and the same memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import library


def bits(x: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(x.detach())).tobytes()


def targets(compiled: Any) -> list[str]:
    return [node.target for node in compiled.graphs[0].nodes]


def test_views_that_lead_back_are_dropped():
    """C: transposes that undo each other, reshapes there and back and needless contiguous calls are no steps."""

    def f(x):
        y = tp.transpose(tp.transpose(x, 0, 1), 0, 1)
        z = tp.contiguous(y).reshape((6,)).reshape((2, 3))
        return tp.exp(z) + tp.expand(tp.expand(tp.sum(z), (1, 3)), (2, 3))

    compiled = tp.compile(f)
    x = tp.tensor([[1.0, -2.0, 3.0], [0.5, -0.0, float("inf")]])
    assert bits(compiled(x)) == bits(f(x))
    assert targets(compiled).count("tp::expand.default") == 1
    assert not {"tp::transpose.default", "tp::contiguous.default", "tp::reshape.default"} & set(
        targets(compiled)
    )


def test_what_is_returned_is_a_tensor_of_its_own():
    """C: a view that lies where the argument lies is another tensor over the same memory, as in eager."""

    def f(x):
        return tp.transpose(tp.transpose(x, 0, 1), 0, 1), tp.contiguous(x)

    x = tp.ones((2, 3))
    for g in (f, tp.compile(f)):
        view, same = g(x)
        assert view is not x
        assert same is x
        view.add_(1.0)
    assert x.tolist() == [[3.0] * 3] * 2


def test_a_kernel_of_the_users_is_given_the_view():
    """C: a Python kernel sees a tensor of its own where eager gives it one."""
    seen: list[bool] = []

    @library.custom_op("views::same", mutates_args=())
    def same(x: tp.Tensor, y: tp.Tensor) -> tp.Tensor:
        seen.append(x is y)
        return x + y

    same.register_fake(lambda x, y: tp.empty_like(x))

    def f(x):
        return same(x, tp.transpose(tp.transpose(x, 0, 1), 0, 1))

    x = tp.ones((2, 2))
    assert bits(tp.compile(f)(x)) == bits(f(x))
    assert seen == [False, False]


def test_a_kernel_of_the_users_for_a_view_op_runs():
    """C: where a view op has another kernel, its calls stay: what it returns is the run's to hold to its promise."""
    ran: list[int] = []

    def transposed(x, dim0, dim1):
        ran.append(x.ndim)
        return tp.permute_dims(x, (1, 0))

    with library.Library("tp", "IMPL") as lib:
        lib.impl("transpose", transposed, "CPU")
        compiled = tp.compile(lambda x: tp.exp(tp.transpose(tp.transpose(x, 0, 1), 0, 1)))
        x = tp.ones((2, 3))
        compiled(x)
        compiled(x)
    assert len(ran) == 4


def program(draw: random.Random) -> Callable[..., Any]:
    """Views of views, written to and read."""
    steps = [(draw.randrange(10), draw.random(), draw.random()) for _ in range(draw.randint(4, 16))]

    def f(x):
        made = [x + 0.5, x]
        for kind, p, q in steps:
            a = made[int(p * len(made))]
            match kind:
                case 0:
                    out = tp.transpose(a, 0, 1)
                case 1:
                    out = tp.permute_dims(a, (1, 0))
                case 2:
                    out = a.reshape((16,)).reshape((4, 4))
                case 3:
                    out = tp.contiguous(a)
                case 4:
                    out = a[int(q * 2) :][: 4 - int(q * 2)]
                    out = tp.concat([out, out])[:4]
                case 5:
                    out = a[:, ::1][0:4]
                case 6:
                    out = tp.squeeze(tp.unsqueeze(a, 1), 1)
                case 7:
                    out = tp.expand(tp.expand(a[:1], (2, 4))[:1], (4, 4))
                case 8:
                    out = a * 2.0 - made[int(q * len(made))]
                case _:
                    out = tp.transpose(made[0], 0, 1)
                    out.add_(q)
            made.append(out)
        return made[-1] + 0.0, tp.matmul(made[-2], made[0]), made[0]

    return f


@pytest.mark.parametrize("seed", range(40))
def test_random_view_programs_are_eagers_to_the_bit(seed):
    """C: whatever views are dropped or made of others, results, strides and written memory are eager's."""
    f = program(random.Random(seed))
    compiled = tp.compile(f)
    x = tp.from_numpy(np.random.default_rng(seed).standard_normal((4, 4)).astype(np.float32))
    for _ in range(2):
        got, want = compiled(x), f(x)
        assert [bits(t) for t in got] == [bits(t) for t in want]
        assert [t.stride() for t in got] == [t.stride() for t in want]
    for graph in compiled.graphs:
        assert graph.verify() == []
