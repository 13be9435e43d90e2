"""What kernels and fake rules may return: types, counts, items, and memory that is not theirs to give."""

from __future__ import annotations

import time

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import CaptureError, ContractError


def returning(name: str, value, schema: str = "(Tensor x) -> Tensor", **options):
    return library.custom_op(name, lambda x: value(x), mutates_args=(), schema=schema, **options)


X = tp.ones([2])


def test_a_tuple_of_one(ns: str) -> None:
    """2.3, 3.7: `-> ((Tensor))` returns a tuple of one, eagerly, captured and differentiated."""

    def f(x: Tensor) -> tuple[Tensor]:
        return (x * 2,)

    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    assert str(op.schema) == f"{ns}::f(Tensor x) -> ((Tensor))"
    (out,) = op(X)
    assert out.tolist() == [2.0, 2.0]
    op.register_fake(lambda x: (tp.empty_like(x),))
    assert tp.compile(lambda x: op(x)[0] + 1)(X).tolist() == [3.0, 3.0]
    op.register_autograd(lambda ctx, g: g * 2)
    x = tp.ones([2]).requires_grad_()
    op(x)[0].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    for bad in (lambda x: x * 2, lambda x: (x * 1, x * 2), lambda x: (3,)):
        with pytest.raises(ContractError, match="output 0"):
            returning(f"{ns}::bad", bad, "(Tensor x) -> ((Tensor))", override=True)(X)


@pytest.mark.parametrize("value", [1, 0, 0.0, np.int64(1), np.float32(1.0), "True", np.array([True]), None])
def test_a_bool_is_true_or_false(ns: str, value) -> None:
    """3.7: an argument takes an int for a bool; a result that is declared a bool is one, ours or NumPy's."""
    with pytest.raises(ContractError, match="output 0 must be bool, the kernel returned") as e:
        returning(f"{ns}::f", lambda x: value, "(Tensor x) -> bool")(X)
    assert e.value.code == "TP3202"


@pytest.mark.parametrize(
    ("declared", "value", "wanted"),
    [
        ("int[]", (1, True), [1, 1]),
        ("bool", np.bool_(True), True),
        ("bool", np.bool_(False), False),
        ("bool?", np.bool_(True), True),
        ("bool[]", [np.bool_(False), True], [False, True]),
        ("int", np.int64(3), 3),
        ("float", np.float32(0.5), 0.5),
        ("float[]", [1, 2.5], [1.0, 2.5]),
        ("bool[]", [True], [True]),
        ("ScalarType", tp.int8, tp.int8),
        ("Device", "cpu", tp.device("cpu")),
        ("str", "a", "a"),
        ("str[]", ("a",), ["a"]),
        ("Dict(str, int)", {"a": True}, {"a": 1}),
        ("(int, str)", [1, "a"], (1, "a")),
        ("int?", None, None),
        ("float", 2, 2.0),
    ],
)
def test_other_results_are_converted(ns: str, declared: str, value, wanted) -> None:
    """3.7."""
    got = returning(
        f"{ns}::f",
        lambda x: value,
        f"(Tensor x) -> {'(' + declared + ')' if '(int' in declared else declared}",
    )(X)
    assert (type(got), got) == (type(wanted), wanted)


@pytest.mark.parametrize(
    ("declared", "value", "text"),
    [
        ("int", 2**63, "output 0 must be int, the kernel returned int"),
        ("int", 1.5, "output 0 must be int, the kernel returned float"),
        ("Tensor", None, "output 0 must be Tensor, the kernel returned None"),
        ("Tensor[]", [X, 3], r"output 0\[1\] must be Tensor, the kernel returned int"),
        ("int[]", [1, "a"], r"output 0\[1\] must be int, the kernel returned str"),
        ("(Tensor, int)", (X, None), "output 1 must be int, the kernel returned None"),
        ("Dict(str, int)", {"a": X}, r"output 0 must be Dict\(str, int\), the kernel returned dict"),
    ],
)
def test_refusals_name_op_output_item_and_types(ns: str, declared: str, value, text: str) -> None:
    """3.7, U2: a number that does not fit is the kernel's fault too."""
    op = returning(f"{ns}::f", lambda x: value, f"(Tensor x) -> {declared}")
    with pytest.raises(ContractError, match=f"{ns}::f: {text}") as e:
        op(X)
    assert e.value.code == "TP3202"


def test_a_bad_fake_kernel_is_called_by_its_name(ns: str) -> None:
    """3.7, F2: what the fake rule returned is not said of the kernel."""
    op = returning(f"{ns}::f", lambda x: (x * 1, x * 2), "(Tensor x) -> (Tensor, Tensor)")
    for bad, text in ((lambda x: None, "no tuple"), (lambda x: (x,), "1 values"), (lambda x: (3, 4), "int")):
        op.register_fake(bad)
        with pytest.raises(ContractError, match=f"the fake rule returned .*{text}"):
            tp.graph.capture(lambda x: op(x)[0], X)


