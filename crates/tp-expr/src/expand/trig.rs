//! The float32 trigonometric functions and their inverses, reduced in float64: arguments of any size, with plain steps.
//! The inverses and `tan` are within 0.51 and 1 ulp.

use super::algebra::Algebra;
use super::double::dhorner;
use super::single::{horner, with_sign_of};

const PI_2_HIGH: f64 = std::f64::consts::FRAC_PI_2;
const PI_2_LOW: f64 = 6.123_233_995_736_766e-17;

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

/// Reduces `x` to `r + q pi/2` with |r| <= pi/4 (and a little) and q in {-2, -1, 0, 1, 2} modulo 4; any finite `x`.
#[inline(always)]
fn reduce_quadrant<A: Algebra>(a: &mut A, x: A::F) -> (A::D, A::F) {
    // x = y * 2^(22 j) with an integer y < 2^45, and 2^(22 j) = high + low modulo 2 pi, so that y * (high + low) is x
    // modulo 2 pi. Each band starts where y is at least 2^23, hence an integer.
    const BANDS: [(i64, i64, f64, f64); 4] = [
        (45, -22, 1.347_304_110_124_847_3, 8.799_091_310_765_27e-17),
        (67, -44, 0.400_815_375_508_494_7, 2.072_862_114_580_708_4e-17),
        (89, -66, -0.094_402_802_991_631_37, 1.894_530_371_110_1e-18),
        (111, -88, -0.282_511_168_225_762_7, 8.835_098_824_050_243e-18),
    ];
    const fn pow2(exponent: i64) -> f64 {
        f64::from_bits(((exponent + 1023) as u64) << 52)
    }
    let x = a.widen(x);
    let magnitude = a.dabs(x);
    let (mut scale, mut high, mut low) = (a.f64(1.0), a.f64(1.0), a.f64(0.0));
    for (start, band_scale, band_high, band_low) in BANDS {
        let start = a.f64(pow2(start));
        let before = a.dlt(magnitude, start);
        let (s, h, l) = (a.f64(pow2(band_scale)), a.f64(band_high), a.f64(band_low));
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
        &[
            -2.505_210_838_544_172e-8,
            2.755_731_922_398_589e-6,
            -1.984_126_984_126_984e-4,
            8.333_333_333_333_333e-3,
            -1.666_666_666_666_666_6e-1,
        ],
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
    let unit = a.float_of(unit);
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
