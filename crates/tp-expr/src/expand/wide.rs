//! The float64 transcendentals that are written out, so that they are vectors of instructions and not a call per element:
//! exp, log, tanh, sigmoid, erf. The others are the C library's. Stated bounds, in units of the last place: exp 1, log 1,
//! tanh 1.5, sigmoid 2.5, erf 1; `tests/compile/test_accuracy.py` holds them against the 80-bit long double.

use super::algebra::Algebra;
use super::double::{dhorner, dlog_specials, mantissa_and_exponent};
use crate::prim::Prim;

/// 1.5 * 2^52: adding it rounds to an integer, which is then in the low mantissa bits.
const MAGIC: f64 = 6_755_399_441_055_744.0;
/// ln 2 in two parts; products of the first with integers below 2^11 are exact.
const LN2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];

/// 1 / 13!, ..., 1 / 2!: what is left out is below 2^-57 where |r| < 0.35.
const EXP: [f64; 12] = [
    1.605_904_383_682_161_3e-10,
    2.087_675_698_786_81e-9,
    2.505_210_838_544_172e-8,
    2.755_731_922_398_589e-7,
    2.755_731_922_398_589_3e-6,
    2.480_158_730_158_73e-5,
    1.984_126_984_126_984e-4,
    1.388_888_888_888_889e-3,
    8.333_333_333_333_333e-3,
    4.166_666_666_666_666_4e-2,
    1.666_666_666_666_666_6e-1,
    0.5,
];

/// `2 atanh(s) / s` without its first term, in `s^2`, for the quotient that `log` makes of a mantissa.
const LOG: [f64; 7] = [
    1.479_819_860_511_658_6e-1,
    1.531_383_769_920_937_3e-1,
    1.818_357_216_161_805e-1,
    2.222_219_843_214_978_4e-1,
    2.857_142_874_366_239e-1,
    3.999_999_999_940_942e-1,
    6.666_666_666_666_735e-1,
];

/// tanh below 0.625: `x + x^3 P(x^2) / Q(x^2)`.
const TANH: (&[f64], &[f64]) = (
    &[-9.643_991_794_250_523e-1, -9.928_772_310_019_186e1, -1.614_687_684_417_084_5e3],
    &[1.0, 1.128_116_784_916_329_3e2, 2.235_488_390_601_004_5e3, 4.844_063_053_251_255e3],
);

/// erf below 0.84375: `x + x P(x^2) / Q(x^2)`.
const ERF_NEAR: (&[f64], &[f64]) = (
    &[
        -2.376_301_665_665_016_3e-5,
        -5.770_270_296_489_442e-3,
        -2.848_174_957_559_851e-2,
        -3.250_421_072_470_015e-1,
        1.283_791_670_955_125_6e-1,
    ],
    &[
        -3.960_228_278_775_368e-6,
        1.324_947_380_043_216_4e-4,
        5.081_306_281_875_766e-3,
        6.502_224_998_876_73e-2,
        3.979_172_239_591_553_5e-1,
        1.0,
    ],
);
/// erf(1), rounded to float32, and `erf(x) - ERF_ONE` in `x - 1` up to 1.25.
const ERF_ONE: f64 = 8.450_629_115_104_675e-1;
const ERF_MIDDLE: (&[f64], &[f64]) = (
    &[
        -2.166_375_594_868_791e-3,
        3.547_830_432_561_823_6e-2,
        -1.108_946_942_823_966_8e-1,
        3.183_466_199_011_617_5e-1,
        -3.722_078_760_357_013e-1,
        4.148_561_186_837_483_3e-1,
        -2.362_118_560_752_659_4e-3,
    ],
    &[
        1.198_449_984_679_910_7e-2,
        1.363_708_391_202_905e-2,
        1.261_712_198_087_616_4e-1,
        7.182_865_441_419_627e-2,
        5.403_979_177_021_71e-1,
        1.064_208_804_008_442_3e-1,
        1.0,
    ],
);
/// `log(x erfc(x)) + x^2 + 0.5625` in `1 / x^2`, up to 1 / 0.35 and from there on.
const ERF_FAR: [(&[f64], &[f64]); 2] = [
    (
        &[
            -9.814_329_344_169_145,
            -8.128_743_550_630_66e1,
            -1.846_050_929_067_110_4e2,
            -1.623_966_694_625_734_7e2,
            -6.237_533_245_032_600_6e1,
            -1.055_862_622_532_329_1e1,
            -6.938_585_727_071_818e-1,
            -9.864_944_034_847_148e-3,
        ],
        &[
            -6.042_441_521_485_81e-2,
            6.570_249_770_319_282,
            1.086_350_055_417_794_4e2,
            4.290_081_400_275_678_3e2,
            6.453_872_717_332_679e2,
            4.345_658_774_752_292_3e2,
            1.376_577_541_435_190_4e2,
            1.965_127_166_743_925_7e1,
            1.0,
        ],
    ),
    (
        &[
            -4.835_191_916_086_514e2,
            -1.025_095_131_611_077_2e3,
            -6.375_664_433_683_896e2,
            -1.606_363_848_558_219_2e2,
            -1.775_795_491_775_475_2e1,
            -7.992_832_376_805_23e-1,
            -9.864_942_924_700_1e-3,
        ],
        &[
            -2.244_095_244_658_582e1,
            4.745_285_412_069_553_7e2,
            2.553_050_406_433_164_4e3,
            3.199_858_219_508_595_5e3,
            1.536_729_586_084_437e3,
            3.257_925_129_965_739e2,
            3.033_806_074_348_246e1,
            1.0,
        ],
    ),
];

