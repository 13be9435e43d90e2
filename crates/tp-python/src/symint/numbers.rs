//! Calculation with a size that has no symbolic form: done with the number, where that is known or can be settled.

use super::{PySymBool, PySymInt, object, text};
use crate::error::IntoPyResult;
use crate::hot::ffi::Obj;
use crate::hot::shell;
use pyo3::IntoPyObjectExt;
use pyo3::PyTypeInfo;
use pyo3::exceptions::PyAttributeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyComplex, PyDict, PyFloat, PyInt, PyTuple, PyType};
use std::sync::Arc;
use tp_dispatch::Error;
use tp_tensor::symbols::{Poly, Relation, Statement, Symbols};
use tp_tensor::{Dim, TensorError};

/// Whether Python calculates with it as with a number: floats, fractions, NumPy's scalars.
fn is_number(obj: &Bound<'_, PyAny>) -> PyResult<bool> {
    static NUMBER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    // SAFETY: a live object, lock held.
    if unsafe { shell::is_tensor(obj.as_ptr()) } {
        return Ok(false);
    }
    if obj.is_instance_of::<PyFloat>() || obj.is_instance_of::<PyComplex>() {
        return Ok(true);
    }
    obj.is_instance(NUMBER.import(obj.py(), "numbers", "Number")?)
}

/// The same question with a whole number, or its answer where that is one for all sizes.
enum Whole {
    Is(Relation, i64),
    Known(bool),
}

/// Exact: `n < 3.5` is `n < 4`, and no size is 3.5.
fn whole(relation: Relation, by: f64) -> Whole {
    // Every float in between is a number of 64 bits when it is whole.
    const END: f64 = 9.223_372_036_854_776e18;
    if by.is_nan() {
        return Whole::Known(relation == Relation::Ne);
    }
    if !(-END..END).contains(&by) {
        let below = by > 0.0;
        return Whole::Known(match relation {
            Relation::Eq => false,
            Relation::Ne => true,
            Relation::Lt | Relation::Le => below,
            Relation::Gt | Relation::Ge => !below,
        });
    }
    match relation {
        Relation::Eq | Relation::Ne if by.fract() != 0.0 => Whole::Known(relation == Relation::Ne),
        Relation::Lt | Relation::Ge => Whole::Is(relation, by.ceil() as i64),
        _ => Whole::Is(relation, by.floor() as i64),
    }
}

/// Whether an object is an int or a size.
///
/// # Safety
/// A live object, lock held.
pub unsafe fn is_whole(obj: Obj) -> bool {
    // SAFETY: as above.
    unsafe { ffi::PyLong_Check(obj) != 0 || ffi::Py_TYPE(obj) == size_type() }
}

/// Somebody asks what no object but an int itself can answer, such as `type(n) is int`: a capture with the sizes as they
/// are says it, and where the size is marked dynamic, it is an error that the function needs the number.
///
/// # Safety
/// As `is_whole`.
pub unsafe fn unmask(obj: Obj) {
    // SAFETY: as above.
    let is_size = unsafe { ffi::Py_TYPE(obj) == size_type() };
    // SAFETY: a size, as was just seen.
    let object = || unsafe { Bound::<PyAny>::from_borrowed_ptr(Python::assume_attached(), obj) };
    if is_size && let Ok(size) = object().cast::<PySymInt>() {
        let size = size.get();
        if size.is_of_inputs() {
            size.table.settle(&size.poly);
            size.table.give_up();
        }
    }
}

fn size_type() -> *mut ffi::PyTypeObject {
    // SAFETY: whoever holds a live object holds the lock.
    PySymInt::type_object_raw(unsafe { Python::assume_attached() })
}

/// Sizes of a graph as objects, whatever table is in force.
pub fn size_objects<'py>(
    py: Python<'py>,
    table: &Arc<Symbols>,
    raw: &[i64],
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    raw.iter()
        .map(|&d| match table.poly(Dim::from_raw(d)) {
            Some(poly) => object(py, poly, table),
            None => Err(Error::from(TensorError::Symbolic(d))).py(py),
        })
        .collect()
}

