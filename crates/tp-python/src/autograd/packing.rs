//! Python functions that keep saved tensors elsewhere: one packs a tensor when it is saved, one gives it back when
//! backward asks for it.

use super::returned::Owned;
use super::{object, raised};
use crate::error;
use crate::error::{IntoPyResult, guarded};
use crate::hot::{ffi as x, shell};
use crate::settle;
use pyo3::prelude::*;
use std::any::Any;
use std::sync::Arc;
use tp_autograd::{SavedHooks, SavedTensorsHooks};
use tp_dispatch::host::{HostObject, HostVisitor};
use tp_dispatch::{Error, Result, Value};
use tp_tensor::Tensor;

struct PyHooks {
    pack: Owned,
    unpack: Owned,
    read: Option<Owned>,
}

/// What `pack` returned.
struct Packed(Owned);

impl HostObject for Packed {
    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.0.0.cast());
    }
    fn clear(&self) {}
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn borrowed<'py>(py: Python<'py>, owned: &Owned) -> Bound<'py, PyAny> {
    // SAFETY: a live object while it is owned.
    unsafe { Bound::from_borrowed_ptr(py, owned.0) }
}

fn ask<'py>(py: Python<'py>, hook: &Owned, what: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    x::require_stack()?;
    borrowed(py, hook).call1((what,))
}

impl SavedHooks for PyHooks {
    fn pack(&self, t: &Tensor) -> Result<Value> {
        Python::attach(|py| {
            let made = object(py, Some(t)).and_then(|t| ask(py, &self.pack, t)).map_err(raised)?;
            Ok(Value::Host(Arc::new(Packed(Owned(made.into_ptr())))))
        })
    }

    fn unpack(&self, packed: &Value) -> Result<Tensor> {
        Python::attach(|py| {
            let held = match packed {
                Value::Host(object) => object.as_any().downcast_ref::<Packed>(),
                _ => None,
            };
            let Some(held) = held else {
                return Err(Error::internal("TP9006", "a packed tensor is missing"));
            };
            let out = ask(py, &self.unpack, borrowed(py, &held.0)).map_err(raised)?;
            // SAFETY: a live object.
            unsafe {
                if shell::is_tensor(out.as_ptr()) {
                    return Ok(shell::tensor_of(out.as_ptr()).clone());
                }
            }
            // SAFETY: as above.
            let got = unsafe { x::type_name(out.as_ptr()) };
            let message = format!("unpack_hook must return a Tensor, got {got}");
            Err(Error::contract("TP3233", message))
        })
    }

    fn read(&self, t: &Tensor) -> Result<()> {
        let Some(read) = &self.read else { return Ok(()) };
        Python::attach(|py| object(py, Some(t)).and_then(|t| ask(py, read, t)).map(drop).map_err(raised))
    }

    /// A node packs no more: what is read is not its business.
    fn own(&self) -> Arc<dyn SavedHooks> {
        Python::attach(|py| {
            let own = |hook: &Owned| Owned(borrowed(py, hook).clone().into_ptr());
            Arc::new(PyHooks { pack: own(&self.pack), unpack: own(&self.unpack), read: None })
        })
    }

    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.pack.0.cast());
        visit(self.unpack.0.cast());
    }
}

/// Hooks that are in force on this thread while they are entered.
#[pyclass(frozen, module = "tensorplay.autograd")]
struct SavedTensorsMode {
    hooks: Arc<PyHooks>,
}

#[pymethods]
impl SavedTensorsMode {
    #[new]
    #[pyo3(signature = (pack, unpack, read = None))]
    fn new(
        py: Python<'_>,
        pack: &Bound<'_, PyAny>,
        unpack: &Bound<'_, PyAny>,
        read: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<SavedTensorsMode> {
        guarded(|| {
            for (name, hook) in [("pack_hook", pack), ("unpack_hook", unpack)] {
                if !hook.is_callable() {
                    let message = format!("{name} must be callable, got {}", hook.get_type().name()?);
                    return Err(error::to_py(py, Error::argument("TP3306", message)));
                }
            }
            let own = |hook: &Bound<'_, PyAny>| Owned(hook.clone().into_ptr());
            let hooks = Arc::new(PyHooks { pack: own(pack), unpack: own(unpack), read: read.map(own) });
            Ok(SavedTensorsMode { hooks })
        })
    }

    /// Starts an entry; returns what `leave` is called with.
    fn enter(slf: Py<Self>) -> PyResult<Py<Self>> {
        guarded(|| {
            // Hooks are for what is saved from here on.
            Python::attach(|py| settle::leave("entering hooks on saved tensors").map(drop).py(py))?;
            SavedTensorsHooks::start(slf.get().hooks.clone());
            Ok(slf)
        })
    }

    /// Ends the newest entry; the caller knows that it was made on this thread.
    fn leave(&self) -> PyResult<()> {
        guarded(|| {
            let hooks: Arc<dyn SavedHooks> = self.hooks.clone();
            SavedTensorsHooks::end(&hooks);
            Ok(())
        })
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<SavedTensorsMode>()
}
