"""Sizes that depend on data: `get_ctx().new_dynamic_size()` in fake rules, what a capture does with them, and what a run
holds the kernel to."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import tensorplay as tp
from dynamic_sizes import pair, positives, vector
from tensorplay import SymInt, Tensor, library
from tensorplay.errors import CaptureError, ContractError, InvalidValueError, ShapeError

HERE = __file__.rsplit("/", 1)[-1]


def line_of(text: str) -> int:
    """The line of this file that ends with a comment."""
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def test_there_is_a_context_in_a_fake_rule_and_nowhere_else(ns: str) -> None:
    """5.5: outside of a fake rule, and after its call, get_ctx is an error."""
    with pytest.raises(CaptureError, match="no fake rule is running") as caught:
        library.get_ctx()
    assert caught.value.code == "TP4017"
    kept: list[Any] = []
    op = library.custom_op(f"{ns}::f", lambda x: x + 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")

    @op.register_fake
    def fake(x: Tensor) -> Tensor:
        kept.append(library.get_ctx())
        assert repr(kept[0]) == f"<context of the fake rule of {ns}::f>"
        return tp.empty_like(x)

    tp.graph.capture(op, tp.ones((2,)))
    with pytest.raises(CaptureError, match="the call that this context belongs to is over"):
        kept[0].new_dynamic_size()


def test_a_fresh_size_is_a_symbol_with_a_range(ns: str) -> None:
    """5.5: fresh symbols u0, u1, ..., printed with their ranges; text and graph agree."""
    any_size, some = positives(f"{ns}::any"), positives(f"{ns}::some", 2, 10, columns=3)
    graph = tp.graph.capture(lambda x: (any_size(x), some(x)), vector(1, 2, 3))
    first, second = (node.spec[0].shape for node in graph.nodes)
    assert [str(first), str(second)] == ["(u0,)", "(u1, 3)"]
    assert isinstance(first[0], SymInt)
    assert "  size u0 >= 0\n  size u1 in [2, 10]\n" in graph.text()
    assert graph.verify() == []
    again = tp.graph.parse(graph.text())
    assert again == graph
    assert again.verify() == []


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-1, None, "min must not be negative, got -1"),
        (3, 2, "max must not be less than min, got min=3 and max=2"),
        ("n", None, "min must be a number, got the symbolic size u0"),
        (0, "n", "max must be a number, got the symbolic size u0"),
        (0, 2**70, "max must fit in 64 bits"),
    ],
)
def test_bounds_that_cannot_be(ns: str, low: Any, high: Any, text: str) -> None:
    """5.5: a negative min, a max below min and a symbolic bound are ValueErrors."""
    op = library.custom_op(f"{ns}::f", lambda x: x + 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")

    @op.register_fake
    def fake(x: Tensor) -> Tensor:
        ctx = library.get_ctx()
        n = ctx.new_dynamic_size()
        return tp.empty((ctx.new_dynamic_size(n if low == "n" else low, n if high == "n" else high),))

    with pytest.raises(ValueError, match=text.replace("(", r"\(")) as caught:
        tp.graph.capture(op, vector(1))
    assert caught.value.code == "TP1170"  # type: ignore[attr-defined]


def test_a_bound_that_is_no_number(ns: str) -> None:
    """5.5: other objects as bounds are a TypeError."""
    op = positives(f"{ns}::f", "few")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="min must be an int, got str"):
        tp.graph.capture(op, vector(1))


def test_tensors_on_meta_have_no_such_sizes(ns: str) -> None:
    """5.5: on meta tensors a RuntimeError that explains; eager on real tensors is unaffected."""
    op = positives(f"{ns}::f")
    assert op(vector(1, -1, 2)).tolist() == [1.0, 2.0]
    with pytest.raises(RuntimeError, match="tensors on 'meta' never get any") as caught:
        op(tp.empty((3,), device="meta"))
    assert caught.value.code == "TP4018"  # type: ignore[attr-defined]


def test_a_size_that_no_output_shows_is_refused(ns: str) -> None:
    """5.5: a run could not tell what u0*u1 is made of."""
    op = library.custom_op(f"{ns}::f", lambda x: x + 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")

    @op.register_fake
    def fake(x: Tensor) -> Tensor:
        ctx = library.get_ctx()
        return tp.empty((ctx.new_dynamic_size() * ctx.new_dynamic_size(),))

    with pytest.raises(CaptureError, match="no size of an output tells what u0 is") as caught:
        tp.graph.capture(op, vector(1))
    assert caught.value.code == "TP4020"


def test_arithmetic_gives_expressions(ns: str) -> None:
    """5.6: + - * // % in normal form; what needs the number itself is refused with the expression."""
    op = positives(f"{ns}::f", 2, 10)
    seen: dict[str, Any] = {}

    def f(x: Tensor) -> Tensor:
        y = op(x)
        n = y.shape[0]
        assert isinstance(n, SymInt)
        for text in (
            "n + 1",
            "1 + n",
            "n - 1",
            "10 - n",
            "2 * n",
            "n * n",
            "-n",
            "n // 2",
            "(2 * n + 4) // 2",
        ):
            seen[text] = eval(text, {"n": n})
        seen["n % 2"], seen["(n + n) - 2 * n"] = n % 2, (n + n) - 2 * n
        seen["n // 16"], seen["divmod"] = n // 16, divmod(4 * n + 2, 4)
        assert hash(n) == hash(y.shape[0])
        for refused in (
            lambda: int(n),
            lambda: float(n),
            lambda: range(n),
            lambda: n / 2,
            lambda: 8 // n,
            lambda: n // n,
            lambda: y * n,
            lambda: tp.full((2,), n),
        ):
            with pytest.raises(CaptureError, match="u0") as caught:
                refused()
            assert caught.value.code == "TP4002"
        with pytest.raises(ZeroDivisionError):
            n // 0
        with pytest.raises(TypeError):
            n + "a"
        return y

    tp.graph.capture(f, vector(1, 2))
    assert f"{seen['n + 1']:>8}" == "  u0 + 1"
    assert {text: str(value) for text, value in seen.items()} == {
        "n + 1": "u0 + 1",
        "1 + n": "u0 + 1",
        "n - 1": "u0 - 1",
        "10 - n": "-u0 + 10",
        "2 * n": "2*u0",
        "n * n": "u0*u0",
        "-n": "-u0",
        "n // 2": "u0//2",
        "(2 * n + 4) // 2": "u0 + 2",
        "n % 2": "u0 - 2*(u0//2)",
        "(n + n) - 2 * n": "0",
        "n // 16": "0",
        "divmod": "(u0, 2)",
    }


