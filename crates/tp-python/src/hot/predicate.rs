//! A Python predicate that decides whether a kernel takes a call.

use super::ffi::{self as x, Obj};
use super::pykernel::from_rust;
use super::queue;
use crate::error;
use pyo3::ffi;
use pyo3::prelude::*;
use tp_dispatch::host::HostVisitor;
use tp_dispatch::kernel::Call;
use tp_dispatch::select::Predicate;
use tp_dispatch::state::KeyGuard;
use tp_dispatch::{Result, Schema};

pub struct PyPredicate {
    func: Obj,
    positional: usize,
    kwnames: Obj,
}

// SAFETY: the objects are touched only with the interpreter lock held, and dropped through the queue.
unsafe impl Send for PyPredicate {}
// SAFETY: as above.
unsafe impl Sync for PyPredicate {}

impl PyPredicate {
    pub fn new(func: &Bound<'_, PyAny>, schema: &Schema) -> PyPredicate {
        let positional = schema.positional_count();
        // SAFETY: lock held, live callable.
        unsafe {
            PyPredicate {
                func: ffi::Py_NewRef(func.as_ptr()),
                positional,
                kwnames: super::pykernel::keyword_names(schema, positional, None),
            }
        }
    }

    /// # Safety
    /// Lock held; one object per schema argument.
    unsafe fn ask(&self, objects: *const Obj) -> Result<bool> {
        let guard = KeyGuard::foreign_kernel();
        // SAFETY: the caller's promise.
        unsafe {
            let out = x::vectorcall(self.func, objects, self.positional, self.kwnames);
            drop(guard);
            if out.is_null() {
                return Err(error::fetch());
            }
            let truth = ffi::PyObject_IsTrue(out);
            ffi::Py_DECREF(out);
            if truth < 0 { Err(error::fetch()) } else { Ok(truth == 1) }
        }
    }
}

impl Predicate for PyPredicate {
    fn holds(&self, call: &Call<'_>) -> Result<bool> {
        if !call.host.0.is_null() {
            // SAFETY: the door passes its objects along only while it holds the lock.
            return unsafe { self.ask(call.host.0.cast()) };
        }
        let mut answer = false;
        from_rust(call, |objects| {
            // SAFETY: lock held inside.
            answer = unsafe { self.ask(objects)? };
            Ok(())
        })?;
        Ok(answer)
    }

    fn describe(&self) -> String {
        error::attached(|py| {
            // SAFETY: a live callable.
            let f = unsafe { Bound::from_borrowed_ptr(py, self.func) };
            let name = f.getattr("__qualname__").and_then(|n| n.extract::<String>());
            name.map_or_else(|_| "its predicate".to_string(), |n| format!("predicate {n}"))
        })
    }

    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.func.cast());
    }
}

impl Drop for PyPredicate {
    fn drop(&mut self) {
        queue::release(self.func);
        queue::release(self.kwnames);
    }
}
