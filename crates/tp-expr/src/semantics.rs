//! What each exact primitive computes on one element: the one definition that `eval` interprets and the tile kernels
//! vectorise. Casts are in `tp_tensor::scalar`, float32 transcendentals in `expand`.

use tp_tensor::scalar::{Bool, Element};

use crate::expand::{algebra::Native, expand_wide, expand_with};
use crate::prim::Prim;

/// Arithmetic of wrapping ints, float32 and float64.
pub trait Number: Element {
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    /// The larger; NaN if either is, and +0 above -0.
    fn maximum(self, o: Self) -> Self;
    /// The smaller; NaN if either is, and -0 below +0.
    fn minimum(self, o: Self) -> Self;
}

/// float32 and float64.
pub trait Real: Number {
    fn div(self, o: Self) -> Self;
    fn fma(self, m: Self, a: Self) -> Self;
    fn sqrt(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    fn rint(self) -> Self;
    /// C `fmod`: exact, with the sign of `self`.
    fn fmod(self, o: Self) -> Self;
    /// A transcendental; `prim` is a constant where it matters, so the choice folds away. Others give NaN.
    fn transcendental(prim: Prim, x: Self, y: Self) -> Self;
}

/// Bool and ints.
pub trait Bits: Element {
    fn and(self, o: Self) -> Self;
    fn or(self, o: Self) -> Self;
    fn xor(self, o: Self) -> Self;
    fn not(self) -> Self;
}

/// Integers.
pub trait Integer: Number + Bits {
    /// Rounds towards minus infinity; `None` for a zero divisor. The minimum over -1 wraps.
    fn floordiv(self, o: Self) -> Option<Self>;
    /// Has the sign of the divisor; `None` for a zero divisor.
    fn modulo(self, o: Self) -> Option<Self>;
    /// Counts are in range; others are taken modulo the width.
    fn shl(self, count: Self) -> Self;
    fn shr(self, count: Self) -> Self;
    /// Wrapping power. A negative exponent gives the truncated reciprocal: 1 and -1 keep their value, others give 0.
    fn pow(self, exponent: Self) -> Self;
}

macro_rules! int_semantics {
    ($($t:ty, $abs:expr, $negative:expr, $overflows:expr;)*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn add(self, o: Self) -> Self { self.wrapping_add(o) }
            #[inline(always)]
            fn sub(self, o: Self) -> Self { self.wrapping_sub(o) }
            #[inline(always)]
            fn mul(self, o: Self) -> Self { self.wrapping_mul(o) }
            #[inline(always)]
            fn neg(self) -> Self { self.wrapping_neg() }
            #[inline(always)]
            fn abs(self) -> Self { ($abs)(self) }
            #[inline(always)]
            fn maximum(self, o: Self) -> Self { self.max(o) }
            #[inline(always)]
            fn minimum(self, o: Self) -> Self { self.min(o) }
        }

        impl Bits for $t {
            #[inline(always)]
            fn and(self, o: Self) -> Self { self & o }
            #[inline(always)]
            fn or(self, o: Self) -> Self { self | o }
            #[inline(always)]
            fn xor(self, o: Self) -> Self { self ^ o }
            #[inline(always)]
            fn not(self) -> Self { !self }
        }

        impl Integer for $t {
            #[inline(always)]
            fn floordiv(self, o: Self) -> Option<Self> {
                if o == 0 {
                    return None;
                }
                let (q, r) = (self.wrapping_div(o), self.wrapping_rem(o));
                Some(if r != 0 && $negative(r ^ o) { q.wrapping_sub(1) } else { q })
            }
            #[inline(always)]
            fn modulo(self, o: Self) -> Option<Self> {
                if o == 0 {
                    return None;
                }
                let r = self.wrapping_rem(o);
                Some(if r != 0 && $negative(r ^ o) { r.wrapping_add(o) } else { r })
            }
            #[inline(always)]
            fn shl(self, count: Self) -> Self { self.wrapping_shl(count as u32) }
            #[inline(always)]
            fn shr(self, count: Self) -> Self { self.wrapping_shr(count as u32) }
            #[inline(always)]
            fn pow(self, exponent: Self) -> Self {
                if $negative(exponent) {
                    return match self {
                        1 => 1,
                        // -1 to an odd power is itself, to an even one its square.
                        _ if $overflows(self) => if exponent & 1 == 1 { self } else { 1 },
                        _ => 0,
                    };
                }
                let (mut base, mut e, mut r): (Self, Self, Self) = (self, exponent, 1);
                while e != 0 {
                    if e & 1 == 1 {
                        r = r.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    e >>= 1;
                }
                r
            }
        }
    )*};
}

