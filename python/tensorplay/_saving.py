"""What is kept for backward, and for how long: hooks on saved tensors, checkpoints, gradients of one order.

Lives here: what `autograd` re-exports under these names. Not here: the tape that calls the hooks (the extension).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Self, TypeVar

from tensorplay import _arguments, _native
from tensorplay._batching import active, under
from tensorplay._native import Context as FunctionContext
from tensorplay._native import Function, Scope, Tensor, is_grad_enabled
from tensorplay._tree import flatten
from tensorplay.errors import AutogradError, ContractError, InvalidValueError

__all__ = ["checkpoint", "once_differentiable", "saved_tensors_hooks"]

_set = _native.set_grad_enabled
F = TypeVar("F", bound=Callable[..., Any])


class saved_tensors_hooks(Scope):
    """While entered, on this thread, every tensor that is saved for backward goes through `pack_hook(tensor)`.

    What that returns is kept instead, and `unpack_hook(packed)` must make the tensor from it when backward asks; both
    run with grad mode off. The innermost hooks count. Of an output of the op `pack_hook` gets a detached tensor.
    """

    _hooks: tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]

    def __new__(cls, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> Self:
        mode = _native.SavedTensorsMode(pack_hook, unpack_hook)
        name, leave = "saved_tensors_hooks", _native.SavedTensorsMode.leave
        self = super().__new__(cls, name, AutogradError, "TP3316", leave, mode.enter)
        self._hooks = (pack_hook, unpack_hook)
        return self

    def __repr__(self) -> str:
        names = (getattr(hook, "__qualname__", None) or repr(hook) for hook in self._hooks)
        return f"saved_tensors_hooks({', '.join(names)})"


def _scope(leave: Callable[[Any], Any], enter: Callable[..., Any], *args: Any) -> Scope:
    return Scope("a checkpoint", AutogradError, "TP3316", leave, enter, *args)


def _hooks(
    pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor], read: Callable[[Tensor], None]
) -> Scope:
    """Hooks that are told what recorded calls read besides: `read(tensor)`."""
    return _scope(_native.SavedTensorsMode.leave, _native.SavedTensorsMode(pack, unpack, read).enter)


class _Segment:
    """One checkpointed call: what is needed to run it again, and what a second run saved."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.versions = [(t, t._version) for t in flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        # The version of every tensor that a recorded call read, in order: the same when it runs again, unless somebody
        # wrote to a tensor that the function closes over.
        self.reads: list[int] = []
        self.random: _native.RandomDraws | None = None
        # What was in force when it ran first: backward runs under other contexts, or outside of any.
        self.autocast, self.levels = _native.autocast_word(), active()
        self.specs: list[tuple[Any, Any]] = []
        self.again: dict[int, Tensor] = {}

    def read(self, t: Tensor) -> None:
        """Notes a tensor that is read, saved or not."""
        self.reads.append(t._version)

    def pack(self, t: Tensor) -> int:
        """Forgets a saved tensor, but for its place."""
        self.specs.append((t.shape, t.dtype))
        return len(self.specs) - 1

    def unpack(self, place: int) -> Tensor:
        """The tensor of that place, from a second run if need be."""
        if place not in self.again:
            self._run_again()
        return self.again.pop(place)

    def _run_again(self) -> None:
        for t, version in self.versions:
            if t._version != version:
                raise AutogradError(
                    f"an argument of a checkpoint was written to in place after the call: it is at version "
                    f"{t._version}, {version} when the function ran first",
                    code="TP3003",
                    notes=("pass a clone, or write to it after backward",),
                )
        found: list[Tensor] = []
        reads: list[int] = []

        def note(t: Tensor) -> None:
            reads.append(t._version)

        def keep(t: Tensor) -> Tensor:
            found.append(t)
            return t

        draws = self.random
        restore = _native.autocast_restore
        with (
            _scope(draws.leave, draws.replay) if draws is not None else nullcontext(),
            _scope(_set, _set, True),
            _scope(restore, restore, self.autocast),
            under(self.levels),
            _hooks(keep, _same, note),
        ):
            self.fn(*self.args, **self.kwargs)
        specs = [(t.shape, t.dtype) for t in found]
        if specs != self.specs:
            raise ContractError(
                f"a checkpointed function saved other tensors when it ran again: {len(specs)} against "
                f"{len(self.specs)}, or of other shapes or dtypes",
                code="TP3308",
                notes=("it must do the same each time: read no state that changes in between",),
            )
        if reads != self.reads:
            raise AutogradError(
                "a tensor that a checkpointed function reads was written to in place after it ran first",
                code="TP3003",
                notes=("write to it after backward, or let the function read a clone",),
            )
        self.again = dict(enumerate(found))
        # The nodes of this run hold `keep`: no tensor may stay where they reach it.
        found.clear()


