"""Upstream's defects that show in eager and compiled calls, restated as what holds here (ids W*)."""

from __future__ import annotations

import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.errors import AutogradError, ContractError


def test_an_op_that_returns_its_input_is_refused_and_changes_nothing() -> None:
    """W8: the caller's leaf keeps its history; integer outputs get no grad_fn."""

    @library.custom_op("defects::same", mutates_args=(), override=True)
    def same(x: tp.Tensor) -> tp.Tensor:
        return x

    same.register_autograd(lambda ctx, grad: grad * 3.0)
    x = tp.tensor([1.0], requires_grad=True)
    for _ in range(2):
        with pytest.raises(ContractError, match="output 0 is argument 'x'"):
            same(x)
    assert x.is_leaf
    assert x.grad_fn is None

    @library.custom_op("defects::count", mutates_args=(), override=True)
    def count(x: tp.Tensor) -> tp.Tensor:
        return tp.astype(x, tp.int64)

    count.register_autograd(lambda ctx, grad: None)
    out = count(x)
    assert out.grad_fn is None
    assert not out.requires_grad


def test_mutating_a_leaf_is_refused() -> None:
    """W8: a leaf that requires grad cannot be written to by an op, built-in or custom."""

    @library.custom_op("defects::inc", mutates_args=("x",), override=True)
    def inc(x: tp.Tensor) -> None:
        x.add_(1.0)

    x = tp.tensor([1.0], requires_grad=True)
    for write in (inc, lambda x: x.mul_(2.0)):
        with pytest.raises(AutogradError):
            write(x)
    assert x.tolist() == [1.0]


def test_keywords_numbers_lists_and_several_outputs_do_not_fall_back() -> None:
    """W10, W14: each of these keeps its marker; a custom op is python, everything else native."""

    @library.custom_op("defects::two", mutates_args=(), override=True)
    def two(x: tp.Tensor, k: float = 2.0) -> tuple[tp.Tensor, tp.Tensor]:
        return x * k, x + k

    two.register_fake(lambda x, k=2.0: (tp.empty_like(x), tp.empty_like(x)))
    a = tp.tensor([1.0, 2.0])

    def fn(a):
        p, q = two(a, k=3.0)
        return tp.cat([p, tp.add(x1=q, x2=1.0)]), two(a)[0]

    (joined, first), report = tp.compile(fn).run(a)
    assert joined.tolist() == [3.0, 6.0, 5.0, 6.0]
    assert first.tolist() == [2.0, 4.0]
    assert {r.marker.executor for r in report.forward} == {"python", "native"}
    assert all(r.reason is None for r in report.forward if r.marker.executor == "native")


@pytest.mark.requires("tvm")
def test_regions_that_upstream_crashed_on() -> None:
    """W13: identity, exp of ints and a scalar argument run or fall back with a reason."""
    x = tp.tensor([1, 2], dtype=tp.int32)
    same, report = tp.compile(lambda x: x, backend="tvm", on_fallback="record").run(x)
    assert same.tolist() == [1, 2]
    assert report.executors == ()
    assert str(report) == "no region ran: what is returned is given or constant"
    got, report = tp.compile(lambda x, k: tp.exp(x) * k, backend="tvm", on_fallback="error").run(x, 0.5)
    assert got.tolist() == (tp.exp(x) * 0.5).tolist()
    assert report.executors == ("tvm",)


def test_the_checker_compares_every_kernel_and_honours_tolerances() -> None:
    """W16: the second kernel and the second output are compared, and rtol/atol mean something."""

    @library.custom_op("defects::pair", mutates_args=(), override=True)
    def pair(x: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor]:
        return x * 1.0, x * 2.0

    pair.register_fake(lambda x: (tp.empty_like(x), tp.empty_like(x)))
    pair.register_kernel("cpu", lambda x: (x * 1.0, x * 2.0 + 1e-3), name="off")
    x = (tp.ones((3,)),)
    assert not tp.verify(pair, x, sweep=False).passed
    assert tp.verify(pair, x, sweep=False, atol=1e-2, rtol=0.0).passed


def test_a_custom_op_is_a_region_of_a_training_call() -> None:
    """L16, L17: the op is a node of the graph and a region of its own; its rule runs native, with eager's gradient."""

    @library.custom_op("defects::square", mutates_args=(), override=True)
    def square(x: tp.Tensor, k: float = 1.0) -> tp.Tensor:
        return x * x * k

    square.register_fake(lambda x, k=1.0: tp.empty_like(x))

    def setup(ctx, inputs, output):
        x, ctx.k = inputs
        ctx.save_for_backward(x)

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * (2.0 * ctx.k), None

    square.register_autograd(backward, setup_context=setup)
    compiled = tp.compile(lambda x: tp.sum(square(x) + 1.0), backend="native", on_fallback="error")
    for k in range(2):
        x = tp.tensor([1.0 + k, 3.0], requires_grad=True)
        compiled(x).backward()
        assert x.grad.tolist() == [2.0 + 2 * k, 6.0]
    assert [n.target for n in compiled.graphs[0].nodes][:2] == ["defects::square.default", "tp::add.Scalar"]
    assert len(compiled.graphs) == 1
    report = compiled.last_run
    assert [(r.ops[0], r.marker.executor) for r in report.forward[:2]] == [
        ("defects::square.default", "python"),
        ("tp::add.Scalar", "native"),
    ]
    assert {r.marker.executor for r in report.backward} == {"native"}


def test_ops_that_return_nothing_or_a_number_are_compiled() -> None:
    """W14: None is None and an int is an int of each run's inputs; both ops ran in Python."""

    @library.custom_op("defects::bump", mutates_args=("x",), override=True)
    def bump(x: tp.Tensor) -> None:
        x.add_(1.0)

    @library.custom_op("defects::rows", mutates_args=(), override=True)
    def rows(x: tp.Tensor) -> int:
        return x.shape[0]

    rows.register_fake(lambda x: x.shape[0])

    def fn(x):
        return bump(x), x * rows(x)

    compiled = tp.compile(fn)
    for n in (3, 4):
        given, twin = tp.zeros((n,)), tp.zeros((n,))
        (nothing, got), report = compiled.run(given)
        assert nothing is None
        assert got.tolist() == fn(twin)[1].tolist() == [float(n)] * n
        assert given.tolist() == [1.0] * n
        assert [r.marker.executor for r in report.forward] == ["python", "python", "native"]


def test_a_default_argument_is_a_plain_value() -> None:
    """W18: a string among the defaults chooses the op while the function is captured, and is guarded."""
    compiled = tp.compile(lambda x, name="relu": getattr(tp, name)(x))
    x = tp.tensor([-1.0, 2.0])
    assert compiled(x).tolist() == [0.0, 2.0]
    assert compiled(x, name="neg").tolist() == [1.0, -2.0]
    assert [[n.target for n in g.nodes] for g in compiled.graphs] == [
        ["tp::relu.default"],
        ["tp::neg.default"],
    ]
    assert compiled.last_run.executors == ("native",)
