"""EXECUTOR of eager calls: the marker of each kernel, held against what was seen to run. Compiled calls: `compiled`."""

from __future__ import annotations

from tensorplay._arguments import counted
from tensorplay._op import get_kernel
from tensorplay._verify.launch import brief, contradiction, seen_modules
from tensorplay._verify.report import Tally
from tensorplay._verify.subject import Kernel, Subject
from tensorplay._verify.values import Accepted, Options, passed_over, refusal
from tensorplay.backends import base

__all__ = ["check_executors", "check_required"]


def check_executors(subject: Subject, accepted: list[Accepted], tally: Tally) -> None:
    """The marker that each kernel leaves, and whether it can be true."""
    if not accepted or not subject.is_op:
        return
    for kernel in subject.kernels:
        name = f"kernel {kernel.label}"
        if kernel.executor == "absent":
            tally.skip(name, "declared, but no kernel stands behind it here", kernel.location)
        elif kernel.slot in ("cuda", "meta"):
            capability = base.capabilities().get(kernel.slot)
            reason = capability.reason if capability and not capability.available else "inputs are on the CPU"
            tally.skip(name, reason or "inputs are on the CPU", kernel.location)
        else:
            if disabled(subject, kernel):
                tally.skip(name, "disabled", kernel.location)
            _check_marker(subject, kernel, accepted, name, tally)


def disabled(subject: Subject, kernel: Kernel) -> bool:
    """Whether this thread has the kernels of that slot switched off."""
    try:
        get_kernel(str(subject.full), kernel.slot)
    except LookupError as error:
        return "disabled" in str(error)
    return False


def _check_marker(
    subject: Subject, kernel: Kernel, accepted: list[Accepted], name: str, tally: Tally
) -> None:
    for item in accepted:
        with seen_modules() as seen:
            run = subject.run(item.case, kernel)
        own = [event for event in run.events if event.op == subject.target]
        if run.error is not None or not own or passed_over(subject, kernel, run) is not None:
            continue
        problem = contradiction(kernel, own[-1].marker.executor, seen)
        if problem is not None:
            tally.fail(name, problem, kernel.location)
        else:
            tally.ok(name, brief(own[-1].marker), location=kernel.location)
        return
    error = f": {refusal(run.error)}" if run.error is not None else ""
    tally.skip(name, f"it took none of {counted(len(accepted), 'case')}{error}", kernel.location)


def check_required(options: Options, tally: Tally) -> None:
    """Names of `require=` that are no backend but a device or tool: absent ones are failures."""
    capabilities = base.capabilities()
    for name in options.require:
        capability = capabilities.get(name)
        if capability is None:
            tally.fail(
                f"requires {name}", f"nothing of that name; known are {', '.join(sorted(capabilities))}"
            )
        elif not capability.available:
            tally.fail(f"requires {name}", f"not available here: {capability.reason}")
        else:
            tally.ok(f"requires {name}", "available")
