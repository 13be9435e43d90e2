//! The float32 transcendentals that go through float64: the reduction or the cancellation that would need double
//! float32 arithmetic is then exact enough with plain steps. Relative errors of the float64 cores are below 1e-12.

use super::algebra::Algebra;
use super::single::{horner, with_sign_of};

const PI_2_HIGH: f64 = std::f64::consts::FRAC_PI_2;
const PI_2_LOW: f64 = 6.123_233_995_736_766e-17;

/// Evaluates `c[0] x^n + ... + c[n]` by Horner's rule with fma.
#[inline(always)]
fn dhorner<A: Algebra>(a: &mut A, x: A::D, coefficients: &[f64]) -> A::D {
    let mut r = a.f64(coefficients[0]);
    for &c in &coefficients[1..] {
        let c = a.f64(c);
        r = a.dfma(r, x, c);
    }
    r
}

/// exp of a float64, clamped to where a float32 result is 0 or infinity.
#[inline(always)]
fn dexp<A: Algebra>(a: &mut A, x: A::D) -> A::D {
    let (low, high) = (a.f64(-110.0), a.f64(100.0));
    let below = a.dlt(x, low);
    let x = a.dselect(below, low, x);
    let above = a.dlt(high, x);
    let x = a.dselect(above, high, x);
    // 1.5 * 2^52: adding it rounds to an integer, which is then in the low mantissa bits.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    let (log2e, magic) = (a.f64(std::f64::consts::LOG2_E), a.f64(MAGIC));
    let shifted = a.dfma(x, log2e, magic);
    let n = a.dsub(shifted, magic);
    let minus_ln2 = a.f64(-std::f64::consts::LN_2);
    let r = a.dfma(n, minus_ln2, x);
    let p = dhorner(
        a,
        r,
        &[
            2.762_510_200_538_810_8e-6,
            2.480_153_640_906_408_7e-5,
            1.984_120_875_699_232e-4,
            1.388_888_890_587_134_7e-3,
            8.333_333_353_717_156e-3,
            4.166_666_666_665_136_4e-2,
            1.666_666_666_664_830_3e-1,
            0.5,
            1.0,
            1.0,
        ],
    );
    let (shifted, bias, mantissa_bits) = (a.dbits(shifted), a.i64(1023), a.i64(52));
    // The magic's own bits are shifted out, save for the low ones, which are zero.
    let biased = a.ladd(shifted, bias);
    let power = a.lshl(biased, mantissa_bits);
    let power = a.from_dbits(power);
    a.dmul(p, power)
}

/// log of a float64 that is not denormal, with the values at 0, infinity, negatives and NaN.
#[inline(always)]
fn dlog<A: Algebra>(a: &mut A, x: A::D) -> A::D {
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)). The offset keeps the shifted value non-negative.
    const SQRT_HALF_BITS: i64 = 0x3fe6_a09e_667f_3bcd;
    const OFFSET: i64 = 1023;
    let bits = a.dbits(x);
    let distance = a.i64(SQRT_HALF_BITS - (OFFSET << 52));
    let distance = a.lsub(bits, distance);
    let mantissa_bits = a.i64(52);
    let e = a.lshr(distance, mantissa_bits);
    let offset = a.i64(OFFSET);
    let unbiased = a.lsub(e, offset);
    let shifted = a.lshl(unbiased, mantissa_bits);
    let m = a.lsub(bits, shifted);
    let m = a.from_dbits(m);
    // An integer below 2^52 becomes a float64 by way of the mantissa of 2^52.
    let two_52 = a.i64(0x4330_0000_0000_0000);
    let e = a.lor(e, two_52);
    let e = a.from_dbits(e);
    let bias = a.f64(4_503_599_627_370_496.0 + OFFSET as f64);
    let e = a.dsub(e, bias);

    let (one, two) = (a.f64(1.0), a.f64(2.0));
    let f = a.dsub(m, one);
    let g = a.dadd(f, two);
    let s = a.ddiv(f, g);
    let z = a.dmul(s, s);
    let q = dhorner(
        a,
        z,
        &[
            0.146_164_496_850_434_06,
            0.153_317_216_005_560_42,
            0.181_828_891_252_617_23,
            0.222_222_111_347_950_8,
            0.285_714_286_259_754_87,
            0.399_999_999_998_995_05,
            0.666_666_666_666_667,
        ],
    );
    let s3 = a.dmul(s, z);
    let tail = a.dmul(s3, q);
    let r = a.dfma(two, s, tail);
    let ln2 = a.f64(std::f64::consts::LN_2);
    let r = a.dfma(e, ln2, r);

    let (zero, inf) = (a.f64(0.0), a.f64(f64::INFINITY));
    let (neg_inf, nan) = (a.f64(f64::NEG_INFINITY), a.f64(f64::NAN));
    let positive = a.dlt(zero, x);
    let r = a.dselect(positive, r, nan);
    let infinite = a.deq(x, inf);
    let r = a.dselect(infinite, inf, r);
    let is_zero = a.deq(x, zero);
    a.dselect(is_zero, neg_inf, r)
}

