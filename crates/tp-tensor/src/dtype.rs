//! `DType`: the ten element types, their names and their numeric facts.
//! What lives elsewhere: the Rust element behind each dtype and the cast rules (`scalar`), promotion (`promote`).

use std::fmt;
use std::str::FromStr;

/// The three kinds that weak scalars and promotion distinguish; later kinds win.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Category {
    Bool,
    Int,
    Float,
}

/// An element type. The discriminants are dense: tables are indexed by `dtype as usize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DType {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

/// Facts of a floating-point dtype, all exactly representable in `f64`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FloatInfo {
    pub bits: u32,
    pub eps: f64,
    pub max: f64,
    pub min: f64,
    pub smallest_normal: f64,
    /// Decimal digits that survive a round trip.
    pub precision: u32,
}

/// Facts of an integer dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntInfo {
    pub bits: u32,
    pub min: i64,
    pub max: i64,
}

impl DType {
    pub const COUNT: usize = 10;
    pub const ALL: [DType; DType::COUNT] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes per element.
    #[inline]
    pub const fn itemsize(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    #[inline]
    pub const fn category(self) -> Category {
        match self {
            DType::Bool => Category::Bool,
            DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => Category::Int,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Category::Float,
        }
    }

    #[inline]
    pub const fn is_bool(self) -> bool {
        matches!(self, DType::Bool)
    }

    #[inline]
    pub const fn is_int(self) -> bool {
        matches!(self.category(), Category::Int)
    }

    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self.category(), Category::Float)
    }

    /// Signed integers and floats.
    #[inline]
    pub const fn is_signed(self) -> bool {
        !matches!(self, DType::Bool | DType::U8)
    }

    /// float16 and bfloat16: computed in float32 and rounded after each operation.
    #[inline]
    pub const fn is_low_precision(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "uint8",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
        }
    }

    /// The dtype whose discriminant is `code`.
    #[inline]
    pub const fn from_code(code: u8) -> Option<DType> {
        if (code as usize) < DType::COUNT { Some(DType::ALL[code as usize]) } else { None }
    }

    /// The `finfo` facts; `None` for bool and integers.
    pub const fn float_info(self) -> Option<FloatInfo> {
        // Powers of two are written by their bit pattern: exact, and usable in a const fn.
        const fn pow2(exponent: i64) -> f64 {
            f64::from_bits(((exponent + 1023) as u64) << 52)
        }
        let (bits, mantissa, max, min_exponent, precision) = match self {
            DType::F16 => (16, 10, 65504.0, -14, 3),
            DType::BF16 => (16, 7, f32::from_bits(0x7f7f_0000) as f64, -126, 2),
            DType::F32 => (32, 23, f32::MAX as f64, -126, 6),
            DType::F64 => (64, 52, f64::MAX, -1022, 15),
            _ => return None,
        };
        Some(FloatInfo {
            bits,
            eps: pow2(-mantissa),
            max,
            min: -max,
            smallest_normal: pow2(min_exponent),
            precision,
        })
    }

    /// The `iinfo` facts; `None` for bool and floats.
    pub const fn int_info(self) -> Option<IntInfo> {
        let (bits, min, max) = match self {
            DType::U8 => (8, 0, u8::MAX as i64),
            DType::I8 => (8, i8::MIN as i64, i8::MAX as i64),
            DType::I16 => (16, i16::MIN as i64, i16::MAX as i64),
            DType::I32 => (32, i32::MIN as i64, i32::MAX as i64),
            DType::I64 => (64, i64::MIN, i64::MAX),
            _ => return None,
        };
        Some(IntInfo { bits, min, max })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no dtype.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown dtype {0:?}; the dtypes are bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64"
)]
pub struct ParseDTypeError(pub String);

impl FromStr for DType {
    type Err = ParseDTypeError;

    /// Accepts the full names and the usual short ones (`f32`, `half`, `long`, ...).
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Ok(match s {
            "bool" => DType::Bool,
            "uint8" | "u8" => DType::U8,
            "int8" | "i8" => DType::I8,
            "int16" | "i16" | "short" => DType::I16,
            "int32" | "i32" | "int" => DType::I32,
            "int64" | "i64" | "long" => DType::I64,
            "float16" | "f16" | "half" => DType::F16,
            "bfloat16" | "bf16" => DType::BF16,
            "float32" | "f32" | "float" => DType::F32,
            "float64" | "f64" | "double" => DType::F64,
            _ => return Err(ParseDTypeError(s.to_owned())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discriminants_are_dense_and_names_round_trip() {
        for (i, d) in DType::ALL.into_iter().enumerate() {
            assert_eq!(d as usize, i);
            assert_eq!(DType::from_code(i as u8), Some(d));
            assert_eq!(d.name().parse::<DType>(), Ok(d));
            assert_eq!(d.to_string(), d.name());
        }
        assert_eq!(DType::from_code(10), None);
        assert_eq!("bf16".parse::<DType>(), Ok(DType::BF16));
        assert_eq!("f128".parse::<DType>(), Err(ParseDTypeError("f128".into())));
    }

    #[test]
    fn facts() {
        assert_eq!(DType::F32.float_info().unwrap().eps, f32::EPSILON as f64);
        assert_eq!(DType::F64.float_info().unwrap().smallest_normal, f64::MIN_POSITIVE);
        let h = DType::F16.float_info().unwrap();
        assert_eq!((h.max, h.eps, h.bits), (65504.0, 0.0009765625, 16));
        let b = DType::BF16.float_info().unwrap();
        assert_eq!((b.max, b.eps), (half::bf16::MAX.to_f64(), half::bf16::EPSILON.to_f64()));
        assert_eq!(DType::I8.int_info(), Some(IntInfo { bits: 8, min: -128, max: 127 }));
        assert_eq!(DType::Bool.int_info(), None);
        assert_eq!(DType::I64.float_info(), None);
        assert!(DType::I8.is_signed() && DType::F16.is_signed() && !DType::U8.is_signed());
    }
}
