"""What is verified: an operator or a plain function, its kernels, and one run of it with everything observed.

A run builds fresh inputs, calls one kernel through the dispatcher (or the function itself), and keeps what came out,
what was written to, and which events said what. Judging is the business of the check modules.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tensorplay import _native
from tensorplay._verify.arrays import NoGrad, Snapshot, around, bits, flatten, is_tensor, snapshot
from tensorplay._verify.inputs import Built, Case
from tensorplay.errors import ArgumentError
from tensorplay.outcome import CallEvent

__all__ = ["Kernel", "Run", "Subject", "container_sizes", "resolve", "subjects", "watched_tensors"]

REACH = 200  # objects looked at from one kernel function
DEVICE_SLOTS = ("cpu", "cuda")


@dataclass(frozen=True)
class Kernel:
    """One registered kernel: its slot, name and place."""

    slot: str
    name: str
    file: str
    line: int
    executor: str
    when: str | None
    function: Any = field(compare=False, default=None)

    @property
    def label(self) -> str:
        """`cpu/fast`: the kernel as reports name it."""
        return f"{self.slot}/{self.name}"

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class Run:
    """One observed call. `error` is set when it raised; then the rest is what was seen until then."""

    outputs: list[Snapshot] = field(default_factory=list)
    structure: str = ""
    error: Exception | None = None
    # Arguments after the call by name, for comparing what a mutating op wrote.
    after: dict[str, Snapshot] = field(default_factory=dict)
    # Names whose bits differ after the call, and names whose version moved, watched tensors included.
    changed: list[str] = field(default_factory=list)
    bumped: list[str] = field(default_factory=list)
    events: list[CallEvent] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    built: Built | None = None

    def same_bits(self, other: Run) -> bool:
        """Same results and same writes, to the last bit."""
        pairs = zip(
            self.outputs + list(self.after.values()), other.outputs + list(other.after.values()), strict=False
        )
        counts = (len(self.outputs), list(self.after)) == (len(other.outputs), list(other.after))
        return counts and all(a.same_bits(b) for a, b in pairs)


class Subject:
    """One overload of an op, or a plain function."""

    def __init__(
        self, function: Callable[..., Any], name: str, full: str | None, arguments: list[dict[str, Any]]
    ) -> None:
        self.function = function
        self.name = name
        self.full = full
        self.arguments = arguments
        self.info: dict[str, Any] = dict(_native.op_info(full)) if full else {}
        self.kernels = list(_kernels(full)) if full else []

    @property
    def is_op(self) -> bool:
        return self.full is not None

    @property
    def target(self) -> str:
        """The name of its node in a graph, overload always spelt."""
        return str(self.info["full_name"])

    @property
    def effects(self) -> set[str]:
        return set(self.info.get("effects", ()))

    @property
    def repeatable(self) -> bool:
        """Whether two equal calls must give equal bits."""
        return not self.effects & {"random", "nondeterministic", "ordered"}

    @property
    def mutated(self) -> list[str]:
        return [argument["name"] for argument in self.arguments if argument["mutated"]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(argument["name"] for argument in self.arguments)

    @property
    def location(self) -> str | None:
        if "at" in self.info:
            return f"{self.info['at'][1]}:{self.info['at'][2]}"
        code = getattr(self.function, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else None

    def reference(self) -> Kernel | None:
        """The default kernel, against which the others are compared; a built-in op's first kernel for the CPU."""
        found = [k for k in self.kernels if k.slot == "default" and k.executor != "absent"]
        named = [k for k in found if k.name == "default"]
        if named or found:
            return (named or found)[0]
        on_cpu = [k for k in self.kernels if k.slot == "cpu" and k.executor != "absent"]
        return on_cpu[-1] if on_cpu else None

    def learn_effects(self, run: Run) -> None:
        """A plain function has the effects of the ops that it was seen to call."""
        if not self.is_op and run.error is None:
            # A compiled region is one event that names each of its ops.
            names = {name.removesuffix(".default") for event in run.events for name in event.op.split()}
            known = [name for name in names if _native.get_op(name) is not None]
            seen = {effect for name in known for effect in _native.op_info(name)["effects"]}
            self.info["effects"] = sorted(seen | self.effects)

    def declares(self, argument: str) -> bool:
        """Whether the schema says that this argument (or the list it is an item of) is written to."""
        return argument.split("[")[0] in self.mutated

    def seed(self) -> None:
        """Before a run of a subject that draws random numbers: the same ones each time."""
        if "random" in self.effects:
            _native.manual_seed(0)

    def run(self, case: Case, kernel: Kernel | None = None) -> Run:
        """One observed call without gradients, of `kernel` or of whatever the dispatcher chooses."""
        run, built = Run(), case.build()
        watched = [*built.tensors, *((name, t, t) for name, t in self._watched(kernel))]
        before = [(around(tensor, base), bits(tensor), tensor._version) for _, tensor, base in watched]
        self.seed()
        with NoGrad(), self.choice(kernel), tracing() as events:
            try:
                result = self._call(kernel, built)
                run.results = flatten(result)
                run.structure = structure(result)
            except Exception as error:
                run.error = error
        run.built, run.events = built, events()
        run.outputs = [snapshot(value) for value in run.results]
        run.after = {name: snapshot(tensor) for name, tensor, _ in built.tensors if self.declares(name)}
        for (name, tensor, base), (outside, own, version) in zip(watched, before, strict=True):
            if bits(tensor) != own:
                run.changed.append(name)
            if around(tensor, base) != outside:
                run.changed.append(f"{name} (memory around the view)")
            if tensor._version != version:
                run.bumped.append(name)
        return run

    def _call(self, kernel: Kernel | None, built: Built) -> Any:
        if kernel is None or self.full is None:
            return self.function(*built.args, **built.kwargs)
        return _native.call_kernel(self.function, *built.args, **built.kwargs)

    @contextmanager
    def choice(self, kernel: Kernel | None) -> Iterator[None]:
        """Makes the dispatcher take `kernel`, enabled or not; a predicate or layout may still refuse it."""
        with ExitStack() as stack:
            if kernel is not None and self.full is not None:
                wishes = [_native.push_preference(self.full, kernel.name)]
                others = [k.slot for k in self.kernels if k.slot != kernel.slot and k.slot in DEVICE_SLOTS]
                if kernel.slot == "default":
                    wishes += [_native.push_enabled(self.full, slot, False) for slot in dict.fromkeys(others)]
                wishes.append(_native.push_enabled(self.full, kernel.slot, True))
                for token in wishes:
                    stack.callback(_native.pop_preference, token)
            yield

    def functions(self, kernel: Kernel | None) -> list[Any]:
        """The Python functions that a call of `kernel`, or of whatever the dispatcher chooses, may run."""
        if not self.is_op:
            return [self.function]
        return [kernel.function] if kernel is not None else [k.function for k in self.kernels]

    def _watched(self, kernel: Kernel | None) -> list[tuple[str, Any]]:
        """Tensors that the function reaches by itself, unless it declares state."""
        if "ordered" in self.effects:
            return []
        found: dict[int, tuple[str, Any]] = {}
        for function in self.functions(kernel):
            for name, tensor in watched_tensors(function):
                found[id(tensor)] = (name, tensor)
        return list(found.values())


