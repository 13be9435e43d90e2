"""Triton's kernel objects, recognised by the names of their classes, so that Triton need not be there.

Lives here: what an object is and which kernel is inside of it. Not here: anything that calls Triton (`backends.triton`).
"""

from __future__ import annotations

from typing import Any

__all__ = ["innermost", "is_interpreted", "is_kernel", "kernel_name"]

_WRAPPERS = frozenset({"Autotuner", "Heuristics"})
_KERNELS = frozenset({"JITFunction", "InterpretedFunction"})


def _class_names(value: Any) -> set[str]:
    return {cls.__name__ for cls in type(value).__mro__}


def is_kernel(value: Any) -> bool:
    """Whether `value` was made by `triton.jit`, `triton.autotune` or `triton.heuristics`."""
    return bool(_class_names(value) & (_WRAPPERS | _KERNELS))


def innermost(kernel: Any) -> Any:
    """The kernel inside of autotuners and heuristics."""
    while _class_names(kernel) & _WRAPPERS:
        kernel = kernel.fn
    return kernel


def is_interpreted(kernel: Any) -> bool:
    """Whether Triton made the kernel in interpreter mode."""
    return "InterpretedFunction" in _class_names(innermost(kernel))


def kernel_name(kernel: Any) -> str:
    """The author's name of the kernel."""
    inner = innermost(kernel)
    return str(getattr(inner, "__name__", type(inner).__name__))
