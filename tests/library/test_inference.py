"""Schemas inferred from signatures: what is understood, what is refused, and in which words."""

from __future__ import annotations

import enum
import functools
import inspect
import math
import typing
from collections.abc import Sequence
from typing import List, Optional  # noqa: UP035  (the old spelling is under test)

import numpy as np
import pytest

import tensorplay as tp
from tensorplay import Tensor, library
from tensorplay.errors import ArgumentError, SchemaError
from tensorplay.library import Schema, infer_schema


def schema(fn, mutates_args=(), **kwargs) -> str:
    return infer_schema(fn, mutates_args=mutates_args, **kwargs)


def test_string_annotations_are_types(ns: str) -> None:
    """S1: this module has `from __future__ import annotations`."""

    @library.custom_op(f"{ns}::f", mutates_args=())
    def f(x: Tensor) -> Tensor:
        return x * 2

    assert str(f.schema) == f"{ns}::f(Tensor x) -> Tensor"
    assert f(tp.tensor([1.0, 2.0])).tolist() == [2.0, 4.0]


def test_names_imported_in_the_enclosing_function_are_found(ns: str) -> None:
    """S2: the type name exists only in the function that registers."""

    def register():
        from tensorplay import Tensor as Array

        @library.custom_op(f"{ns}::f", mutates_args=())
        def f(x: Array, n: int | None = None) -> Array:
            return x + 1

        return f

    f = register()
    assert str(f.schema) == f"{ns}::f(Tensor x, SymInt? n=None) -> Tensor"
    assert f(tp.tensor([1.0])).tolist() == [2.0]


def test_names_in_the_closure_are_found() -> None:
    """S2: the name is kept alive by the function's own closure after the enclosing call has ended."""

    def make():
        Array = Tensor

        def f(x: Array) -> Array:
            return Array and x

        return f

    assert schema(make()) == "(Tensor x) -> Tensor"


def test_an_unknown_name_is_said() -> None:
    """S2: never "not a type": parameter, name and reason."""

    def f(x: Tensor, y: Missing) -> Tensor:  # noqa: F821
        return x

    with pytest.raises(
        ValueError, match=r"parameter 'y' is annotated 'Missing', and the name 'Missing' is not known"
    ) as e:
        schema(f)
    assert "TYPE_CHECKING" in e.value.__notes__[0]


def test_builtin_generics_equal_the_typing_forms() -> None:
    """S3."""

    def new(a: list[int], b: list[Tensor], c: Tensor | None, d: Sequence[float]) -> tuple[Tensor, Tensor]: ...
    def old(a: List[int], b: List[Tensor], c: Optional[Tensor], d: List[float]) -> tuple[Tensor, Tensor]: ...  # noqa: UP006, UP045

    assert schema(new) == schema(old)
    assert schema(new) == "(SymInt[] a, Tensor[] b, Tensor? c, float[] d) -> (Tensor, Tensor)"


def test_an_optional_list_of_tensors(ns: str) -> None:
    """S4: None, an empty list and two tensors; gradients for the list that was given."""

    @library.custom_op(f"{ns}::total", mutates_args=())
    def total(x: Tensor, xs: list[Tensor] | None = None) -> Tensor:
        for other in xs or ():
            x = x + other
        return x * 1

    @total.register_autograd
    def backward(ctx, g):
        return g, [g * 1, g * 1] if ctx.needs_input_grad[1] else None

    assert str(total.schema) == f"{ns}::total(Tensor x, Tensor[]? xs=None) -> Tensor"
    x, a, b = (tp.tensor([v], requires_grad=True) for v in (1.0, 10.0, 100.0))
    assert total(x).tolist() == [1.0]
    assert total(x, []).tolist() == [1.0]
    y = total(x, [a, b])
    assert y.tolist() == [111.0]
    y.backward(tp.tensor([3.0]))
    assert (x.grad.tolist(), a.grad.tolist(), b.grad.tolist()) == ([3.0], [3.0], [3.0])


def test_a_tuple_argument_proposes_a_list() -> None:
    """S5."""

    def f(x: Tensor, y: tuple[int, int]) -> Tensor: ...

    with pytest.raises(ValueError, match="parameter 'y' is annotated tuple") as e:
        schema(f)
    assert e.value.__notes__[0] == "write list[int]: a call may still pass a tuple"


def test_unknown_mutation_means_every_tensor() -> None:
    """S6 a."""

    def f(x: Tensor, y: Tensor, k: int) -> None: ...

    assert schema(f, "unknown") == "(Tensor(a0!) x, Tensor(a1!) y, SymInt k) -> ()"


