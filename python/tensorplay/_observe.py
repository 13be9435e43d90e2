"""What compiled functions did so far, counted and logged. Called when one captures, never by a call that finds an entry.

`TENSORPLAY_LOG=graph,guards,recompiles,fallback,executor` turns the loggers of these names (`tensorplay.graph`, ...) on
and gives them a handler where there is none. It changes what is logged and nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from tensorplay._arguments import nearest
from tensorplay._places import stack_level

__all__ = ["NAMES", "broke", "built", "configure", "counters", "eager", "ran", "shows_graphs"]

NAMES = ("graph", "guards", "recompiles", "fallback", "executor")
VARIABLE = "TENSORPLAY_LOG"

_loggers = {name: logging.getLogger(f"tensorplay.{name}") for name in NAMES}
_counts: Counter[str] = Counter()
_lock = threading.Lock()


def _fresh_lock() -> None:
    """A fork may happen while another thread counts; no thread of the child would give the lock back."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_fresh_lock)


def configure(wanted: str) -> None:
    """Turns on the loggers that `wanted` lists, with commas between; one warning for all names that are none."""
    given = [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in given if name not in NAMES]
    if unknown:
        meant = {name: nearest(name, NAMES) for name in unknown}
        hints = [f"{name!r}" + (f" (did you mean {near!r}?)" if near else "") for name, near in meant.items()]
        what = f"{VARIABLE}: there is no {', no '.join(hints)}; known are {', '.join(NAMES)}"
        warnings.warn(what, RuntimeWarning, stacklevel=stack_level())
    chosen = [_loggers[name] for name in given if name in NAMES]
    for logger in chosen:
        logger.setLevel(logging.DEBUG)
    parent = logging.getLogger("tensorplay")
    if chosen and not parent.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        parent.addHandler(handler)


def counters() -> dict[str, int]:
    """Counts of this process, over all compiled functions; names that were never counted are absent.

    `graphs`: captures that became an entry. `recompiles`: those behind the first of a function. `fallback.KIND`: regions
    that were not given to the backend asked for, by the kind of the reason. `eager.KIND`: calls that ran the function
    itself. `fallbacks`: both together. `breaks` and `break.CODE`: places where functions in segments broke off.
    """
    with _lock:
        return dict(sorted(_counts.items()))


def _count(*names: str) -> None:
    with _lock:
        _counts.update(names)


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__qualname__", None) or type(func).__qualname__


def shows_graphs() -> bool:
    """Whether `built` is to be told of graph and guards, whose texts take a while."""
    return any(_loggers[name].isEnabledFor(logging.INFO) for name in ("graph", "guards"))


def built(
    func: Callable[..., Any],
    number: int,
    missed: str | None,
    fallbacks: list[tuple[str, Any]],
    shown: tuple[Any, list[str]] | None,
) -> None:
    """Entry `number` of `func` was made; `missed` is the guard that no earlier entry held, `fallbacks` are lines of regions
    with their reasons, `shown` is its graph with its guards.
    """
    _count("graphs", *["recompiles"] * (number > 0))
    for _, reason in fallbacks:
        _count("fallbacks", f"fallback.{reason.kind}")
    name = _name(func)
    if number > 0:
        _loggers["recompiles"].info("%s is captured again, as graph %d: %s", name, number, missed)
    if shown is not None:
        graph, guards = shown
        _loggers["graph"].info("graph %d of %s\n%s", number, name, graph)
        _loggers["guards"].info("guards of graph %d of %s: %s", number, name, "; ".join(guards) or "none")
    for line, _ in fallbacks:
        _loggers["fallback"].info("graph %d of %s, %s", number, name, line)


def ran(func: Callable[..., Any], report: Any) -> None:
    """A new entry of `func` ran for the first time: `report` says who did."""
    if _loggers["executor"].isEnabledFor(logging.INFO):
        _loggers["executor"].info("the first run of graph %d of %s\n%s", report.graph, _name(func), report)


def broke(func: Callable[..., Any], code: str, text: str) -> None:
    """A call of `func` in segments broke off where none had before: `text` says why and where."""
    _count("breaks", f"break.{code}")
    _loggers["graph"].info("%s breaks off: %s", _name(func), text)


def eager(func: Callable[..., Any], reason: Any) -> None:
    """`func` itself is about to run."""
    _count("fallbacks", f"eager.{reason.kind}")
    _loggers["fallback"].info("%s itself runs: %s", _name(func), reason)


configure(os.environ.get(VARIABLE, ""))
