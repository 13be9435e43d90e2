"""The layout promise of an op, around its functions: what is declared contiguous arrives so.

Not here: how a layout is declared and checked (`_record.layouts`).
"""

from __future__ import annotations

import functools

from tensorplay import _native
from tensorplay.errors import ArgumentError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["contiguous_gradients", "with_layout"]


def with_layout(
    fn: Callable[..., Any], schema: _native.Schema, layout: Mapping[str, str]
) -> Callable[..., Any]:
    """`fn` behind the op's layout promise: arguments declared contiguous arrive contiguous, or the call is refused."""
    wanted = {name for name, how in layout.items() if how == "contiguous"}
    if not wanted:
        return fn
    arguments = schema.arguments
    positions = [(i, a["name"], a["mutated"]) for i, a in enumerate(arguments) if a["name"] in wanted]
    written = {name: mutated for _, name, mutated in positions}

    @functools.wraps(fn)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        values = list(args)
        for i, name, mutated in positions:
            if i < len(values):
                values[i] = _contiguous(values[i], name, mutated, schema.name)
        for name in wanted & kwargs.keys():
            kwargs[name] = _contiguous(kwargs[name], name, written[name], schema.name)
        return fn(*values, **kwargs)

    return kernel


def _contiguous(value: Any, name: str, mutated: bool, op: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_contiguous(v, name, mutated, op) for v in value]
    if value is None or value.is_contiguous():
        return value
    if mutated:
        raise ArgumentError(
            f"{op}: argument {name!r} must be contiguous, got strides {value.stride()}",
            code="TP1317",
            op=op,
            notes=("the op writes to it, so that no copy can stand in: pass a contiguous tensor",),
        )
    return value.contiguous()


def contiguous_gradients(backward: Callable[..., Any], op: str) -> Callable[..., Any]:
    """The rule of an op that asked for contiguous arguments gets contiguous gradients too."""

    @functools.wraps(backward)
    def rule(ctx: Any, *grads: Any) -> Any:
        return backward(ctx, *[_contiguous(g, "grad", False, op) for g in grads])

    return rule
