//! Watching a function while it is captured: every read of Python state that existed before becomes a guard of the entry,
//! every write to it is refused unless it is taken back, and calls whose effects or state nobody can see are refused by
//! name and line.
//!
//! Lives here: when a thread is watched, and what comes of it. `session` has the events, `reads`, `attributes`, `calls`
//! and `writes` what they mean, `memory` what becomes of arrays, `natives` which native code is known, `assumed` what the
//! caller vouches for; `entry`, `guards`, `quick`, `expect`, `contents` and `buffers` what is checked later; `frame`, `code` and `api` know CPython. Watched is
//! the thread that captures, by opcode events: on versions of CPython without a row in `frame` nothing is, and captures go
//! on as if nothing outside of the arguments ever changed. Trace functions of debuggers and coverage tools pause for the
//! time of a capture.
//!
//! Unsafe code here works on objects that the interpreter lends for the time of one event, or that a guard owns, with the
//! interpreter lock held throughout.

mod addresses;
mod again;
mod api;
mod assumed;
mod attributes;
mod buffers;
mod calls;
mod code;
mod contents;
pub mod entry;
mod expect;
mod frame;
mod guards;
mod lazy;
mod memory;
mod natives;
mod quick;
mod reads;
mod session;
mod writes;

use crate::hot::ffi::Obj;
use entry::PyGuards;
pub use lazy::may_succeed_now;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use session::{CURRENT, Session, trace};
use std::cell::Cell;
use tp_dispatch::Error;
use tp_graph::capture::watch;

/// Whether captures of this interpreter are watched.
pub fn is_available() -> bool {
    api::api().is_some()
}

thread_local! {
    /// Functions under way on this thread that belong to an operator's contract.
    static PAUSES: Cell<u32> = const { Cell::new(0) };
}

struct Paused;

/// Runs a function that belongs to an operator: what it reads and keeps is its own, and not watched.
#[inline]
pub fn paused<R>(call: impl FnOnce() -> R) -> R {
    if !tp_graph::capture::active() {
        return call();
    }
    PAUSES.set(PAUSES.get() + 1);
    let _paused = Paused;
    call()
}

impl Drop for Paused {
    fn drop(&mut self) {
        PAUSES.set(PAUSES.get() - 1);
    }
}

/// A thread that is being watched. The trace function that was set before is back when this is dropped.
pub struct Watching {
    session: Box<Session>,
    outer: *mut Session,
    before: Py<PyAny>,
    is_on: bool,
}

/// The object that `sys.gettrace()` gives while a capture is watched.
fn marker(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static MARKER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = MARKER.get_or_try_init(py, || {
        Ok::<_, PyErr>(pyo3::types::PyString::new(py, "tensorplay watches a capture").into_any().unbind())
    })?;
    Ok(made.bind(py))
}

fn current(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("sys")?.call_method0("gettrace")
}

impl Watching {
    /// Starts to watch this thread; None where the interpreter cannot be watched. What `made` holds is the call's own, and
    /// the caller vouches for what `assumed` names.
    pub fn begin(
        py: Python<'_>,
        function: &Bound<'_, PyAny>,
        made: &[Obj],
        assumed: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<Option<Watching>> {
        let Some(api) = api::api() else { return Ok(None) };
        let root = match function.getattr_opt("__func__")? {
            Some(method) => method,
            None => function.clone(),
        };
        let mut session = Box::new(Session::new(api, root.as_ptr()));
        made.iter().for_each(|one| session.mark_fresh(*one));
        session.assume(assumed)?;
        let before = current(py)?.unbind();
        let outer = CURRENT.replace(&raw mut *session);
        // SAFETY: lock held; `stop` takes it off again.
        unsafe { (api.set_trace)(Some(trace), marker(py)?.as_ptr()) };
        Ok(Some(Watching { session, outer, before, is_on: true }))
    }

    /// Sets the trace function that was set before. Whether ours was still there.
    fn stop(&mut self, py: Python<'_>) -> PyResult<bool> {
        if !std::mem::replace(&mut self.is_on, false) {
            return Ok(true);
        }
        CURRENT.set(self.outer);
        let marker = marker(py)?;
        let was_ours = current(py)?.is(marker);
        let (before, set_trace) = (self.before.bind(py), self.session.api.set_trace);
        // SAFETY: lock held.
        unsafe {
            if before.is(marker) {
                set_trace(Some(trace), marker.as_ptr());
            } else {
                set_trace(None, std::ptr::null_mut());
            }
        }
        if !before.is(marker) && !before.is_none() {
            py.import("sys")?.call_method1("settrace", (before,))?;
        }
        Ok(was_ours)
    }

    /// Ends watching after the function returned `result`: its guards go to the capture. An error where it wrote to what was
    /// there before, returned memory that it made, or took the watch off.
    pub fn finish(mut self, py: Python<'_>, result: &Bound<'_, PyAny>) -> PyResult<()> {
        let was_ours = self.stop(py)?;
        // SAFETY: lock held.
        unsafe { self.session.settle_writes() }.map_err(|e| crate::error::to_py(py, e))?;
        unsafe { self.session.settle_lazy(py) }?;
        if let Some(e) = unsafe { self.session.refuse_new_memory(result.as_ptr()) } {
            return Err(crate::error::to_py(py, e));
        }
        if !was_ours {
            let e = Error::capture(
                "TP4036",
                "the captured function set a trace function, and could not be watched further",
            );
            let e = watch::refused(e.note("set it, or enter the debugger, outside of the function"));
            return Err(crate::error::to_py(py, e));
        }
        let mut guards = std::mem::take(&mut self.session.guards);
        guards.retain(|guard| !self.session.assumed.has_path(&guard.name));
        if !guards.is_empty() {
            let is_pinned = |obj: Obj| self.session.is_pinned(obj);
            watch::depend_on(Box::new(PyGuards::new(self.session.api, guards, is_pinned)));
        }
        Ok(())
    }

    /// Ends watching after the function raised. A refusal takes back what it wrote, and so does a capture that is tried
    /// again.
    pub fn abandon(mut self, py: Python<'_>, refused: bool) {
        // The exception under way matters more than one of `sys.settrace`.
        drop(self.stop(py));
        if refused {
            // SAFETY: lock held. The first refusal is the one that counts.
            drop(unsafe { self.session.settle_writes() });
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        crate::error::attached(|py| drop(self.stop(py)));
    }
}
