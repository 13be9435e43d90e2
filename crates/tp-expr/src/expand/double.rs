//! The float32 exponentials, logarithms and powers that go through float64: the cancellation that would need double
//! float32 arithmetic is then harmless. Relative errors of the float64 cores are below 1e-12, so the results are
//! within 0.51 ulp unless stated.

use super::algebra::Algebra;
use super::single::with_sign_of;

/// Evaluates `c[0] x^n + ... + c[n]` by Horner's rule with fma.
#[inline(always)]
pub fn dhorner<A: Algebra>(a: &mut A, x: A::D, coefficients: &[f64]) -> A::D {
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
    let power = a.double_of(power);
    a.dmul(p, power)
}

/// `m` in [sqrt(1/2), sqrt(2)) and a whole `e` with `x = m * 2^e`, of an x above 0 that is not denormal.
#[inline(always)]
pub fn mantissa_and_exponent<A: Algebra>(a: &mut A, x: A::D) -> (A::D, A::D) {
    // The offset keeps the shifted value non-negative.
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
    let m = a.double_of(m);
    // An integer below 2^52 becomes a float64 by way of the mantissa of 2^52.
    let two_52 = a.i64(0x4330_0000_0000_0000);
    let e = a.lor(e, two_52);
    let e = a.double_of(e);
    let bias = a.f64(4_503_599_627_370_496.0 + OFFSET as f64);
    (m, a.dsub(e, bias))
}

/// Puts log's values at 0, infinity, negatives and NaN over `r`.
#[inline(always)]
pub fn dlog_specials<A: Algebra>(a: &mut A, x: A::D, r: A::D) -> A::D {
    let (zero, inf) = (a.f64(0.0), a.f64(f64::INFINITY));
    let (neg_inf, nan) = (a.f64(f64::NEG_INFINITY), a.f64(f64::NAN));
    let positive = a.dlt(zero, x);
    let r = a.dselect(positive, r, nan);
    let infinite = a.deq(x, inf);
    let r = a.dselect(infinite, inf, r);
    let is_zero = a.deq(x, zero);
    a.dselect(is_zero, neg_inf, r)
}

/// log of a float64 that is not denormal, with the values at 0, infinity, negatives and NaN.
#[inline(always)]
fn dlog<A: Algebra>(a: &mut A, x: A::D) -> A::D {
    let (m, e) = mantissa_and_exponent(a, x);
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
    dlog_specials(a, x, r)
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
    let (nan, below) = (a.f64(f64::NAN), a.dlt(d, one));
    let r = a.dselect(below, nan, r);
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
