"""Functional transforms: `grad`, `value_and_grad`, `vjp`, `jvp`, `jacobian` and `vmap` of functions.

They nest in any order: derivatives of derivatives, per-sample gradients (`vmap(grad(f))`), gradients through a vmap.
Arguments and results are tensors and tuples, lists and dicts of them. Under vmap the tape lies below the batch: a
transform opens its inputs down to plain tensors, differentiates those, and wraps what comes out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from tensorplay import _arguments, _native
from tensorplay._arguments import counted
from tensorplay._batching import Level, active, from_bottom, peel, to_bottom
from tensorplay._native import Scope, Tensor
from tensorplay._tree import Structure, flatten, unflatten
from tensorplay._vmap import vmap
from tensorplay.errors import ArgumentError, AutogradError

__all__ = ["grad", "jacobian", "jvp", "value_and_grad", "vjp", "vmap"]

_b = _native.builtins
ArgNums = int | tuple[int, ...]
A = TypeVar("A")  # of the first argument, and so of its gradient
P = ParamSpec("P")


@overload
def grad(
    func: Callable[Concatenate[A, P], Any], argnums: Literal[0] = 0, has_aux: Literal[False] = False
) -> Callable[Concatenate[A, P], A]: ...
@overload
def grad(
    func: Callable[P, Any], argnums: tuple[int, ...], has_aux: Literal[False] = False
) -> Callable[P, tuple[Any, ...]]: ...
@overload
def grad(func: Callable[P, Any], argnums: ArgNums = 0, has_aux: bool = False) -> Callable[P, Any]: ...
@_arguments.keywords
def grad(func: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient of `func`, which returns one 0-d floating tensor, with respect to the arguments `argnums`.

    An int gives the gradient alone, a tuple a tuple of them; each is nested like its argument. With `has_aux` the
    function returns `(output, aux)`, and so does this. An argument without influence has a gradient of zeros.
    """
    _arguments.function("grad", "func", func)

    @functools.wraps(func)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        (_, aux), found = _value_and_grad("grad", func, argnums, has_aux, args, kwargs)
        return (found, aux) if has_aux else found

    return gradient


