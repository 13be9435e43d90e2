//! Plain numbers among arguments that may be symbolic: kept apart from symbols, which are encoded as integers too.

use super::{Poly, current};
use crate::dim::Dim;

/// A number that no symbol is meant by, as it stands among arguments while a table is in force: those that would be taken
/// for symbols are names of themselves there, and `number` gives them back. Without a table nothing is taken for a symbol.
#[inline]
pub fn plain(v: i64) -> i64 {
    if Dim::from_raw(v).is_symbol() { named(v) } else { v }
}

#[cold]
fn named(v: i64) -> i64 {
    current().map_or(v, |table| table.intern(&Poly::constant(v)))
}

/// The number that a raw argument is; None where it is symbolic in the table in force.
#[inline]
pub fn number(raw: i64) -> Option<i64> {
    if Dim::from_raw(raw).is_symbol() { looked_up(raw) } else { Some(raw) }
}

#[cold]
fn looked_up(raw: i64) -> Option<i64> {
    match current() {
        Some(table) => table.poly(Dim::from_raw(raw))?.as_constant(),
        None => Some(raw),
    }
}

/// Whether any of these raw arguments is symbolic in the table in force. As `any`, which is for sizes and strides that a
/// tensor has: they are symbols whether or not their table is in force, for no number is such a size.
#[inline]
pub fn given(raw: &[i64]) -> bool {
    raw.iter().any(|&v| number(v).is_none())
}

/// The numbers of raw arguments as messages show them: symbols by name, others as they are.
pub(crate) fn shown(raw: &[i64]) -> Vec<String> {
    raw.iter().map(|&v| number(v).map_or_else(|| Dim::from_raw(v).to_string(), |v| v.to_string())).collect()
}

/// `shown` as a list.
pub(crate) fn listed(raw: &[i64]) -> String {
    format!("[{}]", shown(raw).join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::{self, Symbols};

    #[test]
    fn integers_that_look_like_symbols_are_told_from_them() {
        let extremes =
            [i64::MIN, i64::MIN + 1, i64::MIN + (1 << 30), i64::MIN + (1 << 31), i64::MIN + (1 << 32)];
        for v in extremes {
            assert_eq!((plain(v), number(v), given(&[v])), (v, Some(v), false));
            assert_eq!(listed(&[2, v]), format!("[2, {v}]"));
        }
        let table = Symbols::new();
        let _table = symbols::enter(table.clone());
        let size = table.declare(0, None);
        assert_eq!(size.raw(), i64::MIN + (1 << 30));
        for v in extremes {
            let inside = plain(v);
            assert_eq!((number(inside), given(&[inside])), (Some(v), false));
            assert_ne!(inside, size.raw());
            assert_eq!(plain(v), inside);
            assert_eq!(listed(&[2, inside]), format!("[2, {v}]"));
        }
        assert_eq!((number(size.raw()), given(&[3, size.raw()])), (None, true));
        assert_eq!(listed(&[size.raw()]), "[u0]");
        assert_eq!(plain(7), 7);
    }
}
