"""Backends by name: which there are, what each needs, and its adapter on first use.

Lives here: the registry of names, and the probes of the machine. Not here: any adapter; they are imported by name, when
they are asked for something. Nor what a plugged-in backend has to offer (`contract`).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorplay import _native
from tensorplay._arguments import nearest
from tensorplay._later import hints
from tensorplay._places import stack_level
from tensorplay.backends.contract import Backend, Plugged, checked
from tensorplay.errors import ArgumentError, CapabilityError, InvalidValueError
from tensorplay.outcome import Capability

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
else:
    (ThreadPoolExecutor,) = hints("concurrent.futures", "ThreadPoolExecutor")

__all__ = [
    "ADAPTERS",
    "absent",
    "adapter",
    "capabilities",
    "capability",
    "ensure_known",
    "names",
    "options",
    "plugged",
    "register",
    "require",
    "require_package",
    "unregister",
]

ENTRY_POINTS = "tensorplay.backends"
ADAPTERS = {"tvm": "tensorplay.backends.tvm", "triton": "tensorplay.backends.triton"}
_PACKAGES = {"tvm": "tvm", "triton": "triton"}
# Capabilities that are no backends of `compile`.
_MACHINE = ("python", "cuda")
_LIBRARY_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
)


_registered: dict[str, Plugged] = {}
# Backends of entry points that were loaded.
_loaded: dict[str, Plugged] = {}


def register(name: str, backend: Backend | type[Backend]) -> None:
    """Makes `backend`, an instance or a class, known under `name` in this process, in front of an entry point.

    The same name again replaces. A ValueError for the name of a built-in, ArgumentError (a TypeError) for what is no
    `Backend`.
    """
    if _is_taken(name):
        raise InvalidValueError(f"the backend name {name!r} is taken", code="TP4107")
    _registered[name] = Plugged(name, checked(backend, f"what is registered as backend {name!r}"))


def unregister(name: str) -> None:
    """Forgets a backend that `register` made known. What it compiled stays; ValueError for a name that was not registered."""
    if _registered.pop(name, None) is None:
        raise InvalidValueError(f"no backend was registered as {name!r}", code="TP4107")


def _is_taken(name: str) -> bool:
    return name in ADAPTERS or name in _MACHINE or name == "native"


def _plugged_in() -> dict[str, Any]:
    """Entry points by name, none loaded. The first of a name counts, as for imports, and a built-in before all."""
    from importlib import metadata

    found: dict[str, Any] = {}
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if _is_taken(point.name) and point not in _ignored:
            _ignored.append(point)
            warnings.warn(
                f"{_origin(point)} is ignored: the name is a built-in's",
                RuntimeWarning,
                stacklevel=stack_level(),
            )
        elif not _is_taken(point.name):
            found.setdefault(point.name, point)
    return found


_ignored: list[Any] = []


def _origin(point: Any) -> str:
    made_by = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"the entry point '{point.name} = {point.value}'{made_by}"


def plugged(name: str) -> Plugged | Capability | None:
    """The backend that was registered or plugged in under `name`, loaded on first use; the capability of one that does
    not load, and None where there is none. ArgumentError (a TypeError) for an entry point that names something else.
    """
    known = _registered.get(name) or _loaded.get(name)
    if known is not None or _is_taken(name) or (point := _plugged_in().get(name)) is None:
        return known
    try:
        loaded = point.load()
    except Exception as error:
        reason = f"{_origin(point)} does not load: {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name:
            reason += f"; pip install {error.name.partition('.')[0]}, or what its documentation names"
        # Not kept: what is missing may be installed before it is asked for again.
        return Capability(name, False, reason, {"entry_point": point.value})
    return _loaded.setdefault(name, Plugged(name, checked(loaded, _origin(point))))


def names() -> list[str]:
    """Backends that `compile` knows: the native one, the adapters, and what was plugged in."""
    return list(dict.fromkeys(["native", *ADAPTERS, *_registered, *_plugged_in()]))


def ensure_known(name: str) -> None:
    """Tells the compiler of the backend `name`; InvalidValueError with the known names when nobody registered it."""
    if name in ADAPTERS:
        _native.register_backend(name, False)
    elif name != "native" and plugged(name) is not None:
        _native.register_backend(name, True)
    elif name != "native":
        known = names()
        near = nearest(name, known)
        hint = f"; did you mean {near!r}?" if near else ""
        raise InvalidValueError(
            f"no backend named {name!r}; known are {', '.join(map(repr, known))}{hint}",
            code="TP4107",
            notes=("to run a function without a backend, call it instead of what `compile` makes of it",)
            if "eager" in name
            else (),
        )


def absent(reason: str, details: dict[str, Any]) -> dict[str, Any]:
    """What a probe says of a backend that cannot be used here."""
    return {"available": False, "reason": reason, "details": details}


def adapter(name: str) -> Any:
    """The adapter in this package of that name, imported on first use."""
    return importlib.import_module(ADAPTERS[name])


def options(name: str) -> dict[str, type]:
    """What `options=` of `compile` may hold for the backend of that name, and the type of each."""
    return dict(getattr(adapter(name), "OPTIONS", {})) if name in ADAPTERS else {}


# One thread for what is compiled in the background, started with the first of it.
_worker: ThreadPoolExecutor | None = None


def later(job: Callable[[], object]) -> None:
    """Runs `job` on the thread of background builds, after those that came before; at exit they are waited for."""
    global _worker
    if _worker is None:
        from concurrent.futures import ThreadPoolExecutor

        _worker = ThreadPoolExecutor(1, "tensorplay-background")
    _worker.submit(job)


def _without_worker() -> None:
    global _worker
    _worker = None


# A forked child has no such thread.
os.register_at_fork(after_in_child=_without_worker)


def capabilities() -> dict[str, Capability]:
    """What can be used here and what not, and why: native, python, tvm, triton, cuda, and each plugged-in name."""
    found = dict.fromkeys(["native", "python", *ADAPTERS, "cuda", *_registered, *_plugged_in()])
    return {name: capability(name) for name in found}


def capability(name: str) -> Capability:
    """One entry of `capabilities()`."""
    if name in ("native", "python"):
        return Capability(name, True)
    if name == "cuda":
        return _cuda()
    try:
        if name not in ADAPTERS:
            return _of_plugged(name)
        state = adapter(name).probe()
    except Exception as error:
        return Capability(name, False, f"its probe failed: {type(error).__name__}: {error}")
    found = Capability(name, bool(state["available"]), state["reason"], dict(state["details"]))
    installed = name in _PACKAGES and (found.available or "needs" in found.details)
    broken = _import_problem(_PACKAGES[name]) if installed else None
    return (
        Capability(name, False, broken, {"kind": "BackendUnavailable", "found": found.details.get("found")})
        if broken
        else found
    )


def _of_plugged(name: str) -> Capability:
    try:
        found = plugged(name)
    except ArgumentError as error:
        return Capability(name, False, error.args[0])
    if found is None:
        return Capability(name, False, "nobody registered a backend of that name")
    return found if isinstance(found, Capability) else found.capability()


def require(name: str, what: str, *, part: str | None = None) -> None:
    """CapabilityError naming `what` needed the capability, where it is absent.

    `part` names an entry of its details that is enough: Triton "compiles" without the GPU that launching needs.
    """
    found = capability(name)
    if not (found.available or (part is not None and found.details.get(part))):
        raise CapabilityError(
            f"{what} needs {name}, which is not available: {found.reason}",
            code="TP2001",
            capability=found,
            notes=("nothing was run; 'python -m tensorplay doctor' lists what is missing",),
        )


def require_package(package: str, what: str) -> None:
    """CapabilityError naming `what` needed a Python package, where that is not there."""
    if sys.modules.get(package) is not None or importlib.util.find_spec(package) is not None:
        return
    reason = f"{package} is not installed; pip install {package}"
    raise CapabilityError(
        f"{what} needs {package}, which is not there: {reason}",
        code="TP2003",
        capability=Capability(package, False, reason),
    )


def _import_problem(package: str) -> str | None:
    """Why the package cannot be imported although it is installed; None when nothing speaks against it."""
    try:
        if importlib.util.find_spec(package) is None:
            return f"the package {package} is installed, but Python does not find its module"
    except (ImportError, ValueError, AttributeError) as error:
        return f"importing {package} fails: {error}"
    return None


def _cuda() -> Capability:
    driver = _driver()
    if driver is None:
        reason = "no NVIDIA driver library was found (searched libcuda.so.1)"
        return Capability("cuda", False, reason, {"driver": None})
    reason = f"an NVIDIA driver is there ({driver}), but this build of tensorplay has no CUDA kernels"
    return Capability("cuda", False, reason, {"driver": driver})


def _driver() -> str | None:
    """Path of the driver library, found without loading it."""
    searched = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_LIBRARY_FOLDERS]
    paths = (f"{folder}/libcuda.so.1" for folder in searched if folder)
    return next((path for path in paths if os.access(path, os.R_OK)), None)


def __dir__() -> list[str]:
    return sorted(__all__)
