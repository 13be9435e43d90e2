"""Gradients against finite differences.

Lives here: `gradcheck` and `gradgradcheck`, and the message that says which element is wrong and by what factor. Not
here: the choice of inputs, which is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorplay import _native
from tensorplay._native import Tensor
from tensorplay.errors import AutogradError

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]

_b = _native.builtins


class GradcheckError(AutogradError):
    """An analytic gradient that finite differences contradict."""


@dataclass(frozen=True)
class _Options:
    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    name: str


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
) -> bool:
    """Compares the gradients of `func` at `inputs` with central differences, element by element.

    Inputs that require a gradient must be float64. Gradients are also asked for with cotangents that are expanded,
    transposed and sliced, and twice: a backward may neither read memory order nor change its answer.
    """
    values = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    options = _Options(eps, atol, rtol, nondet_tol, _name(func))
    try:
        _check(func, values, options)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    grad_outputs: Tensor | Sequence[Tensor] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
) -> bool:
    """`gradcheck` of the gradient of `func`: its second derivatives, and its dependence on the cotangents."""
    values = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    outputs = _outputs(func, values)
    if grad_outputs is None:
        cotangents = [_random(o.shape, seed).requires_grad_() for seed, o in enumerate(outputs)]
    else:
        cotangents = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    count = len(values)

    def gradient(*args: Any) -> tuple[Any, ...]:
        given, weights = args[:count], list(args[count:])
        ends = _outputs(func, given)
        starts = [x for x in given if _differentiable(x)]
        found = _native.grad(ends, starts, list(weights), True, True, True)
        return tuple(g for g in found if g is not None and g.requires_grad)

    gradient.__qualname__ = f"the gradient of {_name(func)}"
    return gradcheck(
        gradient,
        (*values, *cotangents),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
    )


def _name(func: Callable[..., Any]) -> str:
    if isinstance(func, _native.CustomOpDef):
        return _native.op_name(func)
    return str(getattr(func, "__qualname__", type(func).__name__))


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _outputs(func: Callable[..., Any], inputs: tuple[Any, ...]) -> list[Tensor]:
    """The results that have a gradient."""
    result = func(*inputs)
    found = list(result) if isinstance(result, (tuple, list)) else [result]
    return [o for o in found if _differentiable(o)]


def _check(func: Callable[..., Any], inputs: tuple[Any, ...], options: _Options) -> None:
    starts = [(i, x) for i, x in enumerate(inputs) if _differentiable(x)]
    if not starts:
        raise GradcheckError(f"{options.name}: no input requires a gradient", code="TP3310", op=options.name)
    for i, x in starts:
        _require_checkable(i, x, options)
    outputs = _outputs(func, inputs)
    if not outputs:
        raise GradcheckError(f"{options.name}: no output requires a gradient", code="TP3310", op=options.name)
    wrong = next((o for o in outputs if o.dtype is not _native.float64), None)
    if wrong is not None:
        raise GradcheckError(
            f"{options.name}: an output is {wrong.dtype}: finite differences need float64",
            code="TP3311",
            op=options.name,
        )
    tensors = [x for _, x in starts]
    for k, output in enumerate(outputs):
        analytic = _jacobians(output, tensors)
        again = _jacobians(output, tensors)
        for (i, x), first, second in zip(starts, analytic, again, strict=True):
            where = f"output {k} with respect to input {i}"
            if abs(first - second).max(initial=0.0) > options.nondet_tol:
                raise GradcheckError(
                    f"{options.name}: two backward calls gave different gradients of {where}",
                    code="TP3312",
                    op=options.name,
                )
            numeric = _numeric(func, inputs, i, k, output, options)
            _compare(first, numeric, x, i, k, options)
        _check_cotangents(output, tensors, k, options)


def _require_checkable(i: int, x: Tensor, options: _Options) -> None:
    if x.dtype is not _native.float64:
        raise GradcheckError(
            f"{options.name}: input {i} is {x.dtype}: finite differences need float64",
            code="TP3311",
            op=options.name,
            notes=("pass float64 inputs: in float32 rounding drowns the differences",),
        )
    if any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True)):
        raise GradcheckError(
            f"{options.name}: input {i} has elements that share memory (strides {x.stride()}): pass x.clone()",
            code="TP3313",
            op=options.name,
        )


def _jacobians(output: Tensor, tensors: list[Tensor]) -> list[Any]:
    """d output / d tensor, one matrix (elements of output by elements of the tensor) each."""
    import numpy as np

    found = [np.zeros((math.prod(output.shape), math.prod(x.shape))) for x in tensors]
    for row in range(math.prod(output.shape)):
        one_hot = np.zeros(math.prod(output.shape))
        one_hot[row] = 1.0
        cotangent = _native.tensor(one_hot.reshape(output.shape))
        for matrix, g in zip(found, _gradients(output, tensors, cotangent), strict=True):
            if g is not None:
                matrix[row] = _array(g).reshape(-1)
    return found


def _gradients(output: Tensor, tensors: list[Tensor], cotangent: Tensor) -> list[Tensor | None]:
    return _native.grad([output], tensors, [cotangent], True, False, True)


def _array(x: Tensor) -> Any:
    import numpy as np

    return np.array(x.detach().numpy(), dtype=np.float64)


def _numeric(
    func: Callable[..., Any], inputs: tuple[Any, ...], i: int, k: int, output: Tensor, options: _Options
) -> Any:
    """Central differences of output `k` over every element of input `i`."""
    import numpy as np

    shape = inputs[i].shape
    matrix = np.zeros((math.prod(output.shape), math.prod(shape)))
    for column, index in enumerate(np.ndindex(*shape)):
        ends = []
        for sign in (1.0, -1.0):
            moved = _moved(inputs[i], index, sign * options.eps)
            ends.append(_array(_outputs(func, (*inputs[:i], moved, *inputs[i + 1 :]))[k]).reshape(-1))
        matrix[:, column] = (ends[0] - ends[1]) / (2.0 * options.eps)
    return matrix


def _moved(x: Tensor, index: tuple[int, ...], step: float) -> Tensor:
    """`x` with one element moved, in the same memory layout."""
    moved = _b["empty_strided"](x.shape, x.stride(), dtype=x.dtype)
    _b["copy_"](moved, x.detach())
    moved.numpy()[index] += step
    return moved.requires_grad_()


def _compare(analytic: Any, numeric: Any, x: Tensor, i: int, k: int, options: _Options) -> None:
    import numpy as np

    error = abs(analytic - numeric)
    allowed = options.atol + options.rtol * abs(numeric)
    bad = ~(error <= allowed)
    if not bad.any():
        return
    excess = np.where(np.isnan(error), np.inf, error - allowed)
    row, column = np.unravel_index(int(np.argmax(excess)), error.shape)
    element = tuple(int(j) for j in np.unravel_index(column, x.shape)) if x.shape else ()
    place = f"x[{', '.join(map(str, element))}]" if element else "x"
    lines = [
        f"{options.name}: gradient of output {k} with respect to input {i} is wrong in {int(bad.sum())} of "
        f"{bad.size} elements. Worst at {place} for output element {int(row)}: analytic "
        f"{analytic[row, column]:.6g}, numeric {numeric[row, column]:.6g} (eps {options.eps:g}, atol {options.atol:g}, "
        f"rtol {options.rtol:g})."
    ]
    hint = _ratio_hint(analytic, numeric)
    if hint:
        lines.append(hint)
    notes: tuple[str, ...] = ()
    if bad.size <= 64:
        notes = (f"numeric:\n{np.array2string(numeric)}", f"analytic:\n{np.array2string(analytic)}")
    raise GradcheckError(" ".join(lines), code="TP3105", op=options.name, notes=notes)


def _ratio_hint(analytic: Any, numeric: Any) -> str | None:
    """What a constant factor between the two says."""
    import numpy as np

    large = abs(numeric) > 1e-4
    if not large.any():
        return None
    if not abs(analytic[large]).any():
        return "The analytic gradient is zero everywhere: does backward return it for the right input?"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = numeric[large] / analytic[large]
    if not np.isfinite(ratio).all() or np.ptp(ratio) > 1e-3 * abs(ratio).max():
        return None
    return (
        f"Ratio numeric / analytic is {ratio.mean():.4g} for every element: is a factor missing in backward?"
    )


def _check_cotangents(output: Tensor, tensors: list[Tensor], k: int, options: _Options) -> None:
    """The gradient must not depend on how the cotangent lies in memory."""
    import numpy as np

    for what, cotangent in _cotangents(output):
        plain = _native.tensor(_array(cotangent))
        expected = _gradients(output, tensors, plain)
        found = _gradients(output, tensors, cotangent)
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            if (a is None) != (b is None) or (
                a is not None
                and b is not None
                and not np.allclose(_array(a), _array(b), rtol=1e-9, atol=1e-12)
            ):
                raise GradcheckError(
                    f"{options.name}: the gradient of output {k} with respect to input {i} is another one for a cotangent "
                    f"that is {what}: backward reads memory order",
                    code="TP3314",
                    op=options.name,
                    notes=("call .contiguous() on the gradient, or use its strides",),
                )


def _cotangents(output: Tensor) -> list[tuple[str, Tensor]]:
    shape = tuple(output.shape)
    found = [("expanded", _b["expand"](_native.tensor(0.5, dtype=_native.float64), shape))]
    if shape:
        backwards = tuple(reversed(range(len(shape))))
        if len(shape) > 1:
            found.append(("transposed", _b["permute_dims"](_random(tuple(reversed(shape)), 1), backwards)))
        wide = _random((*shape[:-1], 2 * shape[-1] + 1), 2)
        found.append(("sliced out of a larger tensor", wide[..., 1::2]))
    return found


def _random(shape: Sequence[int], seed: int) -> Tensor:
    import numpy as np

    return _native.tensor(np.random.default_rng(seed).uniform(0.5, 1.5, tuple(shape)))
