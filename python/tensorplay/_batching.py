"""vmap's engine: who is batched at which level, and what a call on batched tensors becomes.

A call that the extension finds a batched tensor in comes here with all of its arguments. Those batched at the
innermost level among them are opened, the op's batching rule runs below that level, and its results are wrapped again.
Rules of built-in ops are in `_batch_rules`; an op without one, and an `autograd.Function`, runs once per sample, which
is said once.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tensorplay import _batch_rules, _native
from tensorplay._arguments import counted
from tensorplay._native import Function, HookHandle, Scope, Tensor
from tensorplay._places import stack_level
from tensorplay._record import record_of
from tensorplay.errors import CaptureError, ContractError, InvalidValueError

__all__ = ["Level", "VmapInfo", "active", "from_bottom", "inside", "peel", "to_bottom", "under"]

if TYPE_CHECKING:
    from typing import Self

_b = _native.builtins


@dataclass(frozen=True)
class VmapInfo:
    """What a batching rule is told besides its arguments."""

    batch_size: int
    randomness: str


@dataclass(frozen=True)
class Level:
    """One vmap in progress; inner ones have larger numbers."""

    number: int
    size: int
    randomness: str


class _Levels(threading.local):
    stack: tuple[Level, ...] = ()


_levels = _Levels()
_numbers = itertools.count(1)
_announced: set[str] = set()


def active() -> tuple[Level, ...]:
    """The levels of this thread, outermost first."""
    return _levels.stack


_enter = partial(_native.vmap_enter, _levels)


class under(Scope):
    """These levels, and no others, on this thread while it lasts."""

    __slots__ = ("stack",)
    stack: tuple[Level, ...]

    def __new__(cls, stack: tuple[Level, ...]) -> Self:
        self = super().__new__(cls, "vmap", CaptureError, "TP4022", _enter, _enter, stack)
        self.stack = stack
        return self


def inside(size: int, randomness: str) -> tuple[Level, under]:
    """A new innermost level, and what it is in force in."""
    level = Level(next(_numbers), size, randomness)
    return level, under((*_levels.stack, level))


def peel(x: Any, level: Level) -> tuple[Any, int | None]:
    """The batch behind `x` and its axis, or `x` itself and None where it is not batched at that level."""
    found = _native.vmap_peel(x) if isinstance(x, Tensor) else None
    if found is None or found[2] != level.number:
        return x, None
    return found[0], found[1]


def to_bottom(x: Tensor, levels: Sequence[Level]) -> Tensor:
    """The plain tensor behind `x`: one leading axis per level, then the axes of a sample."""
    if not levels:
        return x
    *outer, level = levels
    whole, axis = peel(x, level)
    return to_bottom(_batch_rules.with_batch(whole, axis, level.size), outer)


def from_bottom(x: Tensor, levels: Sequence[Level]) -> Tensor:
    """The inverse of `to_bottom`."""
    for level in levels:
        x = _native.vmap_wrap(x, 0, level.number)
    return x


def _numbers_in(args: Sequence[Any]) -> Iterator[int]:
    for arg in args:
        for x in (arg,) if isinstance(arg, Tensor) else _native.nest_tensors(arg):
            found = _native.vmap_peel(x)
            if found is not None:
                yield found[2]


def _innermost(name: str, args: tuple[Any, ...]) -> tuple[Level, tuple[Level, ...]]:
    """The level that a call is batched at, and those around it."""
    stack = _levels.stack
    number = max(_numbers_in(args), default=stack[-1].number if stack else 0)
    at = next((i for i, level in enumerate(stack) if level.number == number), None)
    if at is None:
        raise CaptureError(
            "a batched tensor was used outside of the vmap that made it",
            code="TP4022",
            op=name,
            notes=("return it from the function instead of keeping it",),
        )
    return stack[at], stack[:at]


def _batched_call(name: str, args: tuple[Any, ...]) -> Any:
    """Entry from the extension: one call in which some tensor is batched, or that is random."""
    level, outer = _innermost(name, args)
    with under(outer):
        return _call_at(level, name, args)


def _batched_function(function: type[Function], args: tuple[Any, ...]) -> Any:
    """Entry from the extension: one call of a Function of whose arguments some are batched."""
    name = function.__name__
    level, outer = _innermost(name, args)
    with under(outer):
        _refuse_empty(name, level)
        _announce(name, "is a Function and runs once per sample; an op with register_vmap can do better")
        runs = [function.apply(*[_sample(a, level, i) for a in args]) for i in range(level.size)]
        if not any(isinstance(run, tuple) for run in runs):
            return _of_samples(name, level, runs, 0)
        if len({len(run) if isinstance(run, tuple) else None for run in runs}) > 1:
            raise InvalidValueError(
                f"{name}: the number of outputs differs from sample to sample",
                code="TP3405",
                op=name,
                notes=("results of one vmap have one structure: pad, or use a loop",),
            )
        return tuple(_of_samples(name, level, [run[k] for run in runs], k) for k in range(len(runs[0])))


def _of_samples(name: str, level: Level, results: list[Any], k: int) -> Any:
    """Output `k` of a Function: tensors stacked, and of anything else that of the last sample."""
    if all(isinstance(r, Tensor) for r in results):
        return _stacked(name, level, results, k)
    if any(isinstance(r, Tensor) for r in results):
        raise InvalidValueError(
            f"{name}: output {k} is a tensor for some samples only",
            code="TP3405",
            op=name,
            notes=("results of one vmap have one structure: return a tensor, or use a loop",),
        )
    return results[-1]


def _batched_hook(x: Tensor, hook: Callable[[Tensor], Any]) -> HookHandle:
    """Entry from the extension: `hook` on the gradient of `x`, of which it sees one sample's."""
    level, outer = _innermost("register_hook", (x,))
    whole, axis, _ = cast(tuple[Tensor, int, int], _native.vmap_peel(x))

    def of_batch(grad: Tensor) -> Any:
        with under((*outer, level)):
            found = hook(_native.vmap_wrap(grad, axis, level.number))
        if not isinstance(found, Tensor):
            return found
        value, dim = peel(found, level)
        with under(outer):
            first = _batch_rules.with_batch(value, dim, level.size)
            axes = [*range(1, axis + 1), 0, *range(axis + 1, first.ndim)]
            return _b["permute_dims"](first, axes) if axis else first

    return _native.register_hook(whole, of_batch)


