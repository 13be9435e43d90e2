"""GRAPH: one call is one node, nothing inside it leaks or runs, and what the fake rule promises is what comes out.

`examine` works on a finished graph, so that it can be tested on graphs that no capture would make.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from tensorplay import _native
from tensorplay import graph as graphs
from tensorplay._arguments import counted
from tensorplay._places import inwards
from tensorplay._record import record_of
from tensorplay._verify.arrays import Snapshot, is_tensor
from tensorplay._verify.launch import python_calls
from tensorplay._verify.report import Tally
from tensorplay._verify.subject import Subject
from tensorplay._verify.values import Accepted, refusal, replay

__all__ = ["check_fakes", "check_graphs", "examine"]


def kernel_codes(subject: Subject) -> set[CodeType]:
    """Code objects of the op's Python kernels, behind wrappers."""
    codes: set[CodeType] = set()
    for kernel in subject.kernels:
        for function in inwards(kernel.function):
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                codes.add(code)
    return codes


class NoGrad:
    """Nothing is recorded while it lasts, on this thread; without effect when not wanted."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted

    def __enter__(self) -> None:
        self._before = _native.set_grad_enabled(_native.is_grad_enabled() and not self._wanted)

    def __exit__(self, *_: object) -> None:
        _native.set_grad_enabled(self._before)


ACCEPTS = "fake rule: accepts what the kernel accepts"


def check_graphs(subject: Subject, accepted: list[Accepted], tally: Tally) -> None:
    """Captures every accepted case, examines the graph, and compares the promise with the reference run."""
    if subject.is_op and subject.info["fake"] == "missing":
        fix = "add one with @op.register_fake, or op.register_fake(library.fake_from_body)"
        tally.skip(
            "fake rule", f"none is registered, so that capture refuses the op: {fix}", subject.location
        )
        return
    rule = fake_code(subject)
    codes = kernel_codes(subject) - ({rule} if rule else set())
    uncovered: dict[str, list[tuple[str, str]]] = {}
    lenient = not all(item.case.speculative for item in accepted)
    for item in accepted:
        local = Tally()
        _check_case(subject, item, codes, local)
        failures = [check for check in local.checks() if check.verdict == "fail"]
        if failures and item.case.speculative and lenient:
            item.covered = False
            item.taken = failures[0].name != ACCEPTS
            uncovered.setdefault(failures[0].name, []).append((item.case.label, failures[0].detail))
        else:
            tally.extend(local)
    for name, found in uncovered.items():
        cases = "; ".join(label for label, _ in found)
        reason = f"not covered, and nobody gave such inputs ({cases}): {found[0][1].splitlines()[0]}"
        tally.skip(name, reason, subject.location)


def _check_case(subject: Subject, item: Accepted, codes: set[CodeType], tally: Tally) -> None:
    """The graph of one case."""
    built = item.case.build()
    where = replay(subject, item.case)
    try:
        # An op is looked at without its gradient: what setup_context computes is no part of the call.
        with python_calls(codes) as calls, NoGrad(subject.is_op):
            graph = graphs.capture(subject.function, *built.args, **built.kwargs)
    except Exception as error:
        _capture_failed(subject, error, where, tally)
        return
    if not subject.is_op:
        tally.ok("captured", counted(len(graph.nodes), "node"), location=subject.location)
        return
    if calls:
        detail = f"{', '.join(calls)} ran while capturing\n{where}"
        tally.fail("no kernel body runs in capture", detail, subject.location)
    else:
        tally.ok("no kernel body runs in capture", location=subject.location)
    examine(subject, graph, where, tally)
    check_fakes(subject, item, graph, tally)


def fake_code(subject: Subject) -> CodeType | None:
    """The code of the Python fake rule: where the body itself is the rule, its run is no leak."""
    record = record_of(subject.full) if subject.full else None
    rule = getattr(record, "fake", None)
    if type(rule).__name__ == "_FakeFromBody":
        rule = getattr(record, "body", None)
    code = getattr(rule, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _capture_failed(subject: Subject, error: Exception, where: str, tally: Tally) -> None:
    code = getattr(error, "code", "")
    if code == "TP3203":
        name, text = (
            "fake rule: aliasing",
            f"aliasing mismatch, {refusal(error)}; the kernel returns new tensors",
        )
    elif subject.is_op:
        name, text = ACCEPTS, refusal(error)
    else:
        name, text = "captured", refusal(error)
    notes = "; ".join(getattr(error, "__notes__", ()))
    tally.fail(name, f"{text}{f' ({notes})' if notes else ''}\n{where}", subject.location)


def examine(subject: Subject, graph: Any, where: str, tally: Tally) -> None:
    """Exactly one node, of this op, with its effects, and a graph that the IR verifier accepts."""
    targets = [node.target for node in graph.nodes]
    own = targets.count(subject.target)
    inner = [target for target in targets if target != subject.target]
    if own != 1:
        tally.fail(
            "one node per call",
            f"{counted(own, 'node')} of {subject.target}, the graph has {targets}\n{where}",
            subject.location,
        )
    elif inner:
        tally.fail("one node per call", f"inner nodes leaked: {inner}\n{where}", subject.location)
    else:
        tally.ok("one node per call", subject.target, location=subject.location)
    for node in graph.nodes:
        if node.target == subject.target and set(node.effects) != subject.effects:
            got, want = sorted(node.effects), sorted(subject.effects)
            tally.fail(
                "effects as declared",
                f"the node has {got}, the op declares {want}\n{where}",
                subject.location,
            )
        elif node.target == subject.target:
            tally.ok(
                "effects as declared", ", ".join(sorted(subject.effects)) or "none", location=subject.location
            )
    violations = list(graph.verify())
    if violations:
        tally.fail("graph is well formed", f"{violations[0]}\n{where}", subject.location)
    else:
        tally.ok("graph is well formed", location=subject.location)


def check_fakes(subject: Subject, item: Accepted, graph: Any, tally: Tally) -> None:
    """Count, shape, dtype, strides, device and aliasing of the node's outputs against the real ones."""
    node = next((node for node in graph.nodes if node.target == subject.target), None)
    if node is None:
        return
    where = replay(subject, item.case)
    spec, real = _opened(node.spec), item.run.outputs
    if len(spec) != len(real):
        detail = (
            f"the fake rule promises {counted(len(spec), 'output')}, the kernel returned {len(real)}\n{where}"
        )
        tally.fail("fake rule: count", detail, subject.location)
        return
    tally.ok("fake rule: count", location=subject.location)
    for index, (promised, got) in enumerate(zip(_with_real_sizes(spec, real), real, strict=True)):
        if isinstance(promised, _Contradiction):
            detail = f"output {index} of {subject.name}: {promised.text}"
            tally.fail("fake rule: shape", f"{detail}\n{where}", subject.location)
        elif isinstance(promised, graphs.TensorSpec) and got.is_tensor:
            _check_spec(subject, index, promised, got, where, tally)
        else:
            _check_value(subject, index, promised, got, where, tally)
    _check_aliases(subject, item, where, tally)


