//! What ran, as Python objects: the frozen dataclasses of `tensorplay.outcome`, built from the Rust values.

use crate::error::{IntoPyResult, guarded};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};
use tp_dispatch::{CallEvent, CodegenMarker, FallbackReason, Phase};
use tp_graph::capture::watch;

/// A class of `tensorplay.outcome`.
pub fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static OUTCOME: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = OUTCOME.get_or_try_init(py, || Ok::<_, PyErr>(py.import("tensorplay.outcome")?.unbind()))?;
    module.bind(py).getattr(name)
}

pub fn marker_object<'py>(py: Python<'py>, m: &CodegenMarker) -> PyResult<Bound<'py, PyAny>> {
    class(py, "CodegenMarker")?.call1((&*m.executor, &*m.kernel, m.proof.as_deref(), m.device.to_string()))
}

pub fn reason_object<'py>(py: Python<'py>, r: &FallbackReason) -> PyResult<Bound<'py, PyAny>> {
    let details = PyDict::new(py);
    for (k, v) in r.details() {
        details.set_item(k, v)?;
    }
    class(py, "FallbackReason")?.call1((r.kind(), r.op(), r.to_string(), details))
}

pub fn phase_name(p: Phase) -> &'static str {
    match p {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
    }
}

fn event_object<'py>(py: Python<'py>, e: &CallEvent) -> PyResult<Bound<'py, PyAny>> {
    let rejected = PyList::empty(py);
    for (kernel, reason) in &e.rejected {
        rejected.append((kernel.as_str(), reason_object(py, reason)?))?;
    }
    let shapes: Vec<Bound<'_, PyTuple>> =
        e.shapes.iter().map(|s| PyTuple::new(py, s)).collect::<PyResult<_>>()?;
    let kwargs = PyDict::new(py);
    kwargs.set_item("op", &*e.op)?;
    kwargs.set_item("key", e.key.name())?;
    kwargs.set_item("phase", phase_name(e.phase))?;
    kwargs.set_item("marker", marker_object(py, &e.marker)?)?;
    kwargs.set_item("rejected", rejected)?;
    kwargs.set_item("shapes", PyTuple::new(py, shapes)?)?;
    kwargs.set_item("dtypes", PyTuple::new(py, e.dtypes.iter().map(|d| d.name()))?)?;
    kwargs.set_item("host_seconds", e.host_seconds)?;
    kwargs.set_item("device_seconds", e.device_seconds)?;
    class(py, "CallEvent")?.call((), Some(&kwargs))
}

/// Collects call events of this thread between `start` and `stop`.
#[pyclass(frozen, module = "tensorplay._native")]
pub struct TraceSink(tp_dispatch::state::Sink);

#[pymethods]
impl TraceSink {
    #[new]
    fn new() -> PyResult<TraceSink> {
        guarded(|| Ok(TraceSink(Default::default())))
    }

    fn start(&self, py: Python<'_>) -> PyResult<()> {
        guarded(|| {
            watch::once("trace()", "enter it around the call").py(py)?;
            tp_dispatch::state::push_sink(self.0.clone());
            Ok(())
        })
    }

    fn stop(&self) -> PyResult<()> {
        guarded(|| {
            tp_dispatch::state::pop_sink(&self.0);
            Ok(())
        })
    }

    /// Events so far, in order.
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        guarded(|| {
            let events = self.0.lock().clone();
            events.iter().map(|e| event_object(py, e)).collect()
        })
    }

    fn __len__(&self) -> PyResult<usize> {
        guarded(|| Ok(self.0.lock().len()))
    }
}
