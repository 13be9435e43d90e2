//! Guards of arguments some of whose sizes are symbols: what is left of their types, and what must hold of the sizes.

use crate::guard::tuple;
use crate::guard_facts::Facts;
use crate::sizing::Sizing;
use smallvec::SmallVec;
use tp_dispatch::Arg;
use tp_tensor::dim::Dims;
use tp_tensor::layout::{contiguous_strides, is_contiguous};
use tp_tensor::symbols::{Poly, Range, Relation, SizeGuard, Statement, Symbols, UNBOUNDED, mul};
use tp_tensor::{Dim, Tensor};

/// What a tensor argument with symbolic sizes must be apart from them.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct SizedGuard {
    pub facts: Facts,
    arrangement: Arrangement,
}

/// How elements lie, whatever the sizes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Arrangement {
    Contiguous,
    /// One after the other without gaps, with the axes in this order, the outermost first.
    Dense(Box<[u8]>),
    /// With these strides.
    Exact(Dims),
}

impl Arrangement {
    /// How the elements of a tensor lie, so that other sizes may lie alike.
    pub fn of(sizes: &[i64], strides: &[i64]) -> Arrangement {
        if is_contiguous(sizes, strides) {
            return Arrangement::Contiguous;
        }
        let mut order: SmallVec<[u8; 8]> = (0..sizes.len() as u8).collect();
        order.sort_by_key(|&axis| std::cmp::Reverse(strides[axis as usize]));
        if is_dense(&order, sizes, strides) {
            Arrangement::Dense(order.as_slice().into())
        } else {
            Arrangement::Exact(strides.into())
        }
    }

    fn holds(&self, t: &Tensor) -> bool {
        match self {
            Arrangement::Contiguous => t.is_contiguous(),
            Arrangement::Dense(order) => !t.is_contiguous() && is_dense(order, t.sizes(), t.strides()),
            Arrangement::Exact(strides) => !t.is_contiguous() && *t.strides() == **strides,
        }
    }
}

/// Whether the axes lie one after the other without gaps, the last of `order` innermost.
fn is_dense(order: &[u8], sizes: &[i64], strides: &[i64]) -> bool {
    let mut step = 1i64;
    order.iter().rev().all(|&axis| {
        let fits = strides[axis as usize] == step;
        step = step.wrapping_mul(sizes[axis as usize]);
        fits
    })
}

impl SizedGuard {
    /// Of `t`, whose sizes are `sizes`.
    pub fn of(t: &Tensor, sizes: Dims) -> SizedGuard {
        let arrangement = Arrangement::of(t.sizes(), t.strides());
        SizedGuard { facts: Facts::of(t, sizes), arrangement }
    }

    /// The strides for these sizes; their table is in force.
    pub fn strides(&self) -> Dims {
        match &self.arrangement {
            Arrangement::Contiguous => contiguous_strides(&self.facts.sizes),
            Arrangement::Exact(strides) => strides.clone(),
            Arrangement::Dense(order) => {
                let mut strides = Dims::from_elem(1, self.facts.sizes.len());
                let mut step = 1i64;
                for &axis in order.iter().rev() {
                    strides[axis as usize] = step;
                    step = mul(step, self.facts.sizes[axis as usize]).unwrap_or(step);
                }
                strides
            }
        }
    }

    /// All but the symbolic sizes.
    pub fn holds(&self, t: &Tensor) -> bool {
        self.is_like(t) && self.facts.sizes_hold(t)
    }

    /// All but the sizes.
    pub fn is_like(&self, t: &Tensor) -> bool {
        self.facts.is_like(t) && self.arrangement.holds(t)
    }

    pub fn requires_grad(&self) -> bool {
        self.facts.requires_grad()
    }

    pub fn texts(&self, name: &str, out: &mut Vec<String>) {
        self.facts.texts(name, self.arrangement_text(name), out);
    }

    fn arrangement_text(&self, name: &str) -> String {
        match &self.arrangement {
            Arrangement::Contiguous => format!("{name}.is_contiguous() == True"),
            Arrangement::Dense(order) => {
                let mut axes = order.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
                if order.len() == 1 {
                    axes.push(',');
                }
                format!("permute_dims({name}, ({axes})).is_contiguous() == True")
            }
            Arrangement::Exact(strides) => format!("{name}.stride() == {}", tuple(strides)),
        }
    }

    /// The first fact that does not hold, and what was found.
    pub fn miss(&self, name: &str, t: &Tensor) -> String {
        self.facts.miss(name, t).unwrap_or_else(|| {
            let got = if matches!(self.arrangement, Arrangement::Exact(_)) { "" } else { "strides " };
            format!("{}, got {got}{}", self.arrangement_text(name), tuple(t.strides()))
        })
    }
}

type Values = SmallVec<[i64; 4]>;

/// What must hold of the sizes of the arguments taken together.
#[derive(Debug, Default)]
pub(crate) struct SizeGuards {
    places: Box<[(u32, u32)]>,
    repeats: Box<[(u32, u32, u32)]>,
    ranges: Box<[(i64, i64)]>,
    statements: Box<[SizeGuard]>,
}

