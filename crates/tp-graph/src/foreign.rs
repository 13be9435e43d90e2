//! Running what a backend from outside made: the outputs are tensors of its own, and are held to the region's promise.

use crate::backend::{HostExecutor, NATIVE};
use crate::native::fits;
use crate::plan::FusedStep;
use smallvec::SmallVec;
use std::sync::Arc;
use tp_dispatch::{CodegenMarker, Error, Result};
use tp_tensor::{Tensor, TensorSpec};

pub(crate) fn from_host(
    executor: &dyn HostExecutor,
    inputs: &[&Tensor],
    step: &FusedStep,
) -> Result<(SmallVec<[Tensor; 2]>, Arc<CodegenMarker>)> {
    let (outputs, marker) = executor.run(inputs)?;
    if outputs.len() != step.outputs.len() {
        let (got, want) = (outputs.len(), step.outputs.len());
        let who = if &*marker.executor == NATIVE { "region" } else { &*marker.executor };
        return Err(Error::contract(
            "TP3206",
            format!("backend '{who}' returned {got} tensors for {want} outputs"),
        ));
    }
    for (i, (t, out)) in outputs.iter().zip(&step.outputs).enumerate() {
        let others = outputs[..i].iter().chain(inputs.iter().copied());
        let overlaps = others.into_iter().any(|x| x.shares_storage(t) || share_bytes(x, t));
        if overlaps || t.is_fake() || !fits(t, &out.promise) {
            return Err(broken_backend(&marker, i, t, &out.promise, overlaps));
        }
    }
    Ok((outputs.into(), marker))
}

/// Whether two tensors reach the same memory, whoever told us of it.
fn share_bytes(a: &Tensor, b: &Tensor) -> bool {
    let span = |t: &Tensor| {
        let reach = |(n, s): (&i64, &i64)| (n - 1) * s;
        let (low, high) = t
            .sizes()
            .iter()
            .zip(t.strides().iter())
            .map(reach)
            .fold((0, 0), |(low, high), d| if d < 0 { (low + d, high) } else { (low, high + d) });
        let (start, size) = (t.data_ptr() as i64, t.dtype().itemsize() as i64);
        (start + low * size, start + (high + 1) * size)
    };
    if a.numel() == 0 || b.numel() == 0 {
        return false;
    }
    let (a, b) = (span(a), span(b));
    a.0 < b.1 && b.0 < a.1
}

#[cold]
fn broken_backend(
    marker: &CodegenMarker,
    i: usize,
    t: &Tensor,
    promise: &TensorSpec,
    overlaps: bool,
) -> Error {
    let what = if overlaps {
        "shares memory with an input or with another output".to_string()
    } else {
        format!("is {}, not {promise}", TensorSpec::of(t))
    };
    Error::contract("TP3207", format!("backend '{}': output {i} of its region {what}", marker.executor))
}
