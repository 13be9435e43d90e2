"""Random pointwise programs: at least twenty ops over every dtype, kind of view, broadcast and special value.

Lives here: how the numbers that hypothesis draws become a program and its operands, and what makes two results equal.
Not here: who runs it (`compile/test_random_pointwise.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import tensorplay as tp

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("uint8", "int8", "int16", "int32", "int64")
DTYPES = (*FLOATS, *INTS, "bool")
FEWEST_OPS = 20
# Scalars that every dtype class has a use for; the ones a dtype cannot hold are left out by `_scalar`.
NUMBERS: tuple[Any, ...] = (2, 0.5, 1, -1, 0, 3, -0.0, True, 1.5, -2.75, 100, math.inf, math.nan, 1e-40)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 127.5, 65504.0, 1e-40, -1e-7, 3e38, math.inf, -math.inf, math.nan)
BASES = (
    (4,),
    (2, 3),
    (5, 1, 7),
    (),
    (0, 3),
    (1,),
    (2, 3, 4),
    (63,),
    (65,),
    (1, 77),
    (3, 700),
    (2049,),
    (4, 0),
)
LAYOUTS = ("whole", "turned", "stepped", "flipped", "unaligned", "tail", "expanded")

Step = tuple[Callable[..., tp.Tensor], tuple[Any, ...]]


@dataclass(frozen=True)
class Value:
    """An operand by its number, among the inputs and then the results."""

    number: int

    def __str__(self) -> str:
        return f"%{self.number}"


class Program:
    """Steps over numbered values; the results that no step reads are returned."""

    def __init__(self, steps: tuple[Step, ...], outputs: tuple[int, ...]):
        self.steps = steps
        self.outputs = outputs

    def __call__(self, *inputs: tp.Tensor) -> tuple[tp.Tensor, ...]:
        values = list(inputs)
        for op, args in self.steps:
            values.append(op(*(values[a.number] if isinstance(a, Value) else a for a in args)))
        return tuple(values[k] for k in self.outputs)

    def __repr__(self) -> str:
        first = self.outputs[-1] + 1 - len(self.steps)
        name = lambda op: getattr(op, "__name__", str(op).split()[-1].strip(">"))  # noqa: E731
        lines = [
            f"%{first + k} = {name(op)}({', '.join(map(str, args))})"
            for k, (op, args) in enumerate(self.steps)
        ]
        return "\n".join(["", *lines, f"return {self.outputs}"])


def _quiet(x: tp.Tensor) -> tp.Tensor:
    """Nothing says what sign a NaN has: no op may ask for it."""
    return tp.where(tp.isnan(x), 0, x) if x.dtype.name in FLOATS else x


def _signbit(x: tp.Tensor) -> tp.Tensor:
    return tp.signbit(_quiet(x))


def _copysign(x: tp.Tensor, y: tp.Tensor) -> tp.Tensor:
    return tp.copysign(x, _quiet(y) if isinstance(y, tp.Tensor) else 1 if y != y else y)


def _nonzero(x: Any) -> Any:
    """A divisor: ints that are 0 become 1, so that most programs get to their end."""
    if isinstance(x, tp.Tensor):
        return x if x.dtype.name in FLOATS else tp.where(x == 0, 1, tp.astype(x, _int_of(x)))
    return x if isinstance(x, float) else x or 1


def _int_of(x: tp.Tensor) -> Any:
    return tp.int8 if x.dtype is tp.bool else x.dtype


def _floor_divide(x: tp.Tensor, y: Any) -> tp.Tensor:
    return tp.floor_divide(tp.astype(x, _int_of(x)), _nonzero(y))


def _remainder(x: tp.Tensor, y: Any) -> tp.Tensor:
    return tp.remainder(tp.astype(x, _int_of(x)), _nonzero(y))


def _cast(dtype: str) -> Callable[[tp.Tensor], tp.Tensor]:
    def cast(x: tp.Tensor) -> tp.Tensor:
        return tp.astype(x, getattr(tp, dtype))

    cast.__name__ = f"astype_{dtype}"
    return cast


def _where(c: tp.Tensor, x: Any, y: Any) -> tp.Tensor:
    return tp.where(tp.astype(c, tp.bool), x, y)


def _masked_fill(x: tp.Tensor, mask: tp.Tensor, y: Any) -> tp.Tensor:
    return tp.masked_fill(x, tp.astype(mask, tp.bool), 1 if isinstance(y, tp.Tensor) else y)


UNARY = (
    tp.positive, tp.neg, tp.abs, tp.sign, tp.square, tp.sqrt, tp.rsqrt, tp.reciprocal, tp.exp, tp.exp2, tp.expm1, tp.log,
    tp.log1p, tp.log2, tp.log10, tp.sin, tp.cos, tp.tan, tp.asin, tp.acos, tp.atan, tp.sinh, tp.cosh, tp.tanh, tp.asinh,
    tp.acosh, tp.atanh, tp.erf, tp.sigmoid, tp.relu, tp.silu, tp.softplus, tp.gelu, tp.floor, tp.ceil, tp.trunc,
    tp.round, tp.isnan, tp.isinf, tp.isfinite, _signbit, tp.logical_not, tp.bitwise_invert, tp.leaky_relu,
    *(_cast(d) for d in DTYPES),
)  # fmt: skip
BINARY = (
    tp.add, tp.sub, tp.mul, tp.div, _floor_divide, _remainder, tp.pow, tp.maximum, tp.minimum, tp.atan2, tp.hypot,
    tp.logaddexp, _copysign, tp.eq, tp.ne, tp.lt, tp.le, tp.gt, tp.ge, tp.logical_and, tp.logical_or, tp.logical_xor,
    tp.bitwise_and, tp.bitwise_or, tp.bitwise_xor, tp.left_shift, tp.right_shift,
    tp.add, tp.sub, tp.mul,
)  # fmt: skip
TERNARY = (_where, tp.clamp, _masked_fill)
OPS = (*((op, 1) for op in UNARY), *((op, 2) for op in BINARY), *((op, 3) for op in TERNARY))


def values_of(rng: np.random.Generator, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Special values, ordinary ones and arbitrary bits, in equal parts."""
    size = math.prod(shape)
    held = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, size * held.itemsize, np.uint8).view(held)
    kind = rng.integers(0, 3, size)
    if dtype in FLOATS:
        with np.errstate(all="ignore"):
            ordinary = (rng.standard_normal(size) * 3).astype(held)
            special = rng.choice(SPECIAL, size).astype(held)
    else:
        info = np.iinfo(held)
        ordinary = rng.integers(max(info.min, -9), 9, size).astype(held)
        special = rng.choice([info.min, info.max, 0, 1], size).astype(held)
    return np.where(kind == 0, special, np.where(kind == 1, ordinary, raw)).reshape(shape)


