//! What a definition or a kernel was registered for, so that it can be taken back, and what lives by it for the cycle
//! collector. Registering is not here.

use crate::error::guarded;
use crate::ops::{base_name, packet, packets};
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use std::ptr::NonNull;
use tp_dispatch::{OpHandle, Registration};

/// A definition or a kernel that can be taken back.
#[pyclass(module = "tensorplay._native", name = "Registration")]
pub struct PyRegistration(pub(crate) Option<Registration>);

#[pymethods]
impl PyRegistration {
    /// Undoes the registration; a second call does nothing.
    fn undo(&mut self, py: Python<'_>) -> PyResult<()> {
        guarded(|| {
            let Some(registration) = self.0.take() else { return Ok(()) };
            let op = registration.op();
            drop(registration);
            forget(py, op)
        })
    }

    /// What lives by the registration is its own, so that a library which only its own kernels refer to is garbage.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(registration) = &self.0 else { return Ok(()) };
        let mut result = Ok(());
        let mut visit = |object: *mut ()| {
            let Some(object) = NonNull::new(object.cast::<pyo3::ffi::PyObject>()) else { return };
            // SAFETY: `Py` is a transparent pointer that is not null, and the object is alive. It is only looked at.
            let object = unsafe { &*(&raw const object).cast::<Py<PyAny>>() };
            if result.is_ok() {
                result = visit.call(object);
            }
        };
        registration.trace(&mut visit, tp_autograd::trace_spec);
        result
    }
}

/// Lets go of what the op objects keep of definitions that are not in force any more.
pub(crate) fn forget(py: Python<'_>, op: OpHandle) -> PyResult<()> {
    for name in [base_name(op.name()), &op.full_name()] {
        if let Some(found) = packets(py).get_item(name)? {
            packet(&found)?.forget();
        }
    }
    Ok(())
}

impl Drop for PyRegistration {
    fn drop(&mut self) {
        if let Some(r) = self.0.take() {
            r.keep();
        }
    }
}
