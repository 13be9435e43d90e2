"""How the operands of one kernel lie in memory.

Lives here: the two layouts and the int64 arguments each one adds. Not here: the loops (`kernel`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flat:
    """All operands contiguous and of one shape, except the scalars, which have one element.

    Kernel: `(p_in..., p_out..., lo, hi)` over the range of elements.
    """

    scalar_inputs: tuple[bool, ...]

    @property
    def inputs(self) -> int:
        return len(self.scalar_inputs)

    @property
    def ints(self) -> int:
        return 2

    @property
    def text(self) -> str:
        return "flat " + "".join("s" if scalar else "v" for scalar in self.scalar_inputs)


@dataclass(frozen=True)
class Strided:
    """Strided inputs, contiguous outputs; `inner` fixes each innermost stride to 0, 1 or neither.

    Kernel: `(p_in..., p_out..., lo, hi, size_1..size_{n-1}, n strides of each input)` over a range
    of the outermost dimension; strides count elements and may be 0 or negative.
    """

    ndim: int
    inner: tuple[int | None, ...]

    @property
    def inputs(self) -> int:
        return len(self.inner)

    @property
    def ints(self) -> int:
        return 2 + self.ndim - 1 + self.ndim * self.inputs

    @property
    def text(self) -> str:
        return f"strided {self.ndim} " + "".join("*" if s is None else str(s) for s in self.inner)


Layout = Flat | Strided


def parse(layout: dict[str, Any], inputs: int) -> Layout:
    """The layout of a program with that many inputs; ValueError when it does not fit."""
    kind = layout["kind"]
    if kind == "flat":
        parsed: Layout = Flat(tuple(bool(scalar) for scalar in layout["scalar_inputs"]))
    elif kind == "strided":
        parsed = Strided(int(layout["ndim"]), tuple(layout["inner"]))
        if parsed.ndim < 1 or any(stride not in (0, 1, None) for stride in parsed.inner):
            raise ValueError(f"strided layout wants ndim >= 1 and inner strides 0, 1 or None, got {layout}")
    else:
        raise ValueError(f"layout kind is 'flat' or 'strided', got {kind!r}")
    if parsed.inputs != inputs:
        raise ValueError(f"layout describes {parsed.inputs} inputs, the program has {inputs}")
    return parsed
