//! Python adapters as backends: a module with `probe`, `supports` and `lower`, found by name through
//! `tensorplay.backends.base` on first use. What it compiled is launched from Rust.

use super::plugged::PluggedBackend;
use crate::error::guarded;
use crate::report;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyList, PyTuple};
use std::sync::Arc;
use tp_dispatch::{CodegenMarker, FallbackReason};
use tp_graph::backend::{Backend, Capability, Lowered, Pending, Region};
use tp_graph::raw::RawKernel;
use tp_graph::region::KernelLayout;
use tp_tensor::Device;

pub struct PyBackend {
    name: String,
    /// What the caller of `compile` wants of the code; known to the adapter.
    options: Option<Py<PyDict>>,
}

impl PyBackend {
    pub fn new(name: &str, options: Option<Py<PyDict>>) -> PyBackend {
        PyBackend { name: name.to_string(), options }
    }

    fn adapter<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("tensorplay.backends.base")?.call_method1("adapter", (self.name.as_str(),))
    }
}

/// Whether there is an adapter of that name in the package.
pub fn is_adapter(py: Python<'_>, name: &str) -> PyResult<bool> {
    py.import("tensorplay.backends.base")?.getattr("ADAPTERS")?.contains(name)
}

/// Why an adapter that raised made nothing.
pub fn failed(py: Python<'_>, backend: &str, stage: &str, e: PyErr) -> FallbackReason {
    // The adapter's own error says more than its class.
    let value = e.value(py);
    let text = |name: &str| value.getattr(name).and_then(|v| v.extract::<String>()).ok();
    let message = text("message").unwrap_or_else(|| e.to_string());
    let stage = text("stage").unwrap_or_else(|| stage.to_string());
    match text("kind") {
        Some(kind) => reason(&kind, backend, &stage, &message, value),
        None => FallbackReason::LoweringFailed { stage, message },
    }
}

/// What an adapter's `supports` says: None, or a dict.
pub fn refused(
    py: Python<'_>,
    backend: &str,
    answer: PyResult<Bound<'_, PyAny>>,
) -> Result<(), FallbackReason> {
    let asked = answer.and_then(|answer| {
        if answer.is_none() {
            return Ok(None);
        }
        let kind: String = answer.get_item("kind")?.extract()?;
        let message: String = answer.get_item("message")?.extract()?;
        Ok(Some(reason(&kind, backend, "supports", &message, &answer)))
    });
    match asked {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(reason),
        Err(e) => Err(failed(py, backend, "supports", e)),
    }
}

/// What `capabilities()` says of a backend, so that every report tells the same.
pub fn capability_of(name: &str) -> Capability {
    let asked = crate::error::attached(|py| -> PyResult<Capability> {
        let base = py.import("tensorplay.backends.base")?;
        let found = base.call_method1("capability", (name,))?;
        let details = found.getattr("details")?;
        let mut pairs = Vec::new();
        for item in details.cast::<PyDict>()?.iter() {
            pairs.push((item.0.to_string(), item.1.to_string()));
        }
        Ok(Capability {
            name: name.into(),
            available: found.getattr("available")?.extract()?,
            reason: found.getattr("reason")?.extract()?,
            details: pairs,
        })
    });
    asked.unwrap_or_else(|e| Capability::missing(name, e.to_string()))
}

/// A refusal of the adapter (`kind`, `message`, `details`) as one of ours.
fn reason(kind: &str, backend: &str, stage: &str, message: &str, from: &Bound<'_, PyAny>) -> FallbackReason {
    use FallbackReason as R;
    let details = from.getattr("details").or_else(|_| from.get_item("details")).ok();
    let detail = |name: &str| {
        let found =
            details.as_ref().and_then(|d| d.get_item(name).ok()).and_then(|v| v.extract::<String>().ok());
        found.unwrap_or_default()
    };
    match kind {
        "UnsupportedDType" => R::UnsupportedDType { op: detail("op"), dtype: detail("dtype") },
        "UnsupportedOp" => R::UnsupportedOp { op: detail("op"), why: message.to_string() },
        "Hazard" => R::Hazard { op: detail("op"), what: message.to_string() },
        "BackendUnavailable" => {
            R::BackendUnavailable { backend: backend.to_string(), missing: message.to_string() }
        }
        "VersionUnpinned" => R::VersionUnpinned { package: detail("package"), found: detail("found") },
        _ => {
            let told = detail("stage");
            let stage = if told.is_empty() { stage.to_string() } else { told };
            R::LoweringFailed { stage, message: message.to_string() }
        }
    }
}

/// The instructions of a program: (name, dtype, operands, immediate).
pub fn instructions<'py>(py: Python<'py>, program: &tp_expr::Program) -> PyResult<Bound<'py, PyList>> {
    let instrs = PyList::empty(py);
    for i in program.instrs() {
        let imm = match i.prim.name() {
            "input" | "const" => Some(i.imm),
            _ => None,
        };
        instrs.append((i.prim.name(), i.dtype.name(), PyTuple::new(py, i.args())?, imm))?;
    }
    Ok(instrs)
}

/// The program as adapters take it.
pub fn program_dict<'py>(py: Python<'py>, program: &tp_expr::Program) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("instrs", instructions(py, program)?)?;
    out.set_item("inputs", program.inputs().iter().map(|d| d.name()).collect::<Vec<_>>())?;
    out.set_item("outputs", program.outputs().to_vec())?;
    Ok(out)
}

