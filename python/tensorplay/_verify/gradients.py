"""VALUES, backwards: the registered gradient against numeric differences, in every memory order a gradient can have.

Differences are central, in float64 where the op takes it. At a kink the gradient must lie between the one-sided
derivatives, and only there is that enough. Compiled gradients are in `compiled`, those in float16 and bfloat16 in
`narrow`, those for some inputs or from some outputs in `partial`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tensorplay._verify.arrays import bits, is_float, snapshot, to_numpy
from tensorplay._verify.compare import compare
from tensorplay._verify.inputs import LAYOUTS, Case, lay_out
from tensorplay._verify.narrow import NARROW, check_narrow
from tensorplay._verify.numeric import Numeric, probe
from tensorplay._verify.partial import check_parts
from tensorplay._verify.recorded import Recorded, cotangents, differentiable, exact_form, misfit, record
from tensorplay._verify.report import Tally
from tensorplay._verify.second import check_second
from tensorplay._verify.subject import Subject
from tensorplay._verify.transforms import changed, put_other, put_zero
from tensorplay._verify.values import Accepted, refusal, replay

__all__ = ["check_gradients"]

CASES = 12
# Cases with another number, a flipped bool or an optional argument left out, beyond those.
NUMBERS = 8
PROBES = 24  # elements of one tensor whose derivative is taken numerically
ROUGHLY = 2e-4  # of the largest element: what float32 may lose over a few hundred operations
SMALL = 256  # elements up to which a case is differentiated numerically


def check_gradients(subject: Subject, accepted: list[Accepted], seed: int, tally: Tally) -> None:
    """The backward rule of the subject on the accepted cases that have floating inputs and that its fake rule takes."""
    accepted = [item for item in accepted if item.taken]
    kind = subject.info.get("autograd", "custom")
    _check_not_in_kernels(subject, accepted, tally)
    if kind == "missing" and any(item.case.given and _asks(item.case) for item in accepted):
        detail = "an input requires a gradient, and no backward is registered: backward() would raise"
        if subject.mutated:
            detail = "an input requires a gradient, and an op that writes to its arguments has none: a call would raise"
        tally.fail("gradient is registered", detail, subject.location)
        return
    if kind == "missing":
        tally.skip("gradient", "no backward is registered; calls that need one raise", subject.location)
        return
    if subject.mutated:
        tally.skip("gradient", "the op writes to its arguments", subject.location)
        return
    chosen = _chosen(accepted)
    if not chosen:
        tally.skip("gradient", "no accepted case has floating inputs", subject.location)
        return
    if kind == "not differentiable":
        _check_not_differentiable(subject, chosen, tally)
        return
    for case in chosen:
        _check_case(subject, case, seed, tally)
    check_narrow(subject, accepted, seed, tally)
    check_second(subject, chosen, seed, tally)


def _asks(case: Case) -> bool:
    return any(recipe.requires_grad for recipe in case.recipes())


def _check_not_in_kernels(subject: Subject, accepted: list[Accepted], tally: Tally) -> None:
    """An output that requires a gradient though no input does was recorded by the kernel: the tape does not see that."""
    if not subject.is_op:
        return
    name = "gradient is not recorded by a kernel"
    for item in accepted[:1]:
        case = item.case.map(item.case.label, lambda r: dataclasses.replace(r, requires_grad=False))
        try:
            recorded = record(subject, case)
        except Exception as error:
            tally.skip(name, refusal(error), subject.location)
            return
        if recorded.outputs:
            detail = f"output {recorded.indices[0]} requires a gradient, and no input does"
            tally.fail(name, f"{detail}\n{replay(subject, case)}", subject.location)
        else:
            tally.ok(name, location=subject.location)


def _chosen(accepted: list[Accepted]) -> list[Case]:
    """Small cases without extreme values, given ones first, one with zeros, where kinks are, and what the first may lack.

    That is other numbers and choices, rank 0, and the other of the two wide dtypes.
    """
    cases = [item.case for item in accepted if _suits(item.case)]
    cases.sort(key=lambda case: not case.given)
    if not cases:
        return []
    planted = cases[0].map(f"{cases[0].label}, with zeros", lambda r: changed(r, put_zero, "with_zero"))
    first, rest = cases[: CASES - 1], cases[CASES - 1 :]
    seen = {_dtypes(case) for case in first}
    others = [case for case in rest if case.numbers][:NUMBERS]
    if not any(map(_is_rank_0, first)):
        others += [case for case in rest if _is_rank_0(case)][:1]
    others += [case for case in rest if _dtypes(case) not in seen and case not in others][:1]
    return [*first, planted, *others]


def _dtypes(case: Case) -> frozenset[str]:
    return frozenset(recipe.dtype for recipe in case.recipes() if is_float(recipe.dtype))


def _is_rank_0(case: Case) -> bool:
    return all(recipe.shape == () for recipe in case.recipes() if is_float(recipe.dtype))


def _suits(case: Case) -> bool:
    """Whether it is small and finite, and in dtypes that differences can be taken in, or given."""
    recipes = [recipe for recipe in case.recipes() if is_float(recipe.dtype)]
    if not recipes or (_dtypes(case) & set(NARROW) and not case.given):
        return False
    import numpy as np

    finite = all(
        bool(np.isfinite(r.values).all()) and (not r.values.size or float(np.abs(r.values).max()) < 1e6)
        for r in recipes
    )
    return finite and sum(recipe.values.size for recipe in recipes) <= 2048


def _check_not_differentiable(subject: Subject, cases: list[Case], tally: Tally) -> None:
    case = differentiable(cases[0], None)
    try:
        recorded = record(subject, case)
    except Exception as error:
        tally.fail(
            "gradient", f"an input that requires a gradient is refused: {refusal(error)}", subject.location
        )
        return
    if recorded.outputs:
        tally.fail(
            "gradient", "declared non-differentiable, but an output requires a gradient", subject.location
        )
    else:
        tally.ok("gradient", "non-differentiable, and no output requires one", location=subject.location)


def _check_case(subject: Subject, case: Case, seed: int, tally: Tally) -> None:
    """One case: in float64 against numbers, and in its own dtype for type and rough agreement."""
    exact = exact_form(subject, case)
    if exact is None:  # `narrow` has what can be said of it
        return
    where = replay(subject, exact)
    try:
        recorded = record(subject, exact)
        if not recorded.outputs:
            tally.skip(f"gradient: {case.label}", "no output requires a gradient", subject.location)
            return
        given = cotangents(recorded.outputs, seed)
        before = [bits(t) for t in [*given, *(t for _, t in recorded.inputs)]]
        found = recorded.gradients(given)
    except Exception as error:
        if case.speculative and isinstance(error, NotImplementedError):
            tally.skip(f"gradient: {case.label}", f"refused: {refusal(error)}", subject.location)
            return
        tally.fail("gradient has one value per input", f"{refusal(error)}\n{where}", subject.location)
        return
    tally.ok("gradient has one value per input", location=subject.location)
    if not _check_types(subject, recorded, found, where, tally):
        return
    _check_repeat(subject, recorded, given, found, before, where, tally)
    _check_own_call(subject, exact, recorded, given, found, tally)
    _check_layouts(subject, recorded, seed, where, tally)
    _check_numeric(subject, exact, recorded, given, found, tally)
    asking = tuple(r.requires_grad for r in case.recipes() if is_float(r.dtype))
    check_parts(subject, exact, asking, recorded, given, tally)
    _check_own_dtype(subject, case, recorded, found, seed, tally)


def _check_own_dtype(
    subject: Subject, case: Case, exact: Recorded, found: list[Any], seed: int, tally: Tally
) -> None:
    """The gradients in the dtype of the case against those in float64, by the largest of each tensor."""
    import numpy as np

    own = differentiable(case, None)
    dtypes = {recipe.dtype for recipe in own.recipes() if is_float(recipe.dtype)}
    if dtypes != {"float32"} or any(t.dtype.name != "float64" for _, t in exact.inputs):
        return
    name = "gradient in float32 against float64"
    try:
        recorded = record(subject, own)
        gradients = recorded.gradients(cotangents(recorded.outputs, seed))
    except Exception as error:
        tally.fail(name, f"{refusal(error)}\n{replay(subject, own)}", subject.location)
        return
    for (argument, _), got, want in zip(recorded.inputs, gradients, found, strict=False):
        if got is None or want is None or tuple(got.shape) != tuple(want.shape):
            continue
        a, b = to_numpy(got).astype("float64"), to_numpy(want)
        scale = float(np.abs(b).max(initial=0.0))
        worst = float(np.abs(a - b).max(initial=0.0))
        if worst > ROUGHLY * scale + np.finfo("float32").tiny:
            tally.fail(
                name,
                f"that of '{argument}' is off by {worst:.3g}, the largest is {scale:.3g}\n{replay(subject, own)}",
                subject.location,
            )
            return
    tally.ok(name, f"within {ROUGHLY:g} of the largest", location=subject.location)


def _check_types(subject: Subject, recorded: Recorded, found: list[Any], where: str, tally: Tally) -> bool:
    name = "gradient fits its input"
    if problem := misfit(recorded, found):
        tally.fail(name, f"{problem}\n{where}", subject.location)
        return False
    tally.ok(name, "shape, dtype, device", location=subject.location)
    return True


def _check_repeat(
    subject: Subject,
    recorded: Recorded,
    given: list[Any],
    found: list[Any],
    before: list[bytes],
    where: str,
    tally: Tally,
) -> None:
    """Backward writes to nothing that others hold, and a second one gives the same bits."""
    name = "backward leaves its inputs alone"
    labels = [f"the gradient of output {i}" for i in recorded.indices] + [n for n, _ in recorded.inputs]
    after = [bits(t) for t in [*given, *(t for _, t in recorded.inputs)]]
    touched = [label for label, a, b in zip(labels, before, after, strict=True) if a != b]
    if touched:
        tally.fail(name, f"backward wrote to {', '.join(touched)}\n{where}", subject.location)
        return
    first = [snapshot(g) for g in found]
    try:
        second = [snapshot(g) for g in recorded.gradients(given)]
    except Exception as error:
        tally.fail(
            name, f"a second backward over the same graph raised {refusal(error)}\n{where}", subject.location
        )
        return
    if subject.repeatable and not all(a.same_bits(b) for a, b in zip(first, second, strict=True)):
        tally.fail(
            name, f"a second backward over the same graph gave other gradients\n{where}", subject.location
        )
        return
    tally.ok(
        name, "inputs, gradients given, and a second backward compared bit by bit", location=subject.location
    )


def _check_own_call(
    subject: Subject, case: Case, recorded: Recorded, given: list[Any], found: list[Any], tally: Tally
) -> None:
    """What backward needs is kept by the call itself: another call before the backward changes nothing."""
    if not subject.repeatable:
        return
    name = "gradient of its own call"
    label = f"{case.label}, other contents"
    other = case.map(label, lambda r: changed(r, put_other, "with_other_contents"))
    try:
        kept = record(subject, other)
    except Exception as error:
        tally.skip(name, f"other contents are refused: {refusal(error)}", subject.location)
        return
    detail = ""
    try:
        again = recorded.gradients(given)
    except Exception as error:
        detail = f"raised {refusal(error)}"
    else:
        pairs = zip(recorded.inputs, again, found, strict=True)
        differ = [n for (n, _), a, b in pairs if not snapshot(a).same_bits(snapshot(b))]
        detail = f"gave another gradient of {', '.join(differ)}" if differ else ""
    del kept
    if detail:
        fix = "keep what backward needs on ctx"
        text = f"a backward after another call {detail}: {fix}"
        tally.fail(name, f"{text}\n{replay(subject, case)}", subject.location)
    else:
        tally.ok(name, "equal after a call with other contents", location=subject.location)


def _check_layouts(subject: Subject, recorded: Recorded, seed: int, where: str, tally: Tally) -> None:
    """Equal gradients in other memory give equal results."""
    name = "gradient in any memory order"
    if not subject.repeatable:
        tally.skip(name, "the op does not give the same bits twice", subject.location)
        return
    for layout in LAYOUTS:
        wanted_of = (
            _expanded_first(recorded.outputs, seed)
            if layout == "expanded"
            else cotangents(recorded.outputs, seed)
        )
        try:
            wanted = recorded.gradients(wanted_of)
            found = recorded.gradients(cotangents(recorded.outputs, seed, layout))
        except Exception as error:
            tally.fail(name, f"a gradient that is {layout}: {refusal(error)}\n{where}", subject.location)
            continue
        for (argument, _), got, want in zip(recorded.inputs, found, wanted, strict=True):
            comparison = compare(snapshot(got), snapshot(want))
            if comparison.ok:
                tally.ok(
                    name, f"{layout}: {comparison.detail}", score=comparison.score, location=subject.location
                )
            else:
                detail = (
                    f"with a gradient that is {layout}, that of '{argument}' differs: {comparison.detail}"
                )
                tally.fail(name, f"{detail}\n{where}", subject.location)


def _expanded_first(outputs: list[Any], seed: int) -> list[Any]:
    """The contents of expanded cotangents in plain memory."""
    return [
        lay_out(to_numpy(t), t.dtype.name, "contiguous")[0] for t in cotangents(outputs, seed, "expanded")
    ]


def _check_numeric(
    subject: Subject, case: Case, recorded: Recorded, given: list[Any], found: list[Any], tally: Tally
) -> None:
    """Every probed element of every input's gradient against differences."""
    import numpy as np

    recipes = [recipe for recipe in case.recipes() if recipe.requires_grad]
    if sum(recipe.values.size for recipe in recipes) > SMALL:
        return
    if subject.effects & {"nondeterministic"}:
        tally.skip("gradient against differences", "the op is declared nondeterministic", subject.location)
        return
    outputs = list(zip(recorded.indices, recorded.outputs, strict=True))
    numeric = Numeric(subject, case, outputs, [tensor for _, tensor in recorded.inputs], given)
    name = f"gradient against differences in {numeric.dtype}"
    for recipe, (argument, _), gradient in zip(recipes, recorded.inputs, found, strict=True):
        analytic = np.zeros(recipe.shape) if gradient is None else to_numpy(gradient).astype("float64")
        size = recipe.values.size
        probes = (
            range(size)
            if size <= PROBES
            else np.random.Generator(np.random.PCG64(0)).permutation(size)[:PROBES]
        )
        for flat in probes:
            at = tuple(int(i) for i in np.unravel_index(int(flat), recipe.shape))
            verdict = probe(numeric, recipe, at, float(analytic[at]))
            if verdict is None:
                continue
            ok, text, score = verdict
            if gradient is None:
                text = f"{text}; backward returned None for it"
            if ok:
                tally.ok(
                    name, f"worst: '{argument}' at {list(at)}: {text}", score=score, location=subject.location
                )
            else:
                tally.fail(
                    name, f"'{argument}' at {list(at)}: {text}\n{replay(subject, case)}", subject.location
                )
                break