/// atan of a non-negative float64 ratio `y / x` of non-negative numbers; infinities must have been taken out.
#[inline(always)]
fn datan_ratio<A: Algebra>(a: &mut A, y: A::D, x: A::D) -> A::D {
    // Beyond pi/8, by the addition theorem: atan(y/x) = pi/4 + atan((y - x) / (y + x)), and beyond 3 pi/8 by
    // atan(y/x) = pi/2 - atan(x/y).
    const TAN_PI_8: f64 = 0.414_213_562_373_095_05;
    let tan_pi_8 = a.f64(TAN_PI_8);
    let low = a.dmul(tan_pi_8, x);
    let high = a.dmul(tan_pi_8, y);
    let is_low = a.dlt(y, low);
    let is_high = a.dlt(x, high);
    let (difference, sum) = (a.dsub(y, x), a.dadd(y, x));
    let minus_x = a.dneg(x);
    let (zero, quarter, half) = (a.f64(0.0), a.f64(std::f64::consts::FRAC_PI_4), a.f64(PI_2_HIGH));
    let numerator = a.dselect(is_high, minus_x, difference);
    let numerator = a.dselect(is_low, y, numerator);
    let denominator = a.dselect(is_high, y, sum);
    let denominator = a.dselect(is_low, x, denominator);
    let base = a.dselect(is_high, half, quarter);
    let base = a.dselect(is_low, zero, base);
    let t = a.ddiv(numerator, denominator);
    let z = a.dmul(t, t);
    let p = dhorner(
        a,
        z,
        &[
            -0.027_232_884_060_574_88,
            0.051_688_349_359_193_62,
            -0.065_509_073_075_630_9,
            0.076_810_452_027_429_48,
            -0.090_902_559_526_906_57,
            0.111_110_896_492_110_55,
            -0.142_857_139_303_785_66,
            0.199_999_999_977_248_88,
            -0.333_333_333_333_309_3,
        ],
    );
    let t3 = a.dmul(t, z);
    let r = a.dfma(t3, p, t);
    a.dadd(base, r)
}

#[inline(always)]
pub fn exp2<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let (x, ln2) = (a.widen(x), a.f64(std::f64::consts::LN_2));
    let x = a.dmul(x, ln2);
    let r = dexp(a, x);
    a.narrow(r)
}

#[inline(always)]
pub fn expm1<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let d = a.widen(x);
    let p = dhorner(a, d, &[1.0 / 24.0, 1.0 / 6.0, 0.5]);
    let square = a.dmul(d, d);
    let small = a.dfma(p, square, d);
    let (e, one) = (dexp(a, d), a.f64(1.0));
    let big = a.dsub(e, one);
    let (magnitude, split) = (a.dabs(d), a.f64(1e-3));
    let is_small = a.dlt(magnitude, split);
    let r = a.dselect(is_small, small, big);
    let r = a.narrow(r);
    with_sign_of(a, r, x)
}

/// log of `x` times `factor`.
#[inline(always)]
pub fn log_scaled<A: Algebra>(a: &mut A, x: A::F, factor: f64) -> A::F {
    let x = a.widen(x);
    let (r, factor) = (dlog(a, x), a.f64(factor));
    let r = a.dmul(r, factor);
    a.narrow(r)
}