def laid_out(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], layout: str) -> tp.Tensor:
    """A tensor of that shape whose memory lies in one of `LAYOUTS`; a kind that the shape rules out is "whole"."""
    if layout == "turned" and len(shape) > 1:
        return tp.permute_dims(
            tp.from_numpy(values_of(rng, dtype, shape[::-1])), tuple(reversed(range(len(shape))))
        )
    if layout == "stepped" and shape:
        return tp.from_numpy(values_of(rng, dtype, (*shape[:-1], 2 * shape[-1])))[..., ::2]
    if layout == "flipped" and shape:
        return tp.from_numpy(values_of(rng, dtype, shape)[..., ::-1])
    if layout == "tail" and shape:
        return tp.from_numpy(values_of(rng, dtype, (shape[0] + 1, *shape[1:])))[1:]
    if layout == "expanded" and shape:
        return tp.broadcast_to(tp.from_numpy(values_of(rng, dtype, (1, *shape[1:]))), shape)
    array = values_of(rng, dtype, shape)
    if layout == "unaligned" and array.size and dtype != "bfloat16":
        bytes_ = b"\0" + array.tobytes()
        return tp.from_numpy(np.frombuffer(bytes_, array.dtype, offset=1).reshape(shape))
    return tp.from_numpy(array)


