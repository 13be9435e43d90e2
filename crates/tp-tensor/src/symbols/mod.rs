//! What symbolic sizes stand for: one table per capture, with the declared range of every symbol, the expressions over
//! them, and what has been checked of them. The table in force belongs to the thread (`enter`), so that layouts and fake
//! rules calculate with symbols without being handed one; nothing here is reached while all sizes are known.

mod binding;
mod inputs;
mod numbers;
mod parse;
mod poly;
mod statement;

pub use binding::{Binding, Misfit, Promise, Shapes};
pub use inputs::{InputSize, SizeGuard, located_by, settled};
pub use numbers::{given, number, plain};
pub(crate) use numbers::{listed, shown};
pub use poly::{Atom, Poly, Range, UNBOUNDED};
pub use statement::{Check, Relation, Statement};

use crate::dim::Dim;
use crate::error::TensorError;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Result<T> = std::result::Result<T, TensorError>;

/// Tables in force, on all threads.
static IN_FORCE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CURRENT: RefCell<Vec<Arc<Symbols>>> = const { RefCell::new(Vec::new()) };
}

/// The symbols of one capture.
#[derive(Default)]
pub struct Symbols {
    inner: Mutex<Inner>,
}

#[derive(Clone, Default)]
struct Inner {
    unbacked: Vec<Bounds>,
    inputs: Vec<InputSize>,
    /// What was decided by the sizes of the inputs that the capture ran with.
    guards: Vec<SizeGuard>,
    /// The capture is over: nothing is decided that way any more.
    closed: bool,
    /// Something was asked of a symbol that it could not answer.
    gave_up: bool,
    expressions: HashMap<u32, Poly>,
    /// Expressions known not to be negative, and not to be zero.
    facts: Vec<Poly>,
    nonzero: Vec<Poly>,
    checks: Vec<Check>,
}

/// What was declared of a symbol, and what is known by checks and guards since.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Bounds {
    pub declared: Range,
    pub known: Range,
}

/// The table in force on this thread until it is dropped.
pub struct Entered(Arc<Symbols>, std::marker::PhantomData<*const ()>);

impl Drop for Entered {
    fn drop(&mut self) {
        IN_FORCE.fetch_sub(1, Ordering::Relaxed);
        CURRENT.with(|c| {
            let mut tables = c.borrow_mut();
            // Scopes may end out of order; each removes its own.
            if let Some(at) = tables.iter().rposition(|s| Arc::ptr_eq(s, &self.0)) {
                tables.remove(at);
            }
        });
    }
}

/// Puts `symbols` in force on this thread.
pub fn enter(symbols: Arc<Symbols>) -> Entered {
    IN_FORCE.fetch_add(1, Ordering::Relaxed);
    CURRENT.with(|c| c.borrow_mut().push(symbols.clone()));
    Entered(symbols, std::marker::PhantomData)
}

/// False where no thread has a table in force: nothing is symbolic then.
#[inline]
pub fn are_in_force() -> bool {
    IN_FORCE.load(Ordering::Relaxed) != 0
}

/// The table in force on this thread.
pub fn current() -> Option<Arc<Symbols>> {
    CURRENT.with(|c| c.borrow().last().cloned())
}

/// Whether any of these raw sizes, strides or bounds is symbolic.
pub fn any(raw: &[i64]) -> bool {
    raw.iter().any(|&d| Dim::from_raw(d).is_symbol())
}

fn calculate(a: i64, b: i64, f: impl Fn(&Symbols, &Poly, &Poly) -> Option<Poly>) -> Result<i64> {
    let symbolic = if Dim::from_raw(a).is_symbol() { a } else { b };
    let unknown = || TensorError::Symbolic(symbolic);
    let table = current().ok_or_else(unknown)?;
    let (x, y) = (table.poly(Dim::from_raw(a)), table.poly(Dim::from_raw(b)));
    let (x, y) = (x.ok_or_else(unknown)?, y.ok_or_else(unknown)?);
    if let Some(p) = f(&table, &x, &y) {
        return table.name(&p).ok_or_else(unknown);
    }
    let settle = |p: &Poly| table.settle(p).map(Poly::constant);
    let (x, y) = (settle(&x).ok_or_else(unknown)?, settle(&y).ok_or_else(unknown)?);
    f(&table, &x, &y).and_then(|p| table.name(&p)).ok_or_else(unknown)
}