def test_branching_names_the_expression_and_the_line(ns: str) -> None:
    """5.6: what the range decides is a bool, the rest an error with the expression and the user's line."""
    op = positives(f"{ns}::f", 2, 10)

    def f(x: Tensor) -> Tensor:
        n = op(x).shape[0]
        assert (n >= 2, n < 2, n <= 10, n > 10, n == 11, n != 1) == (True, False, True, False, False, True)
        assert bool(n)
        assert repr(n < 3) == "u0 < 3"
        if n + 1 < 4:  # branch
            return x
        return x + 1.0

    with pytest.raises(CaptureError, match=r"u0 \+ 1 < 4") as caught:
        tp.graph.capture(f, vector(1, 2))
    assert caught.value.code == "TP4002"
    assert any(f"{HERE}:{line_of('branch')}" in note for note in caught.value.__notes__)


def test_a_check_decides_later_comparisons(ns: str) -> None:
    """5.6: after check(n < 3), n >= 3 is False; the check is in the graph and every run confirms it."""
    op = positives(f"{ns}::f")

    def f(x: Tensor) -> Tensor:
        y = op(x)
        n = y.shape[0]
        tp.check(n < 3, "too many positives")  # check
        tp.check(n != 0)
        assert (n >= 3, n < 4, n == 0, n > 0) == (False, True, False, True)
        assert n * 2 <= 4
        return y * 2.0

    graph = tp.graph.capture(f, vector(1))
    assert f'check u0 < 3, "too many positives"  # at {__file__}:{line_of("check")}' in graph.text()
    assert tp.graph.parse(graph.text()) == graph
    compiled = tp.compile(f)
    assert compiled(vector(1, -1, 2)).tolist() == [2.0, 4.0]
    with pytest.raises(InvalidValueError, match="too many positives") as caught:
        compiled(vector(1, 2, 3))
    assert caught.value.code == "TP1171"
    assert any("u0 < 3 does not hold: it is 3 < 3" in note for note in caught.value.__notes__)
    assert any(f"{HERE}:{line_of('check')}" in note for note in caught.value.__notes__)
    with pytest.raises(InvalidValueError, match=r"u0 != 0 does not hold"):
        compiled(vector(-1, -2, -3))
    assert len(compiled.graphs) == 1