int_semantics! {
    u8, |x| x, |_| false, |_| false;
    i8, i8::wrapping_abs, |x| x < 0, |x| x == -1;
    i16, i16::wrapping_abs, |x| x < 0, |x| x == -1;
    i32, i32::wrapping_abs, |x| x < 0, |x| x == -1;
    i64, i64::wrapping_abs, |x| x < 0, |x| x == -1;
}

macro_rules! float_number {
    ($($t:ty, $bits:ty;)*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn add(self, o: Self) -> Self { self + o }
            #[inline(always)]
            fn sub(self, o: Self) -> Self { self - o }
            #[inline(always)]
            fn mul(self, o: Self) -> Self { self * o }
            #[inline(always)]
            fn neg(self) -> Self { -self }
            #[inline(always)]
            fn abs(self) -> Self { <$t>::abs(self) }
            // Equal operands have equal bits, or are the two zeros, whose bits combine to the right one.
            #[inline(always)]
            fn maximum(self, o: Self) -> Self {
                let equal = <$t>::from_bits(self.to_bits() & o.to_bits());
                let unordered = self + o;
                let r = if self > o { self } else { unordered };
                let r = if self < o { o } else { r };
                if self == o { equal } else { r }
            }
            #[inline(always)]
            fn minimum(self, o: Self) -> Self {
                let equal = <$t>::from_bits(self.to_bits() | o.to_bits());
                let unordered = self + o;
                let r = if self < o { self } else { unordered };
                let r = if self > o { o } else { r };
                if self == o { equal } else { r }
            }
        }
    )*};
}

float_number! { f32, u32; f64, u64; }

macro_rules! real_semantics {
    ($($t:ty, $transcendental:path;)*) => {$(
        impl Real for $t {
            #[inline(always)]
            fn div(self, o: Self) -> Self { self / o }
            #[inline(always)]
            fn fma(self, m: Self, a: Self) -> Self { self.mul_add(m, a) }
            #[inline(always)]
            fn sqrt(self) -> Self { <$t>::sqrt(self) }
            #[inline(always)]
            fn floor(self) -> Self { <$t>::floor(self) }
            #[inline(always)]
            fn ceil(self) -> Self { <$t>::ceil(self) }
            #[inline(always)]
            fn trunc(self) -> Self { <$t>::trunc(self) }
            #[inline(always)]
            fn rint(self) -> Self { self.round_ties_even() }
            #[inline(always)]
            fn fmod(self, o: Self) -> Self { self % o }
            #[inline(always)]
            fn transcendental(prim: Prim, x: Self, y: Self) -> Self { $transcendental(prim, x, y) }
        }
    )*};
}

real_semantics! { f32, transcendental_f32; f64, transcendental_f64; }

#[inline(always)]
fn transcendental_f32(prim: Prim, x: f32, y: f32) -> f32 {
    expand_with(&mut Native, prim, x, y).unwrap_or(f32::NAN)
}

unsafe extern "C" {
    // Rust's own of these are formulas that overflow for large values or cancel for negative ones.
    safe fn asinh(x: f64) -> f64;
    safe fn acosh(x: f64) -> f64;
    safe fn atanh(x: f64) -> f64;
}

