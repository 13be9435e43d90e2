"""`library.Schema.parse`: the grammar row by row, the corpus of printed declarations, and where errors point."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorplay import library
from tensorplay.errors import SchemaError
from tensorplay.library import Schema

DATA = Path(__file__).parents[1] / "data"


def parsed(text: str) -> str:
    printed = str(Schema.parse(text))
    assert str(Schema.parse(printed)) == printed
    assert Schema.parse(printed) == Schema.parse(text)
    return printed


def refused(text: str, expected: str, found: str | None = None) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema.parse(text)
    message = str(caught.value)
    assert caught.value.code == "TP1001"
    assert f"expected {expected}" in message
    assert found is None or f"but found `{found}`" in message
    shown, caret = message.splitlines()[-2:]
    assert caret.strip() == "^" * len(caret.strip())
    assert caret.index("^") < len(shown) + 1


# row, text, what is printed (None: the text itself)
ACCEPTED = [
    ("1.1", "ns.f(Tensor x) -> Tensor", None),
    ("1.1", "a::f.o(Tensor x) -> Tensor", None),
    ("1.2", "a::f(Tensor self, int from, int lambda, int print, int yield, int try) -> Tensor", None),
    ("1.3", "a::f(*, Tensor x) -> Tensor", None),
    ("1.3", "a::f(Tensor x, *) -> Tensor", "a::f(Tensor x) -> Tensor"),
    ("1.3", "a::f(Tensor x, ...) -> Tensor", None),
    ("1.4", "a::f() -> (Tensor)", "a::f() -> Tensor"),
    ("1.4", "a::f() -> ((Tensor))", None),
    ("1.4", "a::f() -> (Tensor a, Tensor a)", None),
    ("1.4", "a::f() -> (Tensor, ...)", None),
    ("1.4", "a::f() -> None", "a::f() -> NoneType"),
    ("1.4", "a::f() -> ()", None),
    ("1.5", "a::f( Tensor   x ,\tint\n y ) -> Tensor # said here", "a::f(Tensor x, int y) -> Tensor"),
    ("1.6", "a::f(SymInt a, Scalar b, Generator? c, QScheme d, Any e, Stream f, complex g) -> Storage", None),
    ("1.7", "a::f(t[] x, t1 y, tVal z) -> t", None),
    ("1.8", "a::f(Tensor?? x) -> Tensor", "a::f(Tensor? x) -> Tensor"),
    (
        "1.8",
        "a::f(int[3] a, int[][] b, Tensor?[] c, Tensor[]? d, int[2]? e, (int, Tensor) f) -> Tensor",
        None,
    ),
    ("1.8", "a::f(Future(Tensor) a, RRef(t) b, Await(int) c) -> Tensor", None),
    ("1.8", "a::f(Union(int, Tensor) x) -> Tensor", "a::f(Union(Tensor, int) x) -> Tensor"),
    ("1.9", "a::f(Dict(str, Dict(int, Tensor)) x, Dict(Device, bool) y) -> Tensor", None),
    ("1.10", "a::f(int[0] x) -> Tensor", None),
    ("1.11", "a::f(__torch__.torch.classes.foo.Bar x) -> Tensor", None),
    (
        "1.12",
        "a::f(Tensor(a) x, Tensor(a0!) y, Tensor(b|c) z, Tensor(d! -> d|e) u, Tensor(*) v, Tensor(f -> *) w) -> ()",
        None,
    ),
    ("1.13", "a::f(Tensor(a!)? x, Tensor(b!)[] y, Tensor[](c!) z, Tensor(d!)[](e!) w, t(f) u) -> ()", None),
    ("1.15", "a::f(Tensor! x, Tensor! y) -> Tensor!", None),
    ("1.16", "a::f(Tensor(a!) x, Tensor(a!) y) -> Tensor(b)", None),
    ("1.17", "a::f(int x=1, *, int y) -> Tensor", None),
    (
        "1.18",
        "a::f(int a=- 1, int b=-9223372036854775808, float c=.5, float d=1., float e=1E5) -> ()",
        "a::f(int a=-1, int b=-9223372036854775808, float c=0.5, float d=1., float e=100000.) -> ()",
    ),
    ("1.18", "a::f(float a=inf, float b=-inf, float c=nan) -> ()", None),
    (
        "1.19",
        "a::f(float a=1, Scalar b=1.5, Scalar c=True, Scalar d=1j, Tensor? e=None, Tensor f=None, Generator? g=None) -> ()",
        "",
    ),
    ("1.20", "a::f(int[3] a=1, int[2] b=[1, -2], int[] c=[], int[3]? d=1, Tensor[]? e=None) -> ()", None),
    (
        "1.21",
        "a::f(int x=Mean, Layout y=strided, MemoryFormat z=contiguous_format, ScalarType w=float) -> ()",
        None,
    ),
    (
        "1.22",
        'a::f(str x=\'b\', str y="\\"q\\" é 漢\\n") -> ()',
        'a::f(str x="b", str y="\\"q\\" é 漢\\n") -> ()',
    ),
    ("1.23", 'a::f(Device x="cuda:0") -> ()', None),
]


@pytest.mark.parametrize(
    ("row", "text", "printed"), ACCEPTED, ids=[f"{r}-{i}" for i, (r, *_) in enumerate(ACCEPTED)]
)
def test_what_the_grammar_has(row: str, text: str, printed: str | None) -> None:
    """Section 1: read, printed in one spelling, and read again as the same schema."""
    found = parsed(text)
    if printed != "":
        assert found == (text if printed is None else printed), row


# row, text, what was expected, what was found
REFUSED = [
    ("1.1", "a::f.default(Tensor x) -> Tensor", "an overload name other than `default`", "default"),
    ("1.1", "a::f.__x(Tensor x) -> Tensor", "an overload name other than `default`", "__x"),
    ("1.1", "a::f.(Tensor x) -> Tensor", "an overload name", "("),
    ("1.1", "a::f.o.p(Tensor x) -> Tensor", "`(`", "."),
    ("1.1", "a::b::f(Tensor x) -> Tensor", "`(`", ":"),
    ("1.2", "a::f(Tensor None) -> Tensor", "an argument name", "None"),
    ("1.2", "a::for(Tensor x) -> Tensor", "an operator name", "for"),
    ("1.3", "a::f(Tensor x,) -> Tensor", "a type", ")"),
    ("1.3", "a::f(..., Tensor x) -> Tensor", "nothing after `...`", "Tensor"),
    ("1.5", "a::f(Tensor x)\n-> Tensor", "`->`", None),
    ("1.6", "a::f(SymFloat x) -> Tensor", "a type", "SymFloat"),
    ("1.6", "a::f(Dimname x) -> Tensor", "a type", "Dimname"),
    ("1.8", "a::f(Optional[Tensor] x) -> Tensor", "a type (an optional one is written `T?`)", "Optional"),
    ("1.8", "a::f(List[int] x) -> Tensor", "a type (a list is written `T[]`)", "List"),
    ("1.8", "a::f(Union(int) x) -> Tensor", "at least two different types", "Union(int)"),
    ("1.9", "a::f(Dict(Scalar, int) x) -> Tensor", "a key type", "Scalar"),
    ("1.10", "a::f(int[1][2] x) -> Tensor", "an argument name", "["),
    ("1.10", "a::f(int[-1] x) -> Tensor", "`]` or a list size", "-"),
    ("1.12", "a::f(Tensor(0) x) -> Tensor", "an alias set", "0"),
    ("1.12", "a::f(Tensor() x) -> Tensor", "an alias set", ")"),
    ("1.12", "a::f(Tensor(!) x) -> Tensor", "an alias set", "!"),
    ("1.12", "a::f(Tensor(a!|b) x) -> Tensor", "`!`, `|`, `->` or `)`", "|"),
    ("1.13", "a::f(Tensor?(a!) x) -> Tensor", "an argument name", "("),
    ("1.17", "a::f(int x=1, int y) -> Tensor", "`=`, for a default follows a default", ")"),
    ("1.18", "a::f(int x=9223372036854775808) -> ()", "an integer of 64 bits", "9223372036854775808"),
    ("1.18", "a::f(int x=+1) -> ()", "a default value", "+"),
    ("1.18", "a::f(int x=1_000) -> ()", "a decimal number", "1_000"),
    ("1.18", "a::f(int x=0x10) -> ()", "a decimal number", "0x10"),
    ("1.18", "a::f(float x=1e400) -> ()", "a number within the range of a double", "1e400"),
    ("1.19", "a::f(int x=1.5) -> ()", "a default of type `int`", "1.5"),
    ("1.19", "a::f(int x=True) -> ()", "a default of type `int`", "True"),
    ("1.19", "a::f(int x=None) -> ()", "a default of type `int`", "None"),
    ("1.19", "a::f(str x=None) -> ()", "a default of type `str`", "None"),
    ("1.19", "a::f(bool x=1) -> ()", "a default of type `bool`", "1"),
    ("1.20", "a::f(int[2] x=[1, 2, 3]) -> ()", "a default of type `int[2]`", None),
    ("1.20", 'a::f(str[] x=["a"]) -> ()', "no default", None),
    ("1.20", "a::f(int[]? x=[1]) -> ()", "a default of type `int[]?`", None),
    ("1.21", "a::f(int x=Sum) -> ()", "a default value", "Sum"),
    ("1.21", "a::f(MemoryFormat x=channels_last) -> ()", "a default value", "channels_last"),
    ("1.21", "a::f(MemoryFormat x=preserve_format) -> ()", "a default value", "preserve_format"),
    ("1.21", "a::f(Layout x=sparse) -> ()", "a default value", "sparse"),
    ("1.23", 'a::f(Device x="gpu") -> ()', "a default of type `Device`", '"gpu"'),
]


@pytest.mark.parametrize(
    ("row", "text", "expected", "found"), REFUSED, ids=[f"{r}-{i}" for i, (r, *_) in enumerate(REFUSED)]
)
def test_what_the_grammar_refuses(row: str, text: str, expected: str, found: str | None) -> None:
    """Section 1, 1.24: what was expected, what was found, and a caret below it."""
    refused(text, expected, found)


def test_type_variables_and_repeated_names_are_no_definitions(ns: str) -> None:
    """1.7, 1.16: parsed, but nothing can be defined with them."""
    for text in ("(t x) -> Tensor", "(Tensor x, Tensor x) -> Tensor"):
        with pytest.raises(SchemaError):
            library.define(f"{ns}::f{text}")
    assert not library.has_op(f"{ns}::f")


def test_repeated_names_and_a_last_star_are_read_as_torch_reads_them() -> None:
    """1.3, 1.16: a declaration of the corpus repeats a name; a `*` with nothing behind it is accepted and not printed."""
    corpus = "static_runtime::clamp_nan_to_num"
    (line,) = [t for t in (DATA / "torch-schemas.txt").read_text().splitlines() if t.startswith(f"{corpus}(")]
    assert [a["name"] for a in Schema.parse(line).arguments].count("posinf") == 2
    probes = map(json.loads, (DATA / "schema-probes.jsonl").read_text().splitlines())
    verdicts = {p["schema"]: (p["torch"], p.get("printed")) for p in probes}
    for text in ("f(Tensor x, Tensor x) -> ()", "f(Tensor x, *) -> ()", "f(*) -> ()"):
        assert verdicts[text] == ("accept", str(Schema.parse(text)))


def test_mutation_of_lists_is_answered_yes() -> None:
    """1.14: the container's set is empty, and the list is written to all the same."""
    found = Schema.parse("a::f(Tensor(a!)[] xs, Tensor(b!)? y, Tensor z) -> ()")
    assert found.is_mutable
    assert found.mutated == ["xs", "y"]


