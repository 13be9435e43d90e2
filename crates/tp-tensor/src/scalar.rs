//! `Scalar`, a weak Python scalar: kind, identity, conversion, text. The Rust elements and the cast rules it uses
//! are in `element`, re-exported here.

mod element;

use std::fmt;
use std::hash::{Hash, Hasher};

pub use element::{Bool, Element, bf16, cast_bits, cast_value, f16};

use crate::dtype::{Category, DType};

/// A Python scalar: weak, so it joins a tensor's dtype instead of widening it.
///
/// Equality and hash are by kind and bits: `1`, `1.0` and `True` differ, so do `0.0` and `-0.0`, and a NaN equals
/// itself. That is what guards and caches need; numeric comparison goes through [`Scalar::to`].
///
/// The tag fills a word: a shorter one leaves padding, which compilers copy in overlapping parts, and the processor waits
/// wherever it reads such parts back.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
}

impl Scalar {
    #[inline]
    pub const fn category(self) -> Category {
        match self {
            Scalar::Bool(_) => Category::Bool,
            Scalar::Int(_) => Category::Int,
            Scalar::Float(_) => Category::Float,
        }
    }

    /// The value as an element, by the cast rules of [`cast_value`].
    #[inline]
    pub fn to<T: Element>(self) -> T {
        match self {
            Scalar::Bool(v) => T::from_bool(v),
            Scalar::Int(v) => T::from_i64(v),
            Scalar::Float(v) => T::from_f64(v),
        }
    }

    /// Whether `dtype` has an element for this number, a fraction aside: an integer dtype has none outside of its range, for
    /// NaN and for infinities. Floats and bool take every number.
    #[inline]
    pub fn fits(self, dtype: DType) -> bool {
        let Some(info) = dtype.int_info() else { return true };
        match self {
            Scalar::Bool(_) => true,
            Scalar::Int(v) => info.min <= v && v <= info.max,
            Scalar::Float(v) => v.trunc() >= info.min as f64 && v.trunc() < info.max as f64 + 1.0,
        }
    }

    /// The number itself where it `fits`, else an error that names both.
    #[inline]
    pub fn checked(self, dtype: DType) -> Result<Scalar, Misfit> {
        if self.fits(dtype) { Ok(self) } else { Err(Misfit { value: self, dtype }) }
    }

    /// The bit pattern the value has as an element of `dtype`, zero-extended.
    #[inline]
    pub fn to_bits(self, dtype: DType) -> u64 {
        crate::dispatch_dtype!(dtype, T => self.to::<T>().to_bits64())
    }

    /// The element as a scalar of its kind; exact.
    #[inline]
    pub fn from_element<T: Element>(value: T) -> Scalar {
        match T::DTYPE.category() {
            Category::Bool => Scalar::Bool(value.to_bool()),
            Category::Int => Scalar::Int(value.to_i64()),
            Category::Float => Scalar::Float(value.to_f64()),
        }
    }

    /// The element of `dtype` with this bit pattern, as a scalar of its kind; exact.
    pub fn from_bits(bits: u64, dtype: DType) -> Scalar {
        crate::dispatch_dtype!(dtype, T => Scalar::from_element(T::from_bits64(bits)))
    }

    /// Kind and bits as one comparable value.
    const fn key(self) -> (u8, u64) {
        match self {
            Scalar::Bool(v) => (0, v as u64),
            Scalar::Int(v) => (1, v as u64),
            Scalar::Float(v) => (2, v.to_bits()),
        }
    }
}

/// A number that an integer dtype cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit {
    pub value: Scalar,
    pub dtype: DType,
}

impl std::error::Error for Misfit {}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Misfit { value, dtype } = self;
        write!(f, "{value} does not fit in {dtype}")?;
        match dtype.int_info() {
            Some(info) => write!(f, " ({} to {})", info.min, info.max),
            None => Ok(()),
        }
    }
}

impl PartialEq for Scalar {
    #[inline]
    fn eq(&self, other: &Scalar) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Self {
        Scalar::Bool(value)
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Self {
        Scalar::Int(value)
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Scalar::Float(value)
    }
}

/// Prints as Python's `repr` does.
impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Scalar::Bool(v) => f.write_str(if v { "True" } else { "False" }),
            Scalar::Int(v) => write!(f, "{v}"),
            Scalar::Float(v) => write_python_float(f, v),
        }
    }
}

/// Python's `repr(float)`: the shortest digits that round-trip, an exponent outside 1e-4 ..= 1e16.
fn write_python_float(f: &mut fmt::Formatter<'_>, v: f64) -> fmt::Result {
    if v.is_nan() {
        return f.write_str("nan");
    }
    if v.is_infinite() {
        return f.write_str(if v > 0.0 { "inf" } else { "-inf" });
    }
    if v == 0.0 || (1e-4..1e16).contains(&v.abs()) {
        // `Display` never writes an exponent; whole numbers lack the ".0".
        let text = format!("{v}");
        let dot = if text.contains('.') { "" } else { ".0" };
        return write!(f, "{text}{dot}");
    }
    let text = format!("{v:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    write!(f, "{mantissa}e{sign}{digits:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_identity_is_kind_and_bits() {
        let nan = Scalar::Float(f64::NAN);
        assert_eq!(nan, nan);
        assert_ne!(Scalar::Float(0.0), Scalar::Float(-0.0));
        assert_ne!(Scalar::Int(1), Scalar::Float(1.0));
        assert_ne!(Scalar::Int(1), Scalar::Bool(true));
        assert_eq!(Scalar::from_bits(0x3c00, DType::F16), Scalar::Float(1.0));
        assert_eq!(Scalar::from_bits(0xff, DType::I8), Scalar::Int(-1));
        assert_eq!(Scalar::Float(f64::NAN).to::<i16>(), 0);
        assert_eq!(Scalar::Int(-1).to::<u8>(), 255);
    }

    #[test]
    fn prints_as_python() {
        for (scalar, text) in [
            (Scalar::Bool(true), "True"),
            (Scalar::Int(-3), "-3"),
            (Scalar::Float(2.0), "2.0"),
            (Scalar::Float(-0.0), "-0.0"),
            (Scalar::Float(0.1), "0.1"),
            (Scalar::Float(1e15), "1000000000000000.0"),
            (Scalar::Float(1e16), "1e+16"),
            (Scalar::Float(1.5e300), "1.5e+300"),
            (Scalar::Float(0.0001), "0.0001"),
            (Scalar::Float(0.00001), "1e-05"),
            (Scalar::Float(5e-324), "5e-324"),
            (Scalar::Float(f64::NAN), "nan"),
            (Scalar::Float(f64::NEG_INFINITY), "-inf"),
        ] {
            assert_eq!(scalar.to_string(), text);
        }
    }
}
