"""What a function can reach of Python's state, and how each place is changed: for the tests of guards."""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import state_programs
from tensorplay import Tensor

__all__ = ["Location", "locations", "snapshot"]

#: Modules of the functions under test: their globals and classes are changed, those of libraries are not.
_OWN = (state_programs.__name__, "state_program")


@dataclasses.dataclass
class Location:
    """A place that a function can reach: its path, and how it is changed and put back."""

    path: str
    change: Callable[[], None]
    restore: Callable[[], None]


def _other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if value is None:
        return 2.0
    if isinstance(value, int | float | complex):
        return value + 1
    if isinstance(value, bytes):
        return value + b"\x07"
    if isinstance(value, frozenset):
        return value - {next(iter(value))} if value else frozenset({"b"})
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, Tensor):
        return value + 1.0
    if isinstance(value, tuple):
        return tuple(_other(v) for v in value)
    if isinstance(value, enum.Enum):
        return next(m for m in type(value) if m is not value)
    if isinstance(value, types.FunctionType):
        return lambda *args, **kwargs: 11.0 if len(args) < 2 and not isinstance(args[:1], Tensor) else args[0]
    return None


def _slot(path: str, get: Callable[[], Any], put: Callable[[Any], None]) -> Iterator[Location]:
    before = get()
    other = _other(before)
    if other is not None:
        yield Location(path, lambda: put(other), lambda: put(before))


def _parts(path: str, obj: Any) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    """Path, value and setter of everything that an object holds."""
    if isinstance(obj, dict):
        for key, value in list(obj.items()):
            yield f"{path}[{key!r}]", value, functools.partial(dict.__setitem__, obj, key)
        yield from _instance_parts(path, obj)
    elif isinstance(obj, list | collections.deque):
        for i, value in enumerate(obj):
            yield f"{path}[{i}]", value, functools.partial(_base(obj).__setitem__, obj, i)
        yield from _instance_parts(path, obj)
    elif isinstance(obj, tuple):
        for i, value in enumerate(obj):
            if not isinstance(value, int | float | str):
                yield f"{path}[{i}]", value, lambda _: None
    elif isinstance(obj, array.array | bytearray):
        for i, value in enumerate(obj):
            yield f"{path}[{i}]", value, functools.partial(obj.__setitem__, i)
    elif isinstance(obj, np.ndarray):
        for i, value in enumerate(obj.flat):
            yield f"{path}.flat[{i}]", value.item(), functools.partial(obj.flat.__setitem__, i)
    elif isinstance(obj, contextvars.ContextVar):
        yield f"{path}.get()", obj.get(), obj.set
    elif isinstance(obj, types.FunctionType):
        yield from _function_parts(path, obj)
    elif isinstance(obj, types.MethodType):
        yield f"{path}.__self__", obj.__self__, lambda _: None
        yield f"{path}.__func__", obj.__func__, lambda _: None
    elif isinstance(obj, functools.partial):
        yield f"{path}.keywords", obj.keywords, lambda _: None
    elif isinstance(obj, type) and obj.__module__ in _OWN and not issubclass(obj, enum.Enum):
        for name, value in list(vars(obj).items()):
            if not name.startswith("__") or name == "__call__":
                yield f"{path}.{name}", value, functools.partial(setattr, obj, name)
    elif hasattr(obj, "__dict__") and not isinstance(obj, type | types.ModuleType | Tensor | enum.Enum):
        yield from _instance_parts(path, obj)
    elif hasattr(type(obj), "__slots__") and not isinstance(obj, Tensor):
        for name in type(obj).__slots__:
            yield f"{path}.{name}", getattr(obj, name), functools.partial(setattr, obj, name)


def _base(obj: Any) -> type:
    return next(base for base in (list, collections.deque) if isinstance(obj, base))


