"""VALUES and EXECUTOR of compiled calls: eager against each backend, forward and backward, and what served each region."""

from __future__ import annotations

from typing import Any

from tensorplay import _native
from tensorplay._verify.arrays import flatten, snapshot
from tensorplay._verify.inputs import Case
from tensorplay._verify.launch import brief
from tensorplay._verify.recorded import Recorded, WithGrad, cotangents, differentiable, record
from tensorplay._verify.report import Tally
from tensorplay._verify.subject import Run, Subject, structure
from tensorplay._verify.values import Accepted, Options, compare_runs, refusal, replay, worst
from tensorplay.backends import base
from tensorplay.compiler import compile as compile_function
from tensorplay.outcome import Capability, RegionRun, RunReport

__all__ = ["check_compiled"]

# Compiling costs: how many cases are tried per backend.
CASES = {"native": 8}
OTHER_CASES = 4
TRAINING = 2


def check_compiled(
    subject: Subject, accepted: list[Accepted], options: Options, values: Tally, executor: Tally
) -> None:
    """Every backend that this machine has, on a spread of the accepted cases."""
    present = []
    for name, capability in sorted(_backends().items()):
        if capability.available:
            present.append(name)
        else:
            _absent(name, capability, options, executor)
    if subject.is_op and subject.info["fake"] == "missing":
        values.skip("compiled", "no fake rule: the op cannot be captured", subject.location)
        return
    for name in present:
        for item in _spread(accepted, CASES.get(name, OTHER_CASES)):
            _check_forward(subject, item, name, options, values, executor)
        for case in _training_cases(subject, accepted):
            _check_training(subject, case, name, options, values, executor)


def _backends() -> dict[str, Capability]:
    """Backends that `compile` knows, and whether they can be used here."""
    return {name: base.capability(name) for name in base.names()}


def _absent(name: str, capability: Capability, options: Options, executor: Tally) -> None:
    reason = capability.reason or "not available"
    if name in options.require:
        executor.fail(f"backend {name}", f"required, but not available here: {reason}")
    else:
        executor.skip(f"backend {name}", reason)


