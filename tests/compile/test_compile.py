"""`tp.compile` and `tp.graph.capture` on the native executor: effects, guards, recompiles, reports, policies."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import errors, library
from tensorplay.errors import AutogradError, CaptureError, FallbackError


def test_effects_decide_what_is_removed(ns: str) -> None:
    """C1: an unused pure call is removed and listed; an ordered one runs, in order, at every call."""
    log: list[int] = []

    def body(x: tp.Tensor, n: int) -> tp.Tensor:
        log.append(n)
        return tp.add(x, 0.0)

    pure = library.custom_op(f"{ns}::pure", body, mutates_args=())
    ordered = library.custom_op(f"{ns}::ordered", body, mutates_args=(), effects="ordered")
    for op in (pure, ordered):
        op.register_fake(lambda x, n: tp.empty_like(x))

    def twice(op):
        def fn(x):
            op(x, 1)
            op(x, 2)
            return x * 2.0

        return fn

    x = tp.ones((2,))
    compiled = tp.compile(twice(pure))
    assert compiled(x).tolist() == [2.0, 2.0]
    assert log == []
    assert compiled.report.removed == [f"{ns}::pure.default"] * 2
    compiled = tp.compile(twice(ordered))
    compiled(x), compiled(x)
    assert log == [1, 2, 1, 2]
    assert [r.marker.executor for r in compiled.last_run.forward] == ["python", "python", "native"]
    assert compiled.report.removed == []


def test_random_calls_are_not_merged(ns: str) -> None:
    """W3: two equal calls of a random op stay two."""
    state = [0]

    @library.custom_op(f"{ns}::draw", mutates_args=(), effects="random", deterministic=False)
    def draw(x: tp.Tensor) -> tp.Tensor:
        state[0] += 1
        return tp.full(x.shape, float(state[0]))

    draw.register_fake(lambda x: tp.empty_like(x))
    compiled = tp.compile(lambda x: draw(x) - draw(x))
    assert compiled(tp.ones((2,))).tolist() == [-1.0, -1.0]
    assert [n.target for n in compiled.graphs[0].nodes].count(f"{ns}::draw.default") == 2
    assert [r.marker.executor for r in compiled.last_run.forward] == ["python", "python", "native"]


def test_declared_mutation_survives(ns: str) -> None:
    """W2: a mutating op on an intermediate and on an input does in a compiled call what it does in eager."""

    @library.custom_op(f"{ns}::inc", mutates_args=("x",))
    def inc(x: tp.Tensor) -> None:
        x.add_(1.0)

    def fn(a):
        b = a * 1.0
        inc(b)
        inc(a)
        return b + a

    eager_in, compiled_in = tp.zeros((2,)), tp.zeros((2,))
    compiled = tp.compile(fn)
    for _ in range(3):
        want, got = fn(eager_in), compiled(compiled_in)
        assert got.tolist() == want.tolist()
        assert compiled_in.tolist() == eager_in.tolist()
    assert [r.marker.executor for r in compiled.last_run.forward] == ["native", "python", "python", "native"]


def test_capture_runs_no_body_and_keeps_one_node(ns: str) -> None:
    """L14, L18, W11: capture calls the fake rule, never the body; the op is one node with a shape."""
    ran: list[str] = []

    @library.custom_op(f"{ns}::square_plus", mutates_args=())
    def square_plus(x: tp.Tensor) -> tp.Tensor:
        ran.append("body")
        return x * x + 1.0

    @square_plus.register_fake
    def fake(x):
        ran.append("fake")
        return tp.empty_like(x)

    graph = tp.graph.capture(lambda x: square_plus(x) * 2.0, tp.ones((2, 3)))
    assert ran == ["fake"]
    assert [n.target for n in graph.nodes] == [f"{ns}::square_plus.default", "tp::mul.Scalar"]
    assert graph.nodes[0].spec[0].shape == (2, 3)
    assert "test_compile.py" in graph.nodes[0].location
    assert graph.verify() == []
    assert tp.graph.parse(graph.text()).text() == graph.text()


def test_an_op_without_a_fake_rule_says_how_to_add_one(ns: str) -> None:
    """The seed op cannot be captured before it has a fake rule."""

    @library.custom_op(f"{ns}::bare", mutates_args=())
    def bare(x):
        return tp.mul(x, 2.0)

    with pytest.raises(CaptureError, match=f"{ns}::bare") as e:
        tp.graph.capture(bare, tp.ones((2,)))
    assert any("register_fake" in note for note in e.value.__notes__)
    bare.register_fake(library.fake_from_body)
    assert [n.target for n in tp.graph.capture(bare, tp.ones((2,))).nodes] == [f"{ns}::bare.default"]


def test_data_dependent_reads_are_refused_with_the_line() -> None:
    """`bool(t)` and `item()` on a captured value raise, and name this file."""
    for fn in (lambda x: x if x.sum() > 0 else -x, lambda x: x * x.sum().item()):
        with pytest.raises(CaptureError) as e:
            tp.compile(fn)(tp.ones((3,)))
        assert any("test_compile.py" in note for note in e.value.__notes__)


def test_a_recompile_names_a_guard_that_is_listed() -> None:
    """W18: in the words of the list of guards, whichever fact it is."""
    compiled = tp.compile(lambda x, k, s: tp.tanh(x) * k)
    x = tp.ones((2,))
    column = tp.ones((2, 2))[:, 0]
    compiled(x, 2.0, "a")
    compiled(column, 2.0, "a")
    compiled(tp.ones((2, 3))[:, 0], 2.0, "a")
    compiled(tp.ones((3,)), 2.0, "a")
    compiled(tp.ones((2, 2)), 2.0, "a")
    compiled(x.requires_grad_(), 2.0, "a")
    compiled(x, 2, "b")
    report = compiled.report
    failed = [line.split(": ", 1)[1].rsplit(", got", 1)[0] for line in report.recompiles]
    assert failed[:2] == ["x.is_contiguous() == True", "x.stride() == (2,)"]
    assert len(failed) == 6
    assert set(failed) <= set(report.guards)


def test_a_layout_that_is_no_longer_strided_is_told_by_its_strides() -> None:
    """W18: the guard of an entry for a strided tensor is its strides, met by a contiguous one or not."""
    compiled = tp.compile(lambda x: x + 1.0)
    compiled(tp.ones((2, 2))[:, 0])
    compiled(tp.ones((2,)))
    assert compiled.report.recompiles == ["graph 1: x.stride() == (2,), got (1,)"]


def test_a_break_names_the_op_at_fault(ns: str) -> None:
    """W18: not the pointwise op that reads its result."""
    op = library.custom_op(f"{ns}::f", lambda x: x * 2.0, mutates_args=())
    op.register_fake(library.fake_from_body)
    found = tp.compile(lambda x: tp.tanh(op(x))).explain(tp.ones((2,))).breaks
    assert len(found) == 1
    assert found[0].endswith(f"({ns}::f.default): not pointwise")


def test_guards_and_recompiles_are_named() -> None:
    """W18: guards are in terms of argument names, and a recompile says which failed."""
    compiled = tp.compile(lambda x, k: x * k)
    compiled(tp.ones((3,)), 2.0)
    compiled(tp.ones((4,)), 2.0)
    compiled(tp.ones((4,)), 3.0)
    assert len(compiled.graphs) == 3
    assert any("x.shape[0]" in guard for guard in compiled.report.guards)
    assert "x.shape[0]" in compiled.report.recompiles[0]
    assert "k" in compiled.report.recompiles[1]
    compiled(tp.ones((3,)), 2.0)
    assert len(compiled.graphs) == 3


def test_the_recompile_limit_ends_in_eager_with_a_reason() -> None:
    """Past eight captures the function itself runs, and the report says so."""
    compiled = tp.compile(lambda x: x * 2.0, dynamic=False)
    for n in range(1, 9):
        assert compiled(tp.ones((n,))).tolist() == [2.0] * n
    with pytest.warns(UserWarning, match="RecompileLimit"):
        compiled(tp.ones((9,)))
    for n in range(9, 12):
        assert compiled(tp.ones((n,))).tolist() == [2.0] * n
    assert len(compiled.graphs) == 8
    reason = compiled.last_run.forward[0].reason
    assert reason.kind == "RecompileLimit"
    assert "x.shape[0]" in str(reason)


def test_the_recompile_limit_warns_once() -> None:
    """C18: the function itself runs then; with `on_fallback="error"` nothing does."""
    compiled = tp.compile(lambda x, k: x * k)
    for k in range(8):
        compiled(tp.ones((2,)), float(k))
    with pytest.warns(UserWarning, match="RecompileLimit") as told:
        assert compiled(tp.ones((2,)), 8.0).tolist() == [8.0, 8.0]
    assert len(told) == 1
    assert told[0].filename == __file__
    assert compiled(tp.ones((2,)), 9.0).tolist() == [9.0, 9.0]
    assert len(compiled.graphs) == 8
    strict = tp.compile(lambda x, k: x * k, on_fallback="error")
    for k in range(8):
        strict(tp.ones((2,)), float(k))
    with pytest.raises(FallbackError, match="8") as caught:
        strict(tp.ones((2,)), 8.0)
    assert caught.value.reason is not None
    assert caught.value.reason.kind == "RecompileLimit"


def test_closures_are_lifted_and_stay_live() -> None:
    """A tensor reached through a closure is an input: in-place changes to it are seen."""
    w = tp.ones((2,))
    compiled = tp.compile(lambda x: x * w)
    x = tp.ones((2,))
    assert compiled(x).tolist() == [1.0, 1.0]
    with tp.no_grad():
        w.mul_(5.0)
    assert compiled(x).tolist() == [5.0, 5.0]
    assert [r.marker.executor for r in compiled.last_run.forward] == ["native"]


def test_training_region_is_one_node_and_matches_eager() -> None:
    """Joint capture: gradients equal eager's bit for bit; a second backward and double backward are refused."""
    a = np.linspace(-2, 2, 6, dtype=np.float32)
    loss = lambda x, w: tp.sum(tp.tanh(x * w) * x)  # noqa: E731
    leaves = [tp.tensor(a, requires_grad=True) for _ in range(4)]
    loss(leaves[0], leaves[1]).backward()
    compiled = tp.compile(loss)
    out = compiled(leaves[2], leaves[3])
    assert "compiled" in repr(out.grad_fn).lower()
    assert out.grad_fn.next_functions
    out.backward()
    for eager, made in zip(leaves[:2], leaves[2:], strict=True):
        assert eager.grad.numpy().tobytes() == made.grad.numpy().tobytes()
    assert {r.marker.executor for r in compiled.last_run.backward} == {"native"}
    assert compiled.graphs[0].backward is not None
    with pytest.raises(AutogradError):
        out.backward()
    x = tp.tensor(a, requires_grad=True)
    y = tp.compile(lambda x: tp.sum(x * x * x))(x)
    with pytest.raises(AutogradError, match="compiled"):
        tp.autograd.grad(y, [x], create_graph=True)