def _instance_parts(path: str, obj: Any) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    """Attributes of an instance, and its class."""
    for name, value in list(getattr(obj, "__dict__", {}).items()):
        yield f"{path}.{name}", value, functools.partial(_put, obj, name)
    for base in type(obj).__mro__:
        if base.__module__ in _OWN:
            yield f"type({path})", base, lambda _: None


def _put(obj: Any, name: str, value: Any) -> None:
    try:
        setattr(obj, name, value)
    except AttributeError:
        object.__setattr__(obj, name, value)


def _names(code: types.CodeType) -> list[str]:
    """Names that the code uses, and code in it."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return list(dict.fromkeys((*code.co_names, *(name for one in inner for name in _names(one)))))


def _function_parts(path: str, fn: types.FunctionType) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        if name != "__class__":
            yield f"{path}<{name}>", cell.cell_contents, functools.partial(setattr, cell, "cell_contents")
    if fn.__globals__.get("__name__") == "state_program":
        for name in _names(fn.__code__):
            if name in fn.__globals__:
                value = fn.__globals__[name]
                yield name, value, functools.partial(fn.__globals__.__setitem__, name)
    if fn.__defaults__:
        yield f"{path}.__defaults__", fn.__defaults__, functools.partial(setattr, fn, "__defaults__")
    if fn.__kwdefaults__:
        yield f"{path}.__kwdefaults__", fn.__kwdefaults__, lambda _: None


def locations(root: Any) -> list[Location]:
    """Everything that can be reached from a function and be changed, each with its change: other values, containers that
    grow or shrink, attributes that appear or vanish."""
    out: list[Location] = []
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("f", root)]
    while stack:
        path, obj = stack.pop()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        out += _sizes(path, obj)
        for name, value, put in _parts(path, obj):
            if not isinstance(value, types.ModuleType):
                out += _slot(name, lambda value=value: value, put)  # type: ignore[misc]
                stack.append((name, value))
    return out


def snapshot(root: Any) -> list[tuple[str, Any]]:
    """The values and sizes of everything that can be reached: to see what a function did to it."""
    out: list[tuple[str, Any]] = []
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("f", root)]
    while stack:
        path, obj = stack.pop()
        if isinstance(obj, int | float | complex | str | bytes | None):
            out.append((path, repr(obj)))
        elif isinstance(obj, Tensor):
            out.append((path, obj.tolist()))
        elif id(obj) not in seen:
            seen.add(id(obj))
            if isinstance(obj, list | dict | set | collections.deque | bytearray):
                out.append((path, len(obj)))
            stack += [(name, value) for name, value, _ in _parts(path, obj)]
    return out


def _sizes(path: str, obj: Any) -> Iterator[Location]:
    if isinstance(obj, list | collections.deque) and obj:
        yield Location(
            f"{path} grows", lambda: obj.append(list(obj)[-1]), lambda: _base(obj).__delitem__(obj, -1)
        )
        last: list[Any] = []
        yield Location(f"{path} shrinks", lambda: last.append(obj.pop()), lambda: obj.append(last.pop()))
    if isinstance(obj, list) and not obj:
        yield Location(f"{path} grows", lambda: obj.append(1.0), obj.clear)
    if isinstance(obj, set):
        yield Location(f"{path} gets 'zz'", lambda: obj.add("zz"), lambda: obj.discard("zz"))
        if obj:
            one = next(iter(obj))
            yield Location(f"{path} loses {one!r}", lambda: obj.discard(one), lambda: obj.add(one))
    if isinstance(obj, dict) and obj:
        first = next(iter(obj))
        kept = list(dict.items(obj))
        yield Location(
            f"{path} loses {first!r}", lambda: dict.__delitem__(obj, first), lambda: _refill(obj, kept)
        )
        yield Location(
            f"{path} gets 'b'", lambda: dict.__setitem__(obj, "b", 9.0), lambda: _refill(obj, kept)
        )


def _refill(obj: dict[Any, Any], kept: list[tuple[Any, Any]]) -> None:
    dict.clear(obj)
    dict.update(obj, kept)
