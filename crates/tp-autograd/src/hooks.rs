//! What the host language may hang on the tape: its own counting of nodes that reach host objects, and a list of
//! such nodes for its cycle collector. Without a host nothing here is ever called.

use crate::tape::NodeRef;
use std::sync::OnceLock;
use tp_tensor::Tensor;

/// Filled in by the door. Every method is called under the host's lock or must cope without it.
pub trait HostHooks: Send + Sync {
    /// One more owner of the node that `host` stands for.
    fn retain(&self, host: *mut ());
    /// One owner less; at zero the host object frees the node with `Node::free_hosted`.
    fn release(&self, host: *mut ());
    /// A node that reaches host objects was recorded, with its edges and saved tensors in place. Its block stays until
    /// the host promotes the node or reclaims the block.
    fn recorded(&self, node: &NodeRef);
    /// One more reference to the host object of `t`, made where there is none; false where that cannot be had.
    fn own(&self, t: &Tensor) -> bool;
    /// The tensor behind `host` reaches host objects now.
    fn track(&self, host: *mut ());
}

static HOOKS: OnceLock<&'static dyn HostHooks> = OnceLock::new();

/// Registers the host's hooks; the first registration stays.
pub fn set_host_hooks(hooks: &'static dyn HostHooks) -> bool {
    HOOKS.set(hooks).is_ok()
}

#[inline]
pub(crate) fn host_hooks() -> Option<&'static dyn HostHooks> {
    HOOKS.get().copied()
}
