"""``tensorplay.compile``: capture a function once, run it through backends, and say which of them ran.

A compiled function guards what its capture saw of its inputs (dtype, device, shape, layout, ``requires_grad``, grad
mode, and the values of Python numbers and strings), and on CPython 3.11 what it reads of other Python state (globals,
closures, attributes, containers); a call that fits no entry captures again. Sizes in which calls differ become symbols, so that
one entry serves them all.
"""

from __future__ import annotations

import functools
import types

from tensorplay import _arguments, _native, backends, graph, outcome
from tensorplay._dynamic import mark_dynamic
from tensorplay.errors import ArgumentError, FallbackError, InvalidValueError

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, ParamSpec, TypeVar, overload

    from tensorplay.graph import Graph
    from tensorplay.outcome import Explanation, RunReport

    P = ParamSpec("P")
    R = TypeVar("R")
else:
    from tensorplay._later import hints, overload

    Callable, Mapping, Sequence = hints("collections.abc", "Callable", "Mapping", "Sequence")
    (Any,), (Graph,) = hints("typing", "Any"), hints("tensorplay.graph", "Graph")
    Explanation, RunReport = hints("tensorplay.outcome", "Explanation", "RunReport")

__all__ = ["CompiledFunction", "compile", "counters", "mark_dynamic"]

CompiledFunction = _native.CompiledFunction

_POLICIES = ("record", "warn", "error")
_RECOMPILE_LIMIT = 8


def _policy(on_fallback: str | None, names: Sequence[str], single: bool) -> str:
    if on_fallback is None:
        return "warn" if single and names[0] != "native" else "record"
    if _arguments.string("compile", "on_fallback", on_fallback) not in _POLICIES:
        raise InvalidValueError(
            f"on_fallback must be one of {', '.join(map(repr, _POLICIES))} or None, not {on_fallback!r}",
            code="TP1041",
        )
    return on_fallback


def _check_available(names: Sequence[str], policy: str) -> None:
    if policy != "error":
        return
    for name in names:
        capability = backends.base.capability(name)
        if not capability.available:
            reason = outcome.FallbackReason(
                "BackendUnavailable",
                None,
                f"backend '{name}' is not available: {capability.reason}",
                {"backend": name},
            )
            raise FallbackError(
                f"backend '{name}' is not available here: {capability.reason}",
                code="TP4101",
                reason=reason,
                capability=capability,
                notes=("see `python -m tensorplay doctor`, or pass on_fallback='record' to run natively",),
            )


def _names(backend: Any) -> list[str]:
    """The backends asked for, in order; ArgumentError that lists the known ones where there is none."""
    names = (
        [backend] if isinstance(backend, str) else list(backend) if isinstance(backend, (list, tuple)) else []
    )
    if not names or not all(isinstance(name, str) for name in names):
        got = "an empty list" if isinstance(backend, (list, tuple)) and not backend else repr(backend)
        raise ArgumentError(
            f"backend is a name or a list of names, got {got}; known are {', '.join(map(repr, backends.base.names()))}",
            code="TP4105",
            notes=("leave it out to run natively",),
        )
    return names


