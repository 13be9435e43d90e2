"""VALUES, batching rules: what `tp.func.vmap` makes of an op with a rule of its own, against a loop over the samples."""

from __future__ import annotations

from collections.abc import Iterator

from tensorplay._record import record_of
from tensorplay._verify.arrays import NoGrad, flatten, is_float, is_tensor, snapshot
from tensorplay._verify.compare import compare
from tensorplay._verify.inputs import Case, TensorRecipe
from tensorplay._verify.report import Tally
from tensorplay._verify.subject import Subject
from tensorplay._verify.values import Accepted, Options, refusal, replay
from tensorplay._vmap import vmap
from tensorplay.functions import stack

__all__ = ["check_batches"]

NAME = "batching rule against a loop"
CASES = 4
# What each sample is the inputs times; a rule that mixes samples up cannot agree with the loop.
FACTORS = (1.0, 0.75, 0.5)


def check_batches(subject: Subject, accepted: list[Accepted], options: Options, tally: Tally) -> None:
    """Every tensor batched, at the first and at the last axis, and each alone; nothing where there is no rule."""
    record = record_of(subject.full) if subject.full is not None else None
    if record is None or record.vmap is None:
        return
    if subject.mutated or not subject.repeatable:
        tally.skip(NAME, "the op writes to its arguments, or differs from call to call", subject.location)
        return
    cases = [item.case for item in accepted if item.covered and _suits(item.case)]
    cases.sort(key=lambda case: not case.given)
    if not cases:
        tally.skip(NAME, "no accepted case has floating tensors that are plain arguments", subject.location)
    for case in cases[:CASES]:
        for in_dims in _in_dims(case):
            _check(subject, case, in_dims, options, tally)


def _suits(case: Case) -> bool:
    plain = [value for value in case.args if isinstance(value, TensorRecipe)]
    return bool(plain) and len(case.recipes()) == len(plain) and all(is_float(r.dtype) for r in plain)


def _in_dims(case: Case) -> Iterator[tuple[int | None, ...]]:
    places = [i for i, value in enumerate(case.args) if isinstance(value, TensorRecipe)]
    yield tuple(0 if i in places else None for i in range(len(case.args)))
    yield tuple(-1 if i in places else None for i in range(len(case.args)))
    if len(places) > 1:
        for place in places:
            yield tuple(0 if i == place else None for i in range(len(case.args)))


def _check(
    subject: Subject, case: Case, in_dims: tuple[int | None, ...], options: Options, tally: Tally
) -> None:
    built = case.build()
    args = built.args
    samples = [tuple(a if d is None else a * k for a, d in zip(args, in_dims, strict=True)) for k in FACTORS]
    whole = [
        a if d is None else stack([s[i] for s in samples], d)
        for i, (a, d) in enumerate(zip(args, in_dims, strict=True))
    ]
    where = f"in_dims={in_dims}\n{replay(subject, case)}"
    with NoGrad():
        try:
            single = [flatten(subject.function(*s, **built.kwargs)) for s in samples]
        except Exception as error:
            tally.skip(NAME, f"a sample is refused: {refusal(error)}", subject.location)
            return
        try:
            got = flatten(vmap(lambda *a: subject.function(*a, **built.kwargs), in_dims)(*whole))
        except Exception as error:
            tally.fail(NAME, f"{refusal(error)}\n{where}", subject.location)
            return
        for i, result in enumerate(got):
            wanted = [outputs[i] for outputs in single]
            if not is_tensor(wanted[0]):
                continue
            want = stack(wanted, 0)
            comparison = compare(snapshot(result), snapshot(want), rtol=options.rtol, atol=options.atol)
            if not comparison.ok:
                tally.fail(NAME, f"output {i}: {comparison.detail}; {where}", subject.location)
                return
    tally.ok(NAME, f"{len(FACTORS)} samples", location=subject.location)
