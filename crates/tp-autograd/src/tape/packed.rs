//! Saved tensors that the user keeps elsewhere: hooks that turn a tensor into something else when it is saved, and
//! back when a rule asks for it. Off, they cost one relaxed load per saved tensor.

use super::handle::NodeRef;
use super::saved::SavedTensor;
use crate::mode::GradMode;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tp_dispatch::{Call, Error, HostVisitor, Result, Value};
use tp_tensor::Tensor;

/// Packs what is saved while they are in force. Both run with grad mode off.
pub trait SavedHooks: Send + Sync {
    fn pack(&self, t: &Tensor) -> Result<Value>;
    fn unpack(&self, packed: &Value) -> Result<Tensor>;
    /// A tensor that a recorded call read, saved or not; before the call.
    fn read(&self, _t: &Tensor) -> Result<()> {
        Ok(())
    }
    /// The same hooks with references of their own to host objects: a node must own what it reports to the collector.
    fn own(&self) -> Arc<dyn SavedHooks>;
    /// Host objects it owns, for the cycle collector.
    fn trace(&self, _visit: &mut HostVisitor<'_>) {}
}

/// One packed tensor of a node.
pub(super) struct Packed {
    index: usize,
    hooks: Arc<dyn SavedHooks>,
    value: Value,
}

impl Packed {
    /// What somebody else holds for a moment is left out: an unpack in progress.
    pub fn trace(&self, visit: &mut HostVisitor<'_>) {
        if Arc::strong_count(&self.hooks) == 1 {
            self.hooks.trace(visit);
        }
        if let Value::Host(object) = &self.value
            && Arc::strong_count(object) == 1
        {
            object.trace(visit);
        }
    }
}

static USERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STACK: RefCell<Vec<Arc<dyn SavedHooks>>> = const { RefCell::new(Vec::new()) };
}

/// Puts hooks in force on this thread while it lives; the innermost ones pack.
#[must_use = "the hooks end when the guard is dropped"]
pub struct SavedTensorsHooks(Arc<dyn SavedHooks>);

impl SavedTensorsHooks {
    pub fn push(hooks: Arc<dyn SavedHooks>) -> SavedTensorsHooks {
        SavedTensorsHooks::start(hooks.clone());
        SavedTensorsHooks(hooks)
    }

    /// Puts hooks in force on this thread until `end`.
    pub fn start(hooks: Arc<dyn SavedHooks>) {
        STACK.with(|s| s.borrow_mut().push(hooks));
        USERS.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the newest of these hooks that is in force on this thread, if any is.
    pub fn end(hooks: &Arc<dyn SavedHooks>) {
        let gone = STACK.with(|s| {
            let mut stack = s.borrow_mut();
            stack
                .iter()
                .rposition(|h| std::ptr::addr_eq(Arc::as_ptr(h), Arc::as_ptr(hooks)))
                .map(|at| stack.remove(at))
        });
        if gone.is_some() {
            USERS.fetch_sub(1, Ordering::Relaxed);
        }
        // What the hooks own may run code.
        drop(gone);
    }
}

/// This thread's hooks out of force while it lives. Those pushed meanwhile are in force as ever.
#[must_use = "the hooks are back when the guard is dropped"]
pub struct SavedHooksOff(Vec<Arc<dyn SavedHooks>>);

impl SavedHooksOff {
    pub fn enter() -> SavedHooksOff {
        SavedHooksOff(STACK.with(|s| std::mem::take(&mut *s.borrow_mut())))
    }
}

impl Drop for SavedHooksOff {
    fn drop(&mut self) {
        let outer = std::mem::take(&mut self.0);
        STACK.with(|s| {
            s.borrow_mut().splice(0..0, outer);
        });
    }
}

impl Drop for SavedTensorsHooks {
    fn drop(&mut self) {
        SavedTensorsHooks::end(&self.0);
    }
}

/// Whether hooks are in force on any thread.
#[inline]
pub(crate) fn is_active() -> bool {
    USERS.load(Ordering::Relaxed) != 0
}

/// Whether hooks are in force on this thread.
pub fn has_saved_hooks() -> bool {
    active().is_some()
}

#[inline]
pub(super) fn active() -> Option<Arc<dyn SavedHooks>> {
    if !is_active() {
        return None;
    }
    STACK.with(|s| s.borrow().last().cloned())
}

/// Tells the hooks in force what a call that is recorded reads: all but what it writes to.
#[cold]
pub(crate) fn tell(call: &Call<'_>) -> Result<()> {
    let Some(hooks) = active() else { return Ok(()) };
    for (i, arg) in (0u8..).zip(call.args) {
        if call.def.params.written.contains(&i) {
            continue;
        }
        let mut told = Ok(());
        arg.for_each_tensor(|t| {
            if told.is_ok() {
                told = hooks.read(t);
            }
        });
        told?;
    }
    Ok(())
}

pub(super) fn pack(hooks: &dyn SavedHooks, index: usize, t: &Tensor) -> Result<Packed> {
    let _mode = GradMode::no_grad();
    let before = t.storage().version();
    let value = hooks.pack(t)?;
    if t.storage().version() != before {
        return Err(Error::contract("TP3217", "a pack_hook wrote to the tensor that it was given to keep")
            .note(
                "the program goes on with that tensor, and its gradient would be another: keep a clone()",
            ));
    }
    Ok(Packed { index, hooks: hooks.own(), value })
}

/// Saved tensor `index` of `node`, from what the hooks made of it.
pub(crate) fn unpack(node: &NodeRef, index: usize, saved: &SavedTensor) -> Result<Tensor> {
    let found = node.extra().and_then(|e| {
        let packed = e.packed.lock();
        packed.iter().find(|p| p.index == index).map(|p| (p.hooks.clone(), p.value.clone()))
    });
    let Some((hooks, value)) = found else {
        return Err(Error::internal("TP9006", "a packed tensor is missing").with_op(node.name()));
    };
    let mode = GradMode::no_grad();
    let t = hooks.unpack(&value)?;
    drop(mode);
    Ok(saved.again(t, node))
}
