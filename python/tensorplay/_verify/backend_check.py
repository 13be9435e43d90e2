"""A backend held to its contract: what it takes it does right, and what it says of itself is so.

Lives here: the looks at each run. Not here: the programs (`backend_programs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorplay._verify.arrays import NoGrad, flatten, is_tensor, snapshot
from tensorplay._verify.backend_programs import DTYPES, Program, is_row, programs, rows
from tensorplay._verify.compare import compare
from tensorplay._verify.report import Check, VerifyReport
from tensorplay._verify.subject import tracing
from tensorplay.backends import base
from tensorplay.backends.contract import TRANSCENDENTALS, Artifact, Plugged, Region
from tensorplay.compiler import compile
from tensorplay.errors import InvalidValueError

__all__ = ["check"]

# Relative, for functions that are not written out as arithmetic.
_CLOSE = 1e-12


def check(name: str, ops: Sequence[str] | None, dtypes: Sequence[str] | None) -> VerifyReport:
    """The report on the backend `name`, over these ops and dtypes or all."""
    base.ensure_known(name)
    wanted = DTYPES if dtypes is None else tuple(dtypes)
    chosen = rows() if ops is None else list(ops)
    for given, known in ((wanted, DTYPES), (chosen, rows() if ops is not None else chosen)):
        unknown = next((item for item in given if item not in known), None)
        if unknown is not None:
            raise InvalidValueError(f"check_backend: there is no pointwise {unknown!r}", code="TP1041")
    report = VerifyReport(f"backend {name}", 0)
    capability = base.capability(name)
    if not capability.available:
        report.executor.append(Check("available", "skip", str(capability.reason)))
        return report
    plugged = None if name in base.ADAPTERS else base.plugged(name)
    subject = _Subject(name, report, plugged if isinstance(plugged, Plugged) else None)
    with subject, NoGrad():
        for program in programs(chosen, wanted):
            _Run(subject, program, compile(program.function, backend=name, on_fallback="record")).look()
    subject.close()
    return report


class _Subject:
    """The backend, and what it was seen to do over all programs."""

    def __init__(self, name: str, report: VerifyReport, plugged: Plugged | None) -> None:
        self.name, self.report, self.plugged = name, report, plugged
        self.lowered: list[tuple[Region, Artifact]] = []
        self.taken = 0
        self.proofs: dict[str, tuple[Any, str]] = {}
        self.faults: dict[str, str] = {}

    def __enter__(self) -> None:
        if self.plugged is not None:
            self.plugged.made = self.lowered

    def __exit__(self, *_: object) -> None:
        if self.plugged is not None:
            self.plugged.made = None

    def note(self, check: str, fault: str | None) -> None:
        """The first fault of a kind is told; the others are like it."""
        if fault is not None:
            self.faults.setdefault(check, fault)

    def close(self) -> None:
        """What holds of all programs together."""
        took = f"{self.taken} programs" if self.taken else "it took no program at all"
        self.report.executor.append(Check("takes programs", "pass" if self.taken else "fail", took))
        for name, what in _CONDUCT.items():
            fault = self.faults.get(name)
            verdict = "fail" if fault else "pass" if self.taken else "skip"
            self.report.executor.append(Check(name, verdict, fault or what))


_CONDUCT = {
    "inputs are left alone": "no run wrote to one",
    "outputs are fresh": "no run gave memory that another run gave",
    "marker: who ran": "every run was the backend's own work",
    "marker: proof": "one proof per program, and no two programs under one",
    "supports: the same answer": "it was asked twice",
}


class _Run:
    """One program on the backend."""

    def __init__(self, subject: _Subject, program: Program, compiled: Any) -> None:
        self.subject, self.program, self.compiled = subject, program, compiled

    def look(self) -> None:
        """Adds the check of this program, and notes what concerns the backend as a whole."""
        inputs = self.program.inputs()
        if inputs is None:
            return
        # Eager calls are the reference.
        want = _snapshots(self.program.function(*inputs))
        before = [snapshot(x) for x in inputs]
        del self.subject.lowered[:]
        try:
            verdict, detail = self._run(inputs, want)
        except Exception as error:
            verdict, detail = "fail", f"{type(error).__name__}: {error}"
        changed = any(not snapshot(x).same_bits(old) for x, old in zip(inputs, before, strict=True))
        self.subject.note(
            "inputs are left alone", f"{self.program.name}: it wrote to an input" if changed else None
        )
        self.subject.report.values.append(Check(self.program.name, verdict, detail))

    def _run(self, inputs: list[Any], want: list[Any]) -> tuple[str, str]:
        with tracing() as events:
            outputs, run = self.compiled.run(*inputs)
        refused = next((region.reason for region in run.forward if region.reason is not None), None)
        if refused is not None and refused.kind == "LoweringFailed":
            return "fail", f"supports() took it, and then: {refused}"
        self._ask_again()
        fault = _difference(_snapshots(outputs), want, self._exact())
        if fault:
            return "fail", fault
        if refused is not None:
            return "skip", str(refused)
        if not any(region.marker.executor == self.subject.name for region in run.forward):
            return "skip", "it has no pointwise region"
        self.subject.taken += 1
        self._own_work(run, events())
        self._fresh(inputs, outputs, want)
        return "pass", "equal to eager"

    def _exact(self) -> bool:
        """Whether everything is written out as arithmetic, whose bits are defined."""
        seen = (i for region, _ in self.subject.lowered for i in region.instructions)
        return not any(i.op in TRANSCENDENTALS for i in seen)

    def _own_work(self, run: Any, events: Sequence[Any]) -> None:
        name = self.subject.name
        for region in run.forward:
            if region.marker.executor != name:
                fault = f"{self.program.name}: {region.marker} ran, and no reason says why"
                self.subject.note("marker: who ran", fault)
        for event in events:
            if event.marker.executor != name and any(is_row(op) for op in event.op.split()):
                fault = f"{self.program.name}: its run called {event.op}, which ran on {event.marker}"
                self.subject.note("marker: who ran", fault)

    def _ask_again(self) -> None:
        plugged = self.subject.plugged
        for region, artifact in list(self.subject.lowered):
            if plugged is None:
                continue
            if plugged.supports(region) is not None:
                fault = f"{self.program.name}: it took the region, and refused it when it was asked again"
                self.subject.note("supports: the same answer", fault)
                continue
            again = plugged.lower(region)
            if again.proof != artifact.proof:
                fault = f"{self.program.name}: {artifact.proof!r}, and {again.proof!r} when lowered again"
                self.subject.note("marker: proof", fault)
            what = (region.instructions, region.results)
            known, where = self.subject.proofs.setdefault(artifact.proof, (what, self.program.name))
            if known != what:
                fault = f"{self.program.name} and {where} are different programs, both {artifact.proof!r}"
                self.subject.note("marker: proof", fault)

    def _fresh(self, inputs: list[Any], outputs: Any, want: list[Any]) -> None:
        again = self.compiled(*inputs)
        exact = self._exact()
        for kept, what in (
            (outputs, "its first result changed when it ran again"),
            (again, "its second run gave"),
        ):
            fault = _difference(_snapshots(kept), want, exact)
            if fault:
                self.subject.note("outputs are fresh", f"{self.program.name}: {what}: {fault}")
        first, second = ([t for t in flatten(made) if is_tensor(t)] for made in (outputs, again))
        places = {t.data_ptr() for t in first if t.size}
        if any(t.data_ptr() in places for t in second if t.size):
            fault = f"{self.program.name}: two runs gave tensors over the same memory"
            self.subject.note("outputs are fresh", fault)


def _snapshots(outputs: Any) -> list[Any]:
    return [snapshot(t) for t in flatten(outputs)]


def _difference(got: list[Any], want: list[Any], exact: bool) -> str | None:
    """Where two lists of outputs differ; a NaN equals every NaN, and -0 differs from 0."""
    if len(got) != len(want):
        return f"{len(got)} outputs, not {len(want)}"
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a.same_bits(b) or (a.dtype == b.dtype and a.shape == b.shape and exact and _same_but_nan(a, b)):
            continue
        close = 0.0 if exact else _CLOSE
        result = compare(a, b, rtol=close, atol=0.0, equal_nan=True)
        if exact or not result.ok:
            return f"output {i} differs from eager: {result.detail}"
    return None


def _same_but_nan(a: Any, b: Any) -> bool:
    import numpy as np

    x, y = np.asarray(a.values), np.asarray(b.values)
    if x.dtype != y.dtype or x.dtype.kind != "f":
        return False
    nan = np.isnan(y)
    return bool(
        np.array_equal(np.isnan(x), nan) and np.array_equal(np.signbit(x[~nan]), np.signbit(y[~nan]))
    ) and bool(np.array_equal(x[~nan], y[~nan]))
