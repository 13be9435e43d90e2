//! `tensorplay.library.Schema`: a parsed schema as an immutable Python object.

use crate::error::IntoPyResult;
use crate::error::guarded;
use crate::given;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use tp_dispatch::Schema;

/// A parsed operator schema. `Schema.parse(text)` reads it, `str(schema)` prints it; the two are inverse.
#[pyclass(frozen, name = "Schema", module = "tensorplay.library", eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct PySchema(pub Schema);

#[pymethods]
impl PySchema {
    /// Reads `ns::name.overload(Tensor x, *, float p=0.5) -> Tensor`; SchemaError (ValueError) with a caret otherwise.
    #[staticmethod]
    fn parse(py: Python<'_>, text: &Bound<'_, PyAny>) -> PyResult<PySchema> {
        guarded(|| {
            let text =
                text.cast::<PyString>().map_err(|_| given::wrong("Schema.parse", "text", "str", text))?;
            let Ok(text) = text.to_str() else {
                let message = "the text holds a lone surrogate, which is no character";
                return Err(tp_dispatch::Error::new(tp_dispatch::ErrorKind::Schema, "TP1001", message))
                    .py(py);
            };
            Schema::parse(text).map(PySchema).map_err(tp_dispatch::Error::from).py(py)
        })
    }

    /// `ns::name`.
    #[getter]
    fn name(&self) -> PyResult<String> {
        guarded(|| {
            Ok({
                match self.0.name().namespace() {
                    Some(ns) => format!("{ns}::{}", self.0.name().name()),
                    None => self.0.name().name().to_string(),
                }
            })
        })
    }

    /// The overload's name, `""` for the default one.
    #[getter]
    fn overload(&self) -> PyResult<&str> {
        guarded(|| Ok(self.0.name().overload().unwrap_or("")))
    }

    /// One dict per argument: name, type, kwarg_only, default (as text or None), has_default, mutated, alias.
    #[getter]
    fn arguments<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        guarded(|| {
            self.0
                .arguments()
                .iter()
                .map(|a| {
                    let d = PyDict::new(py);
                    d.set_item("name", a.name())?;
                    d.set_item("type", a.ty().to_string())?;
                    d.set_item("kwarg_only", a.is_kwarg_only())?;
                    d.set_item("has_default", a.default().is_some())?;
                    d.set_item("default", a.default().map(ToString::to_string))?;
                    d.set_item("mutated", a.is_write())?;
                    d.set_item("alias", a.alias().is_some())?;
                    d.set_item("is_tensor", a.is_tensor_like())?;
                    Ok(d)
                })
                .collect()
        })
    }

    /// One dict per return: name, type, alias (index of the argument it shares a set with, or None).
    #[getter]
    fn returns<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        guarded(|| {
            self.0
                .returns()
                .iter()
                .enumerate()
                .map(|(i, r)| {
                    let d = PyDict::new(py);
                    d.set_item("name", r.name())?;
                    d.set_item("type", r.ty().to_string())?;
                    d.set_item("alias", self.0.aliased_arg(i))?;
                    Ok(d)
                })
                .collect()
        })
    }

    /// Whether a call writes to any argument.
    #[getter]
    fn is_mutable(&self) -> PyResult<bool> {
        guarded(|| Ok(self.0.is_mutable()))
    }

    /// Names of the arguments a call writes to.
    #[getter]
    fn mutated(&self) -> PyResult<Vec<String>> {
        guarded(|| Ok(self.0.mutated_args().map(|(_, a)| a.name().to_string()).collect()))
    }

    /// Whether every call that fits `old` fits this schema with the same meaning.
    fn is_backward_compatible_with(&self, old: &PySchema) -> PyResult<bool> {
        guarded(|| Ok(self.0.is_backward_compatible_with(&old.0)))
    }

    /// Everything as numbers, strings, lists and dicts: `json.dumps` takes it.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let d = PyDict::new(py);
            d.set_item("schema", self.0.to_string())?;
            d.set_item("name", self.name()?)?;
            d.set_item("overload", self.overload()?)?;
            let arguments = self.arguments(py)?;
            for (given, a) in arguments.iter().zip(self.0.arguments()) {
                given.set_item("alias", a.alias().map(ToString::to_string))?;
            }
            d.set_item("arguments", arguments)?;
            let returns = self.returns(py)?;
            for (given, r) in returns.iter().zip(self.0.returns()) {
                given.set_item("alias_of", given.get_item("alias")?)?;
                given.set_item("alias", r.alias().map(ToString::to_string))?;
            }
            d.set_item("returns", returns)?;
            d.set_item("is_mutable", self.is_mutable()?)?;
            d.set_item("mutated", self.mutated()?)?;
            Ok(d)
        })
    }

    fn __str__(&self) -> PyResult<String> {
        guarded(|| Ok(self.0.to_string()))
    }

    fn __repr__(&self) -> PyResult<String> {
        guarded(|| Ok(format!("Schema.parse({:?})", self.0.to_string())))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        guarded(|| Ok((py.get_type::<PySchema>().getattr("parse")?, (self.0.to_string(),))))
    }
}
