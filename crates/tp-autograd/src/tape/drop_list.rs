//! Dropping chains of nodes without recursion: the last owner puts the dying node on a list of its thread, and
//! whoever is not yet draining that list drains it. Every path that frees a node ends here, so contexts, closures
//! and saved tensors in between recurse only as deep as one node.

use super::node::Node;
use std::cell::Cell;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering;

struct DropList {
    head: Cell<*mut Node>,
    draining: Cell<bool>,
}

tp_tensor::per_thread!(
    // No destructor, so that it can be used while the thread is torn down.
    fn own() -> *const DropList = DropList { head: Cell::new(null_mut()), draining: Cell::new(false) }
);

/// Frees a node that nobody owns any more, now or when the drop in progress comes to it.
///
/// # Safety
/// The last reference to `node` was given up, and it is not used again.
pub(super) unsafe fn push(node: NonNull<Node>) {
    // SAFETY: this thread's list; the node is ours alone, and nodes on the list are owned by it.
    unsafe {
        let list = &*own();
        node.as_ref().refs.store(0, Ordering::Relaxed);
        node.as_ref().set_link(list.head.get());
        list.head.set(node.as_ptr());
        if list.draining.replace(true) {
            return;
        }
        while let Some(node) = NonNull::new(list.head.get()) {
            list.head.set(node.as_ref().link());
            Node::destroy(node);
        }
        list.draining.set(false);
    }
}
