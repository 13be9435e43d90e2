"""What ran, and why not something else: the immutable objects people inspect.

Eager and compiled calls report in this one vocabulary. All are frozen dataclasses with a readable ``repr``, equality
and a JSON-safe ``to_dict()``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from typing import Any

__all__ = [
    "CallEvent",
    "Capability",
    "CodegenMarker",
    "Explanation",
    "FallbackReason",
    "Provenance",
    "RegionRun",
    "RunReport",
    "TensorSpec",
    "how_to_install",
    "how_to_upgrade",
    "render_table",
]

# The name on package indexes. The module's own name stands for somebody else's package there.
DISTRIBUTION = "tensorplay-dispatch"


def how_to_install(extra: str) -> str:
    """The command that installs this distribution with one of its extras."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def how_to_upgrade() -> str:
    """The command that installs the newest release of this distribution."""
    return f"pip install --upgrade {DISTRIBUTION}"


def render_table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Left-aligned columns under a header."""
    table = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join(lines)


def _jsonable(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


class Record:
    """``to_dict`` and ``_repr_html_`` for the dataclasses below."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe dict of all fields."""
        result: dict[str, Any] = _jsonable(self)
        return result

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@dataclass(frozen=True, slots=True)
class TensorSpec(Record):
    """Shape, dtype, strides (elements) and device of one value."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    device: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class CodegenMarker(Record):
    """Stamped by the code that ran.

    ``executor`` is an open set (``"native"``, ``"python"``, ``"triton"``, ``"tvm"``, ...); ``proof`` is a module or
    cubin hash or a kernel id.
    """

    executor: str
    kernel: str
    proof: str | None
    device: str

    def __str__(self) -> str:
        proof = f" [{self.proof}]" if self.proof else ""
        return f"{self.executor}:{self.kernel} on {self.device}{proof}"


@dataclass(frozen=True, slots=True)
class FallbackReason(Record):
    """Why the executor asked for did not run; ``str()`` is one line with the way out."""

    kind: str
    op: str | None
    message: str
    details: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Capability(Record):
    """Whether a backend or device can be used here, and why not."""

    name: str
    available: bool
    reason: str | None = None
    details: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.name}: available" if self.available else f"{self.name}: not available ({self.reason})"


@dataclass(frozen=True, slots=True)
class Provenance(Record):
    """Who registered a kernel: its name, place and executor, and the predicate it runs under."""

    name: str
    file: str
    line: int
    executor: str
    when: str | None = None

    def __str__(self) -> str:
        condition = f" when {self.when}" if self.when else ""
        return f"{self.name} ({self.executor}, {self.file}:{self.line}){condition}"


@dataclass(frozen=True, slots=True)
class CallEvent(Record):
    """One call seen by ``tensorplay.trace()``. Times are seconds."""

    op: str
    key: str
    phase: str
    marker: CodegenMarker
    rejected: list[tuple[str, FallbackReason]]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    host_seconds: float
    device_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RegionRun(Record):
    """One region of a compiled call; ``reason`` is set when the executor is not the one asked for."""

    index: int
    ops: tuple[str, ...]
    marker: CodegenMarker
    reason: FallbackReason | None = None

    def row(self, phase: str) -> tuple[str, ...]:
        """Cells for the report's table. Equal ops in a row are counted, and the reason does not name the only op again."""
        runs = [(op, len(list(group))) for op, group in groupby(self.ops)]
        ops = ", ".join(f"{op} x{count}" if count > 1 else op for op, count in runs)
        reason = "-"
        if self.reason is not None:
            only = f"{self.ops[0]}: " if len(self.ops) == 1 else ""
            reason = f"{self.reason.kind}: {self.reason.message.removeprefix(only)}"
        return (phase, str(self.index), self.marker.executor, ops, reason)


@dataclass(frozen=True, slots=True)
class RunReport(Record):
    """Which executor served each region of one compiled call, forward and backward. The text says each reason once."""

    forward: list[RegionRun]
    backward: list[RegionRun]
    graph: int

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = []
        first: dict[str, str] = {}
        for phase, runs in (("forward", self.forward), ("backward", self.backward)):
            for run in runs:
                *cells, reason = run.row(phase)
                place = f"{phase} {run.index}"
                if run.reason is not None and first.setdefault(reason, place) != place:
                    reason = f"as {first[reason]}"
                rows.append((*cells, reason))
        if not rows:
            return "no region ran: what is returned is given or constant"
        return render_table(rows, ("phase", "region", "executor", "ops", "reason"))

    @property
    def executors(self) -> tuple[str, ...]:
        """Executors that ran, in order, forward before backward."""
        return tuple(run.marker.executor for run in [*self.forward, *self.backward])


@dataclass(frozen=True, slots=True)
class Explanation(Record):
    """What a compiled function captured and planned."""

    graphs: list[Any]
    guards: list[str]
    breaks: list[str]
    removed: list[str]
    regions: list[str]
    memory: list[str]
    recompiles: list[str]

    def __str__(self) -> str:
        sections: list[tuple[str, Iterable[Any]]] = [
            ("graphs", self.graphs),
            ("guards", self.guards),
            ("breaks", self.breaks),
            ("removed", self.removed),
            ("regions", self.regions),
            ("memory", self.memory),
            ("recompiles", self.recompiles),
        ]
        parts = []
        for title, items in sections:
            lines = [f"  {line}" for item in items for line in str(item).splitlines()]
            parts.append("\n".join([f"{title}:", *(lines or ["  none"])]))
        return "\n".join(parts)


def __dir__() -> list[str]:
    return sorted(__all__)
