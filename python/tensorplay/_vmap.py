"""`vmap`: a function of one sample made into a function of a batch.

Lives here: what the user hands over (in_dims, out_dims, nests) checked and taken apart. Not here: what a call on a
batched tensor becomes (`_batching`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tensorplay import _arguments, _batch_rules, _native
from tensorplay._arguments import counted
from tensorplay._batching import Level, inside, peel
from tensorplay._native import Tensor
from tensorplay._tree import broadcast, flatten, unflatten
from tensorplay.errors import InvalidValueError, ShapeError

__all__ = ["vmap"]

P = ParamSpec("P")
R = TypeVar("R")


@_arguments.keywords
def vmap(
    func: Callable[P, R], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error"
) -> Callable[P, R]:
    """`func` over every sample of its arguments at once; the results equal those of a loop over samples.

    Parameters
    ----------
    func
        Takes and returns tensors, and tuples, lists and dicts of them. Inside, shapes are those of one sample, and
        values cannot be read. Keyword arguments are handed on unbatched.
    in_dims
        The batch axis of every positional argument: one for all, or a nest like the arguments; None for what all
        samples share.
    out_dims
        Where the batch axis goes in every result; None for one that does not depend on the sample.
    randomness
        "error", "different" (every sample its own numbers) or "same".
    """
    if not callable(func):
        raise InvalidValueError(f"vmap needs a function, got {type(func).__name__}", code="TP3401")
    if randomness not in ("error", "different", "same"):
        raise InvalidValueError(
            f"randomness must be 'error', 'different' or 'same', got {randomness!r}", code="TP3401"
        )

    @functools.wraps(func)
    def batched(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten(args)
        dims = _in_dims(in_dims, structure, leaves, len(args))
        level, scope = inside(_batch_size(leaves, dims), randomness)
        with scope:
            given = [
                leaf if dim is None else _native.vmap_wrap(leaf, dim, level.number)
                for leaf, dim in zip(leaves, dims, strict=True)
            ]
            result = func(*unflatten(structure, given), **kwargs)
        ends, out_structure = flatten(result)
        to = broadcast(out_dims, out_structure)
        if to is None:
            raise InvalidValueError(
                f"out_dims {out_dims!r} does not fit a result of structure {out_structure!r}", code="TP3401"
            )
        return unflatten(out_structure, [_out(x, d, level) for x, d in zip(ends, to, strict=True)])

    return batched


def _in_dims(in_dims: Any, structure: Any, leaves: list[Any], count: int) -> list[int | None]:
    if isinstance(in_dims, list):
        in_dims = tuple(in_dims)
    if not isinstance(in_dims, (int, tuple)):
        raise InvalidValueError(
            f"in_dims must be an int or a tuple with one entry per argument, got {in_dims!r}", code="TP3401"
        )
    if isinstance(in_dims, tuple) and len(in_dims) != count:
        raise InvalidValueError(
            f"in_dims has length {len(in_dims)} for {counted(count, 'positional argument')}", code="TP3401"
        )
    found = broadcast(in_dims, structure)
    if found is None:
        raise InvalidValueError(
            f"in_dims {in_dims!r} does not fit arguments of structure {structure!r}", code="TP3401"
        )
    return [_in_dim(leaf, dim, i) for i, (leaf, dim) in enumerate(zip(leaves, found, strict=True))]


def _in_dim(leaf: Any, dim: Any, i: int) -> int | None:
    if dim is None:
        return None
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise InvalidValueError(f"in_dims may hold ints and None, got {dim!r}", code="TP3401")
    if not isinstance(leaf, Tensor):
        raise InvalidValueError(
            f"in_dims says {dim} for argument leaf {i}, which is no tensor but {type(leaf).__name__}",
            code="TP3401",
            notes=("use None in in_dims for what all samples share",),
        )
    if not -leaf.ndim <= dim < leaf.ndim:
        raise InvalidValueError(
            f"in_dims says {dim} for argument leaf {i} of shape {tuple(leaf.shape)}, which has no such axis",
            code="TP3401",
        )
    return dim % leaf.ndim


def _batch_size(leaves: list[Any], dims: list[int | None]) -> int:
    sizes = {leaf.shape[dim]: None for leaf, dim in zip(leaves, dims, strict=True) if dim is not None}
    if not sizes:
        raise InvalidValueError(
            "vmap needs at least one tensor with a batch axis: in_dims is None for all", code="TP3401"
        )
    if len(sizes) > 1:
        raise ShapeError(
            f"the batch axes differ in size: {', '.join(map(str, sizes))}",
            code="TP3402",
            notes=("in_dims names the axis to go over in every argument",),
        )
    return int(next(iter(sizes)))


def _out(x: Any, dim: Any, level: Level) -> Any:
    if not isinstance(x, Tensor):
        raise InvalidValueError(
            f"a function under vmap returns tensors, got {type(x).__name__}",
            code="TP3406",
            notes=("return tensors, and tuples, lists and dicts of them",),
        )
    whole, at = peel(x, level)
    if dim is None:
        if at is not None:
            raise InvalidValueError(
                "out_dims is None for a result that differs from sample to sample", code="TP3401"
            )
        return whole
    if not isinstance(dim, int) or not -(x.ndim + 1) <= dim <= x.ndim:
        raise InvalidValueError(
            f"out_dims says {dim!r} for a result whose samples have {x.ndim} dimensions", code="TP3401"
        )
    first = _batch_rules.with_batch(whole, at, level.size)
    to = dim % (x.ndim + 1)
    axes = list(range(1, first.ndim))
    axes.insert(to, 0)
    return first if to == 0 else _native.builtins["permute_dims"](first, axes)
