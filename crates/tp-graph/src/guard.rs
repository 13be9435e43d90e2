//! Guards: what must hold of the arguments for a compiled entry to be used. They cover all that the capture could
//! see of them: a tensor's dtype, device, sizes, strides (contiguous, or exactly these) and whether it requires a
//! gradient; a literal's type and value; grad mode and autocast; which tensors share memory, where the graph writes to one; and
//! the definitions of the user's ops that were captured. What the function read of the host's state beyond them is
//! guarded by the host (`host_guards`).

pub use crate::guard_args::TensorGuard;

use crate::capture::watch::{Answer, Asked, Fact};
use crate::capture::{Between, literal};
use crate::guard_args::{ArgGuard, literal_holds};
use crate::guard_ops::OpGuard;
use crate::guard_sizes::SizeGuards;
use crate::host_guards::{HostGuards, Word};
use crate::ir::Operand;
use crate::sizing::Sizing;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tp_dispatch::{Arg, OpHandle, registry, state};
use tp_tensor::Tensor;

#[derive(Debug)]
pub struct GuardSet {
    args: Box<[ArgGuard]>,
    names: Box<[Arc<str>]>,
    /// Mode that must hold, where a tensor requires a gradient.
    grad_mode: Option<bool>,
    /// Casts that were in force.
    autocast: u32,
    /// Arguments that are the very tensor of an earlier one.
    same: Box<[(u32, u32)]>,
    /// Pairs of inputs, and whether they share memory.
    memory: Box<[(Place, Place, bool)]>,
    /// Ops that were captured, and what was registered for them.
    ops: Box<[OpGuard]>,
    /// The number of registrations in the process when the ops were last found unchanged.
    changes: AtomicU64,
    /// Lifted tensors, and whether each required a gradient; None of one that the host fetches anew.
    lifted: Box<[(Tensor, Option<bool>)]>,
    /// Arguments that are a tensor which the function reaches on its own, and was captured as one with it.
    reached: Box<[(u32, Tensor)]>,
    /// Pairs of tensors, the first of which was not computed from the second: a gradient by that is taken inside.
    apart: Box<[(Subject, Subject)]>,
    /// Pairs of tensors which the function was told to be two.
    two: Box<[(Subject, Subject)]>,
    /// What the function asked of tensors beside their specs, and was told.
    asked: Box<[(Subject, Fact, Answer)]>,
    /// What must hold of sizes that are symbols.
    sizes: Option<Box<SizeGuards>>,
    host: Option<Box<dyn HostGuards>>,
    /// Words of the host's memory, owned by `host`; the first of them, or one that never changes, and the others.
    first: Word,
    words: Box<[Word]>,
    /// The words are not all that `host` looks at.
    asks_host: bool,
    /// Besides the arguments one by one there are only registrations and the first word to look at on a thread without
    /// modes.
    is_simple: bool,
}

/// The tensor that a fact is of: an argument, or one that the function reaches on its own.
#[derive(Debug)]
enum Subject {
    Argument(u32),
    Held(Tensor),
}

/// Where an input of a graph comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Argument(u32),
    Lifted(u32),
}

/// What a capture depended on besides its arguments.
#[derive(Default)]
pub struct Context {
    /// Pairs of arguments whose shared memory matters.
    pub memory: Vec<(Place, Place)>,
    pub ops: Vec<OpHandle>,
    pub lifted: Vec<Tensor>,
    pub between: Between,
    /// Those of them that runs fetch anew: number, and place at the host.
    pub moving: Vec<(u32, u32)>,
    pub asked: Vec<Asked>,
    /// The function asked for grad mode.
    pub grad_mode: bool,
    /// Sizes that are symbols, and what the capture decided of them.
    pub(crate) sizing: Sizing,
    pub(crate) sizes: Option<Box<SizeGuards>>,
    /// What it read of the host's state.
    pub host: Option<Box<dyn HostGuards>>,
}

impl Context {
    /// Nothing but what was read of the host's state.
    pub fn of_host(host: Box<dyn HostGuards>) -> Context {
        Context { host: Some(host), ..Context::default() }
    }
}

