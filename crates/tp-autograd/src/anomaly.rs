//! Anomaly mode: while it is on, nodes remember where they were recorded, and the first node whose backward gives a
//! NaN is an error that names it. Off, it costs one relaxed load per recorded node.

use crate::tape::Node;
use std::sync::atomic::{AtomicUsize, Ordering};
use tp_dispatch::{Error, Result};
use tp_tensor::{DType, Tensor};

static USERS: AtomicUsize = AtomicUsize::new(0);

/// Looks for anomalies, in the whole process, while it lives.
#[must_use = "anomaly mode ends when the guard is dropped"]
pub struct DetectAnomaly(());

impl DetectAnomaly {
    pub fn enter() -> DetectAnomaly {
        USERS.fetch_add(1, Ordering::Relaxed);
        DetectAnomaly(())
    }
}

impl Drop for DetectAnomaly {
    fn drop(&mut self) {
        USERS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[inline]
pub fn is_on() -> bool {
    USERS.load(Ordering::Relaxed) != 0
}

/// An error when a gradient that `node` gave holds a NaN.
pub(crate) fn check(node: &Node, grad: &Tensor) -> Result<()> {
    if grad.is_fake() || !grad.device().is_cpu() || !has_nan(grad)? {
        return Ok(());
    }
    let mut e = Error::autograd("TP3016", "its backward gave a NaN").with_op(node.name());
    if let Some(at) = node.extra().and_then(|x| x.location.as_ref()) {
        e = e.note(format!("the call was recorded at {at}"));
    }
    Err(e)
}

fn has_nan(grad: &Tensor) -> Result<bool> {
    let marks = crate::ops::ISNAN.call(&[tp_dispatch::Arg::Tensor(grad)])?;
    let any = crate::ops::ANY.call(&[
        tp_dispatch::Arg::Tensor(&marks),
        tp_dispatch::Arg::None,
        tp_dispatch::Arg::Bool(false),
    ])?;
    debug_assert_eq!(any.dtype(), DType::Bool);
    // SAFETY: a fresh CPU tensor of one bool.
    Ok(unsafe { *any.data_ptr() } != 0)
}
