"""A second opinion on two results that differ by rounding: both held against the default kernel in float64.

In narrow dtypes a right kernel may round in other places than the default one. It may be as far from the exact result as
the default kernel itself is, up to a small number of units in the last place, and no farther.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorplay._verify.arrays import Snapshot, is_float
from tensorplay._verify.compare import MANTISSA, default_tolerance
from tensorplay._verify.inputs import Case
from tensorplay._verify.subject import Run, Subject

if TYPE_CHECKING:
    import numpy as np

__all__ = ["as_exact_as_the_default"]

MOST = 64  # units in the last place that no excuse goes beyond


def as_exact_as_the_default(
    subject: Subject, case: Case, run: Run, wanted: Run, rtol: float | None, atol: float | None
) -> str | None:
    """What was compared, where every value of `run` is as close to float64 as those of `wanted`; None where not."""
    exact_case = case.map(
        f"{case.label}, in float64", lambda r: r.cast("float64") if is_float(r.dtype) else r
    )
    exact = subject.run(exact_case, subject.reference())
    if exact.error is not None or exact.structure != run.structure:
        return None
    found = []
    for got, default, want in zip(_values(run), _values(wanted), _values(exact), strict=True):
        if not got.is_tensor or got.dtype not in MANTISSA or got.same_bits(default):
            if not got.same_bits(default):
                return None
            continue
        text = _compare(got, default, want, rtol, atol)
        if text is None:
            return None
        found.append(text)
    return "; ".join(found)


def _values(run: Run) -> list[Snapshot]:
    return [*run.outputs, *run.after.values()]


def _compare(
    got: Snapshot, default: Snapshot, want: Snapshot, rtol: float | None, atol: float | None
) -> str | None:
    import numpy as np

    known = default_tolerance(got.dtype)
    rtol, atol = known[0] if rtol is None else rtol, known[1] if atol is None else atol
    assert got.values is not None
    assert default.values is not None
    assert want.values is not None
    if (got.shape, got.dtype) != (default.shape, default.dtype) or want.shape != got.shape:
        return None
    truth = want.values.astype(np.float64)
    plain = [values.astype(np.float64) for values in (got.values, default.values)]
    finite = np.isfinite(truth) & np.isfinite(plain[0]) & np.isfinite(plain[1])
    if not _same_outside(plain[0], plain[1], finite):
        return None
    unit = 2.0 ** -MANTISSA[got.dtype]
    own = min(_relative(plain[1], truth, finite, atol), MOST * unit)
    with np.errstate(all="ignore"):
        error = np.where(finite, np.abs(plain[0] - truth), 0.0)
        allowed = atol + (rtol + 2 * own) * np.abs(truth)
    if not bool((error[finite] <= allowed[finite]).all()):
        return None
    mine = _relative(plain[0], truth, finite, atol)
    return f"against float64: this kernel off by rel {mine:.3g}, the default by rel {own:.3g}; allowed {rtol + 2 * own:.3g}"


def _same_outside(
    left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], finite: np.ndarray[Any, Any]
) -> bool:
    import numpy as np

    return bool(np.array_equal(left[~finite], right[~finite], equal_nan=True))


def _relative(
    values: np.ndarray[Any, Any], truth: np.ndarray[Any, Any], finite: np.ndarray[Any, Any], floor: float
) -> float:
    """The largest relative error, over elements of more than the absolute tolerance."""
    import numpy as np

    counted = finite & (np.abs(truth) > floor)
    if not counted.any():
        return 0.0
    return float((np.abs(values[counted] - truth[counted]) / np.abs(truth[counted])).max())