def test_checks_of_sizes_that_are_known() -> None:
    """5.6: in eager a check is what it says."""
    tp.check(True)
    tp.check(tp.ones((2,)).shape[0] == 2, "two")
    with pytest.raises(InvalidValueError, match="three"):
        tp.check(False, "three")
    with pytest.raises(ValueError, match="made late"):
        tp.check(0, lambda: "made late")
    with pytest.raises(InvalidValueError, match="the checked condition is false"):
        tp.check(tp.tensor(False))


def test_a_check_that_never_holds_is_an_error_of_the_capture(ns: str) -> None:
    """5.6: and two checks that contradict each other as well."""
    op = positives(f"{ns}::f", 2, 10)
    with pytest.raises(InvalidValueError, match="more than there can be"):
        tp.graph.capture(lambda x: tp.check(op(x).shape[0] > 10, "more than there can be"), vector(1, 2))

    def twice(x: Tensor) -> Tensor:
        n = op(x).shape[0]
        early = n > 4
        tp.check(n < 5)
        assert (n > 4) is False
        tp.check(early)
        return x

    with pytest.raises(InvalidValueError, match="u0 > 4 is false in every run"):
        tp.graph.capture(twice, vector(1, 2))


def test_a_check_keeps_its_op_though_the_result_is_unused(ns: str) -> None:
    """5.6: dead code that a check speaks of is not dead."""
    op = positives(f"{ns}::f")

    @tp.compile
    def f(x: Tensor) -> Tensor:
        tp.check(op(x).shape[0] > 1)
        return x + 1.0

    assert f(vector(1, 2)).tolist() == [2.0, 3.0]
    with pytest.raises(InvalidValueError, match="it is 1 > 1"):
        f(vector(1, -2))


def test_a_size_of_another_capture_is_refused(ns: str) -> None:
    """5.6: a kept SymInt means nothing elsewhere."""
    op = positives(f"{ns}::f")
    kept: list[Any] = []
    tp.graph.capture(lambda x: kept.append(op(x).shape[0]) or x, vector(1))
    for use in (
        lambda: tp.graph.capture(lambda x: op(x).reshape((kept[0],)), vector(1)),
        lambda: tp.graph.capture(lambda x: x + (op(x).shape[0] == kept[0]), vector(1)),
        lambda: tp.zeros((kept[0],)),
        lambda: tp.check(kept[0] > 2),
    ):
        with pytest.raises(CaptureError, match="outside of the capture that made it") as caught:
            use()
        assert caught.value.code == "TP4019"


def test_what_depends_on_the_run_is_refused_with_its_expression(ns: str) -> None:
    """5.6: sizes that may or may not go together are refused by name, at the user's line."""
    one, other = positives(f"{ns}::one"), positives(f"{ns}::other", columns=3)
    for program, text in (
        (lambda x: one(x) + one(x), "u0 == u1"),
        (lambda x: one(x) + vector(1, 2, 3), "u0 == 3"),
        (lambda x: other(x) @ tp.ones((4, 1)), None),
        (lambda x: other(x).reshape((6,)), "6 == 3*u0"),
        (lambda x: one(x)[0], "0 < u0"),
        (lambda x: one(x)[:2], "2 <= u0"),
        (lambda x: one(x).reshape((-1, 2)), "u0 % 2 == 0"),
        (lambda x: tp.stack([one(x), one(x)]), "u"),
    ):
        with pytest.raises((CaptureError, ShapeError)) as caught:
            tp.graph.capture(program, vector(1, 2))
        if text is None:
            assert isinstance(caught.value, ShapeError)
            continue
        assert caught.value.code == "TP4002", caught.value
        assert text in str(caught.value), caught.value
        assert any(HERE in note for note in caught.value.__notes__)


