"""VALUES: each kernel against the default one, and what a call may not do: write, remember, read what nobody wrote.

Gradients and compiled runs have modules of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tensorplay import _native
from tensorplay._arguments import counted
from tensorplay._record import record_of
from tensorplay._verify.arrays import NoGrad, Snapshot, flatten, snapshot
from tensorplay._verify.compare import Comparison, compare
from tensorplay._verify.inputs import Case
from tensorplay._verify.poison import PATTERNS, poison
from tensorplay._verify.precise import as_exact_as_the_default
from tensorplay._verify.report import Tally
from tensorplay._verify.subject import Kernel, Run, Subject, container_sizes
from tensorplay.errors import ContractError, NoKernelError, TensorPlayError

__all__ = [
    "Accepted",
    "Options",
    "check_case",
    "check_effects_seen",
    "check_kernels",
    "check_over_declared",
    "passed_over",
    "refusal",
]


@dataclass(frozen=True)
class Options:
    """What the caller of `verify` asked for."""

    rtol: float | None = None
    atol: float | None = None
    sweep: bool = True
    require: tuple[str, ...] = ()
    seed: int = 0


@dataclass
class Accepted:
    """A case that the default kernel takes, with its reference run."""

    case: Case
    run: Run
    writes: list[str] = field(default_factory=list)
    # Whether the fake rule holds for it; capture refuses what it does not cover.
    covered: bool = True
    # Whether the fake rule takes it at all: what that refuses, and nobody gave, is no part of the op.
    taken: bool = True


# What is said of a case that is skipped, before the error.
REFUSED = "the default kernel refuses them: "


def refusal(error: BaseException) -> str:
    """One line about an error, without its notes."""
    try:
        text = str(error).strip().splitlines()
    except Exception as broken:
        text = [f"(its text raises {type(broken).__name__})"]
    return f"{type(error).__name__}: {text[0] if text else ''}".strip()


def tell(
    tally: Tally,
    name: str,
    error: Exception,
    where: str,
    location: str | None,
    *,
    told: str = "",
    by: str = "",
) -> None:
    """A run of a rule that raised: a refusal (`by` says of what) is a skip, anything else a failure."""
    prefix = f"{told}: " if told else ""
    if isinstance(error, NotImplementedError):
        tally.skip(name, f"{prefix}refused{by}: {refusal(error)}", location)
    else:
        tally.fail(name, f"{prefix}{refusal(error)}\n{where}", location)


def replay(subject: Subject, case: Case) -> str:
    """The line that shows which call it was and how to make it again."""
    return f"case: {case.label}\nreplay: {case.text(subject.name)}"


def check_case(subject: Subject, case: Case, options: Options, tally: Tally) -> Accepted | None:
    """The reference run of one case, and the contract around it; None where the op refuses these inputs."""
    reference = subject.reference()
    run = subject.run(case, reference)
    if run.error is not None:
        if isinstance(run.error, ContractError):
            tally.fail(
                "outputs fit the schema", f"{refusal(run.error)}\n{replay(subject, case)}", subject.location
            )
        else:
            tally.skip(f"inputs: {case.label}", REFUSED + refusal(run.error))
        return None
    subject.learn_effects(run)
    tally.ok("outputs fit the schema", location=subject.location)
    check_writes(subject, case, run, reference, tally)
    if subject.repeatable:
        check_repeats(subject, case, run, reference, tally)
        check_layout(subject, case, run, options, tally)
    return Accepted(case, run, run.changed)


def check_writes(subject: Subject, case: Case, run: Run, kernel: Kernel | None, tally: Tally) -> None:
    """No bit of an input changed, and no version moved, unless the schema says so."""
    if not subject.is_op:
        return
    name = "inputs unchanged" if not subject.mutated else "nothing written but what is declared"
    location = kernel.location if kernel else subject.location
    touched = list(dict.fromkeys([*run.changed, *run.bumped]))
    undeclared = [
        n for n in touched if not subject.declares(n.removesuffix(" (memory around the view)")) or "(" in n
    ]
    for argument in undeclared:
        undone = argument not in run.changed
        how = "was written to and restored (its version moved)" if undone else "was written to"
        fix = f'declare mutates_args=("{argument.split("[")[0]}",) or work on a clone'
        tally.fail(
            name,
            f"{argument} {how}, but the schema does not declare it: {fix}\n{replay(subject, case)}",
            location,
        )
    if not undeclared:
        tally.ok(name, "bits and versions of every input compared", location=location)


# A state of the random numbers that no op leaves behind by chance.
UNUSUAL = (0x5EED_0DD, 77)


def _outside(subject: Subject, kernel: Kernel | None) -> dict[str, Any]:
    """What a call must leave as it was: the containers its function reaches, and the state of the random numbers."""
    if subject.effects:
        return {}
    found: dict[str, Any] = {"the state of tp.manual_seed": _native.rng_state()}
    for function in subject.functions(kernel):
        found |= container_sizes(function)
    return found


def _left_behind(before: dict[str, Any], after: dict[str, Any]) -> str:
    for path, was in before.items():
        now = after.get(path, was)
        if now != was:
            return (
                f"{path} has {counted(now, 'item')}, {was} before"
                if isinstance(was, int)
                else f"{path} changed"
            )
    return ""


def _sizes(run: Run) -> list[int]:
    values = [s.values for s in run.outputs if s.values is not None]
    inputs = [tensor for _, tensor, _ in run.built.tensors] if run.built else []
    sizes = [v.nbytes for v in values] + [t.size * t.dtype.itemsize for t in inputs]
    return sizes + [2 * size for size in sizes]


def check_repeats(subject: Subject, case: Case, first: Run, kernel: Kernel | None, tally: Tally) -> None:
    """The same call gives the same bits, whatever lay in the memory it got."""
    runs = []
    random = _native.rng_state()
    _native.set_rng_state(UNUSUAL)
    try:
        before = _outside(subject, kernel)
        for pattern in (PATTERNS[0], PATTERNS[0], PATTERNS[1]):
            poison(_sizes(first), pattern)
            runs.append(subject.run(case, kernel))
        left = _left_behind(before, _outside(subject, kernel))
    finally:
        _native.set_rng_state(random)
    again, twice, other = runs
    if left:
        fix = "declare effects=, or make it a function of its inputs"
        detail = f"state outlives a call: {left}; {fix}"
        tally.fail("repeated calls agree", f"{detail}\n{replay(subject, case)}", subject.location)
        return
    if failed := next((r.error for r in runs if r.error is not None), None):
        detail = f"the same call raised when it was repeated: {refusal(failed)}"
        tally.fail("repeated calls agree", f"{detail}\n{replay(subject, case)}", subject.location)
        return
    if not again.same_bits(twice) and not other.same_bits(twice):
        detail = f"two equal calls gave different bits: {_difference(again, twice)}; random numbers, or state that outlives a call"
        fix = "declare effects= or deterministic=False, or make it a function of its inputs"
        tally.fail("repeated calls agree", f"{detail}; {fix}\n{replay(subject, case)}", subject.location)
        return
    if not again.same_bits(other) or not again.same_bits(twice):
        detail = f"results depend on what free memory held before: {_difference(again, other)}"
        tally.fail(
            "no memory read before it is written", f"{detail}\n{replay(subject, case)}", subject.location
        )
        return
    if not first.same_bits(again):
        detail = f"the first call differs from later ones: {_difference(first, again)}"
        tally.fail("repeated calls agree", f"{detail}\n{replay(subject, case)}", subject.location)
        return
    tally.ok("repeated calls agree", "bit-equal over 4 runs", location=subject.location)
    tally.ok("no memory read before it is written", "two poison patterns", location=subject.location)


def check_layout(subject: Subject, case: Case, run: Run, options: Options, tally: Tally) -> None:
    """Inputs of the same contents in plain memory give the same results."""
    if all(recipe.layout == "contiguous" and recipe.strides is None for recipe in case.recipes()):
        return
    name = "results in any memory order"
    plain = subject.run(case.map(f"{case.label}, in plain memory", lambda r: r.plain()), subject.reference())
    if plain.error is not None:
        detail = f"the same contents in plain memory are refused: {refusal(plain.error)}"
        tally.fail(name, f"{detail}\n{replay(subject, case)}", subject.location)
        return
    comparison, value = compare_runs(run, plain, options)
    if comparison.ok:
        tally.ok(name, f"{value}: {comparison.detail}", score=comparison.score, location=subject.location)
    else:
        detail = f"non-contiguous input: mismatch with the same contents in plain memory; {value}: {comparison.detail}"
        tally.fail(name, f"{detail}\n{replay(subject, case)}", subject.location)


def _difference(left: Run, right: Run) -> str:
    """The first pair of values that differs."""
    pairs = zip([*left.outputs, *left.after.values()], [*right.outputs, *right.after.values()], strict=False)
    for i, (a, b) in enumerate(pairs):
        if not a.same_bits(b):
            what = f"output {i}" if i < len(left.outputs) else "a written argument"
            return f"{what}, {compare(a, b, rtol=0.0, atol=0.0).detail.partition(';')[0]}"
    return f"{len(left.outputs)} and {counted(len(right.outputs), 'result')}"


def compare_runs(run: Run, wanted: Run, options: Options) -> tuple[Comparison, str]:
    """The worst comparison over results and written arguments, and which value it was."""
    if (len(run.outputs), run.structure) != (len(wanted.outputs), wanted.structure):
        return Comparison(
            False, f"returned {run.structure}, the default {wanted.structure}", float("inf")
        ), "structure"
    named = [(f"output {i}", a, b) for i, (a, b) in enumerate(zip(run.outputs, wanted.outputs, strict=True))]
    named += [
        (f"argument '{n}' after the call", run.after[n], s) for n, s in wanted.after.items() if n in run.after
    ]
    return worst(named, options)


def worst(named: Iterable[tuple[str, Snapshot, Snapshot]], options: Options) -> tuple[Comparison, str]:
    """The comparison with the highest score, and the signs of zero that differ in any of them."""
    found = (Comparison(True, "no values"), "nothing")
    zeros = ""
    for index, (name, got, want) in enumerate(named):
        comparison = compare(got, want, rtol=options.rtol, atol=options.atol)
        if index == 0 or (comparison.ok, -comparison.score) < (found[0].ok, -found[0].score):
            found = (comparison, name)
        if comparison.zeros and not zeros:
            zeros = f"{name}: {comparison.zeros}"
    return dataclasses.replace(found[0], zeros=zeros), found[1]


def check_kernels(subject: Subject, accepted: list[Accepted], options: Options, tally: Tally) -> None:
    """Every kernel of the op against the default one, on every accepted case."""
    reference = subject.reference()
    if not subject.is_op or reference is None:
        return
    for kernel in subject.kernels:
        if kernel == reference or kernel.executor == "absent":
            continue
        name = f"kernel {kernel.label} against {reference.label}"
        if kernel.slot == "meta" or kernel.slot == "cuda":
            tally.skip(name, f"needs tensors on '{kernel.slot}', the inputs are on the CPU", kernel.location)
            continue
        if subject.effects & {"random", "nondeterministic"}:
            tally.skip(
                name, f"its results are declared {', '.join(sorted(subject.effects))}", kernel.location
            )
            continue
        for item in accepted:
            check_kernel(subject, kernel, item, name, options, tally)


def check_kernel(
    subject: Subject, kernel: Kernel, item: Accepted, name: str, options: Options, tally: Tally
) -> None:
    """One kernel on one case."""
    run = subject.run(item.case, kernel)
    where = replay(subject, item.case)
    if run.error is not None:
        if isinstance(run.error, NoKernelError):
            tally.skip(name, refusal(run.error), kernel.location)
        else:
            tally.fail(
                name, f"raised {refusal(run.error)}, the default kernel does not\n{where}", kernel.location
            )
        return
    if (other := passed_over(subject, kernel, run)) is not None:
        tally.skip_case(name, other, "{}: ", item.case.label, kernel.location)
        return
    check_writes(subject, item.case, run, kernel, tally)
    comparison, value = compare_runs(run, item.run, options)
    if comparison.ok and comparison.zeros:
        # Within any tolerance, and yet not the same value: a fault where the same bits are asked for.
        tell = tally.fail if (options.rtol, options.atol) == (0.0, 0.0) else tally.skip
        tell(f"{name}: signs of zeros", f"{comparison.zeros}\n{where}", kernel.location)
    if comparison.ok:
        detail = f"worst case '{item.case.label}', {value}: {comparison.detail}"
        tally.ok(name, detail, score=comparison.score, location=kernel.location)
        return
    rounded = as_exact_as_the_default(subject, item.case, run, item.run, options.rtol, options.atol)
    if rounded is not None:
        tally.ok(name, f"case '{item.case.label}', {rounded}", score=0.5, location=kernel.location)
        return
    strided = any(not t.is_contiguous() for _, t, _ in run.built.tensors) if run.built else False
    kind = "non-contiguous input: mismatch; " if strided else ""
    tally.fail(name, f"{kind}{value}: {comparison.detail}\n{where}", kernel.location)


def passed_over(subject: Subject, kernel: Kernel, run: Run) -> str | None:
    """Why the kernel that was asked for did not run: its predicate or layout refused these inputs."""
    own = [event for event in run.events if event.op == subject.target]
    if not own:
        return None
    for name, reason in own[-1].rejected:
        if name == kernel.name and reason.kind in ("Predicate", "Layout"):
            return str(reason)
    return None


def check_over_declared(subject: Subject, accepted: list[Accepted], tally: Tally) -> None:
    """Each argument declared as written to was seen written to at least once; "unknown" declares no single one."""
    record = record_of(subject.full) if subject.full is not None else None
    guessed = record is not None and record.unknown_writes
    for name in subject.mutated:
        tried = [
            item for item in accepted if any(n.split("[")[0] == name for n, t, _ in _tensors(item) if t.size)
        ]
        if not tried:
            tally.skip(f"'{name}' is written to", "no accepted input gave it any elements", subject.location)
        elif any(changed.split("[")[0] == name for item in tried for changed in item.writes):
            tally.ok(f"'{name}' is written to", location=subject.location)
        elif guessed:
            detail = f"never in {counted(len(tried), 'case')}; mutates_args='unknown' stands for every Tensor, and costs copies"
            tally.skip(f"'{name}' is written to", detail, subject.location)
        else:
            detail = f"declared but not seen: '{name}' never changed in {counted(len(tried), 'case')}; take it out of mutates_args"
            tally.fail(f"'{name}' is written to", detail, subject.location)


def check_effects_seen(subject: Subject, accepted: list[Accepted], tally: Tally) -> None:
    """Whether what is declared beside writes shows in any call; what no call can show is a skip that says so."""
    name = "declared effects are seen"
    if "random" in subject.effects:
        if any(_differs_by_seed(subject, item) for item in accepted):
            tally.ok(name, "random: other seeds give other results", location=subject.location)
        else:
            detail = (
                f"random is declared, but two seeds gave the same bits in {counted(len(accepted), 'case')}: it is kept from "
                f"being removed and merged for nothing, unless it draws for inputs that were not tried"
            )
            tally.skip(name, detail, subject.location)
    for effect in sorted(subject.effects & {"ordered", "nondeterministic"}):
        what = "happens outside of its results" if effect == "ordered" else "may happen on another run"
        tally.skip(name, f"{effect} is declared, and taken on trust: it {what}", subject.location)


def _differs_by_seed(subject: Subject, item: Accepted) -> bool:
    before, runs = _native.rng_state(), []
    try:
        for seed in (11, 12):
            _native.set_rng_state((seed, 0))
            built = item.case.build()
            with NoGrad():
                runs.append([snapshot(r) for r in flatten(subject.function(*built.args, **built.kwargs))])
    except Exception:
        return False  # the op's own checks say so
    finally:
        _native.set_rng_state(before)
    return not all(a.same_bits(b) for a, b in zip(*runs, strict=False))


def _tensors(item: Accepted) -> list[tuple[str, Any, Any]]:
    return list(item.run.built.tensors) if item.run.built else []


def is_ordinary(error: BaseException) -> bool:
    """Whether an error refuses a call, rather than tells of a broken contract."""
    return isinstance(error, Exception) and not (
        isinstance(error, TensorPlayError) and isinstance(error, ContractError)
    )
