"""Axes that callers marked as dynamic, for the captures to come.

Lives here: the marks, by tensor object, for as long as it lives. Not here: what becomes of them (`tp-graph`, `sizing`).
"""

from __future__ import annotations

import weakref

from tensorplay import _arguments
from tensorplay._native import Tensor
from tensorplay.errors import IndexOutOfRangeError, InvalidValueError

__all__ = ["mark_dynamic", "marked"]

# Address of the object -> what removes the entry when it dies, and axis, least and greatest size of each mark.
marked: dict[int, tuple[weakref.ref[Tensor], list[tuple[int, int | None, int | None]]]] = {}


def mark_dynamic(tensor: Tensor, dim: int, *, min: int | None = None, max: int | None = None) -> None:
    """Capture compiled functions with the size of axis ``dim`` as a symbol when ``tensor`` is an argument.

    The entry then serves every size from 2 on, or from ``min`` to ``max``. Sizes 0 and 1 always have entries of their own.
    A mark says so before the first call; without one a second size does (``dynamic=None`` of ``compile``).

    Parameters
    ----------
    tensor
        The tensor that a compiled function will be called with.
    dim
        The axis; negative ones count from the end.
    min, max
        Bounds of the sizes to come, which the function may rely on.

    Raises
    ------
    CaptureError
        TP4040, by the call that captures: the function needs one size, or less than the range that was given. The error
        names the line.
    """
    _arguments.tensor("mark_dynamic", "tensor", tensor)
    dim = _arguments.integer("mark_dynamic", "dim", dim)
    if not -tensor.ndim <= dim < tensor.ndim:
        raise IndexOutOfRangeError(
            f"axis {dim} is out of range for {_arguments.counted(tensor.ndim, 'dimension')}", code="TP1104"
        )
    axis = dim % tensor.ndim
    low = None if min is None else _arguments.integer("mark_dynamic", "min", min)
    high = None if max is None else _arguments.integer("mark_dynamic", "max", max)
    size = tensor.shape[axis]
    if not (2 if low is None else low) <= size <= (size if high is None else high):
        raise InvalidValueError(
            f"mark_dynamic: axis {axis} has size {size}, which is not in the range of the mark",
            code="TP1170",
            notes=("mark a tensor with a usual size; sizes 0 and 1 always have entries of their own",),
        )
    key = id(tensor)
    known = marked.get(key)
    reference = known[0] if known else weakref.ref(tensor, lambda _: marked.pop(key, None))
    others = [mark for mark in known[1] if mark[0] != axis] if known else []
    marked[key] = (reference, [*others, (axis, low, high)])