#[inline(always)]
pub fn log1p<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let (d, one) = (a.widen(x), a.f64(1.0));
    let p = dhorner(a, d, &[1.0 / 3.0, -0.5]);
    let square = a.dmul(d, d);
    let small = a.dfma(p, square, d);
    let u = a.dadd(one, d);
    let big = dlog(a, u);
    let (magnitude, split) = (a.dabs(d), a.f64(1e-4));
    let is_small = a.dlt(magnitude, split);
    let r = a.dselect(is_small, small, big);
    let r = a.narrow(r);
    with_sign_of(a, r, x)
}

/// Reduces `x` to `r + q pi/2` with |r| <= pi/4 (and a little) and q in {-2, -1, 0, 1, 2} modulo 4; any finite `x`.
#[inline(always)]
fn reduce_quadrant<A: Algebra>(a: &mut A, x: A::F) -> (A::D, A::F) {
    // x = y * 2^(22 j) with |y| < 2^40, and 2^(22 j) = high + low modulo 2 pi, so that y * (high + low) is x modulo
    // 2 pi and below 2^42.
    const BANDS: [(f64, f64, f64, f64); 4] = [
        (1.099_511_627_776e12, 2.384_185_791_015_625e-7, 1.347_304_110_124_847_3, 8.799_091_310_765_27e-17),
        (4.611_686_018_427_388e18, 5.684_341_886_080_802e-14, 0.400_815_375_508_494_7, 2.072_862_114_580_708_4e-17),
        (
            1.934_281_311_383_406_7e25,
            1.355_252_715_606_880_5e-20,
            -0.094_402_802_991_631_37,
            1.894_530_371_110_1e-18,
        ),
        (
            8.112_963_841_460_668e31,
            3.231_174_267_785_264_4e-27,
            -0.282_511_168_225_762_7,
            8.835_098_824_050_243e-18,
        ),
    ];
    let x = a.widen(x);
    let magnitude = a.dabs(x);
    let (mut scale, mut high, mut low) = (a.f64(1.0), a.f64(1.0), a.f64(0.0));
    for (start, band_scale, band_high, band_low) in BANDS {
        let start = a.f64(start);
        let before = a.dlt(magnitude, start);
        let (s, h, l) = (a.f64(band_scale), a.f64(band_high), a.f64(band_low));
        scale = a.dselect(before, scale, s);
        high = a.dselect(before, high, h);
        low = a.dselect(before, low, l);
    }
    let y = a.dmul(x, scale);
    let p = a.dmul(y, high);
    let minus_p = a.dneg(p);
    let e = a.dfma(y, high, minus_p);
    let e = a.dfma(y, low, e);
    let two_over_pi = a.f64(std::f64::consts::FRAC_2_PI);
    let k = a.dmul(p, two_over_pi);
    let k = a.drint(k);
    let minus_k = a.dneg(k);
    let (pi_2_high, pi_2_low) = (a.f64(PI_2_HIGH), a.f64(PI_2_LOW));
    let r = a.dfma(minus_k, pi_2_high, p);
    let e = a.dfma(minus_k, pi_2_low, e);
    let r = a.dadd(r, e);
    let (quarter, minus_four) = (a.f64(0.25), a.f64(-4.0));
    let turns = a.dmul(k, quarter);
    let turns = a.drint(turns);
    let q = a.dfma(turns, minus_four, k);
    (r, a.narrow(q))
}

/// sin and cos of `x` before the quadrant is applied, and the quadrant.
#[inline(always)]
fn sin_cos_parts<A: Algebra>(a: &mut A, x: A::F) -> (A::F, A::F, A::F) {
    let (r, q) = reduce_quadrant(a, x);
    let r = a.narrow(r);
    let s = a.mul(r, r);
    let p = horner(a, s, &[2.724_914_7e-6, -1.984_008e-4, 8.333_332e-3, -1.666_666_7e-1]);
    let t = a.mul(r, s);
    let sin = a.fma(p, t, r);
    let cos = horner(a, s, &[-2.730_031e-7, 2.480_059_5e-5, -1.388_888_8e-3, 4.166_666_8e-2, -0.5, 1.0]);
    (sin, cos, q)
}

