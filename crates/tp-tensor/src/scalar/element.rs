//! The Rust element behind each dtype, the cast rules, and the macros that write dtype-generic code once.
//! Every executor takes its casts from here; `cast_value` is the definition.

use std::fmt;

pub use half::{bf16, f16};

use crate::dtype::{Category, DType};

/// A stored bool: one byte, any nonzero value is true, so foreign buffers need no validation.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl Bool {
    pub const FALSE: Bool = Bool(0);
    pub const TRUE: Bool = Bool(1);

    #[inline(always)]
    pub const fn new(value: bool) -> Bool {
        Bool(value as u8)
    }

    #[inline(always)]
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl PartialEq for Bool {
    #[inline(always)]
    fn eq(&self, other: &Bool) -> bool {
        self.get() == other.get()
    }
}

impl PartialOrd for Bool {
    #[inline(always)]
    fn partial_cmp(&self, other: &Bool) -> Option<std::cmp::Ordering> {
        self.get().partial_cmp(&other.get())
    }
}

/// A stored element. The conversions follow the cast rules: float to int truncates, saturates and maps NaN to 0;
/// int to int wraps; anything to bool is `!= 0`; to a float rounds to nearest even, and float16/bfloat16 are
/// reached through float32.
pub trait Element: Copy + PartialEq + PartialOrd + fmt::Debug + Default + Send + Sync + 'static {
    const DTYPE: DType;
    const ZERO: Self;
    const ONE: Self;

    fn to_bool(self) -> bool;
    fn to_i64(self) -> i64;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn from_bool(value: bool) -> Self;
    fn from_i64(value: i64) -> Self;
    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
    /// The bit pattern, zero-extended.
    fn to_bits64(self) -> u64;
    /// Keeps the low `itemsize` bytes.
    fn from_bits64(bits: u64) -> Self;
}

impl Element for Bool {
    const DTYPE: DType = DType::Bool;
    const ZERO: Self = Bool::FALSE;
    const ONE: Self = Bool::TRUE;

    #[inline(always)]
    fn to_bool(self) -> bool {
        self.get()
    }
    #[inline(always)]
    fn to_i64(self) -> i64 {
        self.get() as i64
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.get() as u8 as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self.get() as u8 as f64
    }
    #[inline(always)]
    fn from_bool(value: bool) -> Self {
        Bool::new(value)
    }
    #[inline(always)]
    fn from_i64(value: i64) -> Self {
        Bool::new(value != 0)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Bool::new(value != 0.0)
    }
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        Bool::new(value != 0.0)
    }
    #[inline(always)]
    fn to_bits64(self) -> u64 {
        self.get() as u64
    }
    #[inline(always)]
    fn from_bits64(bits: u64) -> Self {
        Bool::new(bits as u8 != 0)
    }
}

macro_rules! primitive_element {
    ($($t:ty, $bits:ty, $dtype:ident, $zero:expr, $one:expr, $to:expr, $from:expr;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            const ZERO: Self = $zero;
            const ONE: Self = $one;

            #[inline(always)]
            fn to_bool(self) -> bool {
                self != $zero
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_bool(value: bool) -> Self {
                if value { $one } else { $zero }
            }
            #[inline(always)]
            fn from_i64(value: i64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                value as $t
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn to_bits64(self) -> u64 {
                ($to)(self) as u64
            }
            #[inline(always)]
            fn from_bits64(bits: u64) -> Self {
                ($from)(bits as $bits)
            }
        }
    )*};
}

primitive_element! {
    u8, u8, U8, 0, 1, |x| x, |b| b;
    i8, u8, I8, 0, 1, |x| x as u8, |b| b as i8;
    i16, u16, I16, 0, 1, |x| x as u16, |b| b as i16;
    i32, u32, I32, 0, 1, |x| x as u32, |b| b as i32;
    i64, u64, I64, 0, 1, |x| x as u64, |b| b as i64;
    f32, u32, F32, 0.0, 1.0, f32::to_bits, f32::from_bits;
    f64, u64, F64, 0.0, 1.0, f64::to_bits, f64::from_bits;
}

macro_rules! half_element {
    ($($t:ty, $dtype:ident;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            const ZERO: Self = <$t>::ZERO;
            const ONE: Self = <$t>::ONE;

            #[inline(always)]
            fn to_bool(self) -> bool {
                self.to_bits() << 1 != 0
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                <$t>::to_f32(self) as i64
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                <$t>::to_f32(self)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                <$t>::to_f32(self) as f64
            }
            #[inline(always)]
            fn from_bool(value: bool) -> Self {
                if value { <$t>::ONE } else { <$t>::ZERO }
            }
            #[inline(always)]
            fn from_i64(value: i64) -> Self {
                <$t>::from_f32(value as f32)
            }
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                <$t>::from_f32(value)
            }
            // The one rounding path every executor can follow: float64 -> float32 -> 16 bits.
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                <$t>::from_f32(value as f32)
            }
            #[inline(always)]
            fn to_bits64(self) -> u64 {
                self.to_bits() as u64
            }
            #[inline(always)]
            fn from_bits64(bits: u64) -> Self {
                <$t>::from_bits(bits as u16)
            }
        }
    )*};
}

half_element! { f16, F16; bf16, BF16; }

