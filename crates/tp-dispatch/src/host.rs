//! The host language behind an opaque door. A host object is something of the host's (a Python function, a
//! context) that Rust keeps; the host table is what Rust may ask of the host. Both are filled in by tp-python;
//! without a host every request has a plain answer.

use crate::error::Result;
use std::any::Any;
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use tp_tensor::Tensor;

/// An object of the host language held by Rust structures.
pub trait HostObject: Any + Send + Sync {
    /// Reports the host objects it owns to the host's cycle collector.
    fn trace(&self, visit: &mut HostVisitor<'_>);
    /// Drops what it owns, to break a cycle.
    fn clear(&self);
    fn as_any(&self) -> &dyn Any;
    /// The tensors inside of it, as far as its containers are known. As an argument it takes part in a call by them:
    /// keys, devices, aliases, writes.
    fn tensors(&self) -> &[Tensor] {
        &[]
    }
    /// A copy with `other` of each of these tensors in its place.
    fn with_tensors(&self, _other: Replace<'_>) -> Result<Option<HostRef>> {
        Ok(None)
    }
}

/// What takes the place of a tensor.
pub type Replace<'a> = &'a mut dyn FnMut(&Tensor) -> Result<Tensor>;

pub type HostVisitor<'a> = dyn FnMut(*mut ()) + 'a;

pub type HostRef = Arc<dyn HostObject>;

/// A place in the user's source.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Location {
    pub file: Arc<str>,
    pub line: u32,
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// What the host offers.
pub trait Host: Send + Sync {
    /// Runs `work` without the interpreter lock when the caller holds it.
    fn without_lock(&self, work: &mut (dyn FnMut() + Send));
    /// Lets the host deliver an interrupt.
    fn poll(&self) -> Result<()>;
    /// The innermost frame of the user's own code.
    fn location(&self) -> Option<Location>;
}

static HOST: OnceLock<&'static dyn Host> = OnceLock::new();

/// Registers the host language's table; the first registration stays.
pub fn install(host: &'static dyn Host) -> bool {
    HOST.set(host).is_ok()
}

/// Runs `work`, with the interpreter lock released. Worth it above roughly 20 microseconds of work.
pub fn without_lock<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let Some(host) = HOST.get() else { return work() };
    let mut work = Some(work);
    let mut out = None;
    host.without_lock(&mut || {
        if let Some(work) = work.take() {
            out = Some(work());
        }
    });
    match out {
        Some(out) => out,
        None => unreachable!("the host runs the closure before it returns"),
    }
}

/// Gives the host a chance to deliver an interrupt; call it every few hundred steps of a long loop.
pub fn poll() -> Result<()> {
    HOST.get().map_or(Ok(()), |h| h.poll())
}

/// The innermost frame of the user's own code, or what `located_at` says.
pub fn location() -> Option<Location> {
    if let Some(given) = GIVEN.with_borrow(Clone::clone) {
        return given;
    }
    HOST.get().and_then(|h| h.location())
}

thread_local! {
    static GIVEN: RefCell<Option<Option<Location>>> = const { RefCell::new(None) };
}

/// Runs `work`, whose calls come from `location`, not from where the host is now.
pub fn located_at<R>(location: Option<Location>, work: impl FnOnce() -> R) -> R {
    let _before = Located(GIVEN.replace(Some(location)));
    work()
}

/// Puts the location that was given before in its place again.
struct Located(Option<Option<Location>>);

impl Drop for Located {
    fn drop(&mut self) {
        GIVEN.set(self.0.take());
    }
}