def _options(options: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """The options of the named backends; InvalidValueError for one that none of them has or a value of another type."""
    if options is None:
        return None
    _arguments.instance("compile", "options", options, dict, "a dict")
    known: dict[str, type] = {}
    for name in names:
        known |= backends.base.options(name)
    for option, value in options.items():
        if option not in known:
            near = _arguments.nearest(option, known) if isinstance(option, str) else None
            hint = f"; did you mean {near!r}?" if near else ""
            listed = ", ".join(map(repr, sorted(known))) or "none"
            raise InvalidValueError(
                f"no option {option!r} for {', '.join(map(repr, names))}: known are {listed}{hint}",
                code="TP4109",
            )
        if type(value) is not known[option]:
            raise InvalidValueError(
                f"option {option!r} is a {known[option].__name__}, got {value!r}", code="TP4109"
            )
    return dict(options)


def _assumed(given: Any) -> tuple[Any, ...]:
    if not isinstance(given, (tuple, list)):
        raise ArgumentError(
            f"assume_constant is a tuple or list of functions, objects and names, got {given!r}",
            code="TP1002",
            notes=("write assume_constant=[time.time]",),
        )
    return tuple(given)


@overload
def compile(
    fn: Callable[P, R],
    *,
    backend: str | Sequence[str] = ...,
    dynamic: bool | None = ...,
    on_fallback: str | None = ...,
    fullgraph: bool = ...,
    background: bool = ...,
    options: Mapping[str, Any] | None = ...,
    assume_constant: Sequence[Any] = ...,
) -> CompiledFunction[P, R]: ...


@overload
def compile(
    fn: None = ...,
    *,
    backend: str | Sequence[str] = ...,
    dynamic: bool | None = ...,
    on_fallback: str | None = ...,
    fullgraph: bool = ...,
    background: bool = ...,
    options: Mapping[str, Any] | None = ...,
    assume_constant: Sequence[Any] = ...,
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...


@_arguments.keywords
def compile(
    fn: Callable[..., Any] | None = None,
    *,
    backend: str | Sequence[str] = "native",
    dynamic: bool | None = None,
    on_fallback: str | None = None,
    fullgraph: bool = True,
    background: bool = False,
    options: Mapping[str, Any] | None = None,
    assume_constant: Sequence[Any] = (),
) -> Any:
    """Compile ``fn``; usable as a decorator.

    Parameters
    ----------
    fn
        A function of tensors, numbers, and nested lists, tuples and dicts of them.
    backend
        A name, or several in order of preference: ``"native"``, ``"tvm"``, or a plugged-in one.
    dynamic
        None captures with the sizes as they are; where a later call differs from an entry in sizes alone, those become
        symbols of the new entry, which serves sizes from 2 on. True makes symbols at once, False none. Branches are guarded.
    on_fallback
        ``"record"`` keeps the reason in the reports, ``"warn"`` warns once per region, ``"error"`` raises
        ``FallbackError``. None means ``"warn"`` where one non-native backend was named, else ``"record"``.
    fullgraph
        True refuses what no graph can hold. False lets the function break off there: where a capture of the whole is
        refused, Python runs at every call, and the ops between two breaks are compiled as one segment.
        ``report.breaks`` lists each break with code and line.
    background
        Make the backend's code on another thread; until it is there the region runs native, with the reason ``Compiling``.
    options
        Of ``"tvm"``, shown in the markers: ``"target"``, a processor by LLVM's name instead of this machine; ``"parallel"``,
        long loops are split over the pool (True); ``"fast_math"``, a product and its sum may be rounded once (False).
    assume_constant
        Functions, called once, by the capture; objects, nothing of which is guarded; and names as they stand in the guards
        (``"settings.scale"``): the caller vouches for their hidden state.

    Returns
    -------
    CompiledFunction
        Callable like ``fn``, with ``.explain(*args)``, ``.report``, ``.last_run``, ``.graphs``, ``.builds`` and
        ``.run(*args) -> (outputs, RunReport)``.

    Raises
    ------
    InvalidValueError
        For a backend name that nobody registered, and an option that no named backend has; a ValueError too.
    ArgumentError
        For something that cannot be called.
    """
    names = _names(backend)
    for name in names:
        backends.base.ensure_known(name)
    policy, chosen = _policy(on_fallback, names, isinstance(backend, str)), _options(options, names)
    if fn is None:
        return functools.partial(
            compile,
            backend=backend,
            dynamic=dynamic,
            on_fallback=on_fallback,
            fullgraph=fullgraph,
            background=background,
            options=options,
            assume_constant=assume_constant,
        )
    _arguments.function("compile", "fn", fn)
    fullgraph = _arguments.boolean("compile", "fullgraph", fullgraph)
    if dynamic is not None:
        dynamic = _arguments.boolean("compile", "dynamic", dynamic)
    _check_available(names, policy)
    return _made(fn, names, policy, dynamic, fullgraph, background, chosen, _assumed(assume_constant))


def _made(
    fn: Callable[..., Any],
    names: list[str],
    policy: str,
    dynamic: bool | None,
    fullgraph: bool,
    background: bool,
    options: dict[str, Any] | None,
    assumed: tuple[Any, ...],
) -> Any:
    from tensorplay._triton_op import watch_launches

    watch_launches()
    compiled = _native.compile_function(
        fn,
        backends=names,
        policy=policy,
        limit=_RECOMPILE_LIMIT,
        parameters=graph.parameter_names(fn),
        background=background,
        dynamic=dynamic,
        options=options,
        assumed=assumed,
        fullgraph=fullgraph,
    )
    functools.update_wrapper(compiled, fn, updated=())
    return compiled


def counters() -> dict[str, int]:
    """What compiled functions of this process did so far; what never happened is not there.

    ``graphs``: captures that gave an entry; ``recompiles``: those behind the first one of a function;
    ``fallback.KIND``: regions that do not run where they were asked to, by the kind of the reason; ``eager.KIND``: calls
    that ran the function itself; ``fallbacks``: the last two together; ``breaks``, ``break.CODE``: places where functions
    compiled with ``fullgraph=False`` broke off.
    """
    from tensorplay import _observe

    return _observe.counters()


def _explain(self: CompiledFunction, *args: Any, **kwargs: Any) -> Explanation:
    """Capture for these arguments if need be, and say what was captured, guarded and planned."""
    _native.compiled_prepare(self, args, kwargs or None)
    return _native.compiled_report(self)


def _run(self: CompiledFunction, *args: Any, **kwargs: Any) -> tuple[Any, RunReport]:
    """Call, and return the outputs with the report of this run."""
    outputs = self(*args, **kwargs)
    report = _native.compiled_last_run(self)
    if report is None:
        raise RuntimeError("the call left no report")
    return outputs, report


def _bind(self: CompiledFunction, instance: Any) -> types.MethodType:
    return types.MethodType(self, instance)


def _repr(self: CompiledFunction) -> str:
    name = getattr(self, "__qualname__", None) or repr(_native.compiled_function(self))
    return f"<compiled {name}, {_arguments.counted(len(_native.compiled_graphs(self)), 'graph')}>"


def _graphs(self: CompiledFunction) -> list[Graph]:
    """One graph per entry; a training entry has ``.backward``."""
    return _native.compiled_graphs(self)


def _report(self: CompiledFunction) -> Explanation:
    """What exists so far, without a new capture."""
    return _native.compiled_report(self)


def _last_run(self: CompiledFunction) -> RunReport | None:
    """This thread's last run; ``backward`` is filled once the backward has run."""
    return _native.compiled_last_run(self)


def _builds(self: CompiledFunction) -> list[dict[str, Any]]:
    """Artifacts made, each with backend, hash, seconds, and whether it came from a cache."""
    return _native.compiled_builds(self)


_DOC = """What `compile` gives: callable like the function it was made of, compiled for the arguments that it meets.

The first call with arguments that no earlier capture fits captures and compiles; `explain(*args)` does only that, and says
what came of it. `run(*args)` gives the outputs and a report of who ran what. `graphs`, `report`, `last_run` and `builds` are
what there is so far.
"""


def _install() -> None:
    """Give the extension's type its methods: a Python subclass would lose the fast call in 3.11."""
    members: dict[str, Any] = {
        "explain": _explain,
        "run": _run,
        "_bind": _bind,
        "__repr__": _repr,
        "graphs": property(_graphs),
        "report": property(_report),
        "last_run": property(_last_run),
        "builds": property(_builds),
    }
    CompiledFunction.__doc__ = _DOC
    for name, member in members.items():
        setattr(CompiledFunction, name, member)


_install()


def __dir__() -> list[str]:
    return sorted(__all__)
