"""`Function`: a forward and a backward written together, without a name in the registry.

Lives here: the class, and the one internal op that every such call goes through, so that grad mode, saved tensors and
checks are those of any other op. Not here: ops with a contract of their own (`library.custom_op`).
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from tensorplay import _native
from tensorplay._native import Context as FunctionContext
from tensorplay._native import Tensor, is_grad_enabled
from tensorplay.errors import AutogradError, ContractError

__all__ = ["Function", "FunctionContext"]

_OP = "tensorplay::autograd_function"
_first_use = threading.Lock()


def _is_one_of(t: Tensor, tensors: Any) -> bool:
    return any(t is other for other in tensors)


class _Call:
    """One call on its way through the op."""

    __slots__ = ("args", "ctx", "function", "outputs", "single", "whole", "written")

    def __init__(self, function: type[Function], args: tuple[Any, ...], tensors: tuple[int, ...]) -> None:
        self.function, self.args = function, args
        recorded = is_grad_enabled()
        self.ctx = FunctionContext()
        needs = tuple(recorded and isinstance(a, Tensor) and a.requires_grad for a in args)
        self.ctx._describe(function.__name__, tensors, needs)
        self.outputs: tuple[Any, ...] = ()
        self.single = True
        # The inputs that forward wrote to, each with the output that it is.
        self.written: list[tuple[Tensor, int]] = []
        # The call on the whole batch that this one is a sample of.
        self.whole: _Call | None = None

    def for_sample(self, tensors: list[Tensor]) -> _Call:
        """A call of its own for one sample of a batch; vmap asks for it."""
        rest = iter(tensors)
        args = tuple(next(rest) if isinstance(a, Tensor) else a for a in self.args)
        sample = _Call(self.function, args, tuple(i for i, a in enumerate(args) if isinstance(a, Tensor)))
        sample.whole = self
        return sample

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        """Runs forward over `tensors` in the places of the call's own; keeps the structure of the result."""
        rest = iter(tensors)
        args = [next(rest) if isinstance(a, Tensor) else a for a in self.args]
        function, ctx = self.function, self.ctx
        if function.setup_context is not Function.setup_context:
            result = function.forward(*args)
            function.setup_context(ctx, tuple(args), result)
        else:
            result = function.forward(ctx, *args)
        self.single = not isinstance(result, (tuple, list))
        self.outputs = (result,) if self.single else tuple(result)
        given = [v for v in self.outputs if isinstance(v, Tensor)]
        fresh = self._settle(tensors, given)
        if self.whole is not None:
            self.whole.outputs, self.whole.single = self.outputs, self.single
        return fresh

    def _settle(self, inputs: list[Tensor], given: list[Tensor]) -> list[Tensor]:
        """The outputs as tensors of their own, and the marks of `ctx` held against them."""
        save, plain, dirty = self.ctx._marked()
        name = self.function.__name__
        for t in dirty:
            if not (_is_one_of(t, inputs) and _is_one_of(t, given)):
                raise ContractError(
                    f"{name}.forward marked a tensor as dirty that is not both an input and an output",
                    code="TP3214",
                    op=name,
                    notes=("return every input that was written to",),
                )
        for t in plain:
            if not _is_one_of(t, given):
                raise ContractError(
                    f"{name}.forward marked a tensor as non-differentiable that is no output",
                    code="TP3213",
                    op=name,
                )
        fresh: list[Tensor] = []
        for t in given:
            shared = t.requires_grad or any(_native.shares_storage(t, o) for o in (*inputs, *fresh))
            fresh.append(t.clone() if shared else t)
        self.written = [(t, i) for i, t in enumerate(given) if _is_one_of(t, dirty)]
        made = {id(t): f for t, f in zip(reversed(given), reversed(fresh), strict=True)}
        self.ctx._settle(tuple(made.get(id(t), t) for t in save), tuple(made.get(id(t), t) for t in plain))
        return fresh

    def results(self, tensors: list[Tensor]) -> Any:
        """The results in the structure that forward gave them; what was written to in place is itself again."""
        for t, i in self.written:
            _native.adopt_history(t, tensors[i])
            tensors[i] = t
        rest = iter(tensors)
        values = tuple(next(rest) if isinstance(v, Tensor) else v for v in self.outputs)
        return values[0] if self.single else values


