//! Per-thread modes as Python sees them: grad mode, and whether a capture is going on.

use crate::error::{IntoPyResult, guarded};
use crate::given;
use pyo3::prelude::*;
use tp_dispatch::state;
use tp_graph::capture::watch;

/// Whether this thread records operations for differentiation.
#[pyfunction]
fn is_grad_enabled() -> PyResult<bool> {
    guarded(|| {
        watch::ask_grad_mode();
        Ok(state::is_grad_enabled())
    })
}

/// Sets grad mode of this thread and returns the mode before.
#[pyfunction]
fn set_grad_enabled(enabled: bool) -> PyResult<bool> {
    guarded(|| {
        watch::note_mode();
        Ok(state::set_grad_enabled(enabled))
    })
}

/// Whether this thread is inside a capture.
#[pyfunction]
fn is_capturing() -> PyResult<bool> {
    guarded(|| Ok(state::includes(tp_dispatch::DispatchKey::Capture)))
}

/// Threads that large kernels are split over.
#[pyfunction]
fn get_num_threads() -> PyResult<usize> {
    guarded(|| Ok(tp_expr::pool::num_threads()))
}

/// Sets the number of threads that large kernels are split over.
#[pyfunction]
fn set_num_threads(n: &Bound<'_, PyAny>) -> PyResult<()> {
    guarded(|| {
        watch::once("set_num_threads()", "call it before").py(n.py())?;
        let n: usize = given::read("set_num_threads", "n", n)?;
        tp_expr::pool::set_num_threads(n.max(1));
        Ok(())
    })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(is_grad_enabled, m)?)?;
    m.add_function(wrap_pyfunction!(set_grad_enabled, m)?)?;
    m.add_function(wrap_pyfunction!(is_capturing, m)?)?;
    m.add_function(wrap_pyfunction!(get_num_threads, m)?)?;
    m.add_function(wrap_pyfunction!(set_num_threads, m)?)
}