/// The product of two raw sizes, known or symbolic.
pub fn mul(a: i64, b: i64) -> Result<i64> {
    if !any(&[a, b]) {
        return a.checked_mul(b).ok_or_else(|| TensorError::TooLarge([a, b].into_iter().collect()));
    }
    calculate(a, b, |_, x, y| x.times(y))
}

/// The sum of two raw sizes.
pub fn add(a: i64, b: i64) -> Result<i64> {
    if !any(&[a, b]) {
        return a.checked_add(b).ok_or_else(|| TensorError::TooLarge([a, b].into_iter().collect()));
    }
    calculate(a, b, |_, x, y| x.plus(y))
}

/// The difference of two raw sizes.
pub fn sub(a: i64, b: i64) -> Result<i64> {
    calculate(a, b, |_, x, y| x.minus(y))
}

/// The quotient of two raw sizes where nothing is left over, else an error.
pub fn exact(a: i64, by: i64) -> Result<i64> {
    calculate(a, by, |table, x, y| {
        if let Some(quotient) = x.exactly_by(y) {
            return Some(quotient);
        }
        // By sizes of inputs it may come out even, which runs are held to then.
        let number = y.as_constant().filter(|n| *n > 0)?;
        let quotient = x.floor(number, |p| table.declared_range(p))?;
        let (left, right) = (quotient.times(y)?, x.clone());
        (table.decide(&Statement { left: right, relation: Relation::Eq, right: left })?).then_some(quotient)
    })
}

/// `a` divided by the known number `by`, which is not 0, and rounded down.
pub fn floor(a: i64, by: i64) -> Result<i64> {
    calculate(a, by, |table, x, _| x.floor(by, |p| table.declared_range(p)))
}

/// The product of raw sizes.
pub fn product(raw: &[i64]) -> Result<i64> {
    raw.iter().try_fold(1, |all, &d| mul(all, d))
}

/// Whether two raw sizes compare like this in every run, in none, or (None) it depends on the run.
pub fn decide(left: i64, relation: Relation, right: i64) -> Option<bool> {
    if !any(&[left, right]) {
        return Some(relation.holds(left, right));
    }
    if left == right {
        return Some(relation.holds(0, 0));
    }
    let table = current()?;
    table.decide(&table.statement(left, relation, right)?)
}

/// An error that names what is not decided.
#[cold]
pub fn undecided(left: i64, relation: Relation, right: i64) -> TensorError {
    let (left, right) = (Dim::from_raw(left), Dim::from_raw(right));
    TensorError::Undecided(format!("{left} {} {right}", relation.text()))
}

/// `decide`, where the answer is needed.
pub fn require(left: i64, relation: Relation, right: i64) -> Result<bool> {
    decide(left, relation, right).ok_or_else(|| undecided(left, relation, right))
}

/// Whether two shapes are the same in every run; an error where that depends on the run.
pub fn same_shape(a: &[i64], b: &[i64]) -> Result<bool> {
    if a == b {
        return Ok(true);
    }
    let mut same = a.len() == b.len();
    for (&x, &y) in a.iter().zip(b) {
        same = same && require(x, Relation::Eq, y)?;
    }
    Ok(same)
}

/// As `layout::broadcast` of one axis, where a size is symbolic: the common size, None where there is none.
pub(crate) fn broadcast(a: i64, b: i64) -> Result<Option<i64>> {
    let is = |x: i64, v: i64| decide(x, Relation::Eq, v);
    if a == b || is(a, b) == Some(true) {
        return Ok(Some(if Dim::from_raw(a).is_symbol() { b } else { a }));
    }
    match (is(a, 1), is(b, 1), is(a, b)) {
        (Some(true), ..) => Ok(Some(b)),
        (_, Some(true), _) => Ok(Some(a)),
        (Some(false), Some(false), Some(false)) => Ok(None),
        _ => Err(undecided(a, Relation::Eq, b)),
    }
}

/// FNV-1a: the name of an expression depends on the expression alone, so that tables that hold the same expressions
/// give them the same names.
fn hash(text: &str) -> u32 {
    let step = |h: u32, b: u8| (h ^ u32::from(b)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step) & (u32::MAX >> 1)
}

impl Symbols {
    pub fn new() -> Arc<Symbols> {
        Arc::default()
    }

    /// A table of its own that begins with what is known here.
    pub fn fork(&self) -> Arc<Symbols> {
        let inner = self.inner.lock().clone();
        Arc::new(Symbols { inner: Mutex::new(Inner { closed: false, ..inner }) })
    }

