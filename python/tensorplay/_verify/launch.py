"""Which code really ran under one call: Python frames and modules seen while it lasted, against what the marker says."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from tensorplay._verify.subject import Kernel
from tensorplay.outcome import CodegenMarker

__all__ = ["brief", "contradiction", "python_calls", "seen_modules"]

# Executors whose launches go through a Python package: a marker of one without a trace of the package is no proof.
PACKAGES = {
    "triton": ("triton",),
    "triton-interpreter": ("triton",),
    "tvm": ("tvm", "tvm_ffi"),
}
REACH = 100


@contextmanager
def profiled(look: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Shows calls and C calls of this thread to `look`, unless a profiler that cannot be put back is at work."""
    before = sys.getprofile()
    if before is not None and not callable(before):
        yield
        return
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def python_calls(codes: set[CodeType]) -> Iterator[Counter[str]]:
    """Counts calls of these code objects on this thread while it lasts."""
    counts: Counter[str] = Counter()

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in codes:
            counts[frame.f_code.co_qualname] += 1

    with profiled(look):
        yield counts


@contextmanager
def seen_modules() -> Iterator[set[str]]:
    """Top-level packages whose Python or C functions were called on this thread while it lasted."""
    found: set[str] = set()

    def look(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            found.add(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        elif event == "c_call":
            found.add(str(getattr(function, "__module__", None) or "").partition(".")[0])
            found.add(type(getattr(function, "__self__", None)).__module__.partition(".")[0])

    with profiled(look):
        yield found


def contradiction(kernel: Kernel, executor: str, seen: set[str]) -> str | None:
    """Why a marker with `executor` cannot be true of `kernel`, given the packages seen while it ran; else None."""
    function = kernel.function
    if function is None:  # compiled into the extension
        return (
            None
            if executor == "native"
            else f"the marker says '{executor}', the kernel is built in ('native')"
        )
    if executor == "python":
        return None
    place = f"the Python function {_name(function)} ({kernel.location})"
    if executor == "native":
        return f"the marker says 'native', but what ran is {place}: 'native' never stands for a Python body"
    packages = PACKAGES.get(executor)
    if packages is None or seen & set(packages) or _holds(function, packages):
        return None
    return f"the marker says '{executor}', but what ran is {place}, and nothing of {' or '.join(packages)} was called in it"


def brief(marker: CodegenMarker) -> str:
    """The marker on one line of a report: a target description can fill a page. The proof is whole."""
    kernel = marker.kernel if len(marker.kernel) <= 60 else f"{marker.kernel[:57]}..."
    proof = f" [{marker.proof}]" if marker.proof else ""
    return f"{marker.executor}:{kernel} on {marker.device}{proof}"


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _holds(function: Any, packages: tuple[str, ...]) -> bool:
    """Whether an object of one of the packages is the function or is called through its closure or globals.

    Calls of compiled function objects leave no event in the interpreter, so that holding one has to do.
    """
    pending: list[Any] = [function]
    seen: set[int] = set()
    while pending and len(seen) < REACH:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value).__module__.partition(".")[0] in packages:
            return True
        code = getattr(value, "__code__", None)
        if code is not None:
            pending.extend(_referred(value, code))
        pending.extend(
            v for v in (getattr(value, "func", None), getattr(value, "__wrapped__", None)) if v is not None
        )
    return False


def _referred(function: Any, code: Any) -> list[Any]:
    found = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a cell that nothing was put into yet
            continue
    return [value for value in found if not isinstance(value, type(sys))]
