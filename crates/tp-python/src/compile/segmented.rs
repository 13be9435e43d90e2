//! Calls of functions that need not be captured as a whole: which errors of a capture make a function run in segments, and
//! one call in segments.

use super::{notice, tree::Call};
use crate::error;
use crate::hot::ffi as x;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tp_dispatch::{Arg, Error, ErrorKind, Result};
use tp_graph::report::FallbackPolicy;
use tp_graph::segments::{Break, Scope, Store};

/// What of a call's arguments decides whether a capture is tried again: structure and literals, and of tensors what
/// functions branch on most.
pub fn kind_of(shape: &str, args: &[Arg<'_>]) -> u64 {
    let mut hash = DefaultHasher::new();
    shape.hash(&mut hash);
    for arg in args {
        match arg {
            Arg::Tensor(t) => (t.kind(), t.ndim()).hash(&mut hash),
            other => format!("{other:?}").hash(&mut hash),
        }
    }
    hash.finish()
}

/// What a function raised while it was captured for a kind of arguments, and was no refusal of the capture. If it does not
/// raise by itself, the capture was the cause.
pub struct Suspicion {
    kind: u64,
    why: Break,
}

/// What the error of a capture says: that the function runs in segments, where it raises its own errors. An interrupt, and
/// a fallback that the caller forbids, are the caller's.
pub fn refusal(py: Python<'_>, store: &Store, kind: u64, e: Error) -> Result<Option<Suspicion>> {
    if e.kind() == ErrorKind::Fallback {
        return Err(e);
    }
    let raised = error::to_py(py, e);
    let ours = |class: &str| {
        let found = py.import("tensorplay.errors").and_then(|m| m.getattr(class));
        found.and_then(|class| raised.value(py).is_instance(&class)).unwrap_or(false)
    };
    if ours("FallbackError") || !raised.is_instance_of::<PyException>(py) {
        return Err(error::from_py(raised));
    }
    let is_certain = ours("CaptureError");
    let why = described(py, &raised, is_certain).map_err(error::from_py)?;
    if is_certain {
        store.refuse(kind, why);
        return Ok(None);
    }
    Ok(Some(Suspicion { kind, why }))
}

/// The error as a break: its text, the op and the place that its notes name.
fn described(py: Python<'_>, raised: &PyErr, is_certain: bool) -> PyResult<Break> {
    let value = raised.value(py);
    if !is_certain {
        let text = format!("the function is no one graph: its capture failed of {raised}");
        return Ok(Break { code: "TP4041".into(), text, location: None });
    }
    let said = value.str()?.to_string();
    let said = said.split_once("] ").map_or(said.as_str(), |(_, text)| text);
    let notes: Vec<String> = match value.getattr_opt("__notes__")? {
        Some(notes) => notes.extract()?,
        None => Vec::new(),
    };
    let is_place = |note: &&String| {
        ["captured at ", "read at ", "called at "].iter().any(|start| note.starts_with(start))
    };
    let place = notes.iter().find(is_place).map_or_else(String::new, |note| format!(", {note}"));
    let code: String = value.getattr("code")?.extract()?;
    let text = format!("the function is no one graph: {said}{place}");
    Ok(Break { code: code.into(), text, location: None })
}

/// Runs the function, with the ops between its breaks compiled.
pub fn call<'py>(
    py: Python<'py>,
    func: &Bound<'py, PyAny>,
    (store, suspicion): (&Arc<Store>, Option<Suspicion>),
    call: &Call<'py>,
) -> Result<Bound<'py, PyAny>> {
    x::require_stack().map_err(error::from_py)?;
    let scope = Scope::enter(store);
    let out = func.call(&call.args, call.kwargs.as_ref());
    let done = scope.finish();
    if let Some(Suspicion { kind, why }) = suspicion.filter(|_| out.is_ok()) {
        store.refuse(kind, why);
    }
    let told = tell(py, func, store);
    // What the function raised comes first: it was raised first.
    let out = out.map_err(error::from_py)?;
    done?;
    told?;
    Ok(out)
}

/// Warns, counts and logs what is new.
fn tell(py: Python<'_>, func: &Bound<'_, PyAny>, store: &Store) -> Result<()> {
    let (breaks, fresh) = store.take_news();
    for one in &breaks {
        notice::broke(py, func, one).map_err(error::from_py)?;
    }
    for (core, entry) in &fresh {
        if core.policy() == FallbackPolicy::Warn {
            notice::warn(py, entry)?;
        }
        notice::built(py, func, core, entry).map_err(error::from_py)?;
        notice::ran(py, func, core).map_err(error::from_py)?;
    }
    Ok(())
}
