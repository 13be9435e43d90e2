"""`tensorplay.trace()`: which kernel ran for every call of a block, and which were passed over and why.

Lives here: the context manager and the list of events. Not here: the events themselves (`outcome`) and their recording,
which costs nothing while no block is open.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorplay import _native, outcome
from tensorplay._native import Entries
from tensorplay.errors import RegistrationError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, overload

    from tensorplay.outcome import CallEvent
else:
    from tensorplay._later import hints, overload

    (Iterator,), (Any,) = hints("collections.abc", "Iterator"), hints("typing", "Any")
    (CallEvent,) = hints("tensorplay.outcome", "CallEvent")

__all__ = ["Events", "trace"]

_HEADER = ("op", "key", "phase", "executor", "kernel", "shapes", "dtypes", "host us", "passed over")


class Events(Sequence["CallEvent"]):
    """The calls seen so far, in order; prints as a table."""

    def __init__(self, sink: _native.TraceSink) -> None:
        self._sink = sink

    @overload
    def __getitem__(self, index: int) -> CallEvent: ...
    @overload
    def __getitem__(self, index: slice) -> list[CallEvent]: ...
    def __getitem__(self, index: int | slice) -> CallEvent | list[CallEvent]:
        return self._sink.events()[index]

    def __len__(self) -> int:
        return len(self._sink)

    def __iter__(self) -> Iterator[CallEvent]:
        return iter(self._sink.events())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Events, list, tuple)):
            return list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def of(self, op: str) -> list[CallEvent]:
        """Events of one op, by `ns::name` or `ns::name.overload`."""
        return [e for e in self if e.op in (op, f"{op}.default") or e.op.rsplit(".", 1)[0] == op]

    @property
    def executors(self) -> tuple[str, ...]:
        """The executor of each call, in order."""
        return tuple(e.marker.executor for e in self)

    def to_dict(self) -> list[dict[str, Any]]:
        """A JSON-safe list of all events."""
        return [e.to_dict() for e in self]

    def __repr__(self) -> str:
        return outcome.render_table([_row(e) for e in self], _HEADER) if len(self) else "no calls"

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{escape(cell)}</th>" for cell in _HEADER)
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in _row(e)) for e in self)
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _row(event: CallEvent) -> tuple[str, ...]:
    return (
        event.op,
        event.key,
        event.phase,
        event.marker.executor,
        event.marker.kernel,
        " ".join(map(str, event.shapes)) or "-",
        " ".join(event.dtypes) or "-",
        f"{event.host_seconds * 1e6:.1f}",
        "; ".join(f"{kernel}: {reason}" for kernel, reason in event.rejected) or "-",
    )


class trace:
    """Collects the calls of this thread: `with tensorplay.trace() as events: ...`."""

    def __init__(self) -> None:
        self._entries = Entries("trace", RegistrationError, "TP1337")

    def __enter__(self) -> Events:
        sink = _native.TraceSink()
        sink.start()
        self._entries.push(sink)
        return Events(sink)

    def __exit__(self, *_: object) -> None:
        self._entries.pop().stop()

    def __repr__(self) -> str:
        return f"<trace, entered {len(self._entries)} deep>" if len(self._entries) else "trace()"


def __dir__() -> list[str]:
    return sorted(__all__)
