//! Python functions as gradient hooks.

use super::returned::Owned;
use super::{TensorArg, object, raised};
use crate::error::guarded;
use crate::error::{self, IntoPyResult};
use crate::hot::{ffi as x, shell};
use pyo3::prelude::*;
use std::sync::Arc;
use tp_autograd::NodeRef;
use tp_autograd::tape::{GradHook, HookId};
use tp_dispatch::host::HostVisitor;
use tp_dispatch::{Error, Result};
use tp_graph::capture::watch;
use tp_tensor::Tensor;

struct PyHook(Owned);

impl GradHook for PyHook {
    fn call(&self, grad: &Tensor) -> Result<Option<Tensor>> {
        error::attached(|py| {
            let call = |g| x::require_stack().and_then(|()| callable(py, &self.0).call1((g,)));
            let out = object(py, Some(grad)).and_then(call).map_err(raised)?;
            if out.is_none() {
                return Ok(None);
            }
            // SAFETY: a live object.
            unsafe {
                if shell::is_tensor(out.as_ptr()) {
                    return Ok(Some(shell::tensor_of(out.as_ptr()).clone()));
                }
            }
            // SAFETY: as above.
            let got = unsafe { x::type_name(out.as_ptr()) };
            Err(Error::contract("TP3233", format!("a hook must return a Tensor or None, got {got}")))
        })
    }

    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.0.0.cast());
    }
}

fn callable<'py>(py: Python<'py>, owned: &Owned) -> Bound<'py, PyAny> {
    // SAFETY: a live object while it is owned.
    unsafe { Bound::from_borrowed_ptr(py, owned.0) }
}

/// Takes a hook away again.
#[pyclass(frozen, module = "tensorplay.autograd")]
struct HookHandle {
    node: NodeRef,
    id: HookId,
}

#[pymethods]
impl HookHandle {
    /// Removes the hook; a second call does nothing.
    fn remove(&self) -> PyResult<()> {
        guarded(|| {
            if let Some(extra) = self.node.extra() {
                extra.remove_hook(self.id);
            }
            Ok(())
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        guarded(|| {
            let there = self.node.extra().is_some_and(|extra| extra.has_hook(self.id));
            let what = if there { "hook" } else { "removed hook" };
            Ok(format!("<{what} on the gradient of {}>", self.node.name()))
        })
    }
}

/// Calls `hook(grad)` whenever a gradient of `t` is computed; a tensor it returns replaces the gradient.
#[pyfunction]
fn register_hook<'py>(
    py: Python<'py>,
    t: TensorArg,
    hook: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        if !hook.is_callable() {
            let message = format!("a hook must be callable, got {}", hook.get_type().name()?);
            return Err(error::to_py(py, Error::argument("TP3306", message)));
        }
        if t.0.is_batched() {
            return crate::batch::hook(py, &t.0, hook);
        }
        watch::changes(&t.0, "register_hook()").py(py)?;
        let hook = Arc::new(PyHook(Owned(hook.clone().into_ptr())));
        let (node, id) = tp_autograd::meta::register_hook(&t.0, hook).py(py)?;
        Ok(Bound::new(py, HookHandle { node, id })?.into_any())
    })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<HookHandle>()?;
    m.add_function(wrap_pyfunction!(register_hook, m)?)
}
