//! What a compiled function tells `tensorplay._observe` when it captures, when a new entry has run, and when the function
//! itself has to run. A call that finds an entry comes through none of it.

use super::{graph_of, planned, run_report_object};
use crate::report::reason_object;
use pyo3::prelude::*;
use tp_dispatch::FallbackReason;
use tp_graph::Entry;
use tp_graph::compile::CompiledFunction;

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

/// The function itself is about to run.
pub fn eager(py: Python<'_>, func: &Bound<'_, PyAny>, reason: &FallbackReason) -> PyResult<()> {
    observe(py)?.call_method1("eager", (func, reason_object(py, reason)?)).map(drop)
}
