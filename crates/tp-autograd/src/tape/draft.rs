//! Making a node: its block, its header, and its edges, saved tensors and values written in place.

use super::extra::{NodeExtra, Spec};
use super::handle::NodeRef;
use super::node::{Counts, Edge, Node, flag};
use super::saved::SavedTensor;
use crate::meta::NODE_TABLE;
use crate::rule::{LEAF, RuleHandle};
use smallvec::SmallVec;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicUsize};
use tp_dispatch::{Error, ErrorKind, OpHandle, Result, Value};
use tp_tensor::{ExtHead, Tensor, pool};

/// What a node's header says besides rule and counts.
pub(crate) struct Head {
    pub op: Option<OpHandle>,
    pub bits: u64,
    pub flags: u16,
    pub seq: u64,
    pub extra: *mut NodeExtra,
}

/// A node whose header is written, and whose edges, saved tensors and values still have to be. Dropped before it is
/// finished, it leaks.
pub(crate) struct Draft {
    node: NonNull<Node>,
    edge: *mut Edge,
    saved: *mut SavedTensor,
    value: *mut Value,
    spec: *mut Spec,
}

impl Draft {
    #[inline(always)]
    pub fn new(rule: &RuleHandle, head: &Head, counts: &Counts) -> Result<Draft> {
        debug_assert!(counts.outputs > 0, "a node without an output");
        // The first slot is always there: everybody who walks the parts of a node relies on it.
        let counts = Counts { outputs: counts.outputs.max(1), ..*counts };
        let Counts { outputs, edges, saved, values, specs } = counts;
        let layout = counts.layout();
        let Some(block) = pool::node_alloc(layout) else {
            let message = format!("out of memory: {} bytes for a node of the tape", layout.size());
            return Err(Error::new(ErrorKind::Memory, "TP1111", message));
        };
        let (rule, shared) = rule.to_raw();
        let flags =
            head.flags | if shared { flag::SHARED_RULE } else { 0 } | if specs { flag::SPECS } else { 0 };
        let p = block.cast::<Node>().as_ptr();
        // SAFETY: a fresh block of the node's size, written field by field.
        unsafe {
            ptr::write(&raw mut (*p).ext, ExtHead { table: &NODE_TABLE });
            ptr::write(&raw mut (*p).refs, AtomicU32::new(1));
            ptr::write(&raw mut (*p).flags, AtomicU16::new(flags));
            ptr::write(&raw mut (*p).lock, AtomicBool::new(false));
            ptr::write(&raw mut (*p).units, Counts::units(layout));
            ptr::write(&raw mut (*p).seq, head.seq);
            ptr::write(&raw mut (*p).rule, rule);
            ptr::write(&raw mut (*p).op, head.op);
            ptr::write(&raw mut (*p).bits, head.bits);
            ptr::write(&raw mut (*p).claim, AtomicUsize::new(0));
            ptr::write(&raw mut (*p).extra, AtomicPtr::new(head.extra));
            ptr::write(&raw mut (*p).outputs, outputs);
            ptr::write(&raw mut (*p).edges, edges);
            ptr::write(&raw mut (*p).saved, saved);
            ptr::write(&raw mut (*p).values, values);
            let n = &*p;
            ptr::write(n.slots_ptr(), None);
            for nr in 1..outputs as usize {
                ptr::write(n.slots_ptr().add(nr), None);
            }
            let node = NonNull::new_unchecked(p);
            let (edge, saved, value) = (n.edges_ptr(), n.saved_ptr(), n.values_ptr());
            Ok(Draft { node, edge, saved, value, spec: n.specs_ptr() })
        }
    }

    /// # Safety
    /// Called at most as often as the counts say, like the two after it.
    #[inline]
    pub unsafe fn edge(&mut self, edge: Edge) {
        // SAFETY: the caller's promise.
        unsafe {
            self.edge.write(edge);
            self.edge = self.edge.add(1);
        }
    }

