//! Making a node: its block, its header, and its edges, saved tensors and values written in place.

use super::extra::NodeExtra;
use super::handle::NodeRef;
use super::node::{Edge, Node, flag, layout_of, tick};
use super::saved::SavedTensor;
use crate::rule::RuleHandle;
use smallvec::SmallVec;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicUsize};
use tp_dispatch::{Error, ErrorKind, OpHandle, Result, Value};
use tp_tensor::pool;

/// What a node is made of.
pub(crate) struct Parts<'a> {
    pub rule: RuleHandle,
    pub op: Option<OpHandle>,
    pub bits: u64,
    pub outputs: u32,
    pub flags: u16,
    /// Moved out, like the two after it.
    pub edges: &'a mut SmallVec<[Edge; 2]>,
    pub saved: &'a mut SmallVec<[SavedTensor; 2]>,
    pub values: &'a mut SmallVec<[Value; 2]>,
    pub extra: Option<Box<NodeExtra>>,
}

/// How many of each a node has.
#[derive(Clone, Copy)]
pub(crate) struct Counts {
    pub outputs: u32,
    pub edges: u32,
    pub saved: u32,
    pub values: u32,
}

/// What a node's header says besides rule and counts.
pub(crate) struct Head {
    pub op: Option<OpHandle>,
    pub bits: u64,
    pub flags: u16,
    pub seq: u64,
    pub extra: *mut NodeExtra,
}

/// A node whose header is written, and whose edges, saved tensors and values still have to be. Dropped before that,
/// it leaks.
pub(crate) struct Draft {
    node: NonNull<Node>,
    edge: *mut Edge,
    saved: *mut SavedTensor,
    value: *mut Value,
}

impl Draft {
    #[inline]
    pub fn new(rule: RuleHandle, head: Head, counts: Counts) -> Result<Draft> {
        let Counts { outputs, edges, saved, values } = counts;
        let layout = layout_of(outputs as usize, edges as usize, saved as usize, values as usize);
        let Some(block) = pool::node_alloc(layout) else {
            let message = format!("out of memory: {} bytes for a node of the tape", layout.size());
            return Err(Error::new(ErrorKind::Memory, "TP1111", message));
        };
        let (rule, shared) = rule.into_raw();
        let flags = head.flags | if shared { flag::SHARED_RULE } else { 0 };
        let p = block.cast::<Node>().as_ptr();
        // SAFETY: a fresh block of the node's size, written field by field.
        unsafe {
            ptr::write(&raw mut (*p).refs, AtomicU32::new(1));
            ptr::write(&raw mut (*p).flags, AtomicU16::new(flags));
            ptr::write(&raw mut (*p).lock, AtomicBool::new(false));
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
            for nr in 0..outputs as usize {
                ptr::write(n.slots_ptr().add(nr), None);
            }
            let node = NonNull::new_unchecked(p);
            Ok(Draft { node, edge: n.edges_ptr(), saved: n.saved_ptr(), value: n.values_ptr() })
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
    /// Everything the counts promise was written.
    #[inline]
    pub unsafe fn finish(self) -> NodeRef {
        NodeRef(self.node)
    }
}

impl Node {
    /// Builds a node from its parts.
    #[inline]
    pub(crate) fn create(parts: Parts<'_>) -> Result<NodeRef> {
        let Parts { rule, op, bits, outputs, flags, edges, saved, values, extra } = parts;
        let seq = if flags & flag::LEAF != 0 {
            0
        } else {
            tick(edges.iter().map(|e| e.node.seq).max().unwrap_or(0))
        };
        let counts = Counts {
            outputs,
            edges: edges.len() as u32,
            saved: saved.len() as u32,
            values: values.len() as u32,
        };
        let extra = extra.map_or(ptr::null_mut(), Box::into_raw);
        let draft = Draft::new(rule, Head { op, bits, flags, seq, extra }, counts)?;
        // SAFETY: the tails have room for exactly these; they are moved in and forgotten where they were.
        unsafe {
            move_in(edges, draft.edge);
            move_in(saved, draft.saved);
            move_in(values, draft.value);
            Ok(draft.finish())
        }
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
        ptr::copy_nonoverlapping(from.as_ptr(), to, n);
    }
}
