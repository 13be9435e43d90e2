//! Which entry serves a call that is not looked up on the stack: one whose guards hold, or a new one; or that none does.

use super::object::{Inner, Results};
use super::tree::{self, Call, Flat, FlatCall, Numbers};
use super::values::{FlatValues, flat_args, flat_values, holds_fake};
use super::{dynamic, notice, segmented};
use crate::error;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::any::Any;
use std::sync::Arc;
use tp_dispatch::{Result, Rets, Value, state};
use tp_graph::compile::Built;
use tp_graph::entry::Entry;
use tp_graph::report::FallbackPolicy;
use tp_graph::segments::Store;
use tp_tensor::Tensor;

/// How often one call looks for an entry, at most.
const ATTEMPTS: usize = 64;

/// Finds or makes an entry for the call and runs it, with what came of that. Kernels may come and go between the look and the
/// run; then nothing has run, and the call looks again. Whoever finds an entry stale makes another one, and there is a limit
/// to those: past it the function itself is to run.
pub(super) fn run(
    py: Python<'_>,
    inner: &Inner,
    call: &Call<'_>,
    rets: &mut Rets,
) -> Result<(Found, Result<()>)> {
    for _ in 0..ATTEMPTS {
        let found = find_or_build(py, inner, call)?;
        let Found::Entry(entry, flat, _) = &found else { return Ok((found, Ok(()))) };
        let ran = entry.run(&flat_args(flat), rets);
        if !matches!(ran, Ok(false)) {
            return Ok((found, ran.map(drop)));
        }
    }
    Ok((Found::Eager, Ok(())))
}

pub(super) enum Found {
    /// With whether it was made for this call.
    Entry(Arc<Entry>, FlatValues, bool),
    /// The function itself: over the limit of entries, or inlined into a capture, which also a fake rule is.
    Eager,
    /// Python runs, and what lies between two breaks is compiled.
    Segments(Arc<Store>, Option<segmented::Suspicion>),
}

pub(super) fn find_or_build(py: Python<'_>, inner: &Inner, call: &Call<'_>) -> Result<Found> {
    for _ in 0..ATTEMPTS {
        if let Some(found) = look(py, inner, call)? {
            return Ok(found);
        }
    }
    Ok(Found::Eager)
}

/// None where the capture failed, and another one will not fail in the same way.
fn look(py: Python<'_>, inner: &Inner, call: &Call<'_>) -> Result<Option<Found>> {
    if tp_graph::capture::active() || tp_graph::segments::active() {
        return Ok(Some(Found::Eager));
    }
    let flat_call = FlatCall::new(call, &inner.parameters)?;
    let flat = flat_values(&flat_call);
    if flat.values.iter().any(holds_fake) {
        return Ok(Some(Found::Eager));
    }
    let args = flat_args(&flat);
    // Inside of vmap the function itself is batched.
    if args.iter().any(|a| a.tensor().is_some_and(Tensor::is_batched)) {
        return Ok(Some(Found::Eager));
    }
    if let Some(entry) = inner.core.find(&args) {
        let entry = entry.clone();
        drop(args);
        return Ok(Some(Found::Entry(entry, flat, false)));
    }
    // SAFETY: a live function held by the object.
    let func = unsafe { Bound::from_borrowed_ptr(py, inner.func) };
    let assumed = unsafe { Bound::from_borrowed_ptr(py, inner.assumed) };
    // SAFETY: a tuple since it was made.
    let assumed: Bound<'_, PyTuple> = unsafe { assumed.cast_into_unchecked() };
    let leaves = flat_call.flat.values.len();
    let kind = inner.segments.as_ref().map(|store| (store, segmented::kind_of(&flat_call.flat.shape, &args)));
    // The body of an op, or a rule, is no place to put calls off.
    if kind.is_some() && (state::is_in_foreign_kernel() || tp_dispatch::fake::in_rule()) {
        return Ok(Some(Found::Eager));
    }
    if let Some((store, kind)) = &kind
        && !(crate::watching::is_available() && store.may_capture(*kind))
    {
        return Ok(Some(Found::Segments(Arc::clone(store), None)));
    }
    let watch = tree::Watch { assumed: &assumed, is_tentative: kind.is_some() };
    let marks = dynamic::marks(py, &args).map_err(error::from_py)?;
    let made = Arc::new(flat_call);
    // Called twice where a capture with symbolic sizes does not come about.
    let built = inner.core.build(&args, &flat.names, &marks, &mut |values: &[Value]| {
        let values = values.get(..leaves).unwrap_or(values);
        let out = made.call(py, &func, &inner.parameters, values, Some(watch));
        let out = out.inspect_err(|e| _ = dynamic::failed(py, e)).map_err(error::from_py)?;
        let mut results = Flat::default();
        let tree = tree::flatten(&out, "result", Numbers::Fixed, &mut results)?;
        let structure: Box<dyn Any + Send + Sync> = Box::new(Results { tree, _call: made.clone() });
        Ok((results.values, structure))
    });
    drop(args);
    if built.is_err() && crate::watching::may_succeed_now() {
        return Ok(None);
    }
    let built = match (built, kind) {
        (Err(e), Some((store, kind))) => {
            let refusal = segmented::refusal(py, store, kind, e)?;
            return Ok(Some(Found::Segments(store.clone(), refusal)));
        }
        (built, _) => built?,
    };
    match built {
        Built::Entry(entry) => {
            if inner.core.policy() == FallbackPolicy::Warn {
                notice::warn(py, &entry)?;
            }
            notice::built(py, &func, &inner.core, &entry).map_err(error::from_py)?;
            Ok(Some(Found::Entry(entry, flat, true)))
        }
        Built::Eager(reason) => {
            if inner.core.tell_limit() {
                notice::warn_of(py, std::slice::from_ref(&reason))?;
            }
            inner.core.note_eager(&reason);
            notice::eager(py, &func, &reason).map_err(error::from_py)?;
            Ok(Some(Found::Eager))
        }
    }
}