def _spread(accepted: list[Accepted], count: int) -> list[Accepted]:
    """Given cases first, then an even sample of the others, so that layouts, sizes and values are all met."""
    given = [item for item in accepted if item.case.given and item.covered][:count]
    rest = [item for item in accepted if not item.case.given and item.covered]
    wanted = max(0, count - len(given))
    step = max(1, len(rest) // wanted) if wanted else 1
    return [*given, *(rest[::step][:wanted] if wanted else [])]


def _training_cases(subject: Subject, accepted: list[Accepted]) -> list[Case]:
    """Cases in which something can be differentiated."""
    if (
        subject.mutated
        or not subject.repeatable
        or subject.info.get("autograd") in ("missing", "not differentiable")
    ):
        return []
    plain = [item.case for item in accepted if all(r.dtype == "float32" for r in item.case.recipes())]
    usable = [case for case in plain if case.recipes() and "special" not in case.label]
    return [differentiable(case, None) for case in usable[:TRAINING]]


def _compile(subject: Subject, backend: str) -> Any:
    return compile_function(subject.function, backend=backend, on_fallback="record")


def _check_forward(
    subject: Subject, item: Accepted, backend: str, options: Options, values: Tally, executor: Tally
) -> None:
    name = f"compiled with {backend} against eager"
    built = item.case.build()
    where = replay(subject, item.case)
    compiled = _compile(subject, backend)
    run = Run(built=built)
    before = _native.set_grad_enabled(False)
    subject.seed()
    try:
        result = compiled(*built.args, **built.kwargs)
    except Exception as error:
        values.fail(name, f"raised {refusal(error)}, eager does not\n{where}", subject.location)
        return
    finally:
        _native.set_grad_enabled(before)
    run.results, run.structure = flatten(result), structure(result)
    run.outputs = [snapshot(value) for value in run.results]
    run.after = {n: snapshot(t) for n, t, _ in built.tensors if subject.declares(n)}
    if subject.repeatable:
        # What the dispatcher chooses in eager is what a compiled call must agree with.
        eager = subject.run(item.case) if len(subject.kernels) > 1 else item.run
        comparison, value = compare_runs(run, eager, options)
        detail = f"{value}: {comparison.detail}"
        if not comparison.ok:
            values.fail(name, f"{detail}\n{where}", subject.location)
        elif comparison.zeros:
            values.fail(name, f"{comparison.zeros}\n{where}", subject.location)
        elif not _served(compiled.last_run, backend):
            values.skip(name, f"no region ran on {backend}: EXECUTOR says why", subject.location)
        else:
            worst_case = f"worst case '{item.case.label}', {detail}"
            values.ok(name, worst_case, score=comparison.score, location=subject.location)
    _check_report(compiled.last_run, backend, "forward", executor)


def _check_training(
    subject: Subject, case: Case, backend: str, options: Options, values: Tally, executor: Tally
) -> None:
    name = f"gradient compiled with {backend} against eager"
    where = replay(subject, case)
    try:
        eager = record(subject, case)
        if not eager.outputs:
            return
        wanted = eager.gradients(cotangents(eager.outputs, options.seed))
    except Exception:
        return  # the eager gradient's own check says so
    compiled = _compile(subject, backend)
    try:
        found_run = record(subject, case, compiled)
        if found_run.indices != eager.indices:
            detail = f"outputs {found_run.indices} require a gradient, in eager {eager.indices}"
            values.fail(name, f"{detail}\n{where}", subject.location)
            return
        found = _gradients(found_run, options.seed)
    except Exception as error:
        values.fail(name, f"raised {refusal(error)}, eager does not\n{where}", subject.location)
        return
    pairs = zip([n for n, _ in eager.inputs], map(snapshot, found), map(snapshot, wanted), strict=True)
    comparison, value = worst(list(pairs), options)
    detail = f"'{value}': {comparison.detail}"
    if not comparison.ok:
        values.fail(name, f"{detail}\n{where}", subject.location)
    elif not _served(compiled.last_run, backend):
        values.skip(name, f"no region ran on {backend}: EXECUTOR says why", subject.location)
    else:
        values.ok(name, f"worst: {detail}", score=comparison.score, location=subject.location)
    _check_report(compiled.last_run, backend, "backward", executor)


def _gradients(recorded: Recorded, seed: int) -> list[Any]:
    tensors = [tensor for _, tensor in recorded.inputs]
    with WithGrad():
        return list(
            _native.grad(recorded.outputs, tensors, cotangents(recorded.outputs, seed), False, False, True)
        )


def _served(report: RunReport | None, backend: str) -> bool:
    """Whether the backend that was asked for ran anything; native runs whatever others leave."""
    return backend == "native" or (report is not None and backend in report.executors)


def _check_report(report: RunReport | None, backend: str, phase: str, executor: Tally) -> None:
    """A marker for every region, a proof where the executor compiles, and a reason where another one ran."""
    name = f"{backend}, {phase}"
    if report is None:
        executor.fail(name, "the compiled call left no report of what ran")
        return
    regions: list[RegionRun] = report.forward if phase == "forward" else report.backward
    for region in regions:
        _check_region(region, f"{name}, {'+'.join(region.ops)}", backend, executor)


def _check_region(region: RegionRun, name: str, backend: str, executor: Tally) -> None:
    marker = region.marker
    if not marker.executor or not marker.kernel:
        executor.fail(name, f"no marker: {marker}")
    elif marker.executor == backend:
        if backend in ("tvm", "triton") and not marker.proof:
            executor.fail(name, f"{brief(marker)}: a compiled executor must show a proof")
        else:
            executor.ok(name, brief(marker))
    elif region.reason is not None:
        executor.skip_case(name, str(region.reason), "{} ran instead: ", brief(marker))
    elif backend == "native":
        executor.ok(name, brief(marker))  # native runs each op's own kernel, whatever it is made of
    else:
        executor.fail(name, f"{brief(marker)} ran instead, and no reason says why")
