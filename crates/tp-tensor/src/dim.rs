//! One size of a shape: a known extent or a symbol of the capture that made it. What a symbol stands for is
//! kept by the capture scope (`symbols`); here is only the encoding, so that fake rules can be written over both at once.

use crate::symbols;
use smallvec::SmallVec;
use std::fmt;

/// Sizes or strides of one tensor; up to four without an allocation.
pub type Dims = SmallVec<[i64; 4]>;

/// A size. Known sizes are non-negative; symbols live in a range below, which no legal size, stride or offset reaches:
/// `s7` stands for the size of an input, `u7` for a size that depends on data, and the rest for expressions over both.
/// Other integers may lie in that range. As arguments they pass `symbols::plain` on their way into a capture, and
/// `symbols::number` tells them from symbols; `is_symbol` alone is for sizes and strides that a tensor has.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dim(i64);

const SYMBOL_BASE: i64 = i64::MIN;
const SYMBOL_LIMIT: i64 = i64::MIN + (1 << 32);

const UNBACKED: u32 = 1 << 30;
const EXPRESSION: u32 = 1 << 31;

impl Dim {
    /// How many symbols of one kind there can be.
    pub const SYMBOLS: u32 = 1 << 30;

    #[inline]
    pub const fn known(size: i64) -> Dim {
        Dim(size)
    }

    #[inline]
    pub const fn symbol(id: u32) -> Dim {
        Dim(SYMBOL_BASE + id as i64)
    }

    /// The symbol of a size that depends on data.
    pub const fn unbacked(id: u32) -> Dim {
        Dim::symbol(UNBACKED | (id & (Dim::SYMBOLS - 1)))
    }

    /// The number of a size that depends on data.
    pub const fn as_unbacked(self) -> Option<u32> {
        match self.as_symbol() {
            Some(id) if id & (UNBACKED | EXPRESSION) == UNBACKED => Some(id - UNBACKED),
            _ => None,
        }
    }

    /// The name of an expression in the table of its capture.
    pub(crate) const fn expression(hash: u32) -> Dim {
        Dim::symbol(EXPRESSION | hash)
    }

    pub(crate) const fn as_expression(self) -> Option<u32> {
        match self.as_symbol() {
            Some(id) if id & EXPRESSION != 0 => Some(id - EXPRESSION),
            _ => None,
        }
    }

    #[inline]
    pub const fn from_raw(raw: i64) -> Dim {
        Dim(raw)
    }

    #[inline]
    pub const fn raw(self) -> i64 {
        self.0
    }

    #[inline]
    pub const fn as_known(self) -> Option<i64> {
        if self.0 < SYMBOL_LIMIT { None } else { Some(self.0) }
    }

    #[inline]
    pub const fn as_symbol(self) -> Option<u32> {
        if self.0 < SYMBOL_LIMIT { Some((self.0 - SYMBOL_BASE) as u32) } else { None }
    }

    #[inline]
    pub const fn is_symbol(self) -> bool {
        self.0 < SYMBOL_LIMIT
    }

    /// Sizes and strides are kept as raw integers in a header; this reads them as dims.
    #[inline]
    pub fn slice(raw: &[i64]) -> &[Dim] {
        // SAFETY: Dim is a transparent wrapper of i64.
        unsafe { std::slice::from_raw_parts(raw.as_ptr().cast(), raw.len()) }
    }
}

impl From<i64> for Dim {
    fn from(size: i64) -> Dim {
        Dim(size)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.as_symbol(), self.as_unbacked()) {
            (None, _) => write!(f, "{}", self.0),
            (_, Some(id)) => write!(f, "u{id}"),
            (Some(id), None) if self.as_expression().is_none() => write!(f, "s{id}"),
            // Which one it is stands in the table of its capture.
            (Some(_), None) => match symbols::current().and_then(|s| s.poly(*self)) {
                Some(poly) => fmt::Display::fmt(&poly, f),
                None => f.write_str("?"),
            },
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Dim;

    #[test]
    fn symbols_and_sizes_do_not_mix() {
        assert_eq!(Dim::known(0).as_symbol(), None);
        assert_eq!(Dim::known(i64::MAX).as_known(), Some(i64::MAX));
        assert_eq!(Dim::symbol(7).as_symbol(), Some(7));
        assert_eq!(Dim::symbol(u32::MAX).as_known(), None);
        assert_eq!(Dim::symbol(3).to_string(), "s3");
        assert_eq!(Dim::unbacked(3).to_string(), "u3");
        assert_eq!(Dim::unbacked(3).as_unbacked(), Some(3));
        assert_eq!((Dim::symbol(3).as_unbacked(), Dim::known(3).as_unbacked()), (None, None));
    }
}
