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


@pytest.mark.requires("tvm")
def test_regions_in_a_branch_run_on_the_backend() -> None:
    """5.6: pointwise chains of the branch that runs are TVM's, the node itself needs no fallback."""
    w = tp.tensor(W)

    def f(x: Any, p: Any) -> Any:
        return tp.cond(p, lambda a: (a * 2.0 + w).tanh(), lambda a: a - w, (x,))

    compiled = tp.compile(f, backend="tvm", on_fallback="error")
    for value in (True, False):
        _agree(f, compiled, tp.tensor(X), tp.tensor(value))
        assert [r.marker.executor for r in compiled.last_run.forward] == ["native", "tvm"]
        assert compiled.last_run.forward[0].marker.kernel == f"tp::cond/{str(value).lower()}"


def test_one_graph_with_blocks_serves_all_sizes() -> None:
    """5.6: blocks share the symbols of the graph around them; what a block finds of sizes is its own in every trip."""

    def f(x: Any, p: Any) -> Any:
        return tp.cond(p, lambda: x * 2.0, lambda: x + x[x > 0.0].sum())

    def grow(x: Any) -> Any:
        return tp.while_loop(lambda y: y.sum() < 50.0, lambda y: y + y[y > 0.0].sum(), (x,))[0]

    compiled = tp.compile(f, dynamic=True)
    for n in (3, 5, 4):
        for value in (True, False):
            _agree(f, compiled, tp.arange(n, dtype=tp.float32) - 1.0, tp.tensor(value))
    assert len(compiled.graphs) == 1
    _agree(grow, tp.compile(grow), tp.tensor(X))


def test_a_size_that_only_a_branch_finds_stays_there() -> None:
    """5.6: TP4306, of a result, and of what a gradient would save."""
    x, p = tp.tensor(X), tp.tensor(True)
    with pytest.raises(tp.errors.CaptureError) as caught:
        tp.compile(lambda x, p: tp.cond(p, lambda: tp.nonzero(x), lambda: tp.nonzero(-x)))(x, p)
    assert caught.value.code == "TP4306"


@pytest.mark.parametrize("value", [True, False])
def test_modes_inside_of_a_branch_hold_for_its_gradient(value: bool) -> None:
    """5.6: no_grad() in a branch, tp.func.grad around one, a result that is the operand itself."""

    def silent(x: Any, p: Any) -> Any:
        def yes(a: Any) -> Any:
            with tp.no_grad():
                b = a * 3.0
            return a * b

        return tp.cond(p, yes, lambda a: a, (x,)).sum()

    def inner(x: Any, p: Any) -> Any:
        return tp.func.grad(lambda y: tp.cond(p, lambda: y * y, lambda: y.tanh()).sum())(x).sum()

    p = tp.tensor(value)
    want, got = (_gradients(fn, tp.tensor(X), p) for fn in (silent, tp.compile(silent)))
    assert want[1][0].tolist() == got[1][0].tolist()
    _agree(inner, tp.compile(inner), tp.tensor(X), p)


@pytest.mark.thread_unsafe(reason="seeds the generator of the process")
def test_random_numbers_of_a_branch_are_those_that_its_gradient_saw() -> None:
    """5.6: they are drawn once, and by the branch that runs alone."""

    def f(x: Any, p: Any) -> Any:
        return tp.cond(p, lambda: x * tp.normal((3,)), lambda: x * 2.0).sum()

    compiled = tp.compile(f)
    assert compiled.explain(tp.tensor(X).requires_grad_(), tp.tensor(True))
    node = next(n for n in compiled.graphs[0].nodes if n.target == "tp::cond")
    assert node.effects == ("random",)
    found = []
    for fn in (f, compiled):
        tp.manual_seed(3)
        x = tp.tensor(X).requires_grad_()
        fn(x, tp.tensor(False)).backward()
        assert x.grad.tolist() == [2.0, 2.0, 2.0]
        x.grad = None
        loss = fn(x, tp.tensor(True))
        loss.backward()
        assert abs((x.grad * x).sum().item() - loss.item()) < 1e-5
        found.append(x.grad.tolist())
    assert found[0] == found[1]


