"""Every primitive on every dtype through TVM, bit for bit against NumPy."""

import numpy as np
import pytest

from backends.kernel_call import run_flat
from backends.scalar_program import (
    DTYPES,
    HALVES,
    HELD,
    INTS,
    Builder,
    evaluate,
    mismatch,
    random_program,
    samples,
)

pytestmark = pytest.mark.requires("tvm")
SIZE = 4099  # vector body and a tail
WIDE = ("float32", "float64")
NUMBERS = INTS + WIDE
UNARY = [("neg", NUMBERS), ("abs", NUMBERS), ("not", ("bool", *INTS))]
UNARY += [(op, WIDE) for op in ("sqrt", "floor", "ceil", "trunc", "rint")]
BINARY = [(op, NUMBERS) for op in ("add", "sub", "mul", "max", "min")] + [("div", WIDE)]
BINARY += [(op, ("bool", *NUMBERS)) for op in ("eq", "ne", "lt", "le", "gt", "ge")]
BINARY += [(op, ("bool", *INTS)) for op in ("and", "or", "xor")]
ON_BITS = ("neg", "abs", "select", "bitcast")


def cases(table):
    return [pytest.param(op, dtype, id=f"{op}-{dtype}") for op, dtypes in table for dtype in dtypes]


def check(program, arrays, exact_nan=False, **kwargs):
    got, want = run_flat(program, arrays, **kwargs), evaluate(program, arrays)
    for out, g, w in zip(program["outputs"], got, want, strict=True):
        bad = mismatch(program["instrs"][out][1], g, w, exact_nan)
        assert bad.size == 0, (bad.size, [a[bad[0] % a.size] for a in arrays], g[bad[0]], w[bad[0]])


def pairs(dtype):
    """Two arrays in which every special value meets every other, then random ones."""
    few = samples(dtype, 40, seed=3)
    a, b = np.repeat(few, few.size), np.tile(few, few.size)
    return np.concatenate([a, samples(dtype, SIZE, 1)]), np.concatenate([b, samples(dtype, SIZE, 2)])


@pytest.mark.parametrize(("op", "dtype"), cases(UNARY))
def test_unary(op, dtype):
    b = Builder(dtype)
    check(b.program(b.op(op, *b.inputs)), [samples(dtype, SIZE)], exact_nan=op in ON_BITS)


@pytest.mark.parametrize(("op", "dtype"), cases(BINARY))
def test_binary(op, dtype):
    b = Builder(dtype, dtype)
    check(b.program(b.op(op, *b.inputs)), list(pairs(dtype)))


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", ["shl", "shr"])
def test_shift(op, dtype):
    b = Builder(dtype, dtype)
    counts = np.arange(SIZE) % (8 * HELD[dtype].itemsize)
    check(b.program(b.op(op, *b.inputs)), [samples(dtype, SIZE), counts.astype(dtype)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_select(dtype):
    b = Builder("bool", dtype, dtype)
    arrays = [samples("bool", SIZE), samples(dtype, SIZE, 1), samples(dtype, SIZE, 2)]
    check(b.program(b.select(*b.inputs)), arrays, exact_nan=True)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cast(source, dtype):
    b = Builder(source)
    check(b.program(b.cast(dtype, 0)), [samples(source, SIZE)])


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        ("int8", "uint8"),
        ("int16", "float16"),
        ("int16", "bfloat16"),
        ("int32", "float32"),
        ("int64", "float64"),
    ],
)
def test_bitcast_both_ways(source, dtype):
    for one, other in ((source, dtype), (dtype, source)):
        b = Builder(one)
        check(b.program(b.bitcast(other, 0)), [samples(one, SIZE)], exact_nan=True)


