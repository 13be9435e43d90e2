"""Submodules that are executed when they are first looked into, each standing in the package's namespace from the start.

Not a `__getattr__` of the package: CPython reads no name of a module with one by its quick way, which costs every
`tensorplay.mul(...)` of a user's function more than the call. Not `importlib.util.LazyLoader`: in Python 3.11 it lets a second
thread see a module that is half executed.
"""

import sys
from _thread import RLock
from importlib.util import find_spec, module_from_spec
from os import register_at_fork
from types import ModuleType

__all__ = ["add", "overload"]

_read = ModuleType.__getattribute__
_locks: dict[str, RLock] = {}
"""By name, until the module is executed. Modules wait for those that they import, which makes no circle."""
_executing: set[str] = set()


class _Later(ModuleType):
    """A module that is not executed yet; its class is another one afterwards."""

    def __getattribute__(self, name: str) -> object:
        if name != "__class__":
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
