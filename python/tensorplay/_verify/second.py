"""VALUES, backwards twice: the gradient of the gradient against differences of the gradient, in float64.

A few elements of a few small cases: each costs a forward and a backward. Elements where the differences do not settle
(kinks, jumps) are passed over. First derivatives are in `gradients`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from tensorplay import _native
from tensorplay._verify.arrays import to_numpy
from tensorplay._verify.inputs import Case, TensorRecipe
from tensorplay._verify.recorded import Recorded, WithGrad, cotangents, differentiable, record
from tensorplay._verify.report import Tally
from tensorplay._verify.subject import Subject
from tensorplay._verify.values import refusal, replay

if TYPE_CHECKING:
    import numpy as np

__all__ = ["check_second"]

NAME = "second gradient against differences"
CASES = 2
PROBES = 6  # elements of one input
SMALL = 64  # elements up to which a case is differentiated twice
STEP = 1e-4
RTOL, FLOOR = 1e-4, 1e-6
EPSILON = 2.2e-16


def check_second(subject: Subject, cases: list[Case], seed: int, tally: Tally) -> None:
    """The second derivative of the rule on the first small cases; a skip with its reason where there is none."""
    small = [case for case in cases if sum(r.values.size for r in case.recipes()) <= SMALL]
    if not subject.repeatable:
        tally.skip(NAME, "the op does not give the same bits twice", subject.location)
        return
    if not small:
        tally.skip(NAME, f"no accepted case has at most {SMALL} elements", subject.location)
    for case in small[:CASES]:
        _check_case(subject, differentiable(case, "float64"), seed, tally)


def _check_case(subject: Subject, case: Case, seed: int, tally: Tally) -> None:
    try:
        recorded = record(subject, case)
        if not recorded.outputs or any(t.dtype.name != "float64" for t in recorded.outputs):
            tally.skip(NAME, "the op does not compute in float64", subject.location)
            return
        given = cotangents(recorded.outputs, seed)
        firsts = _firsts(recorded, given, create_graph=True)
        kept = [i for i, g in enumerate(firsts) if g is not None and g.requires_grad]
        if not kept:
            detail = "no gradient is recorded: a second derivative raises, unless the first is constant"
            tally.skip(NAME, detail, subject.location)
            return
        weights = cotangents([firsts[i] for i in kept], seed + 1)
        inputs = [tensor for _, tensor in recorded.inputs]
        with WithGrad():
            seconds = _native.grad([firsts[i] for i in kept], inputs, weights, False, False, True)
    except Exception as error:
        tally.skip(NAME, f"the rule cannot be differentiated: {refusal(error)}", subject.location)
        return
    slopes = _Slopes(subject, case, given, kept, [to_numpy(w) for w in weights])
    recipes = [recipe for recipe in case.recipes() if recipe.requires_grad]
    for recipe, (argument, _), second in zip(recipes, recorded.inputs, seconds, strict=True):
        _check_input(slopes, recipe, argument, second, tally)


def _firsts(recorded: Recorded, given: list[Any], *, create_graph: bool) -> list[Any]:
    inputs = [tensor for _, tensor in recorded.inputs]
    with WithGrad():
        return list(_native.grad(recorded.outputs, inputs, given, create_graph, create_graph, True))


@dataclasses.dataclass
class _Slopes:
    """The scalar function sum(weight * gradient) of one case, and its slope at an element."""

    subject: Subject
    case: Case
    given: list[Any]
    kept: list[int]
    weights: list[np.ndarray[Any, Any]]

    def gradients(self, recipe: TensorRecipe, at: tuple[int, ...], step: float) -> list[Any]:
        """The gradients with one element of one input moved."""
        moved = self.case.replace("moved", {id(recipe): recipe.moved(at, step)})
        found = _firsts(record(self.subject, moved), self.given, create_graph=False)
        return [0.0 if found[i] is None else to_numpy(found[i]) for i in self.kept]

    def slope(self, recipe: TensorRecipe, at: tuple[int, ...], step: float) -> tuple[float, float]:
        """The central difference, and how far rounding can put it off."""
        high, low = self.gradients(recipe, at, step), self.gradients(recipe, at, -step)
        pairs = list(zip(self.weights, high, low, strict=True))
        total = sum(float((w * (a - b)).sum()) for w, a, b in pairs)
        scale = sum(float(abs(w * a).sum()) for w, a, _ in pairs)
        return total / (2 * step), 16 * EPSILON * scale / step


def _check_input(slopes: _Slopes, recipe: TensorRecipe, argument: str, second: Any, tally: Tally) -> None:
    import numpy as np

    analytic = np.zeros(recipe.shape) if second is None else to_numpy(second)
    size = recipe.values.size
    probes = range(size) if size <= PROBES else np.random.Generator(np.random.PCG64(1)).permutation(size)
    for flat in list(probes)[:PROBES]:
        at = tuple(int(i) for i in np.unravel_index(int(flat), recipe.shape))
        step = STEP * max(1.0, abs(float(recipe.values[at])))
        with np.errstate(all="ignore"):
            (wide, _), (near, noise) = slopes.slope(recipe, at, step), slopes.slope(recipe, at, step / 8)
        spread, got = abs(wide - near), float(analytic[at])
        bound = FLOOR + noise + RTOL * abs(near)
        if not (math.isfinite(wide) and math.isfinite(near)) or spread > 10 * bound + 0.05 * abs(near):
            continue
        error = abs(got - near)
        text = f"'{argument}' at {list(at)}: got {got:.9g}, differences say {near:.9g} (error {error:.3g})"
        location = slopes.subject.location
        if error <= bound + 3 * spread:
            tally.ok(NAME, f"worst: {text}", score=error / bound, location=location)
        else:
            tally.fail(NAME, f"{text}\n{replay(slopes.subject, slopes.case)}", location)
            return
