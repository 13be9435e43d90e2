//! What a function under capture asks and does beside calling ops. A fact of a tensor that existed before is answered
//! by that tensor, not by its fake, and becomes a guard of the entry; what would take effect in the capture alone is
//! refused. A refusal holds even where the function catches it.

use super::branches::{self, outermost};
use super::{Recorder, SCOPES, active};
use crate::guard::{python_bool, tuple};
use crate::host_guards::HostGuards;
use crate::segments::{self, Why};
use std::cell::RefCell;
use std::rc::Rc;
use tp_autograd::meta;
use tp_dispatch::{Error, ErrorKind, Result, host, state};
use tp_tensor::{Dims, Tensor};

/// What can be asked of a tensor that its spec does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fact {
    StorageOffset,
    View,
    Readonly,
    Leaf,
    RequiresGrad,
    RetainsGrad,
    HasGrad,
    /// All strides: those of a contiguous tensor are not one way only where an axis has one element or none.
    Strides,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Bool(bool),
    Int(i64),
    Dims(Dims),
}

/// A fact that a function asked for, and the tensor that answered it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub of: Tensor,
    pub fact: Fact,
    pub answer: Answer,
}

impl Fact {
    pub fn of(self, t: &Tensor) -> Answer {
        match self {
            Fact::StorageOffset => Answer::Int(t.offset()),
            Fact::View => Answer::Bool(t.is_view()),
            Fact::Readonly => Answer::Bool(t.storage().is_readonly()),
            Fact::Leaf => Answer::Bool(meta::is_leaf(t)),
            Fact::RequiresGrad => Answer::Bool(t.requires_grad()),
            Fact::RetainsGrad => Answer::Bool(meta::retains_grad(t)),
            Fact::HasGrad => Answer::Bool(meta::grad(t).is_some()),
            Fact::Strides => Answer::Dims(t.strides().into()),
        }
    }

    /// What the fact is as Python, `x.is_leaf == True`.
    pub fn text(self, name: &str, answer: &Answer) -> String {
        match (self, answer) {
            (Fact::HasGrad, Answer::Bool(true)) => format!("{name}.grad is not None"),
            (Fact::HasGrad, _) => format!("{name}.grad is None"),
            _ => format!("{name}.{} == {answer}", self.name()),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Fact::StorageOffset => "storage_offset()",
            Fact::View => "is_view",
            Fact::Readonly => "is_readonly",
            Fact::Leaf => "is_leaf",
            Fact::RequiresGrad => "requires_grad",
            Fact::RetainsGrad => "retains_grad",
            Fact::HasGrad => "grad",
            Fact::Strides => "stride()",
        }
    }

    /// Whether the fake of a tensor that the function computes has the fact that a run's tensor has: the tape runs over
    /// fakes as it runs over tensors, but they share no memory with anything.
    fn is_known_of_fakes(self) -> bool {
        !matches!(self, Fact::StorageOffset | Fact::View | Fact::Readonly)
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Answer::Bool(v) => f.write_str(python_bool(*v)),
            Answer::Int(v) => write!(f, "{v}"),
            Answer::Dims(v) => f.write_str(&tuple(v)),
        }
    }
}

/// The capture in progress on this thread: where a branch is being captured, the one that it is a part of.
fn innermost() -> Option<Rc<RefCell<Recorder>>> {
    let recorder = if active() { SCOPES.with(|s| s.borrow().last().cloned()) } else { None };
    recorder.map(outermost)
}

/// The fact of `t`, as a run will find it; the entry holds as long as it does.
#[cold]
pub fn ask(t: &Tensor, fact: Fact) -> Result<Answer> {
    let Some(recorder) = innermost() else { return Ok(fact.of(t)) };
    match behind(t) {
        Some(real) if !real.is_fake() => {
            let answer = fact.of(&real);
            if !t.is_fake() {
                recorder.borrow_mut().reach(t);
            }
            recorder.borrow_mut().asked(Asked { of: real, fact, answer: answer.clone() });
            Ok(answer)
        }
        _ if fact.is_known_of_fakes() => Ok(fact.of(t)),
        _ => Err(refusal("TP4030", format!("{} of a tensor that the function computes", fact.name()))
            .note("what a run's tensor shares memory with is up to the plan; ask the function's arguments")),
    }
}

#[cold]
fn settle(t: &Tensor, what: &str) -> Result<()> {
    let text = || format!("{what} of a tensor was read");
    segments::settle(t, Why { code: "TP4030", text: &text })
}

/// A fact that is yes or no: by `own` where nothing is captured.
#[inline]
pub fn answer(t: &Tensor, fact: Fact, own: fn(&Tensor) -> bool) -> Result<bool> {
    if !active() {
        if t.is_pending() {
            settle(t, fact.name())?;
        }
        return Ok(own(t));
    }
    Ok(ask(t, fact)? == Answer::Bool(true))
}

/// Strides were read of some tensor: those of every argument must be what they are, also where the usual guard leaves
/// them open.
#[cold]
pub fn ask_strides() -> Result<()> {
    let Some(recorder) = innermost() else { return Ok(()) };
    let open: Vec<Tensor> =
        recorder.borrow().arguments().iter().filter(|t| t.is_contiguous()).cloned().collect();
    for of in open {
        let answer = Fact::Strides.of(&of);
        recorder.borrow_mut().asked(Asked { of, fact: Fact::Strides, answer });
    }
    Ok(())
}

/// Grad mode was asked for: the entry holds in that mode only.
#[cold]
pub fn ask_grad_mode() {
    if let Some(recorder) = innermost() {
        recorder.borrow_mut().grad_mode_asked = true;
    }
}