fn layout_dict<'py>(py: Python<'py>, layout: &KernelLayout, inputs: usize) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    match layout {
        KernelLayout::Flat { scalars } => {
            out.set_item("kind", "flat")?;
            out.set_item("scalar_inputs", (0..inputs).map(|k| scalars >> k & 1 == 1).collect::<Vec<_>>())?;
        }
        KernelLayout::Strided { dims } => {
            out.set_item("kind", "strided")?;
            out.set_item("ndim", dims)?;
            out.set_item("inner", vec![None::<i64>; inputs])?;
        }
    }
    Ok(out)
}

impl Backend for PyBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn probe(&self) -> Capability {
        capability_of(&self.name)
    }

    fn supports(&self, region: &Region) -> Result<(), FallbackReason> {
        crate::error::attached(|py| {
            let program = program_dict(py, &region.program.expand());
            let asked = program.and_then(|p| self.adapter(py)?.call_method1("supports", (p,)));
            refused(py, &self.name, asked)
        })
    }

    fn lower(&self, region: &Region) -> Result<Lowered, FallbackReason> {
        crate::error::attached(|py| self.lower_in(py, region).map_err(|e| failed(py, &self.name, "lower", e)))
    }

    fn leaves_rows(&self) -> Option<String> {
        crate::error::attached(|py| {
            let told = self.adapter(py).ok()?.getattr_opt("leaves_rows").ok()??.call0().ok()?;
            told.extract().ok()
        })
    }
}

impl PyBackend {
    fn lower_in(&self, py: Python<'_>, region: &Region) -> PyResult<Lowered> {
        let program = region.program.expand();
        let layout = layout_dict(py, &region.layout, program.inputs().len())?;
        let options = self.options.as_ref().map(|options| options.bind(py));
        let artifact =
            self.adapter(py)?.call_method1("lower", (program_dict(py, &program)?, layout, options))?;
        let proof: String = artifact.getattr("hash")?.extract()?;
        let target: String = artifact.getattr("target")?.extract()?;
        let (address, handle) =
            (artifact.getattr("address")?.extract()?, artifact.getattr("handle")?.extract()?);
        let flag = |name: &str| artifact.getattr_opt(name)?.map_or(Ok(false), |v| v.extract::<bool>());
        let (guarded, cached) = (flag("guarded")?, flag("cached")?);
        let marker = Arc::new(CodegenMarker {
            executor: self.name.as_str().into(),
            kernel: target.into(),
            proof: Some(proof.into()),
            device: Device::CPU,
        });
        // SAFETY: the adapter compiled exactly this program and layout, and the artifact keeps the code loaded.
        let kernel =
            unsafe { RawKernel::new(address, handle, region.layout, marker, Arc::new(artifact.unbind())) };
        let whole = match options {
            Some(options) => options.get_item("parallel")?.is_some_and(|on| !on.is_truthy().unwrap_or(true)),
            None => false,
        };
        Ok(Lowered::Raw(Arc::new(kernel.guarded(guarded).cached(cached).on_one_thread(whole))))
    }
}

/// A Python adapter whose kernels are made on another thread; the region runs native until its own is there.
pub struct Background(pub PyBackend);

impl Backend for Background {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn probe(&self) -> Capability {
        self.0.probe()
    }

    fn supports(&self, region: &Region) -> Result<(), FallbackReason> {
        self.0.supports(region)
    }

    fn lower(&self, region: &Region) -> Result<Lowered, FallbackReason> {
        // Such a region chooses between two kinds of code at each run, which have to be known.
        if region.symbolic {
            return self.0.lower(region);
        }
        let pending = Pending::new();
        let (made, region) = (pending.clone(), region.clone());
        crate::error::attached(|py| {
            let backend = PyBackend::new(self.name(), self.0.options.as_ref().map(|o| o.clone_ref(py)));
            let job =
                move |_: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| made.set(backend.lower(&region));
            let started = PyCFunction::new_closure(py, None, None, job)
                .and_then(|job| py.import("tensorplay.backends.base")?.call_method1("later", (job,)));
            started.map(drop).map_err(|e| failed(py, self.name(), "background", e))
        })?;
        Ok(Lowered::Pending(pending))
    }
}

/// The capability of a backend known to Rust, as `tensorplay.outcome.Capability`.
pub fn capability_object<'py>(py: Python<'py>, c: &Capability) -> PyResult<Bound<'py, PyAny>> {
    let details = PyDict::new(py);
    for (k, v) in &c.details {
        details.set_item(k, v)?;
    }
    report::class(py, "Capability")?.call1((&*c.name, c.available, c.reason.clone(), details))
}

/// Makes a Python adapter, or a plugged-in backend, known to the compiler under its name.
#[pyfunction]
pub fn register_backend(name: &str, plugged: bool) -> PyResult<()> {
    guarded(|| {
        if tp_graph::backend::get(name).is_none() {
            tp_graph::backend::register(match plugged {
                true => Arc::new(PluggedBackend::new(name)),
                false => Arc::new(PyBackend::new(name, None)),
            });
        };
        Ok(())
    })
}

/// Names of the backends known to the compiler.
#[pyfunction]
pub fn backend_names() -> PyResult<Vec<String>> {
    guarded(|| Ok(tp_graph::backend::names()))
}

/// The capability of one backend; raises LookupError for an unknown name.
#[pyfunction]
pub fn backend_capability<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| match tp_graph::backend::get(name) {
        Some(b) => capability_object(py, &b.probe()),
        None => Err(pyo3::exceptions::PyLookupError::new_err(format!("no backend named '{name}'"))),
    })
}
