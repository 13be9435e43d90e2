//! Python functions as gradient hooks.

use super::context::object;
use super::{TensorArg, raised};
use crate::error::IntoPyResult;
use crate::hot::shell;
use pyo3::prelude::*;
use std::sync::Arc;
use tp_autograd::NodeRef;
use tp_autograd::tape::{GradHook, HookId};
use tp_dispatch::host::HostVisitor;
use tp_dispatch::{Error, Result};
use tp_tensor::Tensor;

struct PyHook(Py<PyAny>);

impl GradHook for PyHook {
    fn call(&self, grad: &Tensor) -> Result<Option<Tensor>> {
        crate::error::attached(|py| {
            let out = object(py, Some(grad)).and_then(|g| self.0.bind(py).call1((g,))).map_err(raised)?;
            if out.is_none() {
                return Ok(None);
            }
            // SAFETY: a live object.
            unsafe {
                if shell::is_tensor(out.as_ptr()) {
                    return Ok(Some(shell::tensor_of(out.as_ptr()).clone()));
                }
            }
            Err(Error::contract(
                "TP3233",
                format!("a hook must return a Tensor or None, got {}", out.get_type()),
            ))
        })
    }

    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.0.as_ptr().cast());
    }
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
    fn remove(&self) {
        if let Some(extra) = self.node.extra() {
            extra.remove_hook(self.id);
        }
    }
}

/// Calls `hook(grad)` whenever a gradient of `t` is computed; a tensor it returns replaces the gradient.
#[pyfunction]
fn register_hook(py: Python<'_>, t: TensorArg, hook: Py<PyAny>) -> PyResult<HookHandle> {
    let (node, id) = tp_autograd::meta::register_hook(&t.0, Arc::new(PyHook(hook))).py(py)?;
    Ok(HookHandle { node, id })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<HookHandle>()?;
    m.add_function(wrap_pyfunction!(register_hook, m)?)
}
