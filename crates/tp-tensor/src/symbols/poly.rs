//! Expressions over symbolic sizes in normal form: sums of products with integer coefficients, and floors of such
//! sums by a number. Equal expressions are equal values, whichever way they were written.

use crate::dim::Dim;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// Sums have this many products at most, and products this many factors: enough for shapes, and no text of a graph
/// can ask for more than a moment.
const MAX_TERMS: usize = 256;
const MAX_FACTORS: usize = 16;

/// What a product is made of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Atom {
    /// A symbol, by the number that `Dim` gives it.
    Symbol(u32),
    /// The sum divided by the number, rounded down; the number is at least 2.
    Floor(Arc<(Poly, i64)>),
}

/// A sum: products in order, each with its coefficient, none of them 0. The constant has the empty product.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Poly {
    terms: Vec<(Vec<Atom>, i64)>,
}

/// An inclusive interval; its ends stand for "no bound" from `UNBOUNDED` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub low: i128,
    pub high: i128,
}

/// Beyond every size and every product of sizes that is calculated with here.
pub const UNBOUNDED: i128 = 1 << 100;

impl Range {
    pub fn new(low: i128, high: i128) -> Range {
        Range { low: low.clamp(-UNBOUNDED, UNBOUNDED), high: high.clamp(-UNBOUNDED, UNBOUNDED) }
    }

    fn plus(self, other: Range) -> Range {
        let open = |a: i128, b: i128, end: i128| if a == end || b == end { end } else { a + b };
        Range::new(open(self.low, other.low, -UNBOUNDED), open(self.high, other.high, UNBOUNDED))
    }

    fn times(self, other: Range) -> Range {
        // Bounds may be as large as UNBOUNDED, whose square leaves 128 bits.
        let product = |a: i128, b: i128| a.saturating_mul(b).clamp(-UNBOUNDED, UNBOUNDED);
        let all = [
            product(self.low, other.low),
            product(self.low, other.high),
            product(self.high, other.low),
            product(self.high, other.high),
        ];
        Range { low: all.into_iter().min().unwrap_or(0), high: all.into_iter().max().unwrap_or(0) }
    }

    fn floor(self, by: i64) -> Range {
        let end = |v: i128| if v.abs() == UNBOUNDED { v } else { v.div_euclid(by.into()) };
        Range { low: end(self.low), high: end(self.high) }
    }
}

impl Poly {
    pub fn constant(v: i64) -> Poly {
        Poly { terms: if v == 0 { Vec::new() } else { vec![(Vec::new(), v)] } }
    }

    pub fn symbol(id: u32) -> Poly {
        Poly { terms: vec![(vec![Atom::Symbol(id)], 1)] }
    }

    /// The number, if it is one.
    pub fn as_constant(&self) -> Option<i64> {
        match self.terms.as_slice() {
            [] => Some(0),
            [(product, v)] if product.is_empty() => Some(*v),
            _ => None,
        }
    }

    /// The symbol, if it is one.
    pub fn as_symbol(&self) -> Option<u32> {
        match self.terms.as_slice() {
            [(product, 1)] => match product.as_slice() {
                [Atom::Symbol(id)] => Some(*id),
                _ => None,
            },
            _ => None,
        }
    }

    /// None where a coefficient leaves 64 bits or the sum is too long, as for all arithmetic here.
    pub fn plus(&self, other: &Poly) -> Option<Poly> {
        let mut terms = Vec::with_capacity(self.terms.len() + other.terms.len());
        let (mut a, mut b) = (self.terms.iter().peekable(), other.terms.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            match x.0.cmp(&y.0) {
                Ordering::Less => terms.extend(a.next().cloned()),
                Ordering::Greater => terms.extend(b.next().cloned()),
                Ordering::Equal => {
                    let sum = x.1.checked_add(y.1)?;
                    if sum != 0 {
                        terms.push((x.0.clone(), sum));
                    }
                    a.next();
                    b.next();
                }
            }
        }
        terms.extend(a.cloned());
        terms.extend(b.cloned());
        (terms.len() <= MAX_TERMS).then_some(Poly { terms })
    }

