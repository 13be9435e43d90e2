//! Which sizes of a call are symbols: what `dynamic=` says, and the axes that callers marked.

use crate::hot::shell;
use pyo3::exceptions::PyValueError;
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

/// Our own error in a capture may be one of its symbols: the sizes as they are will say.
#[cold]
pub fn failed(py: Python<'_>, e: &PyErr) {
    let ours = py.import("tensorplay.errors").and_then(|m| m.getattr("TensorPlayError"));
    if ours.and_then(|class| e.value(py).is_instance(&class)).unwrap_or(false)
        && let Some(table) = symbols::current()
    {
        table.give_up();
    }
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