def structure(result: Any) -> str:
    """Nesting of a result, such as `(T, [T, T])`."""
    if isinstance(result, tuple):
        return "(" + ", ".join(map(structure, result)) + ")"
    if isinstance(result, list):
        return "[" + ", ".join(map(structure, result)) + "]"
    return "T" if is_tensor(result) else "-" if result is None else type(result).__name__


@contextmanager
def tracing() -> Iterator[Callable[[], list[CallEvent]]]:
    """Call events of this thread while it lasts; the value gives them, also afterwards."""
    sink = _native.TraceSink()
    sink.start()
    try:
        yield sink.events
    finally:
        sink.stop()


def _kernels(full: str) -> Iterator[Kernel]:
    for slot, (name, file, line, executor), when in _native.op_info(full)["kernels"]:
        yield Kernel(slot, name, file, line, executor, when, _native.kernel_function(full, slot, name))


def watched_tensors(function: Any) -> Iterator[tuple[str, Any]]:
    """(how it is reached, tensor) for every tensor in the closure, defaults, globals and containers of a function."""
    return ((path, value) for path, value in _all_reached(function) if is_tensor(value) and not value.is_fake)


def container_sizes(function: Any) -> dict[str, int]:
    """How it is reached -> number of items, for every container that a function can put something into."""
    kinds = (list, dict, set, bytearray, collections.deque)
    return {path: len(value) for path, value in _all_reached(function) if isinstance(value, kinds)}


