//! The hot float32 transcendentals, in float32 throughout: exp, log, tanh, sigmoid, erf.
//! Coefficients are minimax fits rounded to float32; the stated bounds are held by the tests of `expand`.

use super::algebra::Algebra;

/// 1.5 * 2^23: adding it rounds a small float to an integer, which is then in the low mantissa bits.
const ROUNDING_MAGIC: f32 = 12582912.0;
const SIGN_BIT: i32 = i32::MIN;
const MIN_NORMAL: f32 = f32::MIN_POSITIVE;

/// Evaluates `c[0] x^n + ... + c[n]` by Horner's rule with fma.
#[inline(always)]
pub fn horner<A: Algebra>(a: &mut A, x: A::F, coefficients: &[f32]) -> A::F {
    let mut r = a.f32(coefficients[0]);
    for &c in &coefficients[1..] {
        let c = a.f32(c);
        r = a.fma(r, x, c);
    }
    r
}

/// Sets the sign bit of `r` where `x` has it: exact for odd functions computed on `|x|`, and keeps -0.
#[inline(always)]
pub fn with_sign_of<A: Algebra>(a: &mut A, r: A::F, x: A::F) -> A::F {
    let mask = a.i32(SIGN_BIT);
    let x_bits = a.bits(x);
    let sign = a.iand(x_bits, mask);
    let r_bits = a.bits(r);
    let signed = a.ior(r_bits, sign);
    a.float_of(signed)
}

/// `exp(x) = p * 2^n` for `|x| < 128`: returns `p` in [0.7, 1.42), and the bits of `n + ROUNDING_MAGIC`.
/// The argument is `x / SCALE` for a power of two `SCALE`, by which the coefficients are scaled exactly.
#[inline(always)]
fn exp_parts<A: Algebra, const SCALE: u32>(a: &mut A, x: A::F) -> (A::F, A::I) {
    let k = SCALE as f32;
    let (log2e, magic) = (a.f32(k * std::f32::consts::LOG2_E), a.f32(ROUNDING_MAGIC));
    let shifted = a.fma(x, log2e, magic);
    let n = a.sub(shifted, magic);
    // ln 2 in two parts, the first with trailing zeros so that n * hi is exact.
    let (hi, lo) = (a.f32(-6.931_457_5e-1 / k), a.f32(-1.428_606_8e-6 / k));
    let r = a.fma(n, hi, x);
    let r = a.fma(n, lo, r);
    let (k2, k3) = (k * k, k * k * k);
    let coefficients = [
        k3 * k3 * 1.378_059_4e-3,
        k3 * k2 * 8.373_125e-3,
        k2 * k2 * 4.166_953_6e-2,
        k3 * 1.666_647_2e-1,
        k2 * 4.999_998_5e-1,
        k,
        1.0,
    ];
    let p = horner(a, r, &coefficients);
    (p, a.bits(shifted))
}

/// `p * 2^n` for -126 <= n <= 127, from the bits of `n + ROUNDING_MAGIC`: shifted into the exponent, the magic's own
/// bits fall out.
#[inline(always)]
fn scale<A: Algebra>(a: &mut A, p: A::F, shifted: A::I) -> A::F {
    let (one, mantissa_bits) = (a.i32(0x3f80_0000), a.i32(23));
    let n = a.ishl(shifted, mantissa_bits);
    let bits = a.iadd(n, one);
    let power = a.float_of(bits);
    a.mul(p, power)
}

/// At most 1 ulp over the full range, denormal results included.
#[inline(always)]
pub fn exp<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    // Beyond these the result is infinity or 0; the comparisons let NaN through.
    let (low, high) = (a.f32(-104.0), a.f32(89.0));
    let below = a.lt(x, low);
    let x = a.select(below, low, x);
    let above = a.lt(high, x);
    let x = a.select(above, high, x);
    let (p, shifted) = exp_parts::<A, 1>(a, x);
    let magic = a.i32(ROUNDING_MAGIC.to_bits() as i32);
    let n = a.isub(shifted, magic);
    // Two steps: n itself may be out of the exponent range, its halves are not.
    let one = a.i32(1);
    let half = a.ishr(n, one);
    let rest = a.isub(n, half);
    let p = scale(a, p, half);
    scale(a, p, rest)
}