    /// A fresh size that depends on data, between `low` and `high`.
    pub fn declare(&self, low: i64, high: Option<i64>) -> Dim {
        let declared = Range::new(low.into(), high.map_or(UNBOUNDED, i128::from));
        let mut inner = self.inner.lock();
        inner.unbacked.push(Bounds { declared, known: declared });
        Dim::unbacked(inner.unbacked.len() as u32 - 1)
    }

    /// How many sizes depend on data.
    pub fn len(&self) -> usize {
        self.inner.lock().unbacked.len()
    }

    /// Whether there is no symbol at all.
    pub fn is_empty(&self) -> bool {
        let inner = self.inner.lock();
        inner.unbacked.is_empty() && inner.inputs.is_empty()
    }

    /// The declared range of a size that depends on data; a high end of `UNBOUNDED` or more is none.
    pub fn declared(&self, unbacked: u32) -> Option<Range> {
        self.inner.lock().unbacked.get(unbacked as usize).map(|u| u.declared)
    }

    /// What `dim` stands for; None for an expression of another table.
    pub fn poly(&self, dim: Dim) -> Option<Poly> {
        match (dim.as_symbol(), dim.as_expression()) {
            (None, _) => Some(Poly::constant(dim.raw())),
            (Some(_), Some(name)) => self.inner.lock().expressions.get(&name).cloned(),
            (Some(id), None) => Some(Poly::symbol(id)),
        }
    }

    /// The raw size that stands for `poly`; None where it is a number that no size can be.
    pub fn name(&self, poly: &Poly) -> Option<i64> {
        if let Some(v) = poly.as_constant() {
            return Dim::from_raw(v).as_known();
        }
        if let Some(id) = poly.as_symbol() {
            return Some(Dim::symbol(id).raw());
        }
        Some(self.intern(poly))
    }

    /// The name of an expression, the same for the same one.
    fn intern(&self, poly: &Poly) -> i64 {
        let mut name = hash(&poly.to_string());
        let mut inner = self.inner.lock();
        while inner.expressions.get(&name).is_some_and(|other| other != poly) {
            name = (name + 1) & (u32::MAX >> 1);
        }
        inner.expressions.entry(name).or_insert_with(|| poly.clone());
        Dim::expression(name).raw()
    }

    pub fn range(&self, poly: &Poly) -> Range {
        self.inner.lock().range(poly)
    }

    /// Bounds that follow from the declarations alone: what an expression is called must not change with later checks.
    pub fn declared_range(&self, poly: &Poly) -> Range {
        self.inner.lock().range_by(poly, |u| u.declared)
    }

    pub fn statement(&self, left: i64, relation: Relation, right: i64) -> Option<Statement> {
        let (left, right) = (self.poly(Dim::from_raw(left))?, self.poly(Dim::from_raw(right))?);
        Some(Statement { left, relation, right })
    }

    /// True or false in every run, by ranges and checks, or by what the inputs of the capture are, which runs are then
    /// held to; None where it depends on the run.
    pub fn decide(&self, s: &Statement) -> Option<bool> {
        let known = self.inner.lock().decide(s);
        known.or_else(|| self.decide_by_inputs(s))
    }

    /// Takes a statement to hold from here on; every run will confirm it.
    pub fn check(&self, check: Check) {
        let mut inner = self.inner.lock();
        inner.assume(&check.statement);
        inner.checks.push(check);
    }

    pub fn checks(&self) -> Vec<Check> {
        self.inner.lock().checks.clone()
    }

    /// Reads an expression at the start of `text`: its raw size, and how much of the text it is.
    pub fn parse(&self, text: &str) -> Option<(i64, usize)> {
        let (poly, n) = self.parse_poly(text)?;
        Some((self.name(&poly)?, n))
    }

    /// As `parse`, for any expression.
    pub fn parse_poly(&self, text: &str) -> Option<(Poly, usize)> {
        parse::expression(text, &|p| self.declared_range(p))
    }
}

impl Inner {
    fn range(&self, poly: &Poly) -> Range {
        self.range_by(poly, |u| u.known)
    }

    fn range_by(&self, poly: &Poly, of: impl Fn(&Bounds) -> Range) -> Range {
        poly.range(&|id| self.bounds(id).map_or_else(|| Range::new(0, i64::MAX.into()), &of))
    }

    /// `poly >= 0` in every run.
    fn never_negative(&self, poly: &Poly) -> bool {
        self.range(poly).low >= 0
            || self.facts.iter().any(|f| poly.minus(f).is_some_and(|d| self.range(&d).low >= 0))
    }

