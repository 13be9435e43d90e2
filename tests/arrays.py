"""Sample arrays for exchange with NumPy and other libraries: every shared dtype, and every kind of view."""

from __future__ import annotations

import numpy as np

NUMPY_DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]

VIEWS = {
    "whole": lambda x: x,
    "tail": lambda x: x[1:],
    "every other": lambda x: x[:, :, ::2],
    "transposed": lambda x: x[0].T,
    "column": lambda x: x[:, 1, :],
    "0-d": lambda x: x[1, 2, 3],
    "empty": lambda x: x[:, :0],
    "expanded": lambda x: x[0, 0][None].repeat(2, 0) if isinstance(x, np.ndarray) else x[0, 0].expand(2, 4),
}


def sample(name: str = "float32") -> np.ndarray:
    return np.arange(24).reshape(2, 3, 4).astype(name)