/// The expansion of `prim` on float64. `None` if it is no transcendental, or the C library's.
#[inline(always)]
pub fn expand_wide<A: Algebra>(a: &mut A, prim: Prim, x: A::D) -> Option<A::D> {
    Some(match prim {
        Prim::Exp => exp(a, x),
        Prim::Log => log(a, x),
        Prim::Tanh => tanh(a, x),
        Prim::Sigmoid => sigmoid(a, x),
        Prim::Erf => erf(a, x),
        _ => return None,
    })
}

/// `P(x) / Q(x)`.
#[inline(always)]
fn rational<A: Algebra>(a: &mut A, x: A::D, (p, q): (&[f64], &[f64])) -> A::D {
    let (p, q) = (dhorner(a, x, p), dhorner(a, x, q));
    a.ddiv(p, q)
}

/// `r`, computed on the magnitude of `x`, as an odd function has it at `x`; -0 stays.
#[inline(always)]
fn odd<A: Algebra>(a: &mut A, r: A::D, x: A::D) -> A::D {
    let zero = a.f64(0.0);
    let (negative, nothing, minus) = (a.dlt(x, zero), a.deq(x, zero), a.dneg(r));
    let r = a.dselect(negative, minus, r);
    a.dselect(nothing, x, r)
}

#[inline(always)]
fn at_most<A: Algebra>(a: &mut A, x: A::D, limit: f64) -> A::D {
    let limit = a.f64(limit);
    let above = a.dlt(limit, x);
    a.dselect(above, limit, x)
}

/// exp: `2^n exp(r)` with the rounding of `r` carried along, and the power in two factors, of which none overflows.
#[inline(always)]
fn exp<A: Algebra>(a: &mut A, x: A::D) -> A::D {
    let low = a.f64(-746.0);
    let below = a.dlt(x, low);
    let x = a.dselect(below, low, x);
    let x = at_most(a, x, 710.0);
    let (log2e, magic) = (a.f64(std::f64::consts::LOG2_E), a.f64(MAGIC));
    let shifted = a.dfma(x, log2e, magic);
    let n = a.dsub(shifted, magic);
    let (minus_high, lower) = (a.f64(-LN2[0]), a.f64(LN2[1]));
    let (high, lost) = (a.dfma(n, minus_high, x), a.dmul(n, lower));
    let r = a.dsub(high, lost);
    let rest = a.dsub(high, r);
    let rest = a.dsub(rest, lost);
    let q = dhorner(a, r, &EXP);
    let square = a.dmul(r, r);
    let q = a.dfma(square, q, rest);
    let p = a.dadd(r, q);
    let one = a.f64(1.0);
    let p = a.dadd(one, p);
    let (bits, origin) = (a.dbits(shifted), a.i64(MAGIC.to_bits() as i64));
    let n = a.lsub(bits, origin);
    // Halved upwards of 0, where a shift is a division.
    let (offset, step, half_offset) = (a.i64(2048), a.i64(1), a.i64(1024));
    let first = a.ladd(n, offset);
    let first = a.lshr(first, step);
    let first = a.lsub(first, half_offset);
    let second = a.lsub(n, first);
    let (first, second) = (power_of_two(a, first), power_of_two(a, second));
    let r = a.dmul(p, first);
    a.dmul(r, second)
}

