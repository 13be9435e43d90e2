//! Sizes of inputs as symbols. Each has the size that it was captured with: what ranges and checks leave open is decided
//! by that, and becomes a guard that every run is held to before it starts.

use super::{Bounds, Inner, Poly, Range, Relation, Statement, Symbols, UNBOUNDED, current};
use crate::dim::Dim;
use std::sync::{Arc, OnceLock};

/// Where the user's code is, as file and line.
type Locate = fn() -> Option<(Arc<str>, u32)>;

static LOCATE: OnceLock<Locate> = OnceLock::new();

/// Sets how guards find the user's line. The first caller decides.
pub fn located_by(locate: Locate) {
    let _ = LOCATE.set(locate);
}

/// The size of an input as a symbol.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct InputSize {
    pub(crate) bounds: Bounds,
    /// What it was in the capture.
    pub hint: i64,
}

impl InputSize {
    /// The sizes that it may have by its declaration.
    pub fn declared(&self) -> Range {
        self.bounds.declared
    }

    /// The sizes that it may have by the guards too.
    pub fn known(&self) -> Range {
        self.bounds.known
    }
}

/// A statement about sizes of inputs that holds in the capture and that later branches rely on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeGuard {
    pub statement: Statement,
    /// File and line that needed it.
    pub at: Option<(Arc<str>, u32)>,
}

/// The number that a raw size is: a symbol of inputs is settled, which runs are held to. None where a run alone knows.
#[inline]
pub fn settled(raw: i64) -> Option<i64> {
    Dim::from_raw(raw).as_known().or_else(|| settled_symbol(raw))
}

#[cold]
fn settled_symbol(raw: i64) -> Option<i64> {
    let table = current()?;
    table.settle(&table.poly(Dim::from_raw(raw))?)
}

impl Symbols {
    /// The size of an input, between `low` and `high`, that is `hint` in the capture.
    pub fn declare_input(&self, low: i64, high: Option<i64>, hint: i64) -> Dim {
        let declared = Range::new(low.into(), high.map_or(UNBOUNDED, i128::from));
        let mut inner = self.inner.lock();
        inner.inputs.push(InputSize { bounds: Bounds { declared, known: declared }, hint });
        Dim::symbol(inner.inputs.len() as u32 - 1)
    }

    /// The sizes of inputs, in order of their numbers.
    pub fn inputs(&self) -> Vec<InputSize> {
        self.inner.lock().inputs.clone()
    }

    /// What runs are held to besides ranges.
    pub fn guards(&self) -> Vec<SizeGuard> {
        self.inner.lock().guards.clone()
    }

    /// Takes a statement to hold from here on; who runs the graph looks before it starts.
    pub fn guard(&self, guard: SizeGuard) {
        let mut inner = self.inner.lock();
        inner.assume(&guard.statement);
        inner.guards.push(guard);
    }

    /// The capture is over: what is not known by now is left open.
    pub fn close(&self) {
        self.inner.lock().closed = true;
    }

    /// Notes that something was asked of a symbol which only a run could answer.
    pub fn give_up(&self) {
        let mut inner = self.inner.lock();
        inner.gave_up |= !inner.closed;
    }

    /// Whether that happened, whatever became of it.
    pub fn has_given_up(&self) -> bool {
        self.inner.lock().gave_up
    }

    /// By the sizes of the capture, where they decide; a guard from then on.
    pub(super) fn decide_by_inputs(&self, s: &Statement) -> Option<bool> {
        let truth = self.inner.lock().by_hints(s)?;
        let relation = if truth { s.relation } else { s.relation.negated() };
        let at = LOCATE.get().and_then(|locate| locate());
        let (left, right) = (s.left.clone(), s.right.clone());
        // As people write it, the number last.
        let statement = match left.as_constant() {
            Some(_) => Statement { left: right, relation: relation.mirrored(), right: left },
            None => Statement { left, relation, right },
        };
        self.guard(SizeGuard { statement, at });
        Some(truth)
    }

    /// The number, where it is known or the sizes of the capture say; those are what they are from then on.
    pub fn settle(&self, poly: &Poly) -> Option<i64> {
        let range = self.range(poly);
        if range.low == range.high {
            return i64::try_from(range.low).ok();
        }
        let value = self.inner.lock().hint(poly)?;
        let is = Statement { left: poly.clone(), relation: Relation::Eq, right: Poly::constant(value) };
        (self.decide(&is)?).then_some(value)
    }
}

impl Inner {
    pub(super) fn bounds(&self, id: u32) -> Option<&Bounds> {
        match Dim::symbol(id).as_unbacked() {
            Some(u) => self.unbacked.get(u as usize),
            None => self.inputs.get(id as usize).map(|i| &i.bounds),
        }
    }

    pub(super) fn bounds_mut(&mut self, id: u32) -> Option<&mut Bounds> {
        match Dim::symbol(id).as_unbacked() {
            Some(u) => self.unbacked.get_mut(u as usize),
            None => self.inputs.get_mut(id as usize).map(|i| &mut i.bounds),
        }
    }

    fn hint(&self, poly: &Poly) -> Option<i64> {
        poly.eval(&|id| self.inputs.get(id as usize).map(|i| i.hint))
    }

    fn by_hints(&self, s: &Statement) -> Option<bool> {
        if self.closed || self.inputs.is_empty() {
            return None;
        }
        Some(s.relation.holds(self.hint(&s.left)?, self.hint(&s.right)?))
    }
}