impl SizeGuards {
    /// None where every size is known.
    pub fn new(sizing: &Sizing, symbols: &Symbols) -> Option<Box<SizeGuards>> {
        if sizing.is_empty() {
            return None;
        }
        let end = |v: i128| i64::try_from(v).unwrap_or(i64::MAX);
        let ranges =
            symbols.inputs().iter().map(|i| (end(i.declared().low), end(i.declared().high))).collect();
        Some(Box::new(SizeGuards {
            places: sizing.places.as_slice().into(),
            repeats: sizing.repeats.as_slice().into(),
            ranges,
            statements: symbols.guards().into(),
        }))
    }

    /// The value of each symbol, for arguments whose guards hold one by one.
    pub fn values<'a>(&'a self, args: &'a [Arg<'_>]) -> impl Iterator<Item = i64> + 'a {
        self.places.iter().map(|&(arg, axis)| size_of_argument(args, arg, axis))
    }

    pub fn holds(&self, args: &[Arg<'_>]) -> bool {
        let values: Values = self.values(args).collect();
        self.repeats.iter().all(|&(id, arg, axis)| values[id as usize] == size_of_argument(args, arg, axis))
            && values.iter().zip(&self.ranges).all(|(v, (low, high))| (low..=high).contains(&v))
            && self.statements.iter().all(|g| truth(&g.statement, &values) == Some(true))
    }

    /// The first statement that does not hold, and what was found.
    pub fn miss(&self, args: &[Arg<'_>], name: &dyn Fn(usize) -> String) -> Option<String> {
        let values: Values = self.values(args).collect();
        let text = |id: u32| self.text(id, name);
        for (id, (&value, &(low, high))) in (0..).zip(values.iter().zip(&self.ranges)) {
            if !(low..=high).contains(&value) {
                return Some(format!("{}, got {value}", range_text(&text(id), low, high)));
            }
        }
        for &(id, arg, axis) in &self.repeats {
            let (want, got) = (values[id as usize], size_of_argument(args, arg, axis));
            if want != got {
                let other = place_text(arg, axis, name);
                return Some(format!("{} == {other}, got {want} and {got}", text(id)));
            }
        }
        let failed = self.statements.iter().find(|g| truth(&g.statement, &values) != Some(true))?;
        let s = &failed.statement;
        let value = |p: &Poly| p.eval(&|id| values.get(id as usize).copied());
        let sides = [&s.left, &s.right].map(|p| (p.as_constant().is_none(), value(p)));
        let got = sides.iter().filter(|(symbolic, _)| *symbolic);
        let got: Vec<String> = got
            .map(|(_, v)| v.map_or_else(|| "a number beyond 64 bits".to_string(), |v| v.to_string()))
            .collect();
        Some(format!("{}, got {}", self.statement_text(s, name), got.join(" and ")))
    }

    pub fn texts(&self, name: &dyn Fn(usize) -> String, out: &mut Vec<String>) {
        for (id, &(low, high)) in (0..).zip(&self.ranges) {
            out.push(range_text(&self.text(id, name), low, high));
        }
        for &(id, arg, axis) in &self.repeats {
            out.push(format!("{} == {}", self.text(id, name), place_text(arg, axis, name)));
        }
        out.extend(self.statements.iter().map(|g| self.statement_text(&g.statement, name)));
    }

    fn statement_text(&self, s: &Statement, name: &dyn Fn(usize) -> String) -> String {
        let named = |p: &Poly| p.named(&|id| self.text(id, name));
        format!("{} {} {}", named(&s.left), s.relation.text(), named(&s.right))
    }

    /// A symbol in the names of the arguments.
    fn text(&self, id: u32, name: &dyn Fn(usize) -> String) -> String {
        match self.places.get(id as usize) {
            Some(&(arg, axis)) => place_text(arg, axis, name),
            None => Dim::symbol(id).to_string(),
        }
    }
}

fn size_of_argument(args: &[Arg<'_>], arg: u32, axis: u32) -> i64 {
    let t = args.get(arg as usize).and_then(Arg::tensor);
    t.and_then(|t| t.sizes().get(axis as usize).copied()).unwrap_or(0)
}

fn truth(s: &Statement, values: &Values) -> Option<bool> {
    let value = |p: &Poly| p.eval(&|id| values.get(id as usize).copied());
    Some(s.relation.holds(value(&s.left)?, value(&s.right)?))
}

fn place_text(arg: u32, axis: u32, name: &dyn Fn(usize) -> String) -> String {
    format!("{}.shape[{axis}]", name(arg as usize))
}

fn range_text(size: &str, low: i64, high: i64) -> String {
    match i128::from(high) >= UNBOUNDED || high == i64::MAX {
        true => format!("{size} >= {low}"),
        false => format!("{low} <= {size} <= {high}"),
    }
}

/// Whether the guards leave a size less than its mark promises, and the statement that does so.
pub(crate) fn narrowed(symbols: &Symbols, id: u32, strict: bool) -> Option<SizeGuard> {
    let input = *symbols.inputs().get(id as usize)?;
    let (declared, known): (Range, Range) = (input.declared(), input.known());
    if known.low != known.high && !(strict && known != declared) {
        return None;
    }
    let concerns = |g: &SizeGuard| {
        let mut found = false;
        for side in [&g.statement.left, &g.statement.right] {
            side.for_each_symbol(&mut |s| found |= s == id);
        }
        found
    };
    let all: Vec<SizeGuard> = symbols.guards().into_iter().filter(concerns).collect();
    all.iter().find(|g| g.statement.relation == Relation::Eq).or(all.first()).cloned()
}
