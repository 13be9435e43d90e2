//! A Python predicate that decides whether a kernel takes a call.

use super::ffi::{self as x, Obj};
use super::pykernel::from_rust;
use super::{convert, queue, shell};
use crate::error;
use pyo3::ffi;
use pyo3::prelude::*;
use tp_dispatch::host::HostVisitor;
use tp_dispatch::kernel::Call;
use tp_dispatch::select::Predicate;
use tp_dispatch::state::KeyGuard;
use tp_dispatch::{Error, Result, Schema};

pub struct PyPredicate {
    func: Obj,
    positional: usize,
    kwnames: Obj,
    /// Name of the kernel, for messages.
    kernel: Box<str>,
}

// SAFETY: the objects are touched only with the interpreter lock held, and dropped through the queue.
unsafe impl Send for PyPredicate {}
// SAFETY: as above.
unsafe impl Sync for PyPredicate {}

impl PyPredicate {
    pub fn new(func: &Bound<'_, PyAny>, schema: &Schema, kernel: &str) -> PyPredicate {
        let positional = schema.positional_count();
        // SAFETY: lock held, live callable.
        unsafe {
            PyPredicate {
                func: ffi::Py_NewRef(func.as_ptr()),
                positional,
                kwnames: super::pykernel::keyword_names(schema, positional, None),
                kernel: kernel.into(),
            }
        }
    }

    /// # Safety
    /// Lock held; one object per schema argument.
    unsafe fn ask(&self, op: &str, objects: *const Obj) -> Result<bool> {
        let guard = KeyGuard::foreign_kernel();
        // SAFETY: the caller's promise.
        unsafe {
            let out = x::vectorcall(self.func, objects, self.positional, self.kwnames);
            drop(guard);
            if out.is_null() {
                return Err(error::fetch());
            }
            if out == ffi::Py_True() || out == ffi::Py_False() {
                ffi::Py_DECREF(out);
                return Ok(out == ffi::Py_True());
            }
            // NumPy's bool is one, the truth of a tensor is a read of its values that nobody wrote down.
            let answer = if shell::is_tensor(out) { Ok(None) } else { convert::strict_boolean(out) };
            let got = x::type_name(out);
            ffi::Py_DECREF(out);
            answer?.ok_or_else(|| self.no_answer(op, &got))
        }
    }

    #[cold]
    fn no_answer(&self, op: &str, got: &str) -> Error {
        let what =
            format!("{} of kernel '{}' must return True or False, got {got}", self.describe(), self.kernel);
        Error::contract("TP3243", what).with_op(op).note("write the condition out, as in x.ndim == 2")
    }
}

impl Predicate for PyPredicate {
    fn holds(&self, call: &Call<'_>) -> Result<bool> {
        if !call.host.0.is_null() {
            // SAFETY: the door passes its objects along only while it holds the lock.
            return unsafe { self.ask(call.op.name(), call.host.0.cast()) };
        }
        let mut answer = false;
        from_rust(call, |objects| {
            // SAFETY: lock held inside.
            answer = unsafe { self.ask(call.op.name(), objects)? };
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
