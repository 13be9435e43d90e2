"""What Python kernels, fake rules and setup_context get for the caller's objects: eager and compiled alike."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import ArgumentError, AutogradError


class Int(int):
    pass


SCHEMA = (
    "(Tensor x, float f, bool b, int n, Scalar s, str t, Device d, ScalarType dt, int[2] pair, float[] fs, "
    "float? o=None, int[2] k=3) -> Tensor"
)


def seen(values) -> list:
    return [(type(v), [(type(i), i) for i in v] if isinstance(v, list) else v) for v in values]


EXPECTED = seen(
    [3.0, True, 1, 2.0, "t", tp.device("cpu"), tp.int64, [1, 1], [1.0, 2.0], 4.0, [3, 3]],
)


def recorder(ns: str):
    log: dict[str, list] = {}

    def f(x, f, b, n, s, t, d, dt, pair, fs, o, k):
        log["kernel"] = seen([f, b, n, s, t, d, dt, pair, fs, o, k])
        return x * 1

    op = library.custom_op(f"{ns}::f", f, mutates_args=(), schema=SCHEMA)

    @op.register_fake
    def fake(x, *rest):
        log["fake"] = seen(rest)
        return tp.empty_like(x)

    def setup(ctx, inputs, output):
        log["setup"] = seen(inputs[1:])

    op.register_autograd(lambda ctx, g: (g,) + (None,) * 11, setup_context=setup)
    op.register_kernel("cpu", f, name="picky", when=lambda x, *rest: log.update(when=seen(rest)) or True)
    return op, log


def test_every_python_function_of_an_op_sees_converted_values(ns: str) -> None:
    """3.8, 3.9, 1.20, U4: "cpu" is a device, an int a float where one is declared, a single value a list; the same
    eagerly and compiled."""
    op, log = recorder(ns)
    x = tp.ones([2]).requires_grad_()
    given = (3, 1, True, np.float64(2.0), "t", "cpu", int, 1, (1, np.float32(2.0)), tp.tensor(4.0))
    op(x, *given)
    assert log["kernel"] == log["setup"] == log["when"] == EXPECTED
    log.clear()
    fixed = (3, 1, True, 2.0, "t", "cpu", tp.int64, 1, (1, 2.0), 4.0)
    tp.compile(lambda x: op(x, *fixed))(x)
    assert log["kernel"] == log["fake"] == log["setup"] == log["when"] == EXPECTED


def test_objects_of_the_declared_type_pass_as_they_are(ns: str) -> None:
    """3.9: no conversion, so that the very object arrives; subclasses arrive as the plain type."""
    got = []

    def f(x: Tensor, n: int, t: str, k: float, o: str | None) -> Tensor:
        got.append((x, n, t, k, o))
        return x * 1

    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    x, n, t, k = tp.ones([1]), 10**12, "text " + ns, 1.5e300
    op(x, n, t, k, None)
    assert all(a is b for a, b in zip(got[0], (x, n, t, k, None), strict=True))
    op(x, Int(3), t, k, None)
    assert type(got[1][1]) is int
    assert got[1][0] is x


def test_a_kernel_gets_a_list_of_its_own(ns: str) -> None:
    """3.8: what it appends reaches neither the caller's list nor the default."""

    def f(x, given, kept):
        given.append(9)
        kept.append(9)
        return x * len(kept)

    op = library.custom_op(
        f"{ns}::f", f, mutates_args=(), schema="(Tensor x, int[] given, int[2] kept=4) -> Tensor"
    )
    mine = [1]
    assert op(tp.ones([1]), mine).item() == op(tp.ones([1]), mine).item() == 3.0
    assert mine == [1]


def test_lists_have_their_declared_length(ns: str) -> None:
    """3.8, 1.20: a sized list refuses other lengths, and one value fills it in every number type."""
    got = []

    def f(x, i, f, b):
        got.append((i, f, b))
        return x * 1

    op = library.custom_op(
        f"{ns}::f", f, mutates_args=(), schema="(Tensor x, int[2] i, float[3] f, bool[2] b) -> Tensor"
    )
    op(tp.ones([1]), 1, 2, True)
    assert got == [([1, 1], [2.0, 2.0, 2.0], [True, True])]
    for bad in ([1], [1, 2, 3], []):
        with pytest.raises(ArgumentError, match=r"argument 'i' must be list\[int\]: a list of 2, got") as e:
            op(tp.ones([1]), bad, 2, True)
        assert e.value.code == "TP1033"


def test_carried_structures_are_checked_and_made_anew(ns: str) -> None:
    """3.8: dicts, tuples, nested lists, lists of strings and devices."""
    got = []

    def f(x, d, t, n, s, v):
        got.append((d, t, n, s, v))
        return x * 1

    schema = "(Tensor x, Dict(str, float) d, (int, Tensor) t, int[][] n, str[] s, Device[] v) -> Tensor"
    op = library.custom_op(f"{ns}::f", f, mutates_args=(), schema=schema)
    x = tp.ones([1])
    good = [{"a": 1}, [True, x], [(1, 2), [3]], ("p",), ["cpu"]]
    op(x, *good)
    assert got == [({"a": 1.0}, (1, x), [[1, 2], [3]], ["p"], [tp.device("cpu")])]
    assert [type(v) for v in got[0]] == [dict, tuple, list, list, list]
    for at, bad in enumerate((5, (1, 2), [1], [3], [1])):
        args = [*good[:at], bad, *good[at + 1 :]]
        with pytest.raises(ArgumentError, match=f"argument '{'dtnsv'[at]}' must be") as e:
            op(x, *args)
        assert e.value.code == "TP1002"
    with pytest.raises(AutogradError, match=r"argument 't' .* holds a tensor that requires a gradient"):
        op(x, good[0], (1, tp.ones([1]).requires_grad_()), *good[2:])


