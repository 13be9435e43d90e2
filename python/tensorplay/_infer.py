"""Schemas inferred from Python signatures.

Lives here: annotations and defaults to schema text, with refusals that name the parameter, what it says and what it
may say. Not here: parsing schema text (the extension) and registering it (`_definitions`).
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tensorplay import _arguments, _native, _places
from tensorplay.errors import ArgumentError, SchemaError

__all__ = ["infer_schema", "mutated_names"]

_EMPTY = inspect.Parameter.empty
# Strings within strings that an annotation may be.
_QUOTES = 8
_NUMBERS = {int, float, bool}
_SIMPLE: dict[Any, str] = {
    _native.Tensor: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    _native.dtype: "ScalarType",
    _native.device: "Device",
}
_LONG = 80  # characters of a value in a message
_ELEMENTS = {"Tensor", "SymInt", "float", "bool", "Scalar", "Tensor?"}
_RETURNS = {"Tensor", "Tensor[]", "SymInt", "float", "bool", "Scalar"}
_SUPPORTED = (
    "Tensor, int, float, bool, str, int | float (any number), tensorplay.dtype, tensorplay.device; list[...] of Tensor, "
    "int, float, bool or int | float; each of these also as X | None; list[Tensor | None]"
)
_SUPPORTED_RETURNS = (
    "Tensor, list[Tensor], int, float, bool, int | float, a tuple of these, or None for no result"
)


@_arguments.keywords
def infer_schema(
    fn: Callable[..., Any],
    /,
    *,
    mutates_args: Iterable[str] | str,
    op_name: str | None = None,
    tags: Sequence[str] = (),
) -> str:
    """The schema text of `fn`: `(Tensor x, SymInt k=2) -> Tensor`, after `op_name` when one is given.

    A parameter without an annotation is a Tensor, or of the type of its default; a missing return annotation means one
    Tensor. `mutates_args` is a sequence of names, or "unknown" for every Tensor argument. The tag "inplace" declares
    that the first Tensor is written to and returned, "out" that the keyword-only ones are.
    """
    parameters = _parameters(fn)
    resolve = _Resolver(fn)
    kinds = {p.name: _parameter_type(p, resolve, fn) for p in parameters}
    mutated = mutated_names(mutates_args, kinds)
    pieces, keyword_only = [], False
    for index, parameter in enumerate(parameters):
        kind = kinds[parameter.name]
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            pieces.append("*")
        if parameter.name in mutated:
            kind = kind.replace("Tensor", f"Tensor(a{index}!)", 1)
        default = "" if parameter.default is _EMPTY else f"={_default_text(parameter, kinds[parameter.name])}"
        pieces.append(f"{kind} {parameter.name}{default}")
    returns = _returned_type(fn, resolve)
    if "inplace" in tags or "out" in tags:
        returns = _aliased_returns(tags, parameters, kinds, mutated, returns)
    return f"{op_name or ''}({', '.join(pieces)}) -> {returns}"


def mutated_names(mutates_args: Iterable[str] | str, kinds: Mapping[str, str]) -> frozenset[str]:
    """The names in `mutates_args`, checked against the arguments and their types."""
    tensors = [name for name, kind in kinds.items() if kind.startswith("Tensor")]
    if mutates_args == "unknown":
        return frozenset(tensors)
    if isinstance(mutates_args, str):
        raise SchemaError(
            f"mutates_args must be a sequence of argument names, got the string {mutates_args!r}",
            code="TP1021",
            notes=(
                f"write mutates_args=({mutates_args!r},), or mutates_args='unknown' for every Tensor argument",
            ),
        )
    if not isinstance(mutates_args, collections.abc.Iterable):
        raise ArgumentError(
            f"mutates_args must be a sequence of argument names, got {mutates_args!r}",
            code="TP1021",
            notes=("write mutates_args=() for an op that writes to nothing",),
        )
    names = list(mutates_args)
    for name in names:
        if not isinstance(name, str):
            raise ArgumentError(
                f"mutates_args holds argument names, got {type(name).__name__} {name!r}", code="TP1022"
            )
        if name not in kinds:
            near = _arguments.nearest(name, kinds, 0.5)
            hint = (
                f"; did you mean {near!r}?" if near else f"; the arguments are {', '.join(kinds) or 'none'}"
            )
            raise SchemaError(f"mutates_args names {name!r}, which is no argument{hint}", code="TP1023")
        if name not in tensors:
            raise SchemaError(
                f"mutates_args names {name!r}, whose type is {kinds[name]}: only Tensors can be written to",
                code="TP1024",
            )
    return frozenset(names)


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"the signature of {fn!r} cannot be read: {error}",
            code="TP1025",
            notes=("pass schema='(...) -> ...'",),
        ) from None
    refused = {
        inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
        inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments (*)",
        inspect.Parameter.VAR_KEYWORD: "takes any keywords (**)",
    }
    for parameter in signature.parameters.values():
        if parameter.kind in refused:
            raise SchemaError(
                f"parameter {parameter.name!r} {refused[parameter.kind]}: a schema has named arguments only, "
                f"in {_shown(fn)}",
                code="TP1026",
            )
        if not parameter.name.isascii():
            raise SchemaError(
                f"parameter {parameter.name!r}: the names of a schema are ASCII, in {_shown(fn)}",
                code="TP1026",
            )
    return list(signature.parameters.values())


def _shown(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", type(fn).__name__)
    try:
        return f"{name}{inspect.signature(fn)}"
    except ValueError:  # a default without a text, see `_brief`
        return str(name)


class _Resolver:
    """Annotations written as strings, looked up where the author could see the names: closure, enclosing functions, globals."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        while isinstance(fn, functools.partial):
            fn = fn.func
        inner = inspect.unwrap(fn)
        if not hasattr(inner, "__code__"):
            inner = type(inner).__call__
        self.globals: dict[str, Any] = getattr(inner, "__globals__", {})
        self.function = inner

    def names(self) -> Mapping[str, Any]:
        code = getattr(self.function, "__code__", None)
        closure: dict[str, Any] = {}
        for name, cell in zip(
            code.co_freevars if code else (), getattr(self.function, "__closure__", None) or (), strict=False
        ):
            try:
                closure[name] = cell.cell_contents
            except ValueError:
                continue  # not assigned yet
        enclosing = [f.f_locals for f in _places.user_frames() if f.f_globals is self.globals]
        return ChainMap(closure, *enclosing)

    def __call__(self, annotation: Any, what: str) -> Any:
        for _ in range(_QUOTES):
            text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
            if not isinstance(text, str):
                return annotation
            annotation = self.evaluated(text, what)
        raise SchemaError(f"{what} is annotated by strings within strings: {annotation!r}", code="TP1027")

    def evaluated(self, text: str, what: str) -> Any:
        """One string as an annotation; a quoted one under the future import gives a string again."""
        try:
            return eval(text, self.globals, self.names())
        except NameError as error:
            raise SchemaError(
                f"{what} is annotated {text!r}, and the name {error.name!r} is not known where the function was defined",
                code="TP1027",
                notes=(
                    "annotations kept as strings are looked up in the closure, the enclosing functions and the module; "
                    f"import {error.name!r} there (an import under TYPE_CHECKING does not exist at run time)",
                ),
            ) from None
        except Exception as error:
            raise SchemaError(
                f"{what} is annotated {text!r}, which cannot be evaluated: {error}", code="TP1027"
            ) from None


