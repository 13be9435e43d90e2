//! Reading expressions over symbols: numbers, `u0`, `s0`, `+ - * //` with their usual binding, and brackets. What an
//! expression prints, this reads.

use super::poly::{Poly, Range};
use crate::dim::Dim;

/// Brackets may be nested this deep.
const MAX_DEPTH: usize = 32;

/// The expression at the start of `text` and how much of it was read; None where there is none.
pub fn expression(text: &str, range: &dyn Fn(&Poly) -> Range) -> Option<(Poly, usize)> {
    let mut reader = Reader { text, at: 0, range };
    let poly = reader.sum(0)?;
    Some((poly, reader.at))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    range: &'a dyn Fn(&Poly) -> Range,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Takes a token and the blanks before it.
    fn take(&mut self, token: &str) -> bool {
        let blank = self.rest().len() - self.rest().trim_start_matches(' ').len();
        let found = self.rest()[blank..].starts_with(token);
        if found {
            self.at += blank + token.len();
        }
        found
    }

    fn sum(&mut self, depth: usize) -> Option<Poly> {
        let mut out = if self.take("-") {
            self.product(depth)?.times(&Poly::constant(-1))?
        } else {
            self.product(depth)?
        };
        loop {
            if self.take("+") {
                out = out.plus(&self.product(depth)?)?;
            } else if self.take("-") {
                out = out.minus(&self.product(depth)?)?;
            } else {
                return Some(out);
            }
        }
    }

    fn product(&mut self, depth: usize) -> Option<Poly> {
        let mut out = self.factor(depth)?;
        loop {
            if self.take("*") {
                out = out.times(&self.factor(depth)?)?;
            } else if self.take("//") {
                let by = self.factor(depth)?.as_constant().filter(|v| *v != 0)?;
                out = out.floor(by, self.range)?;
            } else {
                return Some(out);
            }
        }
    }

    fn factor(&mut self, depth: usize) -> Option<Poly> {
        if self.take("(") {
            if depth == MAX_DEPTH {
                return None;
            }
            let inner = self.sum(depth + 1)?;
            return self.take(")").then_some(inner);
        }
        for (letter, symbol) in [("u", Dim::unbacked as fn(u32) -> Dim), ("s", Dim::symbol)] {
            if self.take(letter) {
                let id = self.digits().and_then(|d| d.parse().ok()).filter(|id| *id < Dim::SYMBOLS)?;
                return symbol(id).as_symbol().map(Poly::symbol);
            }
        }
        self.take("");
        let number = self.digits()?.parse().ok()?;
        Some(Poly::constant(number))
    }

    fn digits(&mut self) -> Option<String> {
        let rest = self.rest().trim_start_matches(' ');
        let start = self.text.len() - rest.len();
        let n = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = (n > 0).then(|| rest[..n].to_string())?;
        self.at = start + n;
        Some(digits)
    }
}