def test_numbers_are_held_to_the_fake_kernel(ns: str) -> None:
    """5.9, F2: the function is captured with the fake rule's number; a kernel that returns another is an error."""
    calls = []

    def f(x: Tensor) -> tuple[Tensor, int]:
        calls.append(1)
        return x * 1, int(x.sum().item())

    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    op.register_fake(lambda x: (tp.empty_like(x), x.shape[0]))
    compiled = tp.compile(lambda x: op(x)[1])
    assert compiled(tp.ones([3])) == 3
    assert calls == [1]
    with pytest.raises(
        ContractError, match=rf"{ns}::f: output 1 of the kernel is 6, the fake rule promised 3"
    ) as e:
        compiled(tp.full([3], 2.0))
    assert e.value.code == "TP3205"
    graph = tp.graph.capture(lambda x: op(x)[0], tp.ones([3]))
    assert tp.graph.parse(graph.text()).text() == graph.text()
    assert "int is 3" in graph.text()


def test_results_that_no_run_could_confirm_are_refused(ns: str) -> None:
    """5.9."""
    op = returning(f"{ns}::f", lambda x: {"a": 1}, "(Tensor x) -> Dict(str, int)")
    op.register_fake(lambda x: {"a": 1})
    with pytest.raises(CaptureError, match=f"{ns}::f: it returned object") as e:
        tp.graph.capture(op, X)
    assert e.value.code == "TP4016"


@pytest.mark.parametrize("door", [lambda x: tp.from_numpy(x.numpy()), tp.from_dlpack])
def test_lent_memory_is_found_by_its_address(ns: str, door) -> None:
    """3.6: the storage is another object, the buffer the same."""
    op = returning(f"{ns}::f", lambda x: door(x)[1:])
    with pytest.raises(ContractError, match="output 0 shares memory with argument 'x'"):
        op(tp.ones([4]))
    keep = tp.from_numpy(tp.ones([4]).numpy())
    disjoint = returning(f"{ns}::g", lambda x: x * 1)
    assert disjoint(keep).tolist() == [1.0] * 4
    lists = library.custom_op(
        f"{ns}::h",
        lambda xs: [tp.ones([1]) for _ in range(20)] + [door(xs[3])],
        mutates_args=(),
        schema="(Tensor[] xs) -> Tensor[]",
    )
    with pytest.raises(ContractError, match=r"output 0\[20\] shares memory with argument 'xs'\[3\]"):
        lists([tp.ones([2]) for _ in range(5)])


def test_list_items_are_named(ns: str) -> None:
    """3.6, A1."""
    op = library.custom_op(
        f"{ns}::f",
        lambda xs, k: [xs[0] * 1, xs[k]] if k >= 0 else [xs[0] * 1] * 2,
        mutates_args=(),
        schema="(Tensor[] xs, int k) -> Tensor[]",
    )
    with pytest.raises(ContractError, match=r"output 0\[1\] is argument 'xs'\[2\]"):
        op([X, X * 1, X * 2], 2)
    with pytest.raises(ContractError, match=r"output 0\[1\] shares memory with output 0\[0\]"):
        op([X], -1)


def test_declared_aliases_are_kept(ns: str) -> None:
    """3.6: what the schema gives back has to be that."""
    view = library.custom_op(
        f"{ns}::v",
        lambda x, y, k: (x, y)[k][1:],
        mutates_args=(),
        schema="(Tensor(a) x, Tensor y, int k) -> Tensor(a)",
    )
    assert view(X, X * 2, 0).tolist() == [1.0]
    with pytest.raises(ContractError, match="output 0 must be a view of argument 'x'") as e:
        view(X, X * 2, 1)
    assert e.value.code == "TP3209"
    write = library.custom_op(
        f"{ns}::w", lambda x: x * 1, mutates_args=("x",), schema="(Tensor(a!) x) -> Tensor(a!)"
    )
    with pytest.raises(ContractError, match="output 0 must be argument 'x'"):
        write(tp.ones([2]))


def test_a_written_argument_is_not_told_to_be_declared(ns: str) -> None:
    """A2."""
    op = library.custom_op(
        f"{ns}::f", lambda x: x.mul_(2), mutates_args=("x",), schema="(Tensor(a!) x) -> Tensor"
    )
    with pytest.raises(ContractError, match="output 0 is argument 'x'") as e:
        op(tp.ones([2]))
    assert "declare it" not in "\n".join(e.value.__notes__)


