"""Batching rules of the built-in ops: how one call on a whole batch says what one call per sample would.

A rule is `(op, batch size, values, dims, keywords) -> (output, batch axis)`, or PER_SAMPLE where it has no answer.
Pointwise ops need no rule of their own: samples are lined up behind the batch axis. Not here: levels and the fallback.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensorplay import _native
from tensorplay._native import Tensor
from tensorplay.errors import IndexOutOfRangeError

__all__ = ["PER_SAMPLE", "rule_of", "with_batch"]

_b = _native.builtins
Rule = Callable[[Callable[..., Any], int, list[Any], list[Any], dict[str, Any]], Any]
PER_SAMPLE: Any = object()

_rules: dict[str, Rule] = {}


def rule_of(name: str, info: dict[str, Any]) -> Rule | None:
    """The rule of a built-in op, if it has one."""
    base = name.removeprefix("tp::").partition(".")[0]
    found = _rules.get(base)
    if found is None and (info["pointwise"] is not None or base.removesuffix("_") in _IN_PLACE):
        return _pointwise
    return found


_IN_PLACE = (
    *("add", "sub", "mul", "div", "pow", "floor_divide", "remainder", "copy", "fill", "zero"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
)


# ---- moving axes ----


def front(x: Tensor, dim: int) -> Tensor:
    """`x` with its batch axis first."""
    if dim == 0:
        return x
    return _b["permute_dims"](x, [dim, *(a for a in range(x.ndim) if a != dim)])


def with_batch(x: Tensor, dim: int | None, size: int) -> Tensor:
    """`x` with the batch axis first, repeated where it has none."""
    if dim is not None:
        return front(x, dim)
    return _b["expand"](_b["unsqueeze"](x, 0), [size, *x.shape])


def rank(x: Tensor, dim: int | None) -> int:
    """Dimensions of one sample."""
    return x.ndim - (dim is not None)


def lifted(x: Any, dim: int | None, wanted: int) -> Any:
    """A batched tensor with the batch axis first and samples of `wanted` dimensions; anything else unchanged."""
    if dim is None or not isinstance(x, Tensor):
        return x
    x = front(x, dim)
    while x.ndim - 1 < wanted:
        x = _b["unsqueeze"](x, 1)
    return x


def axis_of(axis: int, dims: int) -> int:
    """The axis of the batch that is `axis` of a sample."""
    if not -dims <= axis < dims:
        raise IndexOutOfRangeError(f"axis {axis} is out of range for {dims} dimensions", code="TP1104")
    return axis % dims + 1


def axes_of(axes: Any, dims: int) -> list[int]:
    """The same for one axis or several; None means all."""
    if axes is None:
        return list(range(1, dims + 1))
    return [axis_of(a, dims) for a in ([axes] if isinstance(axes, int) else axes)]


def ints(value: Any) -> list[int]:
    """An int or several as a list."""
    return [value] if isinstance(value, int) else list(value)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule under these op names."""

    def keep(fn: Rule) -> Rule:
        _rules.update(dict.fromkeys(names, fn))
        return fn

    return keep


# ---- rules ----