/// Casts one element: the definition that every executor's cast is held to.
#[inline(always)]
pub fn cast_value<S: Element, D: Element>(value: S) -> D {
    match (S::DTYPE.category(), D::DTYPE.category()) {
        (_, Category::Bool) => D::from_bool(value.to_bool()),
        (Category::Bool | Category::Int, _) => D::from_i64(value.to_i64()),
        (Category::Float, _) if matches!(S::DTYPE, DType::F64) => D::from_f64(value.to_f64()),
        (Category::Float, _) => D::from_f32(value.to_f32()),
    }
}

/// Casts a bit pattern of dtype `from` to the bit pattern of dtype `to`, by the rules of [`cast_value`].
pub fn cast_bits(bits: u64, from: DType, to: DType) -> u64 {
    crate::dispatch_dtype!(from, S => crate::dispatch_dtype!(to, D => {
        cast_value::<S, D>(S::from_bits64(bits)).to_bits64()
    }))
}

/// Runs `body` with `T` bound to the element type of a dtype: dtype-generic code written once.
///
/// `dispatch_dtype!(dtype, T => body)` covers all ten; `dispatch_int!`, `dispatch_float!` and `dispatch_number!`
/// (ints and floats) take `else => other` for the dtypes they leave out.
#[macro_export]
macro_rules! dispatch_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::dispatch_number!($dtype, $T => $body, else => {
            type $T = $crate::scalar::Bool;
            $body
        })
    };
}

#[macro_export]
macro_rules! dispatch_number {
    ($dtype:expr, $T:ident => $body:expr, else => $other:expr) => {
        $crate::dispatch_int!($dtype, $T => $body, else => {
            $crate::dispatch_float!($dtype, $T => $body, else => $other)
        })
    };
}

#[macro_export]
macro_rules! dispatch_int {
    ($dtype:expr, $T:ident => $body:expr, else => $other:expr) => {
        match $dtype {
            $crate::dtype::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::dtype::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::dtype::DType::I16 => {
                type $T = i16;
                $body
            }
            $crate::dtype::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::dtype::DType::I64 => {
                type $T = i64;
                $body
            }
            _ => $other,
        }
    };
}

#[macro_export]
macro_rules! dispatch_float {
    ($dtype:expr, $T:ident => $body:expr, else => $other:expr) => {
        match $dtype {
            $crate::dtype::DType::F16 => {
                type $T = $crate::scalar::f16;
                $body
            }
            $crate::dtype::DType::BF16 => {
                type $T = $crate::scalar::bf16;
                $body
            }
            $crate::dtype::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::dtype::DType::F64 => {
                type $T = f64;
                $body
            }
            _ => $other,
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::Scalar;

    #[test]
    fn float_to_int_truncates_saturates_and_maps_nan_to_zero() {
        assert_eq!(cast_value::<f32, i8>(300.0), 127);
        assert_eq!(cast_value::<f32, i8>(-300.0), -128);
        assert_eq!(cast_value::<f32, u8>(-1.5), 0);
        assert_eq!(cast_value::<f64, i32>(-1.9), -1);
        assert_eq!(cast_value::<f32, i64>(f32::NAN), 0);
        assert_eq!(cast_value::<f64, i64>(f64::INFINITY), i64::MAX);
        assert_eq!(cast_value::<f16, u8>(f16::INFINITY), 255);
    }

    #[test]
    fn ints_wrap_and_bools_test_nonzero() {
        assert_eq!(cast_value::<i32, u8>(-1), 255);
        assert_eq!(cast_value::<i64, i8>(128), -128);
        assert_eq!(cast_value::<u8, i8>(200), -56);
        assert!(cast_value::<f32, Bool>(f32::NAN).get());
        assert!(!cast_value::<f16, Bool>(f16::NEG_ZERO).get());
        assert!(cast_value::<f32, Bool>(1e-45).get());
        assert_eq!(cast_value::<Bool, f32>(Bool(7)), 1.0);
        assert_eq!(cast_value::<Bool, i8>(Bool(128)), 1);
    }

    #[test]
    fn to_float_rounds_to_nearest_even_once_or_through_float32() {
        assert_eq!(cast_value::<i64, f32>((1 << 24) + 1), 16777216.0);
        assert_eq!(cast_value::<i64, f32>(i64::MAX), 9.223372e18);
        assert_eq!(cast_value::<f64, f32>(1.0 + 2f64.powi(-24)), 1.0);
        assert_eq!(cast_value::<i32, f16>(70000), f16::INFINITY);
        // Just above a float16 tie: float32 rounds onto the tie, which then goes to even.
        assert_eq!(cast_value::<f64, f16>(1.0 + 2f64.powi(-11) + 2f64.powi(-40)), f16::ONE);
        assert_eq!(cast_value::<f64, bf16>(1.0 + 3.0 * 2f64.powi(-8)).to_f32(), 1.015625);
    }

    #[test]
    fn cast_bits_agrees_with_cast_value_on_every_pair() {
        for from in DType::ALL {
            for to in DType::ALL {
                let three = Scalar::Int(3).to_bits(from);
                let want = if from.is_bool() || to.is_bool() { 1 } else { 3 };
                assert_eq!(cast_bits(three, from, to), Scalar::Int(want).to_bits(to), "{from} {to}");
            }
        }
    }

    #[test]
    fn dispatch_macros_bind_the_element_type() {
        for dtype in DType::ALL {
            let size = dispatch_dtype!(dtype, T => size_of::<T>());
            assert_eq!(size, dtype.itemsize());
            assert_eq!(dispatch_int!(dtype, T => T::DTYPE.is_int(), else => false), dtype.is_int());
            assert_eq!(dispatch_float!(dtype, T => T::DTYPE.is_float(), else => false), dtype.is_float());
        }
    }
}