/// `2^n` for -1022 <= n <= 1023.
#[inline(always)]
fn power_of_two<A: Algebra>(a: &mut A, n: A::L) -> A::D {
    let (bias, mantissa_bits) = (a.i64(1023), a.i64(52));
    let n = a.ladd(n, bias);
    let n = a.lshl(n, mantissa_bits);
    a.double_of(n)
}

/// log: of `m 2^e` with m in [sqrt(1/2), sqrt(2)), by the quotient `f / (2 + f)` for `f = m - 1`.
#[inline(always)]
fn log<A: Algebra>(a: &mut A, x: A::D) -> A::D {
    let (least, scale, shift) = (a.f64(f64::MIN_POSITIVE), a.f64(18_014_398_509_481_984.0), a.f64(54.0));
    let (small, scaled) = (a.dlt(x, least), a.dmul(x, scale));
    let y = a.dselect(small, scaled, x);
    let (m, e) = mantissa_and_exponent(a, y);
    let moved = a.dsub(e, shift);
    let e = a.dselect(small, moved, e);

    let (one, two, half) = (a.f64(1.0), a.f64(2.0), a.f64(0.5));
    let f = a.dsub(m, one);
    let s = a.dadd(two, f);
    let s = a.ddiv(f, s);
    let z = a.dmul(s, s);
    let series = dhorner(a, z, &LOG);
    let series = a.dmul(z, series);
    let halved = a.dmul(half, f);
    let halved = a.dmul(halved, f);
    let sum = a.dadd(halved, series);
    let (high, lower) = (a.f64(LN2[0]), a.f64(LN2[1]));
    let tail = a.dmul(e, lower);
    let tail = a.dfma(s, sum, tail);
    let tail = a.dsub(halved, tail);
    let r = a.dsub(f, tail);
    let r = a.dfma(e, high, r);
    dlog_specials(a, x, r)
}

#[inline(always)]
fn tanh<A: Algebra>(a: &mut A, x: A::D) -> A::D {
    let magnitude = a.dabs(x);
    let (square, one, minus_two, limit) = (a.dmul(x, x), a.f64(1.0), a.f64(-2.0), a.f64(0.625));
    let near = rational(a, square, TANH);
    let cube = a.dmul(magnitude, square);
    let near = a.dfma(cube, near, magnitude);
    let far = at_most(a, magnitude, 22.0);
    let far = a.dadd(far, far);
    let far = exp(a, far);
    let far = a.dadd(far, one);
    let far = a.ddiv(minus_two, far);
    let far = a.dadd(one, far);
    let is_near = a.dlt(magnitude, limit);
    let r = a.dselect(is_near, near, far);
    odd(a, r, x)
}

#[inline(always)]
fn sigmoid<A: Algebra>(a: &mut A, x: A::D) -> A::D {
    let (zero, one) = (a.f64(0.0), a.f64(1.0));
    let magnitude = a.dabs(x);
    let minus = a.dneg(magnitude);
    let z = exp(a, minus);
    let negative = a.dlt(x, zero);
    let numerator = a.dselect(negative, z, one);
    let denominator = a.dadd(one, z);
    a.ddiv(numerator, denominator)
}

