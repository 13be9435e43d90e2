"""Derivatives by differences: one scalar function of one case, its slope at an element, and the verdict on a gradient.

Knows kinks and jumps; which elements to look at is decided in `gradients`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tensorplay._verify.arrays import NoGrad, flatten, to_numpy
from tensorplay._verify.inputs import Case, TensorRecipe
from tensorplay._verify.subject import Subject

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Numeric", "probe"]

# dtype -> (step, rtol, floor of atol): float64 finds an error of one part in ten thousand with room to spare.
STEPS = {"float64": (1e-5, 2e-5, 1e-8), "float32": (1e-2, 2e-2, 1e-3)}
EPSILON = {"float64": 2.2e-16, "float32": 1.2e-7}


class Numeric:
    """The scalar function sum(cotangent * output) of one case, evaluated without gradients at moved inputs."""

    def __init__(
        self,
        subject: Subject,
        case: Case,
        outputs: list[tuple[int, Any]],
        inputs: list[Any],
        given: list[Any],
    ) -> None:
        self.subject = subject
        self.case = case
        self.indices = [index for index, _ in outputs]
        self.weights = [to_numpy(t).astype("float64") for t in given]
        self.center = self._outputs(case)
        # What the least precise of the outputs and inputs can tell apart decides the step.
        dtypes = {tensor.dtype.name for tensor in [*inputs, *(output for _, output in outputs)]}
        self.dtype = "float64" if dtypes <= {"float64"} else "float32"
        self.scale = sum(float(abs(w * c).sum()) for w, c in zip(self.weights, self.center, strict=True))

    def _outputs(self, case: Case) -> list[np.ndarray[Any, Any]]:
        built = case.build()
        self.subject.seed()
        with NoGrad():
            results = flatten(self.subject.function(*built.args, **built.kwargs))
        return [to_numpy(results[i]).astype("float64") for i in self.indices]

    def moved(self, recipe: TensorRecipe, at: tuple[int, ...], step: float) -> list[np.ndarray[Any, Any]]:
        """Outputs with one element of one input moved."""
        return self._outputs(self.case.replace("moved", {id(recipe): recipe.moved(at, step)}))

    def slope(self, high: list[np.ndarray[Any, Any]], low: list[np.ndarray[Any, Any]], width: float) -> float:
        """Weighted difference per `width`, summed last so that large outputs do not drown small changes."""
        import numpy as np

        with np.errstate(all="ignore"):  # infinities give NaN, which the caller passes over
            total = sum(float((w * (b - a)).sum()) for w, b, a in zip(self.weights, high, low, strict=True))
        return total / width

    def bound(self, slope: float, step: float) -> float:
        """How far a right gradient may be from a central difference: rounding of the function, and of the step."""
        _, rtol, floor = STEPS[self.dtype]
        noise = 4 * EPSILON[self.dtype] * self.scale / step
        return floor + noise + rtol * abs(slope)

    def derivatives(
        self, recipe: TensorRecipe, at: tuple[int, ...], step: float
    ) -> tuple[float, float, float]:
        """(central, from the right, from the left)."""
        high, low = self.moved(recipe, at, step), self.moved(recipe, at, -step)
        sides = self.slope(high, self.center, step), self.slope(self.center, low, step)
        return self.slope(high, low, 2 * step), *sides


def probe(
    numeric: Numeric, recipe: TensorRecipe, at: tuple[int, ...], analytic: float
) -> tuple[bool, str, float] | None:
    """(holds, what was compared, error over bound) for one element; None where there is no derivative to compare."""
    widest = STEPS[numeric.dtype][0] * max(1.0, abs(float(recipe.values[at])))
    first: tuple[str, float, float, tuple[float, float]] | None = None
    steps = [widest, widest / 64]  # the smaller one stays clear of a kink or a jump close by
    if (
        1e-4 < abs(float(recipe.values[at])) < 1e-2
    ):  # near 0 jumps can lie closer yet, as those of floor(1 / x)
        steps.append(1e-6 * abs(float(recipe.values[at])))
    for step in steps:
        central, right, left = numeric.derivatives(recipe, at, step)
        if not all(map(math.isfinite, (central, right, left))):
            return None
        bound, error = numeric.bound(central, step), abs(analytic - central)
        text = f"got {analytic:.9g}, differences say {central:.9g} (error {error:.3g}, allowed {bound:.3g})"
        if error <= bound:
            return True, text, error / bound
        if first is None:
            first = text, central, bound, (right, left)
        elif abs(central) > 16 * abs(first[1]) + bound:
            return None  # the slope grows as the step shrinks: a jump
    assert first is not None
    return _judge(numeric, recipe, at, widest, analytic, *first)


def _judge(
    numeric: Numeric,
    recipe: TensorRecipe,
    at: tuple[int, ...],
    step: float,
    analytic: float,
    text: str,
    central: float,
    bound: float,
    sides: tuple[float, float],
) -> tuple[bool, str, float]:
    """What differences cannot confirm: right at a kink, or within the op's own rounding, or else wrong."""
    right, left = sides
    if math.isfinite(analytic) and _is_kink(numeric, recipe, at, step, sides, bound):
        inside = min(sides) - bound <= analytic <= max(sides) + bound
        return (
            inside,
            f"got {analytic:.9g} at a kink, one-sided derivatives are {left:.9g} and {right:.9g}",
            0.0,
        )
    wide, *_ = numeric.derivatives(recipe, at, 4 * step)
    spread = abs(wide - central)
    error = abs(analytic - central)
    if math.isfinite(spread) and bound < spread and error <= bound + 3 * spread:
        return True, f"{text}; the op's own rounding limits differences to {3 * spread:.3g}", 0.0
    return False, text, error / bound if math.isfinite(error) else math.inf


def _is_kink(
    numeric: Numeric,
    recipe: TensorRecipe,
    at: tuple[int, ...],
    step: float,
    sides: tuple[float, float],
    bound: float,
) -> bool:
    """Whether the one-sided derivatives stay apart when the step shrinks; on a smooth function they meet."""
    gap = abs(sides[0] - sides[1])
    if gap <= 10 * bound:
        return False
    _, right, left = numeric.derivatives(recipe, at, step / 8)
    return abs(right - left) > gap / 2
