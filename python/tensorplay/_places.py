"""Where definitions come from: the file, line and name of a function or of the caller.

Lives here: places, their display, and the rule for "the same place", which lets a re-run cell replace its op while a
second definition elsewhere is an error. Not here: what is done about it (`_definitions`).
"""

from __future__ import annotations

import functools
import os
import sys
from types import CodeType

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from re import Match
    from types import FrameType
    from typing import Any

__all__ = ["Place", "caller", "inwards", "place_of", "printable", "user_frames"]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep  # noqa: PTH100, PTH120 (pathlib costs an import)
_WRAPPERS = 1000  # around one function: more are an object that answers every attribute
_CELL = r"<ipython-input-(\d+)-|[/\\]ipykernel_\d+[/\\]\d+\.py$"


def _cell(file: str) -> Match[str] | None:
    import re

    return re.search(_CELL, file)


def _cell_number(file: str) -> int | None:
    """The number of the cell that IPython compiled under that name, where it still knows."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return numbers.get(file) if isinstance(numbers, dict) else None


def printable(text: str) -> str:
    """`text` with escapes for what is no character, such as the bytes of a path that is not UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class Place:
    """`modified` is the file's time stamp when the place was recorded: it tells an edited file from a second definition."""

    __slots__ = ("file", "line", "modified", "qualname")

    def __init__(self, file: str, line: int, qualname: str, modified: int | None = None) -> None:
        self.file, self.line, self.qualname, self.modified = file, line, qualname, modified

    def __str__(self) -> str:
        # A bare number behind "cell" would be read as the number of the cell.
        return f"{self.shown}:{self.line}" if _cell(self.file) is None else f"{self.shown}, line {self.line}"

    @property
    def shown(self) -> str:
        """The file as people know it: a notebook cell has no file, and is known by the number in front of it."""
        cell = _cell(self.file)
        if cell is None:
            return printable(self.file)
        number = cell.group(1) or _cell_number(self.file)
        return f"cell In[{number}]" if number else "<notebook cell>"

    def provenance(self, name: str, executor: str) -> tuple[str, str, int, str]:
        """The tuple that the registry keeps."""
        return (name, self.shown, self.line, executor)

    def same_as(self, other: Place) -> bool:
        """Whether a definition here takes the place of the one at `other`: a re-run cell, a reload, a second module name."""
        if self.qualname != other.qualname:
            return False
        if _cell(self.file) and _cell(other.file):
            return True
        if self.file != other.file:
            return False
        return self.line == other.line or self.modified != other.modified


def inwards(fn: Any) -> Iterator[Any]:
    """`fn`, then what it wraps: through partials, wrappers and methods. It ends where an object wraps itself, too."""
    for _ in range(_WRAPPERS):
        yield fn
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif (inner := getattr(fn, "__wrapped__", None)) is not None or (
            inner := getattr(fn, "__func__", None)
        ) is not None:
            fn = inner
        else:
            return


def _code_of(fn: Any) -> tuple[CodeType | None, str]:
    """The author's code object and its name, through partials, wrappers, methods and callable objects."""
    name: str | None = None
    *_, fn = inwards(fn)
    code = getattr(fn, "__code__", None)
    if not isinstance(code, CodeType) and not isinstance(fn, type):
        name = type(fn).__qualname__
        code = getattr(type(fn).__call__, "__code__", None)
    return (code if isinstance(code, CodeType) else None), name or str(
        getattr(fn, "__qualname__", type(fn).__qualname__)
    )


def place_of(fn: Callable[..., Any]) -> Place:
    """Where `fn` was written; where the caller is, for functions without source."""
    code, qualname = _code_of(fn)
    if code is None:
        here = caller()
        return Place(here.file, here.line, qualname, here.modified)
    return _place(code.co_filename, code.co_firstlineno, qualname)


def caller() -> Place:
    """The innermost line that is not of this package."""
    for frame in user_frames():
        return _place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
    return Place("<unknown>", 0, "<unknown>")


def _place(file: str, line: int, qualname: str) -> Place:
    if file.startswith("<"):
        return Place(file, line, qualname)
    file = os.path.abspath(file)  # noqa: PTH100
    try:
        modified: int | None = os.stat(file).st_mtime_ns  # noqa: PTH116
    except (OSError, ValueError):  # no such file, or a name that no file has
        modified = None
    return Place(file, line, qualname, modified)


def user_frames() -> Iterator[FrameType]:
    """Frames of callers outside of this package, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            yield frame
        frame = frame.f_back


def stack_level() -> int:
    """The `stacklevel` with which a warning raised by the calling function points at the user's line."""
    level, frame = 1, sys._getframe().f_back
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level