@overload
def value_and_grad(
    func: Callable[Concatenate[A, P], Tensor], argnums: Literal[0] = 0, has_aux: Literal[False] = False
) -> Callable[Concatenate[A, P], tuple[Tensor, A]]: ...
@overload
def value_and_grad(
    func: Callable[P, Any], argnums: ArgNums = 0, has_aux: bool = False
) -> Callable[P, tuple[Any, Any]]: ...
@_arguments.keywords
def value_and_grad(
    func: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As `grad`, with what `func` returned in front: `(output, gradient)`, or `((output, aux), gradient)`."""
    _arguments.function("value_and_grad", "func", func)

    @functools.wraps(func)
    def both(*args: Any, **kwargs: Any) -> Any:
        (value, aux), found = _value_and_grad("value_and_grad", func, argnums, has_aux, args, kwargs)
        return ((value, aux), found) if has_aux else (value, found)

    return both


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """`(output, pull)` with `pull(cotangents)`: one gradient per primal, in a tuple; `(output, pull, aux)` with `has_aux`.

    Cotangents are nested like the output and have its shapes. `pull` may be called any number of times.
    """
    _arguments.function("vjp", "func", func)
    if not primals:
        raise ArgumentError("vjp needs at least one primal to differentiate at", code="TP3411")
    run = _Run("vjp", func, tuple(range(len(primals))), has_aux, primals, {})

    def pull(cotangents: Any) -> tuple[Any, ...]:
        leaves = _like(run.outputs, run.structure, cotangents, "cotangent", "an output")
        return run.nested(_pull_batched(run, leaves))

    output = unflatten(run.structure, run.results())
    return (output, pull, run.aux) if has_aux else (output, pull)


def _like(tensors: Sequence[Any], structure: Structure, given: Any, what: str, whose: str) -> list[Tensor]:
    """The tensors of `given`, which is nested like `tensors` are by `structure`, and holds tensors of their shapes."""
    leaves, found = flatten(given)
    if found != structure:
        raise ArgumentError(
            f"{what}s of structure {found!r} for {whose} of structure {structure!r}", code="TP3412"
        )
    for x, leaf in zip(tensors, leaves, strict=True):
        if not isinstance(leaf, Tensor) or leaf.shape != x.shape:
            got = tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__
            raise ArgumentError(
                f"a {what} must be a tensor of shape {tuple(x.shape)}, got {got}", code="TP3412"
            )
    return leaves


@_arguments.keywords
def jvp(func: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """`(output, tangent of the output)`: the derivative of `func` at `primals` in the direction of `tangents`.

    Tangents are nested like the primals and have their shapes. There is no forward mode: the pullback is linear in its
    cotangents, and pulling the tangents back through *it* gives the product. So a backward rule on the way has to be
    differentiable itself; one that is not is an AutogradError, never a tangent of zeros.
    """
    primals = _arguments.items("jvp", "primals", primals)
    tangents = _arguments.items("jvp", "tangents", tangents)
    if len(primals) != len(tangents):
        raise ArgumentError(f"{len(primals)} primals and {len(tangents)} tangents", code="TP3412")
    output, pull = vjp(func, *primals)
    _like(*flatten(tuple(primals)), tuple(tangents), "tangent", "primals")
    leaves, structure = flatten(output)
    ones = unflatten(structure, [_b["ones_like"](x) for x in leaves])
    _, push = vjp(functools.partial(_linear, pull), ones)
    (tangent,) = push(tuple(tangents))
    return output, tangent


def _linear(pull: Callable[[Any], tuple[Any, ...]], cotangents: Any) -> tuple[Any, ...]:
    """What `pull` gives, every part of it recorded: one that is not and is no zero was computed off the tape."""
    found = pull(cotangents)
    for k, x in enumerate(flatten(found)[0]):
        # Inside of vmap the tape holds the whole batch.
        batch = to_bottom(x, active())
        if not batch.requires_grad and _b["any"](_b["ne"](batch, 0.0)).item():
            raise AutogradError(
                f"jvp: the gradient of primal {k} was computed off the tape",
                code="TP3415",
                notes=("backward must be made of recorded ops: no numpy(), detach() or no_grad()",),
            )
    return found


@overload
def jacobian(
    func: Callable[Concatenate[Tensor, P], Tensor], argnums: Literal[0] = 0, has_aux: Literal[False] = False
) -> Callable[Concatenate[Tensor, P], Tensor]: ...
@overload
def jacobian(func: Callable[P, Any], argnums: ArgNums = 0, has_aux: bool = False) -> Callable[P, Any]: ...
@_arguments.keywords
def jacobian(func: Callable[..., Any], argnums: ArgNums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """Every partial derivative of `func`, by one backward pass per element of its output.

    For an output of shape `s` and an argument of shape `t` a tensor of shape `s + t`, nested first like the output,
    then like the arguments chosen by `argnums` (see `grad`). With `has_aux`: `(jacobian, aux)`.
    """
    _arguments.function("jacobian", "func", func)

    @functools.wraps(func)
    def derivatives(*args: Any, **kwargs: Any) -> Any:
        run = _Run("jacobian", func, _numbers(argnums, args, "jacobian"), has_aux, args, kwargs)
        blocks = []
        for k, output in enumerate(run.outputs):
            rows = [_row(run, k, output, i) for i in range(math.prod(output.shape))]
            found = [_block(rows, j, output, x) for j, x in enumerate(run.inputs)]
            nests = run.nested(found)
            blocks.append(nests[0] if isinstance(argnums, int) else nests)
        result = unflatten(run.structure, blocks)
        return (result, run.aux) if has_aux else result

    return derivatives


def _row(run: _Run, k: int, output: Tensor, i: int) -> list[Tensor]:
    """The gradients of element `i` of output `k`."""
    flat = [0.0] * math.prod(output.shape)
    flat[i] = 1.0
    one_hot = _b["reshape"](
        _native.tensor(flat, dtype=output.dtype, device=output.device), list(output.shape)
    )
    return run.pull([one_hot if j == k else None for j in range(len(run.outputs))])


def _block(rows: list[list[Tensor]], j: int, output: Tensor, x: Tensor) -> Tensor:
    shape = [*output.shape, *x.shape]
    if not rows:
        return _b["zeros"](shape, dtype=x.dtype, device=x.device)
    return _b["reshape"](_b["stack"]([row[j] for row in rows], 0), shape)


# ---- one run of a function under differentiation ----


def _recording() -> Scope:
    """Grad mode on while it lasts, on this thread."""
    switch = _native.set_grad_enabled
    return Scope("a transform", AutogradError, "TP3316", switch, switch, True)


class _Run:
    """`func` called on inputs of its own, with everything needed to go back from its outputs to them."""

    def __init__(
        self,
        what: str,
        func: Callable[..., Any],
        numbers: tuple[int, ...],
        has_aux: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.what, self.levels = what, active()
        _arguments.boolean(what, "has_aux", has_aux)
        self._outer = _native.is_grad_enabled()
        self.inputs: list[Tensor] = []
        self._nests: list[Structure] = []
        for n in numbers:
            leaves, nest = flatten(args[n])
            self.inputs += [_differentiable(what, leaf, f"argument {n}") for leaf in leaves]
            self._nests.append(nest)
        with _recording():
            plain = [to_bottom(x, self.levels) for x in self.inputs]
            self.starts = [_start(x) for x in plain]
            if self.starts and not _b["alias"](self.starts[0]).requires_grad:
                raise AutogradError(
                    f"{what} inside of a kernel: nothing is recorded there",
                    code="TP3414",
                    notes=("differentiate outside of the op, or give the op a backward rule",),
                )
            given = iter([from_bottom(x, self.levels) for x in self.starts])
            called = list(args)
            for n, nest in zip(numbers, self._nests, strict=True):
                called[n] = unflatten(nest, [next(given) for _ in range(nest.count())])
            result = func(*called, **kwargs)
            self.aux: Any = None
            if has_aux:
                if not isinstance(result, tuple) or len(result) != 2:
                    raise AutogradError(
                        f"{what}: with has_aux the function returns (output, aux), got {type(result).__name__}",
                        code="TP3413",
                    )
                result, self.aux = result
            leaves, self.structure = flatten(result)
            self.outputs: list[Tensor] = [_differentiable(what, x, "the output") for x in leaves]
            self.ends = [to_bottom(x, self.levels) for x in self.outputs]
        # What comes out is recorded only where someone else can differentiate it.
        aux_ends = [x for x in flatten(self.aux)[0] if isinstance(x, Tensor)]
        self.tracked = self._outer and (
            any(x.requires_grad for x in plain)
            or _native.reaches_other_leaf([*self.ends, *map(self._open, aux_ends)], self.starts)
        )
        for x in self.starts:
            if x.is_leaf:  # from here on only `pull` knows it
                _native.hide_leaf(x)
        self.aux = unflatten(flatten(self.aux)[1], [self.severed(x) for x in flatten(self.aux)[0]])

    def _open(self, x: Tensor) -> Tensor:
        return to_bottom(x, self.levels)

    def severed(self, x: Any) -> Any:
        """`x` without the history that only this transform can use."""
        if self.tracked or not isinstance(x, Tensor):
            return x
        return _b["detach"](x)

    def results(self) -> list[Tensor]:
        """The outputs, for the caller."""
        return [self.severed(x) for x in self.outputs]

    def pull(self, cotangents: Sequence[Tensor | None]) -> list[Tensor]:
        """The gradients of the inputs; None stands for a cotangent of zeros."""
        roots, weights = [], []
        for end, x, given in zip(self.ends, self.outputs, cotangents, strict=True):
            if given is not None and end.requires_grad:
                roots.append(end)
                weights.append(_b["astype"](to_bottom(given, self.levels), x.dtype))
        found: list[Tensor | None] = [None] * len(self.starts)
        if roots:
            wanted = _native.is_grad_enabled() and (self.tracked or any(w.requires_grad for w in weights))
            with _recording():
                found = _native.grad(roots, self.starts, weights, True, wanted, True)
        zeros = _b["zeros_like"]
        plain = [zeros(x) if g is None else g for g, x in zip(found, self.starts, strict=True)]
        return [from_bottom(g, self.levels) for g in plain]

    def nested(self, leaves: list[Any]) -> tuple[Any, ...]:
        """One nest per differentiated argument."""
        rest = iter(leaves)
        return tuple(unflatten(nest, [next(rest) for _ in range(nest.count())]) for nest in self._nests)


def _value_and_grad(
    what: str,
    func: Callable[..., Any],
    argnums: ArgNums,
    has_aux: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, Any], Any]:
    run = _Run(what, func, _numbers(argnums, args, what), has_aux, args, kwargs)
    if not run.structure.is_leaf or run.outputs[0].ndim:
        got = f"shape {tuple(run.outputs[0].shape)}" if run.structure.is_leaf else repr(run.structure)
        raise AutogradError(
            f"{what}: the function must return one 0-d tensor, got {got}",
            code="TP3413",
            notes=("reduce it, for example with sum(); jacobian and vjp take other outputs",),
        )
    ones = _b["ones_like"](run.outputs[0])
    found = run.nested(run.pull([ones]))
    return (run.results()[0], run.aux), found[0] if isinstance(argnums, int) else found


def _start(x: Tensor) -> Tensor:
    """The tensor that the function sees: a leaf of its own, or one more step after what `x` was computed from."""
    if x.requires_grad:
        return _b["alias"](x)
    return _b["detach"](x).requires_grad_()


def _differentiable(what: str, x: Any, where: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise AutogradError(
            f"{what}: {where} must be a tensor or a nest of tensors, got {type(x).__name__}",
            code="TP3411",
            notes=("convert numbers with tensorplay.tensor",),
        )
    if not x.dtype.is_floating_point:
        raise AutogradError(
            f"{what}: {where} is {x.dtype}; only floating tensors have gradients",
            code="TP3012",
            notes=("convert it with astype(float32)",),
        )
    return x


def _items(argnums: Any, what: str) -> list[Any]:
    # Text is no sequence of positions either.
    return _arguments.items(what, "argnums", argnums, "an int or a tuple of them", "TP3411")


def _numbers(argnums: ArgNums, args: tuple[Any, ...], what: str) -> tuple[int, ...]:
    """Positions of the differentiated arguments, from 0."""
    given = (argnums,) if isinstance(argnums, int) else tuple(_items(argnums, what))
    wrong = [n for n in given if not isinstance(n, int) or not -len(args) <= n < len(args)]
    if wrong or not given:
        raise ArgumentError(
            f"{what}: argnums {argnums!r} does not fit {counted(len(args), 'positional argument')}",
            code="TP3411",
        )
    found = tuple(n % len(args) for n in given)
    if len(set(found)) != len(found):
        raise ArgumentError(f"{what}: argnums {argnums!r} names an argument twice", code="TP3411")
    return found


def _pull_batched(run: _Run, cotangents: list[Any]) -> list[Tensor]:
    """`pull` inside of a vmap that began after the run: the graph has no such batch axis, so it is walked per sample."""
    level = _later_level(run, cotangents)
    if level is None:
        return run.pull(cotangents)
    opened = [peel(x, level) for x in cotangents]
    samples = [
        _pull_batched(run, [x if d is None else _b["select"](x, d, i) for x, d in opened])
        for i in range(level.size)
    ]
    stacked = [_b["stack"](list(column), 0) for column in zip(*samples, strict=True)]
    return [_native.vmap_wrap(x, 0, level.number) for x in stacked]


def _later_level(run: _Run, cotangents: list[Any]) -> Level | None:
    """The innermost level that a cotangent is batched at and the run was not."""
    for level in reversed(active()):
        if level not in run.levels and any(peel(x, level)[1] is not None for x in cotangents):
            return level
    return None


def __dir__() -> list[str]:
    return sorted(__all__)
