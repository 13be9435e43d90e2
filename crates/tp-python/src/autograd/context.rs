//! `ctx`: what a setup function leaves for the backward function of the same call.

use crate::error;
use crate::hot::shell;
use parking_lot::Mutex;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};
use tp_dispatch::{Error, Result};
use tp_tensor::Tensor;

/// State of one differentiated call; any further attributes may be set on it.
#[pyclass(frozen, dict, weakref, module = "tensorplay._native")]
pub struct Context {
    state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    /// Given to `save_for_backward`, until the tape takes them.
    pub to_save: Vec<Option<Tensor>>,
    /// Read back for a backward call.
    pub unpacked: Vec<Result<Option<Tensor>>>,
    pub not_differentiable: Vec<Tensor>,
    pub no_materialize: bool,
    pub needs: Needs,
}

/// Which inputs need a gradient.
#[derive(Default)]
pub enum Needs {
    #[default]
    Unknown,
    /// One bit per positional input, none of them a list; the tuple is made when it is asked for.
    Bits {
        bits: u64,
        inputs: usize,
    },
    Object(Py<PyAny>),
}

impl Context {
    pub fn new() -> Context {
        Context { state: Mutex::new(State::default()) }
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock())
    }
}

#[pymethods]
impl Context {
    /// Keeps tensors (or None) for backward. They are version-checked when read, and freed after backward.
    #[pyo3(signature = (*tensors))]
    fn save_for_backward(&self, tensors: &Bound<'_, PyTuple>) -> PyResult<()> {
        let mut list = Vec::with_capacity(tensors.len());
        for t in tensors.iter() {
            if t.is_none() {
                list.push(None);
            } else {
                list.push(Some(tensor(&t, "save_for_backward takes tensors or None")?));
            }
        }
        let old = self.with(|s| std::mem::replace(&mut s.to_save, list));
        drop(old);
        Ok(())
    }

    /// The saved tensors, as a tuple. AutogradError when one of them was written to since, or after they were freed.
    #[getter]
    fn saved_tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let taken = self.with(|s| {
            let failed = s.unpacked.iter().position(|r| r.is_err());
            if let Some(i) = failed {
                return Err(std::mem::replace(&mut s.unpacked[i], Ok(None)).err());
            }
            let from_setup = s.unpacked.is_empty();
            Ok(if from_setup {
                s.to_save.clone()
            } else {
                s.unpacked.iter().map(|r| r.as_ref().ok().and_then(Clone::clone)).collect()
            })
        });
        let list = match taken {
            Ok(list) => list,
            Err(Some(e)) => return Err(error::to_py(py, e)),
            Err(None) => {
                return Err(error::to_py(py, Error::internal("TP9006", "a saved tensor is missing")));
            }
        };
        let objects = list.iter().map(|t| object(py, t.as_ref()));
        PyTuple::new(py, objects.collect::<PyResult<Vec<_>>>()?)
    }

    /// One bool per positional input, always of full length; a nested list for list inputs.
    #[getter]
    fn needs_input_grad<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.with(|s| match &s.needs {
            Needs::Unknown => Ok(PyTuple::empty(py).into_any()),
            Needs::Bits { bits, inputs } => {
                Ok(PyTuple::new(py, (0..*inputs).map(|i| bits >> i & 1 == 1))?.into_any())
            }
            Needs::Object(tuple) => Ok(tuple.bind(py).clone()),
        })
    }

    /// With False, gradients of unused outputs arrive as None instead of zeros.
    fn set_materialize_grads(&self, value: bool) {
        self.with(|s| s.no_materialize = !value);
    }

    /// Marks outputs that have no gradient.
    #[pyo3(signature = (*outputs))]
    fn mark_non_differentiable(&self, outputs: &Bound<'_, PyTuple>) -> PyResult<()> {
        for t in outputs.iter() {
            let t = tensor(&t, "mark_non_differentiable takes outputs of the op")?;
            self.with(|s| s.not_differentiable.push(t));
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<context of {} saved tensors>", self.with(|s| s.to_save.len().max(s.unpacked.len())))
    }
}

fn tensor(obj: &Bound<'_, PyAny>, what: &str) -> PyResult<Tensor> {
    // SAFETY: a live object.
    unsafe {
        if !shell::is_tensor(obj.as_ptr()) {
            return Err(PyTypeError::new_err(format!("{what}, got {}", obj.get_type().name()?)));
        }
        Ok(shell::tensor_of(obj.as_ptr()).clone())
    }
}

/// The Python object of a tensor, or None.
pub fn object<'py>(py: Python<'py>, t: Option<&Tensor>) -> PyResult<Bound<'py, PyAny>> {
    match t {
        // SAFETY: lock held.
        Some(t) => unsafe { Bound::from_owned_ptr_or_err(py, shell::wrap_ref(t)) },
        None => Ok(py.None().into_bound(py)),
    }
}

/// A Python bool.
pub fn boolean(py: Python<'_>, v: bool) -> Bound<'_, PyAny> {
    PyBool::new(py, v).to_owned().into_any()
}
