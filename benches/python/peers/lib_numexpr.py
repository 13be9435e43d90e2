"""numexpr's form of the cases that it has one for: pointwise expressions over NumPy arrays."""

from __future__ import annotations

import numexpr
import numpy as np
from worker import GELU_SIZE, Builder, Case

GELU = "0.5 * x * (1.0 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)))"


def version() -> str:
    return numexpr.__version__


def builders(settings: dict) -> dict[str, Builder]:
    numexpr.set_num_threads(settings["threads"])

    def large(text: str) -> Case:
        data = np.random.default_rng(0).standard_normal(GELU_SIZE, dtype=np.float32)
        names = {"f": numexpr.evaluate, "text": text, "values": {"x": data}, "out": np.empty_like(data)}
        return Case("f(text, values, out=out, casting='same_kind')", names)

    return {"gelu": lambda: large(GELU), "double": lambda: large("x * 2.0")}
