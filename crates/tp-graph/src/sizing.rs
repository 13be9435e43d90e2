//! Which sizes of a call become symbols when it is captured, and what the fakes of its tensors look like then.
//!
//! Sizes 0 and 1 never do: what they mean for broadcasting and for layouts is not what other sizes mean. Equal sizes
//! share a symbol, for they are mostly equal on purpose; entries are guarded by that.

use crate::guard_args::ArgGuard;
use crate::guard_sizes::{SizedGuard, narrowed};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use tp_dispatch::{Arg, Error, Result};
use tp_tensor::dim::Dims;
use tp_tensor::symbols::Symbols;
use tp_tensor::{Dim, Tensor, TensorSpec};

/// When sizes of arguments are symbols.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dynamic {
    /// Where calls were met that differ in them alone.
    #[default]
    Auto,
    Always,
    Never,
}

/// An axis that the caller marked: its size is a symbol, and must remain one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Number of the argument.
    pub arg: usize,
    pub axis: usize,
    pub min: Option<i64>,
    pub max: Option<i64>,
}

/// The axes of each argument whose sizes become symbols.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wanted {
    axes: Vec<SmallVec<[bool; 4]>>,
    marks: Vec<Mark>,
}

/// From this size on a size may be a symbol.
const LEAST: i64 = 2;

impl Wanted {
    /// What to make symbols of for `args`, where entries with these guards did not fit.
    pub fn of<'g>(
        dynamic: Dynamic,
        args: &[Arg<'_>],
        marks: &[Mark],
        entries: impl Iterator<Item = &'g [ArgGuard]>,
    ) -> Wanted {
        let tensor = |arg: &Arg<'_>| arg.tensor().map_or(0, Tensor::ndim);
        let all = dynamic == Dynamic::Always;
        let mut axes: Vec<SmallVec<[bool; 4]>> =
            args.iter().map(|a| SmallVec::from_elem(all, tensor(a))).collect();
        if dynamic == Dynamic::Auto {
            for guards in entries {
                mark_differences(guards, args, &mut axes);
            }
        }
        let marks: Vec<Mark> = marks.to_vec();
        for mark in &marks {
            if let Some(flag) = axes.get_mut(mark.arg).and_then(|a| a.get_mut(mark.axis)) {
                *flag = true;
            }
        }
        for (axes, arg) in axes.iter_mut().zip(args) {
            for (axis, flag) in axes.iter_mut().enumerate() {
                *flag &= arg.tensor().is_some_and(|t| t.sizes()[axis] >= LEAST);
            }
        }
        Wanted { axes, marks }
    }

    pub fn is_empty(&self) -> bool {
        !self.axes.iter().flatten().any(|flag| *flag)
    }

    fn mark(&self, arg: usize, axis: usize) -> Option<&Mark> {
        self.marks.iter().find(|m| (m.arg, m.axis) == (arg, axis))
    }
}

/// Marks the axes in whose sizes alone the arguments differ from those that an entry is for.
fn mark_differences(guards: &[ArgGuard], args: &[Arg<'_>], axes: &mut [SmallVec<[bool; 4]>]) {
    let pairs = || guards.iter().zip(args);
    if guards.len() != args.len() || !pairs().all(|(g, a)| g.is_like(a)) {
        return;
    }
    for ((guard, arg), axes) in pairs().zip(axes) {
        let Some(t) = arg.tensor() else { continue };
        for (axis, flag) in axes.iter_mut().enumerate() {
            *flag |= guard.size(axis).is_none_or(|size| size != t.sizes()[axis]);
        }
    }
}

/// The symbols of one capture and where they stand.
#[derive(Default)]
pub(crate) struct Sizing {
    /// Per argument: None where all sizes are known.
    pub args: Vec<Option<SizedGuard>>,
    /// Where each symbol's value is found first: argument and axis.
    pub places: Vec<(u32, u32)>,
    /// Other places with the same symbol.
    pub repeats: Vec<(u32, u32, u32)>,
    /// Symbols that stand for marked axes.
    pub marked: Vec<(u32, Mark)>,
}

impl Sizing {
    /// Declares the symbols of `wanted` in `table`.
    pub fn declare(table: &Arc<Symbols>, args: &[Arg<'_>], wanted: &Wanted) -> Sizing {
        let mut out = Sizing::default();
        let mut shared: HashMap<i64, u32> = HashMap::new();
        for (i, arg) in args.iter().enumerate() {
            let axes = wanted.axes.get(i).filter(|axes| axes.contains(&true));
            let Some((t, axes)) = arg.tensor().zip(axes) else {
                out.args.push(None);
                continue;
            };
            let earlier = args[..i].iter().position(|a| a.tensor().is_some_and(|e| e.same(t)));
            if let Some(known) = earlier.and_then(|k| out.args[k].clone()) {
                out.args.push(Some(known));
                continue;
            }
            let mut sizes: Dims = t.sizes().into();
            for (axis, size) in sizes.iter_mut().enumerate().filter(|(axis, _)| axes[*axis]) {
                let mark = wanted.mark(i, axis);
                let known = shared.get(size).copied().filter(|_| mark.is_none());
                let place = (i as u32, axis as u32);
                let id = match known {
                    Some(id) => {
                        out.repeats.push((id, place.0, place.1));
                        id
                    }
                    None => {
                        let low = mark.and_then(|m| m.min).unwrap_or(LEAST).max(LEAST);
                        table.declare_input(low, mark.and_then(|m| m.max), *size);
                        out.places.push(place);
                        out.places.len() as u32 - 1
                    }
                };
                match mark {
                    Some(mark) => out.marked.push((id, *mark)),
                    None => drop(shared.entry(*size).or_insert(id)),
                }
                *size = Dim::symbol(id).raw();
            }
            out.args.push(Some(SizedGuard::of(t, sizes)));
        }
        out
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// An error where the function needs a marked size to be less than its mark says: one number, or not all of the range
    /// that was given.
    pub fn check_marks(&self, table: &Symbols, names: &[Arc<str>]) -> Result<()> {
        let name = |i: usize| names.get(i).map_or_else(|| format!("arg{i}"), |n| n.to_string());
        let text = |id: u32| match self.places.get(id as usize) {
            Some(&(arg, axis)) => format!("{}.shape[{axis}]", name(arg as usize)),
            None => Dim::symbol(id).to_string(),
        };
        for &(id, mark) in &self.marked {
            let is_strict = mark.min.is_some() || mark.max.is_some();
            let Some(guard) = narrowed(table, id, is_strict) else { continue };
            let s = &guard.statement;
            let forced = format!("{} {} {}", s.left.named(&text), s.relation.text(), s.right.named(&text));
            let message = format!("{} is marked dynamic, and the function needs {forced}", text(id));
            let error = Error::capture("TP4040", message);
            let error = match &guard.at {
                Some((file, line)) => error.note(format!("needed at {file}:{line}")),
                None => error,
            };
            return Err(error.note(
                "write it for every size, or leave the mark out: the function is then captured for each",
            ));
        }
        Ok(())
    }

    /// The type of argument `i` with its symbols; the table is in force.
    pub fn spec(&self, i: usize, t: &Tensor) -> TensorSpec {
        let spec = TensorSpec::of(t);
        match self.args.get(i).and_then(Option::as_ref) {
            Some(sized) => TensorSpec { sizes: sized.facts.sizes.clone(), strides: sized.strides(), ..spec },
            None => spec,
        }
    }
}
