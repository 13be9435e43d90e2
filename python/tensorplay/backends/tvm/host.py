"""The host side of TVM: the one guarded import, the CPU target, the pass list.

Lives here: everything that touches the tvm module as a whole.
Not here: building or compiling a kernel (`kernel`, `compile`).
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .artifact import LoweringError
from .probe import PINNED, probe

PIPELINE = "tensorplay_strict"
_PASSES = ["FlattenBuffer", "VectorizeLoop", "AnnotateEntryFunc", "SplitHostDevice", "MakePackedAPI"]
_SIGACTION_BYTES = 512  # at least sizeof(struct sigaction) on every libc

_host: Host | None = None


@dataclass(frozen=True)
class Host:
    """The loaded compiler and the machine it compiles for."""

    tvm: Any
    target: Any
    target_text: str
    has_fma: bool
    versions: str


def loaded() -> Host | None:
    """The compiler if this process has loaded it."""
    return _host


def versions() -> str:
    """The packages that code is made with."""
    return " ".join(f"{package}=={version}" for package, version in PINNED.items())


def load() -> Host:
    """The loaded compiler; the first call imports tvm. The caller holds the compile lock."""
    global _host
    if _host is None:
        _host = _load()
    return _host


def _load() -> Host:
    state = probe()
    if not state["available"]:
        raise LoweringError(state["details"]["kind"], "probe", state["reason"], state["details"])
    with _process_state_kept():
        import tvm
    _register_pipeline(tvm)
    cpu = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUName")()
    features = {
        str(k): bool(v) for k, v in tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")().items()
    }
    attrs = _attributes(features)
    return Host(
        tvm=tvm,
        target=tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mattr": attrs}),
        target_text=f"llvm -mcpu={cpu} -mattr={','.join(attrs)}",
        has_fma=features.get("fma", "neon" in features),
        versions=versions(),
    )


def _attributes(features: dict[str, bool]) -> list[str]:
    """The full feature list: the CPU name alone may imply features that a hypervisor masks."""
    attrs = [("+" if on else "-") + name for name, on in sorted(features.items())]
    return [*attrs, "-prefer-256-bit"] if features.get("avx512f") else attrs


def _register_pipeline(tvm: Any) -> None:
    """Lowering without the simplifiers, CSE and index narrowing: those fold `x - x` or `x + 0`."""
    from tvm.tirx import compilation_pipeline as stock

    arguments = {"VectorizeLoop": (True,)}

    def strict() -> tuple[Any, Any, Any]:
        @tvm.transform.module_pass(opt_level=0)
        def run(module: Any, _context: Any) -> Any:
            passes = [getattr(tvm.tirx.transform, name)(*arguments.get(name, ())) for name in _PASSES]
            return tvm.ir.transform.Sequential(passes)(module)

        return run, stock.finalize_host_passes, stock.finalize_device_passes

    tvm.tirx.register_tir_pipeline(PIPELINE, strict)


@contextlib.contextmanager
def _process_state_kept() -> Iterator[None]:
    """Importing tvm replaces `sys.excepthook` and the SIGSEGV handler; both are put back."""
    excepthook = sys.excepthook
    restore_handler = _saved_handler(signal.SIGSEGV)
    try:
        yield
    finally:
        sys.excepthook = excepthook
        restore_handler()


def _saved_handler(signum: int) -> Callable[[], None]:
    """A function that reinstates the current C-level handler, which Python cannot name."""
    try:
        sigaction = ctypes.CDLL(None).sigaction
    except (AttributeError, OSError, TypeError):
        return lambda: None
    saved = ctypes.create_string_buffer(_SIGACTION_BYTES)
    if sigaction(signum, None, saved) != 0:
        return lambda: None
    return lambda: sigaction(signum, saved, None)
