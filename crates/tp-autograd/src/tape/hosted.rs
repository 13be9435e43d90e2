//! Nodes that reach objects of the host language: the host gets their addresses when they are recorded, and an object
//! of its own for each that lives long enough, whose count is the node's owner count (`hooks`).

use super::drop_list;
use super::extra::Leaf;
use super::handle::NodeRef;
use super::node::{Node, flag};
use super::saved::SavedTensor;
use crate::hooks::{self, HostHooks};
use crate::view;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use tp_dispatch::HostVisitor;
use tp_tensor::pool;

/// How a node on the host's list is.
pub enum Listed {
    Alive(NodeRef),
    /// Its last owner is gone, and it is about to be taken apart.
    Dying,
    Dead,
}

impl Node {
    /// The host object that stands for this node, if the door made one.
    pub fn host(&self) -> *mut () {
        self.extra().map_or(ptr::null_mut(), |e| e.host.load(Ordering::Acquire))
    }

    /// References to this node that Rust counts.
    pub fn ref_count(&self) -> u32 {
        self.refs.load(Ordering::Acquire)
    }

    /// Tells the host of this node, once, if there is one: it reaches host objects.
    pub(crate) fn list(node: &NodeRef) {
        let Some(hooks) = hooks::host_hooks() else { return };
        if node.flags.fetch_or(flag::REACHES | flag::LISTED, Ordering::AcqRel) & (flag::LISTED | flag::HOSTED)
            == 0
        {
            hooks.recorded(node);
        }
    }

    /// Lists a node and all below it: a cycle may close over them that holds no host object yet.
    #[cold]
    pub(crate) fn list_below(node: &NodeRef) {
        let mut left = vec![node.clone()];
        while let Some(node) = left.pop() {
            if node.flags.fetch_or(flag::CLOSED, Ordering::AcqRel) & flag::CLOSED == 0 {
                Node::list(&node);
                left.extend(node.edges().iter().map(|e| e.node.clone()));
            }
        }
    }

    /// From now on the owners of this node are counted by `host`, which starts with the present count. What it saved
    /// that reaches host objects is owned by way of the host's own objects too, so that every owner is one of those.
    /// Once only, and under the host's lock.
    pub fn promote(&self, host: *mut (), hooks: &dyn HostHooks) -> u32 {
        let mut at = 0;
        // One at a time: taking over may run code of the host, which must not find the lock held.
        while let Some(t) = self.with_saved(|saved| {
            let next = (at..saved.len()).find(|&k| saved[k].should_hand_over());
            at = next.map_or(saved.len(), |k| k + 1);
            next.and_then(|k| saved[k].raw().cloned())
        }) {
            if hooks.own(&t) {
                view::hand_over(&t);
                let done = self.with_saved(|saved| saved[at - 1].hand_over(&t));
                if !done {
                    hooks.release(t.host());
                }
            }
        }
        if let Some(leaf) = self.extra().and_then(|e| e.leaf.as_ref()) {
            let kept = |leaf: &Leaf| {
                let mut slot = leaf.grad.lock();
                if slot.saved().should_hand_over() { slot.get() } else { None }
            };
            if let Some(t) = kept(leaf)
                && hooks.own(&t)
            {
                let done = leaf.grad.lock().saved().hand_over(&t);
                if !done {
                    hooks.release(t.host());
                }
            }
        }
        self.extra_or_install().host.store(host, Ordering::Release);
        self.flags.fetch_and(!flag::LISTED, Ordering::AcqRel);
        self.flags.fetch_or(flag::HOSTED, Ordering::AcqRel);
        self.ref_count()
    }

    /// What the host wants to know of an address on its list.
    ///
    /// # Safety
    /// The node was given to `recorded`, and neither promoted nor reclaimed since.
    pub unsafe fn listed(node: NonNull<Node>) -> Listed {
        // SAFETY: the block is there, whatever is left in it.
        let n = unsafe { node.as_ref() };
        if n.flags.load(Ordering::Acquire) & flag::DEAD != 0 {
            return Listed::Dead;
        }
        if n.refs.load(Ordering::Acquire) == 0 {
            return Listed::Dying;
        }
        n.refs.fetch_add(1, Ordering::Relaxed);
        Listed::Alive(NodeRef(node))
    }

    /// Whether nothing is left of a listed node but its block.
    ///
    /// # Safety
    /// As for `listed`.
    pub unsafe fn is_dead(node: NonNull<Node>) -> bool {
        // SAFETY: the block is there.
        unsafe { node.as_ref() }.flags.load(Ordering::Acquire) & flag::DEAD != 0
    }

    /// Frees the block of a node that is dead.
    ///
    /// # Safety
    /// `listed` said that it is dead; nobody uses the address again.
    pub unsafe fn reclaim(node: NonNull<Node>) {
        // SAFETY: the caller's promise; header and flags outlive what they counted.
        unsafe {
            let layout = node.as_ref().layout();
            pool::node_free(node.cast(), layout);
        }
    }

    /// Frees a hosted node: its host object is gone.
    ///
    /// # Safety
    /// `node` was promoted, its host's count is zero, and nobody uses it again.
    pub unsafe fn free_hosted(node: NonNull<Node>) {
        // SAFETY: the caller's promise.
        unsafe { drop_list::push(node) }
    }

    /// Reports the host objects that saved tensors are owned by way of.
    pub(crate) fn trace_saved(&self, visit: &mut HostVisitor<'_>) {
        self.with_saved(|saved| saved.iter().filter_map(SavedTensor::handed).for_each(&mut *visit));
    }
}
