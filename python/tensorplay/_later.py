"""Submodules that are executed when they are first looked into, each standing in the package's namespace from the start,
and names of annotations that are looked up when somebody asks for the types.

Not a `__getattr__` of the package: CPython reads no name of a module with one by its quick way, which costs every
`tensorplay.mul(...)` of a user's function more than the call. Not `importlib.util.LazyLoader`: in Python 3.11 it lets a second
thread see a module that is half executed.
"""

from __future__ import annotations

import sys
from _thread import RLock
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from os import register_at_fork
from types import ModuleType

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["add", "any_function", "hints", "overload"]

_read = ModuleType.__getattribute__
_locks: dict[str, RLock] = {}
"""By name, until the module is executed. Modules wait for those that they import, which makes no circle."""
_executing: set[str] = set()


class _Later(ModuleType):
    """A module that is not executed yet; its class is another one afterwards."""

    # `python -m` warns of a module that is imported already and is no package. This one is not imported yet.
    __path__: list[str] = []  # noqa: RUF012 (typing has ClassVar)

    def __getattribute__(self, name: str) -> object:
        if name != "__class__" and name != "__path__":
            _execute(self)
        return _read(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name != "__class__":
            _execute(self)
        ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        _execute(self)
        ModuleType.__delattr__(self, name)

    def __call__(self, *args: object, **kwargs: object) -> object:
        # Some modules can be called once they are executed; of the others this is the usual TypeError.
        _execute(self)
        return self(*args, **kwargs)


def _execute(module: ModuleType) -> None:
    """Once for all threads; those that come meanwhile wait. A module that raises is executed again the next time."""
    spec = _read(module, "__spec__")
    lock = _locks.get(spec.name)
    if lock is None:
        return
    with lock:
        if spec.name in _executing or spec.name not in _locks:
            return
        _executing.add(spec.name)
        try:
            spec.loader.exec_module(module)
        finally:
            _executing.discard(spec.name)
        if issubclass(type(module), _Later):
            module.__class__ = ModuleType
        del _locks[spec.name]


def add(name: str) -> ModuleType:
    """The submodule of this full name, not executed; in `sys.modules` as well, so that importing it finds this one."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = module_from_spec(spec)
    _locks[name] = RLock()
    sys.modules[name] = module
    module.__class__ = _Later
    return module


def _fresh_locks() -> None:
    """A fork may happen while another thread executes a module: the child executes it anew."""
    _executing.clear()
    for name in _locks:
        _locks[name] = RLock()


register_at_fork(after_in_child=_fresh_locks)


def overload(declaration: object) -> object:
    """Stands for `typing.overload`, whose module costs more than all of the package."""
    return declaration


class _Hint:
    """Stands for a type in annotations, which are strings that nobody reads but `typing.get_type_hints`.

    That asks of what it finds whether it is a `typing.ForwardRef`, and evaluates it further if so.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._made: Any = None

    def _meant(self) -> Any:
        if self._make is not None:
            self._made, self._make = self._make(), None
        return self._made

    @property  # type: ignore[misc]  # that of `object` can be set
    def __class__(self) -> Any:
        typing = sys.modules.get("typing")
        return _Hint if typing is None else typing.ForwardRef

    def _evaluate(self, *_: Any, **__: Any) -> Any:
        return self._meant()

    def __getitem__(self, key: Any) -> Any:
        return self._meant()[_meant(key)]

    def __or__(self, other: Any) -> Any:
        return self._meant() | _meant(other)

    def __ror__(self, other: Any) -> Any:
        return _meant(other) | self._meant()

    def __repr__(self) -> str:
        return repr(self._meant())


def _meant(found: Any) -> Any:
    """The type itself, and those in the list or tuple that a type is subscripted with."""
    if type(found) is _Hint:
        return found._meant()
    return type(found)(map(_meant, found)) if type(found) in (list, tuple) else found


def any_function(name: str) -> Any:
    """A stand-in for the type variable of that name, bound to functions."""

    def make() -> Any:
        import collections.abc
        import typing

        return typing.TypeVar(name, bound=collections.abc.Callable[..., typing.Any])

    return _Hint(make)


def hints(module: str, *names: str) -> list[Any]:
    """A stand-in for each of these names of `module`, whose import costs more than annotations are worth."""

    def named(name: str) -> _Hint:
        return _Hint(lambda: getattr(import_module(module), name))

    return list(map(named, names))