def _all_reached(function: Any) -> Iterator[tuple[str, Any]]:
    pending: list[tuple[str, Any, int]] = [("", function, 0)]
    seen: set[int] = set()
    while pending and len(seen) < REACH:
        path, value, depth = pending.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path, value
        if not is_tensor(value) and depth < 4:
            pending.extend((name, item, depth + 1) for name, item in _reached(path, value))


def _reached(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, types.MethodType):
        return [(path, value.__func__), (f"{path}self", value.__self__)]
    if isinstance(value, types.FunctionType):
        return [(f"{path}{how}", item) for how, item in _function_state(value)]
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    ours = type(value).__module__.partition(".")[0] in ("builtins", "tensorplay", "numpy")
    attributes = None if ours else getattr(value, "__dict__", None)
    if isinstance(value, (type, types.ModuleType)) or not isinstance(attributes, dict):
        wrapped = getattr(value, "func", None)
        return [(path, wrapped)] if wrapped is not None else []
    return [(f"{path}.{key}", item) for key, item in attributes.items()]


def _function_state(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"closure variable '{name}'", cell.cell_contents
        except ValueError:  # a cell that nothing was put into yet
            continue
    for i, default in enumerate(function.__defaults__ or ()):
        yield f"default {i} of {function.__name__}", default
    for name, default in (function.__kwdefaults__ or {}).items():
        yield f"default of '{name}'", default
    for name in code.co_names:
        if name in function.__globals__:
            yield f"global '{name}'", function.__globals__[name]
    if (wrapped := getattr(function, "__wrapped__", None)) is not None:
        yield "", wrapped


def subjects(target: Any) -> list[Subject]:
    """Every overload that `target` stands for; a plain function stands for itself."""
    op = resolve(target)
    if op is None:
        name = getattr(target, "__qualname__", None) or type(target).__name__
        return [Subject(target, name, None, [])]
    names = list(_native.op_overloads(op))
    if isinstance(target, str) and target in names:
        names = [target]
    functions = {full: _native.get_op(full) if len(names) > 1 else op for full in names}
    return [Subject(functions[full] or op, full, full, _arguments(full)) for full in names]


def resolve(target: Any) -> Any:
    """The op object behind an op, its name or its builtin function; None for a plain callable."""
    if isinstance(target, str):
        op = _native.get_op(target.removesuffix(".default"))
        if op is None:
            raise ArgumentError(f"no op named {target!r} is registered", code="TP1310")
        return op
    if isinstance(target, _native.CustomOpDef):
        return target
    owner = getattr(target, "__self__", None)
    if isinstance(target, types.BuiltinFunctionType) and isinstance(owner, _native.CustomOpDef):
        return owner
    if not callable(target):
        raise ArgumentError(
            f"expected an op, its name or a function, got {type(target).__name__}", code="TP1310"
        )
    return None


def _arguments(full: str) -> list[dict[str, Any]]:
    return [a.to_dict() for a in _native.Schema.parse(_native.op_info(full)["schema"]).arguments]