def test_a_string_is_no_sequence_of_names() -> None:
    """S6 b."""

    def f(x: Tensor) -> None: ...

    with pytest.raises(ValueError, match="must be a sequence of argument names, got the string 'x'"):
        schema(f, "x")


@pytest.mark.parametrize(
    ("mutates", "error", "text"),
    [
        (("nope",), ValueError, "names 'nope', which is no argument; the arguments are xs, other, k"),
        (("xz",), ValueError, "did you mean 'xs'"),
        (("k",), ValueError, "names 'k', whose type is SymInt"),
        ([1], TypeError, "holds argument names, got int 1"),
    ],
)
def test_mutates_args_is_checked(mutates, error, text) -> None:
    """W15: names are checked against the signature."""

    def f(xs: list[Tensor], other: Tensor | None, k: int) -> None: ...

    with pytest.raises(error, match=text):
        schema(f, mutates)


def test_mutated_lists_and_optionals() -> None:
    def f(a: list[Tensor], b: Tensor | None, c: list[Tensor | None], d: list[Tensor] | None) -> None: ...

    assert (
        schema(f, ("a", "b", "c", "d"))
        == "(Tensor(a0!)[] a, Tensor(a1!)? b, Tensor(a2!)?[] c, Tensor(a3!)[]? d) -> ()"
    )


STRINGS = [
    'a "quoted" word',
    "two\nlines",
    "tab\tand \\ back",
    "naïve 张量 🙂",
    "",
    "it's",
    "\x01\x7f",
    "null \x00 byte",
]


@pytest.mark.parametrize("text", STRINGS)
def test_string_defaults_round_trip(ns: str, text: str) -> None:
    """S10: any text comes back as it is."""
    seen = []

    def f(x: Tensor, name: str = text) -> Tensor:
        seen.append(name)
        return x * 1

    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    op(tp.tensor([1.0]))
    assert seen == [text]
    assert Schema.parse(str(op.schema)) == op.schema


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.1, 1e-300, -0.0, 5e-324])
def test_float_defaults_round_trip(ns: str, value: float) -> None:
    """S10: infinities and every bit."""
    seen = []

    def f(x: Tensor, k: float = value) -> Tensor:
        seen.append(k)
        return x * 1

    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    op(tp.tensor([1.0]))
    assert seen[0].hex() == value.hex()
    assert Schema.parse(str(op.schema)) == op.schema


def test_nan_default(ns: str) -> None:
    """S10."""
    seen = []

    def f(x: Tensor, k: float = math.nan) -> Tensor:
        seen.append(k)
        return x * 1

    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    op(tp.tensor([1.0]))
    assert math.isnan(seen[0])
    assert Schema.parse(str(op.schema)) == op.schema


def test_dtype_and_device_defaults_arrive_as_objects(ns: str) -> None:
    seen = []

    def f(x: Tensor, d: tp.dtype = tp.bfloat16, where: tp.device = tp.device("cpu")) -> Tensor:
        seen.append((d, where))
        return x * 1

    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    op(tp.tensor([1.0]))
    assert seen == [(tp.bfloat16, tp.device("cpu"))]


def test_parameters_without_annotation() -> None:
    """Tensors, or of the type of their default; the result one Tensor."""

    def f(x, n=2, s=0.5, flag=True, name="a", other=None, d=tp.float16): ...

    assert schema(f) == (
        '(Tensor x, SymInt n=2, float s=0.5, bool flag=True, str name="a", Tensor? other=None, ScalarType d=float16) -> Tensor'
    )


def test_numbers_and_returns() -> None:
    def f(a: int | float, b: bool | int | float | None = None) -> tuple[list[Tensor], int, float, bool]: ...
    def g(x: Tensor) -> None: ...

    assert schema(f) == "(Scalar a, Scalar? b=None) -> (Tensor[], SymInt, float, bool)"
    assert schema(g) == "(Tensor x) -> ()"


@pytest.mark.parametrize(
    "annotation", ["dict", "list", "list[list[int]]", "complex", "int | str", "list[str]", "object"]
)
def test_refusals_name_parameter_annotation_and_choice(annotation: str) -> None:
    namespace: dict = {"Tensor": Tensor}
    exec(f"def f(x: Tensor, bad: {annotation}) -> Tensor: ...", namespace)
    with pytest.raises(SchemaError, match=r"parameter 'bad' is annotated .*, in f\(") as e:
        schema(namespace["f"])
    assert e.value.__notes__[-1].startswith("supported: Tensor, int, float, bool, str")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def f(x, /): ...", "'x' is positional-only"),
        ("def f(*xs): ...", "'xs' takes any number of arguments"),
        ("def f(x, **kw): ...", "'kw' takes any keywords"),
        ("def f(x, y=[1]): ...", "'y' has no annotation, and its default"),
        ("def f(x, n: int = 1.5): ...", "'n' of type int cannot have the default 1.5"),
        ("def f(x, n: int = True): ...", "'n' of type int cannot have the default True"),
        ("def f(x) -> str: ...", "the result is annotated str"),
        ("def f(x) -> tuple[int, ...]: ...", "the result is annotated"),
    ],
)
def test_signatures_that_no_schema_has(text: str, why: str) -> None:
    namespace: dict = {}
    exec(text, namespace)
    with pytest.raises(ValueError, match=why):
        schema(namespace["f"])


