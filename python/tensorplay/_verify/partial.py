"""VALUES, backwards in part: a gradient for some of the inputs alone, and one from some of the outputs alone.

A rule sees which gradients are wanted and which are given, and may compute less; what it does compute is the same. What
it gives for all inputs and all outputs is checked against differences in `gradients`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorplay import _native
from tensorplay._verify.arrays import dtype_object, to_numpy
from tensorplay._verify.inputs import Case, TensorRecipe
from tensorplay._verify.recorded import Recorded, WithGrad, misfit, record
from tensorplay._verify.report import Tally
from tensorplay._verify.subject import Subject
from tensorplay._verify.values import replay, tell

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["check_parts"]

INPUTS = "gradient for some inputs alone"
OUTPUTS = "gradient from some outputs alone"
MOST = 32  # pairs of (inputs, outputs) of one case
SINGLE = 8  # inputs or outputs that are taken each alone
# Of the largest element: two ways to compute one gradient differ by rounding.
ROUGHLY = {"float64": 1e-6, "float32": 2e-4, "float16": 5e-2, "bfloat16": 2e-1}

Part = tuple[int, ...]


def check_parts(
    subject: Subject, case: Case, asking: tuple[bool, ...], whole: Recorded, given: list[Any], tally: Tally
) -> None:
    """`whole` records the case with all inputs; `given` are its gradients of outputs; `asking` is what somebody asked for."""
    parts = _Whole(subject, case, whole, given)
    inputs, outputs = len(whole.inputs), len(whole.outputs)
    asked = tuple(i for i, wants in enumerate(asking) if wants)
    pairs = [
        (some, from_)
        for some in _subsets(inputs, asked)
        for from_ in _subsets(outputs, ())
        if (some, from_) != (tuple(range(inputs)), tuple(range(outputs)))
    ]
    # One change at a time comes first: where there are too many pairs, those of two changes are left out.
    pairs.sort(key=lambda pair: len(pair[0]) < inputs and len(pair[1]) < outputs)
    recorded: dict[Part, Recorded | None] = {}
    for some, from_ in pairs[:MOST]:
        if some not in recorded:
            recorded[some] = parts.record(some, tally)
        if (run := recorded[some]) is not None:
            parts.check(run, some, from_, tally)


def _subsets(count: int, extra: Part) -> list[Part]:
    """All, each alone, all but one, and `extra`; of many, the first and the last ones."""
    every = tuple(range(count))
    half = SINGLE // 2
    shown = every if count <= SINGLE else (*every[:half], *every[-half:])
    found = [every, *((i,) for i in shown), *(tuple(j for j in every if j != i) for i in shown)]
    return [part for part in dict.fromkeys([*found, extra]) if part]


def _marked(case: Case, some: Part) -> Case:
    """The case with a gradient wanted for these inputs alone, in its text too."""
    asking = [recipe for recipe in case.recipes() if recipe.requires_grad]
    chosen = {id(asking[i]) for i in some}

    def change(recipe: TensorRecipe) -> TensorRecipe:
        return dataclasses.replace(recipe, requires_grad=id(recipe) in chosen, marked=True)

    return case.map(case.label, change)


@dataclass
class _Whole:
    """The gradients of one case for all inputs, and what of them comes from which outputs."""

    subject: Subject
    case: Case
    whole: Recorded
    given: list[Any]
    shares: dict[Part, list[Array] | None] = field(default_factory=dict)

    def record(self, some: Part, tally: Tally) -> Recorded | None:
        """The call with a gradient wanted for `some`; None where it is refused."""
        if len(some) == len(self.whole.inputs):
            return self.whole
        case = _marked(self.case, some)
        try:
            return record(self.subject, case)
        except Exception as error:
            where = replay(self.subject, case)
            tell(tally, INPUTS, error, where, self.subject.location, told=self._wanted(some))
        return None

    def check(self, run: Recorded, some: Part, from_: Part, tally: Tally) -> None:
        """One backward against the share of the whole one."""
        name = INPUTS if len(from_) == len(self.whole.outputs) else OUTPUTS
        told = ", ".join(filter(None, (self._wanted(some), self._from(from_))))
        where = replay(self.subject, _marked(self.case, some))
        location = self.subject.location
        try:
            found = self._gradients(run, from_)
        except Exception as error:
            tell(tally, name, error, where, location, told=told)
            return
        problem = misfit(run, found)
        if problem is None and not self.subject.effects & {"nondeterministic"}:
            problem = self._difference(run, found, some, from_)
        if problem is None:
            tally.ok(name, "each alone, and all but one", location=location)
        else:
            tally.fail(name, f"{told}: {problem}\n{where}", location)

    def _wanted(self, some: Part) -> str:
        if len(some) == len(self.whole.inputs):
            return ""
        return f"gradients wanted for {', '.join(repr(self.whole.inputs[i][0]) for i in some)} alone"

    def _from(self, from_: Part) -> str:
        if len(from_) == len(self.whole.outputs):
            return ""
        numbers = ", ".join(str(self.whole.indices[k]) for k in from_)
        return f"gradients given for {'output' if len(from_) == 1 else 'outputs'} {numbers} alone"

    def _gradients(self, run: Recorded, from_: Part) -> list[Any]:
        """With the outputs that are not in `from_` left out."""
        wanted = [self.whole.indices[k] for k in from_]
        pairs = [
            (output, self.given[self.whole.indices.index(i)])
            for i, output in zip(run.indices, run.outputs, strict=True)
            if i in wanted
        ]
        if not pairs:
            return [None] * len(run.inputs)
        ends, given = zip(*pairs, strict=True)
        with WithGrad():
            inputs = [tensor for _, tensor in run.inputs]
            return list(_native.grad(list(ends), inputs, list(given), True, False, True))

    def _share(self, from_: Part) -> list[Array] | None:
        """What the outputs in `from_` contribute to the whole gradients, which are linear in what is given.

        All outputs have a gradient that is not zero in both runs it is taken from. None where one of them raises:
        that has its own check.
        """
        if from_ not in self.shares:
            try:
                self.shares[from_] = self._taken(from_)
            except Exception:
                self.shares[from_] = None
        return self.shares[from_]

    def _taken(self, from_: Part) -> list[Array]:
        import numpy as np

        full = self._arrays(self.given)
        if len(from_) == len(self.given):
            return full
        halved = [
            g if k in from_ else _native.builtins["astype"](g * 0.5, dtype_object(g.dtype.name))
            for k, g in enumerate(self.given)
        ]
        with np.errstate(all="ignore"):
            return [2.0 * b - a for a, b in zip(full, self._arrays(halved), strict=True)]

    def _arrays(self, given: list[Any]) -> list[Array]:
        return _arrays(self.whole, self.whole.gradients(given))

    def _difference(self, run: Recorded, found: list[Any], some: Part, from_: Part) -> str | None:
        """The first gradient that is not the share of the whole one."""
        import numpy as np

        share, full = self._share(from_), self._share(tuple(range(len(self.given))))
        if share is None or full is None:
            return None
        for i, (argument, tensor), got in zip(some, run.inputs, _arrays(run, found), strict=True):
            want = share[i]
            with np.errstate(all="ignore"):
                sizes = [np.abs(v[np.isfinite(v)]).max(initial=0.0) for v in (full[i], want)]
                allowed = ROUGHLY[tensor.dtype.name] * float(max(sizes)) + 1e-12
                wrong = np.isfinite(want) & ~(np.abs(got - want) <= allowed)
            if wrong.any():
                at = tuple(int(k) for k in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
                text = f"that of '{argument}' at {list(at)} is {got[at]:.9g}, of the whole gradient it is {want[at]:.9g}"
                return f"{text} (allowed {allowed:.3g})"
        return None


def _arrays(run: Recorded, found: list[Any]) -> list[Array]:
    """Zeros for None, in float64."""
    import numpy as np

    pairs = zip(run.inputs, found, strict=True)
    return [np.zeros(tuple(t.shape)) if g is None else to_numpy(g).astype("float64") for (_, t), g in pairs]