@pytest.mark.parametrize("source", HALVES)
def test_halves_convert_exhaustively(source):
    every = np.arange(1 << 16, dtype=np.uint16).view(HELD[source])
    b = Builder(source)
    wide = b.cast("float32", 0)
    check(b.program(wide, b.cast("int8", 0), b.cast("bool", 0), b.cast(source, wide)), [every])


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_to_a_half_at_and_beside_every_tie(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16).view(HELD[dtype])
    b = Builder(dtype)
    (wide,) = evaluate(b.program(b.cast("float32", 0)), [bits])
    step = np.uint32(1 << (15 if dtype == "bfloat16" else 12))
    tie = wide.view(np.uint32) + step
    near = np.concatenate([tie - np.uint32(1), tie, tie + np.uint32(1)]).view(np.float32)
    b = Builder("float32")
    check(b.program(b.cast(dtype, 0)), [near])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "max", "min", "lt", "eq"])
def test_halves_compute_in_float32_and_round_after_each_op(op, dtype):
    b = Builder(dtype, dtype)
    wide = [b.cast("float32", x) for x in b.inputs]
    once = b.op(op, *wide)
    if op in ("lt", "eq"):
        check(b.program(once), list(pairs(dtype)))
        return
    rounded = b.cast(dtype, once)
    again = b.cast(dtype, b.add(b.cast("float32", rounded), wide[1]))
    check(b.program(rounded, again), list(pairs(dtype)))


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 100, 127, -1, -2, -3, -128])
def test_division_by_a_constant_has_python_signs(divisor, dtype):
    b = Builder(dtype)
    by = b.const(dtype, divisor % 256 if dtype == "uint8" else divisor)
    check(b.program(b.floordiv(0, by), b.mod(0, by)), [samples(dtype, SIZE)])


@pytest.mark.parametrize("dtype", INTS)
def test_division_by_any_integer_has_python_signs_and_tells_of_zero(dtype):
    """5.4: no divisor ends the process; the minimum over -1 wraps; a zero sets the flag, nothing else does."""
    a, d = pairs(dtype)
    b = Builder(dtype, dtype)
    program, flag = b.program(b.floordiv(0, 1), b.mod(0, 1)), np.zeros(1, np.int32)
    check(program, [a, np.where(d == 0, HELD[dtype].type(1), d)], flag=flag)
    assert flag[0] == 0
    got = run_flat(program, [a, d], flag=flag)
    assert flag[0] == 1
    for g, w in zip(got, evaluate(program, [a, np.where(d == 0, HELD[dtype].type(1), d)]), strict=True):
        assert np.array_equal(g[d != 0], w[d != 0])


@pytest.mark.parametrize("dtype", WIDE)
def test_fmod_is_exact(dtype):
    """5.4: fmod has no rounding, so that any two right ones agree."""
    b = Builder(dtype, dtype)
    a, d = pairs(dtype)
    with np.errstate(all="ignore"):
        (got,), want = run_flat(b.program(b.fmod(0, 1)), [a, d]), np.fmod(a, d)
    assert mismatch(dtype, got, want).size == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants_keep_their_bits(dtype):
    b = Builder()
    width = 8 * HELD[dtype].itemsize
    patterns = [0, 1] if dtype == "bool" else [0, 1, 1 << (width - 1), (1 << width) - 1, 0x5A]
    if dtype in WIDE:  # a signalling NaN
        patterns.append((0xFF << 23 | 1) if dtype == "float32" else (0x7FF << 52 | 1))
    values = [b._push("const", dtype, (), imm) for imm in patterns]
    check(b.program(*values), [], exact_nan=True)


@pytest.mark.parametrize("dtype", WIDE)
def test_fma_rounds_once(dtype):
    size = SIZE if dtype == "float32" else 600
    b = Builder(dtype, dtype, dtype)
    check(b.program(b.fma(*b.inputs)), [samples(dtype, size, seed) for seed in (1, 2, 3)])


