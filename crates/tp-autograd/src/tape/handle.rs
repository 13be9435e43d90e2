//! The two ways to hold a node: a counted reference, and the claim of a backward run on its gradient slots.

use super::drop_list;
use super::node::{Node, flag};
use crate::hooks::{self, HostHooks};
use std::cell::UnsafeCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use tp_tensor::Tensor;

/// The right of one backward run to use a node's gradient slots.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim(pub usize);

impl Claim {
    /// Claims the node, or finds that this run has it already. False: another run has it.
    #[inline]
    pub fn take(self, node: &Node) -> bool {
        let now = node.claim.load(Ordering::Relaxed);
        now == self.0
            || (now == 0
                && node.claim.compare_exchange(0, self.0, Ordering::Acquire, Ordering::Relaxed).is_ok())
    }

    #[inline]
    pub fn holds(self, node: &Node) -> bool {
        node.claim.load(Ordering::Relaxed) == self.0
    }

    #[inline]
    pub fn release(self, node: &Node) {
        node.claim.store(0, Ordering::Release);
    }

    /// # Safety
    /// This run holds the node, and no other reference to the slot is alive.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slot(self, node: &Node, nr: u32) -> Option<&mut Option<Tensor>> {
        if nr >= node.outputs {
            return None;
        }
        // SAFETY: in bounds; the claim gives this run the slot.
        Some(unsafe { &mut *UnsafeCell::raw_get(node.slots_ptr().add(nr as usize).cast()) })
    }
}

/// A counted reference to a node.
#[repr(transparent)]
pub struct NodeRef(pub(super) NonNull<Node>);

// SAFETY: the count is atomic and `Node` is Sync.
unsafe impl Send for NodeRef {}
// SAFETY: as above.
unsafe impl Sync for NodeRef {}

impl NodeRef {
    #[inline]
    pub fn same(&self, other: &NodeRef) -> bool {
        self.0 == other.0
    }

    /// Identity while it lives.
    #[inline]
    pub fn id(&self) -> usize {
        self.0.as_ptr() as usize
    }

    pub fn as_ptr(&self) -> NonNull<Node> {
        self.0
    }

    /// Gives the reference away as a pointer.
    pub fn into_raw(self) -> NonNull<Node> {
        ManuallyDrop::new(self).0
    }

    /// # Safety
    /// `raw` came from `into_raw`, and its reference has not been taken back yet.
    pub unsafe fn from_raw(raw: NonNull<Node>) -> NodeRef {
        NodeRef(raw)
    }
}

impl Deref for NodeRef {
    type Target = Node;
    #[inline]
    fn deref(&self) -> &Node {
        // SAFETY: alive while counted.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for NodeRef {
    #[inline]
    fn clone(&self) -> NodeRef {
        if self.has(flag::HOSTED) {
            host_hooks(|h| h.retain(self.host()));
        } else {
            self.refs.fetch_add(1, Ordering::Relaxed);
        }
        NodeRef(self.0)
    }
}

impl Drop for NodeRef {
    #[inline]
    fn drop(&mut self) {
        if self.has(flag::HOSTED) {
            return host_hooks(|h| h.release(self.host()));
        }
        let refs = &self.refs;
        // A sole owner cannot be joined by anyone, so the atomic subtraction can be saved.
        if refs.load(Ordering::Acquire) != 1 && refs.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        // SAFETY: this was the last reference.
        unsafe { drop_list::push(self.0) }
    }
}

#[cold]
fn host_hooks(f: impl FnOnce(&'static dyn HostHooks)) {
    if let Some(hooks) = hooks::host_hooks() {
        f(hooks);
    }
}

impl fmt::Debug for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({}, {} edges)", self.name(), self.edges().len())
    }
}
