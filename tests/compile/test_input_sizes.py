"""Sizes of inputs as symbols: one graph for many sizes, what is guarded of them, and what specialises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorplay as tp
from dynamic_sizes import positives, vector
from tensorplay import Tensor
from tensorplay.errors import (
    ArgumentError,
    CaptureError,
    IndexOutOfRangeError,
    InvalidValueError,
)

RNG = np.random.default_rng(5)

# Programs of a matrix of three columns and a vector of three.
PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "pointwise": lambda x, w: tp.tanh(x * 2.0 + w),
    "outer": lambda x, w: x[:, None, :] * w[None, :, None],
    "sum": lambda x, w: (tp.sum(x, axis=0), tp.sum(x, axis=1, keepdims=True) * x),
    "mean": lambda x, w: tp.mean(x, axis=0) + tp.mean(x),
    "var": lambda x, w: tp.var(x, axis=0) + tp.std(x, correction=1.0),
    "norm": lambda x, w: (
        (x - tp.mean(x, axis=1, keepdims=True)) / tp.sqrt(tp.var(x, axis=1, keepdims=True)) * w
    ),
    "prod": lambda x, w: tp.prod(x, axis=0),
    "extremes": lambda x, w: tp.amax(x, axis=0) + tp.amin(x),
    "cumulative": lambda x, w: tp.cumulative_sum(x, axis=0),
    "softmax": lambda x, w: tp.softmax(x, axis=0) + tp.log_softmax(x, axis=1),
    "logsumexp": lambda x, w: tp.logsumexp(x, axis=0),
    "matmul": lambda x, w: (x @ w, x @ tp.permute_dims(x, (1, 0)), tp.permute_dims(x, (1, 0)) @ x),
    "flat": lambda x, w: x.reshape((-1,)) * 2.0,
    "flat transposed": lambda x, w: tp.permute_dims(x, (1, 0)).reshape((-1,)) * 2.0,
    "there and back": lambda x, w: x.reshape((-1,)).reshape((x.shape[0], x.shape[1])) + 1.0,
    "concat": lambda x, w: tp.concat([x, w[None], x * 2.0], axis=0) + 1.0,
    "stack": lambda x, w: tp.stack([x, x + 1.0]),
    "slices": lambda x, w: (x[1:], x[:-1], x[::2], x[:, 1], x[:1], x[-2:]),
    "difference": lambda x, w: x[1:] - x[:-1],
    "select": lambda x, w: x[0] + x[-1] + x[x.shape[0] - 1],
    "half": lambda x, w: x[: x.shape[0] // 2] * 2.0,
    "flip": lambda x, w: tp.flip(x, axis=0) + tp.roll(x, 1, axis=0),
    "new": lambda x, w: x * 1.0 + tp.zeros((x.shape[0], 1)) + tp.ones_like(x) + tp.full((x.shape[0], 3), 2.0),
    "expand": lambda x, w: tp.expand(w, (x.shape[0], 3)) * tp.broadcast_to(w, x.shape) * x,
    "where": lambda x, w: tp.where(x > 1.0, x, tp.zeros_like(x)),
    "take": lambda x, w: tp.take(x, tp.tensor([0, 1]), axis=0),
    "mask": lambda x, w: x[x > 1.0] * 2.0,
    "in place": lambda x, w: (x * 1.0).add_(w),
    "transposed": lambda x, w: tp.permute_dims(x, (1, 0)).clone() * 2.0,
    "squeeze": lambda x, w: x[None].squeeze(0) + x[:, None].squeeze(1),
    "triangle": lambda x, w: tp.tril(x) + tp.triu(x, 1),
    "cross entropy": lambda x, w: -tp.mean(tp.log_softmax(x, axis=1)[:, 0]),
}
SIZES = (7, 2, 33, 5, 4, 12)


def matrix(rows: int, columns: int = 3, *, grad: bool = False) -> Tensor:
    values = tp.tensor((RNG.random((rows, columns)) + 0.5).astype(np.float32))
    return values.requires_grad_() if grad else values


def leaves(out: Any) -> list[Any]:
    return [leaf for item in out for leaf in leaves(item)] if isinstance(out, (tuple, list)) else [out]


def same(got: Any, want: Any) -> None:
    a, b = leaves(got), leaves(want)
    assert len(a) == len(b)
    for p, q in zip(a, b, strict=True):
        if not isinstance(q, Tensor):
            assert p == q
            continue
        assert (p.shape, p.dtype) == (q.shape, q.dtype)
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=2e-5, atol=1e-5)


def sizes_of(compiled: Any, name: str = "x") -> list[str]:
    return [g for g in compiled.report.guards if ".shape" in g and name in g]


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_serves_every_size(name: str) -> None:
    """C02: `dynamic=True`, forward and backward: values and shapes of eager at sizes that the capture did not have."""
    program = PROGRAMS[name]
    forward, training = tp.compile(program, dynamic=True), tp.compile(program, dynamic=True)
    for rows in SIZES:
        x, w = matrix(rows), matrix(1)[0]
        same(forward(x, w), program(x, w))
        gradients = []
        for fn in (program, training):
            a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
            outputs = [out for out in leaves(fn(a, b)) if out.requires_grad]
            tp.sum(tp.stack([tp.sum(out * out) for out in outputs])).backward()
            gradients.append((a.grad, b.grad))
        for got, want in zip(*gradients, strict=True):
            assert (got is None) == (want is None)
            if got is not None and want is not None:
                np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
    assert len(forward.graphs) == len(training.graphs) == 1, (
        forward.report.recompiles,
        training.report.recompiles,
    )
    (graph,) = forward.graphs
    assert graph.verify() == []
    assert tp.graph.parse(graph.text()) == graph


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_of_0_and_1_have_entries_of_their_own(name: str) -> None:
    """C02: what is right for a symbol is not taken for right there: eager's values, or eager's error."""
    program = PROGRAMS[name]
    compiled = tp.compile(program)
    for rows in (4, 1, 6, 0, 5, 1, 0):
        x, w = matrix(rows), matrix(1)[0]
        try:
            want = program(x, w)
        except tp.errors.TensorPlayError as error:
            with pytest.raises(type(error)):
                compiled(x, w)
            continue
        same(compiled(x, w), want)
    assert len(compiled.graphs) <= 4


def test_the_second_size_makes_a_symbol_of_the_first() -> None:
    """C02: automatic: a static entry, then one for every other size; axes that do not change stay known."""
    compiled = tp.compile(lambda x: tp.sum(x * 2.0, axis=0))
    for rows in (3, 4, 5, 3, 100):
        x = matrix(rows)
        same(compiled(x), tp.sum(x * 2.0, axis=0))
    assert len(compiled.graphs) == 2
    assert compiled.report.recompiles == ["graph 1: x.shape[0] == 3, got 4"]
    assert sizes_of(compiled) == ["x.shape[0] == 3", "x.shape[1] == 3", "x.shape[1] == 3", "x.shape[0] >= 2"]
    assert "float32[s0, 3]" in compiled.graphs[1].text()
    compiled(matrix(6, 5))
    assert len(compiled.graphs) == 3
    assert compiled.report.recompiles[1] == "graph 2: x.shape[1] == 3, got 5"
    compiled(matrix(8, 9))
    assert len(compiled.graphs) == 3


def test_dynamic_false_captures_each_size() -> None:
    """C02: and None does not make symbols of what differs in more than sizes."""
    compiled = tp.compile(lambda x: x + 1.0, dynamic=False)
    for n in (2, 3, 4):
        assert compiled(tp.ones((n,))).shape == (n,)
    assert len(compiled.graphs) == 3
    automatic = tp.compile(lambda x: x + 1.0)
    automatic(tp.ones((2,)))
    automatic(tp.ones((3,), dtype=tp.float64))
    assert sizes_of(automatic) == ["x.shape[0] == 2", "x.shape[0] == 3"]


def test_dynamic_is_none_true_or_false() -> None:
    """C02: anything else is refused by name, also in the form of a decorator."""
    with pytest.raises(ArgumentError, match="'dynamic' must be True or False"):
        tp.compile(lambda x: x, dynamic="yes")  # type: ignore[call-overload]

    @tp.compile(dynamic=True)
    def double(x: Tensor) -> Tensor:
        return x * 2.0

    for n in (4, 9):
        assert double(tp.ones((n,))).tolist() == [2.0] * n
    assert len(double.graphs) == 1


def test_a_change_of_rank_or_layout_is_another_entry() -> None:
    """C02: one specialisation over sizes; rank and layout recompile, 0 and 1 specialise."""
    compiled = tp.compile(lambda x: x * 2.0, dynamic=True)

    def grew(x: Tensor) -> bool:
        before = len(compiled.graphs)
        same(compiled(x), x * 2.0)
        return len(compiled.graphs) > before

    assert grew(matrix(4, 5))
    assert not grew(matrix(7, 6))
    assert grew(matrix(4)[0])
    assert grew(tp.permute_dims(matrix(4, 5), (1, 0)))
    assert not grew(tp.permute_dims(matrix(9, 2), (1, 0)))
    assert grew(matrix(8, 10)[:, :4])
    assert not grew(matrix(6, 10)[:, :7])
    assert grew(matrix(6, 12)[:, :7])
    assert grew(matrix(1, 5))
    assert not grew(matrix(1, 8))
    assert grew(matrix(0, 8))
    assert "permute_dims(x, (1, 0)).is_contiguous() == True" in compiled.report.guards


def test_equal_sizes_share_a_symbol_that_is_guarded() -> None:
    """C02: and different ones have one each, for the same program."""
    compiled = tp.compile(lambda x, y: x + y, dynamic=True)
    for n in (3, 8):
        assert compiled(tp.ones((n,)), tp.ones((n,))).shape == (n,)
    assert len(compiled.graphs) == 1
    assert "x.shape[0] == y.shape[0]" in compiled.report.guards
    with pytest.raises(tp.errors.ShapeError, match="broadcast"):
        compiled(tp.ones((3,)), tp.ones((4,)))
    apart = tp.compile(lambda x, y: tp.sum(x) + tp.sum(y), dynamic=True)
    for n, m in ((3, 4), (3, 3), (8, 5)):
        assert apart(tp.ones((n,)), tp.ones((m,))).item() == n + m
    assert len(apart.graphs) == 1


def test_sizes_that_operands_need_equal_are_guarded() -> None:
    """C02: a symbol that meets a known size is that size, in the names of the arguments."""
    table = tp.ones((5, 2))
    compiled = tp.compile(lambda x: x @ table, dynamic=True)
    assert compiled(matrix(3, 5)).shape == (3, 2)
    assert compiled(matrix(9, 5)).shape == (9, 2)
    assert len(compiled.graphs) == 1
    assert "x.shape[1] == 5" in compiled.report.guards
    with pytest.raises(tp.errors.ShapeError):
        compiled(matrix(3, 6))


def branches(x: Tensor) -> Tensor:
    n = x.shape[0]
    y = x + 1.0 if n > 3 else x - 1.0
    return y * 2.0 if n % 2 == 0 else y


def test_branches_on_sizes_are_guarded_on_both_sides() -> None:
    """C07: control flow on a shape goes by the size at hand; each outcome is an entry, in the words of the program."""
    compiled = tp.compile(branches, dynamic=True)
    for n in (*range(2, 12), *range(11, 1, -1)):
        x = tp.ones((n,))
        assert compiled(x).tolist() == branches(x).tolist()
    assert len(compiled.graphs) == 4
    guards = sizes_of(compiled)
    for guard in ("> 3", "<= 3", "% 2 == 0", "% 2 != 0"):
        assert f"x.shape[0] {guard}" in guards
    assert compiled.report.recompiles[0] == "graph 1: x.shape[0] % 2 == 0, got 1"
    assert "test_input_sizes.py" in compiled.graphs[0].text().split("guard", 1)[1]
    assert all(len(graph.nodes) in (1, 2) for graph in compiled.graphs), "only the path taken is captured"


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "range": lambda n: sum(range(n)),
    "int": lambda n: int(n) + 1,
    "index": lambda n: [3, 1, 4, 1, 5, 9, 2, 6][n],
    "float": lambda n: float(n) * 0.5,
    "quotient": lambda n: n / 2 + 3 / n,
    "remainders": lambda n: 17 % n + 17 // n + divmod(17, n)[0],
    "bits": lambda n: (n << 1) | (n & 1) ^ (n >> 1),
    "text": lambda n: len(f"{n:>4}") + int(str(n)),
    "key": lambda n: {2: 5.0, 3: 6.0}.get(n, 7.0),
    "member": lambda n: 1.0 if n in (2, 5) else 2.0,
    "set": lambda n: 1.0 if n in {2, 5} else 2.0,
    "power": lambda n: 2**n + n**-1 + pow(n, 2, 5),
    "root": lambda n: __import__("math").sqrt(n),
    "class": lambda n: 1.0 if isinstance(n, int) else 2.0,
    "repeat": lambda n: len([0] * n) + len("ab" * n),
    "round": lambda n: round(n, -1) + abs(-n) + ~n,
    "negative": lambda n: -n + max(n, 3) - min(n, 4),
    "sorted": lambda n: sorted([4, n, 3])[0],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_sizes_in_python_are_numbers(name: str) -> None:
    """C07: whatever a program makes of a size, it is what a run with that size makes of it."""
    use = NUMBERS[name]

    def program(x: Tensor) -> tuple[Tensor, Any]:
        made = use(x.shape[0])
        return x * float(made), made

    compiled = tp.compile(program, dynamic=True)
    for n in (2, 3, 5, 7, 2, 6):
        x = tp.ones((n,))
        same(compiled(x), program(x))
        assert type(compiled(x)[1]) is type(program(x)[1])


def test_a_size_that_is_needed_as_a_number_is_guarded_with_its_line() -> None:
    """C07: loops over a size, `len`, iteration, and indexing: `x.shape[0] == 3`, and an entry per size."""
    for program in (
        lambda x: sum((x[i] for i in range(x.shape[0])), tp.zeros(())),
        lambda x: sum(iter(x), tp.zeros(())),
        lambda x: tp.sum(x) * float(len(x)),
    ):
        compiled = tp.compile(program, dynamic=True)
        for n in (3, 4, 3):
            assert compiled(tp.ones((n,))).item() == program(tp.ones((n,))).item()
        assert len(compiled.graphs) == 2
        assert "x.shape[0] == 3" in compiled.report.guards
        assert compiled.report.recompiles == ["graph 1: x.shape[0] == 3, got 4"]


def test_marked_axes_are_symbols_from_the_first_call() -> None:
    """C02: `mark_dynamic` before the first call; the other axes stay known, and marks do not share symbols."""
    compiled = tp.compile(lambda x: x * 2.0)
    x = matrix(4, 4)
    tp.compiler.mark_dynamic(x, -2)
    compiled(x)
    compiled(matrix(9, 4))
    assert len(compiled.graphs) == 1
    assert sizes_of(compiled) == ["x.shape[1] == 4", "x.shape[0] >= 2"]
    both = matrix(5, 5)
    tp.compiler.mark_dynamic(both, 0, max=64)
    tp.compiler.mark_dynamic(both, 1, min=3)
    ranged = tp.compile(lambda x: x * 2.0)
    ranged(both)
    assert sizes_of(ranged) == ["2 <= x.shape[0] <= 64", "x.shape[1] >= 3"]
    ranged(matrix(7, 6))
    assert len(ranged.graphs) == 1
    ranged(matrix(65, 6))
    assert ranged.report.recompiles == ["graph 1: 2 <= x.shape[0] <= 64, got 65"]


def test_a_mark_that_the_function_contradicts_is_an_error() -> None:
    """C02: named are the size, what the function needs, and the line that forced it."""

    def fixed(x: Tensor) -> Tensor:
        return x.reshape((4,)) * 2.0

    x = tp.ones((4,))
    tp.compiler.mark_dynamic(x, 0)
    with pytest.raises(
        CaptureError, match=r"x\.shape\[0\] is marked dynamic, .* needs x\.shape\[0\] == 4"
    ) as caught:
        tp.compile(fixed)(x)
    assert caught.value.code == "TP4040"
    assert any("test_input_sizes.py" in note for note in caught.value.__notes__)
    assert tp.compile(branches)(x).tolist() == branches(x).tolist(), "a branch takes one side of the sizes"
    narrow = tp.ones((4,))
    tp.compiler.mark_dynamic(narrow, 0, min=2, max=100)
    with pytest.raises(CaptureError, match=r"needs x\.shape\[0\] > 3"):
        tp.compile(lambda x: x if x.shape[0] > 3 else -x)(narrow)


def test_marks_are_checked_at_once() -> None:
    """C02: axis, tensor and range; the marks of a tensor end with it."""
    x = tp.ones((4,))
    with pytest.raises(IndexOutOfRangeError, match="axis 1 is out of range"):
        tp.compiler.mark_dynamic(x, 1)
    with pytest.raises(ArgumentError, match="'tensor' must be Tensor"):
        tp.compiler.mark_dynamic([1.0], 0)  # type: ignore[arg-type]
    for tensor, bounds in ((tp.ones((1,)), {}), (x, {"min": 5}), (x, {"max": 3})):
        with pytest.raises(InvalidValueError, match="not in the range of the mark"):
            tp.compiler.mark_dynamic(tensor, 0, **bounds)
    from tensorplay._dynamic import marked

    before = len(marked)
    del tensor
    tp.compiler.mark_dynamic(x, 0)
    assert len(marked) == before + 1
    del x
    assert len(marked) == before


def test_a_check_beside_a_dynamic_length_is_kept(ns: str) -> None:
    """D4: `check(n < y.shape[0])` with n from data and y of any length: captured, and held to in every run."""
    op = positives(f"{ns}::f")

    def head(x: Tensor, y: Tensor) -> Tensor:
        n = op(x).shape[0]
        tp.check(n < y.shape[0], "more are wanted than there are")
        return y[:n] * 2.0

    compiled = tp.compile(head, dynamic=True)
    for k, length in ((2, 5), (3, 9), (0, 4), (1, 2)):
        x, y = vector(*[1.0] * k, *[-1.0] * (7 - k)), tp.arange(length).astype(tp.float32)
        assert compiled(x, y).tolist() == head(x, y).tolist()
    assert len(compiled.graphs) == 1
    with pytest.raises(InvalidValueError, match="more are wanted than there are") as caught:
        compiled(vector(1, 1, 1, 1, 1, 1, -1), tp.ones((5,)))
    assert caught.value.code == "TP1171"
    assert any("test_input_sizes.py" in note for note in caught.value.__notes__)


def test_keywords_defaults_and_none_specialise_beside_symbols() -> None:
    """C08: keyword-only and default arguments are kept, and None is not a tensor."""

    def program(x: Tensor, bias: Tensor | None = None, *, scale: float = 2.0) -> Tensor:
        y = x * scale
        return y if bias is None else y + bias

    compiled = tp.compile(program, dynamic=True)
    for n in (3, 6):
        x = tp.ones((n,))
        assert compiled(x).tolist() == [2.0] * n
        assert compiled(x, scale=3.0).tolist() == [3.0] * n
        assert compiled(x, tp.ones((n,)), scale=3.0).tolist() == [4.0] * n
        assert compiled(x, bias=None).tolist() == [2.0] * n
    assert len(compiled.graphs) == 4


def test_containers_of_tensors_have_symbols_too() -> None:
    """C02: guards name the place in the argument."""
    compiled = tp.compile(lambda batch: {"out": batch["x"] * batch["y"][0]}, dynamic=True)
    for n in (3, 8):
        out = compiled({"x": tp.ones((n,)), "y": [tp.ones((n,))]})
        assert out["out"].tolist() == [1.0] * n
    assert len(compiled.graphs) == 1
    assert "batch['x'].shape[0] == batch['y'][0].shape[0]" in compiled.report.guards


def test_what_no_symbol_can_do_is_captured_for_the_size(ns: str) -> None:
    """C02: an op whose fake rule needs the number, in Python or not: right values, an entry per size, no error."""

    @tp.library.custom_op(f"{ns}::repeat", mutates_args=())
    def repeat(x: Tensor) -> Tensor:
        return tp.tensor(np.repeat(x.numpy(), len(x)))

    repeat.register_fake(lambda x: tp.empty((sum(x.shape[0] for _ in range(x.shape[0])),)))
    compiled = tp.compile(lambda x: repeat(x) * 2.0)
    for n in (2, 3, 4):
        assert compiled(tp.ones((n,))).tolist() == [2.0] * (n * n)
    view = tp.compile(lambda x: (x.clone()[0].fill_(5.0), x * 2.0)[1], dynamic=True)
    for n in (2, 3):
        x = tp.ones((n, 2)).requires_grad_()
        tp.sum(view(x)).backward()
        assert x.grad is not None
        assert x.grad.tolist() == [[2.0, 2.0]] * n


def test_an_exception_of_the_program_is_not_retried() -> None:
    """C02: it passes as it is, after one capture."""
    calls: list[int] = []

    def program(x: Tensor) -> Tensor:
        calls.append(1)
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        tp.compile(program, dynamic=True)(tp.ones((3,)))
    assert len(calls) == 1


def test_ten_steps_of_training_with_other_batches_are_one_graph() -> None:
    """C02: forward and backward once each; the mean's divisor is that of the batch at hand."""
    truth = np.array([[1.0], [-2.0], [0.5]], dtype=np.float32)

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return tp.mean((x @ w - y) ** 2.0)

    step = tp.compile(loss)
    w, v = (tp.zeros((3, 1)).requires_grad_() for _ in range(2))
    for rows in (4, 7, 16, 5, 9, 2, 31, 8, 6, 12):
        x = matrix(rows)
        y = tp.tensor(x.numpy() @ truth)
        for fn, p in ((step, w), (loss, v)):
            fn(p, x, y).backward()
            with tp.no_grad():
                p.sub_(p.grad * 0.1)
            p.grad = None
        np.testing.assert_allclose(w.detach().numpy(), v.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert len(step.graphs) == 2
    assert all(graph.backward is not None for graph in step.graphs)


@pytest.mark.requires("tvm")
def test_tvm_builds_once_for_all_sizes_of_inputs() -> None:
    """T07: entries are counted apart from artifacts: sizes 0 and 1 are captured anew and run the same code."""
    for backward in (False, True):

        def program(x: Tensor, w: Tensor) -> Tensor:
            return tp.tanh(x * 2.0) + w

        compiled = tp.compile(program, backend="tvm", on_fallback="record", dynamic=True)
        for rows in (4, 9, 1, 0, 30):
            x, w = matrix(rows, grad=backward), matrix(1)[0]
            out = compiled(x, w)
            same(out, program(x, w))
            assert [run.marker.executor for run in compiled.last_run.forward] == ["tvm"]
            if backward:
                out.backward(tp.ones_like(out))
                assert x.grad is not None
                np.testing.assert_allclose(
                    x.grad.numpy(), 2.0 / np.cosh(x.detach().numpy() * 2.0) ** 2, rtol=1e-4
                )
                assert [run.marker.executor for run in compiled.last_run.backward] == ["tvm"]
        assert len(compiled.graphs) == 3
        assert len(compiled.builds) == (2 if backward else 1)