/// Turns the parts into sin, or into cos, which is sin a quadrant later: `flip` is the odd quadrant that negates.
#[inline(always)]
fn apply_quadrant<A: Algebra>(a: &mut A, even: A::F, odd: A::F, q: A::F, flip: f32) -> A::F {
    let magnitude = a.abs(q);
    let (one, two, flip) = (a.f32(1.0), a.f32(2.0), a.f32(flip));
    let is_odd = a.eq(magnitude, one);
    let r = a.select(is_odd, odd, even);
    let opposite = a.eq(magnitude, two);
    let flipped = a.eq(q, flip);
    let negate = a.or(opposite, flipped);
    let minus_r = a.neg(r);
    a.select(negate, minus_r, r)
}

/// At most 2 ulp over the full range, the reduction included.
#[inline(always)]
pub fn sin<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let (s, c, q) = sin_cos_parts(a, x);
    let r = apply_quadrant(a, s, c, q, -1.0);
    let zero = a.f32(0.0);
    let is_zero = a.eq(x, zero);
    a.select(is_zero, x, r)
}

/// At most 2 ulp over the full range, the reduction included.
#[inline(always)]
pub fn cos<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let (s, c, q) = sin_cos_parts(a, x);
    apply_quadrant(a, c, s, q, 1.0)
}

/// At most 2 ulp over the full range.
#[inline(always)]
pub fn tan<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let (r, q) = reduce_quadrant(a, x);
    let s = a.dmul(r, r);
    let sin = dhorner(
        a,
        s,
        &[-2.505_210_838_544_172e-8, 2.755_731_922_398_589e-6, -1.984_126_984_126_984e-4, 8.333_333_333_333_333e-3, -1.666_666_666_666_666_6e-1],
    );
    let cube = a.dmul(r, s);
    let sin = a.dfma(sin, cube, r);
    let cos = dhorner(
        a,
        s,
        &[
            2.087_675_698_786_81e-9,
            -2.755_731_922_398_589e-7,
            2.480_158_730_158_73e-5,
            -1.388_888_888_888_889e-3,
            4.166_666_666_666_666_4e-2,
            -0.5,
            1.0,
        ],
    );
    let (magnitude, one) = (a.abs(q), a.f32(1.0));
    let is_odd = a.eq(magnitude, one);
    let minus_cos = a.dneg(cos);
    let numerator = a.dselect(is_odd, minus_cos, sin);
    let denominator = a.dselect(is_odd, sin, cos);
    let t = a.ddiv(numerator, denominator);
    let t = a.narrow(t);
    let zero = a.f32(0.0);
    let is_zero = a.eq(x, zero);
    a.select(is_zero, x, t)
}

#[inline(always)]
pub fn atan<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let magnitude = a.abs(x);
    // Past 2^64 the result is pi/2; the clamp takes infinity out.
    let limit = a.f32(18_446_744_073_709_551_616.0);
    let above = a.lt(limit, magnitude);
    let magnitude = a.select(above, limit, magnitude);
    let (y, one) = (a.widen(magnitude), a.f64(1.0));
    let r = datan_ratio(a, y, one);
    let r = a.narrow(r);
    with_sign_of(a, r, x)
}

#[inline(always)]
pub fn asin<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let (magnitude, one) = (a.abs(x), a.f64(1.0));
    let y = a.widen(magnitude);
    let (left, right) = (a.dsub(one, y), a.dadd(one, y));
    let square = a.dmul(left, right);
    let other = a.dsqrt(square);
    let r = datan_ratio(a, y, other);
    let r = a.narrow(r);
    with_sign_of(a, r, x)
}

#[inline(always)]
pub fn acos<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let (magnitude, one) = (a.abs(x), a.f64(1.0));
    let y = a.widen(magnitude);
    let (left, right) = (a.dsub(one, y), a.dadd(one, y));
    let square = a.dmul(left, right);
    let other = a.dsqrt(square);
    let r = datan_ratio(a, other, y);
    let pi = a.f64(std::f64::consts::PI);
    let reflected = a.dsub(pi, r);
    let zero = a.f32(0.0);
    let negative = a.lt(x, zero);
    let r = a.dselect(negative, reflected, r);
    a.narrow(r)
}

