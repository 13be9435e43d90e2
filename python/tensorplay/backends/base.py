"""Backends by name: which there are, what each needs, and its adapter on first use.

Lives here: the protocol that adapters follow, the registry of names, and the probes of the machine. Not here: any
adapter; they are imported by name, when they are asked for something.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tensorplay import _native
from tensorplay.errors import CapabilityError, InvalidValueError
from tensorplay.outcome import Capability

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = [
    "Backend",
    "absent",
    "adapter",
    "capabilities",
    "capability",
    "ensure_known",
    "names",
    "register",
    "require",
    "require_package",
]

ENTRY_POINTS = "tensorplay.backends"
_ADAPTERS = {"tvm": "tensorplay.backends.tvm", "triton": "tensorplay.backends.triton"}
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


class Backend(Protocol):
    """What a backend offers: a module or an object under an entry point of the group "tensorplay.backends"."""

    def probe(self) -> Mapping[str, Any]:
        """`{"available": bool, "reason": str | None, "details": dict}`, without importing anything heavy."""

    def supports(self, program: Mapping[str, Any], /) -> Mapping[str, Any] | None:
        """None when `lower` takes the scalar program, else `{"kind", "message", "details"}`."""

    def lower(self, program: Mapping[str, Any], layout: Mapping[str, Any], /) -> Any:
        """The artifact for the program over operands that lie as `layout` says."""


_registered: dict[str, Backend] = {}


def register(name: str, backend: Backend) -> None:
    """Makes `backend` known under `name` in this process."""
    if name in _ADAPTERS or name in _MACHINE or name == "native":
        raise ValueError(f"the backend name {name!r} is taken")
    _registered[name] = backend


def _plugged_in() -> dict[str, Any]:
    from importlib import metadata

    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}


def names() -> list[str]:
    """Backends that `compile` knows: the native one, the adapters, and what was plugged in."""
    return list(dict.fromkeys(["native", *_ADAPTERS, *_registered, *_plugged_in()]))


def ensure_known(name: str) -> None:
    """Tells the compiler of the backend `name`; InvalidValueError with the known names when nobody registered it."""
    if name in _native.backend_names():
        return
    known = ["native", *_ADAPTERS, *_registered]
    if name not in known:
        known = names()
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidValueError(
            f"no backend named {name!r}; known are {', '.join(map(repr, known))}{hint}", code="TP4107"
        )
    if name != "native":
        _native.register_backend(name)


def absent(reason: str, details: dict[str, Any]) -> dict[str, Any]:
    """What a probe says of a backend that cannot be used here."""
    return {"available": False, "reason": reason, "details": details}


def adapter(name: str) -> Any:
    """The adapter of that name, imported on first use."""
    if name in _ADAPTERS:
        return importlib.import_module(_ADAPTERS[name])
    if name in _registered:
        return _registered[name]
    point = _plugged_in().get(name)
    if point is None:
        raise ValueError(f"no adapter named {name!r}; known are {', '.join([*_ADAPTERS, *_registered])}")
    loaded = point.load()
    return loaded() if isinstance(loaded, type) else loaded


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
    found = dict.fromkeys(["native", "python", *_ADAPTERS, "cuda", *_registered, *_plugged_in()])
    return {name: capability(name) for name in found}


def capability(name: str) -> Capability:
    """One entry of `capabilities()`."""
    if name in ("native", "python"):
        return Capability(name, True)
    if name == "cuda":
        return _cuda()
    try:
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
