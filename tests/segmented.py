"""What tests of ``fullgraph=False`` share: a function and its segmented form beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorplay as tp
from tensorplay import Tensor

__all__ = [
    "Function",
    "agrees",
    "broken_at",
    "line_of",
    "ops_of",
    "outcome",
    "plain",
    "read_in_the_middle",
    "vector",
]

Function = Callable[..., Any]


def vector(*values: float) -> Tensor:
    return tp.tensor(list(values or (1.0, 2.0, 3.0)))


def plain(value: Any) -> Any:
    """A result without tensors: values, dtype, and whether a gradient is required."""
    if isinstance(value, Tensor):
        return value.detach().tolist(), value.dtype, value.requires_grad
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def outcome(fn: Function, *args: Any) -> Any:
    try:
        return plain(fn(*args))
    except Exception as error:
        return type(error), str(error)


def agrees(fn: Function, make: Callable[[], Any] = vector, calls: int = 3, **options: Any) -> Any:
    """`fn` in segments does what it does by itself, the first time and later; the compiled function."""
    compiled = tp.compile(fn, fullgraph=False, **options)
    for _ in range(calls):
        assert outcome(compiled, make()) == outcome(fn, make())
    return compiled


def broken_at(compiled: Any, code: str) -> list[int]:
    """The lines of the breaks with that code, but for the one by which the whole was refused."""
    own = [b for b in compiled.report.breaks if b.startswith(f"[{code}]") and "no one graph" not in b]
    return [int(b.rpartition(":")[2]) for b in own]


def line_of(fn: Function, offset: int) -> int:
    return fn.__code__.co_firstlineno + offset


def ops_of(run: Any) -> list[tuple[str, ...]]:
    return [region.ops for region in run]


def read_in_the_middle(x: Tensor) -> Tensor:
    y = tp.tanh(x * 2.0) + 1.0
    if y.sum().item() > 0.0:
        return tp.exp(y) * 0.5 - 1.0
    return y