def test_what_branches_read_of_python_is_guarded() -> None:
    """5.6: of both branches; a Python bool is decided by the capture, which then has one branch."""
    factor, x = [2.0], tp.tensor(X)

    def f(x: Any, p: Any) -> Any:
        return tp.cond(p, lambda: x * factor[0], lambda: x)

    compiled = tp.compile(f)
    assert compiled(x, tp.tensor(False)).tolist() == X
    factor[0] = 5.0
    assert compiled(x, tp.tensor(True)).tolist() == [2.5, -5.0, 10.0]
    plain = tp.compile(f)
    assert plain(x, True).tolist() == [2.5, -5.0, 10.0]
    assert plain(x, False).tolist() == X
    assert [[n.target for n in g.nodes] for g in plain.graphs] == [["tp::mul.Scalar"], []]


def test_a_tensor_of_a_branch_does_not_leave_it_but_by_return() -> None:
    """5.6: kept in a list of outside it is refused; used behind the node it belongs to no branch."""
    kept: list[Any] = []

    def outside(x: Any, p: Any) -> Any:
        return tp.cond(p, lambda: kept.append(x * 2.0) or x, lambda: x)

    def behind(x: Any, p: Any) -> Any:
        own: list[Any] = []
        return tp.cond(p, lambda: own.append(x * 2.0) or x * 1.0, lambda: x * 3.0) + own[0]

    for fn, code in ((outside, "TP4031"), (behind, "TP4004")):
        with pytest.raises(tp.errors.CaptureError) as caught:
            tp.compile(fn)(tp.tensor(X), tp.tensor(True))
        assert caught.value.code == code


def test_programs_with_blocks_are_called_written_and_read(tmp_path: Any) -> None:
    """5.6: as a call, as source, as a file, as JSON, as a script, compiled again; pictures have the blocks."""
    w = tp.tensor(W)

    def f(x: Any, n: Any, p: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            return i + 1, tp.cond(p, lambda: y * w, lambda: y + x)

        return tp.while_loop(lambda i, y: i < n, body, (n * 0, x))[1]

    x, n = tp.tensor(X), tp.tensor(3)
    graph = tp.graph.capture(f, x, n, tp.tensor(True))
    namespace: dict[str, Any] = {}
    exec(graph.code(), namespace)
    tp.graph.save(graph, tmp_path / "program.st")
    loaded, compiled = tp.graph.load(tmp_path / "program.st"), tp.compile(graph)
    for value in (True, False):
        p = tp.tensor(value)
        want = f(x, n, p).tolist()
        assert graph(x, n, p).tolist() == want
        assert namespace["forward"](x, n, p, w).tolist() == want
        assert loaded(x, n, p).tolist() == want
        assert compiled(x, n, p).tolist() == want
        assert tp.graph.from_json(graph.to_json())(x, n, p, w).tolist() == want
    node = next(n for n in graph.nodes if n.target == "tp::while_loop")
    assert [[n.target for n in block.nodes] for block in node.blocks] == [
        ["tp::lt.default"],
        ["tp::add.Scalar", "tp::cond"],
    ]
    assert "subgraph cluster_" in graph.to_dot()
    assert "body: true: %" in graph.table()
    assert "tp::cond true" in graph.svg()
    graph.save_repro(tmp_path / "repro.py")
    assert "tp::while_loop" in (tmp_path / "repro.py").read_text()


def test_a_captured_vmap_runs_both_branches_and_writes_to_nothing() -> None:
    """5.6: each sample takes its own; a write that would reach the other branch's samples is refused."""
    batch = tp.tensor([[1.0, 2.0], [-3.0, 1.0]])

    def f(b: Any) -> Any:
        return tp.func.vmap(lambda r: tp.cond(r.sum() > 0, lambda a: a * 2.0, lambda a: a - 1.0, (r,)))(b)

    def writes(b: Any) -> Any:
        return tp.func.vmap(lambda r: tp.cond(r.sum() > 0, lambda a: a.mul_(2.0), lambda a: a - 1.0, (r,)))(
            b * 1.0
        )

    _agree(f, tp.compile(f), batch)
    for call in (lambda: tp.compile(writes)(batch), lambda: writes(batch)):
        with pytest.raises((tp.errors.CaptureError, tp.errors.InvalidValueError)) as caught:
            call()
        assert caught.value.code == "TP4304"
    loop = tp.func.vmap(lambda y: tp.while_loop(lambda a: a.sum() < 9.0, lambda a: a * 2.0, (y,))[0])
    with pytest.raises(tp.errors.UnsupportedError) as refused:
        tp.compile(loop)(batch)
    assert refused.value.code == "TP4307"
