"""What a lowering hands back: a compiled kernel (`Artifact`) or the stage that failed.

Lives here: the two result types. Not here: how either comes about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class LoweringError(Exception):
    """A refusal or failure on the way from program to machine code."""

    def __init__(self, kind: str, stage: str, message: str, details: dict[str, Any] | None = None):
        super().__init__(f"{stage}: {message}")
        self.kind = kind
        self.stage = stage
        self.message = message
        self.details = details or {}


@dataclass(frozen=True)
class ArgSpec:
    """Counts of the kernel's arguments: `inputs + outputs` pointers, `flags` more, then `ints` int64 values."""

    inputs: int
    outputs: int
    ints: int
    flags: int = 0

    @property
    def total(self) -> int:
        return self.inputs + self.outputs + self.flags + self.ints


@dataclass(frozen=True)
class Artifact:
    """A kernel callable as `fn(handle, args, n, ret) -> int` with 16-byte tagged arguments.

    `address` and `handle` are valid while `owner` is alive. Argument counts and types are not
    checked by the kernel: the caller answers for `argspec`, for element-aligned pointers and for
    `0 <= lo <= hi`. An output may be an input at the same address; other overlap is undefined.
    """

    address: int
    handle: int
    hash: str
    target: str
    seconds: float
    argspec: ArgSpec
    proof: str
    owner: Any = field(repr=False)
    cached: bool = False

    @property
    def guarded(self) -> bool:
        """Whether the kernel tells of divisions by zero through a pointer before `lo`."""
        return self.argspec.flags > 0