def operands(codes: Sequence[int], base: tuple[int, ...], seed: int) -> list[tp.Tensor]:
    """One tensor per code: its dtype, its layout, and which axes of `base` it broadcasts over."""
    rng = np.random.default_rng(seed)
    made = []
    for k, code in enumerate(codes):
        code, dtype = divmod(code, len(DTYPES))
        code, layout = divmod(code, len(LAYOUTS))
        kept = 0 if k == 0 else code % 5
        shape = base
        if kept == 1:  # some axes are 1
            shape = tuple(1 if (code >> (3 + axis)) & 1 else n for axis, n in enumerate(base))
        elif kept == 2:  # some axes are missing
            shape = base[code // 5 % (len(base) + 1) :]
        elif kept == 3:
            shape = ()
        made.append(laid_out(rng, DTYPES[dtype], shape, LAYOUTS[layout]))
    return made


def build(codes: Sequence[tuple[int, int, int, int]], inputs: Sequence[tp.Tensor]) -> Program:
    """A program of at least `FEWEST_OPS` ops over `inputs`, by running it eagerly.

    What an op's dtypes rule out is no part of the program; the next op is tried instead.
    """
    values: list[tp.Tensor] = list(inputs)
    read: set[int] = set()
    steps: list[Step] = []
    turn = 0
    while len(steps) < max(FEWEST_OPS, len(codes)):
        op_code, *operand_codes = codes[turn % len(codes)]
        op, arity = OPS[(op_code + 7 * (turn // len(codes))) % len(OPS)]
        turn += 1
        args = [_argument(code, len(values), k) for k, code in enumerate(operand_codes[:arity])]
        if op is _where or op is _masked_fill:
            args[:2] = [a if isinstance(a, Value) else Value(len(values) - 1) for a in args[:2]]
        if op is tp.clamp:
            args[1:] = [a if not isinstance(a, Value) else -1 + 2 * k for k, a in enumerate(args[1:])]
        try:
            made = op(*(values[a.number] if isinstance(a, Value) else a for a in args))
        except (TypeError, ValueError, OverflowError):
            continue
        read |= {a.number for a in args if isinstance(a, Value)}
        steps.append((op, tuple(args)))
        values.append(made)
    results = range(len(inputs), len(values))
    return Program(tuple(steps), tuple(k for k in results if k not in read))


def _argument(code: int, count: int, position: int) -> Any:
    """A recent value more often than an old one; a number now and then, but not as the first operand."""
    code, kind = divmod(code, 8)
    if kind == 0 and position:
        return NUMBERS[code % len(NUMBERS)]
    return Value(count - 1 - code % min(count, 4) if kind < 6 else code % count)


def bits(x: tp.Tensor) -> np.ndarray:
    """The elements as unsigned integers, all NaNs as one."""
    array = x.contiguous().numpy()
    unsigned = array.view(f"uint{8 * array.itemsize}")
    return np.where(nans(x), 0, unsigned)


def nans(x: tp.Tensor) -> np.ndarray:
    """Where an element is NaN."""
    with np.errstate(all="ignore"):  # ml_dtypes asks by arithmetic
        return np.isnan(x.numpy()) if x.dtype.name in FLOATS else np.zeros(x.shape, bool)


def assert_same(got: Sequence[tp.Tensor], want: Sequence[tp.Tensor], who: str, program: Program) -> None:
    """Equal dtype, shape and bits, any NaN for any NaN; else an error that shows program and elements."""
    assert len(got) == len(want)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{who}, output {k}: {a.dtype} {a.shape}\n{program}"
        wrong = (bits(a) != bits(b)) | (nans(a) != nans(b))
        if wrong.any():
            at = tuple(int(i[0]) for i in np.nonzero(wrong)) if wrong.ndim else ()
            raise AssertionError(
                f"{who}, output {k} at {at}: {a.numpy()[at]!r}, eager {b.numpy()[at]!r}\n{program!r}"
            )
