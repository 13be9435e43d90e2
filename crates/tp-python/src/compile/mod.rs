//! `tp.compile` from Python: the compiled function as an object with a fast call, its reports, and the backends
//! that Python adapters provide.

mod backend;
mod dynamic;
mod find;
mod notice;
mod object;
mod plugged;
mod segmented;
pub mod tree;
mod values;

use crate::error::IntoPyResult;
use crate::error::guarded;
use crate::graph::PyGraph;
use crate::report;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;
use tp_graph::backend::Backend;
use tp_graph::compile::{CompileOptions, CompiledFunction};
use tp_graph::report::{Build, Explanation, FallbackPolicy, PlannedRegion, Recompile, RegionRun, RunReport};

pub use backend::program_dict;
use backend::{Background, PyBackend};
pub use object::{init_type, is_type};

/// Makes a compiled function. `backends` in order of preference, all known; `policy` is record, warn or error; with
/// `background` adapters make their code on another thread; `dynamic` is None for symbols on the second size, True for
/// symbols at once, False for none; `options` are known to one of the backends; `assumed` holds what the caller vouches for.
#[pyfunction]
#[pyo3(signature = (func, *, backends, policy, limit, parameters, background, dynamic, options, assumed, fullgraph))]
fn compile_function<'py>(
    py: Python<'py>,
    func: &Bound<'py, PyAny>,
    backends: Vec<String>,
    policy: &str,
    limit: usize,
    parameters: Vec<String>,
    background: bool,
    dynamic: Option<bool>,
    options: Option<Bound<'py, PyDict>>,
    assumed: Bound<'py, PyTuple>,
    fullgraph: bool,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let find = |name: &String| -> PyResult<Arc<dyn Backend>> {
            let found = tp_graph::backend::get(name)
                .ok_or_else(|| PyValueError::new_err(format!("no backend named '{name}'")))?;
            // A plugged-in backend is asked as it is; what is meant for an adapter is not for native code.
            if !(background || options.is_some()) || !backend::is_adapter(py, name)? {
                return Ok(found);
            }
            let own = PyBackend::new(name, options.clone().map(Bound::unbind));
            Ok(if background { Arc::new(Background(own)) } else { Arc::new(own) })
        };
        let policy = match policy {
            "record" => FallbackPolicy::Record,
            "warn" => FallbackPolicy::Warn,
            "error" => FallbackPolicy::Error,
            other => {
                return Err(PyValueError::new_err(format!(
                    "on_fallback must be 'record', 'warn' or 'error', not '{other}'"
                )));
            }
        };
        let backends = backends.iter().map(find).collect::<PyResult<Vec<_>>>()?;
        let dynamic = dynamic::policy(dynamic);
        let core = CompiledFunction::new(CompileOptions { backends, policy, limit, dynamic });
        object::new(py, func, Arc::new(core), parameters, &assumed, fullgraph)
    })
}

fn graph_of(py: Python<'_>, entry: &tp_graph::Entry) -> PyResult<PyGraph> {
    let held = entry.held().map_err(|e| crate::error::to_py(py, e))?;
    Ok(PyGraph::new(entry.graph().clone(), entry.backward_graph().cloned(), held))
}

/// The entries of the whole function, then those of its segments in the order in which they were met.
fn entries(compiled: &Bound<'_, PyAny>) -> PyResult<Vec<Arc<tp_graph::Entry>>> {
    let mut all = object::core(compiled)?.entries();
    for segment in object::segments(compiled)?.iter().flat_map(|store| store.functions()) {
        all.extend(segment.entries());
    }
    Ok(all)
}

/// The graphs captured so far: one per entry, with `.backward` for training entries.
#[pyfunction]
fn compiled_graphs(compiled: &Bound<'_, PyAny>) -> PyResult<Vec<PyGraph>> {
    guarded(|| entries(compiled)?.iter().map(|e| graph_of(compiled.py(), e)).collect())
}

/// What is known of the entries so far, as `tensorplay.outcome.Explanation`.
#[pyfunction]
fn compiled_report<'py>(py: Python<'py>, compiled: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let mut all = object::core(compiled)?.explanation();
        if let Some(store) = object::segments(compiled)? {
            let breaks = store.breaks().iter().map(ToString::to_string).collect();
            let more = store.functions().into_iter().map(|f| f.explanation());
            for more in std::iter::once(Explanation { breaks, ..Explanation::default() }).chain(more) {
                let graphs = all.graphs.len();
                let numbered = |r: Recompile| Recompile { graph: graphs + r.graph, ..r };
                all.recompiles.extend(more.recompiles.into_iter().map(numbered));
                all.graphs.extend(more.graphs);
                all.guards.extend(more.guards);
                all.breaks.extend(more.breaks);
                all.removed.extend(more.removed);
                all.regions.extend(more.regions);
            }
        }
        explanation_object(py, &entries(compiled)?, all)
    })
}