    pub fn minus(&self, other: &Poly) -> Option<Poly> {
        self.plus(&other.times(&Poly::constant(-1))?)
    }

    pub fn times(&self, other: &Poly) -> Option<Poly> {
        let mut out = Poly::default();
        for (x, a) in &self.terms {
            for (y, b) in &other.terms {
                let mut product: Vec<Atom> = x.iter().chain(y).cloned().collect();
                if product.len() > MAX_FACTORS {
                    return None;
                }
                product.sort();
                out = out.plus(&Poly { terms: vec![(product, a.checked_mul(*b)?)] })?;
            }
        }
        Some(out)
    }

    /// Divided by a number other than 0 and rounded down; `range` gives bounds of an expression.
    pub fn floor(&self, by: i64, range: impl Fn(&Poly) -> Range) -> Option<Poly> {
        if by < 0 {
            return self.times(&Poly::constant(-1))?.floor(by.checked_neg()?, range);
        }
        let part = |f: fn(i64, i64) -> i64| Poly {
            terms: self.terms.iter().map(|(p, v)| (p.clone(), f(*v, by))).filter(|(_, v)| *v != 0).collect(),
        };
        let (whole, rest) = (part(i64::div_euclid), part(i64::rem_euclid));
        let left = range(&rest);
        if left.low >= 0 && left.high < by.into() {
            return Some(whole);
        }
        whole.plus(&Poly { terms: vec![(vec![Atom::Floor(Arc::new((rest, by)))], 1)] })
    }

    /// Divided by one product with its factor, where nothing is left over.
    pub fn exactly_by(&self, by: &Poly) -> Option<Poly> {
        let [(divisor, factor)] = by.terms.as_slice() else { return None };
        let mut terms = Vec::with_capacity(self.terms.len());
        for (product, v) in &self.terms {
            let mut left = product.clone();
            for atom in divisor {
                left.remove(left.iter().position(|a| a == atom)?);
            }
            if v.checked_rem(*factor)? != 0 {
                return None;
            }
            terms.push((left, v.checked_div(*factor)?));
        }
        terms.sort();
        Some(Poly { terms })
    }

    /// The value where every symbol has one.
    pub fn eval(&self, value: &dyn Fn(u32) -> Option<i64>) -> Option<i64> {
        let mut sum = 0i64;
        for (product, factor) in &self.terms {
            let mut v = *factor;
            for atom in product {
                let by = match atom {
                    Atom::Symbol(id) => value(*id)?,
                    Atom::Floor(inner) => inner.0.eval(value)?.div_euclid(inner.1),
                };
                v = v.checked_mul(by)?;
            }
            sum = sum.checked_add(v)?;
        }
        Some(sum)
    }

    /// Bounds, given those of the symbols.
    pub fn range(&self, of: &dyn Fn(u32) -> Range) -> Range {
        let mut sum = Range { low: 0, high: 0 };
        for (product, factor) in &self.terms {
            let mut r = Range::new((*factor).into(), (*factor).into());
            for atom in product {
                r = r.times(match atom {
                    Atom::Symbol(id) => of(*id),
                    Atom::Floor(inner) => inner.0.range(of).floor(inner.1),
                });
            }
            sum = sum.plus(r);
        }
        sum
    }

    /// Every symbol in it, with repetitions.
    pub fn for_each_symbol(&self, f: &mut dyn FnMut(u32)) {
        for atom in self.terms.iter().flat_map(|(product, _)| product) {
            match atom {
                Atom::Symbol(id) => f(*id),
                Atom::Floor(inner) => inner.0.for_each_symbol(f),
            }
        }
    }

    /// `(a, b)` where this is `a * symbol + b` with numbers `a` and `b`.
    pub fn linear(&self, symbol: u32) -> Option<(i64, i64)> {
        let (mut a, mut b) = (0, 0);
        for (product, factor) in &self.terms {
            match product.as_slice() {
                [] => b = *factor,
                [Atom::Symbol(id)] if *id == symbol => a = *factor,
                _ => return None,
            }
        }
        (a != 0).then_some((a, b))
    }