def test_ten_training_steps_make_one_graph() -> None:
    """One forward and one backward graph over ten steps."""
    w = tp.tensor([1.0, 2.0], requires_grad=True)
    compiled = tp.compile(lambda x: tp.sum((x * w) * (x * w)))
    for _ in range(10):
        compiled(tp.ones((2,))).backward()
        with tp.no_grad():
            w.add_(w.grad * -0.01)
        w.grad = None
    assert len(compiled.graphs) == 1


def test_fakes_are_held_to_their_promise_at_run_time(ns: str) -> None:
    """F2, F4: a kernel that returns another shape or stride than its fake promised is named at the op."""

    @library.custom_op(f"{ns}::wide", mutates_args=())
    def wide(x: tp.Tensor) -> tp.Tensor:
        return tp.zeros((x.shape[0], 7))

    wide.register_fake(lambda x: tp.empty_like(x))
    compiled = tp.compile(lambda x: tp.reshape(wide(x), x.shape))
    with pytest.raises(tp.errors.ContractError, match=f"{ns}::wide") as e:
        compiled(tp.ones((2, 2)))
    text = str(e.value) + " ".join(getattr(e.value, "__notes__", []))
    assert "fake rule" in text
    assert "7" in text


def test_an_unknown_backend_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="known") as e:
        tp.compile(lambda x: x * 2.0, backend="nosuch")
    assert "native" in str(e.value)