def cancelling(dtype):
    """Operands of `a * b + c` whose sum keeps little but the product's rounding error."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(1 << 14).astype(dtype) for _ in range(2))
    return a, b, -(a * b) * rng.choice(np.array([1, 1, 0.5, 1 + 2.0**-20], dtype), a.size)


@pytest.mark.parametrize("dtype", WIDE)
def test_a_product_and_a_sum_are_never_contracted(dtype):
    b = Builder(dtype, dtype, dtype)
    x, y, z = b.inputs
    p = b.mul(x, y)
    one = b.const(dtype, 1.0)
    outs = [
        b.add(p, z),
        b.sub(z, p),
        b.sub(p, z),
        b.add(b.neg(p), z),
        b.add(p, b.mul(z, x)),
        b.add(b.abs(p), z),
    ]
    outs += [b.add(b.mul(p, one), z), b.add(b.div(p, one), z), b.fma(p, one, z), b.add(b.max(p, z), z)]
    outs += [b.add(b.select(b.lt(x, y), p, z), z), b.mul(b.add(x, one), y)]
    check(b.program(*outs), list(cancelling(dtype)))


def test_a_widened_product_is_not_contracted():
    b = Builder("float32", "float32", "float64")
    x, y, z = b.inputs
    a, c, d = cancelling("float32")
    check(b.program(b.add(b.cast("float64", b.mul(x, y)), z)), [a, c, d.astype(np.float64)])


@pytest.mark.parametrize("dtype", WIDE)
def test_division_by_a_power_of_two_is_not_contracted(dtype):
    tiny = np.arange(1, 4098).astype(f"uint{8 * HELD[dtype].itemsize}").view(dtype)
    b = Builder(dtype, dtype)
    half, two = b.div(0, b.const(dtype, 2.0)), b.const(dtype, 2.0)
    check(
        b.program(b.add(half, 1), b.sub(half, 1), b.add(b.mul(0, b.const(dtype, 0.5)), 1), b.div(0, two)),
        [tiny, tiny],
    )


@pytest.mark.parametrize("dtype", WIDE)
def test_identities_that_hold_only_for_reals_are_not_used(dtype):
    b = Builder(dtype, dtype)
    x, y = b.inputs
    zero, big = b.const(dtype, 0.0), b.const(dtype, 1e8 if dtype == "float32" else 1e17)
    outs = [b.sub(x, x), b.mul(x, zero), b.div(zero, x), b.add(x, zero), b.sub(b.add(x, big), big)]
    outs += [
        b.eq(x, x),
        b.ne(x, x),
        b.op("not", b.lt(x, y)),
        b.div(b.mul(x, y), y),
        b.sub(zero, x),
        b.div(x, x),
    ]
    outs += [b.add(b.sub(x, y), y), b.max(x, zero), b.min(zero, x), b.sqrt(b.mul(x, x))]
    check(b.program(*outs), list(pairs(dtype)))


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_selecting_by_a_comparison_keeps_nan(op, dtype):
    b = Builder(dtype, dtype)
    x, y = b.inputs
    c = b.op(op, x, y)
    zero = b.const(dtype, 0.0)
    outs = [
        b.select(c, x, y),
        b.select(c, y, x),
        b.select(b.op("not", c), x, y),
        b.select(b.op(op, x, zero), x, zero),
    ]
    outs += [b.select(b.op(op, x, zero), b.neg(x), x), b.op("and", c, b.op("not", b.op(op, y, x)))]
    check(b.program(*outs), list(pairs(dtype)))


@pytest.mark.parametrize("dtype", INTS)
def test_integer_wrap_is_not_assumed_away(dtype):
    b = Builder(dtype)
    one = b.const(dtype, 1)
    outs = [
        b.gt(b.add(0, one), 0),
        b.lt(b.sub(0, one), 0),
        b.abs(0),
        b.neg(0),
        b.shr(b.mul(0, b.const(dtype, 2)), one),
    ]
    check(b.program(*outs), [samples(dtype, SIZE)])


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_over_all_dtypes(seed):
    rng = np.random.default_rng(seed)
    program = random_program(rng, int(rng.integers(8, 90)))
    check(program, [samples(dtype, 517, seed * 10 + k) for k, dtype in enumerate(program["inputs"])])
