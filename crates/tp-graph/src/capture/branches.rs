//! Captures within a capture: what a branch of control flow does is recorded apart, as a graph of its own. What it reads
//! of the capture around it becomes an input, one for each value there, whether the branch got it as an operand or
//! closes over it.

use super::control::Role;
use super::{Recorder, SCOPES, watch};
use crate::entity::{Entity, ValueId};
use crate::ir::{Def, InputKind, ValueType};
use std::cell::RefCell;
use std::rc::Rc;
use tp_dispatch::{Arg, Call, Error, Result, host};
use tp_tensor::symbols::Symbols;
use tp_tensor::{Tensor, TensorSpec};

/// The capture around that of a branch, and what the branch reads of it.
pub(super) struct Around {
    pub recorder: Rc<RefCell<Recorder>>,
    pub reached: Vec<Reached>,
    role: Role,
}

/// A value of the capture around a branch.
pub(super) struct Reached {
    pub value: ValueId,
    /// Which of the inputs of the branch stands for it, and its value there.
    pub input: usize,
    own: ValueId,
    /// The tensors that the branch had for it: the tape knows them apart.
    pub tensors: Vec<Tensor>,
}

/// The capture that a branch is a part of, directly or not.
pub(super) fn outermost(mut recorder: Rc<RefCell<Recorder>>) -> Rc<RefCell<Recorder>> {
    loop {
        let around = recorder.borrow().around.as_ref().map(|a| a.recorder.clone());
        match around {
            Some(around) => recorder = around,
            None => return recorder,
        }
    }
}

/// The tensor that existed before and is `t`, or is what `t` stands for.
pub(super) fn behind(t: &Tensor, recorder: Option<Rc<RefCell<Recorder>>>) -> Option<Tensor> {
    recorder.map(outermost).and_then(|recorder| recorder.borrow().behind(t))
}

/// The capture of a branch; it records until it is dropped.
pub(super) struct BranchScope {
    recorder: Rc<RefCell<Recorder>>,
    modes: watch::Modes,
}

impl BranchScope {
    /// A capture inside of the one in progress on this thread.
    pub fn begin(role: Role) -> Result<BranchScope> {
        let around = current()?;
        let symbols = around.borrow().builder.graph().symbols.clone();
        let mut recorder = Recorder::new(symbols);
        recorder.around = Some(Around { recorder: around, reached: Vec::new(), role });
        let recorder = Rc::new(RefCell::new(recorder));
        SCOPES.with(|s| s.borrow_mut().push(recorder.clone()));
        Ok(BranchScope { recorder, modes: watch::Modes::now() })
    }

    pub fn recorder(&self) -> std::cell::RefMut<'_, Recorder> {
        self.recorder.borrow_mut()
    }

    /// Puts back the modes of the thread; an error where the branch left one changed.
    pub fn restore_modes(&self) -> Result<()> {
        let changed_at = outermost(self.recorder.clone()).borrow().mode_changed_at.clone();
        self.modes.restore(changed_at.as_deref())
    }
}

impl Drop for BranchScope {
    fn drop(&mut self) {
        SCOPES.with(|s| s.borrow_mut().retain(|r| !Rc::ptr_eq(r, &self.recorder)));
    }
}

/// From now on both branches of a choice run, and no write of theirs may be seen outside; `before` is what `select` gave
/// when it began, and ends it. None where nothing is captured.
pub fn select(before: Option<Option<usize>>) -> Option<usize> {
    let recorder = SCOPES.with(|s| s.borrow().last().cloned())?;
    let mut recorder = recorder.borrow_mut();
    let now = recorder.builder.graph().values.len();
    let around = recorder.selecting;
    recorder.selecting = before.unwrap_or(Some(around.unwrap_or(now).max(now)));
    around
}

