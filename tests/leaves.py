"""Leaves of the tape: what gradients are asked for in tests."""

from __future__ import annotations

import tensorplay as tp


def leaf(*values: float) -> tp.Tensor:
    """float32[n] that requires a gradient."""
    return tp.tensor(list(values), requires_grad=True)