def test_none_type_takes_none(ns: str) -> None:
    """3.8."""
    op = library.custom_op(
        f"{ns}::f", lambda x, k: x * 2, mutates_args=(), schema="(Tensor x, NoneType k) -> Tensor"
    )
    assert op(tp.ones([1]), None).item() == 2.0
    with pytest.raises(ArgumentError, match="argument 'k' must be None, got int"):
        op(tp.ones([1]), 3)


def test_numbers_too_large_name_op_and_argument(ns: str) -> None:
    """3.8: TP1007; a float takes an int of any size."""
    got = []

    def f(x: Tensor, n: int, k: float) -> Tensor:
        got.append(k)
        return x * 1

    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    op(tp.ones([1]), 1, 10**30)
    assert got == [1e30]
    with pytest.raises(ArgumentError, match=rf"{ns}::f: argument 'n' \(int\)") as e:
        op(tp.ones([1]), 2**63, 1.0)
    assert e.value.code == "TP1007"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(2), ZeroDivisionError("mine")])
@pytest.mark.parametrize("method", ["__index__", "__float__", "__len__"])
def test_exceptions_of_an_argument_pass_through(ns: str, error: BaseException, method: str) -> None:
    """3.11: an argument's own methods may fail, and their exception reaches the caller."""

    def fail(self):
        raise error

    odd = type("Odd", (), {method: fail})()
    op = library.custom_op(
        f"{ns}::f", lambda x, k: x * 1, mutates_args=(), schema="(Tensor x, float k) -> Tensor"
    )
    for call in (lambda: op(tp.ones([1]), odd), lambda: tp.ones([1]) * odd):
        with pytest.raises(type(error)) as e:
            call()
        assert e.value is error


def test_one_tensor_for_a_list_says_how(ns: str) -> None:
    """S4."""
    op = library.custom_op(
        f"{ns}::f", lambda xs: xs[0] * 1, mutates_args=(), schema="(Tensor[] xs) -> Tensor"
    )
    with pytest.raises(ArgumentError) as e:
        op(tp.ones([1]))
    assert "pass a list: [x]" in e.value.__notes__


@pytest.mark.parametrize(
    "number",
    [
        np.complex64(1 + 2j),
        np.complex128(1 + 2j),
        np.clongdouble(1),
        type("Wave", (complex,), {"__float__": lambda self: 1.0})(1 + 2j),
        np.array(1 + 2j),
        np.timedelta64(3),
        np.array(3, dtype=object),
    ],
    ids=lambda n: type(n).__name__,
)
def test_what_a_float_does_not_say_is_no_number(ns: str, number: object) -> None:
    """3.8: NumPy's complex numbers convert to float by losing a part, and its times by losing their unit."""
    op = library.custom_op(
        f"{ns}::f", lambda x, k, n: x * 1, mutates_args=(), schema="(Tensor x, float k, Scalar n=1) -> Tensor"
    )
    x = tp.tensor([1.0, 2.0])
    calls = (
        lambda: op(x, number),
        lambda: op(x, 1.0, number),
        lambda: tp.add(x, number),
        lambda: x * number,
        lambda: x.fill_(number),
        lambda: tp.full((1,), number),
        lambda: tp.tensor([number]),
        lambda: tp.clamp(x, number),
        lambda: x.__setitem__(0, number),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in calls:
            with pytest.raises(TypeError):
                call()
    assert x.tolist() == [1.0, 2.0]


def test_numbers_of_numpy_are_numbers(ns: str) -> None:
    """3.8."""
    got = []
    op = library.custom_op(
        f"{ns}::f",
        lambda x, k: got.append(k) or x * 1,
        mutates_args=(),
        schema="(Tensor x, float k) -> Tensor",
    )
    for number in (np.float16(2), np.float32(2), np.longdouble(2), np.int8(2), np.uint64(2), np.array(2)):
        op(tp.ones([1]), number)
    op(tp.ones([1]), np.True_)
    assert got == [2.0] * 6 + [1.0]


def test_a_tensor_that_requires_a_gradient_is_no_number(ns: str) -> None:
    """3.8: a 0-d tensor is a number where one is expected, but no gradient would go through it."""
    f = library.custom_op(
        f"{ns}::f",
        lambda x, s, k=(): x * s,
        mutates_args=(),
        schema="(Tensor x, float s, float[] k=[]) -> Tensor",
    )
    x, s = tp.ones((2,)), tp.tensor(2.0).requires_grad_()
    calls = [
        lambda s: f(x, s),
        lambda s: f(x, 2.0, [s]),
        lambda s: tp.full((2,), s),
        lambda s: x.masked_fill(x > 0.0, s),
        lambda s: x.clone().fill_(s),
    ]
    for call in calls:
        for given in (s, s * 1.0):
            with pytest.raises(ArgumentError, match="through which no gradient goes") as raised:
                call(given)
            assert raised.value.code == "TP1044"
        assert call(s.detach()).tolist() == [2.0, 2.0]
        with tp.no_grad():
            assert call(s).tolist() == [2.0, 2.0]
    # Inside of a kernel arguments are plain values, and a copy has no history.
    g = library.custom_op(
        f"{ns}::g", lambda x, s: f(x, s), mutates_args=(), schema="(Tensor x, Tensor s) -> Tensor"
    )
    g.register_autograd(lambda ctx, grad: (None, tp.sum(grad)))
    y = g(x, s)
    y.sum().backward()
    assert (y.tolist(), s.grad.item()) == ([2.0, 2.0], 2.0)
    assert tp.tensor([s, 1.0]).tolist() == [2.0, 1.0]
