"""A backend from outside: every region as a function in StableHLO's notation, and that text evaluated with NumPy.

It shows the contract, not speed. Nothing but `tensorplay.backends` is imported of tensorplay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from tensorplay.backends import Artifact, Backend, FallbackReason, Instruction, Region

Array = np.ndarray[Any, Any]

# bfloat16 is missing: NumPy has no such numbers.
TYPES = {
    "bool": "i1",
    "uint8": "ui8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
}
DTYPES = {text: np.dtype(name) for name, text in TYPES.items()}
FLOATS = ("float16", "float32", "float64")
COMPARISONS = {name: name.upper() for name in ("eq", "ne", "lt", "le", "gt", "ge")}
NAMES = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "neg": "negate",
    "abs": "abs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "rint": "round_nearest_even",
    "max": "maximum",
    "min": "minimum",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "not": "not",
    "shl": "shift_left",
    "shr": "shift_right_arithmetic",
    "select": "select",
    "cast": "convert",
    "bitcast": "bitcast_convert",
    # No operations of StableHLO: calls of the target's own.
    "trunc": "custom_call @trunc",
    "fma": "custom_call @fma",
}


def refusal(instruction: Instruction) -> FallbackReason | None:
    """Why one instruction is not taken; None when it is."""
    op, dtype = instruction.op, instruction.dtype
    if dtype not in TYPES:
        return FallbackReason("UnsupportedDType", op, f"NumPy has no {dtype}", {"dtype": dtype})
    if op == "fma" and dtype == "float64":
        return FallbackReason("UnsupportedDType", op, "one rounding of float64", {"dtype": dtype})
    if op not in NAMES and op not in COMPARISONS and op not in ("input", "const"):
        return FallbackReason("UnsupportedOp", op, f"no operation for {op} on {dtype}")
    return None


def tensor(shape: Sequence[int], dtype: str) -> str:
    return f"tensor<{'x'.join([*map(str, shape), TYPES[dtype]])}>"


def module(region: Region) -> str:
    """The region as text: one line per instruction, every value of the shape of the outputs."""
    shape = region.outputs[0].shape
    arguments = ", ".join(f"%arg{i}: {tensor(t.shape, t.dtype)}" for i, t in enumerate(region.inputs))
    lines = []
    for number, (op, dtype, args, imm) in enumerate(region.instructions):
        operands = ", ".join(f"%{arg}" for arg in args)
        if op == "input":
            text = f"broadcast_in_dim %arg{imm}"
        elif op == "const":
            text = f"constant dense<{imm:#x}>"
        elif op in COMPARISONS:
            text = f"compare {COMPARISONS[op]}, {operands}"
        else:
            text = f"{NAMES[op]} {operands}"
        lines.append(f"    %{number} = stablehlo.{text} : {tensor(shape, dtype)}")
    results = ", ".join(f"%{number}" for number in region.results)
    types = ", ".join(tensor(t.shape, t.dtype) for t in region.outputs)
    head = f"  func.func @main({arguments}) -> ({types}) {{"
    return "\n".join(["module @region {", head, *lines, f"    return {results}", "  }", "}", ""])


def extreme(pick: Callable[..., Array], zeros: Callable[..., Array]) -> Callable[..., Array]:
    """maximum or minimum: NaN stays, and +0 is greater than -0."""

    def evaluate(a: Array, b: Array) -> Array:
        picked = pick(a, b)
        if a.dtype.kind != "f":
            return picked
        bits = f"u{a.dtype.itemsize}"
        signs = zeros(a.view(bits), b.view(bits)).view(a.dtype)
        return np.where((a == 0) & (b == 0), signs, picked)

    return evaluate


def fma(a: Array, b: Array, c: Array) -> Array:
    """One rounding: the float64 sum rounded to odd, then to float32."""
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    fix = np.isfinite(total) & (error != 0) & ((total.view(np.int64) & 1) == 0)
    return np.where(fix, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total).astype(np.float32)


def convert(x: Array, dtype: np.dtype[Any]) -> Array:
    """A cast; floats to integers truncate, saturate and map NaN to 0, and halves come by way of float32."""
    if x.dtype.kind == "f" and dtype.kind in "iu":
        info, exact = np.iinfo(dtype), np.trunc(x.astype(np.float64))
        inside = (exact > info.min) & (exact < info.max)
        result = np.where(inside, exact, 0).astype(dtype)
        result[exact >= info.max] = info.max
        result[exact <= info.min] = info.min
        return result
    return x.astype(np.float32).astype(dtype) if dtype == np.float16 else x.astype(dtype)


KERNELS: dict[str, Callable[..., Array]] = {
    **{name: getattr(np, name) for name in ("add", "subtract", "multiply", "divide", "abs", "sqrt")},
    "negate": np.negative,
    "floor": np.floor,
    "ceil": np.ceil,
    "round_nearest_even": np.rint,
    "maximum": extreme(np.maximum, np.bitwise_and),
    "minimum": extreme(np.minimum, np.bitwise_or),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "select": np.where,
    "custom_call @trunc": np.trunc,
    "custom_call @fma": fma,
}
COMPARE = dict(zip(COMPARISONS.values(), (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal), strict=True))  # fmt: skip
LINE = re.compile(r"    %(\d+) = stablehlo\.((?:custom_call @)?\w+) (.*) : tensor<((?:\d+x)*)(\w+)>")


def evaluate(text: str, arguments: Sequence[Array]) -> list[Array]:
    """What the text computes. Its values are arrays of one shape; outputs get memory of their own."""
    values: dict[str, Array] = {}
    for _, op, rest, sizes, kind in (match.groups() for match in LINE.finditer(text)):
        shape, dtype = tuple(int(n) for n in sizes.split("x")[:-1]), DTYPES[kind]
        operands = [values[name] for name in re.findall(r"%\d+", rest)]
        if op == "broadcast_in_dim":
            made = np.broadcast_to(arguments[int(rest.removeprefix("%arg"))], shape)
        elif op == "constant":
            bits = np.array(int(rest[len("dense<") : -1], 16), f"u{dtype.itemsize}")
            made = np.full(shape, bits.view(dtype))
        elif op == "compare":
            made = COMPARE[rest.partition(",")[0]](*operands)
        elif op == "convert":
            made = convert(operands[0], dtype)
        elif op == "bitcast_convert":
            made = np.ascontiguousarray(operands[0]).view(dtype)
        else:
            made = KERNELS[op](*(np.ascontiguousarray(x).reshape(shape) for x in operands))
        values[f"%{len(values)}"] = np.asarray(made).reshape(shape)
    results = text.partition("return ")[2].split("\n")[0]
    return [np.array(values[name], order="C") for name in results.split(", ")]


class StableHLO(Backend):
    """Takes what StableHLO and NumPy have; what they lack runs natively, with the reason in the report."""

    contract = 1
    requires: ClassVar = {"numpy": "numpy>=2.0"}

    def supports(self, region: Region) -> FallbackReason | None:
        return next((why for why in map(refusal, region.instructions) if why is not None), None)

    def lower(self, region: Region) -> Artifact:
        text = module(region)
        return Artifact("stablehlo-numpy", hashlib.sha256(text.encode()).hexdigest()[:16], text)

    def run(self, artifact: Artifact, inputs: Sequence[Any]) -> list[Array]:
        with np.errstate(all="ignore"):
            return evaluate(artifact.payload, [x.numpy() for x in inputs])