@dataclass(frozen=True)
class _Contradiction:
    """What a run said against sizes that were promised as symbols."""

    text: str


Promise = graphs.TensorSpec | graphs.ValueSpec | _Contradiction


def _opened(spec: Sequence[graphs.TensorSpec | graphs.ValueSpec]) -> list[Promise]:
    """One promise for each value, as results are counted: a list of numbers is several."""
    found: list[Promise] = []
    for promised in spec:
        if isinstance(promised, graphs.ValueSpec) and isinstance(promised.value, tuple):
            found += [graphs.ValueSpec(type(value).__name__, value) for value in promised.value]
        else:
            found.append(promised)
    return found


def _with_real_sizes(promised: Sequence[Promise], real: Sequence[Snapshot]) -> list[Promise]:
    """Promises with what the run says symbolic sizes are; a contradiction for one whose sizes the run denies."""
    tensors = {
        k: (said, got.shape)
        for k, (said, got) in enumerate(zip(promised, real, strict=True))
        if isinstance(said, graphs.TensorSpec) and got.is_tensor
    }
    bounds = _native.bind_sizes([(said.shape, said.strides, shape) for said, shape in tensors.values()])
    out = list(promised)
    for (k, (said, _)), bound in zip(tensors.items(), bounds, strict=True):
        if isinstance(bound, str):
            out[k] = _Contradiction(bound)
        elif None not in (*bound[0], *bound[1]):
            shape, strides = (tuple(n for n in sizes if n is not None) for sizes in bound)
            out[k] = dataclasses.replace(said, shape=shape, strides=strides)
    return out


