"""NumPy's form of the cases that it has one for: no tape, no capture, no compiler."""

from __future__ import annotations

import numpy as np
from worker import GELU_SIZE, SOFTMAX_SIZE, Builder, Case, gelu, pointwise8


def version() -> str:
    return np.__version__


def builders(settings: dict) -> dict[str, Builder]:
    x, y = np.ones(8, np.float32), np.ones(8, np.float32)

    def big() -> Case:
        data = np.random.default_rng(0).standard_normal(GELU_SIZE, dtype=np.float32)
        return Case("f(x, tanh)", {"f": gelu, "x": data, "tanh": np.tanh})

    def copy() -> Case:
        names = {"f": np.copyto, "to": np.ones(GELU_SIZE, np.float32), "x": np.ones(GELU_SIZE, np.float32)}
        return Case("f(to, x)", names, note=lambda: "a memory copy of the same bytes")

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return {
        "add": lambda: Case("f(x, y)", {"f": np.add, "x": x, "y": y}),
        "compiled8": lambda: Case(
            "f(x)", {"f": pointwise8, "x": x}, note=lambda: "eager: nothing is compiled"
        ),
        "gelu": big,
        "double": copy,
        "softmax": lambda: Case(
            "f(x)", {"f": softmax, "x": np.ones((SOFTMAX_SIZE, SOFTMAX_SIZE), np.float32)}
        ),
    }