def _same(t: Tensor) -> Tensor:
    return t


def checkpoint(
    fn: Callable[..., Any],
    *args: Any,
    preserve_rng_state: bool = True,
    use_reentrant: bool = False,
    **kwargs: Any,
) -> Any:
    """`fn(*args, **kwargs)`, which keeps nothing for backward but its arguments: backward runs `fn` again.

    Gradients reach the arguments and whatever `fn` reads, of any order. `fn` must do the same each time. It runs again
    under the autocast and inside of the vmaps that it ran in first; with `preserve_rng_state` it draws the same random
    numbers, whatever other threads draw, and the sequence of the process goes on as if it had run once.
    `use_reentrant=False` says what holds anyway; True, PyTorch's older way, is an InvalidValueError. ContractError when
    `fn` saves other tensors the second time, AutogradError when an argument, or another tensor that its recorded calls
    read, was written to in between.
    """
    _arguments.function("checkpoint", "fn", fn)
    _arguments.boolean("checkpoint", "preserve_rng_state", preserve_rng_state)
    if _arguments.boolean("checkpoint", "use_reentrant", use_reentrant):
        raise InvalidValueError(
            "checkpoint has no reentrant way",
            code="TP3324",
            notes=("leave use_reentrant out, or pass False: gradients are the same",),
        )
    # What a captured region keeps for its backward is decided when it is split, and random draws are ops of it.
    if not is_grad_enabled() or _native.is_capturing():
        return fn(*args, **kwargs)
    segment = _Segment(fn, args, kwargs)
    with _hooks(segment.pack, segment.unpack, segment.read):
        if not preserve_rng_state:
            return fn(*args, **kwargs)
        draws = segment.random = _native.RandomDraws()
        with _scope(draws.leave, draws.record):
            return fn(*args, **kwargs)


class _Once(Function):
    """Its value is the first of its arguments; the second derivative is refused."""

    @staticmethod
    def forward(ctx: FunctionContext, value: Tensor, *sources: Tensor) -> Tensor:
        return value

    @staticmethod
    def backward(ctx: FunctionContext, *grads: Any) -> Any:
        raise AutogradError(
            "a backward marked with once_differentiable is differentiated a second time",
            code="TP3307",
            notes=("write it with differentiable operations and take the decorator away",),
        )


def once_differentiable(backward: F) -> F:
    """A decorator for `backward(ctx, *grads)`: it runs unrecorded, and a second derivative through it is an error."""

    @functools.wraps(backward)
    def once(ctx: Any, *grads: Any) -> Any:
        recorded = is_grad_enabled()
        with _scope(_set, _set, False):
            result = backward(ctx, *grads)
        if not recorded:
            return result
        given = [t for g in (*grads, *ctx.saved_tensors) for t in (g if isinstance(g, list) else [g])]
        sources = [t for t in given if isinstance(t, Tensor) and t.requires_grad]
        return _refuse_second(result, sources) if sources else result

    return once  # type: ignore[return-value]


def _refuse_second(result: Any, sources: list[Tensor]) -> Any:
    if isinstance(result, Tensor):
        return _Once.apply(result, *sources)
    if isinstance(result, (tuple, list)):
        return type(result)(_refuse_second(r, sources) for r in result)
    return result