def test_partials_and_callable_objects(ns: str) -> None:
    class Scale:
        def __call__(self, x: Tensor, k: float = 3.0) -> Tensor:
            return x * k

    def power(x: Tensor, k: float) -> Tensor:
        return x**k

    scale = library.custom_op(f"{ns}::scale", Scale(), mutates_args=())
    square = library.custom_op(f"{ns}::square", functools.partial(power, k=2.0), mutates_args=())
    assert str(square.schema) == f"{ns}::square(Tensor x, *, float k=2.) -> Tensor"
    x = tp.tensor([3.0])
    assert (scale(x).item(), square(x).item(), square(x, k=3.0).item()) == (9.0, 9.0, 27.0)


def test_tags_for_what_is_written_to_and_returned() -> None:
    def inplace(x: Tensor, y: Tensor) -> Tensor: ...
    def out(x: Tensor, *, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]: ...

    assert schema(inplace, ["x"], tags=["inplace"]) == "(Tensor(a0!) x, Tensor y) -> Tensor(a0!)"
    assert (
        schema(out, ["a", "b"], tags=["out"])
        == "(Tensor x, *, Tensor(a1!) a, Tensor(a2!) b) -> (Tensor(a1!), Tensor(a2!))"
    )
    with pytest.raises(SchemaError, match="exactly the first positional Tensor"):
        schema(inplace, ["y"], tags=["inplace"])
    with pytest.raises(SchemaError, match="keyword-only"):
        schema(inplace, ["x"], tags=["out"])


def test_quoted_annotations_under_the_future_import() -> None:
    """2.6, S1: a string within a string is an annotation too."""

    def f(x: "Tensor", k: "list[int] | None", s: "Optional['float']" = None) -> "tuple[Tensor, int]": ...  # noqa: UP037, UP045

    assert schema(f) == "(Tensor x, SymInt[]? k, float? s=None) -> (Tensor, SymInt)"


def test_bare_lists_are_refused_with_what_to_write() -> None:
    """2.2, S3."""
    for bare in (list, typing.List, typing.Sequence):  # noqa: UP006

        def f(x: Tensor, k: bare) -> Tensor: ...

        with pytest.raises(SchemaError, match="parameter 'k' is annotated") as e:
            schema(f)
        assert "list[Tensor]" in e.value.__notes__[0]


def test_tuples_within_other_types_propose_a_list() -> None:
    """S5."""
    for inside in (tuple[int, int] | None, list[tuple[int, int]]):

        def f(x: Tensor, k: inside) -> Tensor: ...

        with pytest.raises(SchemaError) as e:
            schema(f)
        assert "write list[int]" in e.value.__notes__[0]


def test_a_callable_object_may_have_any_attributes(ns: str) -> None:
    """2.9: `func` is no partial's."""

    class Op:
        func = print

        def __call__(self, x: Tensor, k: float = 2.0) -> Tensor:
            return x * k

    assert schema(Op()) == "(Tensor x, float k=2.0) -> Tensor"


def test_a_partial_keeps_its_authors_documentation(ns: str) -> None:
    """2.9."""

    def body(x: Tensor, k: float) -> Tensor:
        """What it does."""
        return x * k

    op = library.custom_op(f"{ns}::f", functools.partial(body, k=2.0), mutates_args=())
    assert (op.__doc__, op.__name__) == ("What it does.", "body")
    assert str(inspect.signature(op)) == "(x: 'Tensor', *, k: 'float' = 2.0) -> 'Tensor'"


