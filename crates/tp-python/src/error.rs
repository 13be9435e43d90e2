//! Our errors as Python exceptions: one class of `tensorplay.errors` per kind, with code, op and notes. An
//! exception of Python's own passes through unchanged.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
            Ok(err) => noted(py, *err, e.notes()),
            Err(_) => PyRuntimeError::new_err("an exception of another interpreter"),
        };
    }
    build(py, &e).unwrap_or_else(|err| err)
}

/// An exception of Python's own, with what we know about where it happened.
fn noted(py: Python<'_>, err: PyErr, notes: &[String]) -> PyErr {
    for note in notes {
        // Something else than an exception object is raised by nobody; a note that cannot be added is lost.
        drop(err.value(py).call_method1("add_note", (note.as_str(),)));
    }
    err
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
    let mut message = e.to_string();
    if e.kind() == ErrorKind::Capability {
        // Below the door no device but CUDA can be absent.
        let capability = py.import("tensorplay.backends.base")?.call_method1("capability", ("cuda",))?;
        if let Some(reason) = capability.getattr("reason")?.extract::<Option<String>>()? {
            let (head, tail) = message.split_once("; ").unwrap_or((&message, "nothing was run"));
            message = format!("{head}: {reason}; {tail}");
        }
        kwargs.set_item("capability", capability)?;
    }
    let exception = class.call((message,), Some(&kwargs))?;
    for note in e.notes() {
        exception.call_method1("add_note", (note.as_str(),))?;
    }
    Ok(PyErr::from_value(exception))
}

/// Runs `f` with the interpreter lock, which the caller holds as a rule. Unlike PyO3's `attach` it also serves while the
/// interpreter shuts down, when the collector still calls our slots.
pub fn attached<R>(f: impl FnOnce(Python<'_>) -> R) -> R {
    // SAFETY: our code runs only where Python called it, directly or on the way: the interpreter is there.
    unsafe { Python::attach_unchecked(f) }
}

/// Sets the exception of this thread. The interpreter lock is held, as in any slot.
#[cold]
pub fn set(e: Error) {
    attached(|py| to_py(py, e).restore(py));
}

/// Our error for an exception on its way out of Python code.
pub fn from_py(err: PyErr) -> Error {
    Error::host(Box::new(err))
}

/// Runs the body of a PyO3 function or method. PyO3 would let a panic through as a BaseException of its own; here it
/// becomes the internal error that it is at every other door.
pub fn guarded<T>(body: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => Err(attached(|py| to_py(py, crate::hot::ret::panic_error(&*panic)))),
    }
}

/// Takes the exception that a C call left behind.
#[cold]
pub fn fetch() -> Error {
    attached(|py| from_py(PyErr::fetch(py)))
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
