"""Launching a Triton kernel on tensorplay tensors, and saying plainly what is missing for it.

Lives here: the choice between the interpreter and a device, and the refusals. Not here: compiling (`compile`) and the
interpreter's view of a tensor (`interpreter`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorplay import _native
from tensorplay._jit import innermost, is_interpreted, kernel_name
from tensorplay.backends import base
from tensorplay.errors import CapabilityError, DeviceError

from . import interpreter


def supports(program: Mapping[str, Any], /) -> dict[str, Any]:
    """Regions of a compiled call stay with the other backends: this adapter launches kernels that users wrote."""
    message = "triton launches kernels that users wrote, and takes no generated regions"
    return {"kind": "UnsupportedOp", "message": message, "details": {"op": "a generated region"}}


def launch(kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`kernel[grid](*args, **kwargs)`: by Triton's interpreter where Triton was imported in that mode, else on a GPU."""
    if is_interpreted(kernel):
        return interpreter.launch(kernel, grid, args, kwargs)
    name = kernel_name(kernel)
    names = innermost(kernel).arg_names
    named = [*zip(names, args, strict=False), *kwargs.items()]
    on_cpu = [n for n, v in named if isinstance(v, _native.Tensor) and v.device.type == "cpu"]
    cuda = base.capability("cuda")
    if not cuda.available:
        raise CapabilityError(
            f"the Triton kernel {name} needs a CUDA device: {cuda.reason}; nothing was launched",
            code="TP2012",
            capability=cuda,
            notes=(
                "register a kernel for 'cpu', or test the kernel with tensorplay.backends.triton.interpreter",
            ),
        )
    raise DeviceError(
        f"the Triton kernel {name} was given CPU tensors ({', '.join(on_cpu)}); nothing was launched",
        code="TP2104",
    )
