//! Which sizes of a call are symbols: what `dynamic=` says, and the axes that callers marked.

use crate::hot::shell;
use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use tp_dispatch::Arg;
use tp_graph::sizing::{Dynamic, Mark};
use tp_tensor::symbols;

/// What `dynamic=None`, `True` and `False` say.
pub fn policy(dynamic: Option<bool>) -> Dynamic {
    match dynamic {
        None => Dynamic::Auto,
        Some(true) => Dynamic::Always,
        Some(false) => Dynamic::Never,
    }
}

/// Whether an error in a capture may be one of its symbols, which the sizes as they are will say: our own, or that of native
/// code that takes an int and nothing else. What the function wrote by then is taken back, for it runs again.
#[cold]
pub fn failed(py: Python<'_>, e: &PyErr) -> bool {
    let Some(table) = symbols::current() else { return false };
    if table.inputs().is_empty() {
        return false;
    }
    let kind = e.get_type(py);
    let native = kind.is(py.get_type::<PyTypeError>()) || kind.is(py.get_type::<PyAttributeError>());
    let ours = py.import("tensorplay.errors").and_then(|m| m.getattr("TensorPlayError"));
    let ours = ours.and_then(|class| e.value(py).is_instance(&class)).unwrap_or(false);
    if ours || native && crate::watching::is_available() {
        table.give_up();
        return true;
    }
    false
}

/// Axis, least and greatest size.
type Marked = (usize, Option<i64>, Option<i64>);

/// The marked axes of the tensors among the arguments.
pub fn marks(py: Python<'_>, args: &[Arg<'_>]) -> PyResult<Vec<Mark>> {
    static MARKS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let all = MARKS.get_or_try_init(py, || {
        let found = py.import("tensorplay._dynamic")?.getattr("marked")?;
        found.cast_into::<PyDict>().map(Bound::unbind).map_err(|e| PyValueError::new_err(e.to_string()))
    })?;
    let all = all.bind(py);
    let mut out = Vec::new();
    if all.is_empty() {
        return Ok(out);
    }
    for (arg, t) in args.iter().enumerate().filter_map(|(i, a)| Some((i, a.tensor()?))) {
        // SAFETY: lock held; a tensor with marks has its object, which keeps them.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, shell::wrap(t.clone()))? };
        let Some(marked) = all.get_item(object.as_ptr() as usize)? else { continue };
        let marked: Vec<Marked> = marked.get_item(1)?.extract()?;
        out.extend(marked.into_iter().map(|(axis, min, max)| Mark { arg, axis, min, max }));
    }
    Ok(out)
}
