//! The calls that one call of a function has written down and not run yet. The thread of the call writes; another one that
//! meets a pending tensor runs them for it.
//!
//! Invariant: the lock is held for moments in which neither code of the host runs nor its lock is taken. Whoever has to
//! wait for another thread's run gives up the host's lock first.

use super::store::Store;
use super::{Why, run};
use crate::last;
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use tp_dispatch::host::{self, Location};
use tp_dispatch::{Error, OpHandle, Result, Value};
use tp_tensor::{StorageOwner, Tensor};

/// One call in segments.
pub(super) struct Run {
    pub store: Arc<Store>,
    pub state: Mutex<State>,
    done: Condvar,
    /// What ran so far, for the report.
    pub parts: Mutex<Vec<last::Last>>,
    /// Where it broke off last.
    broke_at: Mutex<Option<Location>>,
    /// Something was compiled.
    pub has_built: AtomicBool,
    /// Places are worth finding out: the call before this one compiled something, or there was none.
    pub is_cold: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub segment: Segment,
    /// Who runs what was taken from here.
    busy: Option<ThreadId>,
}

/// Calls in order, with what they read and make.
#[derive(Default)]
pub(super) struct Segment {
    pub steps: Vec<Step>,
    /// Tensors that existed before.
    pub inputs: Vec<Input>,
    pub made: Vec<Made>,
    /// Numbers that a compiled segment takes as arguments.
    pub numbers: Vec<Value>,
    /// Inputs by their headers, where they are many.
    pub known: HashMap<usize, u32>,
    /// Grad mode of all steps.
    pub grad: bool,
    /// Tells segments of one run apart: what is left pending by a failed one is of no later one.
    pub epoch: u32,
}

pub(super) struct Input {
    pub tensor: Tensor,
    /// Of the storage when the tensor was first read.
    pub version: u32,
}

pub(super) struct Made {
    /// The one reference that does not count as somebody's.
    pub tensor: Tensor,
    pub requires_grad: bool,
}

pub(super) struct Step {
    pub op: OpHandle,
    pub args: Box<[Source]>,
    pub outs: SmallVec<[Out; 1]>,
    pub location: Option<Location>,
    /// What it makes are views of what argument `of` is.
    pub is_view: bool,
}

/// Where an argument comes from.
pub(super) enum Source {
    Input(u32),
    Made(u32),
    /// One of the segment's numbers.
    Number(u32),
    Literal(Value),
    List(Box<[Source]>),
    Optional(Box<[Option<Source>]>),
}

pub(super) enum Out {
    New(u32),
    List(std::ops::Range<u32>),
    /// View number, and number of the argument that it is a view of.
    View(u32, u32),
}

impl Source {
    pub fn each(&self, f: &mut dyn FnMut(&Source)) {
        match self {
            Source::List(items) => items.iter().for_each(f),
            Source::Optional(items) => items.iter().flatten().for_each(f),
            one => f(one),
        }
    }
}

impl Out {
    pub fn numbers(&self) -> std::ops::Range<u32> {
        match self {
            Out::New(i) | Out::View(i, _) => *i..*i + 1,
            Out::List(range) => range.clone(),
        }
    }
}

/// What the storage of a pending tensor knows: who will fill it.
pub(super) struct Origin(pub Weak<Run>);

impl StorageOwner for Origin {
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl Origin {
    pub fn run(&self) -> Option<Arc<Run>> {
        self.0.upgrade()
    }
}

impl Run {
    pub fn open(store: Arc<Store>) -> Arc<Run> {
        let run = Arc::new(Run {
            is_cold: store.is_cold(),
            store,
            state: Mutex::default(),
            done: Condvar::new(),
            parts: Mutex::default(),
            has_built: AtomicBool::new(false),
            broke_at: Mutex::default(),
        });
        OPEN.lock().push(Arc::downgrade(&run));
        run
    }

    /// Notes a break, unless one was noted at that place and nothing has been written down since: one call may read in
    /// several ways.
    pub fn note_break(&self, why: Why<'_>) {
        let location = host::location();
        let is_idle = self.state.lock().segment.steps.is_empty();
        let before = std::mem::replace(&mut *self.broke_at.lock(), location.clone());
        if !is_idle || location.is_none() || before != location {
            self.store.note_break(why.code, (why.text)(), location);
        }
    }

    /// A break where there is something to break off.
    pub fn note_forced(&self, why: Why<'_>) {
        if !self.state.lock().segment.steps.is_empty() {
            self.note_break(why);
        }
    }

    /// Waits while another thread runs what was taken from the queue.
    pub fn ready(&self) -> Result<()> {
        loop {
            match self.state.lock().busy {
                None => return Ok(()),
                Some(who) if who == std::thread::current().id() => return Err(inside()),
                Some(_) => {}
            }
            host::without_lock(|| {
                let mut state = self.state.lock();
                while state.busy.is_some() {
                    self.done.wait(&mut state);
                }
            });
        }
    }

    /// Runs what was written down so far.
    pub fn flush(self: &Arc<Self>) -> Result<()> {
        let segment = loop {
            self.ready()?;
            let mut state = self.state.lock();
            if state.busy.is_some() {
                continue;
            }
            if state.segment.steps.is_empty() {
                return Ok(());
            }
            let epoch = state.segment.epoch.wrapping_add(1);
            let next = Segment { epoch, ..Segment::default() };
            let segment = std::mem::replace(&mut state.segment, next);
            state.busy = Some(std::thread::current().id());
            break segment;
        };
        let _running = Running(self);
        run::run(self, segment)
    }

    /// The call is over: its report is that of the function's last run.
    pub fn end(&self) {
        OPEN.lock().retain(|run| !std::ptr::eq(run.as_ptr(), self));
        let parts = std::mem::take(&mut *self.parts.lock());
        self.store.ended(parts, self.has_built.load(Ordering::Relaxed));
    }
}

/// Calls in segments under way on all threads.
static OPEN: Mutex<Vec<Weak<Run>>> = Mutex::new(Vec::new());

/// Before a write to `t`: what was written down and reads its memory runs.
pub(super) fn settle_readers(t: &Tensor) -> Result<()> {
    let open: Vec<Arc<Run>> = OPEN.lock().iter().filter_map(Weak::upgrade).collect();
    for run in open {
        let reads = run.state.lock().segment.inputs.iter().any(|input| input.tensor.shares_storage(t));
        if reads {
            run.flush()?;
        }
    }
    t.storage().set_awaited(false);
    Ok(())
}

/// Lets the others go on.
struct Running<'a>(&'a Run);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = None;
        self.0.done.notify_all();
    }
}

#[cold]
fn inside() -> Error {
    Error::capture("TP4012", "a tensor without data was used by what is about to compute it")
        .note("a backend or a rule met a tensor of the segment that it is compiled for")
}
