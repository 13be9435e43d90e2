"""What this machine can run: the backends' own answers, and the tools that some tests call.

Nothing here decides policy; `conftest.py` turns an absent capability into a visible skip or a failure.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Found:
    """One capability as a test run sees it; `reason` says why it is absent.

    `broken` means that nothing could be asked: that is never an excuse to skip.
    """

    available: bool
    reason: str | None = None
    broken: bool = False


def _program(name: str) -> Callable[[], Found]:
    def probe() -> Found:
        if shutil.which(name):
            return Found(True)
        return Found(False, f"no program {name!r} on PATH")

    return probe


def _module(name: str) -> Callable[[], Found]:
    def probe() -> Found:
        if importlib.util.find_spec(name) is not None:
            return Found(True)
        return Found(False, f"no module {name!r} in this environment")

    return probe


def _memory(gib: int) -> Callable[[], Found]:
    def probe() -> Found:
        try:
            text = Path("/proc/meminfo").read_text()
        except OSError:
            return Found(False, "the system does not say how much memory there is")
        free = int(re.search(r"MemAvailable:\s*(\d+)", text)[1]) >> 20
        return (
            Found(True) if free >= gib else Found(False, f"{free} GiB of memory are free, {gib} are needed")
        )

    return probe


# Capabilities of the machine. Those of the library (native, tvm, triton, cuda, ...) come from the library.
TOOLS: dict[str, Callable[[], Found]] = {
    "cargo": _program("cargo"),
    "memory": _memory(12),
    "notebook": _module("nbclient"),
    "sklearn": _module("sklearn"),
    "valgrind": _program("valgrind"),
}
LIBRARY = ("native", "python", "triton", "tvm", "cuda")


def survey() -> dict[str, Found]:
    """Every capability by name. A library that does not import is an answer too, never an exception."""
    found = {name: probe() for name, probe in TOOLS.items()}
    try:
        from tensorplay import backends

        answers = backends.capabilities()
    except Exception as error:
        broken = Found(False, f"tensorplay does not import: {type(error).__name__}: {error}", broken=True)
        return found | dict.fromkeys(LIBRARY, broken)
    # Triton's tests compile and interpret; what launches needs "cuda" as well.
    usable = {
        name: answer.available or answer.details.get("compiles", False) for name, answer in answers.items()
    }
    return found | {name: Found(usable[name], answer.reason) for name, answer in answers.items()}
