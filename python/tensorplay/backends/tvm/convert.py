"""Conversions between dtypes as TIR expressions, exact to the bit.

Lives here: how each dtype is held in a register, and every cast.
Not here: arithmetic (`emit`) and loops (`kernel`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .program import BITS, FLOATS, HALVES, INTS

Expr = Any
# How a value is held. A bool is a byte 0 or 1; bfloat16 has no sound arithmetic in TIR, so it is
# held as its bits.
HELD = {dtype: dtype for dtype in BITS} | {"bool": "uint8", "bfloat16": "uint16"}
SIGNED = {8: "int8", 16: "int16", 32: "int32", 64: "int64"}


class Converter:
    """Casts over `tirx`; `keep(dtype, expr)` names an intermediate so that it is computed once."""

    def __init__(self, tirx: Any, keep: Callable[[str, Expr], Expr]):
        self.t = tirx
        self.keep = keep

    def bits(self, value: int, width: int, dtype: str) -> Expr:
        """The constant with bit pattern `value`, held as `dtype`."""
        if value == 0:  # reinterpret takes a literal zero for a null pointer
            return self.t.const(0, dtype)
        signed = value - (1 << width) if value >> (width - 1) else value
        return self.recast(dtype, SIGNED[width], self.t.const(signed, SIGNED[width]))

    def recast(self, dtype: str, source: str, x: Expr) -> Expr:
        """The same bits under another dtype of that width."""
        if dtype == source:
            return x
        if dtype in FLOATS or source in FLOATS:
            return self.t.reinterpret(dtype, x)
        return self.t.Cast(dtype, x)

    def test(self, condition: Expr) -> Expr:
        """A TIR condition as a held bool."""
        return self.t.Cast("uint8", condition)

    def truth(self, x: Expr) -> Expr:
        """A held bool as a TIR condition."""
        return self.t.NE(x, self.t.const(0, "uint8"))

    def widen(self, dtype: str, x: Expr) -> Expr:
        """A half as float32 (exact); anything else as it is."""
        if dtype == "float16":
            return self.keep("float32", self.t.Cast("float32", x))
        if dtype == "bfloat16":
            high = self.t.LShift(self.t.Cast("uint32", x), self.t.const(16, "uint32"))
            return self.keep("float32", self.t.reinterpret("float32", high))
        return x

    def narrow(self, dtype: str, x: Expr) -> Expr:
        """A float32 rounded to a half, ties to even; for any other dtype x as it is."""
        if dtype == "float16":
            return self.t.Cast("float16", x)
        return self._bfloat16(x) if dtype == "bfloat16" else x

    def _bfloat16(self, x: Expr) -> Expr:
        t, u32 = self.t, lambda v: self.t.const(v, "uint32")
        u = self.keep("uint32", t.reinterpret("uint32", x))
        odd = t.BitwiseAnd(t.RShift(u, u32(16)), u32(1))
        rounded = t.RShift(t.Add(t.Add(u, odd), u32(0x7FFF)), u32(16))
        quiet = t.BitwiseOr(t.RShift(u, u32(16)), u32(0x40))
        is_nan = t.GT(t.BitwiseAnd(u, u32(0x7FFFFFFF)), u32(0x7F800000))
        return t.Cast("uint16", t.Select(is_nan, quiet, rounded))

    def cast(self, source: str, dtype: str, x: Expr) -> Expr:
        """`cast` of the scalar program."""
        if source == dtype:
            return x
        if dtype == "bool":
            return self._to_bool(source, x)
        if source in FLOATS:
            return self._from_float(source, dtype, x)
        if dtype in HALVES:
            return self.narrow(dtype, self.keep("float32", self.t.Cast("float32", x)))
        return self.t.Cast(dtype, x)

    def _to_bool(self, source: str, x: Expr) -> Expr:
        if source in INTS:
            return self.test(self.t.NE(x, self.t.const(0, source)))
        wide = self.widen(source, x)
        zero = self.t.const(0.0, "float64" if source == "float64" else "float32")
        return self.test(self.t.Not(self.t.EQ(wide, zero)))  # tirx.NE is false for NaN

    def _from_float(self, source: str, dtype: str, x: Expr) -> Expr:
        wide = self.widen(source, x)
        if dtype in INTS:
            return self._float_to_int("float64" if source == "float64" else "float32", dtype, wide)
        if dtype in HALVES:
            return self.narrow(dtype, self._single(wide, source))
        return self._single(wide, source) if dtype == "float32" else self.t.Cast("float64", wide)

    def _single(self, wide: Expr, source: str) -> Expr:
        # Two roundings, float64 -> float32 -> 16 bits: the path that every executor follows.
        return self.keep("float32", self.t.Cast("float32", wide)) if source == "float64" else wide

    def _float_to_int(self, source: str, dtype: str, x: Expr) -> Expr:
        """Truncates, saturates, maps NaN to 0.

        The plain conversion is undefined out of range, so it sees a clamped operand only. LLVM's
        saturating intrinsic says the same and is not vectorised.
        """
        t = self.t
        low, high, top = _range(source, dtype)
        floor, ceiling = t.const(low, source), t.const(high, source)
        above = self.keep(source, t.Select(t.GT(x, floor), x, floor))  # NaN goes to the floor
        inside = self.keep(source, t.Select(t.LT(above, ceiling), above, ceiling))
        carrier = "int64" if dtype == "int64" else "int32"
        cut = self.keep(dtype, t.Cast(dtype, self.keep(carrier, t.Cast(carrier, inside))))
        if top is not None:
            cut = self.keep(dtype, t.Select(t.GT(x, ceiling), t.const(top, dtype), cut))
        return t.Select(t.EQ(x, x), cut, t.const(0, dtype))


def _range(source: str, dtype: str) -> tuple[float, float, int | None]:
    """The least and greatest values of `dtype` that `source` holds; its maximum when it holds not that."""
    bits, signed = BITS[dtype], dtype != "uint8"
    low = -(1 << (bits - 1)) if signed else 0
    top = (1 << (bits - signed)) - 1
    digits = 53 if source == "float64" else 24
    if top.bit_length() <= digits:
        return float(low), float(top), None
    return float(low), float(top >> (bits - 1 - digits) << (bits - 1 - digits)), top