/// The thread's last run as `tensorplay.outcome.RunReport`, or None.
#[pyfunction]
fn compiled_last_run<'py>(
    py: Python<'py>,
    compiled: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    guarded(|| object::core(compiled)?.last_run().map(|r| run_report_object(py, &r)).transpose())
}

/// Artifacts made so far, one dict each.
#[pyfunction]
fn compiled_builds<'py>(py: Python<'py>, compiled: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyDict>>> {
    guarded(|| {
        let build = |b: &Build| {
            let d = PyDict::new(py);
            d.set_item("backend", &*b.backend)?;
            d.set_item("hash", &*b.hash)?;
            d.set_item("seconds", b.seconds)?;
            d.set_item("cached", b.cached)?;
            Ok(d)
        };
        let mut builds = object::core(compiled)?.builds();
        for segment in object::segments(compiled)?.iter().flat_map(|store| store.functions()) {
            builds.extend(segment.builds());
        }
        builds.iter().map(build).collect()
    })
}

/// Whether captures see what functions read and write of Python's state: on versions of CPython whose frames are known.
#[pyfunction]
fn watches_python_state() -> PyResult<bool> {
    guarded(|| Ok(crate::watching::is_available()))
}

/// Captures and compiles for these arguments without running; the entry serves later calls.
#[pyfunction]
#[pyo3(signature = (compiled, args, kwargs=None))]
fn compiled_prepare(
    py: Python<'_>,
    compiled: &Bound<'_, PyAny>,
    args: Bound<'_, PyTuple>,
    kwargs: Option<Bound<'_, PyDict>>,
) -> PyResult<()> {
    guarded(|| object::prepare(compiled, tree::Call { args, kwargs }).py(py))
}

/// The original function.
#[pyfunction]
fn compiled_function<'py>(py: Python<'py>, compiled: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| object::function(py, compiled))
}

fn region_object<'py>(py: Python<'py>, r: &RegionRun) -> PyResult<Bound<'py, PyAny>> {
    let reason = r.reason.as_ref().map(|r| report::reason_object(py, r)).transpose()?;
    let ops = PyTuple::new(py, r.ops.iter().map(|o| o.to_string()))?;
    report::class(py, "RegionRun")?.call1((r.index, ops, report::marker_object(py, &r.marker)?, reason))
}

fn run_report_object<'py>(py: Python<'py>, r: &RunReport) -> PyResult<Bound<'py, PyAny>> {
    let list = |runs: &[RegionRun]| runs.iter().map(|r| region_object(py, r)).collect::<PyResult<Vec<_>>>();
    report::class(py, "RunReport")?.call1((list(&r.forward)?, list(&r.backward)?, r.graph))
}

/// One line on a planned region.
fn planned(r: &PlannedRegion) -> String {
    let phase = if r.backward { "backward" } else { "forward" };
    let why = r.reason.as_ref().map_or_else(String::new, |reason| format!(" ({}: {reason})", reason.kind()));
    format!("{phase} {}: {} on {}{why}", r.index, r.ops.join(", "), r.executor)
}

fn explanation_object<'py>(
    py: Python<'py>,
    entries: &[Arc<tp_graph::Entry>],
    e: Explanation,
) -> PyResult<Bound<'py, PyAny>> {
    let graphs = entries.iter().map(|e| graph_of(py, e)).collect::<PyResult<Vec<_>>>()?;
    let kwargs = PyDict::new(py);
    kwargs.set_item("graphs", graphs)?;
    kwargs.set_item("guards", e.guards.concat())?;
    kwargs.set_item("breaks", e.breaks)?;
    kwargs.set_item("removed", e.removed.iter().map(|r| r.target.to_string()).collect::<Vec<_>>())?;
    kwargs.set_item("regions", e.regions.iter().map(planned).collect::<Vec<_>>())?;
    kwargs.set_item("memory", e.memory)?;
    let recompiles = e.recompiles.iter().map(|r| format!("graph {}: {}", r.graph, r.guard));
    kwargs.set_item("recompiles", recompiles.collect::<Vec<_>>())?;
    report::class(py, "Explanation")?.call((), Some(&kwargs))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(compile_function, m)?)?;
    m.add_function(wrap_pyfunction!(compiled_graphs, m)?)?;
    m.add_function(wrap_pyfunction!(compiled_report, m)?)?;
    m.add_function(wrap_pyfunction!(compiled_last_run, m)?)?;
    m.add_function(wrap_pyfunction!(compiled_builds, m)?)?;
    m.add_function(wrap_pyfunction!(compiled_prepare, m)?)?;
    m.add_function(wrap_pyfunction!(compiled_function, m)?)?;
    m.add_function(wrap_pyfunction!(watches_python_state, m)?)?;
    m.add_function(wrap_pyfunction!(backend::register_backend, m)?)?;
    m.add_function(wrap_pyfunction!(backend::backend_names, m)?)?;
    m.add_function(wrap_pyfunction!(backend::backend_capability, m)?)
}
