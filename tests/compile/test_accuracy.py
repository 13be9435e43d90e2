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

# Function, the exact one, and the bounds of float32 and float64. In float64 exp, log, tanh, sigmoid and erf are written out,
# the others the C library's.
UNARY: dict[str, tuple[Callable, Callable, float, float]] = {
    "exp": (tp.exp, np.exp, 1.0, 1.0),
    "exp2": (tp.exp2, np.exp2, 0.51, 1.0),
    "expm1": (tp.expm1, np.expm1, 0.51, 1.0),
    "log": (tp.log, np.log, 1.0, 1.0),
    "log2": (tp.log2, np.log2, 0.51, 1.0),
    "log10": (tp.log10, np.log10, 0.51, 2.0),
    "log1p": (tp.log1p, np.log1p, 0.51, 1.0),
    "tanh": (tp.tanh, np.tanh, 1.5, 1.5),
    "sin": (tp.sin, np.sin, 2.0, 1.0),
    "cos": (tp.cos, np.cos, 2.0, 1.0),
    "tan": (tp.tan, np.tan, 1.0, 1.0),
    "asin": (tp.asin, np.arcsin, 0.51, 1.0),
    "acos": (tp.acos, np.arccos, 0.51, 1.0),
    "atan": (tp.atan, np.arctan, 0.51, 1.0),
    "sinh": (tp.sinh, np.sinh, 0.51, 2.0),
    "cosh": (tp.cosh, np.cosh, 0.51, 2.0),
    "asinh": (tp.asinh, np.arcsinh, 0.51, 2.0),
    "acosh": (tp.acosh, np.arccosh, 0.51, 2.5),
    "atanh": (tp.atanh, np.arctanh, 0.51, 2.0),
    "sigmoid": (tp.sigmoid, lambda x: 1 / (1 + np.exp(-x)), 3.0, 2.5),
    "sqrt": (tp.sqrt, np.sqrt, 0.5, 0.501),
}
WIDER = {"float32": np.float64, "float64": np.longdouble}
BACKENDS = ["native", pytest.param("tvm", marks=pytest.mark.requires("tvm"))]


def points(dtype: str, count: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(1)
    kind = np.dtype(dtype)
    spread = rng.standard_normal(count) * 10.0 ** rng.uniform(-8, 2, count)
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


MANY = 1_000_000
# Where float64 functions change their form, overflow, or are subnormal, and what lies around.
EDGES = (
    0.625,
    0.84375,
    1.25,
    1 / 0.35,
    6.0,
    22.0,
    0.5**0.5,
    2**0.5,
    708.4,
    709.78,
    709.79,
    -708.4,
    -745.13,
    -745.14,
    1e300,
)


def many(name: str) -> np.ndarray:
    """Ordinary numbers, arbitrary bits, edges with their neighbours, and special values of float64, of both signs."""
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**64, MANY // 4, np.uint64).view(np.float64)
    wide = rng.uniform(-750.0, 750.0, MANY // 4)
    edges = np.concatenate([np.nextafter(EDGES, way) for way in (-math.inf, 0.0, math.inf)])
    tiny = [5e-324, 2.2250738585072014e-308, 1e-310, 1.7976931348623157e308]
    x = np.concatenate([points("float64", MANY // 2), bits, wide, edges, tiny])
    if UNARY.get(name, (None,))[0] in (tp.exp2, tp.sinh, tp.cosh, tp.tan, tp.sin, tp.cos):
        x = x[~(np.abs(x) > 1e15)]  # the long double's own argument reduction ends there
    return np.concatenate([x, -x])


def same_bits(got: tp.Tensor, want: tp.Tensor) -> bool:
    a, b = got.numpy(), want.numpy()
    return bool(((a.view(np.int64) == b.view(np.int64)) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*UNARY, "erf", "gelu", "softplus"])
def test_a_million_values_of_float64_are_eagers_within_the_bound(name: str, backend: str) -> None:
    """5.4: native and TVM have eager's bits, and eager is within the stated bound of the 80-bit value."""
    op = UNARY[name][0] if name in UNARY else getattr(tp, name)
    values = many(name)
    x = tp.from_numpy(values)
    want = op(x)
    got, report = tp.compile(lambda x: op(x), backend=backend, on_fallback="error").run(x)
    assert [r.marker.executor for r in report.forward] == [backend]
    assert same_bits(got, want)
    if name in UNARY and backend == "native":
        with np.errstate(all="ignore"):
            exact = UNARY[name][1](values.astype(np.longdouble))
        assert ulps(want.numpy(), exact) <= UNARY[name][3]


def test_erf_of_float64_is_within_two_units_of_the_librarys() -> None:
    """5.4: which is within one unit itself; NumPy has no erf of the long double."""
    x = np.concatenate([points("float64"), np.linspace(-7, 7, 20_001), EDGES, np.negative(EDGES)])
    got, want = tp.erf(tp.from_numpy(x)).numpy(), np.array([math.erf(v) for v in x])
    assert ulps(got, want.astype(np.longdouble)) <= 2.0
    assert np.array_equal(np.signbit(got[got == 0]), np.signbit(want[got == 0]))


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