/// The capture that calls of this thread are recorded by.
pub(super) fn current() -> Result<Rc<RefCell<Recorder>>> {
    let found = SCOPES.with(|s| s.borrow().last().cloned());
    found.ok_or_else(|| {
        Error::capture("TP4012", "control flow over tensors without data, where nothing is captured")
    })
}

impl Recorder {
    pub(super) fn symbols(&self) -> std::sync::Arc<Symbols> {
        self.builder.graph().symbols.clone()
    }

    /// Whether a capture around this one has that number.
    pub(super) fn is_from_around(&self, serial: u32) -> bool {
        self.around.as_ref().is_some_and(|around| {
            let recorder = around.recorder.borrow();
            recorder.serial == serial || recorder.is_from_around(serial)
        })
    }

    /// The input that stands for what `fake` is in the capture around this one.
    pub(super) fn input_for(&mut self, fake: &Tensor) -> Result<ValueId> {
        let value = match &self.around {
            Some(around) => around.recorder.borrow_mut().value_of(fake)?,
            None => return Err(lost()),
        };
        Ok(self.reach_around(value, fake))
    }

    /// A tensor that existed before is lifted by the outermost capture; its stand-in there.
    pub(super) fn lift_around(&mut self, t: &Tensor) -> Result<Tensor> {
        let Some(around) = &self.around else { return Err(lost()) };
        let twin = around.recorder.borrow_mut().stand_in(t)?;
        let value = around.recorder.borrow_mut().value_of(&twin)?;
        self.reach_around(value, t);
        self.real.insert(t.id(), twin.clone());
        Ok(twin)
    }

    fn reach_around(&mut self, value: ValueId, t: &Tensor) -> ValueId {
        let Some(around) = &mut self.around else { return value };
        if let Some(known) = around.reached.iter_mut().find(|r| r.value == value) {
            if !known.tensors.iter().any(|other| other.same(t)) {
                known.tensors.push(t.clone());
            }
            return known.own;
        }
        let input = self.builder.graph().inputs.len();
        let name = format!("outer{}", value.0);
        let own = self.builder.input(name, InputKind::Lifted, ValueType::Tensor(TensorSpec::of(t)), None);
        around.reached.push(Reached { value, input, own, tensors: vec![t.clone()] });
        self.keep(own, Some(super::known::Known::Whole(t.clone())));
        own
    }

    /// A branch that does not run must not have written: what is written to in one is made there.
    pub(super) fn check_writes(&mut self, call: &Call<'_>, args: &[Arg<'_>]) -> Result<()> {
        let role = self.around.as_ref().map(|a| a.role.to_string());
        if role.is_none() && self.selecting.is_none() {
            return Ok(());
        }
        let mut written: Vec<Tensor> = Vec::new();
        for &i in &call.def.params.written {
            if let Some(arg) = args.get(i as usize) {
                arg.for_each_tensor(|t| written.push(t.clone()));
            }
        }
        for t in written {
            let value = self.value_of(&t)?;
            let graph = self.builder.graph();
            let root = graph.root(value);
            let is_input = matches!(graph.values[root].def, Def::Input(_));
            if is_input || self.selecting.is_some_and(|before| root.index() < before) {
                let role = role.unwrap_or_else(|| "a branch of cond in vmap".to_string());
                let mut e = Error::capture("TP4304", format!("{role} writes to a tensor from outside of it"))
                    .with_op(call.op.name())
                    .note("write to a clone() and return that, or write to it with the result outside");
                if let Some(at) = host::location() {
                    e = e.note(format!("captured at {at}"));
                }
                self.refuse_around(&e);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Makes a refusal hold for the capture as a whole.
    fn refuse_around(&mut self, e: &Error) {
        match &self.around {
            Some(around) => around.recorder.borrow_mut().refuse_around(e),
            None => {
                self.refused.get_or_insert((e.code(), e.message().to_string(), e.notes().to_vec()));
            }
        }
    }
}

#[cold]
pub(super) fn lost() -> Error {
    Error::internal("TP9114", "control flow lost a part of its capture")
}