def _call_at(level: Level, name: str, args: tuple[Any, ...]) -> Any:
    call = _Call(level, name, args)
    if "random" in call.info["effects"]:
        return call.random()
    record = record_of(name) if call.info["custom"] else None
    if record is not None and record.vmap is not None:
        return call.by_rule(record.vmap)
    call.refuse_shared_writes()
    rule = None if call.info["custom"] else _batch_rules.rule_of(name, call.info)
    if rule is not None:
        values = list(call.values)
        found = rule(call.op, level.size, values, call.dims, call.keywords)
        if found is not _batch_rules.PER_SAMPLE:
            out, axis = found
            return args[0] if call.writes else _native.vmap_wrap(out, axis, level.number)
    _announce(name, "has no batching rule for this call and runs once per sample; register_vmap gives it one")
    return call.per_sample()


class _Call:
    """One call at one level, its arguments opened."""

    def __init__(self, level: Level, name: str, args: tuple[Any, ...]) -> None:
        self.level, self.name, self.args = level, name, args
        self.info = _native.op_info(name)
        self.schema = _native.Schema.parse(self.info["schema"])
        found = _native.get_op(name)
        assert found is not None, name
        self.op: Callable[..., Any] = found
        arguments = self.schema.arguments
        self.writes = {i for i, a in enumerate(arguments) if a["mutated"]}
        count = sum(not a["kwarg_only"] for a in arguments)
        opened = [_peel_argument(a, level) for a in args]
        self.values = [value for value, _ in opened[:count]]
        self.dims = [dim for _, dim in opened[:count]]
        names = [a["name"] for a in arguments[count:]]
        self.keywords = {n: value for n, (value, _) in zip(names, opened[count:], strict=True)}

    def batched(self) -> bool:
        """Whether any argument is batched."""
        return any(axis is not None for arg in self.args for axis in _axes(arg, self.level))

    def refuse_shared_writes(self) -> None:
        """A write to a tensor that all samples share has no per-sample meaning."""
        for i in self.writes:
            if None in _axes(self.args[i], self.level):
                raise InvalidValueError(
                    f"{self.name} writes to {self.schema.arguments[i]['name']!r}, which all samples share, values that differ",
                    code="TP4023",
                    op=self.name,
                    notes=("batch that argument too, or use the form that returns a new tensor",),
                )

    def by_rule(self, rule: Callable[..., Any]) -> Any:
        """The op's own batching rule."""
        info = VmapInfo(self.level.size, self.level.randomness)
        found = rule(info, tuple(self.dims), *self.values, **self.keywords)
        if not isinstance(found, tuple) or len(found) != 2:
            raise self._broken(f"must return (output, out_dims), got {_shape_of(found)}")
        out, out_dims = found
        count = len(self.schema.returns)
        if count == 0:
            return None
        if count == 1:
            return self._wrapped(out, out_dims, 0)
        if not isinstance(out, (tuple, list)) or len(out) != count:
            raise self._broken(f"returned {_shape_of(out)}, the op has {counted(count, 'output')}")
        dims = out_dims if isinstance(out_dims, (tuple, list)) else (out_dims,) * count
        if len(dims) != count:
            raise self._broken(f"returned {len(dims)} out_dims for {counted(count, 'output')}")
        return tuple(self._wrapped(o, d, i) for i, (o, d) in enumerate(zip(out, dims, strict=True)))

    def _wrapped(self, out: Any, dim: Any, i: int) -> Any:
        if isinstance(out, (list, tuple)):
            if "[" not in self.schema.returns[i]["type"]:
                raise self._broken(f"returned {_shape_of(out)} for output {i}, which is one tensor")
            dims = dim if isinstance(dim, (list, tuple)) else [dim] * len(out)
            if len(dims) != len(out):
                raise self._broken(
                    f"returned {len(dims)} out_dims for the {counted(len(out), 'tensor')} of output {i}"
                )
            return [self._wrapped(o, d, i) for o, d in zip(out, dims, strict=True)]
        if dim is None:
            return out
        if not isinstance(out, Tensor) or not isinstance(dim, int):
            raise self._broken(f"returned out_dims {dim!r} for output {i}, a {type(out).__name__}")
        if not -out.ndim <= dim < out.ndim or out.shape[dim] != self.level.size:
            raise self._broken(
                f"returned out_dim {dim} for output {i} of shape {tuple(out.shape)}: the batch has {self.level.size} samples"
            )
        return _native.vmap_wrap(out, dim % out.ndim, self.level.number)

    def _broken(self, what: str) -> ContractError:
        return ContractError(
            f"{self.name}: the batching rule {what}",
            code="TP3291",
            op=self.name,
            notes=("register_vmap takes fn(info, in_dims, *args) -> (output, out_dims)",),
        )

    def random(self) -> Any:
        """A random op, as the randomness of the vmap says."""
        mode = self.level.randomness
        if mode == "error":
            raise InvalidValueError(
                f"{self.name} is random, and this vmap does not say whether samples share their numbers",
                code="TP3403",
                op=self.name,
                notes=("pass randomness='different' or randomness='same' to vmap",),
            )
        if mode == "same" and not self.batched():
            return self.op(*self.values, **self.keywords)
        if mode == "same":
            raise InvalidValueError(
                f"{self.name} draws for arguments that differ from sample to sample: they cannot share numbers",
                code="TP3403",
                op=self.name,
                notes=("use randomness='different'",),
            )
        self.refuse_shared_writes()
        return self.per_sample()

    def per_sample(self) -> Any:
        """The op on one sample after the other, results stacked."""
        _refuse_empty(self.name, self.level)
        runs = [self._run(i) for i in range(self.level.size)]
        count = len(self.schema.returns)
        if self.writes and count:
            return self._written(count)
        if count == 0:
            return None
        if count == 1:
            return _stacked(self.name, self.level, runs, 0)
        return tuple(_stacked(self.name, self.level, [run[k] for run in runs], k) for k in range(count))

    def _run(self, i: int) -> Any:
        given = [_sample(arg, self.level, i) for arg in self.args]
        values, rest = given[: len(self.values)], given[len(self.values) :]
        keywords = dict(zip(self.keywords, rest, strict=True))
        return self.op(*values, **keywords)

    def _written(self, count: int) -> Any:
        """An op that writes and returns hands back what it wrote, in order."""
        found = [self.args[i] for i in sorted(self.writes)][:count]
        return found[0] if count == 1 else tuple(found)


