//! Anomaly mode, a setting of the thread: while it is on, nodes remember where they were recorded, whatever fails in
//! their backward names that place, and the first node whose backward gives a NaN is an error. Off, it costs one relaxed
//! load per recorded node.

use crate::tape::Node;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tp_dispatch::{Error, Result};
use tp_tensor::{DType, Tensor};

/// Contexts of all threads: while there are none, nobody asks further.
static USERS: AtomicUsize = AtomicUsize::new(0);

/// The contexts of one thread.
#[derive(Default)]
struct Users {
    all: AtomicUsize,
    /// Those of them that look for NaN.
    nan: AtomicUsize,
}

thread_local! {
    static MINE: Arc<Users> = Arc::default();
}

/// Looks for anomalies on the thread that entered it, while it lives. A backward pass runs on the thread that asks for
/// it, so that its own mode counts there.
#[must_use = "anomaly mode ends when the guard is dropped"]
pub struct DetectAnomaly {
    nan: bool,
    of: Arc<Users>,
}

impl DetectAnomaly {
    /// `nan`: whether a NaN is an anomaly.
    pub fn enter(nan: bool) -> DetectAnomaly {
        let of = MINE.with(Arc::clone);
        of.all.fetch_add(1, Ordering::Relaxed);
        of.nan.fetch_add(usize::from(nan), Ordering::Relaxed);
        USERS.fetch_add(1, Ordering::Relaxed);
        DetectAnomaly { nan, of }
    }
}

impl Drop for DetectAnomaly {
    fn drop(&mut self) {
        USERS.fetch_sub(1, Ordering::Relaxed);
        self.of.all.fetch_sub(1, Ordering::Relaxed);
        self.of.nan.fetch_sub(usize::from(self.nan), Ordering::Relaxed);
    }
}

#[inline]
pub fn is_on() -> bool {
    USERS.load(Ordering::Relaxed) != 0 && mine(|u| &u.all)
}

#[cold]
fn mine(count: impl FnOnce(&Users) -> &AtomicUsize) -> bool {
    MINE.try_with(|u| count(u).load(Ordering::Relaxed) != 0).unwrap_or(false)
}

/// An error when a gradient that `node` was given or gave holds a NaN, with `what` that is. Nothing where the mode is off.
#[inline]
pub(crate) fn check(node: &Node, grad: &Tensor, what: impl FnOnce() -> String) -> Result<()> {
    if is_on() { look(node, grad, what) } else { Ok(()) }
}

#[cold]
fn look(node: &Node, grad: &Tensor, what: impl FnOnce() -> String) -> Result<()> {
    if !mine(|u| &u.nan) || grad.is_fake() || !grad.device().is_cpu() || !has_nan(grad)? {
        return Ok(());
    }
    Err(located(node, Error::autograd("TP3016", what()).with_op(node.name())))
}

/// The error with the place where the node was recorded, if the node knows it.
#[cold]
pub(crate) fn located(node: &Node, e: Error) -> Error {
    match node.extra().and_then(|x| x.location.as_ref()) {
        Some(at) => e.note(format!("{} was recorded at {at}", node.name())),
        None => e,
    }
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