    /// # Safety
    /// See `edge`.
    #[inline]
    pub unsafe fn save(&mut self, saved: SavedTensor) {
        // SAFETY: the caller's promise.
        unsafe {
            self.saved.write(saved);
            self.saved = self.saved.add(1);
        }
    }

    /// # Safety
    /// See `edge`.
    #[inline]
    pub unsafe fn value(&mut self, value: Value) {
        // SAFETY: the caller's promise.
        unsafe {
            self.value.write(value);
            self.value = self.value.add(1);
        }
    }

    /// # Safety
    /// See `edge`; the specs of the edges come first, then those of the outputs.
    #[inline]
    pub unsafe fn spec(&mut self, spec: Spec) {
        // SAFETY: the caller's promise.
        unsafe {
            self.spec.write(spec);
            self.spec = self.spec.add(1);
        }
    }

    /// # Safety
    /// Everything the counts promise was written.
    #[inline]
    pub unsafe fn finish(self) -> NodeRef {
        NodeRef(self.node)
    }

    /// As `finish`, with what was known only after the edges.
    ///
    /// # Safety
    /// See `finish`.
    #[inline]
    pub unsafe fn finish_with(self, seq: u64, flags: u16) -> NodeRef {
        // SAFETY: nobody else sees the node yet.
        unsafe {
            let p = self.node.as_ptr();
            ptr::write(&raw mut (*p).seq, seq);
            *(*p).flags.get_mut() |= flags;
        }
        NodeRef(self.node)
    }

    /// Takes an unfinished node apart.
    #[cold]
    pub fn abandon(self) {
        unsafe fn drop_up_to<T>(start: *mut T, end: *mut T) {
            // SAFETY: the caller wrote everything in between.
            unsafe {
                let n = end.offset_from(start) as usize;
                ptr::drop_in_place(ptr::slice_from_raw_parts_mut(start, n));
            }
        }
        // SAFETY: what was written so far is dropped, then the block that `new` took is given back.
        unsafe {
            let n = self.node.as_ref();
            drop_up_to(n.edges_ptr(), self.edge);
            drop_up_to(n.saved_ptr(), self.saved);
            drop_up_to(n.values_ptr(), self.value);
            drop_up_to(n.specs_ptr(), self.spec);
            n.drop_rule();
            pool::node_free(self.node.cast(), n.layout());
        }
    }
}

impl Draft {
    /// Moves edges, saved tensors and values in.
    ///
    /// # Safety
    /// The counts are theirs, and none was written yet.
    #[inline]
    pub unsafe fn fill(
        &mut self,
        edges: &mut SmallVec<[Edge; 2]>,
        saved: &mut SmallVec<[SavedTensor; 2]>,
        values: &mut SmallVec<[Value; 2]>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            move_in(edges, self.edge);
            move_in(saved, self.saved);
            move_in(values, self.value);
        }
    }
}

impl Node {
    /// The accumulator of a leaf's gradient.
    pub(crate) fn accumulator(of: &Tensor) -> Result<NodeRef> {
        let extra = Box::into_raw(NodeExtra::with_leaf(Spec::of(of), of.is_fake()));
        let head = Head { op: None, bits: 0, flags: flag::LEAF, seq: 0, extra };
        let counts = Counts { outputs: 1, edges: 0, saved: 0, values: 0, specs: false };
        // SAFETY: nothing is left to be written.
        Draft::new(&RuleHandle::Static(&LEAF), &head, &counts).map(|draft| unsafe { draft.finish() })
    }
}

unsafe fn move_in<T, const N: usize>(from: &mut SmallVec<[T; N]>, to: *mut T)
where
    [T; N]: smallvec::Array<Item = T>,
{
    // SAFETY: `to` has room for all of them; the length is cleared first, so nothing is dropped twice.
    unsafe {
        let n = from.len();
        from.set_len(0);
        match n {
            0 => {}
            1 => ptr::copy_nonoverlapping(from.as_ptr(), to, 1),
            n => ptr::copy_nonoverlapping(from.as_ptr(), to, n),
        }
    }
}