def test_what_was_checked_goes_together(ns: str) -> None:
    """5.6: equal sizes broadcast, a pinned size is its number, and a run where they differ is an error."""
    op = positives(f"{ns}::f")

    def f(x: Tensor, y: Tensor) -> Tensor:
        a, b = op(x), op(y)
        tp.check(a.shape[0] == b.shape[0], lambda: "as many in both")
        return a + b

    compiled = tp.compile(f)
    assert compiled(vector(1, -1), vector(2, -1)).tolist() == [3.0]
    assert compiled(vector(1, 2), vector(2, 3)).tolist() == [3.0, 5.0]
    with pytest.raises(InvalidValueError, match="as many in both"):
        compiled(vector(1, 2), vector(2, -3))
    assert len(compiled.graphs) == 1

    def pinned(x: Tensor) -> Tensor:
        y = op(x)
        tp.check(y.shape[0] == 2)
        assert int(y.shape[0]) == 2
        return y + vector(10, 20) + y.reshape((2, 1))

    compiled = tp.compile(pinned)
    assert compiled(vector(1, 2)).tolist() == [[12.0, 23.0], [13.0, 24.0]]
    with pytest.raises(InvalidValueError, match="it is 1 == 2"):
        compiled(vector(1, -2))


def test_a_checked_bound_of_a_slice(ns: str) -> None:
    """D4: y[:n] after check(n <= y.shape[0]); a run where it does not hold names the check, not a wrong slice."""
    op = positives(f"{ns}::f")

    def f(x: Tensor, y: Tensor) -> Tensor:
        n = op(x).shape[0]
        tp.check(n <= y.shape[0])  # bound
        return y[:n] * 2.0 + y[y.shape[0] - n :]

    compiled = tp.compile(f)
    y = vector(1, 2, 3)
    assert compiled(vector(1, 2, -3, -4), y).tolist() == [4.0, 7.0]
    assert compiled(vector(-1, 2, -3, -4), y).tolist() == [5.0]
    with pytest.raises(InvalidValueError, match="u0 <= 3 does not hold: it is 4 <= 3") as caught:
        compiled(vector(1, 2, 3, 4), y)
    assert any(f"{HERE}:{line_of('bound')}" in note for note in caught.value.__notes__)
    with pytest.raises(CaptureError, match="u0 <= 3"):
        tp.graph.capture(lambda x: y[: op(x).shape[0]], vector(1))


