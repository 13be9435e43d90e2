"""VALUES, backwards in float16 and bfloat16: the gradients a rule gives there against those of wider inputs.

The wider run has the same inputs and the same gradients of outputs to the last bit, in float64 where the op takes it.
A right rule may round as the dtype does; where its result hangs on the last bits of what it was given, as far as these
go; and by units of what it is made from, where terms of that size cancel. Gradients in float32 and float64 are in `gradients`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tensorplay._arguments import counted
from tensorplay._verify.arrays import astype, is_float, to_numpy
from tensorplay._verify.compare import MANTISSA
from tensorplay._verify.inputs import Case, TensorRecipe, new_tensor
from tensorplay._verify.recorded import Recorded, cotangents, differentiable, exact_form, misfit, record
from tensorplay._verify.report import Tally
from tensorplay._verify.subject import Subject
from tensorplay._verify.values import Accepted, refusal, replay, tell

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["NARROW", "check_narrow"]

NARROW = ("float16", "bfloat16")
CASES = 2  # of each dtype, given ones first
LARGEST = 2048  # elements of all inputs
UNITS = 16  # of the dtype, relative to the largest element of a gradient
# How often, and how many units, the inputs of the wider run are moved where the first comparison fails.
MOVES, SLACK = 4, 8
TERMS = 4  # units of the gradients given that a sum such as 1 - tanh(x) ** 2 may lose
HIGHEST = {"float16": 65504.0, "bfloat16": 3.38e38}
LOWEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133}


def check_narrow(subject: Subject, accepted: list[Accepted], seed: int, tally: Tally) -> None:
    """The rule of the subject in each narrow dtype that was given or that the op takes."""
    for dtype in NARROW:
        cases = [item.case for item in accepted if _narrowest(item.case) == dtype and _suits(item.case)]
        for case in sorted(cases, key=lambda case: not case.given)[:CASES]:
            _check_case(subject, case, dtype, seed, tally)


def _narrowest(case: Case) -> str | None:
    """The narrow dtype among the tensors of a case, by mantissa."""
    found = {recipe.dtype for recipe in case.recipes()} & set(NARROW)
    return min(found, key=lambda name: MANTISSA[name], default=None)


def _suits(case: Case) -> bool:
    import numpy as np

    values = [recipe.values for recipe in case.recipes() if is_float(recipe.dtype)]
    finite = all(bool(np.isfinite(v).all()) and float(np.abs(v).max(initial=0.0)) < 1e4 for v in values)
    return finite and 0 < sum(v.size for v in values) <= LARGEST


def _check_case(subject: Subject, case: Case, dtype: str, seed: int, tally: Tally) -> None:
    name = f"gradient in {dtype} against a wider one"
    wide_case = exact_form(subject, case)
    own = differentiable(case, None)
    where = replay(subject, own)
    try:
        recorded = record(subject, own)
        given = cotangents(recorded.outputs, seed)
        found = recorded.gradients(given) if recorded.outputs else []
    except Exception as error:
        tell(tally, name, error, where, subject.location)
        return
    if problem := misfit(recorded, found):
        tally.fail(name, f"{problem}\n{where}", subject.location)
        return
    if subject.effects & {"nondeterministic"}:
        tally.skip(
            name, "the op is declared nondeterministic: only that it runs was looked at", subject.location
        )
        return
    if wide_case is None:
        tally.skip(
            name, "the op takes neither float64 nor float32: nothing to compare with", subject.location
        )
        return
    wide = _Wide(subject, wide_case, recorded, given)
    try:
        wanted = wide.gradients(wide_case)
    except Exception as error:
        # Its own check tells of it, where the wider inputs are among those that were tried.
        tally.skip(name, f"the wider gradient cannot be had: {refusal(error)}", subject.location)
        return
    if wanted is None or not wide.in_range(dtype):
        tally.skip(
            name,
            f"outputs that {dtype} cannot hold, or others than in a wider dtype: nothing to compare",
            subject.location,
        )
        return
    detail = _compare(recorded, found, wanted, wide, dtype)
    if detail is None:
        unit = UNITS * 2.0 ** -MANTISSA[dtype]
        tally.ok(name, f"within {UNITS} units, {unit:.3g} of the largest", location=subject.location)
    else:
        tally.fail(name, f"{detail}\n{where}", subject.location)


@dataclasses.dataclass
class _Wide:
    """The same call and backward in a wider dtype, at the same inputs or close by."""

    subject: Subject
    case: Case
    narrow: Recorded
    given: list[Any]
    outputs: list[Any] = dataclasses.field(default_factory=list)

    def gradients(self, case: Case, given: list[Any] | None = None) -> list[Array | None] | None:
        """One gradient or None per input; None for all where other outputs require one than in the narrow dtype."""
        recorded = record(self.subject, case)
        if recorded.indices != self.narrow.indices:
            return None
        self.outputs = recorded.outputs
        pairs = zip(given or self.given, recorded.outputs, strict=True)
        found = recorded.gradients([astype(g, t.dtype.name) for g, t in pairs]) if recorded.outputs else []
        return [None if g is None else to_numpy(g).astype("float64") for g in found]

    def in_range(self, dtype: str) -> bool:
        """Whether the narrow outputs are finite wherever the wider ones are: else the op overflows, not its rule."""
        import numpy as np

        pairs = zip(self.narrow.outputs, self.outputs, strict=True)
        shown = [(to_numpy(a).astype("float64"), to_numpy(b).astype("float64")) for a, b in pairs]
        if any(a.shape != b.shape for a, b in shown):
            return False
        if "random" in self.subject.effects and not all(_same_draw(a, b) for a, b in shown):
            return False
        return all(bool((np.isfinite(a) | ~np.isfinite(b)).all()) for a, b in shown)

    def terms(self, tensor: Any) -> float:
        """How large the terms of this input's gradient may be: those given, and what turns the outputs into a slope."""
        pairs = [(_largest(g), _largest(t)) for g, t in zip(self.given, self.narrow.outputs, strict=True)]
        return TERMS * max(g for g, _ in pairs) + sum(g * t for g, t in pairs) / (_largest(tensor) or 1.0)

    def nearby(self, dtype: str) -> list[list[Array | None]]:
        """Gradients with inputs and given gradients moved by a few units of the dtype."""
        import numpy as np

        rng = np.random.Generator(np.random.PCG64(11))
        found = []
        for _ in range(MOVES):
            case = self.case.map("moved", lambda r: _moved(r, dtype, rng))
            given = [
                new_tensor(_shaken(to_numpy(g).astype("float64"), dtype, rng), "float64") for g in self.given
            ]
            if (near := self.gradients(case, given)) is not None:
                found.append(near)
        return found