@pytest.mark.requires("tvm")
def test_policies() -> None:
    """A partial fallback: record keeps the reason, warn warns, error raises with the reason."""
    w = tp.ones((2, 2))
    chain = lambda x: (x * 2.0) @ w  # noqa: E731
    with pytest.warns(UserWarning, match="not pointwise"):
        tp.compile(chain, backend="tvm")(w)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tp.compile(chain, backend="tvm", on_fallback="record")(w)
    with pytest.raises(FallbackError) as failed:
        tp.compile(chain, backend="tvm", on_fallback="error")(w)
    assert failed.value.reason.kind == "UnsupportedOp"
    assert failed.value.reason.op == "tp::matmul.default"


def test_events_of_compiled_calls() -> None:
    """`tp.trace()` sees compiled regions with the marker that ran, forward and backward."""
    x = tp.tensor([1.0, 2.0], requires_grad=True)
    compiled = tp.compile(lambda x: tp.sum(x * 2.0 + 1.0))
    compiled(x)
    with tp.trace() as events:
        compiled(x).backward()
    phases = {e.phase for e in events}
    assert phases == {"forward", "backward"}
    assert all(e.marker.executor == "native" for e in events)


def test_a_division_by_zero_in_a_region_names_its_op() -> None:
    """As in eager, whatever the region fuses and however its operands lie."""
    x, zero, one = tp.tensor([[4, 5], [6, 7]]), tp.tensor([[1, 1], [1, 0]]), tp.tensor([[1, 2], [3, 4]])
    chain = lambda a, b, c: (a // b + 1) % c * 2  # noqa: E731
    for fn, args, op in (
        (lambda a, b: a // b, (x, zero), "tp::floor_divide"),
        (lambda a, b: a % b + 1, (x, zero), "tp::remainder"),
        (lambda a: a // 0, (x,), "tp::floor_divide.Scalar"),
        (lambda a, b: a // b + 1, (x.T, zero), "tp::floor_divide"),
        (chain, (x, one, zero), "tp::remainder"),
        (chain, (x, zero, one), "tp::floor_divide"),
        (chain, (x.T, one, zero), "tp::remainder"),
        (
            lambda a, b: a // b,
            (tp.ones((300, 300), dtype=tp.int32), tp.zeros((300, 300), dtype=tp.int32)),
            "tp::floor_divide",
        ),
    ):
        for run in (fn, tp.compile(fn)):
            with pytest.raises(
                errors.DivisionByZeroError, match=f"{re.escape(op)}: integer division by zero"
            ) as e:
                run(*args)
            assert (e.value.op, e.value.code) == (op, "TP1501")
