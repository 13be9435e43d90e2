"""Scalar programs for backend tests: a builder and a NumPy evaluator.

Lives here: what a program means, written once per primitive. Not here: any backend.
Arrays hold bool as uint8 0/1 and bfloat16 as uint16 bits, as kernels see them.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

INTS = ("uint8", "int8", "int16", "int32", "int64")
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
DTYPES = ("bool", *INTS, *FLOATS)
HELD = {d: np.dtype(d) for d in (*INTS, "float16", "float32", "float64")} | {
    "bool": np.dtype("uint8"),
    "bfloat16": np.dtype("uint16"),
}


class Builder:
    """`b.mul(x, y)` appends an instruction and returns its value id; dtypes follow the operands."""

    def __init__(self, *inputs: str):
        self.dtypes = list(inputs)
        self.instrs: list[tuple] = []
        self.inputs = [self._push("input", dtype, (), k) for k, dtype in enumerate(inputs)]

    def _push(self, op, dtype, args=(), imm=None):
        self.instrs.append((op, dtype, tuple(args), imm))
        return len(self.instrs) - 1

    def dtype(self, value):
        return self.instrs[value][1]

    def const(self, dtype, number):
        held = HELD[dtype]
        if dtype == "bfloat16":
            array = np.array(number, ml_dtypes.bfloat16)
        else:
            array = np.array(number).astype(held)
        return self._push("const", dtype, (), int(array.view(f"uint{8 * held.itemsize}")))

    def cast(self, dtype, x):
        return self._push("cast", dtype, (x,))

    def bitcast(self, dtype, x):
        return self._push("bitcast", dtype, (x,))

    def op(self, name, *args):
        compare = name in ("eq", "ne", "lt", "le", "gt", "ge")
        return self._push(name, "bool" if compare else self.dtype(args[-1]), args)

    def __getattr__(self, name):
        return lambda *args: self.op(name, *args)

    def program(self, *outputs):
        return {"instrs": self.instrs, "inputs": self.dtypes, "outputs": list(outputs)}


def widen(dtype, x):
    """A half as float32, exactly."""
    if dtype == "bfloat16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32) if dtype == "float16" else x


def narrow(dtype, x):
    """A float32 rounded to a half."""
    if dtype == "bfloat16":
        return x.astype(ml_dtypes.bfloat16).view(np.uint16)
    return x.astype(np.float16) if dtype == "float16" else x


def fma(a, b, c):
    """One rounding. float32: the float64 sum rounded to odd, then to float32; float64: exactly."""
    if a.dtype == np.float64:
        return _fma_exact(a, b, c)
    product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    even = (total.view(np.int64) & 1) == 0
    fix = np.isfinite(total) & (error != 0) & even
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(fix, np.nextafter(total, toward), total).astype(np.float32)


def _fma_exact(a, b, c):
    from fractions import Fraction

    plain = a * b + c
    for i in np.flatnonzero(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        if exact != 0:
            try:
                plain[i] = float(exact)
            except OverflowError:
                plain[i] = np.inf if exact > 0 else -np.inf
    return plain


def _extreme(name, a, b):
    if a.dtype.kind != "f":
        return (np.maximum if name == "max" else np.minimum)(a, b)
    result = (np.maximum if name == "max" else np.minimum)(a, b)
    bits = np.dtype(f"u{a.dtype.itemsize}")
    merge = np.bitwise_and if name == "max" else np.bitwise_or
    zeros = merge(a.view(bits), b.view(bits)).view(a.dtype)  # +0 is greater than -0
    return np.where((a == 0) & (b == 0), zeros, result)


_FLOAT_OPS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": fma,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "max": lambda a, b: _extreme("max", a, b),
    "min": lambda a, b: _extreme("min", a, b),
}
_INT_OPS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "shl": np.left_shift,
    "shr": np.right_shift,
}
_COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def cast(source, dtype, x):
    if source == dtype:
        return x
    wide = widen(source, x)
    if dtype == "bool":
        return (wide != 0).astype(np.uint8)
    if source in FLOATS and dtype in INTS:
        info, exact = np.iinfo(dtype), np.trunc(wide.astype(np.float64))
        inside = (exact > info.min) & (exact < info.max)
        result = np.where(inside, exact, 0).astype(dtype)
        result[exact >= info.max] = info.max
        result[exact <= info.min] = info.min
        return result
    if dtype in HALVES:
        return narrow(dtype, wide.astype(np.float32))
    return wide.astype(dtype)


def _sign(name, dtype, x):
    width = 8 * x.dtype.itemsize
    bits, sign = x.view(f"uint{width}"), 1 << (width - 1)
    return (bits ^ sign if name == "neg" else bits & (sign - 1)).astype(bits.dtype).view(x.dtype)


def _apply(op, dtype, source, args):
    if op == "cast":
        return cast(source, dtype, args[0])
    if op == "bitcast":
        return args[0].view(HELD[dtype])
    if op == "select":
        return np.where(args[0] != 0, args[1], args[2])
    if op in _COMPARE:
        return _COMPARE[op](*args).astype(np.uint8)
    if dtype in FLOATS:
        return _sign(op, dtype, args[0]) if op in ("neg", "abs") else _FLOAT_OPS[op](*args)
    if dtype == "bool" and op == "not":
        return args[0] ^ np.uint8(1)
    return _INT_OPS[op](*args)


def evaluate(program, arrays):
    """The outputs over flat arrays in held form."""
    size = max((a.size for a in arrays), default=1)
    values = []
    with np.errstate(all="ignore"):
        for op, dtype, args, imm in program["instrs"]:
            if op == "input":
                values.append(np.broadcast_to(arrays[imm], (size,)))
            elif op == "const":
                held = HELD[dtype]
                one = np.array([imm], f"uint{8 * held.itemsize}").view(held)
                values.append(np.repeat(one, size))
            else:
                source = program["instrs"][args[-1]][1]
                operands = [np.ascontiguousarray(values[a]) for a in args]
                values.append(_apply(op, dtype, source, operands))
    return [np.ascontiguousarray(values[out]) for out in program["outputs"]]


_SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    -2.5,
    3.0,
    127.5,
    -128.5,
    255.5,
    300.0,
    -1e3,
    32768.0,
    65504.0,
)
_HUGE = (2.0**31, -(2.0**31) - 300, 2.0**53, 2.0**63, -(2.0**63), 1e19, 1e30, -1e-30, 1e-40, 1e-45)


def samples(dtype, size, seed=0):
    """Held values: special ones, then ordinary magnitudes, then arbitrary bit patterns."""
    rng = np.random.default_rng(seed)
    held = HELD[dtype]
    raw = rng.integers(0, 256, size * held.itemsize, np.uint8).view(held)
    if dtype == "bool":
        return raw & 1
    if dtype in INTS:
        info = np.iinfo(dtype)
        special = np.array([0, 1, info.max, info.min, info.max - 1, info.min + 1, 2, 3], held)
        rest = raw[special.size :]
        rest[::3] = rng.integers(max(info.min, -9), 9, rest[::3].size)
    else:
        with np.errstate(all="ignore"):
            wide = np.array([*_SPECIAL, *_HUGE, np.nan, -np.nan, np.inf, -np.inf])
            special = cast("float64", dtype, wide)
            rest = raw[special.size :]
            rest[::2] = cast("float64", dtype, rng.standard_normal(rest[::2].size) * 8)
    out = np.concatenate([special, rest])[:size]
    return out[rng.permutation(size)]


def mismatch(dtype, got, want, exact_nan=False):
    """Where two held arrays differ in bits; any NaN equals any NaN unless `exact_nan`."""
    width = 8 * HELD[dtype].itemsize
    different = got.view(f"uint{width}") != want.view(f"uint{width}")
    if dtype in FLOATS and not exact_nan:
        different &= ~(np.isnan(widen(dtype, got)) & np.isnan(widen(dtype, want)))
    return np.flatnonzero(different)


def random_program(rng, length):
    """A well-typed program over five inputs, mixing dtypes; each value may be used many times.

    Floats are not bitcast to ints: the payload of a NaN made by arithmetic is nobody's promise.
    """
    b = Builder(*(str(dtype) for dtype in rng.choice(DTYPES, 5)))
    pools = {dtype: [v for v in b.inputs if b.dtype(v) == dtype] for dtype in DTYPES}

    def pick(dtype):
        if not pools[dtype] or rng.random() < 0.1:
            number = int(rng.integers(0, 2)) if dtype == "bool" else float(rng.integers(-4, 5)) / 2
            pools[dtype].append(b.const(dtype, abs(number) if dtype == "uint8" else number))
        return pools[dtype][rng.integers(max(0, len(pools[dtype]) - 12), len(pools[dtype]))]

    while len(b.instrs) < length:
        dtype = str(rng.choice([d for d in DTYPES if pools[d]]))
        op = str(rng.choice(_choices(dtype)))
        if op == "cast":
            value = b.cast(str(rng.choice([d for d in DTYPES if d != dtype])), pick(dtype))
        elif op == "select":
            value = b.select(pick("bool"), pick(dtype), pick(dtype))
        else:
            value = b.op(op, *(pick(dtype) for _ in range(_arity(op))))
        pools[b.dtype(value)].append(value)
    ends = [pool[-1] for pool in pools.values() if pool]
    return b.program(*ends)


def _arity(op):
    return (
        3
        if op == "fma"
        else 1
        if op in ("neg", "abs", "not", "sqrt", "floor", "ceil", "trunc", "rint")
        else 2
    )


def _choices(dtype):
    if dtype in HALVES:
        return ["cast", "cast", "select"]
    both = ["cast", "cast", "select", *_COMPARE]
    if dtype in FLOATS:
        skip = () if dtype == "float32" else ("fma",)
        return [*both, "neg", "abs", "add", "sub", "mul", "mul", *(op for op in _FLOAT_OPS if op not in skip)]
    logic = ["and", "or", "xor", "not"]
    return (
        [*both, *logic]
        if dtype == "bool"
        else [*both, *logic, "neg", "abs", "add", "sub", "mul", "max", "min"]
    )
