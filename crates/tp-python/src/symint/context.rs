//! The context of a fake rule, which makes fresh sizes.

use super::PySymInt;
use crate::error::{IntoPyResult, guarded};
use crate::hot::sizes::size_object;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use std::hash::{DefaultHasher, Hash, Hasher};
use tp_dispatch::Error;
use tp_dispatch::fake::dynamic::{self, FakeContext};

/// The context of the fake rule that is running: `library.get_ctx()`.
#[pyclass(frozen, name = "FakeContext", module = "tensorplay.library")]
pub struct PyFakeContext(FakeContext);

#[pymethods]
impl PyFakeContext {
    /// A fresh size from `min` to `max` (no upper bound for None): what the kernel's output has on that axis is known in
    /// a run only. It must be the size of an axis of some output, or a multiple of it.
    #[pyo3(signature = (min = None, max = None))]
    fn new_dynamic_size(
        &self,
        py: Python<'_>,
        min: Option<Bound<'_, PyAny>>,
        max: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        guarded(|| {
            let low = min.map(|v| self.bound("min", &v)).transpose()?.unwrap_or(0);
            let high = max.map(|v| self.bound("max", &v)).transpose()?;
            let size = self.0.new_size(low, high).py(py)?;
            // SAFETY: lock held.
            unsafe { Bound::from_owned_ptr_or_err(py, size_object(size.raw())).map(Bound::unbind) }
        })
    }

    /// Whether both are of the same run of a fake rule.
    fn __eq__(&self, other: &PyFakeContext) -> PyResult<bool> {
        guarded(|| Ok(self.0 == other.0))
    }

    fn __hash__(&self) -> PyResult<u64> {
        guarded(|| {
            let mut hasher = DefaultHasher::new();
            self.0.hash(&mut hasher);
            Ok(hasher.finish())
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        guarded(|| Ok(format!("<context of the fake rule of {}>", self.0.op().name())))
    }
}

impl PyFakeContext {
    fn bound(&self, name: &str, v: &Bound<'_, PyAny>) -> PyResult<i64> {
        let refuse = |e: Error| Err(e.with_op(self.0.op().name())).py(v.py());
        if let Ok(size) = v.cast::<PySymInt>() {
            let message = format!("{name} must be a number, got the symbolic size {}", size.get().poly);
            return refuse(Error::value("TP1170", message));
        }
        if !v.is_instance_of::<PyInt>() {
            let got = v.get_type().name()?.to_string();
            return refuse(Error::argument("TP1002", format!("{name} must be an int, got {got}")));
        }
        let fits = v.extract::<i64>();
        fits.or_else(|_| refuse(Error::value("TP1170", format!("{name} must fit in 64 bits, got {v}"))))
    }
}

/// The context of the fake rule that runs on this thread.
#[pyfunction]
fn get_ctx(py: Python<'_>) -> PyResult<PyFakeContext> {
    guarded(|| Ok(PyFakeContext(dynamic::context().py(py)?)))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyFakeContext>()?;
    m.add_function(wrap_pyfunction!(get_ctx, m)?)
}