/// At most 1 ulp over the full range, denormal arguments included.
#[inline(always)]
pub fn log<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let (min_normal, scale) = (a.f32(MIN_NORMAL), a.f32(8388608.0));
    let denormal = a.lt(x, min_normal);
    let scaled = a.mul(x, scale);
    let y = a.select(denormal, scaled, x);
    let (minus_23, zero) = (a.f32(-23.0), a.f32(0.0));
    let offset = a.select(denormal, minus_23, zero);
    // y = m * 2^e with m in [2/3, 4/3); e stays shifted left by 23 and is scaled down in the fma.
    let bits = a.bits(y);
    let (two_thirds, exponent_mask) = (a.i32(0x3f2a_aaab), a.i32(0xff80_0000_u32 as i32));
    let distance = a.isub(bits, two_thirds);
    let e = a.iand(distance, exponent_mask);
    let m_bits = a.isub(bits, e);
    let m = a.float_of(m_bits);
    let (e, unshift) = (a.int_to_float(e), a.f32(1.192_092_9e-7));
    let e = a.fma(e, unshift, offset);
    let one = a.f32(1.0);
    let m = a.sub(m, one);
    let s = a.mul(m, m);
    let even = horner(a, s, &[-0.130_310_06, -0.121_483_51, -0.166_846_13, -0.249_996_2]);
    let odd = horner(a, s, &[0.140_869_14, 0.139_814_85, 0.200_120_34]);
    let r = a.fma(odd, m, even);
    let (c1, c0) = (a.f32(0.333_331_97), a.f32(-0.5));
    let r = a.fma(r, m, c1);
    let r = a.fma(r, m, c0);
    let r = a.fma(r, s, m);
    let ln2 = a.f32(std::f32::consts::LN_2);
    let r = a.fma(e, ln2, r);
    log_specials(a, x, r)
}

/// Puts log's values at 0, infinity, negatives and NaN over `r`.
#[inline(always)]
fn log_specials<A: Algebra>(a: &mut A, x: A::F, r: A::F) -> A::F {
    let (zero, inf) = (a.f32(0.0), a.f32(f32::INFINITY));
    let (neg_inf, nan) = (a.f32(f32::NEG_INFINITY), a.f32(f32::NAN));
    let positive = a.lt(zero, x);
    let r = a.select(positive, r, nan);
    let infinite = a.eq(x, inf);
    let r = a.select(infinite, inf, r);
    let is_zero = a.eq(x, zero);
    a.select(is_zero, neg_inf, r)
}

/// At most 1.5 ulp.
#[inline(always)]
pub fn tanh<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let t = a.abs(x);
    let s = a.mul(t, t);
    let p = horner(a, s, &[-0.006_045_165, 0.020_961_33, -0.053_843_264, 0.133_327_19, -0.333_333_28]);
    let p = a.mul(p, s);
    let small = a.fma(p, t, t);
    // 1 - 2 / (exp(2t) + 1); from 10 on that is 1, and the clamp keeps 2^n in range.
    let ten = a.f32(10.0);
    let above = a.lt(ten, t);
    let clamped = a.select(above, ten, t);
    let (p, shifted) = exp_parts::<A, 2>(a, clamped);
    let e = scale(a, p, shifted);
    let (one, two, split) = (a.f32(1.0), a.f32(2.0), a.f32(0.625));
    let d = a.add(e, one);
    let q = a.div(two, d);
    let big = a.sub(one, q);
    let is_small = a.lt(t, split);
    let r = a.select(is_small, small, big);
    with_sign_of(a, r, x)
}

/// At most 3 ulp, denormal results included.
#[inline(always)]
pub fn sigmoid<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let t = a.abs(x);
    let t = a.neg(t);
    let z = exp(a, t);
    let (zero, one) = (a.f32(0.0), a.f32(1.0));
    let negative = a.lt(x, zero);
    let numerator = a.select(negative, z, one);
    let denominator = a.add(one, z);
    a.div(numerator, denominator)
}

/// At most 1.5 ulp.
#[inline(always)]
pub fn erf<A: Algebra>(a: &mut A, x: A::F) -> A::F {
    let t = a.abs(x);
    let s = a.mul(t, t);
    let small = horner(
        a,
        s,
        &[-5.967_617e-4, 4.991_194e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1],
    );
    let small = a.fma(small, t, t);
    // 1 - exp(-polynomial in t); from 4 on that is 1.
    let four = a.f32(4.0);
    let above = a.lt(four, t);
    let u = a.select(above, four, t);
    let w = a.mul(u, u);
    let high = horner(a, u, &[-1.728_534_7e-5, 3.831_971_3e-4]);
    let low = horner(a, u, &[-3.883_964_4e-3, 2.425_462_2e-2]);
    let r = a.fma(high, w, low);
    let (c2, c1, c0) = (a.f32(-1.067_777_9e-1), a.f32(-6.348_467e-1), a.f32(-1.287_175_1e-1));
    let r = a.fma(r, u, c2);
    let r = a.fma(r, u, c1);
    let r = a.fma(r, u, c0);
    let minus_u = a.neg(u);
    let r = a.fma(r, u, minus_u);
    let (p, shifted) = exp_parts::<A, 1>(a, r);
    let e = scale(a, p, shifted);
    let (one, split) = (a.f32(1.0), a.f32(0.927_734_4));
    let big = a.sub(one, e);
    let is_big = a.lt(split, t);
    let r = a.select(is_big, big, small);
    // A NaN compares false and takes the first polynomial, which keeps it.
    with_sign_of(a, r, x)
}
