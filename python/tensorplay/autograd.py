"""Differentiation: grad mode, gradients, custom functions, and the numeric check of gradients.

Lives here: the modes and the entry points. Not here: the tape and the rules (the extension); `gradcheck` (`_gradcheck`),
hooks on saved tensors and checkpoints (`_saving`), which are re-exported.

Modes belong to the thread, not to the task: a `with no_grad():` that is open across an `await` is in force in every
other coroutine of the event loop until it resumes. Enter a mode around steps that do not await.
"""

from __future__ import annotations

import functools
import importlib
import threading
from threading import get_ident

from tensorplay import _arguments, _native
from tensorplay._native import Context as FunctionContext
from tensorplay._native import Entries, Function, Scope, Tensor, is_grad_enabled
from tensorplay.errors import ArgumentError, AutogradError, InvalidValueError

__all__ = [
    "Function",
    "FunctionContext",
    "GradcheckError",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "is_grad_enabled",
    "no_grad",
    "once_differentiable",
    "saved_tensors_hooks",
    "set_detect_anomaly",
    "set_grad_enabled",
]

TYPE_CHECKING = False  # type checkers take it for True; the name from `typing` would load that module
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any, Self, TypeVar, overload

    from tensorplay._gradcheck import gradcheck, gradgradcheck
    from tensorplay._saving import checkpoint, once_differentiable, saved_tensors_hooks
    from tensorplay.errors import GradcheckError

    F = TypeVar("F", bound=Callable[..., Any])
else:
    from tensorplay._later import any_function, hints, overload

    Callable, Generator, Sequence = hints("collections.abc", "Callable", "Generator", "Sequence")
    Any, Self, F = *hints("typing", "Any", "Self"), any_function("F")

    # Imported on first use: most programs need neither.
    _LAZY = {
        "GradcheckError": "tensorplay.errors",
        "checkpoint": "tensorplay._saving",
        "once_differentiable": "tensorplay._saving",
        "saved_tensors_hooks": "tensorplay._saving",
        "gradcheck": "tensorplay._gradcheck",
        "gradgradcheck": "tensorplay._gradcheck",
    }

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value


_set = _native.set_grad_enabled


class _GradMode(Scope):
    """A grad mode as a context manager and as a decorator. It belongs to the thread; one object may be entered again.

    Coroutines of one thread share it: no `await` inside of a `with` block.
    """

    __slots__ = ("_mode",)
    _mode: bool

    def __new__(cls, mode: bool) -> Self:
        self = super().__new__(cls, "a grad mode", AutogradError, "TP3316", _set, _set, mode)
        self._mode = mode
        return self

    def __call__(self, fn: F) -> F:
        return _under(self._mode, fn)

    def __repr__(self) -> str:
        return "enable_grad()" if self._mode else "no_grad()"


def _under(mode: bool, fn: F) -> F:
    """`fn` with every one of its steps run in grad mode `mode`."""
    import inspect

    _arguments.function("grad mode", "fn", fn)
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise ArgumentError(
            "grad mode belongs to the thread: other tasks would see it while a coroutine waits",
            code="TP3301",
            notes=("enter it inside of the coroutine, around steps that do not await",),
        )
    if inspect.isgeneratorfunction(fn):
        generator: Any = _generator_under(mode, fn)
        return generator

    scope = _GradMode(mode)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        with scope:
            return fn(*args, **kwargs)

    wrapped: Any = call
    return wrapped


def _generator_under(
    mode: bool, fn: Callable[..., Generator[Any, Any, Any]]
) -> Callable[..., Generator[Any, Any, Any]]:
    scope = _GradMode(mode)

    @functools.wraps(fn)
    def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = fn(*args, **kwargs)
        advance: Callable[..., Any] = functools.partial(next, inner)
        while True:
            try:
                with scope:
                    value = advance()
            except StopIteration as stop:
                return stop.value
            try:
                sent = yield value
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:
                advance = functools.partial(inner.throw, error)
            else:
                advance = functools.partial(inner.send, sent)

    return steps


@overload
def no_grad(fn: F, /) -> F: ...
@overload
def no_grad(fn: None = None, /) -> _GradMode: ...
def no_grad(fn: Any = None, /) -> Any:
    """Operations are not recorded: `with no_grad(): ...`, `@no_grad()` or `@no_grad`."""
    return _GradMode(False) if fn is None else _under(False, fn)


@overload
def enable_grad(fn: F, /) -> F: ...
@overload
def enable_grad(fn: None = None, /) -> _GradMode: ...
def enable_grad(fn: Any = None, /) -> Any:
    """Operations are recorded again inside of `no_grad`."""
    return _GradMode(True) if fn is None else _under(True, fn)


class set_grad_enabled(_GradMode):
    """Sets the grad mode at once; as a context manager or decorator the mode before comes back."""

    __slots__ = ("_before", "_thread")

    _before: bool
    _thread: int | None

    def __new__(cls, mode: bool) -> Self:
        on = _arguments.boolean("set_grad_enabled", "mode", mode)
        self = super().__new__(cls, on)
        self._before, self._thread = _set(on), get_ident()
        return self

    def __enter__(self) -> Self:
        before = _set(self._mode)
        # The first entry on the thread of the call takes back what that did.
        if self._thread == get_ident():
            before, self._thread = self._before, None
        self.push(before)
        return self

    def __call__(self, fn: F) -> F:
        _set(self._before)
        return _under(self._mode, fn)

    def __repr__(self) -> str:
        return f"set_grad_enabled({self._mode})"


