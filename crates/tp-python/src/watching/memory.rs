//! Memory of arrays that the function writes to, or makes and returns, by ways that no run would take.

use super::contents;
use super::guards::{Check, Guard};
use super::natives::{Nature, article};
use super::session::Session;
use crate::hot::ffi::{self as x, Obj};
use pyo3::ffi;
use tp_dispatch::Error;
use tp_graph::capture::watch;

/// Containers within containers that a result is looked through.
const DEPTH: usize = 8;

impl Session {
    /// An op is called: an array from outside holds what it held, also where the function would put it back later, since a
    /// tensor over that memory reads it now, and a run's would without the write.
    pub(super) unsafe fn op_begins(&mut self) {
        if !std::mem::take(&mut self.may_have_written) {
            return;
        }
        let is_changed = |guard: &&Guard| match &guard.check {
            // SAFETY: a live object that the guard owns, lock held.
            Check::Buffer { of, seen } => !unsafe { seen.holds(of.as_ptr()) },
            _ => false,
        };
        if let Some(guard) = self.guards.iter().find(is_changed) {
            let message = format!(
                "writing to {} in a captured function, before this call, would take effect in the capture alone",
                guard.name
            );
            let e = watch::refusal("TP4031", message)
                .note("write to a copy of the array, or outside of the function");
            self.pending.get_or_insert(e);
        }
    }

    /// The refusal of a result that is, or holds, memory that the function made: every run would give away the same.
    pub(super) unsafe fn refuse_new_memory(&mut self, result: Obj) -> Option<Error> {
        let found = unsafe { self.new_memory(result, DEPTH) }?;
        // SAFETY: a live object, lock held.
        let class = article(&unsafe { x::type_name(found) });
        let message =
            format!("the captured function makes and returns {class}, which no run would make anew");
        Some(watch::refused(
            Error::capture("TP4033", message).note("return a tensor: tensorplay.tensor(array)"),
        ))
    }

    unsafe fn new_memory(&mut self, of: Obj, depth: usize) -> Option<Obj> {
        unsafe {
            if !self.is_old(of) && self.nature(x::type_of(of)) == Nature::Buffer {
                return Some(of);
            }
            if depth == 0 {
                return None;
            }
            if ffi::PyTuple_Check(of) != 0 {
                let items = 0..ffi::PyTuple_Size(of);
                return items
                    .into_iter()
                    .find_map(|i| self.new_memory(ffi::PyTuple_GetItem(of, i), depth - 1));
            }
            let held = contents::kind(of).map_or_else(Vec::new, |kind| contents::contents(of, kind));
            held.iter().find_map(|one| self.new_memory(one.as_ptr(), depth - 1))
        }
    }
}