class Function:
    """A differentiable function: subclass it, write `forward` and `backward` as static methods, call `apply`.

    `forward(ctx, *args)` saves what backward needs on `ctx`; or `forward(*args)` with `setup_context(ctx, inputs,
    output)`. `backward(ctx, *grads)` returns one gradient (or None) per argument. forward runs with grad mode off. A
    result that is an argument, or shares memory with one, is given as a copy; an argument that forward wrote to, marked
    with `ctx.mark_dirty` and returned, is given as itself.
    """

    @staticmethod
    def forward(*args: Any) -> Any:
        """Computes the results."""
        raise NotImplementedError("a Function needs a static method forward")

    @staticmethod
    def setup_context(ctx: FunctionContext, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves what backward needs, where forward takes no `ctx`."""

    @staticmethod
    def backward(ctx: FunctionContext, *grads: Any) -> Any:
        """Computes the gradients of the arguments."""
        raise NotImplementedError("a Function needs a static method backward")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Calls the function, and records it where a gradient may be needed."""
        positions = tuple(i for i, a in enumerate(args) if isinstance(a, Tensor))
        call = _Call(cls, args, positions)
        outputs = _op()(call, [args[i] for i in positions])
        return call.results(outputs)


@functools.cache
def _op() -> _native.CustomOpDef:
    """The op behind every Function, defined on first use, whichever thread is first."""
    with _first_use:
        return _define_op()


@functools.cache
def _define_op() -> _native.CustomOpDef:
    at = ("default", __file__, 1, "python")
    op, *_ = _native.define_op(f"{_OP}(Any call, Tensor[] tensors) -> Tensor[]", at)
    _native.register_kernel(_OP, ("default", _forward, at, None, (), False))
    _native.register_fake(_OP, _forward)
    _native.register_autograd(_OP, _backward, _setup)
    return op


def _forward(call: _Call, tensors: list[Tensor]) -> list[Tensor]:
    return call.forward(tensors)


def _setup(ctx: FunctionContext, inputs: tuple[Any, ...], output: list[Tensor]) -> FunctionContext:
    """Gives the node the context that forward had."""
    call: _Call = inputs[0]
    own = call.ctx
    own._function = (
        call.function,
        tuple(isinstance(v, Tensor) for v in call.outputs),
        tuple(isinstance(a, Tensor) for a in call.args),
    )
    return own


def _backward(ctx: FunctionContext, grads: list[Any]) -> tuple[None, list[Any]]:
    function, outputs, args = ctx._function
    name = function.__name__
    if function.backward is Function.backward:
        raise AutogradError(f"{name} has no backward", code="TP3303", op=name)
    rest = iter(grads)
    result = function.backward(ctx, *[next(rest) if is_tensor else None for is_tensor in outputs])
    if isinstance(result, list):
        raise ContractError(
            f"{name}.backward must return a tuple, got a list",
            code="TP3208",
            op=name,
            notes=("return one gradient, or a tuple of one per argument of apply",),
        )
    found = result if isinstance(result, tuple) else (result,)
    if len(found) != len(args):
        raise ContractError(
            f"{name}.backward must return {len(args)} gradients, got {len(found)}",
            code="TP3208",
            op=name,
        )
    for i, (g, is_tensor) in enumerate(zip(found, args, strict=True)):
        if g is None:
            continue
        if not is_tensor:
            raise ContractError(
                f"{name}.backward returned a gradient for argument {i}, which is no tensor",
                code="TP3208",
                op=name,
            )
        if not isinstance(g, Tensor):
            raise ContractError(
                f"{name}.backward returned {type(g).__name__} for argument {i}: a Tensor or None is wanted",
                code="TP3208",
                op=name,
            )
    return None, [g for g, is_tensor in zip(found, args, strict=True) if is_tensor]
