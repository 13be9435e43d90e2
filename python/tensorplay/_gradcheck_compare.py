"""An analytic gradient beside a numeric one: the verdict, and the message that says which element is wrong.

Lives here: the tolerances and the comparison of two matrices. Not here: how either is had (`_gradcheck`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorplay import _arguments
from tensorplay._native import Tensor
from tensorplay.errors import GradcheckError

__all__ = ["Options", "compare"]


@dataclass(frozen=True)
class Options:
    """What a check allows and looks at."""

    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    name: str
    undefined: bool
    dtypes: bool
    fast: bool
    # Results that are off the tape must not depend on the inputs: so for gradients that are differentiated again.
    taped: bool = False

    @classmethod
    def checked(
        cls,
        owner: str,
        tolerances: tuple[Any, Any, Any, Any],
        name: str,
        flags: tuple[Any, Any, Any],
        taped: bool = False,
    ) -> Options:
        """The arguments of `owner` of these names, held to what they may be."""
        eps, atol, rtol, nondet_tol = tolerances
        undefined, dtypes, fast = flags
        return cls(
            _arguments.tolerance(owner, "eps", eps, positive=True),
            _arguments.tolerance(owner, "atol", atol),
            _arguments.tolerance(owner, "rtol", rtol),
            _arguments.tolerance(owner, "nondet_tol", nondet_tol),
            name,
            _arguments.boolean(owner, "check_undefined_grad", undefined),
            _arguments.boolean(owner, "check_grad_dtypes", dtypes),
            _arguments.boolean(owner, "fast_mode", fast),
            taped,
        )


def compare(analytic: Any, numeric: Any, x: Tensor, i: int, k: int, options: Options) -> None:
    """GradcheckError where a matrix of gradients is not the numeric one; it names the worst element."""
    import numpy as np

    error = abs(analytic - numeric)
    allowed = options.atol + options.rtol * abs(numeric)
    bad = ~(error <= allowed)
    if not bad.any():
        return
    excess = np.where(np.isnan(error), np.inf, error - allowed)
    row, column = np.unravel_index(int(np.argmax(excess)), error.shape)
    element = tuple(int(j) for j in np.unravel_index(column, x.shape)) if x.shape else ()
    place = f"x[{', '.join(map(str, element))}]" if element else "x"
    lines = [
        f"{options.name}: gradient of output {k} with respect to input {i} is wrong in {int(bad.sum())} of "
        f"{bad.size} elements. Worst at {place} for output element {int(row)}: analytic "
        f"{analytic[row, column]:.6g}, numeric {numeric[row, column]:.6g} (eps {options.eps:g}, atol {options.atol:g}, "
        f"rtol {options.rtol:g})."
    ]
    hint = _ratio_hint(analytic, numeric)
    if hint:
        lines.append(hint)
    notes: tuple[str, ...] = ()
    if bad.size <= 64:
        notes = (f"numeric:\n{np.array2string(numeric)}", f"analytic:\n{np.array2string(analytic)}")
    raise GradcheckError(" ".join(lines), code="TP3105", op=options.name, notes=notes)


def _ratio_hint(analytic: Any, numeric: Any) -> str | None:
    """What a constant factor between the two says."""
    import numpy as np

    large = abs(numeric) > 1e-4
    if not large.any():
        return None
    if not abs(analytic[large]).any():
        return "The analytic gradient is zero everywhere: does backward return it for the right input?"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = numeric[large] / analytic[large]
    if not np.isfinite(ratio).all() or np.ptp(ratio) > 1e-3 * abs(ratio).max():
        return None
    return (
        f"Ratio numeric / analytic is {ratio.mean():.4g} for every element: is a factor missing in backward?"
    )