@pytest.mark.thread_unsafe(reason="verify watches the state of the process, which the other threads change")
def test_verify_and_opcheck_know_such_sizes(ns: str) -> None:
    """5.7: the verification tools accept the op, and find sizes outside of the range, wrong ranks and dtypes."""
    good = positives(f"{ns}::good")
    report = tp.verify(good, (vector(1, -1, 2),))
    assert report.passed, report.text()
    assert any(c.name == "fake rule: shape" and c.verdict == "pass" for c in report.graph)
    assert set(library.opcheck(good, (vector(1, -1, 2),)).values()) == {"SUCCESS"}
    narrow = positives(f"{ns}::narrow", 5)
    report = tp.verify(narrow, (vector(1, -1, 2),))
    (failure,) = [c for c in report.failures if c.name == "fake rule: shape"]
    assert "axis 0 has size 2, the fake rule declared u0 >= 5" in failure.detail
    with pytest.raises(ContractError, match="u0 >= 5"):
        library.opcheck(narrow, (vector(1, -1, 2),))
    flat = library.custom_op(
        f"{ns}::flat", lambda x: x.reshape((-1,)) * 1, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    flat.register_fake(lambda x: tp.empty((library.get_ctx().new_dynamic_size(), 2), dtype=x.dtype))
    report = tp.verify(flat, (vector(1, -1, 2),))
    assert any(c.name == "fake rule: shape" and "(u0, 2)" in c.detail for c in report.failures), report.text()
    agree = tp.verify(pair(f"{ns}::pair", same=False), (vector(1, 2, 3),), sweep=False)
    assert any("size 4, where u0 is 3" in c.detail for c in agree.failures), agree.text()


def test_ops_inside_a_fake_rule_take_such_sizes(ns: str) -> None:
    """5.5: factories and ops of the rule mix them with ints; a rule may call another op that has them."""
    inner = positives(f"{ns}::inner", columns=2)
    outer = library.custom_op(
        f"{ns}::outer", lambda x: inner(x) * 2.0, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    outer.register_fake(library.fake_from_body)

    made: list[str] = []

    @library.custom_op(f"{ns}::shapes", mutates_args=())
    def shapes(x: Tensor) -> Tensor:
        return inner(x)

    @shapes.register_fake
    def fake(x: Tensor) -> Tensor:
        n = library.get_ctx().new_dynamic_size()
        for out in (
            tp.zeros((n, 2)),
            tp.full((2, n), 1.0),
            tp.ones([n]),
            x.new_empty((n, 3)),
            x.new_zeros((n + 1, 2 * n)),
            tp.empty((n, 2)).sum(axis=0),
            tp.empty((4, n)),
            tp.empty(n),
        ):
            made.append(f"{out.shape} {out.stride()}")
            assert out.is_fake
        return tp.empty((n, 2), dtype=x.dtype)

    f = tp.compile(lambda x: (outer(x) + 1.0, shapes(x) + 1.0))
    for x in (vector(1, -1, 3), vector(1, 2, 3)):
        got, want = f(x), (outer(x) + 1.0, shapes(x) + 1.0)
        assert [t.tolist() for t in got] == [t.tolist() for t in want]
    assert made == [
        "(u1, 2) (2, 1)",
        "(2, u1) (u1, 1)",
        "(u1,) (1,)",
        "(u1, 3) (3, 1)",
        "(u1 + 1, 2*u1) (2*u1, 1)",
        "(2,) (1,)",
        "(4, u1) (u1, 1)",
        "(u1,) (1,)",
    ]


def test_a_kernel_gets_the_size_of_its_run(ns: str) -> None:
    """5.6: an int argument that is a symbolic size arrives as the number."""
    op = positives(f"{ns}::f")
    seen: list[int] = []

    @library.custom_op(f"{ns}::repeat", mutates_args=())
    def repeat(x: Tensor, n: int, sizes: list[int]) -> Tensor:
        seen.extend([n, *sizes])
        return tp.expand(x, (n, *x.shape)) * 1.0

    @repeat.register_fake
    def fake(x: Tensor, n: int, sizes: list[int]) -> Tensor:
        assert [str(v) for v in (n, *sizes)] == ["u0", "u0 + 1", "2"]
        return tp.empty((n, *x.shape))

    def f(x: Tensor) -> Tensor:
        n = op(x).shape[0]
        return repeat(x, n, [n + 1, 2])

    compiled = tp.compile(f)
    for x in (vector(1, -1, 2), vector(1, -1, -2)):
        assert compiled(x).tolist() == f(x).tolist()
    assert seen == [2, 3, 2, 2, 3, 2, 1, 2, 2, 1, 2, 2]


def test_threads_keep_their_contexts_apart(ns: str) -> None:
    """5.8, F7: six threads, twenty captures each, at once: every context and symbol is its own."""
    threads, rounds = 6, 20
    barrier = threading.Barrier(threads)
    ops = [positives(f"{ns}::f{k}", k, 100 + k, columns=k + 1) for k in range(threads)]
    wrong: list[str] = []

    def work(k: int) -> None:
        barrier.wait()
        for _ in range(rounds):
            graph = tp.graph.capture(lambda x: (ops[k](x) * 2.0, ops[k](x)), vector(1, 2))
            want = [f"(u0, {k + 1})", f"(u0, {k + 1})", f"(u1, {k + 1})"]
            got = [str(node.spec[0].shape) for node in graph.nodes]
            sizes = f"  size u0 in [{k}, {100 + k}]\n  size u1 in [{k}, {100 + k}]\n"
            if got != want or sizes not in graph.text():
                wrong.append(graph.text())

    workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(wrong) == 0, f"{len(wrong)} of {threads * rounds}: {wrong[0]}"


def test_a_context_does_not_cross_threads(ns: str) -> None:
    """5.8, F7: a context given to another thread is refused there."""
    op = library.custom_op(f"{ns}::f", lambda x: x + 1.0, mutates_args=(), schema="(Tensor x) -> Tensor")
    errors: list[BaseException] = []

    @op.register_fake
    def fake(x: Tensor) -> Tensor:
        ctx = library.get_ctx()

        def elsewhere() -> None:
            for use in (ctx.new_dynamic_size, library.get_ctx):
                try:
                    use()
                except CaptureError as error:
                    errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return tp.empty((ctx.new_dynamic_size(),))

    tp.graph.capture(op, vector(1))
    assert [e.code for e in errors] == ["TP4017", "TP4017"]  # type: ignore[attr-defined]
