"""`cond` and `while_loop` in captured and compiled functions: one node each, gradients of the branch that runs."""

from __future__ import annotations

from typing import Any

import pytest

import tensorplay as tp


def _bits(t: Any) -> bytes:
    return t.detach().contiguous().numpy().tobytes()


def _agree(fn: Any, compiled: Any, *args: Any) -> None:
    want, got = fn(*args), compiled(*args)
    for a, b in zip(_flat(want), _flat(got), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert _bits(a) == _bits(b)


def _flat(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return [leaf for value in x.values() for leaf in _flat(value)]
    if isinstance(x, (tuple, list)):
        return [leaf for value in x for leaf in _flat(value)]
    return [x]


def _kernels(compiled: Any) -> list[str]:
    return [r.marker.kernel for r in compiled.last_run.forward]


def _gradients(fn: Any, *args: Any) -> tuple[float, list[Any]]:
    leaves = [a.clone().requires_grad_() if a.dtype.is_floating_point else a for a in args]
    loss = fn(*leaves)
    loss.backward()
    return loss.item(), [a.grad for a in leaves if a.dtype.is_floating_point]


X = [0.5, -1.0, 2.0]
W = [1.0, 2.0, 3.0]


def test_one_node_runs_the_branch_that_the_bool_says() -> None:
    """5.6: one graph for both branches; the report names the branch; nothing of the other runs."""
    w = tp.tensor(W)

    def f(x: Any, p: Any) -> Any:
        return tp.cond(p, lambda a: (a * 2.0 + w).tanh(), lambda a: a - w, (x,))

    compiled = tp.compile(f)
    x = tp.tensor(X)
    for value in (True, False, True):
        _agree(f, compiled, x, tp.tensor(value))
        assert _kernels(compiled)[0] == f"tp::cond/{str(value).lower()}"
        ran = [op for r in compiled.last_run.forward for op in r.ops]
        assert ("tp::tanh.default" in ran) is value
        assert ("tp::sub.default" in ran) is not value
    assert len(compiled.graphs) == 1
    assert [n.target for n in compiled.graphs[0].nodes] == ["tp::cond"]


def test_a_loop_is_one_node_for_any_number_of_trips() -> None:
    """C22: one graph for 0, 1 and 7 trips, bit for bit what the eager loop gives."""
    w = tp.tensor(W)

    def f(x: Any, n: Any) -> Any:
        return tp.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 1.5 + w), (n * 0, x))

    compiled = tp.compile(f)
    for trips in (0, 1, 7):
        _agree(f, compiled, tp.tensor(X), tp.tensor(trips))
        assert any(kernel.startswith(f"tp::while_loop/{trips} trip") for kernel in _kernels(compiled))
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("value", [True, False])
def test_gradients_go_through_the_branch_that_ran(value: bool) -> None:
    """5.6: by the operand, by what the branches close over, and by what is used around the node."""

    def f(x: Any, w: Any, p: Any) -> Any:
        y = x * x
        z = tp.cond(p, lambda a: (a * 2.0 + w).tanh() * y, lambda a: a - w, (y,))
        return (z * x).sum()

    p = tp.tensor(value)
    compiled = tp.compile(f)
    want, got = (_gradients(g, tp.tensor(X), tp.tensor(W), p) for g in (f, compiled))
    assert want[0] == got[0]
    assert [_bits(a) for a in want[1]] == [_bits(b) for b in got[1]]
    assert "tp::cond" in [n.target for n in compiled.graphs[0].backward.nodes]
    assert f"tp::cond/{str(value).lower()}" in [r.marker.kernel for r in compiled.last_run.backward]


def test_the_text_reads_back() -> None:
    """5.6: blocks are printed nested, parsed back, and verified."""

    def f(x: Any, n: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            return i + 1, tp.cond(y.sum() > 0, lambda a: a * 0.5, lambda a: a + 1.0, (y,))

        return tp.while_loop(lambda i, y: i < n, body, (n * 0, x))

    graph = tp.graph.capture(f, tp.tensor(X), tp.tensor(3))
    again = tp.graph.parse(graph.text())
    assert again == graph
    assert again.verify() == []
    compiled = tp.compile(f)
    for trips in (0, 4, 9):
        _agree(f, compiled, tp.tensor(X), tp.tensor(trips))


def test_branches_that_differ_are_refused_by_name() -> None:
    """5.6: structure, number, shape and dtype; the message names both and which result."""
    x, p = tp.tensor(X), tp.tensor(True)
    cases = [
        (lambda a: a, lambda a: (a,), r"true_fn of cond returns \*, false_fn tuple\(\*\)"),
        (
            lambda a: {"k": a},
            lambda a: {"k": a.sum()},
            r"result\['k'\] is float32\[3\] in true_fn of cond, float32\[\]",
        ),
        (lambda a: a, lambda a: a > 0, r"result is float32\[3\] in true_fn of cond, bool\[3\] in false_fn"),
    ]
    for yes, no, message in cases:
        with pytest.raises(tp.errors.CaptureError, match=message) as caught:
            tp.compile(lambda x, p, yes=yes, no=no: tp.cond(p, yes, no, (x,)))(x, p)
        assert caught.value.code == "TP4302"


def test_a_branch_may_not_write_outside() -> None:
    """5.6: neither to an operand, nor to a tensor that it closes over, nor to a view of one; to its own it may."""
    w = tp.tensor(W)
    x, p = tp.tensor(X), tp.tensor(True)
    for branch in (lambda a: a.add_(1.0), lambda a: w.mul_(2.0), lambda a: a[:2].add_(1.0).sum() + a):
        with pytest.raises(tp.errors.CaptureError, match="writes to a tensor from outside") as caught:
            tp.compile(lambda x, p, branch=branch: tp.cond(p, branch, lambda a: a * 1.0, (x,)))(x, p)
        assert caught.value.code == "TP4304"

    def f(x: Any, p: Any) -> Any:
        return tp.cond(p, lambda a: a.clone().add_(1.0), lambda a: a * 1.0, (x,))

    _agree(f, tp.compile(f), x, p)
    assert x.tolist() == X
    assert w.tolist() == W


def test_the_gradient_of_a_captured_loop_is_refused() -> None:
    """5.6: by its code, where somebody asks for it; the values of the loop are there without."""

    def f(x: Any) -> Any:
        return tp.while_loop(lambda y: y.sum() < 9.0, lambda y: y * 2.0, (x,))[0]

    x = tp.ones((2,)).requires_grad_()
    with pytest.raises(tp.errors.AutogradError) as caught:
        tp.compile(f)(x)
    assert caught.value.code == "TP3026"
    with tp.autograd.no_grad():
        _agree(f, tp.compile(f), x)
    _agree(f, tp.compile(f), x.detach())