def _pointwise(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    wanted = max(rank(v, d) for v, d in zip(values, dims, strict=True) if isinstance(v, Tensor))
    return op(*(lifted(v, d, wanted) for v, d in zip(values, dims, strict=True)), **kw), 0


@rule("astype", "contiguous", "detach", "alias", "zeros_like", "ones_like", "empty_like", "full_like")
def _same_shape(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    return op(front(values[0], dims[0]), *values[1:], **kw), 0


@rule("sum", "mean", "prod", "max", "min", "all", "any", "std", "var", "logsumexp")
def _reduction(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x, axis = front(values[0], dims[0]), values[1]
    if x.ndim == 1:
        axes_of(axis, 0)
        return op(_b["unsqueeze"](x, 1), [1], **{**kw, "keepdims": False}), 0
    if axis is not None and not ints(axis):
        return PER_SAMPLE
    return op(x, axes_of(axis, x.ndim - 1), **kw), 0


@rule("argmax", "argmin")
def _position(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x, axis = front(values[0], dims[0]), values[1]
    if axis is not None:
        return op(x, axis_of(axis, x.ndim - 1), **kw), 0
    out = op(_flat(x), 1, keepdims=False)
    return (_b["reshape"](out, [size] + [1] * (x.ndim - 1)) if kw["keepdims"] else out), 0


def _flat(x: Tensor) -> Tensor:
    """Every sample as a vector."""
    return _b["reshape"](x, [x.shape[0], math.prod(x.shape[1:])])


@rule("softmax", "log_softmax", "cumsum", "argsort")
def _along(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x = front(values[0], dims[0])
    if x.ndim == 1:
        return PER_SAMPLE
    return op(x, axis_of(values[1], x.ndim - 1), **kw), 0


@rule("softmax_backward", "log_softmax_backward")
def _softmax_backward(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    grad, out = (with_batch(v, d, size) for v, d in zip(values[:2], dims[:2], strict=True))
    return (op(grad, out, axis_of(values[2], out.ndim - 1)), 0) if out.ndim > 1 else PER_SAMPLE


@rule("matmul")
def _matmul(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    ranks = [rank(v, d) for v, d in zip(values, dims, strict=True)]
    if 0 in ranks:
        return PER_SAMPLE
    a, b = (v if d is None else front(v, d) for v, d in zip(values, dims, strict=True))
    if ranks[0] == 1:
        a = _b["unsqueeze"](a, -2)
    if ranks[1] == 1:
        b = _b["unsqueeze"](b, -1)
    wanted = max(2, *ranks)
    out = op(lifted(a, _zero(dims[0]), wanted), lifted(b, _zero(dims[1]), wanted))
    if ranks[0] == 1:
        out = _b["squeeze"](out, [out.ndim - 2])
    if ranks[1] == 1:
        out = _b["squeeze"](out, [out.ndim - 1])
    return out, 0


def _zero(dim: int | None) -> int | None:
    return None if dim is None else 0


@rule("reshape", "view")
def _reshape(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x, shape = front(values[0], dims[0]), ints(values[1])
    known = math.prod(s for s in shape if s != -1)
    if shape.count(-1) == 1 and known:
        shape[shape.index(-1)] = math.prod(x.shape[1:]) // known
    return op(x, [size, *shape]), 0


@rule("expand")
def _expand(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    shape = ints(values[1])
    return op(lifted(values[0], dims[0], len(shape)), [size, *shape]), 0


@rule("permute_dims")
def _permute(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x = front(values[0], dims[0])
    return op(x, [0, *axes_of(values[1], x.ndim - 1)]), 0


@rule("transpose")
def _transpose(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x = front(values[0], dims[0])
    return op(x, *(axis_of(a, x.ndim - 1) for a in values[1:])), 0


@rule("squeeze")
def _squeeze(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x, axis = front(values[0], dims[0]), values[1]
    axes = axes_of(axis, x.ndim - 1)
    if axis is None:
        axes = [a for a in axes if x.shape[a] == 1]
    return op(x, axes) if axes else _b["alias"](x), 0


@rule("unsqueeze")
def _unsqueeze(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x = front(values[0], dims[0])
    return op(x, axis_of(values[1], x.ndim)), 0


@rule("select", "slice")
def _part(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x = front(values[0], dims[0])
    return op(x, axis_of(values[1], x.ndim - 1), *values[2:]), 0


@rule("select_backward", "slice_backward")
def _part_backward(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    shape = ints(values[1])
    grad = front(values[0], dims[0])
    return op(grad, [size, *shape], axis_of(values[2], len(shape)), *values[3:]), 0


@rule("flip")
def _flip(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x = front(values[0], dims[0])
    axes = axes_of(values[1], x.ndim - 1)
    return op(x, axes) if axes else _b["clone"](x), 0


@rule("roll")
def _roll(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x = front(values[0], dims[0])
    if values[2] is None:
        return _b["reshape"](op(_flat(x), values[1], [1]), x.shape), 0
    return op(x, values[1], axes_of(values[2], x.ndim - 1)), 0


@rule("tril", "triu")
def _triangle(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    x = front(values[0], dims[0])
    return (op(x, *values[1:]), 0) if x.ndim > 2 else PER_SAMPLE


@rule("new_zeros", "new_empty")
def _new(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    return op(values[0], [size, *ints(values[1])], **kw), 0


@rule("concat", "stack")
def _join(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    arrays = [with_batch(x, d, size) for x, d in zip(values[0], dims[0], strict=True)]
    axis = values[1]
    if axis is None:
        return op([_flat(x) for x in arrays], 1), 0
    room = op is _native.get_op("tp::stack")  # a new axis has one place more
    return op(arrays, axis_of(axis, arrays[0].ndim - 1 + room)), 0


@rule("take", "index_select", "index_add")
def _take(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    at, where = (2, 1) if op is _native.get_op("tp::take") else (1, 2)
    if dims[where] is not None:  # each sample has its own places
        return PER_SAMPLE
    x = with_batch(values[0], dims[0], size)
    axis = values[at]
    if axis is None and x.ndim != 2:
        return PER_SAMPLE
    given = list(values)
    given[0], given[at] = x, axis_of(0 if axis is None else axis, x.ndim - 1)
    if len(given) > 3:
        given[3] = with_batch(values[3], dims[3], size)
    return op(*given), 0


@rule("gather", "scatter_add", "take_along_axis")
def _gather(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    ranks = [rank(v, d) for v, d in zip(values, dims, strict=True) if isinstance(v, Tensor)]
    if len(set(ranks)) > 1 or not ranks[0]:
        return PER_SAMPLE
    given = [
        with_batch(v, d, size) if isinstance(v, Tensor) else axis_of(v, ranks[0])
        for v, d in zip(values, dims, strict=True)
    ]
    return op(*given), 0


@rule("index")
def _index(op: Any, size: int, values: list[Any], dims: list[Any], kw: dict[str, Any]) -> Any:
    indices: Sequence[Any] = values[1]
    own = any(d is not None for d in dims[1]) if isinstance(dims[1], list) else False
    arrays = [i for i, x in enumerate(indices) if x is not None]
    apart = arrays and arrays[-1] - arrays[0] + 1 != len(arrays)  # such axes go in front of the batch
    if own or apart or dims[0] is None:
        return PER_SAMPLE
    return op(front(values[0], dims[0]), [None, *indices]), 0
