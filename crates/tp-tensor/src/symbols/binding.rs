//! What the symbols are in one run: each takes its value from the first real size that shows it; ranges, later sizes
//! and checks are held against it.

use super::{Check, Poly, Range, Symbols, UNBOUNDED};
use crate::dim::{Dim, Dims};
use crate::{Tensor, TensorSpec};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// What runs are held to, apart from the table of the capture: no lock is taken while a plan runs.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    /// Ranges of the sizes of inputs, then of those that depend on data.
    declared: Vec<Range>,
    inputs: usize,
    checks: Vec<Check>,
}

impl Shapes {
    pub fn of(symbols: &Symbols) -> Shapes {
        let inner = symbols.inner.lock();
        let inputs = inner.inputs.iter().map(|i| i.bounds.declared);
        Shapes {
            declared: inputs.chain(inner.unbacked.iter().map(|u| u.declared)).collect(),
            inputs: inner.inputs.len(),
            checks: inner.checks.clone(),
        }
    }

    /// Whether something was said of sizes with `check` that runs are held to.
    pub fn has_checks(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Where a symbol's range and value stand.
    fn index(&self, id: u32) -> usize {
        match Dim::symbol(id).as_unbacked() {
            Some(u) => self.inputs + u as usize,
            None => id as usize,
        }
    }

    fn symbol(&self, index: usize) -> Dim {
        match index.checked_sub(self.inputs) {
            Some(u) => Dim::unbacked(u as u32),
            None => Dim::symbol(index as u32),
        }
    }
}

/// The symbols of one run that have a value so far.
#[derive(Clone, Debug)]
pub struct Binding {
    shapes: Arc<Shapes>,
    values: SmallVec<[Option<i64>; 4]>,
    /// Checks that were confirmed.
    confirmed: SmallVec<[bool; 4]>,
}

/// The sizes and strides of a promised tensor, some of them symbolic.
#[derive(Clone, PartialEq, Debug)]
pub struct Promise {
    sizes: Box<[Poly]>,
    strides: Box<[Poly]>,
}

impl Promise {
    /// None where every size and stride of the spec is known.
    pub fn of(symbols: &Symbols, spec: &TensorSpec) -> Option<Promise> {
        if !super::any(&spec.sizes) && !super::any(&spec.strides) {
            return None;
        }
        let polys = |raw: &[i64]| raw.iter().map(|&d| symbols.poly(Dim::from_raw(d))).collect();
        let sizes: Option<Box<[Poly]>> = polys(&spec.sizes);
        let strides: Option<Box<[Poly]>> = polys(&spec.strides);
        sizes.zip(strides).map(|(sizes, strides)| Promise { sizes, strides })
    }
}

/// How real sizes contradict what was captured.
#[derive(Clone, PartialEq, Debug)]
pub enum Misfit {
    /// A size outside of its symbol's declared range.
    Range { symbol: Dim, size: i64, declared: Range },
    /// A size that is not what the expression comes to with the symbols as they are.
    Value { expression: Poly, expected: Option<i64>, size: i64 },
    /// A statement that does not hold.
    Check { check: Box<Check>, left: i64, right: i64 },
}

impl Binding {
    pub fn new(shapes: Arc<Shapes>) -> Binding {
        let values = SmallVec::from_elem(None, shapes.declared.len());
        let confirmed = SmallVec::from_elem(false, shapes.checks.len());
        Binding { shapes, values, confirmed }
    }

    /// The value of an expression whose symbols are bound.
    pub fn eval(&self, poly: &Poly) -> Option<i64> {
        poly.eval(&|id| self.values.get(self.shapes.index(id)).copied().flatten())
    }

    /// Sizes of the inputs, which guards have looked at.
    pub fn set_inputs(&mut self, sizes: impl Iterator<Item = i64>) {
        for (value, size) in self.values.iter_mut().zip(sizes) {
            *value = Some(size);
        }
    }

    /// Meets a real size with the expression promised for it.
    pub fn size(&mut self, poly: &Poly, size: i64) -> Result<(), Misfit> {
        if let Some(expected) = self.eval(poly) {
            return match expected == size {
                true => Ok(()),
                false => Err(Misfit::Value { expression: poly.clone(), expected: Some(expected), size }),
            };
        }
        let unknown = || Misfit::Value { expression: poly.clone(), expected: None, size };
        let (index, value) = self.solve(poly, size).ok_or_else(unknown)?;
        let declared = self.shapes.declared.get(index).copied().ok_or_else(unknown)?;
        if !(declared.low..=declared.high).contains(&value.into()) {
            let symbol = self.shapes.symbol(index);
            return Err(Misfit::Range { symbol, size: value, declared });
        }
        self.values[index] = Some(value);
        self.confirm()
    }

    /// Meets a real tensor with what was promised for it. The error names the axis.
    pub fn meet(&mut self, promise: &Promise, t: &Tensor) -> Result<(), (usize, Misfit)> {
        for (axis, (poly, &size)) in promise.sizes.iter().zip(t.sizes()).enumerate() {
            self.size(poly, size).map_err(|misfit| (axis, misfit))?;
        }
        Ok(())
    }

    /// The promised spec with every symbol replaced; None while one of them has no value.
    pub fn spec(&self, promise: &Promise, spec: &TensorSpec) -> Option<TensorSpec> {
        let known = |polys: &[Poly]| polys.iter().map(|p| self.eval(p)).collect::<Option<Dims>>();
        let (sizes, strides) = (known(&promise.sizes)?, known(&promise.strides)?);
        Some(TensorSpec { sizes, strides, ..*spec })
    }

    /// The one symbol without a value, and what it must be.
    fn solve(&self, poly: &Poly, size: i64) -> Option<(usize, i64)> {
        let mut open = None;
        poly.for_each_symbol(&mut |id| {
            let bound = self.eval(&Poly::symbol(id)).is_some();
            open = if bound { open } else { open.or(Some(id)) };
        });
        let (a, b) = poly.linear(open?)?;
        let rest = size.checked_sub(b)?;
        let index = self.shapes.index(open?);
        (rest % a == 0).then_some((index, rest / a))
    }

    /// Confirms every check whose sizes have come to be known.
    fn confirm(&mut self) -> Result<(), Misfit> {
        for (i, check) in self.shapes.clone().checks.iter().enumerate() {
            if self.confirmed[i] {
                continue;
            }
            let s = &check.statement;
            let (Some(left), Some(right)) = (self.eval(&s.left), self.eval(&s.right)) else { continue };
            if !s.relation.holds(left, right) {
                return Err(Misfit::Check { check: Box::new(check.clone()), left, right });
            }
            self.confirmed[i] = true;
        }
        Ok(())
    }
}

impl Range {
    /// `u0 in [2, 10]`, `u0 >= 2`.
    pub fn of(self, symbol: Dim) -> String {
        if self.high >= UNBOUNDED {
            format!("{symbol} >= {}", self.low)
        } else {
            format!("{symbol} in [{}, {}]", self.low, self.high)
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::Range { symbol, size, declared } => {
                write!(f, "size {size}, the fake rule declared {}", declared.of(*symbol))
            }
            Misfit::Value { expression, expected: Some(expected), size } => {
                write!(f, "size {size}, where {expression} is {expected}")
            }
            Misfit::Value { expression, expected: None, size } => {
                write!(f, "size {size}, which {expression} cannot be")
            }
            Misfit::Check { check, left, right } => {
                let s = &check.statement;
                write!(f, "the check {s} does not hold: it is {left} {} {right}", s.relation.text())
            }
        }
    }
}
