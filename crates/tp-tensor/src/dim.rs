//! One size of a shape: a known extent or a symbol of the capture that made it. What a symbol stands for is
//! kept by the capture scope; here is only the encoding, so that fake rules can be written over both at once.

use smallvec::SmallVec;
use std::fmt;

/// Sizes or strides of one tensor; up to four without an allocation.
pub type Dims = SmallVec<[i64; 4]>;

/// A size. Known sizes are non-negative; a symbol `s7` lives in the range below `SYMBOL_BASE`, which no legal
/// size, stride or offset reaches.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dim(i64);

const SYMBOL_BASE: i64 = i64::MIN;
const SYMBOL_LIMIT: i64 = i64::MIN + (1 << 32);

impl Dim {
    #[inline]
    pub const fn known(size: i64) -> Dim {
        Dim(size)
    }

    #[inline]
    pub const fn symbol(id: u32) -> Dim {
        Dim(SYMBOL_BASE + id as i64)
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
        match self.as_symbol() {
            Some(id) => write!(f, "s{id}"),
            None => write!(f, "{}", self.0),
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
    }
}