def _type_text(annotation: Any, resolve: _Resolver, what: str) -> str | None:
    """Schema type of an annotation; None when there is none."""
    annotation = resolve(annotation, what)
    if annotation in (None, type(None)):
        return None
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [resolve(m, what) for m in typing.get_args(annotation)]
        rest = [m for m in members if m not in (None, type(None))]
        one = "Scalar" if {int, float} <= set(rest) <= _NUMBERS else None
        if one is None and len(rest) == 1:
            one = _type_text(rest[0], resolve, what)
        optional = len(rest) < len(members)
        return one if one is None or not optional or one.endswith("?") else f"{one}?"
    if getattr(annotation, "__module__", None) == "numbers" and annotation.__qualname__ == "Number":
        return "Scalar"
    if typing.get_origin(annotation) in (list, collections.abc.Sequence):
        held = typing.get_args(annotation)
        element = _type_text(held[0], resolve, what) if held else None
        return f"{element}[]" if element in _ELEMENTS else None
    try:
        return _SIMPLE.get(annotation)
    except TypeError:  # not hashable
        return None


def _parameter_type(parameter: inspect.Parameter, resolve: _Resolver, fn: Callable[..., Any]) -> str:
    if parameter.annotation is _EMPTY:
        return _type_of_default(parameter)
    what = f"parameter {parameter.name!r}"
    text = _type_text(parameter.annotation, resolve, what)
    if text is not None:
        return text
    annotation = resolve(parameter.annotation, what)
    notes = [f"supported: {_SUPPORTED}"]
    inside = _tuple_in(annotation)
    if inside is not None:
        items = [a for a in typing.get_args(inside) if a is not ...]
        element = _name(items[0]) if items else "int"
        notes.insert(0, f"write list[{element}]: a call may still pass a tuple")
    elif (typing.get_origin(annotation) or annotation) in (
        list,
        collections.abc.Sequence,
    ) and not typing.get_args(annotation):
        notes.insert(0, "say what it holds: list[Tensor], list[int]")
    raise SchemaError(
        f"{what} is annotated {_name(annotation)}, which no schema type stands for, in {_shown(fn)}",
        code="TP1028",
        notes=tuple(notes),
    )


