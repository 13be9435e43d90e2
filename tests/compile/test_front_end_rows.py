"""Behaviours of the upstream compiler's front end (rows C and T) that no other file of this folder asserts."""

from __future__ import annotations

import numpy as np
import pytest

import tensorplay as tp
from backends.numpy_backend import NumPy
from tensorplay.errors import ArgumentError, FallbackError, InvalidValueError


def same(got: tp.Tensor, want: tp.Tensor) -> bool:
    return (got.dtype, got.shape) == (
        want.dtype,
        want.shape,
    ) and got.numpy().tobytes() == want.numpy().tobytes()


@pytest.fixture
def plain() -> str:
    """A backend that knows nothing of gradients."""
    tp.backends.register("plain_rows", NumPy())
    yield "plain_rows"
    tp.backends.unregister("plain_rows")


def hundred(x: tp.Tensor) -> tp.Tensor:
    for k in range(50):
        x = tp.tanh(x) + 0.01 * k
    return x


def test_chains_of_any_length_and_linear_layers_run_native_and_say_so() -> None:
    """C03: one region for a chain of one op, of two, of a hundred; a linear layer is a call and a region."""
    x, w, b = (
        tp.linspace(-2.0, 2.0, 12).reshape((3, 4)),
        tp.ones((4, 5)) * 0.25,
        tp.arange(5, dtype=tp.float32),
    )
    for chain, length in ((lambda x: x * 2.0, 1), (lambda x: -abs(x), 2), (hundred, 100)):
        got, report = tp.compile(chain).run(x)
        assert same(got, chain(x))
        (region,) = report.forward
        assert (region.marker.executor, region.reason, len(region.ops)) == ("native", None, length)
        assert region.marker.proof.startswith("tile:")
    linear = lambda x, w, b: tp.relu(x @ w + b)  # noqa: E731
    got, report = tp.compile(linear).run(x, w, b)
    assert same(got, linear(x, w, b))
    assert [[op.split(".")[0] for op in r.ops] for r in report.forward] == [
        ["tp::matmul"],
        ["tp::add", "tp::relu"],
    ]
    assert {(r.marker.executor, r.reason) for r in report.forward} == {("native", None)}


def test_the_graph_holds_the_taken_path_alone() -> None:
    """C07: what the shape decides against is no node; the other shape is another entry."""

    def by_shape(x: tp.Tensor) -> tp.Tensor:
        for _ in range(x.ndim):
            x = tp.exp(x) if len(x) > 3 else tp.sin(x)
        return x

    compiled = tp.compile(by_shape)
    for shape, taken in (((4,), ["tp::exp"]), ((2,), ["tp::sin"]), ((5, 1), ["tp::exp", "tp::exp"])):
        x = tp.ones(shape)
        assert same(compiled(x), by_shape(x))
        assert [node.target.split(".")[0] for node in compiled.graphs[-1].nodes] == taken
    assert len(compiled.graphs) == 3


def test_a_destination_is_written_by_every_call(ns: str) -> None:
    """C09: a keyword argument that the op writes to holds the result after the first call and after cached ones."""

    @tp.library.custom_op(f"{ns}::into", mutates_args=("out",), tags=("out",))
    def into(x: tp.Tensor, *, out: tp.Tensor) -> tp.Tensor:
        return out.copy_(x * 3.0)

    def program(x: tp.Tensor, out: tp.Tensor) -> tp.Tensor:
        into(x + 1.0, out=out)
        return out * 2.0

    compiled = tp.compile(program)
    for k in range(4):
        out = tp.full((3,), -7.0)
        got = compiled(tp.full((3,), float(k)), out)
        assert out.tolist() == [3.0 * (k + 1)] * 3
        assert got.tolist() == [6.0 * (k + 1)] * 3
    assert len(compiled.graphs) == 1


class Network:
    """Two layers with what they hold as attributes."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shapes = {"w1": (6, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}
        for name, shape in shapes.items():
            setattr(self, name, tp.tensor(rng.standard_normal(shape, np.float32) * 0.3, requires_grad=True))
        self.names = tuple(shapes)

    def __call__(self, x: tp.Tensor) -> tp.Tensor:
        return tp.tanh(x @ self.w1 + self.b1) @ self.w2 + self.b2


def test_parameters_stay_live_and_every_one_gets_its_gradient() -> None:
    """C10: weights written to after the compile change results; every parameter has eager's gradient."""
    eager, other = Network(0), Network(0)
    x = tp.tensor(np.random.default_rng(1).standard_normal((5, 6), np.float32))
    compiled = tp.compile(lambda x: tp.mean(other(x) ** 2))
    for _ in range(3):
        losses = [tp.mean(eager(x) ** 2), compiled(x)]
        for loss in losses:
            loss.backward()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
        for name in eager.names:
            want, got = getattr(eager, name).grad.numpy(), getattr(other, name).grad.numpy()
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-7)
            assert np.abs(got).max() > 0.0
        with tp.no_grad():
            for network in (eager, other):
                for name in network.names:
                    getattr(network, name).sub_(getattr(network, name).grad * 0.1)
                    getattr(network, name).grad = None
    assert len(compiled.graphs) == 1
    assert {r.marker.executor for r in compiled.last_run.forward} == {"native"}


