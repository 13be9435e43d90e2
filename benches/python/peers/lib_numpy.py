"""NumPy's form of the cases that it has one for: no tape, no capture, no compiler."""

from __future__ import annotations

import numpy as np
from worker import GELU_SIZE, Builder, Case, gelu, pointwise8


def version() -> str:
    return np.__version__


def builders(settings: dict) -> dict[str, Builder]:
    x, y = np.ones(8, np.float32), np.ones(8, np.float32)

    def big() -> Case:
        data = np.random.default_rng(0).standard_normal(GELU_SIZE, dtype=np.float32)
        return Case("f(x, tanh)", {"f": gelu, "x": data, "tanh": np.tanh})

    return {
        "add": lambda: Case("f(x, y)", {"f": np.add, "x": x, "y": y}),
        "compiled8": lambda: Case(
            "f(x)", {"f": pointwise8, "x": x}, note=lambda: "eager: nothing is compiled"
        ),
        "gelu": big,
    }
