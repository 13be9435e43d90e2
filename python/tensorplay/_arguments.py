"""Arguments of the functions that are written in Python, held to what they take before anything happens.

Each check returns the value, or raises ArgumentError naming function, argument and what was wanted. Arguments of ops are
held to their schemas, those of the extension's functions in the extension; nothing of that is here.
"""

from __future__ import annotations

import functools
import operator

from tensorplay._native import Tensor
from tensorplay.errors import ArgumentError, InvalidValueError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "boolean",
    "counted",
    "function",
    "instance",
    "integer",
    "items",
    "keywords",
    "nearest",
    "string",
    "tensor",
    "tensors",
    "tolerance",
]


def counted(n: int, noun: str) -> str:
    """A number with its noun: "1 element", "2 elements"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of the names that is meant by a misspelt one, if any is close."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), 1, cutoff)), None)


def _wrong(owner: str, name: str, wanted: str, value: object, code: str = "TP1002") -> ArgumentError:
    return ArgumentError(
        f"{owner}: argument {name!r} must be {wanted}, got {type(value).__name__}", code=code
    )


def instance(owner: str, name: str, value: Any, kinds: Any, wanted: str) -> Any:
    """`value`, which is of one of `kinds`."""
    if not isinstance(value, kinds):
        raise _wrong(owner, name, wanted, value)
    return value


def string(owner: str, name: str, value: Any, wanted: str = "str") -> str:
    """Text: a string that UTF-8 can hold."""
    if not isinstance(value, str):
        raise _wrong(owner, name, wanted, value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ArgumentError(
                f"{owner}: argument {name!r} is no text: {value!r} holds half a surrogate pair", code="TP1002"
            ) from None
    return value


def boolean(owner: str, name: str, value: Any) -> bool:
    """True or False, NumPy's too."""
    kind = type(value)
    if (
        value is not True
        and value is not False
        and not (kind.__module__ == "numpy" and kind.__name__[:4] == "bool")
    ):
        raise _wrong(owner, name, "True or False", value)
    return bool(value)


def integer(owner: str, name: str, value: Any) -> int:
    """An int, or what stands for one (`__index__`)."""
    if isinstance(value, int):
        return value
    if not hasattr(type(value), "__index__") or isinstance(value, Tensor):
        raise _wrong(owner, name, "int", value)
    return operator.index(value)


def tolerance(owner: str, name: str, value: Any, *, positive: bool = False) -> float:
    """A number that is not negative (or, with `positive`, above 0), and no NaN; infinity allows everything."""
    if isinstance(value, (Tensor, str)) or not hasattr(type(value), "__float__"):
        raise _wrong(owner, name, "a number", value)
    number = float(value)
    if not (number > 0 if positive else number >= 0):
        wanted = "above 0" if positive else "0 or more"
        raise InvalidValueError(f"{owner}: argument {name!r} must be {wanted}, got {value!r}", code="TP1048")
    return number


def tensor(owner: str, name: str, value: Any) -> Tensor:
    """A Tensor."""
    if not isinstance(value, Tensor):
        raise _wrong(owner, name, "Tensor", value)
    return value


def function(owner: str, name: str, value: Any) -> Callable[..., Any]:
    """Something that can be called."""
    if not callable(value):
        raise _wrong(owner, name, "a function", value, code="TP4106")
    found: Callable[..., Any] = value
    return found


def items(
    owner: str, name: str, value: Any, wanted: str = "a list or tuple", code: str = "TP1002"
) -> list[Any]:
    """What a list, a tuple or another iterable that is no text and no tensor holds."""
    if isinstance(value, (str, bytes, dict, Tensor)) or not hasattr(value, "__iter__"):
        raise _wrong(owner, name, wanted, value, code)
    return list(value)


def tensors(owner: str, name: str, value: Any, *, optional: bool = False) -> list[Any]:
    """One Tensor or several, as a list; with `optional` some of them may be None."""
    if isinstance(value, Tensor):
        return [value]
    found = items(owner, name, value, "a Tensor or a list of Tensors", "TP3305")
    for i, one in enumerate(found):
        if not (isinstance(one, Tensor) or (optional and one is None)):
            raise _wrong(owner, f"{name}[{i}]", "Tensor or None" if optional else "Tensor", one, "TP3305")
    return found


def keywords(function: F) -> F:
    """The same function, whose refusal of a keyword that it does not know has a code and names the close match."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # Without a frame of the function it did not run: Python could not bind the arguments.
            if not kwargs or error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            told = _unknown_keyword(function, kwargs)
            if told is None:
                raise
        raise told

    return call  # type: ignore[return-value]


# What stands for a keyword that other libraries have.
_INSTEAD = {
    ("compile", "disable"): "to run the function as it is, call it instead of what `compile` makes of it",
    ("compile", "mode"): "what a backend can be told is in `options`",
}


def _unknown_keyword(function: Callable[..., Any], given: dict[str, Any]) -> ArgumentError | None:
    """The error for the first keyword that the function does not have."""
    import inspect

    parameters = inspect.signature(function).parameters
    positional = inspect.Parameter.POSITIONAL_ONLY
    known = [name for name, parameter in parameters.items() if parameter.kind is not positional]
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return None
    near = nearest(unknown, known)
    instead = _INSTEAD.get((function.__name__, unknown))
    return ArgumentError(
        f"{function.__name__}: unknown keyword argument {unknown!r}"
        + (f"; did you mean {near!r}?" if near else ""),
        code="TP1006",
        notes=(f"the keywords are {', '.join(known)}", *((instead,) if instead else ())),
    )
