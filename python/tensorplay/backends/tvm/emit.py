"""Primitives of the scalar program as TIR, one opaque stack cell per value.

Lives here: arithmetic, comparison and selection. Not here: casts (`convert`), loops (`kernel`).

Every value is stored to a one-element buffer and loaded where it is used. The analyzer cannot look
through a load, so compile time stays linear however values are shared; LLVM turns the cells back
into registers. Expressions are built with the class constructors: the operators fold.
"""

from __future__ import annotations

from typing import Any

from .convert import HELD, Converter, Expr
from .program import BITS, FLOATS, LIBRARY, Program, divides_unknown

_BINARY = {"add": "Add", "sub": "Sub"}
_COMPARE = {"eq": "EQ", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
_BITWISE = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}
_ROUND = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "roundeven"}
_EXTREME = {"max": ("llvm.maximum", "Max"), "min": ("llvm.minimum", "Min")}


class Emitter:
    """Collects statements: `prelude` runs once before the loops, `body` per element."""

    def __init__(self, tirx: Any, lo: Any, has_fma: bool, flag: Any = None):
        """`flag`: the int32 buffer of a guarded program."""
        self.t = tirx
        self._flag = flag
        self.prelude: list[Any] = []
        self.body: list[Any] = []
        self._lo = lo
        self._has_fma = has_fma
        self._cells = 0
        self._zeros: dict[str, Expr] = {}
        self.convert = Converter(tirx, self.keep)

    def keep(self, dtype: str, expr: Expr, into: list[Any] | None = None) -> Expr:
        """A cell holding `expr`: evaluated once, opaque to the analyzer."""
        t, zero = self.t, self.t.const(0, "int32")
        # "global" is the C stack here; any other scope asks for a device.
        cell = t.decl_buffer((1,), dtype, f"v{self._cells}", scope="global", layout=None)
        self._cells += 1
        statements = self.body if into is None else into
        statements += [t.AllocBuffer(cell), t.BufferStore(cell, expr, [zero])]
        return cell[zero]

    def emit(self, program: Program, inputs: list[Expr]) -> list[Expr]:
        """The outputs in held form, given each input as a loaded, held value."""
        instrs = program["instrs"]
        values: list[Expr] = []
        for op, dtype, args, imm in instrs:
            if op == "input":
                values.append(inputs[imm])
            elif op == "const":
                values.append(self.convert.bits(imm, BITS[dtype], HELD[dtype]))
            else:
                operands = [values[arg] for arg in args]
                source = instrs[args[-1]][1]
                if divides_unknown(program, len(values)):
                    result = self._divide_guarded(op, dtype, *operands)
                elif op in ("floordiv", "mod"):
                    result = self._divide(op, dtype, operands[0], instrs[args[1]][3])
                else:
                    result = self._value(op, dtype, source, operands)
                values.append(self.keep(HELD[dtype], result))
        return [values[out] for out in program["outputs"]]

    def _value(self, op: str, dtype: str, source: str, args: list[Expr]) -> Expr:
        """One instruction; `source` is the dtype of its (last) operand."""
        if op == "cast":
            return self.convert.cast(source, dtype, args[0])
        if op == "bitcast":
            return self.convert.recast(HELD[dtype], HELD[source], args[0])
        if op == "select":
            return self.t.Select(self.convert.truth(args[0]), args[1], args[2])
        if op == "ne" or op in _COMPARE:
            return self._compare(op, args)
        if op in ("neg", "abs") and dtype in FLOATS:
            return self._sign(op, dtype, args[0])
        return self._float(op, dtype, args) if dtype in FLOATS else self._int(op, dtype, args)

    def _compare(self, op: str, args: list[Expr]) -> Expr:
        if op == "ne":  # tirx.NE is the ordered comparison: false for NaN
            return self.convert.test(self.t.Not(self.t.EQ(*args)))
        return self.convert.test(getattr(self.t, _COMPARE[op])(*args))

    def _sign(self, op: str, dtype: str, x: Expr) -> Expr:
        """On the sign bit alone, so that -0 and NaN follow too."""
        width, held = BITS[dtype], HELD[dtype]
        unsigned = f"uint{width}"
        bits = self.convert.recast(unsigned, held, x)
        sign = 1 << (width - 1)
        if op == "neg":
            flipped = self.t.BitwiseXor(bits, self.convert.bits(sign, width, unsigned))
        else:
            flipped = self.t.BitwiseAnd(bits, self.convert.bits(sign - 1, width, unsigned))
        return self.convert.recast(held, unsigned, flipped)

    def _float(self, op: str, dtype: str, args: list[Expr]) -> Expr:
        if op in _BINARY:
            return getattr(self.t, _BINARY[op])(*args)
        if op == "mul":
            return self._product(dtype, *args)
        if op == "div":
            # LLVM makes a product of a division by a power of two: see `_product`.
            return self.t.Add(self.keep(dtype, self.t.Div(*args)), self._minus_zero(dtype))
        if op == "fmod" or op in LIBRARY:
            return self._library(op, dtype, args)
        if op in _EXTREME:
            return self._intrinsic(dtype, _EXTREME[op][0], *args)
        return self._intrinsic(dtype, "llvm." + _ROUND.get(op, op), *args)

    def _product(self, dtype: str, a: Expr, b: Expr) -> Expr:
        """A product that no later sum can contract.

        TVM's code generator fuses every `a * b + c` it can. `fma(a, b, -0.0)` is the product to the
        bit and cannot be fused again; `llvm.arithmetic.fence` says the same but is not vectorised.
        """
        if not self._has_fma:
            return self.t.Mul(a, b)
        return self._intrinsic(dtype, "llvm.fma", a, b, self._minus_zero(dtype))

    def _minus_zero(self, dtype: str) -> Expr:
        """-0.0, unknown to the optimiser: the sign bit of `~lo`, which the caller keeps set."""
        if dtype not in self._zeros:
            t, unsigned = self.t, f"uint{BITS[dtype]}"
            sign = t.RShift(t.Cast("uint64", t.BitwiseNot(self._lo)), t.const(63, "uint64"))
            bits = t.LShift(t.Cast(unsigned, sign), t.const(BITS[dtype] - 1, unsigned))
            self._zeros[dtype] = self.keep(dtype, t.reinterpret(dtype, bits), self.prelude)
        return self._zeros[dtype]

    def _library(self, op: str, dtype: str, args: list[Expr]) -> Expr:
        """A call of the C library, which native code calls too.

        LLVM knows these functions, and makes others of them where it knows an operand: `pow(2, x)` becomes
        `exp2(x)`, which rounds otherwise. Adding an unknown -0.0 changes no operand and hides it.
        """
        hidden = [self.keep(dtype, self.t.Add(arg, self._minus_zero(dtype))) for arg in args]
        # An `fmod` that LLVM knows becomes one without NaN where it sees that no operand is infinite or 0, even by NaN.
        # By this other name of the GNU C library it does not.
        name = f"fmodf{BITS[dtype]}" if op == "fmod" else op + "f" * (dtype == "float32")
        return self.t.call_pure_extern(dtype, name, *hidden)

    def _intrinsic(self, dtype: str, name: str, *args: Expr) -> Expr:
        return self.t.call_llvm_pure_intrin(dtype, name, *args)

    def _int(self, op: str, dtype: str, args: list[Expr]) -> Expr:
        held = HELD[dtype]
        if op in _BITWISE:
            return getattr(self.t, _BITWISE[op])(*args)
        if op == "not":
            ones = 1 if dtype == "bool" else (1 << BITS[dtype]) - 1
            return self.t.BitwiseXor(args[0], self.convert.bits(ones, BITS[dtype], held))
        if op in _EXTREME:
            return getattr(self.t, _EXTREME[op][1])(*args)
        if op == "shr":
            return self.t.RShift(*args)
        if op == "abs":
            negative = self.t.LT(args[0], self.t.const(0, held))
            return self.t.Select(negative, self._wrapping("neg", dtype, args), args[0])
        return self._wrapping(op, dtype, args)

    def _wrapping(self, op: str, dtype: str, args: list[Expr]) -> Expr:
        """In twice the width, then cut: TIR's own integer arithmetic is undefined on overflow.

        That holds for unsigned dtypes too (from 32 bits on TVM marks it `nuw`), and LLVM folds by it.
        It narrows this form back to one plain instruction of the original width.
        """
        if op == "shl":
            unsigned = f"uint{BITS[dtype]}"
            return self.t.Cast(dtype, self.t.LShift(*(self.t.Cast(unsigned, arg) for arg in args)))
        double = f"int{2 * BITS[dtype]}"
        operands = [self.t.Cast(double, arg) for arg in args]
        if op == "neg":
            operands.insert(0, self.t.const(0, double))
        name = {"mul": "Mul", "neg": "Sub", **_BINARY}[op]
        return self.t.Cast(dtype, getattr(self.t, name)(*operands))

    def _divide(self, op: str, dtype: str, a: Expr, bits: int) -> Expr:
        """`floordiv` or `mod` by a non-zero constant: the truncated division, corrected downwards."""
        t, width = self.t, BITS[dtype]
        divisor = bits - (1 << width) if dtype != "uint8" and bits >> (width - 1) else bits
        if divisor in (1, -1):  # the minimum over -1 wraps
            zero = t.const(0, dtype)
            return zero if op == "mod" else a if divisor == 1 else self._wrapping("neg", dtype, [a])
        by = t.const(divisor, dtype)
        quotient = self.keep(dtype, t.Div(a, by))
        rest = self.keep(dtype, t.Sub(a, t.Mul(quotient, by)))
        if dtype == "uint8":
            return quotient if op == "floordiv" else rest
        against = (t.LT if divisor > 0 else t.GT)(rest, t.const(0, dtype))
        if op == "mod":
            return t.Select(against, t.Add(rest, by), rest)
        return t.Select(against, t.Sub(quotient, t.const(1, dtype)), quotient)

    def _divide_guarded(self, op: str, dtype: str, a: Expr, b: Expr) -> Expr:
        """`floordiv` or `mod` by any integer: zero raises the flag, and nothing divides by it.

        The divisors 0 and -1 are replaced by 1, for the machine's division traps on the one, and on the other where
        the minimum is divided.
        """
        t = self.t
        zero, one = t.const(0, dtype), t.const(1, dtype)
        by_zero = self.keep("uint8", self.convert.test(t.EQ(b, zero)))
        at = [t.const(0, "int32")]
        noted = t.BitwiseOr(self._flag[at[0]], t.Cast("int32", by_zero))
        self.body.append(t.BufferStore(self._flag, noted, at))
        by = self.keep(dtype, t.Select(self.convert.truth(by_zero), one, b))
        if dtype == "uint8":
            quotient = self.keep(dtype, t.Div(a, by))
            return quotient if op == "floordiv" else t.Sub(a, t.Mul(quotient, by))
        negates = self.keep("uint8", self.convert.test(t.EQ(b, t.const(-1, dtype))))
        by = self.keep(dtype, t.Select(self.convert.truth(negates), one, by))
        quotient = self.keep(dtype, t.Div(a, by))
        rest = self.keep(dtype, t.Sub(a, t.Mul(quotient, by)))
        signs = self.keep(dtype, t.BitwiseXor(rest, by))
        down = t.And(t.LT(signs, zero), t.Not(t.EQ(rest, zero)))
        if op == "mod":
            return t.Select(down, t.Add(rest, by), rest)
        floor = self.keep(dtype, t.Select(down, t.Sub(quotient, one), quotient))
        minus = self.keep(dtype, self._wrapping("neg", dtype, [a]))
        return t.Select(self.convert.truth(negates), minus, floor)