@pytest.mark.parametrize("name", ["eager", "eager_debug", "aot_eager"])
def test_there_are_no_debug_backends_and_the_error_says_what_to_do(name: str) -> None:
    """C13: a name that runs the function as it is would be a second way to call it; none is listed."""
    assert name not in tp.backends.names()
    with pytest.raises(InvalidValueError, match=f"no backend named '{name}'; known are 'native'") as caught:
        tp.compile(lambda x: x, backend=name)
    assert caught.value.code == "TP4107"
    assert any("call it instead of what `compile` makes of it" in note for note in caught.value.__notes__)


def test_a_plain_backend_trains_and_infers(plain: str) -> None:
    """C16: it is given the forward and the backward of a training call; without gradients there is no history."""
    chain = lambda x: tp.exp(x) * x + 1.0  # noqa: E731
    values = [0.5, -1.0, 2.0]
    eager = tp.tensor(values, requires_grad=True)
    chain(eager).backward(tp.ones((3,)))
    x = tp.tensor(values, requires_grad=True)
    compiled = tp.compile(chain, backend=plain, on_fallback="error")
    y = compiled(x)
    assert y.requires_grad
    y.backward(tp.ones((3,)))
    report = compiled.last_run
    assert [r.marker.executor for r in (*report.forward, *report.backward)] == [plain] * 2
    np.testing.assert_allclose(x.grad.numpy(), eager.grad.numpy(), rtol=1e-6)
    for call in (lambda: compiled(tp.tensor(values)), tp.no_grad()(lambda: compiled(x))):
        got = call()
        assert not got.requires_grad
        np.testing.assert_allclose(got.numpy(), chain(tp.tensor(values)).numpy(), rtol=1e-6)
        assert [r.marker.executor for r in compiled.last_run.forward] == [plain]
        assert compiled.last_run.backward == []


def test_equal_calls_beside_a_write_are_not_merged() -> None:
    """C19: two calls with the same arguments around a write, and two results of which one is written to."""

    def around(x: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor]:
        before = x * 2.0
        x.add_(1.0)
        return before, x * 2.0

    def apart(x: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor]:
        first, second = x * 2.0, x * 2.0
        first.add_(1.0)
        return first, second

    for program in (around, apart):
        compiled = tp.compile(program)
        for _ in range(2):
            eager, other = tp.arange(4, dtype=tp.float32), tp.arange(4, dtype=tp.float32)
            want, got = program(eager), compiled(other)
            assert all(same(a, b) for a, b in zip(got, want, strict=True))
            assert same(other, eager)
            assert not same(*got)
            got[0].zero_()
            assert same(got[1], want[1])


def test_a_compile_that_is_switched_off_is_refused_with_what_to_do() -> None:
    """C21: `disable=True` and `mode=` are no keywords here; the error says what stands for them."""
    for keyword, words in (
        ("disable", "call it instead of what `compile` makes of it"),
        ("mode", "`options`"),
    ):
        with pytest.raises(ArgumentError, match=f"unknown keyword argument '{keyword}'") as caught:
            tp.compile(lambda x: x, **{keyword: True})
        assert caught.value.code == "TP1006"
        assert words in caught.value.__notes__[-1]


@pytest.mark.requires("tvm")
@pytest.mark.parametrize("target", ["cuda", "llvm", "nvptx"])
def test_a_target_that_is_no_processor_of_this_machine_is_refused(target: str) -> None:
    """T08: code for a GPU is not made, and nothing else is made in its place without saying so."""
    x = tp.ones((64,))
    chain = lambda a, b: tp.tanh(a + b) / 2.0  # noqa: E731
    strict = tp.compile(chain, backend="tvm", options={"target": target}, on_fallback="error")
    with pytest.raises(FallbackError, match=f"knows no processor '{target}'"):
        strict(x, x)
    compiled = tp.compile(chain, backend="tvm", options={"target": target}, on_fallback="record")
    got, report = compiled.run(x, x)
    assert same(got, chain(x, x))
    assert report.forward[0].marker.executor == "native"
    assert report.forward[0].reason.kind == "LoweringFailed"
