"""Ops whose output size depends on data, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorplay as tp
from tensorplay import Tensor, library

__all__ = ["pair", "positives", "some_positives", "vector"]


def positives(name: str, low: int = 0, high: int | None = None, *, columns: int | None = None) -> Any:
    """An op that keeps the positive elements of a vector, its size declared from `low` to `high`."""

    @library.custom_op(name, mutates_args=())
    def op(x: Tensor) -> Tensor:
        values = x.numpy()
        kept = values[values > 0]
        return tp.tensor(kept if columns is None else np.stack([kept] * columns, axis=1))

    @op.register_fake
    def fake(x: Tensor) -> Tensor:
        n = library.get_ctx().new_dynamic_size(min=low, max=high)
        return tp.empty((n,) if columns is None else (n, columns), dtype=x.dtype)

    return op


def vector(*values: float) -> Tensor:
    return tp.tensor([float(v) for v in values])


def some_positives(k: int, length: int) -> Tensor:
    """That many positive numbers in a vector of that length."""
    signs = np.where(np.arange(length) < k, 1, -1).astype(np.float32)
    return tp.tensor(np.linspace(0.25, 2.0, length, dtype=np.float32) * signs)


def pair(name: str, *, same: bool) -> Any:
    """An op with two outputs, whose sizes are one symbol."""

    @library.custom_op(name, mutates_args=())
    def op(x: Tensor) -> tuple[Tensor, Tensor]:
        kept = x.numpy()[x.numpy() > 0]
        return tp.tensor(kept), tp.tensor(np.arange(len(kept) + (0 if same else len(kept) % 2)))

    @op.register_fake
    def fake(x: Tensor) -> tuple[Tensor, Tensor]:
        n = library.get_ctx().new_dynamic_size()
        return tp.empty((n,)), tp.empty((n,), dtype=tp.int64)

    return op
