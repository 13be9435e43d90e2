"""Integers that look like symbolic sizes inside are ordinary integers to every caller, eager and captured."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import errors
from tensorplay.library import custom_op

LEAST = -(2**63)
# The first and last integers of the range that symbols are encoded in, and those beside it.
EXTREMES = (LEAST, LEAST + 1, LEAST + 2**30, LEAST + 2**31, LEAST + 2**32 - 1, LEAST + 2**32)
SCHEMA = "(Tensor x, int k={}) -> Tensor"


@pytest.mark.parametrize("k", EXTREMES)
def test_extreme_defaults_reach_the_kernel(k: int, ns: str) -> None:
    """1.18, 2.7: a default of -2**63 and its neighbours, inferred and written; with a fake rule and a gradient."""

    def body(x: tp.Tensor, k: int = k) -> tp.Tensor:
        seen.append(k)
        return x * 2.0

    seen: list[int] = []
    written = {"schema": SCHEMA.format(k)}
    for name, given in (("inferred", {}), ("written", written)):
        f = custom_op(f"{ns}::{name}", body, mutates_args=(), **given)
        f.register_fake(lambda x, k: seen.append(k) or tp.empty_like(x))
        f.register_autograd(lambda ctx, grad: (grad * 2.0, None))
        x = tp.ones((3,)).requires_grad_()
        f(x).sum().backward()
        assert x.grad.tolist() == [2.0] * 3
        assert tp.compile(f)(x.detach()).tolist() == [2.0] * 3
        assert set(seen) == {k}
        assert f.schema.arguments[1]["default"] == str(k)


@pytest.mark.parametrize("k", EXTREMES)
def test_extreme_arguments_are_themselves(k: int, ns: str) -> None:
    """3.9: a kernel, its fake rule and its setup function see the integer that the caller gave; so do lists."""
    seen: list[object] = []

    def body(x: tp.Tensor, k: int, ks: list[int]) -> tp.Tensor:
        seen.append((k, *ks))
        return x + 1.0

    f = custom_op(f"{ns}::f", body, mutates_args=())

    @f.register_fake
    def fake(x, k, ks):
        seen.append((k, *ks))
        return tp.empty_like(x)

    x = tp.ones((2,))
    assert f(x, k, [k, 1]).tolist() == [2.0, 2.0]
    compiled = tp.compile(lambda x: f(x, k, [k, 1]))
    assert compiled(x).tolist() == [2.0, 2.0]
    with tp.library.debug_checks():
        f(x, k, [k, 1])
    assert set(seen) == {(k, k, 1)}
    graph = tp.graph.capture(lambda x: f(x, k, [k, 1]), x)
    assert str(k) in graph.text()
    assert tp.graph.parse(graph.text()).text() == graph.text()


@pytest.mark.parametrize("k", EXTREMES)
def test_extreme_results_of_kernels(k: int, ns: str) -> None:
    """3.7: a kernel returns them, alone and in lists, and a captured run compares them with its fake rule."""
    f = custom_op(f"{ns}::f", lambda x: (k, [k, 0]), mutates_args=(), schema="(Tensor x) -> (int, int[])")
    f.register_fake(lambda x: (k, [k, 0]))
    x = tp.ones((2,))
    assert f(x) == (k, [k, 0])

    def use(x):
        number, numbers = f(x)
        return x * (1.0 if (number, numbers) == (k, [k, 0]) else 0.0)

    assert tp.compile(use)(x).tolist() == [1.0, 1.0]
    assert tp.compile(lambda x: (x + 1.0, k))(x)[1] == k


@pytest.mark.parametrize("k", EXTREMES)
@pytest.mark.parametrize("backend", ["native", pytest.param("tvm", marks=pytest.mark.requires("tvm"))])
def test_extreme_numbers_in_compiled_code(k: int, backend: str) -> None:
    """As a factor, as an argument of the function, and as the bound of a comparison."""
    x = tp.tensor([1, 3, -1])
    want = (x * k).tolist()
    assert want[0] == k
    compile = lambda f: tp.compile(f, backend=backend, on_fallback="record")  # noqa: E731
    assert compile(lambda x: x * k)(x).tolist() == want
    assert compile(lambda x, k: x * k)(x, k).tolist() == want
    assert compile(lambda x: (x > k).to(tp.int64) + 1)(x).tolist() == [2, 2, 2]


def test_extreme_numbers_in_eager_builtins() -> None:
    """No builtin makes a tensor without data of them, and what they mean is what any very negative number means."""
    for k in EXTREMES:
        made = tp.eye(2, k=k)
        assert not made.is_fake
        assert made.tolist() == [[0.0, 0.0], [0.0, 0.0]]
        drawn = tp.randint(k, k + 2, (8,))
        assert set(drawn.tolist()) <= {k, k + 1}
        x = tp.arange(5)
        assert x[k:].tolist() == [0, 1, 2, 3, 4]
        assert x[:k].tolist() == []
        assert tp.ops.tp.slice(x, 0, k, None, 1).tolist() == [0, 1, 2, 3, 4]
        assert tp.roll(x, k).tolist() == tp.roll(x, k % 5).tolist()
        assert tp.func.vmap(lambda row: tp.roll(row, k))(tp.arange(4).reshape((2, 2))).shape == (2, 2)
        assert tp.tril(tp.ones((2, 2)), k).sum().item() == 0.0
        with pytest.raises(errors.IndexOutOfRangeError, match=str(k)):
            x[k]
        with pytest.raises(errors.IndexOutOfRangeError, match=str(k)):
            x[tp.tensor(k)]


@pytest.mark.parametrize("k", EXTREMES[:-1])
def test_extreme_sizes_and_strides_are_refused_by_name(k: int) -> None:
    """Where a size is meant they are negative sizes like any other, in eager calls and in a capture."""
    calls = {
        "TP1109": (lambda x: tp.zeros((k,)), lambda x: tp.empty((2, k)), lambda x: tp.eye(k)),
        "TP1103": (lambda x: x.reshape((k,)), lambda x: x.view(k)),
        "TP1102": (lambda x: x.expand((k, 2)), lambda x: x.expand((k,))),
        "TP1107": (lambda x: tp.ops.tp.slice(x, 0, None, None, k),),
    }
    x = tp.ones((2,))
    for code, functions in calls.items():
        for f in functions:
            for run in (f, tp.compile(f)):
                with pytest.raises(errors.TensorPlayError, match=str(k)) as caught:
                    run(x)
                assert caught.value.code == code


def test_symbols_stay_symbols_beside_extreme_integers(ns: str) -> None:
    """5.5: one call with a symbolic size and -2**63: both arrive as what they are."""
    f = custom_op(f"{ns}::f", lambda x: x[x > 0.0], mutates_args=(), schema="(Tensor x) -> Tensor")
    f.register_fake(lambda x: tp.empty((tp.library.get_ctx().new_dynamic_size(),)))
    seen: list[tuple[int, object]] = []

    def body(x: tp.Tensor, n: int, k: int) -> tp.Tensor:
        seen.append((k, int(n)))
        return x + 1.0

    g = custom_op(f"{ns}::g", body, mutates_args=())
    g.register_fake(lambda x, n, k: tp.empty_like(x))

    def use(x):
        y = f(x)
        return g(y, y.shape[0], LEAST)

    compiled = tp.compile(use)
    assert compiled(tp.tensor([1.0, -1.0, 2.0])).tolist() == [2.0, 3.0]
    assert compiled(tp.tensor([1.0, 1.0, 2.0])).tolist() == [2.0, 2.0, 3.0]
    assert seen == [(LEAST, 2), (LEAST, 3)]
    assert len(compiled.graphs) == 1
