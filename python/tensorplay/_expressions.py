"""Expressions over the symbols of a captured program, as its text has them: `s0 * 2 + 1`, `s0 >= 4`."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable
from typing import Any

from tensorplay.errors import GraphError

__all__ = ["evaluate", "symbols"]

_ARITHMETIC: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def symbols(text: str) -> set[str]:
    """The symbols of an expression."""
    return set(re.findall(r"[us]\d+", text))


def evaluate(text: str, sizes: dict[str, int]) -> Any:
    """What an expression is with these sizes; GraphError for what is none, and for a symbol that has no size."""
    return _evaluate(_parsed(text), sizes)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str, tries: int = 64) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SystemError:
        # CPython 3.11 counts the depth of syntax trees for all threads together, and may find another thread's.
        if not tries:
            raise
        return _parsed(text, tries - 1)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise GraphError(f"{text!r} is no expression over sizes", code="TP5005") from None


def _evaluate(node: ast.expr, sizes: dict[str, int]) -> Any:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name) if name in sizes:
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluate(inner, sizes)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _ARITHMETIC:
            return _ARITHMETIC[type(sign)](_evaluate(left, sizes), _evaluate(right, sizes))
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _ARITHMETIC:
            return _ARITHMETIC[type(sign)](_evaluate(left, sizes), _evaluate(right, sizes))
    raise GraphError(f"no tensor of the run shows {ast.unparse(node)}", code="TP5007")