    fn decide(&self, s: &Statement) -> Option<bool> {
        let difference = s.left.minus(&s.right)?;
        let back = difference.times(&Poly::constant(-1))?;
        let less_by_one = |p: &Poly| p.plus(&Poly::constant(-1));
        let at_least = |p: &Poly| self.never_negative(p);
        let above = |p: &Poly| less_by_one(p).is_some_and(|p| self.never_negative(&p));
        match s.relation {
            Relation::Ge if at_least(&difference) => Some(true),
            Relation::Ge if above(&back) => Some(false),
            Relation::Le if at_least(&back) => Some(true),
            Relation::Le if above(&difference) => Some(false),
            Relation::Gt if above(&difference) => Some(true),
            Relation::Gt if at_least(&back) => Some(false),
            Relation::Lt if above(&back) => Some(true),
            Relation::Lt if at_least(&difference) => Some(false),
            Relation::Eq | Relation::Ne => {
                let equal = if at_least(&difference) && at_least(&back) {
                    true
                } else if above(&difference) || above(&back) || self.nonzero.contains(&difference) {
                    false
                } else {
                    return None;
                };
                Some(equal == (s.relation == Relation::Eq))
            }
            _ => None,
        }
    }

    fn assume(&mut self, s: &Statement) {
        let Some(difference) = s.left.minus(&s.right) else { return };
        let Some(back) = difference.times(&Poly::constant(-1)) else { return };
        let less_by_one = |p: Poly| p.plus(&Poly::constant(-1));
        let new: [Option<Poly>; 2] = match s.relation {
            Relation::Ge => [Some(difference), None],
            Relation::Le => [Some(back), None],
            Relation::Gt => [less_by_one(difference), None],
            Relation::Lt => [less_by_one(back), None],
            Relation::Eq => [Some(difference), Some(back)],
            Relation::Ne => {
                self.exclude(&difference);
                self.nonzero.extend([difference, back]);
                [None, None]
            }
        };
        for fact in new.into_iter().flatten() {
            self.narrow(&fact);
            self.facts.push(fact);
        }
    }

    /// A bound of one symbol, where the fact is about one.
    fn narrow(&mut self, fact: &Poly) {
        let Some((symbol, a, b)) = self.linear(fact) else { return };
        let Some(Bounds { known, .. }) = self.bounds_mut(symbol) else { return };
        let (a, b) = (i128::from(a), i128::from(b));
        if a > 0 {
            known.low = known.low.max(-b.div_euclid(a));
        } else {
            known.high = known.high.min(b.div_euclid(-a));
        }
    }

    /// A symbol that is not at one end of its range starts behind it.
    fn exclude(&mut self, zero: &Poly) {
        let Some((symbol, a, b)) = self.linear(zero) else { return };
        let Some(Bounds { known, .. }) = self.bounds_mut(symbol) else { return };
        let (a, b) = (i128::from(a), i128::from(b));
        if b % a == 0 {
            known.low += i128::from(known.low == -b / a);
            known.high -= i128::from(known.high == -b / a);
        }
    }

    /// The one symbol of the expression, its factor and the rest, where it is `a * symbol + b`.
    fn linear(&self, poly: &Poly) -> Option<(u32, i64, i64)> {
        let mut one = None;
        poly.for_each_symbol(&mut |id| one = one.or(Some(id)));
        let (a, b) = poly.linear(one?)?;
        Some((one?, a, b))
    }
}

/// Tables are equal that declare and check the same.
impl PartialEq for Symbols {
    fn eq(&self, other: &Symbols) -> bool {
        if std::ptr::eq(self, other) {
            return true;
        }
        let facts = |s: &Symbols| {
            let inner = s.inner.lock();
            let declared: Vec<Range> = inner.unbacked.iter().map(|u| u.declared).collect();
            let inputs: Vec<(Range, i64)> =
                inner.inputs.iter().map(|i| (i.bounds.declared, i.hint)).collect();
            (declared, inputs, inner.checks.clone(), inner.guards.clone())
        };
        facts(self) == facts(other)
    }
}

impl fmt::Debug for Symbols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock();
        f.debug_struct("Symbols")
            .field("unbacked", &inner.unbacked)
            .field("inputs", &inner.inputs)
            .field("checks", &inner.checks)
            .field("guards", &inner.guards)
            .finish()
    }
}
