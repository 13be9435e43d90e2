//! Functions that no graph can hold as a whole (`fullgraph=False`): Python runs at every call, and the calls of ops between
//! two breaks become one compiled segment. While a `Scope` lives, calls of its thread pass the Segment key, which writes
//! them down (`record`) and gives tensors whose data is pending. What needs data or order settles them: the segment is
//! found by its structure or compiled (`run`, `store`), runs, and everybody who holds one of its tensors has its data.
//!
//! Invariant: what is not written down runs at its place, under no scope. Nothing is pending on a thread while code of the
//! host runs inside of an op, a rule or a backward pass.
//! Invariant: a call that is put off is pure, native, cannot fail by its values, and reads memory whose address nobody
//! has: when it runs makes no difference to anybody.

mod cut;
mod queue;
mod record;
mod replay;
mod run;
mod store;

pub use store::{Break, Fresh, Store};

use queue::{Origin, Run};
use record::Recording;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use tp_dispatch::state::{self, Excursion};
use tp_dispatch::{Call, DispatchKey, Error, Registry, Result, Rets, dispatcher};
use tp_tensor::Tensor;

thread_local! {
    static CURRENT: RefCell<Option<Arc<Run>>> = const { RefCell::new(None) };
}

/// Makes the Segment key record. Called once, at start-up.
pub(crate) fn install() {
    Registry::global().install_layer(DispatchKey::Segment, segment_kernel);
    tp_dispatch::check::set_readers(queue::settle_readers);
}

/// Whether calls of this thread are written down.
#[inline(always)]
pub fn active() -> bool {
    state::includes(DispatchKey::Segment)
}

fn current() -> Option<Arc<Run>> {
    if active() { CURRENT.with_borrow(Clone::clone) } else { None }
}

/// One call of a function in segments, on this thread.
pub struct Scope {
    run: Arc<Run>,
    is_open: bool,
    _thread: PhantomData<*const ()>,
}

impl Scope {
    /// Starts one; the thread is in none yet.
    pub fn enter(store: &Arc<Store>) -> Scope {
        let run = Run::open(store.clone());
        CURRENT.set(Some(run.clone()));
        state::set_included(DispatchKey::Segment, true);
        Scope { run, is_open: true, _thread: PhantomData }
    }

    /// Ends it: what is still pending, and held by somebody, gets its data.
    pub fn finish(mut self) -> Result<()> {
        self.close()
    }

    fn close(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_open, false) {
            return Ok(());
        }
        let done = self.run.flush();
        state::set_included(DispatchKey::Segment, false);
        CURRENT.set(None);
        self.run.end();
        done
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // On the way out of a panic there is nobody to tell.
        drop(self.close());
    }
}

/// What ends a segment: a stable code, and the text of what was done.
#[derive(Clone, Copy)]
pub struct Why<'a> {
    pub code: &'static str,
    pub text: &'a dyn Fn() -> String,
}

/// What is read of `t` needs its data, or may change what was read by calls written down before: those run. Noted as a
/// break where this thread is in a scope.
#[cold]
pub fn settle(t: &Tensor, why: Why<'_>) -> Result<()> {
    settle_here(why)?;
    if t.is_pending() { settle_elsewhere(t) } else { Ok(()) }
}

/// As `settle`, without a note of it.
#[cold]
pub fn settle_quietly(t: &Tensor) -> Result<()> {
    if let Some(run) = current() {
        run.flush()?;
    }
    if t.is_pending() { settle_elsewhere(t) } else { Ok(()) }
}

/// As `settle`, for what is done to no tensor in particular.
#[cold]
pub fn settle_here(why: Why<'_>) -> Result<()> {
    let Some(run) = current() else { return Ok(()) };
    run.note_break(why);
    run.flush()
}

/// As `settle_here`; calls of this thread run at their place while what it gives lives.
#[cold]
pub fn leave(why: Why<'_>) -> Result<Option<Excursion>> {
    settle_here(why)?;
    Ok(Excursion::from(DispatchKey::Segment))
}

/// Before a write to the memory of `t` by other ways than an op, and before somebody gets its address: calls of any thread
/// that were put off and read it run.
#[inline]
pub fn before_write(t: &Tensor) -> Result<()> {
    if t.storage().is_awaited() { queue::settle_readers(t) } else { Ok(()) }
}

/// Data that a call on some thread has to compute yet.
#[cold]
fn settle_elsewhere(t: &Tensor) -> Result<()> {
    let storage = t.storage();
    let origin = storage.owner().and_then(|o| o.as_any()).and_then(|o| o.downcast_ref::<Origin>());
    if let Some(run) = origin.and_then(Origin::run) {
        run.flush()?;
    }
    if t.is_pending() { Err(lost()) } else { Ok(()) }
}

#[cold]
fn lost() -> Error {
    Error::capture("TP4012", "the data of a tensor never came: the segment that was to compute it failed")
        .note("the error of that segment was raised where it ran")
}

/// The kernel of the Segment layer, for every op.
fn segment_kernel(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let Some(run) = current() else { return at_once(call, rets) };
    match run.record(call, rets)? {
        Recording::Done => return Ok(()),
        Recording::Refused { all, text } => {
            let mut waits = false;
            call.for_each_tensor(|_, t| waits |= t.is_pending());
            if waits || all {
                let text = || format!("{} {text}", call.op.full_name());
                run.note_forced(Why { code: "TP4041", text: &text });
                run.flush()?;
            }
        }
    }
    let _here = Excursion::from(DispatchKey::Segment);
    at_once(call, rets)
}

/// Runs a call whose tensors may be pending on any thread.
fn at_once(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let mut settled = Ok(());
    call.for_each_tensor(|_, t| {
        if settled.is_ok() && t.is_pending() {
            settled = settle_elsewhere(t);
        }
    });
    settled?;
    dispatcher::redispatch_anew(call, DispatchKey::Segment, rets)
}