def test_equality_and_compatibility() -> None:
    """1.25: names count; arguments with defaults may be appended."""
    old = Schema.parse("a::f(Tensor x) -> Tensor")
    assert old != Schema.parse("a::f(Tensor y) -> Tensor")
    assert Schema.parse("a::f(Tensor x, int k=1) -> Tensor").is_backward_compatible_with(old)
    assert not Schema.parse("a::f(Tensor x, int k) -> Tensor").is_backward_compatible_with(old)


def test_the_corpus_prints_as_it_was_printed() -> None:
    """Section 1: 4374 declarations come back to the character, but for the order of alias sets in a few."""
    lines = (DATA / "torch-schemas.txt").read_text().splitlines()
    assert len(lines) == 4374
    other = [line for line in lines if str(Schema.parse(line)) != line]
    assert len(other) <= 8
    assert all("|" in line for line in other)
    for line in (DATA / "torch-native-functions.txt").read_text().splitlines():
        Schema.parse(f"aten::{line}")


def test_the_corpus_has_the_structure_that_was_seen() -> None:
    """Section 1: names, keyword-only marks, defaults and writes of every argument of the 4374."""
    lines = (DATA / "torch-schemas.txt").read_text().splitlines()
    facts = (DATA / "torch-schema-facts.jsonl").read_text().splitlines()
    for line, fact in zip(lines, map(json.loads, facts), strict=True):
        found = Schema.parse(line).arguments
        assert [a["name"] for a in found] == [a["n"] for a in fact["args"]], line
        for ours, seen in zip(found, fact["args"], strict=True):
            assert ours["kwarg_only"] == bool(seen.get("kw")), line
            assert ours["has_default"] == ("d" in seen), line
            assert ours["mutated"] == bool(seen.get("al", {}).get("w")), line
