//! Contexts of a thread: what was in force before each entry, and entering and leaving in one step each. Not here: what
//! is set, which is the business of the functions that a context is made with.

use crate::error::guarded;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use std::thread::{self, ThreadId};

/// The entries of one context manager that have not ended, with what each has to put back.
///
/// It may be entered again, and by several threads at once: an end belongs to the newest entry of its thread.
#[pyclass(subclass, frozen, module = "tensorplay._native")]
struct Entries {
    name: String,
    error: Py<PyAny>,
    code: String,
    kept: Mutex<Vec<(ThreadId, Py<PyAny>)>>,
}

#[pymethods]
impl Entries {
    #[new]
    fn new(name: String, error: Py<PyAny>, code: String) -> PyResult<Entries> {
        guarded(|| Ok(Entries { name, error, code, kept: Mutex::new(Vec::new()) }))
    }

    /// How many entries have not ended, on all threads.
    fn __len__(&self) -> PyResult<usize> {
        guarded(|| Ok(self.kept.lock().len()))
    }

    /// Notes an entry on this thread, and what its end needs.
    fn push(&self, value: Py<PyAny>) -> PyResult<()> {
        guarded(|| {
            self.kept.lock().push((thread::current().id(), value));
            Ok(())
        })
    }

    /// What the newest entry of this thread noted. An error where this thread has none: nothing is put back then.
    fn pop(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        guarded(|| {
            let here = thread::current().id();
            let mut kept = self.kept.lock();
            match kept.iter().rposition(|(at, _)| *at == here) {
                Some(newest) => Ok(kept.remove(newest).1),
                None => {
                    let elsewhere = !kept.is_empty();
                    drop(kept);
                    Err(self.astray(py, elsewhere)?)
                }
            }
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.error)?;
        // A collection that interrupts the owner of the lock sees these another time.
        let Some(kept) = self.kept.try_lock() else { return Ok(()) };
        kept.iter().try_for_each(|(_, value)| visit.call(value))
    }
}

impl Entries {
    #[cold]
    fn astray(&self, py: Python<'_>, elsewhere: bool) -> PyResult<PyErr> {
        let name = &self.name;
        let (message, notes): (String, &[&str]) = if elsewhere {
            (
                format!(
                    "{name} was left on another thread than the one that entered it, where it is still in force"
                ),
                &[
                    "it belongs to its thread: leave it there",
                    "a generator that holds it is closed by the thread that runs it",
                ],
            )
        } else {
            (format!("{name} was left without being entered"), &["write `with ...:`, which does both"])
        };
        let how = PyDict::new(py);
        how.set_item("code", &self.code)?;
        how.set_item("notes", PyTuple::new(py, notes)?)?;
        Ok(PyErr::from_value(self.error.bind(py).call((message,), Some(&how))?))
    }
}

/// A context whose entry is `before = enter(*args)` and whose end is `leave(before)`.
///
/// Where both are functions of the extension, an exception that a signal raises comes before or after them, not between
/// setting and noting: the interpreter looks at signals in Python code alone.
#[pyclass(extends = Entries, subclass, frozen, module = "tensorplay._native")]
struct Scope {
    leave: Py<PyAny>,
    enter: Py<PyAny>,
    args: Py<PyTuple>,
}

#[pymethods]
impl Scope {
    #[new]
    #[pyo3(signature = (name, error, code, leave, enter, *args))]
    fn new(
        name: String,
        error: Py<PyAny>,
        code: String,
        leave: Py<PyAny>,
        enter: Py<PyAny>,
        args: Py<PyTuple>,
    ) -> PyResult<PyClassInitializer<Scope>> {
        guarded(|| {
            let entries = Entries::new(name, error, code)?;
            Ok(PyClassInitializer::from(entries).add_subclass(Scope { leave, enter, args }))
        })
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        guarded(|| {
            let scope = slf.get();
            let before = scope.enter.call1(slf.py(), scope.args.bind(slf.py()))?;
            slf.as_super().get().push(before)?;
            Ok(slf.clone())
        })
    }

    #[pyo3(signature = (*_details))]
    fn __exit__(slf: &Bound<'_, Self>, _details: &Bound<'_, PyTuple>) -> PyResult<bool> {
        guarded(|| {
            let before = slf.as_super().get().pop(slf.py())?;
            slf.get().leave.call1(slf.py(), (before,))?;
            Ok(false)
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.leave)?;
        visit.call(&self.enter)?;
        visit.call(&self.args)
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Entries>()?;
    m.add_class::<Scope>()
}