def _check_value(
    subject: Subject, index: int, promised: Promise, got: Snapshot, where: str, tally: Tally
) -> None:
    """A number is of the kind that was promised, and has the value wherever the fake rule gave one."""
    found = f"a tensor of {got.dtype}" if got.is_tensor else f"{got.dtype} is {got.literal}"
    open_value = isinstance(promised, graphs.ValueSpec) and promised.value is None
    # A number that is no tensor is its own text: NaN equals itself, and -0 is not 0.
    if str(promised) == found or (open_value and str(promised) == got.dtype and not got.is_tensor):
        tally.ok("fake rule: value", location=subject.location)
    else:
        detail = (
            f"output {index} of {subject.name}: the fake rule says {promised}, the kernel returned {found}"
        )
        tally.fail("fake rule: value", f"{detail}\n{where}", subject.location)


def _check_spec(subject: Subject, index: int, promised: Any, got: Snapshot, where: str, tally: Tally) -> None:
    for what in ("shape", "dtype", "strides", "device"):
        said, found = getattr(promised, what, None), getattr(got, what)
        text = tuple(said) if isinstance(said, (list, tuple)) else said
        said = _plain(said) if what in ("shape", "strides") and said is not None else str(said)
        name = f"fake rule: {what}"
        # Strides of dimensions that are never stepped over mean nothing.
        if what == "strides" and said is not None and _same_strides(got.shape, said, got.strides):
            said = found
        if said == found:
            tally.ok(name, location=subject.location)
        else:
            detail = f"output {index} of {subject.name}: the fake rule says {what} {text}, the kernel returned {found}"
            tally.fail(name, f"{detail}\n{where}", subject.location)


def _plain(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Sizes that compare with numbers: a symbolic one is equal to none of them."""
    return tuple(str(size) if isinstance(size, _native.SymInt) else size for size in sizes)


def _same_strides(shape: tuple[int, ...], one: Any, other: tuple[int, ...]) -> bool:
    if not len(shape) == len(one) == len(other):
        return False
    if 0 in shape:
        return True
    return all(a == b for n, a, b in zip(shape, one, other, strict=True) if n > 1)


def _check_aliases(subject: Subject, item: Accepted, where: str, tally: Tally) -> None:
    """Real outputs share memory only where the schema lets them; a fake rule that does is refused by the capture."""
    returns = _native.Schema.parse(subject.info["schema"]).returns
    tensors = [(name, tensor) for name, tensor, _ in item.run.built.tensors] if item.run.built else []
    results = item.run.results
    tally.ok("fake rule: aliasing", location=subject.location)
    for index, result in enumerate(results):
        if not is_tensor(result):
            continue
        declared = returns[index]["alias"] if index < len(returns) else None
        shared = [name for name, tensor in tensors if share_memory(result, tensor)]
        if declared is None and shared:
            detail = f"output {index} shares memory with argument {', '.join(shared)}, the schema declares a new tensor"
            tally.fail("aliases as declared", f"{detail}\n{where}", subject.location)
        else:
            tally.ok("aliases as declared", location=subject.location)
        for other in range(index):
            if is_tensor(results[other]) and declared is None and share_memory(result, results[other]):
                detail = f"outputs {other} and {index} share memory"
                tally.fail("aliases as declared", f"{detail}\n{where}", subject.location)


def share_memory(left: Any, right: Any) -> bool:
    """Whether the bytes of two tensors on the CPU overlap."""
    a, b = extent(left), extent(right)
    return a is not None and b is not None and a[0] < b[1] and b[0] < a[1]


def extent(tensor: Any) -> tuple[int, int] | None:
    """First address and the one past the last, over all elements; None where there are none."""
    if tensor.size == 0 or tensor.is_fake:
        return None
    steps = [(n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
    start, size = tensor.data_ptr(), tensor.dtype.itemsize
    low = sum(step for step in steps if step < 0)
    return start + low * size, start + (sum(step for step in steps if step > 0) + 1) * size
