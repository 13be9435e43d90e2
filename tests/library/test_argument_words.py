"""What is said of arguments that do not fit: in Python's words, with the way out, and with our name for PyTorch's keyword."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tp = pytest.importorskip("tensorplay", reason="the extension is not built")

from tensorplay import Tensor, library
from tensorplay.errors import ArgumentError, DTypeError, InvalidValueError

X = tp.ones((3,))
# Names of schema types that mean nothing to the caller of an op.
JARGON = re.compile(r"SymInt|SymBool|Scalar\b(?!Left|Both)|ScalarType|\bDevice\b|Tensor\?|\w\?|\[\]")


def define(ns: str) -> Any:
    @library.custom_op(f"{ns}::mixed", mutates_args=())
    def mixed(
        x: Tensor,
        n: int,
        flag: bool = False,
        ratio: float = 1.0,
        kind: tp.dtype | None = None,
        where: tp.device | None = None,
        sizes: list[int] | None = None,
        parts: list[Tensor] | None = None,
        holes: list[Tensor | None] | None = None,
        number: int | float = 1,
        bias: Tensor | None = None,
    ) -> Tensor:
        return x.clone()

    return mixed


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"n": 1.5}, "argument 'n' must be int, got float"),
        ({"n": None}, "argument 'n' must be int, got None"),
        ({"flag": "a"}, "argument 'flag' must be bool, got str"),
        ({"ratio": "a"}, "argument 'ratio' must be float, got str"),
        ({"kind": "float32"}, "argument 'kind' must be dtype | None, got str"),
        ({"where": 3}, "argument 'where' must be device | None, got int"),
        ({"sizes": 3}, "argument 'sizes' must be list[int] | None, got int"),
        ({"sizes": [1, 2.5]}, "argument 'sizes' must be list[int] | None, but its item 1 is a float"),
        ({"parts": [X, 1]}, "argument 'parts' must be list[Tensor] | None, but its item 1 is an int"),
        ({"holes": [None, X, "a"]}, "must be list[Tensor | None] | None, but its item 2 is a str"),
        ({"number": "a"}, "argument 'number' must be int | float, got str"),
        ({"bias": "a"}, "argument 'bias' must be Tensor | None, got str"),
        ({"n": 2**70}, "argument 'n' (int): an integer does not fit in 64 bits"),
    ],
)
def test_a_type_is_named_as_the_annotation_says_it(ns: str, given: dict[str, Any], says: str) -> None:
    """The words of the author's annotations, and which item of a list is wrong."""
    with pytest.raises(ArgumentError) as caught:
        define(ns)(**{"x": X, "n": 1, **given})
    assert says in str(caught.value)
    assert not JARGON.search("\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())]))


def notes(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(ArgumentError) as caught:
        call()
    return list(getattr(caught.value, "__notes__", ()))


def test_a_number_for_a_tensor_is_explained_by_what_the_author_wrote(ns: str) -> None:
    """ "without annotation" is said only of a parameter without one."""
    bare = library.custom_op(f"{ns}::bare", lambda x, y: x.clone(), mutates_args=())
    given = library.custom_op(
        f"{ns}::given", lambda x, y: x.clone(), mutates_args=(), schema="(Tensor x, Tensor? y) -> Tensor"
    )
    assert notes(lambda: bare(X, 3.0)) == [
        f"a parameter without annotation is a Tensor: write `y: float` in the function of {ns}::bare "
        "to pass numbers or text"
    ]
    wrap = "takes tensors only: wrap the value with tensorplay.tensor(...)"
    assert notes(lambda: given(X, 3.0)) == [f"'y' {wrap}"]
    annotated = define(ns)
    assert notes(lambda: annotated(X, 1, bias=3.0)) == [f"'bias' {wrap}"]
    assert notes(lambda: annotated(X, 1, bias="a")) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda dtype: tp.ones((2,), dtype=dtype),
        lambda dtype: X.astype(dtype),
        lambda dtype: tp.tensor([1.0], dtype=dtype),
    ],
)
@pytest.mark.parametrize(
    ("given", "way"),
    [
        ("float32", "write it as tensorplay.float32"),
        (np.float32, "write it as tensorplay.float32"),
        (np.dtype("int8"), "write it as tensorplay.int8"),
        ("torch.bfloat16", "write it as tensorplay.bfloat16"),
        ("quaternion", "a dtype is an object such as tensorplay.float32"),
    ],
)
def test_a_dtype_by_another_name_says_how_ours_is_written(
    call: Callable[[Any], Any], given: Any, way: str
) -> None:
    assert way in notes(lambda: call(given))


def test_a_dtype_where_a_device_stands() -> None:
    with pytest.raises(InvalidValueError) as caught:
        X.to("float32")
    assert "a dtype is an object: write it as tensorplay.float32" in caught.value.__notes__


@pytest.mark.parametrize(
    ("call", "op", "dtype", "other"),
    [
        (lambda: X << 1, "tp::left_shift.Scalar", "float32", "int64"),
        (lambda: X & X, "tp::bitwise_and", "float32", "int64"),
        (lambda: ~X, "tp::bitwise_invert", "float32", "int64"),
        (lambda: -tp.ones((2,), dtype=tp.bool), "tp::neg", "bool", "int64"),
        (
            lambda: tp.floor_divide(tp.ones((2,), dtype=tp.bool), True),
            "tp::floor_divide.Scalar",
            "bool",
            "int64",
        ),
    ],
)
def test_an_op_that_a_dtype_lacks_is_called_by_its_own_name(
    call: Callable[[], Any], op: str, dtype: str, other: str
) -> None:
    """No name of a primitive, and a conversion that helps."""
    with pytest.raises(DTypeError) as caught:
        call()
    assert str(caught.value) == f"[TP1202] {op}: not defined for {dtype}"
    assert caught.value.__notes__ == [
        f"convert the operands first, for example with x.astype(tensorplay.{other})"
    ]


