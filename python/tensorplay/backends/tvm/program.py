"""The scalar program as the executor hands it over, and its canonical text.

Lives here: dtype facts and the text that cache keys hash.
Not here: what this backend accepts (`support`) and how it computes (`emit`).
"""

from __future__ import annotations

from typing import Any

Program = dict[str, Any]

BITS = {
    "bool": 8,
    "uint8": 8,
    "int8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float64": 64,
}
BOOLS = frozenset({"bool"})
INTS = frozenset({"uint8", "int8", "int16", "int32", "int64"})
HALVES = frozenset({"float16", "bfloat16"})
WIDE_FLOATS = frozenset({"float32", "float64"})
# Halves are stored, moved and cast; arithmetic is in float32 between casts.
FLOATS = HALVES | WIDE_FLOATS
# float64 functions that the C library computes, under these names.
LIBRARY = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "erf",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "atan2",
        "hypot",
        "pow",
    ]
)


def output_dtypes(program: Program) -> list[str]:
    """The dtype of each output, in order."""
    return [program["instrs"][value][1] for value in program["outputs"]]


def divides_unknown(program: Program, value: int) -> bool:
    """Whether instruction `value` divides an integer by what may be zero."""
    op, _, args, _ = program["instrs"][value]
    if op not in ("floordiv", "mod"):
        return False
    divisor_op, _, _, bits = program["instrs"][args[1]]
    return not (divisor_op == "const" and bits)


def guarded(program: Program) -> bool:
    """Whether the kernel has to tell of a division by zero."""
    return any(divides_unknown(program, value) for value in range(len(program["instrs"])))


def text(program: Program) -> str:
    """The canonical text: equal programs print equally, different ones differ."""
    instrs = program["instrs"]
    lines = [f"program({', '.join(program['inputs'])}) -> ({', '.join(output_dtypes(program))})"]
    for value, (op, dtype, args, imm) in enumerate(instrs):
        words = [op]
        if op == "const":
            words.append(f"0x{imm:0{BITS[dtype] // 4}x}")
        elif op == "input":
            words.append(str(imm))
        words += [f"%{arg}" for arg in args]
        lines.append(f"%{value}:{dtype} = {' '.join(words)}")
    lines.append("return " + " ".join(f"%{value}" for value in program["outputs"]))
    return "\n".join(lines)