/// A function of NumPy over numbers.
pub(super) fn ufunc<'py>(
    ufunc: &Bound<'py, PyAny>,
    method: &str,
    inputs: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let number = |input: Bound<'py, PyAny>| match input.cast::<PySymInt>() {
        Ok(size) => size.get().__index__(input.py())?.into_bound_py_any(input.py()),
        Err(_) => Ok(input),
    };
    let inputs = inputs.iter().map(number).collect::<PyResult<Vec<_>>>()?;
    ufunc.getattr(method)?.call(PyTuple::new(ufunc.py(), inputs)?, kwargs)
}

impl PySymInt {
    /// Calculation with something that is no whole number: on the number where Python has such a calculation.
    #[cold]
    pub(super) fn beside<'py>(
        &self,
        sign: &str,
        other: &Bound<'py, PyAny>,
        reflected: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        if !is_number(other)? {
            return Ok(other.py().NotImplemented().into_bound(other.py()));
        }
        let method = match (sign, reflected) {
            ("+", false) => "__add__",
            ("+", true) => "__radd__",
            ("-", false) => "__sub__",
            ("-", true) => "__rsub__",
            ("*", false) => "__mul__",
            ("*", true) => "__rmul__",
            ("//", _) => "__floordiv__",
            ("%", _) => "__mod__",
            _ => "__divmod__",
        };
        self.on_number(method, sign, other, reflected)
    }

    /// A comparison of whole numbers: its answer, or the statement.
    pub(super) fn stated<'py>(
        &self,
        py: Python<'py>,
        relation: Relation,
        right: Poly,
    ) -> PyResult<Bound<'py, PyAny>> {
        let statement = Statement { left: self.poly.clone(), relation, right };
        match self.table.decide(&statement) {
            Some(known) => known.into_bound_py_any(py),
            None => Ok(Bound::new(py, PySymBool { statement, table: self.table.clone() })?.into_any()),
        }
    }

    /// A comparison with something that is no whole number.
    #[cold]
    pub(super) fn compared<'py>(
        &self,
        relation: Relation,
        other: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = other.py();
        if let Ok(by) = other.cast_exact::<PyFloat>() {
            return match whole(relation, by.value()) {
                Whole::Is(relation, by) => self.stated(py, relation, Poly::constant(by)),
                Whole::Known(known) => known.into_bound_py_any(py),
            };
        }
        if !is_number(other)? {
            return Ok(py.NotImplemented().into_bound(py));
        }
        let name = match relation {
            Relation::Eq => "__eq__",
            Relation::Ne => "__ne__",
            Relation::Lt => "__lt__",
            Relation::Le => "__le__",
            Relation::Gt => "__gt__",
            Relation::Ge => "__ge__",
        };
        self.on_number(name, relation.text(), other, false)
    }

    /// An attribute that ints have.
    #[cold]
    pub(super) fn attribute_of_number<'py>(
        &self,
        py: Python<'py>,
        name: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        if name.starts_with('_') || !py.get_type::<PyInt>().hasattr(name)? {
            let class = if self.is_of_inputs() { "int" } else { "SymInt" };
            return Err(PyAttributeError::new_err(format!("'{class}' object has no attribute '{name}'")));
        }
        let number = self.number(|| format!("({}).{name}", self.poly)).py(py)?;
        number.into_bound_py_any(py)?.getattr(name)
    }

    /// Calculation that has no symbolic form, on the number.
    #[cold]
    pub(super) fn on_number<'py>(
        &self,
        method: &str,
        sign: &str,
        other: &Bound<'py, PyAny>,
        reflected: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = other.py();
        let what = match reflected {
            true => format!("{} {sign} ({})", text(other)?, self.poly),
            false => format!("{} {sign} {}", self.poly, text(other)?),
        };
        let number = self.number(|| what).py(py)?.into_pyobject(py)?.into_any();
        let name = method.trim_matches('_');
        let operator = py.import("operator")?;
        match (reflected, name) {
            (_, "divmod" | "rdivmod") => {
                let args = if reflected { (other, &number) } else { (&number, other) };
                py.import("builtins")?.call_method1("divmod", args)
            }
            (true, name) => operator.call_method1(operator_name(&name[1..]), (other, number)),
            (false, name) => operator.call_method1(operator_name(name), (number, other)),
        }
    }
}

/// The function of Python's module `operator`.
fn operator_name(name: &str) -> &str {
    match name {
        "and" => "and_",
        "or" => "or_",
        other => other,
    }
}
