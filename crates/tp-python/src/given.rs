//! Arguments of the extension's own functions. PyO3 would refuse a wrong one with an exception that has no code and
//! names neither the function nor what it takes; here it is our error, as for an op's arguments. An exception of the
//! object's own (from its `__index__`, say) goes to the caller as it is.

use crate::error;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyUnicodeError};
use pyo3::prelude::*;
use std::path::PathBuf;
use tp_dispatch::Error;

/// What an argument can be read as.
pub trait Wanted: for<'a, 'py> FromPyObject<'a, 'py> {
    /// As messages call it.
    const TEXT: &'static str;
}

impl Wanted for String {
    const TEXT: &'static str = "str";
}

impl Wanted for usize {
    const TEXT: &'static str = "an int that is not negative";
}

impl Wanted for u64 {
    const TEXT: &'static str = "an int from 0 to 2**64 - 1";
}

impl Wanted for u8 {
    const TEXT: &'static str = "an int from 0 to 255";
}

impl Wanted for PathBuf {
    const TEXT: &'static str = "a path (str or os.PathLike)";
}

/// Argument `name` of `function`, a public name.
pub fn read<T: Wanted>(function: &str, name: &str, obj: &Bound<'_, PyAny>) -> PyResult<T> {
    obj.extract::<T>().map_err(|e| refused(function, name, T::TEXT, obj, e.into()))
}

/// As `read`, for an argument that may be left out.
pub fn optional<T: Wanted>(
    function: &str,
    name: &str,
    obj: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<T>> {
    obj.filter(|o| !o.is_none()).map(|o| read(function, name, o)).transpose()
}

#[cold]
fn refused(function: &str, name: &str, want: &str, obj: &Bound<'_, PyAny>, e: PyErr) -> PyErr {
    let py = obj.py();
    let said = format!("{function}: argument '{name}' must be {want}");
    if e.is_instance_of::<PyOverflowError>(py) {
        let got = obj.str().map_or_else(|_| "another".to_string(), |s| s.to_string());
        return error::to_py(py, Error::value("TP1048", format!("{said}, got {got}")));
    }
    if e.is_instance_of::<PyUnicodeError>(py) {
        let message = format!("{said}, got one that is no text: it holds half a surrogate pair");
        return error::to_py(py, Error::argument("TP1002", message));
    }
    if e.is_instance_of::<PyTypeError>(py) {
        return wrong(function, name, want, obj);
    }
    e
}

/// The error for an object of another type.
#[cold]
pub fn wrong(function: &str, name: &str, want: &str, obj: &Bound<'_, PyAny>) -> PyErr {
    let got = obj.get_type().name().map_or_else(|_| "another".to_string(), |n| n.to_string());
    let message = format!("{function}: argument '{name}' must be {want}, got {got}");
    error::to_py(obj.py(), Error::argument("TP1002", message))
}

/// A flag, for `from_py_with`.
pub fn flag(obj: &Bound<'_, PyAny>) -> PyResult<bool> {
    obj.extract().map_err(|_| expected("True or False", obj))
}

/// A flag or None, for `from_py_with`.
pub fn optional_flag(obj: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
    obj.extract().map_err(|_| expected("True, False or None", obj))
}

/// The error of a conversion that knows neither function nor argument: PyO3 adds a note with the argument's name.
#[cold]
pub fn expected(want: &str, obj: &Bound<'_, PyAny>) -> PyErr {
    let got = obj.get_type().name().map_or_else(|_| "another".to_string(), |n| n.to_string());
    error::to_py(obj.py(), Error::argument("TP1002", format!("expected {want}, got {got}")))
}
