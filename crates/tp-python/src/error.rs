//! Our errors as Python exceptions: one class of `tensorplay.errors` per kind, with code, op and notes. An
//! exception of Python's own passes through unchanged.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use tp_dispatch::{Error, ErrorKind};

/// Name of the class in `tensorplay.errors`.
pub fn class_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Schema => "SchemaError",
        ErrorKind::Registration => "RegistrationError",
        ErrorKind::Argument => "ArgumentError",
        ErrorKind::Shape => "ShapeError",
        ErrorKind::DType => "DTypeError",
        ErrorKind::Device => "DeviceError",
        ErrorKind::DivisionByZero => "DivisionByZeroError",
        ErrorKind::NoKernel => "NoKernelError",
        ErrorKind::Capability => "CapabilityError",
        ErrorKind::Contract => "ContractError",
        ErrorKind::Autograd => "AutogradError",
        ErrorKind::Capture => "CaptureError",
        ErrorKind::Fallback => "FallbackError",
        ErrorKind::Graph => "GraphError",
        ErrorKind::Index => "IndexOutOfRangeError",
        ErrorKind::Memory => "OutOfMemoryError",
        ErrorKind::Value => "InvalidValueError",
        ErrorKind::Host | ErrorKind::Internal => "InternalError",
    }
}

/// The exception for `e`.
pub fn to_py(py: Python<'_>, mut e: Error) -> PyErr {
    if let Some(payload) = e.take_payload() {
        return match payload.downcast::<PyErr>() {
            Ok(err) => *err,
            Err(_) => PyRuntimeError::new_err("an exception of another interpreter"),
        };
    }
    build(py, &e).unwrap_or_else(|err| err)
}

fn build(py: Python<'_>, e: &Error) -> PyResult<PyErr> {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let errors = ERRORS.get_or_try_init(py, || Ok::<_, PyErr>(py.import("tensorplay.errors")?.unbind()))?;
    let class = errors.bind(py).getattr(class_name(e.kind()))?;
    let kwargs = PyDict::new(py);
    kwargs.set_item("code", e.code())?;
    kwargs.set_item("op", e.op())?;
    if let Some(reason) = e.reason() {
        kwargs.set_item("reason", crate::report::reason_object(py, reason)?)?;
    }
    let exception = class.call((e.to_string(),), Some(&kwargs))?;
    for note in e.notes() {
        exception.call_method1("add_note", (note.as_str(),))?;
    }
    Ok(PyErr::from_value(exception))
}

/// Sets the exception of this thread. The interpreter lock is held, as in any slot.
#[cold]
pub fn set(e: Error) {
    Python::attach(|py| to_py(py, e).restore(py));
}

/// Our error for an exception on its way out of Python code.
pub fn from_py(err: PyErr) -> Error {
    Error::host(Box::new(err))
}

/// Takes the exception that a C call left behind.
#[cold]
pub fn fetch() -> Error {
    Python::attach(|py| from_py(PyErr::fetch(py)))
}

/// `?` for PyO3 functions.
pub trait IntoPyResult<T> {
    fn py(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> IntoPyResult<T> for tp_dispatch::Result<T> {
    fn py(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| to_py(py, e))
    }
}