@pytest.mark.thread_unsafe(reason="measures time")
def test_long_lists_cost_what_they_hold(ns: str) -> None:
    """3.6: looking for shared memory takes no pairs, which would be 256 times the work here."""
    op = library.custom_op(
        f"{ns}::f", lambda xs: [x * 1 for x in xs], mutates_args=(), schema="(Tensor[] xs) -> Tensor[]"
    )

    def seconds(n: int) -> float:
        xs = [tp.ones([1]) for _ in range(n)]
        best = 1e9
        for _ in range(3):
            start = time.thread_time()
            op(xs)
            best = min(best, time.thread_time() - start)
        return best

    assert seconds(32000) < 100 * max(seconds(2000), 1e-4)


def test_in_place_and_out_forms_have_their_fake_kernels(ns: str) -> None:
    """2.10: what they return follows from the schema."""
    inplace = library.custom_op(
        f"{ns}::i",
        lambda x: x.mul_(2),
        mutates_args=("x",),
        schema="(Tensor(a!) x) -> Tensor(a!)",
        tags=("inplace",),
    )

    def into(x: Tensor, *, out: Tensor) -> Tensor:
        return out.copy_(x * 3)

    out = library.custom_op(f"{ns}::o", into, mutates_args=("out",), tags=("out",))

    def run(x, y):
        z = y * 1
        return inplace(z) + out(x, out=x * 0)

    assert tp.compile(run)(X, X).tolist() == run(X, X).tolist() == [5.0, 5.0]
    x = tp.ones([2])
    assert inplace(x) is x


def test_a_failed_write_counts_as_one(ns: str) -> None:
    """A12: a kernel that raises after it wrote leaves a new version behind."""

    def f(x: Tensor) -> None:
        x.numpy()[...] = 5.0
        raise ZeroDivisionError

    op = library.custom_op(f"{ns}::f", f, mutates_args=("x",))
    x = tp.zeros([1])
    before = x._version
    with pytest.raises(ZeroDivisionError):
        op(x)
    assert x._version > before


def test_a_kernel_may_fill_outputs_made_for_it(ns: str) -> None:
    """Outputs are allocated as the fake rule says, and passed in as `out`."""
    op = library.define(f"{ns}::f", "(Tensor x, float k, *, int n=1) -> (Tensor, Tensor[])")
    seen = []

    def fill(x, k, *, n, out):
        first, rest = out
        seen.append((tuple(first.shape), first.dtype, first.stride(), len(rest)))
        first.fill_(k)
        for t in rest:
            t.fill_(float(n))

    op.register_kernel("cpu", fill, out=True)
    with pytest.raises(ContractError, match="no fake rule says what they are") as e:
        op(X, 2.0)
    assert e.value.code == "TP3242"
    op.register_fake(
        lambda x, k, *, n: (
            tp.empty_strided((2, 3), (1, 2), dtype=tp.float64),
            [tp.empty_like(x) for _ in range(n)],
        )
    )
    first, rest = op(X, 2, n=2)
    assert first.tolist() == [[2.0] * 3] * 2
    assert [t.tolist() for t in rest] == [[2.0, 2.0]] * 2
    assert seen == [((2, 3), tp.float64, (1, 2), 2)]
    assert tp.compile(lambda x: op(x, 3.0)[0] + 1)(X).tolist() == [[4.0] * 3] * 2

    one = library.define(f"{ns}::g", "(Tensor x) -> Tensor")
    one.register_fake(lambda x: tp.empty_like(x))
    one.register_kernel(None, lambda x, out: out.copy_(x * 2), out=True)
    assert one(X).tolist() == [2.0, 2.0]
    one.register_kernel("cpu", lambda x, out: x * 2, out=True)
    with pytest.raises(ContractError, match="fills `out` and returns nothing"):
        one(X)
    with pytest.raises(ValueError, match="does not take the keyword-only argument 'out'"):
        one.register_kernel("cpu", lambda x: x * 2, out=True)


@pytest.mark.parametrize("value", [np.bool_(True), True, tp.tensor(True)])
def test_a_bool_of_numpy_is_a_bool(ns: str, value) -> None:
    """3.7: as NumPy's integers and floats are numbers; `(x.numpy() > 0).all()` is one."""
    one = returning(f"{ns}::one", lambda x: value, "(Tensor x) -> bool")
    assert one(X) is True
    several = returning(f"{ns}::several", lambda x: [value, False], "(Tensor x) -> bool[]")
    assert several(X) == [True, False]
    with pytest.raises(ContractError, match="output 0 must be bool, the kernel returned int"):
        returning(f"{ns}::number", lambda x: np.int64(1), "(Tensor x) -> bool")(X)


def test_a_fake_kernel_that_returns_its_input_is_told_how(ns: str) -> None:
    """F5: the advice is for a fake rule, which has nothing to clone."""
    f = returning(f"{ns}::f", lambda x: x * 2)
    for fake in (lambda x: x, lambda x: x[:]):
        f.register_fake(fake)
        with pytest.raises(ContractError, match=r"\(the fake rule returned it\)") as e:
            tp.graph.capture(f, X)
        assert e.value.__notes__[0] == "return new tensors without data: empty_like(x)"
