//! Backends from outside of this tree: classes after `tensorplay.backends.contract`. What they made is run through
//! Python, and what comes back is held to the region's promise by the plan. The stamp is made here, after the run.

use super::backend::{capability_of, failed, instructions, refused};
use crate::error::{attached, from_py};
use crate::tensor::{tensor_of, wrap};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::sync::Arc;
use tp_dispatch::state::KeyGuard;
use tp_dispatch::{CodegenMarker, DispatchKey, FallbackReason, KeySet, Result};
use tp_graph::backend::{Backend, Capability, HostExecutor, Lowered, Region};
use tp_tensor::{Device, Tensor, TensorSpec};

pub struct PluggedBackend {
    name: String,
}

impl PluggedBackend {
    pub fn new(name: &str) -> PluggedBackend {
        PluggedBackend { name: name.to_string() }
    }

    fn found<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("tensorplay.backends.base")?.call_method1("plugged", (self.name.as_str(),))
    }

    /// Code of a plugged-in backend is made for known sizes on the CPU.
    fn takes(&self, region: &Region) -> std::result::Result<(), FallbackReason> {
        let op = || region.ops.first().cloned().unwrap_or_default();
        if region.symbolic {
            let why = format!("sizes that depend on data; '{}' makes code for known sizes", self.name);
            return Err(FallbackReason::UnsupportedOp { op: op(), why });
        }
        if !region.device.is_cpu() {
            let why = format!("it lies on {}; '{}' runs on the CPU", region.device, self.name);
            return Err(FallbackReason::UnsupportedOp { op: op(), why });
        }
        Ok(())
    }
}

fn spec_objects<'py>(py: Python<'py>, specs: &[TensorSpec]) -> PyResult<Bound<'py, PyTuple>> {
    let class = crate::report::class(py, "TensorSpec")?;
    let made = specs.iter().map(|s| {
        let (sizes, strides) = (PyTuple::new(py, s.sizes.iter())?, PyTuple::new(py, s.strides.iter())?);
        class.call1((sizes, s.dtype.name(), strides, s.device.to_string()))
    });
    PyTuple::new(py, made.collect::<PyResult<Vec<_>>>()?)
}

fn region_object<'py>(py: Python<'py>, region: &Region) -> PyResult<Bound<'py, PyAny>> {
    let contract = py.import("tensorplay.backends.contract")?;
    let program = region.program.expand();
    let class = contract.getattr("Instruction")?;
    let instrs = instructions(py, &program)?;
    let instrs = instrs.iter().map(|i| class.call1(i.cast::<PyTuple>()?)).collect::<PyResult<Vec<_>>>()?;
    contract.getattr("Region")?.call1((
        PyTuple::new(py, region.ops.iter())?,
        PyTuple::new(py, instrs)?,
        PyTuple::new(py, program.outputs())?,
        spec_objects(py, &region.inputs)?,
        spec_objects(py, &region.outputs)?,
    ))
}

impl Backend for PluggedBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn probe(&self) -> Capability {
        capability_of(&self.name)
    }

    fn supports(&self, region: &Region) -> std::result::Result<(), FallbackReason> {
        self.takes(region)?;
        attached(|py| {
            let asked = || self.found(py)?.call_method1("supports", (region_object(py, region)?,));
            refused(py, &self.name, asked())
        })
    }

    fn lower(&self, region: &Region) -> std::result::Result<Lowered, FallbackReason> {
        attached(|py| self.lower_in(py, region).map_err(|e| failed(py, &self.name, "lower", e)))
    }
}

impl PluggedBackend {
    fn lower_in(&self, py: Python<'_>, region: &Region) -> PyResult<Lowered> {
        let backend = self.found(py)?;
        let artifact = backend.call_method1("lower", (region_object(py, region)?,))?;
        let kernel: String = artifact.getattr("kernel")?.extract()?;
        let proof: String = artifact.getattr("proof")?.extract()?;
        let marker = Arc::new(CodegenMarker {
            executor: self.name.as_str().into(),
            kernel: kernel.into(),
            proof: Some(proof.into()),
            device: Device::CPU,
        });
        Ok(Lowered::Host(Arc::new(Plugged {
            backend: backend.unbind(),
            artifact: artifact.unbind(),
            marker,
        })))
    }
}

/// An artifact with the backend that made it: registering anew does not alter what is compiled.
struct Plugged {
    backend: Py<PyAny>,
    artifact: Py<PyAny>,
    marker: Arc<CodegenMarker>,
}

impl HostExecutor for Plugged {
    fn run(&self, inputs: &[&Tensor]) -> Result<(Vec<Tensor>, Arc<CodegenMarker>)> {
        // What it calls of ours is no part of the caller's program: it is neither recorded nor captured.
        let layers = DispatchKey::Autograd.set() | DispatchKey::Capture.set();
        let _below = KeyGuard::new(KeySet::EMPTY, layers);
        let outputs = attached(|py| -> PyResult<Vec<Tensor>> {
            let inputs = inputs.iter().map(|t| wrap(py, (*t).clone())).collect::<PyResult<Vec<_>>>()?;
            let args = (self.artifact.bind(py), PyList::new(py, inputs)?);
            let outputs = self.backend.bind(py).call_method1("run", args)?;
            outputs.cast::<PyList>()?.iter().map(|t| tensor_of(&t)).collect()
        });
        Ok((outputs.map_err(from_py)?, self.marker.clone()))
    }

    fn proof(&self) -> Option<Arc<str>> {
        self.marker.proof.clone()
    }
}