/// Those written out in `expand`, else the C library's functions: within 1 ulp, the same on every ISA of one machine.
#[inline(always)]
fn transcendental_f64(prim: Prim, x: f64, y: f64) -> f64 {
    if let Some(r) = expand_wide(&mut Native, prim, x) {
        return r;
    }
    match prim {
        Prim::Exp2 => x.exp2(),
        Prim::Expm1 => x.exp_m1(),
        Prim::Log2 => x.log2(),
        Prim::Log10 => x.log10(),
        Prim::Log1p => x.ln_1p(),
        Prim::Sin => x.sin(),
        Prim::Cos => x.cos(),
        Prim::Tan => x.tan(),
        Prim::Asin => x.asin(),
        Prim::Acos => x.acos(),
        Prim::Atan => x.atan(),
        Prim::Sinh => x.sinh(),
        Prim::Cosh => x.cosh(),
        Prim::Asinh => asinh(x),
        Prim::Acosh => acosh(x),
        Prim::Atanh => atanh(x),
        Prim::Atan2 => x.atan2(y),
        Prim::Hypot => x.hypot(y),
        Prim::Pow => x.powf(y),
        _ => f64::NAN,
    }
}

impl Bits for Bool {
    #[inline(always)]
    fn and(self, o: Self) -> Self {
        Bool::new(self.get() & o.get())
    }
    #[inline(always)]
    fn or(self, o: Self) -> Self {
        Bool::new(self.get() | o.get())
    }
    #[inline(always)]
    fn xor(self, o: Self) -> Self {
        Bool::new(self.get() ^ o.get())
    }
    #[inline(always)]
    fn not(self) -> Self {
        Bool::new(!self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximum_and_minimum_propagate_nan_and_order_zeros() {
        assert!(Number::maximum(f32::NAN, 1.0).is_nan() && Number::maximum(1.0_f32, f32::NAN).is_nan());
        assert!(Number::minimum(f64::NAN, 1.0).is_nan() && Number::minimum(1.0, f64::NAN).is_nan());
        for (a, b) in [(0.0_f32, -0.0_f32), (-0.0, 0.0)] {
            assert_eq!(Number::maximum(a, b).to_bits(), 0);
            assert_eq!(Number::minimum(a, b).to_bits(), (-0.0_f32).to_bits());
        }
        assert_eq!(Number::maximum(-0.0_f32, -0.0).to_bits(), (-0.0_f32).to_bits());
        assert_eq!(Number::maximum(2.0_f32, 3.0), 3.0);
        assert_eq!(Number::minimum(f64::NEG_INFINITY, 3.0), f64::NEG_INFINITY);
    }

    #[test]
    fn integer_division_has_python_signs() {
        for (a, b, q, r) in [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, -2, -3, 0)] {
            assert_eq!((a.floordiv(b), a.modulo(b)), (Some(q), Some(r)), "{a} {b}");
        }
        assert_eq!(i64::MIN.floordiv(-1), Some(i64::MIN));
        assert_eq!(i64::MIN.modulo(-1), Some(0));
        assert_eq!((5_i32.floordiv(0), 5_i32.modulo(0)), (None, None));
        assert_eq!(200_u8.floordiv(7), Some(28));
        assert_eq!((-128_i8).modulo(127), Some(126));
    }

    #[test]
    fn integer_power_wraps_and_truncates_reciprocals() {
        assert_eq!(Integer::pow(3_i64, 4), 81);
        assert_eq!(Integer::pow(2_i8, 7), -128);
        assert_eq!(Integer::pow(2_i64, 64), 0);
        assert_eq!(Integer::pow(-1_i32, -3), -1);
        assert_eq!(Integer::pow(-1_i32, -2), 1);
        assert_eq!(Integer::pow(2_i32, -1), 0);
        assert_eq!(Integer::pow(0_i32, 0), 1);
    }
}
