"""Which programs this backend accepts, decided without importing tvm.

Lives here: the table of primitives with their dtypes, and the typed refusals.
Not here: their lowering (`emit`), which handles exactly what this table admits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .program import BITS, BOOLS, FLOATS, INTS, LIBRARY, WIDE_FLOATS, Program

_ALL = frozenset(BITS)
_NUMBERS = INTS | WIDE_FLOATS


class Rule(NamedTuple):
    """`dtypes`: of the arguments; `result`: "same" as the arguments, "bool", or "free"."""

    arity: int
    dtypes: frozenset[str]
    result: str


RULES = {
    "input": Rule(0, _ALL, "free"),
    "const": Rule(0, _ALL, "free"),
    **dict.fromkeys(("add", "sub", "mul"), Rule(2, _NUMBERS, "same")),
    "div": Rule(2, WIDE_FLOATS, "same"),
    **dict.fromkeys(("floordiv", "mod"), Rule(2, INTS, "same")),
    "fma": Rule(3, WIDE_FLOATS, "same"),
    **dict.fromkeys(("neg", "abs"), Rule(1, _NUMBERS, "same")),
    **dict.fromkeys(("sqrt", "floor", "ceil", "trunc", "rint"), Rule(1, WIDE_FLOATS, "same")),
    **dict.fromkeys(("max", "min"), Rule(2, _NUMBERS, "same")),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), Rule(2, _NUMBERS | BOOLS, "bool")),
    **dict.fromkeys(("and", "or", "xor"), Rule(2, INTS | BOOLS, "same")),
    "not": Rule(1, INTS | BOOLS, "same"),
    **dict.fromkeys(("shl", "shr"), Rule(2, INTS, "same")),
    "select": Rule(3, _ALL, "same"),
    "cast": Rule(1, _ALL, "free"),
    "bitcast": Rule(1, INTS | FLOATS, "free"),
    "fmod": Rule(2, WIDE_FLOATS, "same"),
    # The C library's, as on native; for float32 the program has them written out.
    **dict.fromkeys(LIBRARY, Rule(1, frozenset({"float64"}), "same")),
    **dict.fromkeys(("atan2", "hypot", "pow"), Rule(2, frozenset({"float64"}), "same")),
}
# LLVM's optimiser is superlinear in straight-line code: 1000 instructions take a second, 2000 two to three.
MAX_INSTRS = 2048


def supports(program: Program) -> dict[str, Any] | None:
    """None when `lower` takes the program, else `{"kind", "message", "details"}`."""
    instrs = program["instrs"]
    if len(instrs) > MAX_INSTRS:
        what = f"a program of {len(instrs)} instructions (tvm takes {MAX_INSTRS}) would compile for seconds"
        return _refusal("LoweringFailed", what, stage="size")
    unknown = next((dtype for dtype in program["inputs"] if dtype not in BITS), None)
    if unknown is not None:
        return _refusal("UnsupportedDType", f"tvm has no {unknown} inputs", op="input", dtype=unknown)
    for value, instr in enumerate(instrs):
        refusal = _check_op(instr) or _check_types(program, value)
        if refusal is not None:
            return refusal
    if not program["outputs"] or any(not 0 <= out < len(instrs) for out in program["outputs"]):
        return _malformed("outputs do not name values of the program")
    return None


def leaves_rows() -> str:
    """Why pointwise ops and the op over the rows of their result (a sum, a softmax) are left to native code as one step.

    Sums are added in an order that is the contract's, which a loop of TVM's would have to follow; what it could save is the
    time between two loops that are equally fast. benches/README.md has the figures.
    """
    return "works over rows: native code runs it and the pointwise ops before it in one step, and no code of tvm is faster"


def _refusal(kind: str, message: str, **details: Any) -> dict[str, Any]:
    return {"kind": kind, "message": message, "details": details}


def _malformed(what: str) -> dict[str, Any]:
    return _refusal("LoweringFailed", f"malformed program: {what}", stage="verify")


def _check_op(instr: tuple[Any, ...]) -> dict[str, Any] | None:
    op, dtype = instr[0], instr[1]
    if op in RULES:
        return None
    return _refusal(
        "UnsupportedOp", f"tvm has no lowering for {op} ({dtype}); runs on native", op=op, dtype=dtype
    )


def _check_types(program: Program, value: int) -> dict[str, Any] | None:
    op, dtype, args, imm = program["instrs"][value]
    rule = RULES[op]
    if dtype not in BITS:
        return _refusal("UnsupportedDType", f"tvm has no lowering for {op} on {dtype}", op=op, dtype=dtype)
    if len(args) != rule.arity or any(not 0 <= arg < value for arg in args):
        return _malformed(f"%{value} = {op} takes {rule.arity} earlier values, got {args}")
    found = [program["instrs"][arg][1] for arg in args]
    if op == "input":
        return _check_input(program, value, imm)
    if op == "select" and found[0] != "bool":
        return _malformed(f"%{value}: the condition of select is {found[0]}")
    operands = found[1:] if op == "select" else found
    bad = next((d for d in operands if d not in rule.dtypes), None)
    if bad is not None:
        return _refusal("UnsupportedDType", f"tvm has no lowering for {op} on {bad}", op=op, dtype=bad)
    if len(set(operands)) > 1:
        return _malformed(f"%{value} = {op} mixes {' and '.join(operands)}")
    return _check_result(op, dtype, operands, imm, value)


def _check_input(program: Program, value: int, imm: int | None) -> dict[str, Any] | None:
    inputs, dtype = program["inputs"], program["instrs"][value][1]
    if imm is None or not 0 <= imm < len(inputs) or inputs[imm] != dtype:
        return _malformed(f"%{value}:{dtype} = input {imm} does not match the inputs {inputs}")
    return None


def _check_result(
    op: str, dtype: str, operands: list[str], imm: int | None, value: int
) -> dict[str, Any] | None:
    result = RULES[op].result
    wanted = {"same": operands[0] if operands else dtype, "bool": "bool", "free": dtype}[result]
    if dtype != wanted:
        return _malformed(f"%{value} = {op} gives {wanted}, not {dtype}")
    if op == "const" and (imm is None or not 0 <= imm < 1 << (1 if dtype == "bool" else BITS[dtype])):
        return _malformed(f"%{value}: {imm} is not a {dtype} bit pattern")
    if op == "bitcast" and ("bool" in (dtype, operands[0]) or BITS[dtype] != BITS[operands[0]]):
        return _malformed(f"%{value}: bitcast from {operands[0]} to {dtype}")
    return None
