//! `functools.cached_property`: the one write to an object of the user's that a capture may leave behind. The value is the
//! same whoever asks first; that it is there afterwards is the guard.

use super::expect::owned;
use super::guards::{Check, Guard, item};
use super::session::Session;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::cell::Cell;
use tp_dispatch::Error;
use tp_graph::capture::watch;

thread_local! {
    /// The last capture of this thread failed for what it has left in the right place: the next one will not.
    static KEPT: Cell<bool> = const { Cell::new(false) };
}

/// Whether a capture that failed is to be made again, asked once.
pub fn may_succeed_now() -> bool {
    KEPT.take()
}

/// A property that was asked for before it had a value.
pub struct Lazy {
    dict: Py<PyAny>,
    name: Py<PyAny>,
    path: String,
    at: Option<String>,
}

fn class(py: Python<'_>) -> Option<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CLASS.import(py, "functools", "cached_property").ok()
}

/// # Safety
/// A live object, lock held.
pub unsafe fn is_lazy(descriptor: Obj) -> bool {
    crate::error::attached(|py| {
        class(py).is_some_and(|c| c.as_ptr() == unsafe { x::type_of(descriptor) }.cast())
    })
}

/// Whether a code object is the one that computes and keeps the value: what it writes is settled here.
pub fn is_keeper(py: Python<'_>, code: Obj) -> bool {
    static CODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let find = || {
        class(py).ok_or(()).and_then(|c| {
            c.getattr("__get__").and_then(|get| get.getattr("__code__")).map(Bound::unbind).map_err(drop)
        })
    };
    CODE.get_or_try_init(py, find).is_ok_and(|keeper| keeper.as_ptr() == code)
}

impl Session {
    /// Notes the read of a property that has no value yet; false where it has one.
    pub(super) unsafe fn note_lazy(&mut self, dict: Obj, name: Obj, path: &str) -> bool {
        unsafe {
            if !item(dict, name).is_null() {
                return false;
            }
            let at = tp_dispatch::host::location().map(|at| at.to_string());
            self.lazy.push(Lazy { dict: owned(dict), name: owned(name), path: path.to_string(), at });
            true
        }
    }

    /// Guards the values that came to be; those that hold something of the capture are taken away, and the first of them
    /// is refused. A tensor made of data stays, with its data, as the function itself would have left it: a capture that
    /// finds it there is of use, this one is not.
    pub(super) unsafe fn settle_lazy(&mut self, py: Python<'_>) -> PyResult<()> {
        let (mut refused, mut kept) = (None, None);
        for Lazy { dict, name, path, at } in std::mem::take(&mut self.lazy) {
            // SAFETY: a live dict and key, lock held.
            let value = unsafe { item(dict.as_ptr(), name.as_ptr()) };
            if value.is_null() {
                continue;
            }
            let object: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, value) };
            let leak = py.import("tensorplay._containers")?.call_method1("leak", (object,))?;
            if leak.is_none() {
                let value = unsafe { self.value(value) };
                self.guards.push(Guard { name: path, check: Check::Item { dict, key: name, value } });
                continue;
            }
            let refusal = || {
                let e = Error::capture("TP4031", format!("{path} would keep {leak}, in the capture alone"));
                let e = at.iter().fold(e, |e, at| e.note(format!("captured at {at}")));
                e.note("ask for the property once before the call, or make it a function")
            };
            // SAFETY: a live object.
            let made = unsafe { shell::is_tensor(value).then(|| shell::tensor_of(value)) };
            if let Some(source) = made.and_then(tp_graph::capture::source) {
                dict.bind(py).set_item(&name, crate::tensor::wrap(py, source)?)?;
                kept.get_or_insert_with(refusal);
                continue;
            }
            refused.get_or_insert_with(refusal);
            if unsafe { ffi::PyDict_DelItem(dict.as_ptr(), name.as_ptr()) } != 0 {
                unsafe { ffi::PyErr_Clear() };
            }
        }
        KEPT.set(refused.is_none() && kept.is_some());
        match refused.or(kept) {
            Some(e) => Err(crate::error::to_py(py, watch::refused(e))),
            None => Ok(()),
        }
    }
}
