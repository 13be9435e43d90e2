"""What a captured function takes and returns beside tensors, numbers, lists, tuples and dicts.

Lives here: subclasses of the containers, deques and dataclasses taken apart and made again (`opened`, `Form`); whether an
object holds what only a capture may hold (`leak`); what a function did to its arguments (`Watch`). Not here: the plain
containers, which the extension walks itself.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import sys
import types
from typing import Any

from tensorplay import _native
from tensorplay._native import SymBool, SymInt, Tensor

__all__ = ["Form", "Watch", "leak", "opened"]

_CAPTURED = (SymInt, SymBool, _native.__dict__["Node"], _native.HookHandle)
_ATOMS = (str, bytes, int, float, complex, type, types.ModuleType, types.BuiltinFunctionType, Tensor)
_MOST = 100_000
"""Objects that are looked at, at most."""


class Form:
    """How a container or dataclass instance is made of its parts: contents first, then attributes."""

    __slots__ = ("attributes", "cls", "extra", "keys", "kind")

    def __init__(self, kind: str, obj: Any, keys: list[Any]) -> None:
        self.kind, self.keys = kind, keys
        self.cls: Any = type(obj)
        self.attributes = _attributes(obj)
        self.extra = _extra(obj)

    def build(self, parts: list[Any]) -> Any:
        """A new object of the class; nothing of the class runs but `__new__`."""
        n = len(parts) - len(self.attributes)
        made = self._contents(parts[:n])
        for name, value in zip(self.attributes, parts[n:], strict=True):
            object.__setattr__(made, name, value)
        return made

    def _contents(self, parts: list[Any]) -> Any:
        if self.kind == "tuple":
            return tuple.__new__(self.cls, parts)
        if self.kind == "deque":
            return self.cls(parts, self.extra)
        if self.kind == "set":
            return self.cls(parts)
        made: Any = self.cls.__new__(self.cls)
        if self.kind == "list":
            list.extend(made, parts)
        elif self.kind == "dict":
            put = collections.OrderedDict if isinstance(made, collections.OrderedDict) else dict
            for key, part in zip(self.keys, parts, strict=True):
                put.__setitem__(made, key, part)
            if isinstance(made, collections.defaultdict):
                made.default_factory = self.extra
        return made


def _extra(obj: Any) -> Any:
    if isinstance(obj, collections.deque):
        return obj.maxlen
    return obj.default_factory if isinstance(obj, collections.defaultdict) else None


def _attributes(obj: Any) -> dict[str, Any]:
    """Instance attributes, those in slots included."""
    found = dict(getattr(obj, "__dict__", ()))
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(obj, name):
                found[name] = getattr(obj, name)
    return found


def opened(obj: Any, result: bool) -> tuple[Form, str, list[str], list[Any]] | None:
    """Form, a text that differs with it, and labels and values of the parts; None for an object that is no container.

    Of a result dataclasses are opened too, where they hold something of the capture.
    """
    keys: list[Any] = []
    if isinstance(obj, dict):
        kind, keys, values = "dict", list(obj), list(obj.values())
    elif isinstance(obj, list | tuple | collections.deque):
        kind = next(c.__name__ for c in (list, tuple, collections.deque) if isinstance(obj, c))
        values = list(obj)
    elif result and isinstance(obj, set | frozenset):
        if leak(obj):
            return None  # what a run puts in may be equal where the capture's is not
        kind, values = "set", list(obj)
    elif result and dataclasses.is_dataclass(obj) and not isinstance(obj, type) and leak(obj):
        kind, values = "dataclass", []
    else:
        return None
    form = Form(kind, obj, keys)
    try:
        form.build([*values, *form.attributes.values()])
    except Exception:
        return None  # a class of its own making: it is taken as a whole
    # The text of a key from the capture would be an error of its own.
    text = _label if result else lambda k: f"[{k!r}]"
    labels = [text(k) for k in keys] if kind == "dict" else [f"[{i}]" for i in range(len(values))]
    labels += [f".{name}" for name in form.attributes]
    tag = f"{kind}@{id(type(obj)):x}:{form.extra!r}:{','.join(labels)}"
    return form, tag, labels, [*values, *form.attributes.values()]


def leak(obj: Any) -> str | None:
    """What `obj` holds that must not leave a capture, in words; None where it holds nothing of the kind."""
    seen: set[int] = set()
    stack = [obj]
    while stack and len(seen) < _MOST:
        one = stack.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor) and one.is_fake:
            return "a tensor without data"
        if isinstance(one, _CAPTURED):
            return f"a {type(one).__name__}"
        if hasattr(type(one), "__next__"):
            return "an iterator"
        stack += _held(one)
    return None


def _held(obj: Any) -> list[Any]:
    """The objects that one refers to, modules and classes left out."""
    if isinstance(obj, _ATOMS):
        return []
    if isinstance(obj, types.FunctionType):
        cells = [c for c in obj.__closure__ or () if _is_filled(c)]
        kwdefaults = obj.__kwdefaults__ or {}
        return [*(c.cell_contents for c in cells), *(obj.__defaults__ or ()), *kwdefaults.values()]
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.ndarray):
        return [obj.tolist()] if obj.dtype.hasobject else []  # an array does not tell the collector
    return [one for one in gc.get_referents(obj) if not isinstance(one, type | types.ModuleType)]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


class Watch:
    """Remembers what containers and objects hold, by identity, to tell afterwards whether a function wrote to them."""

    def __init__(self, roots: list[tuple[str, Any]]) -> None:
        self._seen: dict[int, tuple[str, Any, Any]] = {}
        stack = list(roots)
        while stack and len(self._seen) < _MOST:
            name, obj = stack.pop()
            if id(obj) in self._seen or isinstance(obj, (*_ATOMS, types.FunctionType)):
                continue
            held = _contents(obj)
            if held is not None:
                self._seen[id(obj)] = (name, obj, held)
                stack += [(f"{name}{label}", one) for label, one in held]

    def changed(self) -> str | None:
        """The first thing that holds something else than it did, put back as it was; None where nothing does."""
        found = None
        for name, obj, held in self._seen.values():
            now = _contents(obj) or []
            if len(now) == len(held) and all(
                a[0] == b[0] and a[1] is b[1] for a, b in zip(now, held, strict=True)
            ):
                continue
            ours = _made_lazily(obj, held, now)
            if not ours:
                _restore(obj, held)
                found = found or name
        return found


def _contents(obj: Any) -> list[tuple[Any, Any]] | None:
    """Labels and items of a container, or attributes of an object; None for one that has neither."""
    if isinstance(obj, dict):
        return [(_label(k), v) for k, v in obj.items()] + [(_label(k), k) for k in obj]
    if isinstance(obj, list | tuple | collections.deque):
        return [(_label(i), v) for i, v in enumerate(obj)]
    if isinstance(obj, set | frozenset):
        return [("", v) for v in sorted(obj, key=id)]
    attributes = getattr(obj, "__dict__", None)
    return [(f".{k}", v) for k, v in attributes.items()] if isinstance(attributes, dict) else None


def _label(key: Any) -> str:
    return f"[{key!r}]" if isinstance(key, str | int) else f"[<{type(key).__name__}>]"


def _made_lazily(obj: Any, held: list[tuple[Any, Any]], now: list[tuple[Any, Any]]) -> bool:
    """Whether only cached properties were added, with nothing of the capture in them."""
    if isinstance(obj, dict | list | tuple | collections.deque | set | frozenset):
        return False
    before = dict(held)
    added = [(k, v) for k, v in now if k not in before]
    kept = [(k, v) for k, v in now if k in before]
    return (
        len(kept) == len(held)
        and all(before[k] is v for k, v in kept)
        and all(
            isinstance(getattr(type(obj), k[1:], None), functools.cached_property) and not leak(v)
            for k, v in added
        )
    )


def _restore(obj: Any, held: list[tuple[Any, Any]]) -> None:
    values = [v for _, v in held]
    if isinstance(obj, dict):
        n = len(values) // 2
        obj.clear()
        obj.update(zip(values[n:], values[:n], strict=True))
    elif isinstance(obj, list):
        obj[:] = values
    elif isinstance(obj, collections.deque | set):
        obj.clear()
        (obj.extend if isinstance(obj, collections.deque) else obj.update)(values)
    elif not isinstance(obj, tuple | frozenset):
        obj.__dict__.clear()
        obj.__dict__.update({name[1:]: value for (name, _), value in zip(held, values, strict=True)})
