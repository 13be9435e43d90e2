"""Overloads: the best match runs, every refusal has its reason, and one overload is an object of its own."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

import tensorplay as tp
from tensorplay import library
from tensorplay.errors import ArgumentError


def overloads(ns: str, **signatures: str):
    """An op whose overloads return their own number, and a call that gives the name of the one that ran."""
    names = list(signatures)
    for i, (name, signature) in enumerate(signatures.items()):
        full = f"{ns}::f.{name}"
        library.define(full, f"{signature} -> Tensor")
        library.impl(full, None, lambda *args, i=i, **kwargs: tp.full((1,), float(i)))
    op = library.get_op(f"{ns}::f")
    return lambda *args, **kwargs: names[int(op(*args, **kwargs).item())]


X = tp.ones([2])


@pytest.mark.parametrize("turned", [False, True])
def test_the_exact_type_beats_every_conversion(ns: str, turned: bool) -> None:
    """9: whatever the order of definition."""
    signatures = {
        "float": "(Tensor x, float k)",
        "scalar": "(Tensor x, Scalar k)",
        "int": "(Tensor x, int k)",
        "bool": "(Tensor x, bool k)",
        "tensor": "(Tensor x, Tensor k)",
        "any": "(Any x, Any k)",
        "pair": "(Tensor x, int[2] k)",
        "text": "(Tensor x, str k)",
        "device": "(Tensor x, Device k)",
    }
    if turned:
        signatures = dict(reversed(signatures.items()))
    which = overloads(ns, **signatures)
    assert [which(X, k) for k in (1, True, 1.5, "cpu")] == ["int", "bool", "float", "text"]
    assert which(X, X) == "tensor"
    assert which(X, (1, 2)) == "pair"
    assert which(X, tp.device("cpu")) == "device"
    assert which(3, {}) == "any"


def test_conversions_are_ranked(ns: str) -> None:
    """9: an int goes to a number before a float, a bool to an int before a float."""
    which = overloads(ns, float="(Tensor x, float k)", scalar="(Tensor x, Scalar k)")
    assert which(X, 1) == "scalar"
    which = overloads(f"{ns}b", float="(Tensor x, float k)", int="(Tensor x, int k)")
    assert (which(X, True), which(X, 1), which(X, 1.0)) == ("int", "int", "float")
    which = overloads(f"{ns}c", optional="(Tensor x, Tensor? k)", tensor="(Tensor x, Tensor k)")
    assert (which(X, X), which(X, None)) == ("tensor", "optional")


def test_every_overload_says_why_it_does_not_fit(ns: str) -> None:
    """9."""
    which = overloads(ns, a="(Tensor x, int k)", b="(Tensor x, str k)", c="(Tensor x)")
    with pytest.raises(ArgumentError, match="no overload of") as e:
        which(X, 1.5)
    notes = "\n".join(e.value.__notes__)
    assert f"{ns}::f.a: argument 'k' must be int, got float" in notes
    assert f"{ns}::f.b: argument 'k' must be str, got float" in notes
    assert f"{ns}::f.c: takes at most 1 positional argument, got 2" in notes


def test_an_overload_named_scalar_is_like_any_other(ns: str) -> None:
    """9: the short way of built-in ops goes by what is declared, never by the name."""
    got = []
    library.define(f"{ns}::f.Scalar", "(Tensor x, int k, Scalar alpha=7) -> Tensor")
    library.impl(f"{ns}::f.Scalar", None, lambda *args: got.append(args[1:]) or X * 1)
    library.define(f"{ns}::f.ScalarLeft", "(str t, Tensor x, int n=5) -> Tensor")
    library.impl(f"{ns}::f.ScalarLeft", None, lambda *args: got.append((args[0], *args[2:])) or X * 1)
    op = library.get_op(f"{ns}::f")
    op(X, 3)
    op("a", X)
    assert got == [(3, 7), ("a", 5)]
    for bad in ((X, 1.5), (1.5, X)):
        with pytest.raises(ArgumentError):
            op(*bad)


def test_one_overload_is_an_object_of_its_own(ns: str) -> None:
    """9: name, namespace, text and pickle."""
    mul = tp.ops.tp.mul
    one = mul.Scalar
    assert (one.name, one.namespace, one.overload) == ("tp::mul.Scalar", "tp", "Scalar")
    assert str(one) == "<op tp::mul.Scalar>"
    assert (mul.name, mul.default.overload) == ("tp::mul", "default")
    assert one.overloads() == ["Scalar"]
    assert pickle.loads(pickle.dumps(one)) is one
    assert copy.copy(one) is one
    assert one(X, 3.0).tolist() == [3.0, 3.0]
    with pytest.raises(ArgumentError):
        one(X, X)


def test_a_destroyed_overload_leaves_the_others(ns: str) -> None:
    """9."""
    library.define(f"{ns}::f.keep", "(Tensor x, float k) -> Tensor")
    library.impl(f"{ns}::f.keep", None, lambda x, k: x * k)
    with library.Library(ns, "FRAGMENT") as lib:
        lib.define("f.gone(Tensor x, int k) -> Tensor")
        lib.impl("f.gone", lambda x, k: x * 100, "")
        assert library.get_op(f"{ns}::f")(X, 2).tolist() == [100.0, 100.0]
    assert library.get_op(f"{ns}::f")(X, 2).tolist() == [2.0, 2.0]


def test_signatures_of_defined_and_built_in_ops(ns: str) -> None:
    """The schema's arguments, where no author's function is there to ask."""
    op = library.define(f"{ns}::g", "(Tensor x, int k=2, *, str t='a') -> Tensor")
    assert str(inspect.signature(op)) == "(x, k=2, *, t='a')"
    assert list(inspect.signature(tp.mul).parameters) == ["x1", "x2"]
    assert inspect.signature(tp.sum).parameters["axis"].default is None


def test_a_misspelt_op_gets_a_hint(ns: str) -> None:
    """9."""
    with pytest.raises(RuntimeError) as e:
        library.get_op("tp::mull")
    assert e.value.__notes__ == ["did you mean 'tp::mul'?"]


@pytest.mark.parametrize("turned", [False, True])
def test_an_overload_without_omitted_defaults_comes_first(ns: str, turned: bool) -> None:
    """9: among equals the one that leaves nothing to a default, whatever the order of definition."""
    signatures = {
        "two": "(Tensor x, int a=1, int b=2)",
        "one": "(Tensor x, int a=1)",
        "none": "(Tensor x)",
    }
    call = overloads(ns, **dict(reversed(signatures.items()) if turned else signatures))
    assert [call(X), call(X, 1), call(X, 1, 2), call(X, b=2)] == ["none", "one", "two", "two"]