@pytest.mark.parametrize(
    ("call", "theirs", "ours"),
    [
        (lambda: tp.sum(X, dim=0), "dim", "axis"),
        (lambda: X.sum(dim=0), "dim", "axis"),
        (lambda: tp.cat([X], dim=0), "dim", "axis"),
        (lambda: tp.permute(X, dims=(0,)), "dims", "axes"),
        (lambda: tp.flip(X, dims=(0,)), "dims", "axis"),
        (lambda: X.mean(keepdim=True), "keepdim", "keepdims"),
        (lambda: tp.sum(input=X), "input", "x"),
        (lambda: tp.matmul(input=X, x2=X), "input", "x1"),
        (lambda: tp.matmul(X, other=X), "other", "x2"),
        (lambda: tp.zeros(size=(2,)), "size", "shape"),
        (lambda: X.reshape(size=(3,)), "size", "shape"),
        (lambda: tp.linspace(0, 1, steps=3), "steps", "num"),
        (lambda: tp.stack(tensors=[X]), "tensors", "arrays"),
        (lambda: tp.eye(3, m=3), "m", "n_cols"),
    ],
)
def test_a_keyword_of_pytorch_leads_to_ours(call: Callable[[], Any], theirs: str, ours: str) -> None:
    """One table, whatever the distance of the spellings."""
    with pytest.raises(ArgumentError) as caught:
        call()
    assert f"unknown keyword argument '{theirs}'; did you mean '{ours}'?" in str(caught.value)


def test_a_keyword_of_pytorch_is_told_for_every_overload() -> None:
    said = notes(lambda: tp.add(X, other=X))
    assert "tp::add.default: unknown keyword argument 'other'; did you mean 'x2'?" in said


@pytest.mark.parametrize(
    ("call", "way"),
    [
        (lambda: tp.ones((2,), requires_grad=True), "call .requires_grad_() on the result"),
        (lambda: tp.exp(X, out=X), "built-in ops return new tensors"),
        (lambda: tp.add(X, X, alpha=2), "multiply the operand: x1 + alpha * x2"),
        (lambda: tp.var(X, unbiased=True), "correction=1 divides by n - 1"),
    ],
)
def test_a_keyword_for_what_is_not_there_says_what_to_do(call: Callable[[], Any], way: str) -> None:
    assert any(note.startswith(way) for note in notes(call))


def test_a_keyword_of_a_custom_op_is_its_author_s(ns: str) -> None:
    """Another op's `requires_grad` is no matter of ours, and a misspelling is still found."""
    op = define(ns)
    said = notes(lambda: op(X, 1, requires_grad=True))
    assert len(said) == 1
    assert said[0].startswith(
        f"declared as {ns}::mixed(x: Tensor, n: int, flag: bool = False, ratio: float = 1.0,"
    )
    with pytest.raises(ArgumentError, match="did you mean 'ratio'"):
        op(X, 1, ratoi=2.0)


def test_sizes_given_one_by_one() -> None:
    said = notes(lambda: tp.ones(2, 3))
    assert said[0] == "sizes go in one tuple, as in ones((2, 3))"
    assert not JARGON.search(said[1])


def test_an_op_with_effects_says_so_in_a_report(ns: str) -> None:
    draws = library.custom_op(f"{ns}::draws", lambda x: x.clone(), mutates_args=(), effects="random")
    draws.register_fake(lambda x: tp.empty_like(x))
    compiled = tp.compile(lambda x: draws(x), backend=["tvm"], on_fallback="record")
    compiled(X)
    (region,) = compiled.last_run.forward
    assert region.reason is not None
    if tp.backends.capabilities()["tvm"].available:
        assert f"{ns}::draws.default: it has effects (random); 'tvm' takes pure" in region.reason.message


@pytest.mark.parametrize(
    "kind", [list[int], list[float], list[bool], list[int | float], list[Tensor], list[Tensor | None]]
)
@pytest.mark.parametrize("optional", [False, True])
def test_a_generator_is_told_to_become_a_list(ns: str, kind: Any, optional: bool) -> None:
    """U4: for every kind of list."""

    def f(x: Tensor, many) -> Tensor:
        return x * 1

    f.__annotations__["many"] = kind | None if optional else kind
    op = library.custom_op(f"{ns}::f", f, mutates_args=())
    with pytest.raises(ArgumentError, match=r"argument 'many' must be list.*, got generator") as e:
        op(X, (i for i in range(2)))
    assert "a generator is consumed by reading it: pass list(...)" in e.value.__notes__


def test_half_a_character_is_told_from_a_text(ns: str) -> None:
    """3.8: it is a str, and still none that an op can be given."""
    op = library.custom_op(f"{ns}::f", lambda s: X * len(s), mutates_args=(), schema="(str s) -> Tensor")
    with pytest.raises(ArgumentError, match="argument 's' must be str") as e:
        op("a\ud800")
    assert "it holds a lone surrogate, which is no character" in e.value.__notes__
