//! `tensorplay.library.Schema`: a parsed schema as an immutable Python object.

use crate::error::IntoPyResult;
use crate::error::guarded;
use crate::given;
use pyo3::exceptions::{PyAttributeError, PyKeyError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use tp_dispatch::Schema;

/// A parsed operator schema. `Schema.parse(text)` reads it, `str(schema)` prints it; the two are inverse.
#[pyclass(frozen, name = "Schema", module = "tensorplay.library", eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub struct PySchema(pub Schema);

/// One argument or return of a schema: an immutable record, whose parts are attributes, and items by name.
#[pyclass(frozen, name = "SchemaField", module = "tensorplay.library")]
pub struct PyField {
    kind: &'static str,
    values: Py<PyDict>,
}

#[pymethods]
impl PyField {
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            self.values.bind(py).get_item(name)?.ok_or_else(|| {
                PyAttributeError::new_err(format!("'{}' object has no attribute '{name}'", self.kind))
            })
        })
    }

    fn __getitem__<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        guarded(|| {
            let found = self.values.bind(name.py()).get_item(name)?;
            found.ok_or_else(|| PyKeyError::new_err(name.clone().unbind()))
        })
    }

    /// The names of its parts.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| Ok(self.values.bind(py).keys()))
    }

    /// A fresh dict of its parts: `json.dumps` takes it.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| self.values.bind(py).copy())
    }

    fn __dir__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(|| self.keys(py))
    }

    fn __eq__(&self, py: Python<'_>, other: &PyField) -> PyResult<bool> {
        guarded(|| Ok(self.kind == other.kind && self.values.bind(py).eq(other.values.bind(py))?))
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        guarded(|| PyTuple::new(py, self.values.bind(py).values())?.hash())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        guarded(|| {
            let values = self.values.bind(py);
            let part = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| -> PyResult<String> {
                Ok(format!("{name}={}", value.repr()?))
            };
            let parts = values.iter().map(part).collect::<PyResult<Vec<_>>>()?;
            Ok(format!("{}({})", self.kind, parts.join(", ")))
        })
    }
}

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

    /// One record per argument: name, type, kwarg_only, default (as text or None), has_default, mutated, alias (whether
    /// it has an alias set), alias_info (the set as text, or None), is_tensor.
    #[getter]
    fn arguments(&self, py: Python<'_>) -> PyResult<Vec<PyField>> {
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
                    d.set_item("alias_info", a.alias().map(ToString::to_string))?;
                    d.set_item("is_tensor", a.is_tensor_like())?;
                    Ok(PyField { kind: "Argument", values: d.unbind() })
                })
                .collect()
        })
    }

    /// One record per return: name, type, alias (index of the argument it shares a set with, or None), alias_info.
    #[getter]
    fn returns(&self, py: Python<'_>) -> PyResult<Vec<PyField>> {
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
                    d.set_item("alias_info", r.alias().map(ToString::to_string))?;
                    Ok(PyField { kind: "Return", values: d.unbind() })
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
            let plain = |fields: Vec<PyField>, also: Option<&str>| -> PyResult<Vec<Bound<'py, PyDict>>> {
                let one = |field: PyField| {
                    let values = field.values.into_bound(py);
                    if let Some(also) = also {
                        values.set_item(also, values.get_item("alias")?)?;
                    }
                    values.set_item("alias", values.get_item("alias_info")?)?;
                    values.del_item("alias_info")?;
                    Ok(values)
                };
                fields.into_iter().map(one).collect()
            };
            d.set_item("arguments", plain(self.arguments(py)?, None)?)?;
            d.set_item("returns", plain(self.returns(py)?, Some("alias_of"))?)?;
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
