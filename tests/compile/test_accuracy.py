"""How far pointwise functions are from the exact value, on every executor: the bounds in units of the last place.

float32 is held against float64, float64 against the 80-bit long double. float16 and bfloat16 are the float32 function,
rounded once to nearest, ties to even: over all their 65,536 values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import tensorplay as tp

# Function, the exact one, and the bounds of float32 and float64. float64 functions are the C library's.
UNARY: dict[str, tuple[Callable, Callable, float, float]] = {
    "exp": (tp.exp, np.exp, 1.0, 1.0),
    "exp2": (tp.exp2, np.exp2, 0.51, 1.0),
    "expm1": (tp.expm1, np.expm1, 0.51, 1.0),
    "log": (tp.log, np.log, 1.0, 1.0),
    "log2": (tp.log2, np.log2, 0.51, 1.0),
    "log10": (tp.log10, np.log10, 0.51, 2.0),
    "log1p": (tp.log1p, np.log1p, 0.51, 1.0),
    "tanh": (tp.tanh, np.tanh, 1.5, 2.0),
    "sin": (tp.sin, np.sin, 2.0, 1.0),
    "cos": (tp.cos, np.cos, 2.0, 1.0),
    "tan": (tp.tan, np.tan, 1.0, 1.0),
    "asin": (tp.asin, np.arcsin, 0.51, 1.0),
    "acos": (tp.acos, np.arccos, 0.51, 1.0),
    "atan": (tp.atan, np.arctan, 0.51, 1.0),
    "sinh": (tp.sinh, np.sinh, 0.51, 2.0),
    "cosh": (tp.cosh, np.cosh, 0.51, 2.0),
    "asinh": (tp.asinh, np.arcsinh, 0.51, 2.0),
    "acosh": (tp.acosh, np.arccosh, 0.51, 2.0),
    "atanh": (tp.atanh, np.arctanh, 0.51, 2.0),
    "sigmoid": (tp.sigmoid, lambda x: 1 / (1 + np.exp(-x)), 3.0, 3.0),
    "sqrt": (tp.sqrt, np.sqrt, 0.5, 0.501),
}
WIDER = {"float32": np.float64, "float64": np.longdouble}
BACKENDS = ["native", pytest.param("tvm", marks=pytest.mark.requires("tvm"))]


def points(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    kind = np.dtype(dtype)
    spread = rng.standard_normal(20_000) * 10.0 ** rng.uniform(-8, 2, 20_000)
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        math.inf,
        -math.inf,
        math.nan,
        0.5,
        88.0,
        -87.0,
        float(np.finfo(kind).tiny) / 4,
    ]
    near = 1.0 + rng.standard_normal(2000) * 1e-4
    return np.concatenate([special, spread, near, np.linspace(-4, 4, 4001)]).astype(kind)


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest distance in units of the last place; infinite where one is NaN or infinite and the other is not."""
    kind = got.dtype
    with np.errstate(all="ignore"):
        rounded = exact.astype(kind)
    if not np.array_equal(np.isnan(got), np.isnan(rounded)):
        return math.inf
    finite = np.isfinite(got) & np.isfinite(rounded)
    others = ~finite & ~np.isnan(got)
    if not np.array_equal(got[others], rounded[others]):
        return math.inf
    wide = exact[finite]
    unit = np.spacing(np.maximum(np.abs(rounded[finite]), np.finfo(kind).tiny)).astype(exact.dtype)
    return float((np.abs(got[finite].astype(exact.dtype) - wide) / unit).max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", WIDER)
@pytest.mark.parametrize("name", UNARY)
def test_functions_are_within_their_bounds(name: str, dtype: str, backend: str) -> None:
    """5.4: each function stays within its stated units of the last place, special values included."""
    op, exact, *bounds = UNARY[name]
    x = points(dtype)
    got, report = tp.compile(lambda x: op(x), backend=backend, on_fallback="error").run(tp.from_numpy(x))
    assert [r.marker.executor for r in report.forward] == [backend]
    with np.errstate(all="ignore"):
        want = exact(x.astype(WIDER[dtype]))
    assert ulps(got.numpy(), want) <= bounds[dtype == "float64"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_powers_are_within_their_bound(backend: str) -> None:
    """5.4: pow is within one unit in float32 and in float64."""
    rng = np.random.default_rng(2)
    for dtype, wider in WIDER.items():
        x = np.abs(points(dtype))
        y = (rng.standard_normal(x.size) * 4).astype(dtype)
        run = tp.compile(lambda x, y: tp.pow(x, y), backend=backend, on_fallback="error")
        with np.errstate(all="ignore"):
            want = np.power(x.astype(wider), y.astype(wider))
        assert ulps(run(tp.from_numpy(x), tp.from_numpy(y)).numpy(), want) <= 1.0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_the_rounded_float32_function(dtype: str, backend: str) -> None:
    """5.4: all 65,536 values of a half: each op computes in float32 and rounds once to nearest, ties to even."""
    import ml_dtypes

    held = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    x = np.arange(1 << 16, dtype=np.uint16).view(held)
    kind = getattr(tp, dtype)
    for op in (
        tp.exp,
        tp.tanh,
        tp.log,
        tp.sqrt,
        tp.erf,
        lambda x: x * x,
        lambda x: x / 3.0,
        lambda x: x + 1.0,
    ):
        got = tp.compile(op, backend=backend, on_fallback="error")(tp.from_numpy(x))
        assert got.dtype is kind
        with np.errstate(all="ignore"):
            want = op(tp.from_numpy(x.astype(np.float32))).numpy().astype(held)
            a, b = got.numpy().astype(np.float32), want.astype(np.float32)
        assert np.array_equal(a, b, equal_nan=True)
        assert np.array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))