/// Gradients of `outputs` by `inputs` are taken inside of the capture, whose tape takes its inputs for independent. What
/// one of them was computed from another outside is refused, and later calls are held to that.
pub fn gradients(outputs: &[Tensor], inputs: &[Tensor]) -> Result<()> {
    let Some(recorder) = innermost() else { return Ok(()) };
    for input in inputs {
        let Some(source) = behind(input).filter(|t| !t.is_fake()) else { continue };
        let outside = recorder.borrow().outside();
        for (inside, real) in outside {
            // What lies between two real tensors is on the tape.
            if inside.same(input) || !inside.is_fake() && !input.is_fake() {
                continue;
            }
            let mut takes_part = false;
            for output in outputs {
                takes_part |= tp_autograd::depends_on(output, &inside)?;
            }
            if !takes_part {
                continue;
            }
            if tp_autograd::depends_on(&real, &source)? {
                let message = "a gradient inside of a captured function by a tensor that another tensor from outside is, or was computed from: the way between them is no part of the capture";
                return Err(refusal("TP4035", message)
                    .note("compute the other tensor inside of the function, pass detach() of it, or take the gradient outside"));
            }
            recorder.borrow_mut().between.keep_apart(real, source.clone());
        }
    }
    Ok(())
}

/// The function learns whether `a` and `b` are one object, which they are not.
pub fn tell_two(a: &Tensor, b: &Tensor) -> Result<()> {
    let Some(recorder) = innermost() else { return Ok(()) };
    let (Some(real), Some(other)) = (behind(a), behind(b)) else { return Ok(()) };
    if real.same(&other) {
        return if a.same(b) { Ok(()) } else { Err(one_as_two()) };
    }
    recorder.borrow_mut().between.tell_two(real, other);
    Ok(())
}

/// The function gets the hash of a tensor, by which sets and dicts tell tensors apart.
pub fn hashed(t: &Tensor) -> Result<()> {
    let Some(recorder) = innermost() else { return Ok(()) };
    let Some(real) = behind(t) else { return Ok(()) };
    let is_clear = recorder.borrow_mut().between.hash(&real, t.is_fake());
    if is_clear { Ok(()) } else { Err(one_as_two()) }
}

#[cold]
fn one_as_two() -> Error {
    let message = "a captured function asks whether its argument is a tensor that it reaches on its own, which it is: a capture has two for it";
    refusal("TP4036", message).note("pass the tensor once, or ask outside of the function")
}

/// The tensor that existed before the function ran and is `t`, or is what `t` stands for.
pub fn behind(t: &Tensor) -> Option<Tensor> {
    branches::behind(t, active().then(|| SCOPES.with(|s| s.borrow().last().cloned())).flatten())
}

/// Refuses a change of what the tape knows of a tensor that existed before the function ran.
#[inline]
pub fn changes(t: &Tensor, what: &str) -> Result<()> {
    if !active() && !segments::active() || active() && behind(t).is_none() {
        return Ok(());
    }
    once(what, "do it before or after the call, or to a tensor that the function computes")
}

/// What a graph cannot say, refused at the user's line. The capture fails of it even where the function goes on.
#[cold]
pub fn refusal(code: &'static str, message: impl Into<String>) -> Error {
    let mut e = Error::capture(code, message);
    if let Some(at) = host::location() {
        e = e.note(format!("captured at {at}"));
    }
    refused(e)
}

/// Makes an error of the Capture kind stick to the capture in progress.
#[cold]
pub fn refused(e: Error) -> Error {
    if let (Some(recorder), ErrorKind::Capture) = (innermost(), e.kind()) {
        recorder.borrow_mut().refused.get_or_insert((e.code(), e.message().to_string(), e.notes().to_vec()));
    }
    e
}

/// Whether something was refused in the capture in progress.
pub fn is_refused() -> bool {
    innermost().is_some_and(|recorder| recorder.borrow().refused.is_some())
}

/// Refuses what would be done once, by the capture, and by no run.
pub fn once(what: &str, way_out: &str) -> Result<()> {
    if !active() {
        let text = || format!("{what} takes effect at its place");
        return segments::settle_here(Why { code: "TP4031", text: &text });
    }
    Err(refusal("TP4031", format!("{what} in a captured function would take effect in the capture alone"))
        .note(way_out))
}

/// Modes of the thread that a function has to leave as it found them.
#[derive(Clone, Copy)]
pub(super) struct Modes {
    grad: bool,
    autocast: u32,
}

impl Modes {
    pub fn now() -> Modes {
        Modes { grad: state::is_grad_enabled(), autocast: state::autocast() }
    }

    /// Puts the modes back; an error that names the one that was left changed.
    pub fn restore(self, changed_at: Option<&str>) -> Result<()> {
        let now = Modes::now();
        state::set_grad_enabled(self.grad);
        state::set_autocast(self.autocast);
        let what = match (now.grad == self.grad, now.autocast == self.autocast) {
            (true, true) => return Ok(()),
            (false, _) => "grad mode",
            (true, false) => "autocast",
        };
        let mut e = Error::capture(
            "TP4031",
            format!("a captured function left {what} changed, which no run would do"),
        );
        if let Some(at) = changed_at {
            e = e.note(format!("changed at {at}"));
        }
        Err(e.note("change it in a `with` block, or outside of the function"))
    }
}

/// What the function read of the host's state: the entry holds as long as the guards do.
pub fn depend_on(guards: Box<dyn HostGuards>) {
    if let Some(recorder) = innermost() {
        recorder.borrow_mut().host_guards = Some(guards);
    }
}

/// Grad mode was set during the capture: where, in case it is left so.
#[cold]
pub fn note_mode() {
    if let Some(recorder) = innermost() {
        recorder.borrow_mut().mode_changed_at = host::location().map(|at| at.to_string());
    }
}