def _tuple_in(annotation: Any) -> Any:
    """The tuple in an annotation: itself, or a member of a union or a list."""
    if typing.get_origin(annotation) is tuple or annotation is tuple:
        return annotation
    members = typing.get_args(annotation)
    return next((found for m in members if (found := _tuple_in(m)) is not None), None)


def _name(annotation: Any) -> str:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        module = annotation.__module__
        return annotation.__qualname__ if module == "builtins" else f"{module}.{annotation.__qualname__}"
    return str(annotation)


def _type_of_default(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is _EMPTY:
        return "Tensor"
    if default is None:
        return "Tensor?"
    kind = _SIMPLE.get(type(default))
    if kind is None or kind == "Tensor":
        raise SchemaError(
            f"parameter {parameter.name!r} has no annotation, and its default {_brief(default)} gives no schema type",
            code="TP1029",
            notes=(f"annotate it; supported: {_SUPPORTED}",),
        )
    return kind


def _default_text(parameter: inspect.Parameter, kind: str) -> str:
    """A default as schema text; every value that is accepted reads back as the same value."""
    value = _plain(parameter.default)
    fits: dict[type, str] = {
        bool: "bool Scalar",
        int: "SymInt float Scalar",
        float: "float Scalar",
        str: "str",
        _native.dtype: "ScalarType",
        _native.device: "Device",
    }
    base = kind.removesuffix("?")
    if value is None and kind.endswith("?"):
        return "None"
    what = f"parameter {parameter.name!r} of type {_name(parameter.annotation)}"
    if base not in fits.get(type(value), "").split() and not (base == "Device" and isinstance(value, str)):
        raise SchemaError(
            f"{what} cannot have the default {_brief(value)}",
            code="TP1030",
            notes=(
                "defaults are None, int, float, bool, str, dtype and device values of the parameter's type",
            ),
        )
    if problem := _unheld(value, base):
        raise SchemaError(f"{what} cannot have the default {_brief(value)}: {problem}", code="TP1030")
    if base == "float":
        value = float(value)
    if isinstance(value, float):
        return ("-inf" if value < 0 else "inf") if math.isinf(value) else repr(value)
    if isinstance(value, _native.dtype):
        return value.name
    if isinstance(value, (str, _native.device)):
        return _quoted(str(value))
    return repr(value)


def _brief(value: Any) -> str:
    """A value in a message. Python has no text for integers of more than some thousand digits."""
    try:
        text = repr(value)
    except ValueError:
        return f"of type {type(value).__name__}"
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def _plain(value: Any) -> Any:
    """A number or a string of a subclass (an enumeration's, NumPy's) as the plain one that a kernel gets."""
    for base in (int, float, str):
        if isinstance(value, base) and type(value) not in (base, bool):
            return base.__str__(value) if base is str else base(value)
    return value


def _unheld(value: Any, base: str) -> str | None:
    """Why a default of the right type cannot be written down."""
    if type(value) is int and base == "float":
        try:
            float(value)
        except OverflowError:
            return "no float is that large"
    elif type(value) is int and not -(2**63) <= value < 2**63:
        return "it does not fit in 64 bits"
    if isinstance(value, str):
        try:
            value.encode()
            if base == "Device":
                _native.device(value)
        except UnicodeEncodeError:
            return "it holds a lone surrogate, which is no character"
        except ValueError:
            return "there is no such device"
    return None


def _quoted(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"'}
    return (
        '"'
        + "".join(escapes.get(c) or (f"\\{ord(c):03o}" if ord(c) < 32 or ord(c) == 127 else c) for c in text)
        + '"'
    )


def _returned_type(fn: Callable[..., Any], resolve: _Resolver) -> str:
    annotation = inspect.signature(fn).return_annotation
    if annotation is _EMPTY:
        return "Tensor"
    annotation = resolve(annotation, "the result")
    if annotation in (None, type(None)):
        return "()"
    items = typing.get_args(annotation) if typing.get_origin(annotation) is tuple else None
    texts = [
        _type_text(item, resolve, "the result") for item in (items if items is not None else [annotation])
    ]
    if not texts or any(text not in _RETURNS for text in texts):
        raise SchemaError(
            f"the result is annotated {_name(annotation)}, which no schema type stands for, in {_shown(fn)}",
            code="TP1031",
            notes=(f"supported: {_SUPPORTED_RETURNS}",),
        )
    joined = ", ".join(str(text) for text in texts)
    if items is None:
        return joined
    return f"({joined})" if len(items) > 1 else f"(({joined}))"


def _aliased_returns(
    tags: Sequence[str],
    parameters: list[inspect.Parameter],
    kinds: Mapping[str, str],
    mutated: frozenset[str],
    returns: str,
) -> str:
    """Return types of an op that hands back what it wrote to."""
    if "inplace" in tags and "out" in tags:
        raise SchemaError("an op cannot have both tags 'inplace' and 'out'", code="TP1032")
    names = [p.name for p in parameters]
    written = sorted(names.index(name) for name in mutated)
    tensors = [i for i, p in enumerate(parameters) if kinds[p.name].startswith("Tensor")]
    positional = [i for i in tensors if parameters[i].kind is not inspect.Parameter.KEYWORD_ONLY]
    if "inplace" in tags and written != positional[:1]:
        raise SchemaError(
            "tag 'inplace': exactly the first positional Tensor must be in mutates_args", code="TP1032"
        )
    keyword_only = [i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY]
    if "out" in tags and (not written or not set(written) <= set(keyword_only)):
        raise SchemaError("tag 'out': the arguments written to must be keyword-only Tensors", code="TP1032")
    wanted = ", ".join(["Tensor"] * len(written))
    if returns not in (wanted, f"({wanted})"):
        raise SchemaError(
            f"the arguments written to must be returned: -> {wanted}, got {returns}", code="TP1032"
        )
    aliased = ", ".join(f"Tensor(a{i}!)" for i in written)
    return aliased if len(written) == 1 else f"({aliased})"
