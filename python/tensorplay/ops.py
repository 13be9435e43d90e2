"""`tensorplay.ops.<namespace>.<op>[.<overload>]`: every op, built-in or custom, by its qualified name.

Lives here: nothing but the look-up. A resolved name is kept as a plain attribute, so that the next use costs one
attribute read. Module attributes are namespaces of ops: names of this module's own begin with an underscore.
"""

import sys as _sys

from tensorplay import _native


class _Namespace:
    """The ops of one namespace."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> _native.CustomOpDef:
        found = None if name.startswith("__") else _native.get_op(f"{self.__name__}::{name}")
        if found is None:
            raise _missing(f"{self.__name__}::{name}")
        setattr(self, name, found)
        return found

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _space, (self.__name__,)

    def __dir__(self) -> list[str]:
        names = (name.split("::")[1].split(".")[0] for name in _native.list_ops(self.__name__))
        return sorted(set(names))

    def __repr__(self) -> str:
        return f"<ops of namespace '{self.__name__}'>"


def _missing(name: str) -> AttributeError:
    """The error for an op that is not defined; it tells of kernels that wait for it."""
    error = AttributeError(f"no operator '{name}' is defined")
    for note in _notes(name):
        error.add_note(note)
    return error


def _notes(_name: str, /) -> tuple[str, ...]:
    """Replaced by the layer that knows what waits for ops."""
    return ()


def _forget(name: str) -> None:
    """Drops the kept attribute of an op that is gone."""
    space, _, local = name.partition("::")
    found = globals().get(space)
    if isinstance(found, _Namespace):
        vars(found).pop(local.split(".")[0], None)


def _space(name: str) -> _Namespace:
    """The namespace of that name: what a pickle of it reads."""
    found: _Namespace = getattr(_sys.modules[__name__], name)
    return found


def __getattr__(name: str) -> _Namespace:
    if name.startswith("__") or not _native.list_ops(name):
        raise AttributeError(f"no operator is defined in a namespace '{name}'")
    space = _Namespace(name)
    setattr(_sys.modules[__name__], name, space)
    return space


def __dir__() -> list[str]:
    return sorted({name.split("::")[0] for name in _native.list_ops()})