/// All quadrants, signed zeros and infinities as IEEE 754 has them.
#[inline(always)]
pub fn atan2<A: Algebra>(a: &mut A, y: A::F, x: A::F) -> A::F {
    let (ay, ax) = (a.abs(y), a.abs(x));
    let (inf, one, zero, tiny) = (a.f32(f32::INFINITY), a.f32(1.0), a.f32(0.0), a.f32(f32::MIN_POSITIVE));
    // Infinities become 1 or 0 against each other; 0 / 0 becomes 0 / tiny, so the ratio is right in both cases.
    let (y_inf, x_inf) = (a.eq(ay, inf), a.eq(ax, inf));
    let any_inf = a.or(y_inf, x_inf);
    let (y_part, x_part) = (a.select(y_inf, one, zero), a.select(x_inf, one, zero));
    let (uy, ux) = (a.select(any_inf, y_part, ay), a.select(any_inf, x_part, ax));
    let (y_zero, x_zero) = (a.eq(uy, zero), a.eq(ux, zero));
    let both_zero = a.and(y_zero, x_zero);
    let ux = a.select(both_zero, tiny, ux);
    let (uy, ux) = (a.widen(uy), a.widen(ux));
    let r = datan_ratio(a, uy, ux);
    // The sign *bit* of x decides the half plane, so that -0 counts as negative.
    let x_bits = a.bits(x);
    let (one_bits, sign) = (a.i32(1.0_f32.to_bits() as i32), a.i32(i32::MIN));
    let x_sign = a.iand(x_bits, sign);
    let unit = a.ior(x_sign, one_bits);
    let unit = a.from_bits(unit);
    let negative = a.lt(unit, zero);
    let pi = a.f64(std::f64::consts::PI);
    let reflected = a.dsub(pi, r);
    let r = a.dselect(negative, reflected, r);
    let r = a.narrow(r);
    let r = with_sign_of(a, r, y);
    // Selects above drop a NaN that stands beside an infinity.
    let (y_ok, x_ok) = (a.eq(y, y), a.eq(x, x));
    let ok = a.and(y_ok, x_ok);
    let sum = a.add(y, x);
    a.select(ok, r, sum)
}

#[inline(always)]
pub fn sinh<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let d = a.widen(x);
    let d = a.dabs(d);
    let s = a.dmul(d, d);
    let p = dhorner(a, s, &[1.0 / 362_880.0, 1.0 / 5040.0, 1.0 / 120.0, 1.0 / 6.0]);
    let cube = a.dmul(d, s);
    let small = a.dfma(p, cube, d);
    let (e, one, half) = (dexp(a, d), a.f64(1.0), a.f64(0.5));
    let inverse = a.ddiv(one, e);
    let difference = a.dsub(e, inverse);
    let big = a.dmul(half, difference);
    let split = a.f64(0.25);
    let is_small = a.dlt(d, split);
    let r = a.dselect(is_small, small, big);
    let r = a.narrow(r);
    with_sign_of(a, r, x)
}

#[inline(always)]
pub fn cosh<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let d = a.widen(x);
    let d = a.dabs(d);
    let (e, one, half) = (dexp(a, d), a.f64(1.0), a.f64(0.5));
    let inverse = a.ddiv(one, e);
    let sum = a.dadd(e, inverse);
    let r = a.dmul(half, sum);
    a.narrow(r)
}

#[inline(always)]
pub fn asinh<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let d = a.widen(x);
    let d = a.dabs(d);
    let s = a.dmul(d, d);
    let p = dhorner(a, s, &[3.0 / 40.0, -1.0 / 6.0]);
    let cube = a.dmul(d, s);
    let small = a.dfma(p, cube, d);
    let one = a.f64(1.0);
    let t = a.dadd(s, one);
    let root = a.dsqrt(t);
    let sum = a.dadd(d, root);
    let big = dlog(a, sum);
    let split = a.f64(1e-3);
    let is_small = a.dlt(d, split);
    let r = a.dselect(is_small, small, big);
    let r = a.narrow(r);
    with_sign_of(a, r, x)
}