def _announce(name: str, what: str) -> None:
    """Says once per op that it runs sample by sample."""
    if name in _announced:
        return
    _announced.add(name)
    warnings.warn(f"vmap: {name} {what}", UserWarning, stacklevel=stack_level())


def _refuse_empty(name: str, level: Level) -> None:
    if level.size == 0:
        raise InvalidValueError(
            f"{name} has no batching rule, and an empty batch has no sample to run it on",
            code="TP3404",
            op=name,
            notes=("give it one with register_vmap",),
        )


def _stacked(name: str, level: Level, results: list[Any], k: int) -> Any:
    """Output `k`, from what each sample gave."""
    first = results[0]
    if isinstance(first, Tensor):
        shapes = {tuple(r.shape) for r in results}
        if len(shapes) > 1:
            raise InvalidValueError(
                f"{name}: the shape of output {k} differs from sample to sample, as in {sorted(shapes)[:2]}",
                code="TP3405",
                op=name,
                notes=("results of one vmap have one shape: pad, or use a loop",),
            )
        return _native.vmap_wrap(_b["stack"](results, 0), 0, level.number)
    if isinstance(first, (list, tuple)):
        return [_stacked(name, level, [r[i] for r in results], k) for i in range(len(first))]
    if any(r != first for r in results):
        raise InvalidValueError(
            f"{name}: output {k} is no tensor and differs from sample to sample",
            code="TP3405",
            op=name,
            notes=("return a tensor, or use a loop",),
        )
    return first


def _peel_argument(arg: Any, level: Level) -> tuple[Any, Any]:
    """The argument with batches in the place of what stands for them, and the same nest of axes; None for no tensor."""
    if isinstance(arg, Tensor):
        return peel(arg, level)
    if not _native.nest_tensors(arg):
        return arg, None
    values = _native.nest_map(lambda x: peel(x, level)[0], arg)
    return values, _native.nest_map(lambda x: peel(x, level)[1], arg, True)


def _axes(arg: Any, level: Level) -> list[int | None]:
    """The axis of every tensor in an argument."""
    return [peel(x, level)[1] for x in _native.nest_tensors(arg)]


def _sample(arg: Any, level: Level, i: int) -> Any:
    """Sample `i` of an argument as it was given."""

    def one(x: Tensor) -> Tensor:
        value, axis = peel(x, level)
        return value if axis is None else _b["select"](value, axis, i)

    return _native.nest_map(one, arg)


def _shape_of(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, (tuple, list)) else type(value).__name__


_native.vmap_install(_batched_call, _batched_function, _batched_hook)
