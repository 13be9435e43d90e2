//! `Text`: an immutable string that holds up to 22 bytes without an allocation.
//!
//! Operator, argument and alias names are nearly all shorter than that, so a parsed schema
//! costs few allocations. Nothing here knows about schemas.
//!
//! Safety: the only constructor copies a whole `&str`, and nothing mutates the bytes after it,
//! so the first `len` inline bytes are valid UTF-8.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

const INLINE: usize = 22;

/// An immutable string; short ones are stored inline.
#[derive(Clone)]
pub struct Text(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<str>),
}

impl Text {
    #[inline]
    pub fn new(text: &str) -> Text {
        if text.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            Text(Repr::Inline { len: text.len() as u8, bytes })
        } else {
            Text(Repr::Heap(text.into()))
        }
    }

    #[inline]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            // SAFETY: see the module header.
            Repr::Inline { len, bytes } => unsafe {
                std::str::from_utf8_unchecked(bytes.get_unchecked(..*len as usize))
            },
            Repr::Heap(text) => text,
        }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text::new(text)
    }
}

impl Deref for Text {
    type Target = str;
    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self
    }
}

impl PartialEq for Text {
    #[inline]
    fn eq(&self, other: &Text) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Text {}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Text) -> Ordering {
        self.as_str().cmp(other)
    }
}

/// Hashes as `str` does, so that a map keyed by `Text` can be asked with a `&str`.
impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_short_and_long_strings() {
        for text in ["", "self", "exactly_22_bytes_long_", "one_byte_more_than_that", "é—√"] {
            assert_eq!(Text::new(text).as_str(), text);
            assert_eq!(Text::new(text), Text::from(text));
        }
        assert!(matches!(Text::new("exactly_22_bytes_long_").0, Repr::Inline { len: 22, .. }));
        assert!(matches!(Text::new("one_byte_more_than_that").0, Repr::Heap(_)));
        assert_eq!(size_of::<Text>(), 24);
    }
}
