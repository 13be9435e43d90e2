"""Comparison of two values with a stated tolerance, and the element that is worst. It knows tensors, no operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tensorplay import _arguments
from tensorplay._verify.arrays import Snapshot

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TOLERANCES", "Comparison", "compare", "default_tolerance"]

# dtype -> (rtol, atol): the table that numeric Python users know; whatever is not listed is compared exactly.
TOLERANCES: dict[str, tuple[float, float]] = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
}
# Mantissa bits without the hidden one, for distances in units in the last place.
MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
SMALLEST_EXPONENT = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}


def default_tolerance(*dtypes: str) -> tuple[float, float]:
    """(rtol, atol) of the least precise of these dtypes."""
    for name in dtypes:
        _arguments.string("default_tolerance", "dtypes", name, "names of dtypes")
    known = [TOLERANCES[name] for name in dtypes if name in TOLERANCES]
    return (max(r for r, _ in known), max(a for _, a in known)) if known else (0.0, 0.0)


@dataclass(frozen=True)
class Comparison:
    """The verdict on one pair of values and the numbers behind it. `score` is error over bound: above 1 fails.

    Zeros of either sign are equal here; `zeros` says where the signs differ, for callers that want the same bits.
    """

    ok: bool
    detail: str
    score: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    bad: int = 0
    total: int = 0
    zeros: str = ""


def compare(
    actual: Snapshot,
    expected: Snapshot,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    check_stride: bool = False,
) -> Comparison:
    """Compares shape, dtype, device and then the elements: |actual - expected| <= atol + rtol * |expected|."""
    if isinstance(actual.literal, float) and isinstance(expected.literal, float):
        return _numbers(actual.literal, expected.literal, rtol, atol)
    if actual.values is None or expected.values is None:
        same = actual.same_bits(expected)
        return Comparison(
            same, f"got {_shown(actual)}, expected {_shown(expected)}", 0.0 if same else float("inf")
        )
    fields = ["shape", "dtype", "device"] + (["strides"] if check_stride else [])
    for field in fields:
        got, want = getattr(actual, field), getattr(expected, field)
        if got != want:
            return Comparison(False, f"{field} differs: got {got}, expected {want}", float("inf"))
    default = default_tolerance(actual.dtype, expected.dtype)
    rtol = default[0] if rtol is None else rtol
    atol = default[1] if atol is None else atol
    found = _elements(actual.values, expected.values, actual.dtype, rtol, atol, equal_nan)
    zeros = _zeros(actual.values, expected.values) if actual.dtype in TOLERANCES else ""
    return replace(found, zeros=zeros, detail=f"{found.detail}; {zeros}") if zeros else found


def _shown(value: Snapshot) -> str:
    """A number by itself, a tensor by what it is."""
    return (
        repr(value.literal) if value.values is None else f"a Tensor of shape {value.shape} and {value.dtype}"
    )


def _zeros(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> str:
    """Where one value is 0 and the other -0, which a division or `atan2` tells apart."""
    import numpy as np

    got, want = actual.astype(np.float64), expected.astype(np.float64)
    differ = (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want))
    if not differ.any():
        return ""
    at = [int(i) for i in np.unravel_index(int(np.argmax(differ)), differ.shape)]
    signs = "-0, expected 0" if np.signbit(got[tuple(at)]) else "0, expected -0"
    return f"the sign of zero differs in {int(differ.sum())} of {_arguments.counted(differ.size, 'element')}, first at {at}: got {signs}"


def _numbers(got: float, want: float, rtol: float | None, atol: float | None) -> Comparison:
    """Python numbers that a call returned, as float64 is compared."""
    default = TOLERANCES["float64"]
    rtol, atol = default[0] if rtol is None else rtol, default[1] if atol is None else atol
    ok = got == want or (got != got and want != want) or abs(got - want) <= atol + rtol * abs(want)
    return Comparison(ok, f"got {got!r}, expected {want!r}; allowed rtol {rtol:.3g}, atol {atol:.3g}")


def _elements(
    actual: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    dtype: str,
    rtol: float,
    atol: float,
    equal_nan: bool,
) -> Comparison:
    import numpy as np

    allowed = f"allowed rtol {rtol:.3g}, atol {atol:.3g}" if (rtol or atol) else "allowed: none, exact"
    if actual.size == 0:
        return Comparison(True, f"no elements; {allowed}")
    if dtype not in TOLERANCES and not rtol and not atol:
        got, want = actual, expected
        wrong = got != want
        error = np.where(wrong, np.abs(got.astype(np.float64) - want.astype(np.float64)), 0.0)
        bound = np.zeros_like(error)
    else:
        got, want = actual.astype(np.float64), expected.astype(np.float64)
        with np.errstate(all="ignore"):
            same = (got == want) | (np.isnan(got) & np.isnan(want) if equal_nan else False)
            error = np.where(same, 0.0, np.abs(got - want))
            bound = np.where(np.isfinite(want), atol + rtol * np.abs(want), 0.0)
            wrong = ~same & ~(np.isfinite(got) & (error <= bound))
    return _summary(got, want, error, bound, wrong, dtype, allowed)


def _summary(got: Any, want: Any, error: Any, bound: Any, wrong: Any, dtype: str, allowed: str) -> Comparison:
    import numpy as np

    with np.errstate(all="ignore"):
        badness = np.where(error == 0, 0.0, error / np.where(bound > 0, bound, 1e-300))
        badness = np.where(wrong, np.maximum(np.nan_to_num(badness, nan=np.inf), 1.0 + 1e-9), badness)
        badness = np.where(np.isnan(badness), 0.0, badness)
        relative = np.where(error == 0, 0.0, error / np.abs(want.astype(np.float64)))
    at = np.unravel_index(int(np.argmax(badness)), badness.shape)
    bad, total = int(np.count_nonzero(wrong)), int(np.size(wrong))
    worst_abs, worst_rel = float(error[at]), float(relative[at])
    ulp = _ulp(worst_abs, float(want[at]), dtype)
    where = "[" + ", ".join(str(int(i)) for i in at) + "]"
    text = f"worst at {where}: got {_number(got[at])}, expected {_number(want[at])}"
    text += (
        f" (abs {worst_abs:.3g}, rel {worst_rel:.3g}"
        + (f", {ulp:.3g} ulp" if dtype in MANTISSA else "")
        + ")"
    )
    elements = _arguments.counted(total, "element")
    text = f"{bad} of {elements} differ, {text}" if bad else f"{elements}, {text}"
    if not error.any() and not bad:
        text = f"{elements}, equal"
    score = float(badness[at])
    largest = float(np.max(np.nan_to_num(error, nan=np.inf)))
    return Comparison(not bad, f"{text}; {allowed}", score, largest, worst_rel, ulp, bad, total)


def _number(value: Any) -> str:
    item = value.item()
    return f"{item:.9g}" if isinstance(item, float) else repr(item)


def _ulp(error: float, value: float, dtype: str) -> float:
    import math

    if dtype not in MANTISSA or not math.isfinite(value) or not math.isfinite(error):
        return 0.0 if error == 0 else float("inf")
    exponent = (
        SMALLEST_EXPONENT[dtype] if value == 0 else max(math.frexp(value)[1] - 1, SMALLEST_EXPONENT[dtype])
    )
    return float(error / 2.0 ** (exponent - MANTISSA[dtype]))