def _same_draw(a: Array, b: Array) -> bool:
    """Whether two outputs can come from the same random numbers."""
    import numpy as np

    return bool(np.allclose(a, b, rtol=0.1, atol=0.1 * float(np.abs(b).max(initial=0.0)), equal_nan=True))


def _shaken(values: Array, dtype: str, rng: np.random.Generator) -> Array:
    steps = rng.integers(-2, 3, values.shape) * 2.0 ** -MANTISSA[dtype]
    return (values * (1.0 + steps)).astype(values.dtype)


def _moved(recipe: TensorRecipe, dtype: str, rng: np.random.Generator) -> TensorRecipe:
    if not is_float(recipe.dtype):
        return recipe
    return dataclasses.replace(recipe.plain(), values=_shaken(recipe.values, dtype, rng))


def _compare(
    recorded: Recorded, found: list[Any], wanted: list[Array | None], wide: _Wide, dtype: str
) -> str | None:
    """What is wrong with the first gradient that is farther off than rounding can put it."""
    import numpy as np

    near: list[list[Array | None]] | None = None
    for i, ((argument, tensor), gradient) in enumerate(zip(recorded.inputs, found, strict=False)):
        got = _filled(None if gradient is None else to_numpy(gradient), tuple(tensor.shape))
        want = _filled(wanted[i], got.shape)
        if not _wrong(got, want, _allowed(want, dtype), dtype).any():
            continue
        if near is None:
            near = wide.nearby(dtype)
        spread = SLACK * _spread(want, [n[i] for n in near])
        terms = 2.0 ** -MANTISSA[dtype] * wide.terms(tensor)
        allowed = np.maximum(_allowed(want, dtype), spread) + terms
        wrong = _wrong(got, want, allowed, dtype)
        if wrong.any():
            return _told(argument, got, want, allowed, wrong)
    return None


def _largest(tensor: Any) -> float:
    """The largest finite magnitude."""
    import numpy as np

    values = np.abs(to_numpy(tensor).astype("float64"))
    return float(values[np.isfinite(values)].max(initial=0.0))


def _filled(values: Array | None, shape: tuple[int, ...]) -> Array:
    import numpy as np

    return np.zeros(shape) if values is None else values.astype("float64")


def _allowed(want: Array, dtype: str) -> Array:
    import numpy as np

    finite = np.abs(want[np.isfinite(want)]).max(initial=0.0)
    bound = UNITS * (2.0 ** -MANTISSA[dtype] * float(finite) + LOWEST[dtype])
    return np.full(want.shape, bound)


def _spread(want: Array, near: list[Array | None]) -> Array:
    """How far the wider gradient itself goes; without bound where it is not finite close by."""
    import numpy as np

    spread = np.zeros(want.shape)
    with np.errstate(all="ignore"):
        for values in near:
            spread = np.maximum(spread, np.abs(_filled(values, want.shape) - want))
    return np.where(np.isfinite(spread), spread, np.inf)


def _wrong(got: Array, want: Array, allowed: Array, dtype: str) -> Array:
    """Where a gradient that the dtype can hold came out farther off than allowed, or as no finite number."""
    import numpy as np

    with np.errstate(all="ignore"):
        told = np.isfinite(want) & (np.abs(want) < 0.5 * HIGHEST[dtype])
        return told & ~(np.abs(got - want) <= allowed)


def _told(argument: str, got: Array, want: Array, allowed: Array, wrong: Array) -> str:
    import numpy as np

    with np.errstate(all="ignore"):
        error = np.where(wrong, np.nan_to_num(np.abs(got - want), nan=np.inf), -1.0)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(error)), error.shape))
    bound = float(allowed[at])
    return (
        f"that of '{argument}' at {list(at)}: got {float(got[at]):.6g}, in a wider dtype {float(want[at]):.6g} "
        f"(allowed {bound:.3g}); {int(wrong.sum())} of {counted(wrong.size, 'element')} differ"
    )