class detect_anomaly(Scope):
    """While entered, on this thread, whatever fails in a backward pass names the line of the call that was recorded.

    With `check_nan` the first NaN of a backward pass is such a failure.
    """

    _check_nan: bool

    def __new__(cls, check_nan: bool = True) -> Self:
        nan = _arguments.boolean("detect_anomaly", "check_nan", check_nan)
        mode = _native.AnomalyMode
        self = super().__new__(cls, "detect_anomaly", AutogradError, "TP3316", mode.leave, mode.entered, nan)
        self._check_nan = nan
        return self

    def __repr__(self) -> str:
        return f"detect_anomaly(check_nan={self._check_nan})"


class _Anomaly(threading.local):
    """What `set_detect_anomaly` set on this thread: whether NaN are looked for; None while it is off."""

    mode: _native.AnomalyMode
    nan: bool | None

    def __init__(self) -> None:
        self.mode, self.nan = _native.AnomalyMode(), None

    def put(self, check_nan: bool | None) -> bool | None:
        """Sets it, and returns what it was."""
        before, self.nan = self.nan, check_nan
        self.mode.leave()
        if check_nan is not None:
            self.mode.enter(check_nan)
        return before


_anomaly = _Anomaly()


class set_detect_anomaly:
    """Sets anomaly mode of this thread at once; as a context manager the mode before comes back."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        nan = _arguments.boolean("set_detect_anomaly", "check_nan", check_nan)
        self._nan = nan if _arguments.boolean("set_detect_anomaly", "mode", mode) else None
        self._before = _anomaly.put(self._nan)
        self._thread: int | None = get_ident()
        self._entries = Entries("set_detect_anomaly", AutogradError, "TP3316")

    def __enter__(self) -> None:
        before = _anomaly.put(self._nan)
        if self._thread == get_ident():
            before, self._thread = self._before, None
        self._entries.push(before)

    def __exit__(self, *_: object) -> None:
        _anomaly.put(self._entries.pop())

    def __repr__(self) -> str:
        nan = "" if self._nan is None else f", check_nan={self._nan}"
        return f"set_detect_anomaly({self._nan is not None}{nan})"


def _gradients(
    owner: str, values: Tensor | Sequence[Tensor | None] | None, outputs: list[Tensor], what: str
) -> list[Tensor | None]:
    if values is None:
        return [None] * len(outputs)
    found: list[Tensor | None] = _arguments.tensors(owner, what, values, optional=True)
    if len(found) != len(outputs):
        raise ArgumentError(
            f"{what} has length {len(found)} for {_arguments.counted(len(outputs), 'output')}", code="TP3009"
        )
    return found


def _retained(owner: str, retain_graph: bool | None, create_graph: bool) -> bool:
    """Whether the graph stays: as said, or where a second derivative needs it."""
    create = _arguments.boolean(owner, "create_graph", create_graph)
    return create if retain_graph is None else _arguments.boolean(owner, "retain_graph", retain_graph)


@_arguments.keywords
def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Adds the gradients of `tensors` to the `.grad` of every leaf they were computed from, or of `inputs` alone."""
    outputs = _arguments.tensors("backward", "tensors", tensors)
    gradients = _gradients("backward", grad_tensors, outputs, "grad_tensors")
    retain = _retained("backward", retain_graph, create_graph)
    wanted = None if inputs is None else _arguments.tensors("backward", "inputs", inputs)
    if wanted == []:
        raise ArgumentError("inputs is empty: name a tensor, or leave it out for all leaves", code="TP3309")
    _native.backward(outputs, gradients, retain, create_graph, wanted)


@_arguments.keywords
def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """Gradients of `outputs` with respect to `inputs`, one per input; `.grad` is left alone.

    An input that `outputs` do not depend on is an error, None with `allow_unused=True`, zeros with
    `materialize_grads=True` (which `allow_unused=False` contradicts: InvalidValueError).
    """
    if materialize_grads and allow_unused is False:
        raise InvalidValueError(
            "materialize_grads=True gives zeros for unused inputs: allow_unused=False contradicts it",
            code="TP3315",
        )
    ends = _arguments.tensors("grad", "outputs", outputs)
    starts = _arguments.tensors("grad", "inputs", inputs)
    gradients = _gradients("grad", grad_outputs, ends, "grad_outputs")
    retain = _retained("grad", retain_graph, create_graph)
    _arguments.boolean("grad", "materialize_grads", materialize_grads)
    unused = (
        materialize_grads
        if allow_unused is None
        else _arguments.boolean("grad", "allow_unused", allow_unused)
    )
    found = _native.grad(ends, starts, gradients, retain, create_graph, unused or materialize_grads)
    if materialize_grads:
        zeros = _native.builtins["zeros_like"]
        found = [zeros(x) if g is None else g for g, x in zip(found, starts, strict=True)]
    return tuple(found)


def __dir__() -> list[str]:
    return sorted(__all__)