impl GuardSet {
    pub fn new(args: &[Arg<'_>], names: &[Arc<str>], context: Context) -> GuardSet {
        let mut sized = context.sizing.args.into_iter();
        let guards: Box<[ArgGuard]> = args
            .iter()
            .map(|arg| match (arg, sized.next().flatten()) {
                (Arg::Tensor(_), Some(sized)) => ArgGuard::Sized(Box::new(sized)),
                (Arg::Tensor(t), None) => ArgGuard::Tensor(TensorGuard::of(t)),
                (other, _) => ArgGuard::Literal(literal(other).unwrap_or(Operand::NONE)),
            })
            .collect();
        let any_grad =
            guards.iter().any(ArgGuard::requires_grad) || context.lifted.iter().any(Tensor::requires_grad);
        let mut words = context.host.as_ref().map_or_else(Vec::new, |host| host.words()).into_iter();
        let mut set = GuardSet {
            names: names.into(),
            grad_mode: (any_grad || context.grad_mode).then(state::is_grad_enabled),
            autocast: state::autocast(),
            same: same_tensors(args),
            memory: Box::default(),
            // Counted before the ops are looked at: a change in between is then looked for again.
            changes: AtomicU64::new(registry::changes()),
            ops: context.ops.into_iter().map(OpGuard::of).collect(),
            lifted: fixed(context.lifted, &context.moving),
            reached: reached_arguments(args, context.between.reached),
            apart: pairs(args, context.between.apart).collect(),
            two: pairs(args, context.between.two).filter(can_be_one).collect(),
            asked: context.asked.into_iter().map(|a| (subject(args, a.of), a.fact, a.answer)).collect(),
            first: words.next().unwrap_or(Word::constant()),
            words: words.collect(),
            asks_host: context.host.as_ref().is_some_and(|host| !host.is_words_only()),
            host: context.host,
            args: guards,
            sizes: context.sizes,
            is_simple: false,
        };
        set.memory = context.memory.into_iter().map(|(a, b)| (a, b, set.share_memory(args, a, b))).collect();
        set.is_simple = set.grad_mode.is_none()
            && set.autocast == 0
            && set.same.is_empty()
            && set.memory.is_empty()
            && set.lifted.is_empty()
            && set.reached.is_empty()
            && set.apart.is_empty()
            && set.two.is_empty()
            && set.words.is_empty()
            && !set.asks_host
            && set.asked.is_empty()
            && set.sizes.is_none();
        set
    }

    fn share_memory(&self, args: &[Arg<'_>], a: Place, b: Place) -> bool {
        let tensor = |p: Place| match p {
            Place::Argument(i) => args.get(i as usize).and_then(Arg::tensor),
            Place::Lifted(i) => self.lifted.get(i as usize).map(|(t, _)| t),
        };
        tensor(a).zip(tensor(b)).is_some_and(|(a, b)| a.shares_storage(b))
    }

    /// Whether every guard holds.
    pub fn holds(&self, args: &[Arg<'_>]) -> bool {
        self.args_hold(args) && self.rest_holds(args) && self.host_holds()
    }

    /// As `holds`, on a thread without modes (`state::is_plain`).
    #[inline(always)]
    pub fn holds_plainly(&self, args: &[Arg<'_>]) -> bool {
        self.args_hold(args)
            && if self.is_simple {
                self.unchanged() && (self.first.holds() || self.words_hold())
            } else {
                self.rest_holds(args) && self.host_holds()
            }
    }

    /// Whether the arguments one by one are as they were.
    #[inline(always)]
    fn args_hold(&self, args: &[Arg<'_>]) -> bool {
        args.len() == self.args.len()
            && self.args.iter().zip(args).all(|(guard, arg)| match (guard, arg) {
                (ArgGuard::Tensor(g), Arg::Tensor(t)) => g.holds(t),
                (ArgGuard::Literal(c), arg) => literal_holds(c, arg),
                (ArgGuard::Sized(g), Arg::Tensor(t)) => g.holds(t),
                (ArgGuard::Tensor(_) | ArgGuard::Sized(_), _) => false,
            })
    }

    /// Whether what is registered for the captured ops is what was.
    #[inline(always)]
    fn unchanged(&self) -> bool {
        registry::changes() == self.changes.load(Ordering::Relaxed) || self.ops_hold()
    }

    #[inline(never)]
    fn rest_holds(&self, args: &[Arg<'_>]) -> bool {
        self.sizes.as_ref().is_none_or(|s| s.holds(args))
            && self.grad_mode.is_none_or(|mode| mode == state::is_grad_enabled())
            && self.autocast == state::autocast()
            && self.same.iter().all(|&(i, j)| same(args, i, j))
            && self.memory.iter().all(|&(a, b, shared)| self.share_memory(args, a, b) == shared)
            && self.unchanged()
            && self.lifted.iter().all(grad_holds)
            && self.reached.iter().all(|(i, t)| is_tensor(args, *i, t))
            && self.apart.iter().all(|pair| are_apart(args, pair))
            && self.two.iter().all(|pair| are_two(args, pair))
            && self.asked.iter().all(|asked| asked_holds(args, asked))
    }

    /// Whether the function would read of the host's state what it read.
    #[inline(never)]
    fn host_holds(&self) -> bool {
        (self.first.holds() && self.words.iter().all(Word::holds) || self.words_hold())
            && (!self.asks_host || self.host.as_ref().is_none_or(|host| host.holds()))
    }

    /// A word changed: whether what it stands for did.
    #[cold]
    fn words_hold(&self) -> bool {
        let all = || std::iter::once(&self.first).chain(&self.words);
        // Read before the host looks: a change in between is then looked for again.
        let now: Vec<usize> = all().map(Word::read).collect();
        let hold = self.host.as_ref().is_none_or(|host| host.covered_hold());
        if hold {
            all().zip(now).for_each(|(word, now)| word.renew(now));
        }
        hold
    }

    /// Something was registered since: whether it concerns an op that was captured.
    #[cold]
    fn ops_hold(&self) -> bool {
        let now = registry::changes();
        let hold = self.ops.iter().all(OpGuard::holds);
        if hold {
            self.changes.store(now, Ordering::Relaxed);
        }
        hold
    }

    pub(crate) fn host(&self) -> Option<&dyn HostGuards> {
        self.host.as_deref()
    }

    /// Whether the guards hold but for those on the host's state.
    pub fn arguments_hold(&self, args: &[Arg<'_>]) -> bool {
        self.args_hold(args) && self.rest_holds(args)
    }

    /// Ok, or the first guard that does not hold, in the names of the arguments, with what was found.
    pub fn check(&self, args: &[Arg<'_>]) -> Result<(), String> {
        if self.holds(args) { Ok(()) } else { Err(self.miss(args)) }
    }

    #[cold]
    fn miss(&self, args: &[Arg<'_>]) -> String {
        if args.len() != self.args.len() {
            return format!("number of arguments == {}, got {}", self.args.len(), args.len());
        }
        for (i, (guard, arg)) in self.args.iter().zip(args).enumerate() {
            let name = self.name(i);
            match (guard, arg) {
                (ArgGuard::Tensor(g), Arg::Tensor(t)) if !g.holds(t) => return g.miss(&name, t),
                (ArgGuard::Sized(g), Arg::Tensor(t)) if !g.holds(t) => return g.miss(&name, t),
                (ArgGuard::Tensor(_) | ArgGuard::Sized(_), Arg::Tensor(_)) => {}
                (ArgGuard::Tensor(_) | ArgGuard::Sized(_), other) => {
                    return format!("type({name}) is Tensor, got {}", other.type_name());
                }
                (ArgGuard::Literal(c), arg) if !literal_holds(c, arg) => {
                    return format!("{name} == {c}, got {arg:?}");
                }
                (ArgGuard::Literal(_), _) => {}
            }
        }
        if let Some(miss) =
            self.sizes.as_ref().filter(|s| !s.holds(args)).and_then(|s| s.miss(args, &|i| self.name(i)))
        {
            return miss;
        }
        if let Some(mode) = self.grad_mode.filter(|m| *m != state::is_grad_enabled()) {
            return format!("is_grad_enabled() == {}, got {}", python_bool(mode), python_bool(!mode));
        }
        if self.autocast != state::autocast() {
            return "autocast is as it was at capture, which changed".to_string();
        }
        if let Some(&(i, j)) = self.same.iter().find(|&&(i, j)| !same(args, i, j)) {
            return format!("{} is {}, got two tensors", self.name(j as usize), self.name(i as usize));
        }
        if let Some(&(a, b, shared)) =
            self.memory.iter().find(|&&(a, b, s)| self.share_memory(args, a, b) != s)
        {
            let text = self.memory_text(a, b, shared);
            return format!("{text}, which changed");
        }
        if let Some(guard) = self.ops.iter().find(|guard| !guard.holds()) {
            let op = guard.op;
            return match guard.custom {
                true => format!("the definition of {op} is the one captured, but it was defined again"),
                false => {
                    format!("the kernels of {op} are those captured, but something was registered for it")
                }
            };
        }
        if let Some(i) = self.lifted.iter().position(|lifted| !grad_holds(lifted)) {
            let grad = python_bool(self.lifted[i].1 == Some(true));
            return format!("lifted{i}.requires_grad == {grad}, which changed");
        }
        if let Some((i, _)) = self.reached.iter().find(|(i, t)| !is_tensor(args, *i, t)) {
            return format!("{}, got another", self.reached_text(*i));
        }
        if let Some(pair) = self.apart.iter().find(|pair| !are_apart(args, pair)) {
            return format!("{}, which changed", self.apart_text(pair));
        }
        if let Some(pair) = self.two.iter().find(|pair| !are_two(args, pair)) {
            return format!("{}, got one tensor", self.two_text(pair));
        }
        if let Some(asked) = self.asked.iter().find(|asked| !asked_holds(args, asked)) {
            return format!("{}, which changed", self.asked_text(asked));
        }
        self.host.as_ref().and_then(|host| host.miss()).unwrap_or_else(|| "no guard".to_string())
    }

    /// Every guard as text.
    pub fn texts(&self) -> Vec<String> {
        let mut out = Vec::new();
        for (i, guard) in self.args.iter().enumerate() {
            match guard {
                ArgGuard::Tensor(g) => g.texts(&self.name(i), &mut out),
                ArgGuard::Sized(g) => g.texts(&self.name(i), &mut out),
                ArgGuard::Literal(c) => out.push(format!("{} == {c}", self.name(i))),
            }
        }
        if let Some(sizes) = &self.sizes {
            sizes.texts(&|i| self.name(i), &mut out);
        }
        out.extend(self.grad_mode.map(|m| format!("is_grad_enabled() == {}", python_bool(m))));
        out.extend(
            self.same.iter().map(|&(i, j)| format!("{} is {}", self.name(j as usize), self.name(i as usize))),
        );
        out.extend(self.memory.iter().map(|&(a, b, shared)| self.memory_text(a, b, shared)));
        out.extend(self.ops.iter().map(|guard| match guard.custom {
            true => format!("the definition of {} is the one captured", guard.op),
            false => format!("the kernels of {} are those captured", guard.op),
        }));
        let grads = self.lifted.iter().enumerate().filter_map(|(i, (_, grad))| Some((i, (*grad)?)));
        out.extend(grads.map(|(i, grad)| format!("lifted{i}.requires_grad == {}", python_bool(grad))));
        out.extend(self.reached.iter().map(|(i, _)| self.reached_text(*i)));
        out.extend(self.apart.iter().map(|pair| self.apart_text(pair)));
        out.extend(self.two.iter().map(|pair| self.two_text(pair)));
        out.extend(self.asked.iter().map(|asked| self.asked_text(asked)));
        out.extend(self.host.iter().flat_map(|host| host.texts()));
        out
    }

    /// What each argument must be.
    pub(crate) fn arguments(&self) -> &[ArgGuard] {
        &self.args
    }

    /// What must hold of sizes that are symbols.
    pub(crate) fn sizes(&self) -> Option<&SizeGuards> {
        self.sizes.as_deref()
    }

    fn name(&self, i: usize) -> String {
        self.names.get(i).map_or_else(|| format!("arg{i}"), ToString::to_string)
    }

    fn reached_text(&self, i: u32) -> String {
        format!("{} is the tensor that the function reaches on its own", self.name(i as usize))
    }

    fn asked_text(&self, (subject, fact, answer): &(Subject, Fact, Answer)) -> String {
        fact.text(&self.subject_text(subject), answer)
    }

    fn apart_text(&self, (t, source): &(Subject, Subject)) -> String {
        format!("{} is not computed from {}", self.subject_text(t), self.subject_text(source))
    }

    fn two_text(&self, (a, b): &(Subject, Subject)) -> String {
        format!("{} is not {}", self.subject_text(a), self.subject_text(b))
    }

    fn subject_text(&self, subject: &Subject) -> String {
        match subject {
            Subject::Argument(i) => self.name(*i as usize),
            Subject::Held(_) => "a tensor that the function reaches on its own".to_string(),
        }
    }

    fn memory_text(&self, a: Place, b: Place, shared: bool) -> String {
        let verb = if shared { "share" } else { "do not share" };
        let name = |p: Place| match p {
            Place::Argument(i) => self.name(i as usize),
            Place::Lifted(i) => format!("lifted{i}"),
        };
        format!("{} and {} {verb} memory", name(a), name(b))
    }
}

/// The first argument that is `t`.
fn argument(args: &[Arg<'_>], t: &Tensor) -> Option<u32> {
    (0..args.len() as u32).find(|&i| is_tensor(args, i, t))
}

fn subject(args: &[Arg<'_>], of: Tensor) -> Subject {
    match argument(args, &of) {
        Some(i) => Subject::Argument(i),
        None => Subject::Held(of),
    }
}

fn subject_of<'a>(args: &'a [Arg<'_>], subject: &'a Subject) -> Option<&'a Tensor> {
    match subject {
        Subject::Argument(i) => args.get(*i as usize).and_then(Arg::tensor),
        Subject::Held(t) => Some(t),
    }
}

/// Whether each lifted tensor required a gradient, where that is guarded here.
fn fixed(lifted: Vec<Tensor>, moving: &[(u32, u32)]) -> Box<[(Tensor, Option<bool>)]> {
    let moves = |i: usize| moving.iter().any(|(m, _)| *m as usize == i);
    let grad = |(i, t): (usize, Tensor)| {
        let grad = (!moves(i)).then(|| t.requires_grad());
        (t, grad)
    };
    lifted.into_iter().enumerate().map(grad).collect()
}

fn grad_holds((t, grad): &(Tensor, Option<bool>)) -> bool {
    grad.is_none_or(|grad| t.requires_grad() == grad)
}

fn asked_holds(args: &[Arg<'_>], (subject, fact, answer): &(Subject, Fact, Answer)) -> bool {
    subject_of(args, subject).is_some_and(|t| fact.of(t) == *answer)
}

fn are_apart(args: &[Arg<'_>], (t, source): &(Subject, Subject)) -> bool {
    let pair = subject_of(args, t).zip(subject_of(args, source));
    pair.is_some_and(|(t, source)| matches!(tp_autograd::depends_on(t, source), Ok(false)))
}

fn pairs(args: &[Arg<'_>], of: Vec<(Tensor, Tensor)>) -> impl Iterator<Item = (Subject, Subject)> {
    of.into_iter().map(|(a, b)| (subject(args, a), subject(args, b)))
}

/// Tensors that the function reaches on its own stay what they are.
fn can_be_one((a, b): &(Subject, Subject)) -> bool {
    matches!(a, Subject::Argument(_)) || matches!(b, Subject::Argument(_))
}

fn are_two(args: &[Arg<'_>], (a, b): &(Subject, Subject)) -> bool {
    subject_of(args, a).zip(subject_of(args, b)).is_some_and(|(a, b)| !a.same(b))
}

fn is_tensor(args: &[Arg<'_>], i: u32, t: &Tensor) -> bool {
    args.get(i as usize).and_then(Arg::tensor).is_some_and(|arg| arg.same(t))
}

/// The first arguments that are the tensors `reached`; later ones that are the same are guarded as such.
fn reached_arguments(args: &[Arg<'_>], reached: Vec<Tensor>) -> Box<[(u32, Tensor)]> {
    reached.into_iter().filter_map(|t| Some((argument(args, &t)?, t))).collect()
}

fn same(args: &[Arg<'_>], i: u32, j: u32) -> bool {
    match (args.get(i as usize), args.get(j as usize)) {
        (Some(Arg::Tensor(a)), Some(Arg::Tensor(b))) => a.same(b),
        _ => false,
    }
}

/// Pairs (first, later) of arguments that are one tensor.
fn same_tensors(args: &[Arg<'_>]) -> Box<[(u32, u32)]> {
    let n = args.len() as u32;
    let first = |j: u32| (0..j).find(|&i| same(args, i, j)).map(|i| (i, j));
    (0..n).filter_map(first).collect()
}

pub(crate) fn python_bool(v: bool) -> &'static str {
    if v { "True" } else { "False" }
}

/// `(2, 3)` and `(2,)`, as Python prints tuples.
pub(crate) fn tuple(items: &[i64]) -> String {
    let mut out = String::from("(");
    for (i, item) in items.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(out, "{}{}", if i > 0 { ", " } else { "" }, tp_tensor::Dim::from_raw(*item));
    }
    out.push_str(if items.len() == 1 { ",)" } else { ")" });
    out
}