#[inline(always)]
fn erf<A: Algebra>(a: &mut A, x: A::D) -> A::D {
    let magnitude = a.dabs(x);
    let one = a.f64(1.0);
    let square = a.dmul(x, x);
    let near = rational(a, square, ERF_NEAR);
    let near = a.dfma(magnitude, near, magnitude);
    let (beyond, at_one) = (a.dsub(magnitude, one), a.f64(ERF_ONE));
    let middle = rational(a, beyond, ERF_MIDDLE);
    let middle = a.dadd(at_one, middle);

    // 1 - erf is below 0.08 here: what its exponent loses is nothing to the result.
    let far = at_most(a, magnitude, 6.0);
    let (square, minus) = (a.dmul(far, far), a.dneg(far));
    let inverse = a.ddiv(one, square);
    // No closures: they would not be inlined, and `fma` would be a call.
    let split = a.f64(1.0 / 0.35);
    let further = a.dlt(split, far);
    let [(p, q), (further_p, further_q)] = ERF_FAR;
    let (p, further_p) = (dhorner(a, inverse, p), dhorner(a, inverse, further_p));
    let p = a.dselect(further, further_p, p);
    let (q, further_q) = (dhorner(a, inverse, q), dhorner(a, inverse, further_q));
    let q = a.dselect(further, further_q, q);
    let (quotient, shift) = (a.ddiv(p, q), a.f64(-0.5625));
    let exponent = a.dfma(minus, far, shift);
    let exponent = a.dadd(exponent, quotient);
    let complement = exp(a, exponent);
    let complement = a.ddiv(complement, far);
    let far = a.dsub(one, complement);

    let (first, second) = (a.f64(0.84375), a.f64(1.25));
    let (is_near, is_middle) = (a.dlt(magnitude, first), a.dlt(magnitude, second));
    let r = a.dselect(is_middle, middle, far);
    let r = a.dselect(is_near, near, r);
    odd(a, r, x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::eval;
    use crate::expand::algebra::Native;
    use crate::expr::{ArgType, ScalarExpr};
    use tp_tensor::DType;

    unsafe extern "C" {
        #[link_name = "erf"]
        safe fn library_erf(x: f64) -> f64;
    }

    const FUNCTIONS: [Prim; 5] = [Prim::Exp, Prim::Log, Prim::Tanh, Prim::Sigmoid, Prim::Erf];

    fn library(prim: Prim, x: f64) -> f64 {
        match prim {
            Prim::Exp => x.exp(),
            Prim::Log => x.ln(),
            Prim::Tanh => x.tanh(),
            Prim::Erf => library_erf(x),
            _ => {
                let z = (-x.abs()).exp();
                (if x < 0.0 { z } else { 1.0 }) / (1.0 + z)
            }
        }
    }

    /// Every exponent and sign with many mantissas, a dense sweep where the work is done, and the special values.
    fn samples() -> impl Iterator<Item = f64> {
        let spread = (0..1 << 19).map(|i: u64| f64::from_bits(i.wrapping_mul(0x0000_2000_0369_d037)));
        let dense = (-200_000..200_000).map(|i| f64::from(i) * 3.7e-3 + 1.1e-7);
        let fine = (-200_000..200_000).map(|i| f64::from(i) * 3.1e-5 + 1.1e-9);
        let special = [0.0, -0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 5e-324, -5e-324, f64::MAX];
        spread.chain(dense).chain(fine).chain(special)
    }

    /// How many float64 lie between two of one sign; NaN is NaN and zeros have signs.
    fn apart(a: f64, b: f64) -> u64 {
        if a.is_nan() && b.is_nan() { 0 } else { a.to_bits().abs_diff(b.to_bits()) }
    }

    #[test]
    fn functions_are_the_librarys_to_two_units() {
        for prim in FUNCTIONS {
            for x in samples() {
                let (got, want) = (expand_wide(&mut Native, prim, x).unwrap(), library(prim, x));
                let allowed = if prim == Prim::Sigmoid { 4 } else { 2 };
                assert!(apart(got, want) <= allowed, "{prim}({x:e}) = {got:e}, the library's {want:e}");
            }
        }
    }

    #[test]
    fn instructions_and_native_code_give_the_same_bits() {
        for prim in FUNCTIONS {
            let expr = ScalarExpr::parse(&format!("{prim}(x)"), &["x"]).unwrap();
            let program = expr.program(&[ArgType::Tensor(DType::F64)]).unwrap().expand();
            program.verify().unwrap();
            assert!(program.instrs().iter().all(|i| !i.prim.is_transcendental()), "{prim}");
            for x in samples().step_by(503) {
                let got = f64::from_bits(eval(&program, &[x.to_bits()]).unwrap()[0]);
                let want = expand_wide(&mut Native, prim, x).unwrap();
                assert!(apart(got, want) == 0, "{prim}({x:e}): {got:e} and {want:e}");
            }
        }
    }
}
