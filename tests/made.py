"""A function of tensors of data beside its compiled twin, for the tests of such tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tensorplay as tp


def fresh() -> Any:
    return np.array([3.0, 2.0, 1.0], dtype=np.float32)


def x() -> Any:
    return tp.tensor([1.0, 2.0, 3.0])


def values(result: Any) -> Any:
    if isinstance(result, tuple | list):
        return [values(one) for one in result]
    return result.tolist() if isinstance(result, tp.Tensor | np.ndarray) else result


def as_eager(fn: Callable[..., Any], runs: int = 3, **options: Any) -> Any:
    """The compiled function gives what the function gives, call after call."""
    compiled = tp.compile(fn, **options)
    for _ in range(runs):
        assert values(compiled(x())) == values(fn(x()))
    return compiled


def gradients_as_eager(fn: Callable[..., Any], runs: int = 3) -> None:
    """The gradient through the compiled function is that through the function, call after call."""
    compiled = tp.compile(fn)
    for _ in range(runs):
        a, b = x().requires_grad_(), x().requires_grad_()
        fn(a).backward()
        compiled(b).backward()
        assert a.grad.tolist() == b.grad.tolist()