#[inline(always)]
pub fn acosh<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let (d, one) = (a.widen(x), a.f64(1.0));
    let (left, right) = (a.dsub(d, one), a.dadd(d, one));
    let square = a.dmul(left, right);
    let root = a.dsqrt(square);
    // log(1 + u) with u = (x - 1) + sqrt((x - 1)(x + 1)): near 1 the argument 1 + u is exact to 2^-53, and u is at
    // least 3e-4 for the float32 next to 1.
    let u = a.dadd(left, root);
    let t = a.dadd(one, u);
    let r = dlog(a, t);
    a.narrow(r)
}

#[inline(always)]
pub fn atanh<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let d = a.widen(x);
    let d = a.dabs(d);
    let s = a.dmul(d, d);
    let p = dhorner(a, s, &[0.2, 1.0 / 3.0]);
    let cube = a.dmul(d, s);
    let small = a.dfma(p, cube, d);
    let (one, half) = (a.f64(1.0), a.f64(0.5));
    let (numerator, denominator) = (a.dadd(one, d), a.dsub(one, d));
    let ratio = a.ddiv(numerator, denominator);
    let log = dlog(a, ratio);
    let big = a.dmul(half, log);
    let split = a.f64(1e-3);
    let is_small = a.dlt(d, split);
    let r = a.dselect(is_small, small, big);
    let r = a.narrow(r);
    with_sign_of(a, r, x)
}

#[inline(always)]
pub fn hypot<A: Algebra>(a: &mut A, x: A::F, y: A::F) -> A::F {
    let (dx, dy) = (a.widen(x), a.widen(y));
    let s = a.dmul(dx, dx);
    let s = a.dfma(dy, dy, s);
    let r = a.dsqrt(s);
    let r = a.narrow(r);
    // An infinite leg wins over NaN.
    let (ax, ay, inf) = (a.abs(x), a.abs(y), a.f32(f32::INFINITY));
    let (x_inf, y_inf) = (a.eq(ax, inf), a.eq(ay, inf));
    let any_inf = a.or(x_inf, y_inf);
    a.select(any_inf, inf, r)
}

/// At most 1 ulp; the special values are those of IEEE 754 `pow`.
#[inline(always)]
pub fn pow<A: Algebra>(a: &mut A, x: A::F, y: A::F) -> A::F {
    let (zero, one, half, inf) = (a.f32(0.0), a.f32(1.0), a.f32(0.5), a.f32(f32::INFINITY));
    let ax = a.abs(x);
    // An infinite exponent becomes a huge finite one: 0 * y is then 0, which is what |x| = 1 needs.
    let (dy, huge, minus_huge) = (a.widen(y), a.f64(1e40), a.f64(-1e40));
    let above = a.dlt(huge, dy);
    let dy = a.dselect(above, huge, dy);
    let below = a.dlt(dy, minus_huge);
    let dy = a.dselect(below, minus_huge, dy);
    let base = a.widen(ax);
    let log = dlog(a, base);
    let product = a.dmul(dy, log);
    let r = dexp(a, product);
    let r = a.narrow(r);

    let whole = a.floor(y);
    let is_integer = a.eq(whole, y);
    let half_y = a.mul(y, half);
    let half_floor = a.floor(half_y);
    let is_even = a.eq(half_floor, half_y);
    let is_not_even = a.not(is_even);
    let is_odd = a.and(is_integer, is_not_even);
    let signed = with_sign_of(a, r, x);
    let r = a.select(is_odd, signed, r);

    // A finite negative base with a fractional exponent.
    let (neg_inf, nan) = (a.f32(f32::NEG_INFINITY), a.f32(f32::NAN));
    let negative = a.lt(x, zero);
    let finite = a.lt(neg_inf, x);
    let is_fraction = a.not(is_integer);
    let domain = a.and(negative, finite);
    let domain = a.and(domain, is_fraction);
    let r = a.select(domain, nan, r);

    let (y_zero, x_one) = (a.eq(y, zero), a.eq(x, one));
    let is_one = a.or(y_zero, x_one);
    let r = a.select(is_one, one, r);
    // `domain` must not hide a NaN exponent, nor `is_odd` an infinite base: both are settled by what came before.
    let base_inf = a.eq(ax, inf);
    let y_negative = a.lt(y, zero);
    let vanishes = a.and(base_inf, y_negative);
    let signed_zero = with_sign_of(a, zero, x);
    let vanished = a.select(is_odd, signed_zero, zero);
    a.select(vanishes, vanished, r)
}
