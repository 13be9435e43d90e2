"""A `@triton.jit` kernel to a cubin with an explicit target: no GPU, no driver, no C compiler.

Lives here: specialisation of arguments by Triton's rules, and the call of Triton's compiler. Not here: launching.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorplay._jit import innermost
from tensorplay.backends import base
from tensorplay.errors import ArgumentError
from tensorplay.outcome import CodegenMarker

# The default is on in Triton 3.9 and off in 3.10: numbers must not depend on that.
DEFAULT_OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}
POINTERS = {
    "bool": "*u1",
    "uint8": "*u8",
    "int8": "*i8",
    "int16": "*i16",
    "int32": "*i32",
    "int64": "*i64",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float64": "*fp64",
}
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A cubin with what a launcher and a report need. `hash` is of the cubin's bytes."""

    name: str
    hash: str
    arch: str
    signature: dict[str, str]
    constants: dict[str, Any]
    metadata: dict[str, Any] = field(hash=False)
    asm: dict[str, Any] = field(repr=False, hash=False)

    @property
    def cubin(self) -> bytes:
        """The code for the device."""
        return bytes(self.asm["cubin"])

    def marker(self, device: str) -> CodegenMarker:
        """The proof that a launch of this kernel leaves."""
        return CodegenMarker("triton", self.name, f"{self.hash} {self.arch}", device)


def specialize(value: Any, parameter: Any) -> tuple[str, str]:
    """Triton's type of an argument and its specialisation key ("D": a multiple of 16) for one parameter."""
    if parameter.is_constexpr or value is None:
        return "constexpr", ""
    aligned = not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
    if hasattr(value, "data_ptr"):
        kind = POINTERS.get(str(value.dtype).split(".")[-1])
        if kind is None:
            raise ArgumentError(
                f"argument {parameter.name!r}: Triton has no pointer to {value.dtype}", code="TP2013"
            )
        if parameter.is_const:
            kind = "*k" + kind[1:]
        return kind, "D" if aligned and value.data_ptr() % _ALIGNMENT == 0 else ""
    annotated = parameter.annotation_type
    if isinstance(value, bool):
        return annotated or "u1", ""
    if isinstance(value, int):
        if value == 1 and not parameter.do_not_specialize:
            return "constexpr", ""
        return annotated or _integer(
            value, parameter.name
        ), "D" if aligned and value % _ALIGNMENT == 0 else ""
    if isinstance(value, float):
        return annotated or "fp32", ""
    raise ArgumentError(
        f"argument {parameter.name!r} of a Triton kernel must be a tensor, a number or None, got {type(value).__name__}",
        code="TP2013",
    )


def _integer(value: int, name: str) -> str:
    for kind, low, high in (("i32", -(2**31), 2**31), ("i64", -(2**63), 2**63), ("u64", 0, 2**64)):
        if low <= value < high:
            return kind
    raise ArgumentError(f"argument {name!r}: {value} does not fit in 64 bits", code="TP2031")


def compile_kernel(
    kernel: Any,
    args: tuple[Any, ...],
    constants: Mapping[str, Any] | None = None,
    *,
    arch: int = 90,
    options: Mapping[str, Any] | None = None,
) -> CompiledKernel:
    """The kernel for these arguments and constexpr values, for the CUDA architecture `arch` (90 is sm_90)."""
    base.require("triton", "compiling a Triton kernel", part="compiles")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    fn = innermost(kernel)
    given = dict(zip(fn.arg_names, args, strict=False)) | dict(constants or {})
    signature: dict[str, str] = {}
    folded: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, parameter in enumerate(fn.params):
        value = given.get(parameter.name, parameter.default)
        kind, key = specialize(value, parameter)
        signature[parameter.name] = kind
        if kind == "constexpr":
            folded[parameter.name] = value
        if key == "D":
            attributes[(index,)] = [["tt.divisibility", _ALIGNMENT]]
    source = ASTSource(fn, signature, {(fn.arg_names.index(k),): v for k, v in folded.items()}, attributes)
    built = triton.compile(
        source, target=GPUTarget("cuda", arch, 32), options=DEFAULT_OPTIONS | dict(options or {})
    )
    metadata = built.metadata._asdict()
    return CompiledKernel(
        name=str(metadata["name"]),
        hash=hashlib.sha256(built.asm["cubin"]).hexdigest()[:16],
        arch=f"sm_{arch}",
        signature=signature,
        constants=folded,
        metadata=metadata,
        asm=dict(built.asm),
    )
