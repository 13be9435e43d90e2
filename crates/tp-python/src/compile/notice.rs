//! What a compiled function tells `tensorplay._observe` when it captures, when a new entry has run, and when the function
//! itself has to run. A call that finds an entry comes through none of it.

use super::{graph_of, planned, run_report_object};
use crate::report::reason_object;
use pyo3::prelude::*;
use tp_dispatch::FallbackReason;
use tp_graph::Entry;
use tp_graph::compile::CompiledFunction;
use tp_graph::segments::Break;

fn observe(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("tensorplay._observe")
}

/// An entry was made.
pub fn built(
    py: Python<'_>,
    func: &Bound<'_, PyAny>,
    core: &CompiledFunction,
    entry: &Entry,
) -> PyResult<()> {
    let regions = entry.regions();
    let reasons = regions.iter().filter_map(|r| Some((planned(r), r.reason.as_ref()?)));
    let reasons = reasons.map(|(line, reason)| Ok((line, reason_object(py, reason)?)));
    let reasons = reasons.collect::<PyResult<Vec<_>>>()?;
    let observe = observe(py)?;
    let shown = match observe.call_method0("shows_graphs")?.is_truthy()? {
        true => Some((graph_of(py, entry)?, entry.guards())),
        false => None,
    };
    let args = (func, entry.number(), core.missed(entry.number()), reasons, shown);
    observe.call_method1("built", args).map(drop)
}

/// The entry that was just made has run.
pub fn ran(py: Python<'_>, func: &Bound<'_, PyAny>, core: &CompiledFunction) -> PyResult<()> {
    let Some(report) = core.last_run() else { return Ok(()) };
    observe(py)?.call_method1("ran", (func, run_report_object(py, &report)?)).map(drop)
}

/// A call of the function broke off, at that place for the first time.
pub fn broke(py: Python<'_>, func: &Bound<'_, PyAny>, one: &Break) -> PyResult<()> {
    observe(py)?.call_method1("broke", (func, &*one.code, one.to_string())).map(drop)
}

/// The function itself is about to run.
pub fn eager(py: Python<'_>, func: &Bound<'_, PyAny>, reason: &FallbackReason) -> PyResult<()> {
    observe(py)?.call_method1("eager", (func, reason_object(py, reason)?)).map(drop)
}

/// One Python warning for each region of a new entry that will not run where it was asked to, at the user's line.
pub fn warn(py: Python<'_>, entry: &Entry) -> tp_dispatch::Result<()> {
    warn_of(py, &entry.fallbacks())
}

pub fn warn_of(py: Python<'_>, reasons: &[FallbackReason]) -> tp_dispatch::Result<()> {
    if reasons.is_empty() {
        return Ok(());
    }
    let level = stack_level(py).map_err(crate::error::from_py)?;
    for reason in reasons {
        let message = format!("fallback ({}): {reason}", reason.kind()).replace('\0', " ");
        let text = std::ffi::CString::new(message).unwrap_or_default();
        let category = py.get_type::<pyo3::exceptions::PyUserWarning>();
        PyErr::warn(py, &category, &text, level).map_err(crate::error::from_py)?;
    }
    Ok(())
}

/// The level of the innermost Python frame that is not of this package. For a warning raised from here, level 1 is the
/// innermost frame of all: a call from Rust has none of its own.
fn stack_level(py: Python<'_>) -> PyResult<i32> {
    py.import("tensorplay._places")?.call_method0("stack_level")?.extract()
}
