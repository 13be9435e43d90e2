"""`Function`: a forward and a backward written together, without a name in the registry.

Lives here: the class, and the one internal op that every such call goes through, so that grad mode, saved tensors and
checks are those of any other op. Not here: ops with a contract of their own (`library.custom_op`).
"""

from __future__ import annotations

import functools
from typing import Any

from tensorplay import _native
from tensorplay._native import Tensor
from tensorplay.errors import AutogradError, ContractError

__all__ = ["Function", "FunctionContext"]

_OP = "tensorplay::autograd_function"


class FunctionContext:
    """What `forward` leaves for `backward`; any further attributes may be set on it."""

    def __init__(self) -> None:
        self._to_save: tuple[Tensor | None, ...] = ()
        self._not_differentiable: tuple[Tensor, ...] = ()
        self._materialize = True
        self._saved: Any = None
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors for backward; they are version-checked when read, and freed after backward."""
        self._to_save = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors saved by forward."""
        return tuple(self._to_save if self._saved is None else self._saved.saved_tensors)

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Marks outputs that have no gradient."""
        self._not_differentiable = outputs

    def set_materialize_grads(self, value: bool) -> None:
        """With False, gradients of unused outputs arrive as None instead of zeros."""
        self._materialize = value


class _Call:
    """One call on its way through the op."""

    def __init__(self, function: type[Function], args: tuple[Any, ...]) -> None:
        self.function, self.args, self.ctx = function, args, FunctionContext()
        self.outputs: tuple[Any, ...] = ()
        self.single = True

    def forward(self, tensors: list[Tensor]) -> list[Tensor]:
        """Runs forward over `tensors` in the places of the call's own; keeps the structure of the result."""
        rest = iter(tensors)
        args = [next(rest) if isinstance(a, Tensor) else a for a in self.args]
        function = self.function
        if function.setup_context is not Function.setup_context:
            result = function.forward(*args)
            function.setup_context(self.ctx, tuple(args), result)
        else:
            result = function.forward(self.ctx, *args)
        self.single = not isinstance(result, (tuple, list))
        self.outputs = (result,) if self.single else tuple(result)
        return [v for v in self.outputs if isinstance(v, Tensor)]

    def results(self, tensors: list[Tensor]) -> Any:
        """The results in the structure that forward gave them."""
        rest = iter(tensors)
        values = tuple(next(rest) if isinstance(v, Tensor) else v for v in self.outputs)
        self.outputs = tuple(isinstance(v, Tensor) for v in self.outputs)
        return values[0] if self.single else values


class Function:
    """A differentiable function: subclass it, write `forward` and `backward` as static methods, call `apply`.

    `forward(ctx, *args)` saves what backward needs on `ctx`; or `forward(*args)` with `setup_context(ctx, inputs,
    output)`. `backward(ctx, *grads)` returns one gradient (or None) per argument. forward runs with grad mode off, and
    its results share no memory with its arguments.
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
        call = _Call(cls, args)
        outputs = _op()(call, [a for a in args if isinstance(a, Tensor)])
        return call.results(outputs)


@functools.cache
def _op() -> _native.CustomOpDef:
    """The op behind every Function, defined on first use."""
    at = ("default", __file__, 1, "python")
    op, _ = _native.define_op(f"{_OP}(Any call, Tensor[] tensors) -> Tensor[]", at)
    _native.register_kernel(_OP, "default", _forward, at)
    _native.register_fake(_OP, _forward)
    _native.register_autograd(_OP, _backward, _setup)
    return op


def _forward(call: _Call, tensors: list[Tensor]) -> list[Tensor]:
    return call.forward(tensors)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    call: _Call = inputs[0]
    inner = call.ctx
    ctx.save_for_backward(*inner._to_save)
    ctx.mark_non_differentiable(*inner._not_differentiable)
    ctx.set_materialize_grads(inner._materialize)
    inner._to_save = inner._not_differentiable = ()
    needs = iter(ctx.needs_input_grad[1])
    inner.needs_input_grad = tuple(next(needs) if isinstance(a, Tensor) else False for a in call.args)
    call.args = tuple(isinstance(a, Tensor) for a in call.args)
    ctx.call = call


def _backward(ctx: Any, grads: list[Any]) -> tuple[None, list[Any]]:
    call: _Call = ctx.call
    name = call.function.__qualname__
    if call.function.backward is Function.backward:
        raise AutogradError(f"{name} has no backward", code="TP3303", op=name)
    call.ctx._saved = ctx
    rest = iter(grads)
    given = [next(rest) if is_tensor else None for is_tensor in call.outputs]
    try:
        result = call.function.backward(call.ctx, *given)
    finally:
        call.ctx._saved = None
    found = result if isinstance(result, tuple) else (result,)
    if len(found) != len(call.args):
        raise ContractError(
            f"{name}.backward must return {len(call.args)} gradients, got {len(found)}",
            code="TP3208",
            op=name,
        )
    for i, (g, is_tensor) in enumerate(zip(found, call.args, strict=True)):
        if g is not None and not is_tensor:
            raise ContractError(
                f"{name}.backward returned a gradient for argument {i}, which is no tensor",
                code="TP3208",
                op=name,
            )
    return None, [g for g, is_tensor in zip(found, call.args, strict=True) if is_tensor]
