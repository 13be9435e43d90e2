"""VALUES, batching rules: what `tp.func.vmap` makes of an op with a rule of its own, against a loop over the samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorplay._arguments import counted
from tensorplay._record import record_of
from tensorplay._tree import flatten as leaves_of
from tensorplay._tree import unflatten
from tensorplay._verify.arrays import NoGrad, flatten, is_float, is_tensor, snapshot, to_numpy
from tensorplay._verify.compare import compare
from tensorplay._verify.inputs import Case, TensorRecipe, new_tensor
from tensorplay._verify.report import Tally
from tensorplay._verify.subject import Subject
from tensorplay._verify.transforms import put_other
from tensorplay._verify.values import Accepted, Options, refusal, replay, tell
from tensorplay._vmap import vmap
from tensorplay.functions import stack

__all__ = ["check_batches"]

NAME = "batching rule against a loop"
CASES = 4
SINGLE = 6  # tensors that are batched each alone
# What each sample is the inputs times; a rule that mixes samples up cannot agree with the loop.
FACTORS = (1.0, 0.75, 0.5)

Dims = tuple[int | None, ...]


def check_batches(subject: Subject, accepted: list[Accepted], options: Options, tally: Tally) -> None:
    """Tensors batched together, each alone and all but one, along equal and different axes; nothing where there is no rule."""
    record = record_of(subject.full) if subject.full is not None else None
    if record is None or record.vmap is None:
        return
    if subject.mutated or not subject.repeatable:
        tally.skip(NAME, "the op writes to its arguments, or differs from call to call", subject.location)
        return
    cases = [item.case for item in accepted if item.covered and _ranks(item.case)]
    # Tensors of one dimension and of none know one axis at most.
    cases.sort(key=lambda case: (not case.given, max(r for r in _ranks(case) if r is not None) < 2))
    if not cases:
        tally.skip(NAME, "no accepted case has tensors that are positional arguments", subject.location)
    for case in cases[:CASES]:
        for in_dims in _in_dims(_ranks(case)):
            _check(subject, case, in_dims, options, tally)


def _ranks(case: Case) -> tuple[int | None, ...]:
    """For each leaf of the positional arguments the rank, None for what is no tensor; empty where none is one."""
    leaves = leaves_of(case.args)[0]
    ranks = tuple(len(leaf.shape) if isinstance(leaf, TensorRecipe) else None for leaf in leaves)
    return ranks if any(rank is not None for rank in ranks) else ()


def _in_dims(ranks: tuple[int | None, ...]) -> Iterator[Dims]:
    """The axes to try, one per leaf, each choice once."""
    places = [i for i, rank in enumerate(ranks) if rank is not None]

    def dims(axes: dict[int, int]) -> Dims:
        return tuple(axes.get(i) for i in range(len(ranks)))

    middle = {i: min(1, ranks[i] or 0) for i in places}
    shown = places if len(places) <= SINGLE else [*places[: SINGLE // 2], *places[-SINGLE // 2 :]]
    found = [
        dims(dict.fromkeys(places, 0)),
        dims(dict.fromkeys(places, -1)),
        dims(middle),
        *(dims({i: 0}) for i in shown),
        *(dims({i: -1}) for i in shown if ranks[i]),
        *(dims({i: 0 for i in places if i != other}) for other in shown if len(places) > 2),
        dims({i: -(k % 2) for k, i in enumerate(places)}),
        dims({i: -((k + 1) % 2) for k, i in enumerate(places)}),
    ]
    yield from dict.fromkeys(found)


def _sample(tensor: Any, index: int) -> Any:
    """The tensor as the sample of that number has it: floats scaled, others rolled."""
    if is_float(tensor.dtype.name):
        return tensor * FACTORS[index]
    values = to_numpy(tensor)
    for _ in range(index):
        values = put_other(values, tensor.dtype.name)
    return new_tensor(values, tensor.dtype.name)


def _check(subject: Subject, case: Case, in_dims: Dims, options: Options, tally: Tally) -> None:
    built = case.build()
    leaves, structure = leaves_of(built.args)
    with NoGrad():
        samples = [
            [x if d is None else _sample(x, k) for x, d in zip(leaves, in_dims, strict=True)]
            for k in range(len(FACTORS))
        ]
        whole = [
            x if d is None else stack([s[i] for s in samples], d)
            for i, (x, d) in enumerate(zip(leaves, in_dims, strict=True))
        ]
    nest = unflatten(structure, list(in_dims))
    scales = ", ".join(f"{factor:g}" for factor in FACTORS)
    where = f"in_dims={nest}, samples are the floats times {scales}\n{replay(subject, case)}"
    with NoGrad():
        try:
            single = [flatten(subject.function(*unflatten(structure, s), **built.kwargs)) for s in samples]
            wanted = [
                stack(list(outputs), 0) if is_tensor(outputs[0]) else None
                for outputs in zip(*single, strict=True)
            ]
        except Exception as error:
            tally.skip(NAME, f"a sample is refused: {refusal(error)}", subject.location)
            return
        try:
            batched = vmap(lambda *a: subject.function(*a, **built.kwargs), nest)
            got = flatten(batched(*unflatten(structure, whole)))
        except Exception as error:
            tell(tally, NAME, error, where, subject.location, by=f" for in_dims={nest}")
            return
    if len(got) != len(wanted):
        tally.fail(
            NAME, f"{counted(len(got), 'output')}, a sample has {len(wanted)}; {where}", subject.location
        )
        return
    for i, (result, want) in enumerate(zip(got, wanted, strict=True)):
        if want is None:
            continue
        comparison = compare(snapshot(result), snapshot(want), rtol=options.rtol, atol=options.atol)
        if not comparison.ok:
            tally.fail(NAME, f"output {i}: {comparison.detail}; {where}", subject.location)
            return
    tally.ok(NAME, f"{len(FACTORS)} samples", location=subject.location)