    fn is_sum(&self) -> bool {
        self.terms.len() > 1 || self.terms.iter().any(|(_, v)| *v < 0)
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Symbol(id) => fmt::Display::fmt(&Dim::symbol(*id), f),
            Atom::Floor(inner) if inner.0.is_sum() => write!(f, "({})//{}", inner.0, inner.1),
            Atom::Floor(inner) => write!(f, "{}//{}", inner.0, inner.1),
        }
    }
}

/// `4*u0*u1 + u0 - 2`: products in order, the number last.
impl fmt::Display for Poly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(v) = self.as_constant() {
            return write!(f, "{v}");
        }
        let (numbers, products): (Vec<_>, Vec<_>) = self.terms.iter().partition(|(p, _)| p.is_empty());
        for (i, (product, factor)) in products.into_iter().chain(numbers).enumerate() {
            match (i, *factor < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let size = factor.unsigned_abs();
            let mut first = size == 1 && !product.is_empty();
            if !first {
                write!(f, "{size}")?;
            }
            for atom in product {
                f.write_str(if first { "" } else { "*" })?;
                // A floor is no factor without its brackets: `2*u0//3` would be read from the left.
                match atom {
                    Atom::Floor(_) if product.len() > 1 || size != 1 => write!(f, "({atom})")?,
                    _ => fmt::Display::fmt(atom, f)?,
                }
                first = false;
            }
        }
        Ok(())
    }
}

/// Where names of symbols come from.
type Names<'a> = &'a dyn Fn(u32) -> String;

impl Atom {
    fn named(&self, name: Names<'_>) -> String {
        match self {
            Atom::Symbol(id) => name(*id),
            Atom::Floor(inner) if inner.0.is_sum() => format!("({})//{}", inner.0.named(name), inner.1),
            Atom::Floor(inner) => format!("{}//{}", inner.0.named(name), inner.1),
        }
    }
}

impl Poly {
    /// As text over other names of the symbols. A number less the multiples in it is a remainder, `n % 2`.
    pub fn named(&self, name: Names<'_>) -> String {
        if let Some((of, by, rest)) = self.remainder() {
            let of = if of.is_sum() { format!("({})", of.named(name)) } else { of.named(name) };
            return match rest.as_constant() {
                Some(0) => format!("{of} % {by}"),
                _ => format!("{of} % {by} + {}", rest.named(name)),
            };
        }
        let (numbers, products): (Vec<_>, Vec<_>) = self.terms.iter().partition(|(p, _)| p.is_empty());
        let mut out = String::new();
        for (product, factor) in products.into_iter().chain(numbers) {
            out.push_str(match (out.is_empty(), *factor < 0) {
                (true, true) => "-",
                (true, false) => "",
                (false, true) => " - ",
                (false, false) => " + ",
            });
            let size = factor.unsigned_abs();
            let bare = product.len() == 1 && size == 1;
            let atom = |a: &Atom| match a {
                Atom::Floor(_) if !bare => format!("({})", a.named(name)),
                _ => a.named(name),
            };
            let number = (size != 1 || product.is_empty()).then(|| size.to_string());
            out.push_str(&number.into_iter().chain(product.iter().map(atom)).collect::<Vec<_>>().join("*"));
        }
        if out.is_empty() { "0".to_string() } else { out }
    }

    /// `(p, n, rest)` where this is `p % n + rest`.
    fn remainder(&self) -> Option<(Poly, i64, Poly)> {
        let floor = |(product, factor): &(Vec<Atom>, i64)| match product.as_slice() {
            [Atom::Floor(inner)] if *factor == -inner.1 => Some(inner.clone()),
            _ => None,
        };
        let inner = self.terms.iter().find_map(floor)?;
        let whole = Poly { terms: vec![(vec![Atom::Floor(inner.clone())], inner.1)] };
        let rest = self.minus(&inner.0)?.plus(&whole)?;
        (rest.terms.len() + inner.0.terms.len() < self.terms.len()).then(|| (inner.0.clone(), inner.1, rest))
    }
}