def test_defaults_that_are_large_or_no_text() -> None:
    """2.7, 1.24."""

    def large(x: Tensor, k: float = 10**30) -> Tensor: ...
    def larger(x: Tensor, k: float = 10**400) -> Tensor: ...
    def broken(x: Tensor, k: str = "\ud800") -> Tensor: ...

    assert schema(large) == "(Tensor x, float k=1e+30) -> Tensor"
    with pytest.raises(SchemaError, match="no float is that large"):
        schema(larger)
    with pytest.raises(SchemaError, match="lone surrogate") as e:
        library.Schema.parse("a::f(str k='\ud800') -> Tensor")
    assert e.value.code == "TP1001"
    integer: object
    for integer in (2**63, -(2**63) - 1, 10**400):

        def too_large(x: Tensor, k: int = integer) -> Tensor: ...
        def optional(x: Tensor, k: int | None = integer) -> Tensor: ...
        def number(x: Tensor, k: int | float = integer) -> Tensor: ...

        for f in (too_large, optional, number, broken):
            for call in (schema, lambda f: library.custom_op("never::f", f, mutates_args=())):
                with pytest.raises(SchemaError, match="parameter 'k' of type") as e:
                    call(f)
                assert e.value.code == "TP1030"

    def edges(x: Tensor, k: int = 2**63 - 1, n: int = -(2**63)) -> Tensor: ...

    assert library.Schema.parse("a::f" + schema(edges)).arguments[2].default == str(-(2**63))


@pytest.mark.parametrize("wrong", [None, 42])
def test_mutates_args_of_another_kind(wrong) -> None:
    """S6."""
    with pytest.raises(ArgumentError, match="mutates_args must be a sequence of argument names") as e:
        schema(lambda x: x, wrong)
    assert e.value.code == "TP1021"


def test_inplace_is_about_the_first_tensor() -> None:
    """2.10."""

    def second(k: int, x: Tensor) -> Tensor: ...
    def keyword(*, x: Tensor) -> Tensor: ...

    assert schema(second, ["x"], tags=["inplace"]) == "(SymInt k, Tensor(a1!) x) -> Tensor(a1!)"
    with pytest.raises(SchemaError, match="first positional Tensor"):
        schema(keyword, ["x"], tags=["inplace"])


def test_defaults_can_be_read_back(ns: str) -> None:
    """S10."""
    parsed = library.Schema.parse("a::f(Tensor x, int[2] k=3, str s='a') -> Tensor")
    assert [a["default"] for a in parsed.arguments] == [None, "[3, 3]", '"a"']


def test_a_call_of_infer_schema_with_a_name() -> None:
    """L26, in the spelling that keeps names and defaults."""

    def weighted(x: Tensor, n: int, out: Tensor) -> Tensor: ...
    def bare(a, b): ...

    assert (
        schema(weighted, ("out",), op_name="mylib::weighted")
        == "mylib::weighted(Tensor x, SymInt n, Tensor(a2!) out) -> Tensor"
    )
    assert schema(bare) == "(Tensor a, Tensor b) -> Tensor"


def test_mutates_args_is_required() -> None:
    with pytest.raises(TypeError, match="mutates_args"):
        infer_schema(lambda x: x)
    with pytest.raises(TypeError, match="mutates_args"):
        library.custom_op("never::defined", lambda x: x)
    assert not library.has_op("never::defined")
    assert issubclass(ArgumentError, TypeError)


class Level(enum.IntEnum):
    HIGH = 3


class Mode(str, enum.Enum):  # noqa: UP042  (the older form is under test)
    FAST = "fast"


def test_defaults_of_a_subclass_are_the_plain_value(ns: str) -> None:
    """2.7: members of an enumeration and NumPy's float; the kernel gets the number or the text."""
    seen = []

    def f(x: Tensor, n: int = Level.HIGH, s: str = Mode.FAST, r: float = np.float64(0.5)) -> Tensor:
        seen.append((n, s, r))
        return x * 1

    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    assert str(op.schema) == f'{ns}::f(Tensor x, SymInt n=3, str s="fast", float r=0.5) -> Tensor'
    op(tp.ones([1]))
    assert [type(v) for v in seen[0]] == [int, str, float]
    assert seen == [(3, "fast", 0.5)]


@pytest.mark.parametrize(
    ("annotation", "default", "why"),
    [
        (int, 2**63, "does not fit in 64 bits"),
        (int | float, -(2**63) - 1, "does not fit in 64 bits"),
        (tp.device, "gpu", "no such device"),
        (str, "\udfff", "lone surrogate"),
    ],
)
def test_a_default_that_no_schema_holds_names_its_parameter(annotation, default, why: str) -> None:
    """2.7: refused by infer_schema itself, not by who reads the text it gave."""

    def f(x, where=default): ...

    f.__annotations__["where"] = annotation
    with pytest.raises(SchemaError, match=f"parameter 'where'.*{why}") as e:
        schema(f)
    assert e.value.code == "TP1030"


def test_a_parameter_outside_ascii_is_named() -> None:
    """1.2, 2.5: Python allows the name, a schema does not."""
    with pytest.raises(SchemaError, match="parameter 'größe': the names of a schema are ASCII"):
        schema(lambda größe: größe)
