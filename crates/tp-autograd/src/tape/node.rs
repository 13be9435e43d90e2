//! One recorded operation: its rule, its edges to the nodes that made its inputs, what it saved, and one gradient
//! slot per output. Everything lies in one pool block of exact size.
//!
//! # Who may touch what
//! Rule, op, edges and values are written once, before the node is shared. `saved` is guarded by the node's byte
//! lock. A gradient slot belongs to the backward run that claimed the node (`Claim`); runs that find a node
//! claimed keep their gradients in a table of their own. The claim word doubles as the link of the drop list, for
//! a dying node cannot be claimed.

use super::extra::{NodeExtra, Spec};
use super::handle::NodeRef;
use super::saved::SavedTensor;
use crate::rule::VjpRule;
use smallvec::SmallVec;
use std::alloc::Layout;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use tp_dispatch::{HostVisitor, OpHandle, Value};
use tp_tensor::{ExtHead, Tensor, pool};

pub(crate) mod flag {
    /// Its saved tensors were given up by a backward run.
    pub const FREED: u16 = 1 << 0;
    /// It holds host objects, or an edge or a saved tensor leads to some.
    pub const REACHES: u16 = 1 << 1;
    /// Its owners are counted by its host object.
    pub const HOSTED: u16 = 1 << 2;
    /// The accumulator of a leaf.
    pub const LEAF: u16 = 1 << 3;
    /// Its output is a view of its first edge's tensor.
    pub const VIEW: u16 = 1 << 4;
    /// `rule` owns a reference of an `Arc`.
    pub const SHARED_RULE: u16 = 1 << 5;
    /// Somebody wants to see its gradients: hooks, or gradients that are kept.
    pub const WATCHED: u16 = 1 << 6;
    /// It keeps a `Spec` per edge, and per output where there are several: an only output always has its gradient.
    pub const SPECS: u16 = 1 << 7;
    /// The host has its address: its block stays until the host gives it back.
    pub const LISTED: u16 = 1 << 8;
    /// Nothing is left of it but the block.
    pub const DEAD: u16 = 1 << 9;
    /// It and all below it are on the host's list.
    pub const CLOSED: u16 = 1 << 10;
    /// A leaf that nobody but the transform that made it can name.
    pub const HIDDEN: u16 = 1 << 11;
    /// A leaf without data that stands for a tensor somebody else holds.
    pub const STANDS: u16 = 1 << 12;
    /// What it stands for was computed, so that it is no leaf itself.
    pub const COMPUTED: u16 = 1 << 13;
    /// One output, one edge, no saved tensor, a rule of ours: `VjpRule::direct` may do.
    pub const DIRECT: u16 = 1 << 14;
}

#[repr(C)]
pub struct Node {
    /// A tensor's slot for the tape may point here.
    pub(super) ext: ExtHead,
    pub(super) refs: AtomicU32,
    pub(super) flags: AtomicU16,
    pub(super) lock: AtomicBool,
    /// The block's size in units of its alignment; 0 for one that is too large for that.
    pub(super) units: u8,
    /// Greater than that of every node it has an edge to: decreasing order is a topological order.
    pub(super) seq: u64,
    pub(super) rule: NonNull<dyn VjpRule>,
    pub(super) op: Option<OpHandle>,
    pub(super) bits: u64,
    pub(super) claim: AtomicUsize,
    pub(super) extra: AtomicPtr<NodeExtra>,
    pub(super) outputs: u32,
    pub(super) edges: u32,
    pub(super) saved: u32,
    pub(super) values: u32,
}

// SAFETY: see "Who may touch what".
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

const _: () = assert!(size_of::<Node>() == 88);

/// Where a gradient goes: output `nr` of the node that made an input, and which input that was.
pub struct Edge {
    pub node: NodeRef,
    pub nr: u32,
    slot: u32,
}

const _: () = assert!(size_of::<Edge>() == 16);

impl Edge {
    /// An edge for item `index` of argument `arg` (0 for an argument that is no list).
    pub fn new(node: NodeRef, nr: u32, arg: usize, index: usize) -> Edge {
        Edge { node, nr, slot: (arg as u32 & 0xff) | (index as u32) << 8 }
    }

    /// Index of the schema argument.
    #[inline]
    pub fn arg(&self) -> usize {
        (self.slot & 0xff) as usize
    }

    /// Position in a list argument.
    #[inline]
    pub fn index(&self) -> usize {
        (self.slot >> 8) as usize
    }
}

static CLOCK: AtomicU64 = AtomicU64::new(1);

/// A Lamport clock: later than every edge, and in one thread later than what was recorded before. The global
/// value is only a hint, so a lost update between threads does no harm.
#[inline]
pub(crate) fn tick(newest_edge: u64) -> u64 {
    let before = newest_edge.max(CLOCK.load(Ordering::Relaxed));
    CLOCK.store(before + 1, Ordering::Relaxed);
    before + 1
}

/// How many of each a node has.
#[derive(Clone, Copy)]
pub(crate) struct Counts {
    pub outputs: u32,
    pub edges: u32,
    pub saved: u32,
    pub values: u32,
    /// With a spec per edge, and per output where there are several.
    pub specs: bool,
}

impl Counts {
    #[inline(always)]
    pub(super) fn specs(self) -> usize {
        let outputs = if self.outputs > 1 { self.outputs as usize } else { 0 };
        if self.specs { self.edges as usize + outputs } else { 0 }
    }

    #[inline(always)]
    pub(super) fn layout(self) -> Layout {
        let tail = self.outputs as usize * size_of::<Option<Tensor>>()
            + self.edges as usize * size_of::<Edge>()
            + self.saved as usize * size_of::<SavedTensor>()
            + self.values as usize * size_of::<Value>()
            + self.specs() * size_of::<Spec>();
        let size = (size_of::<Node>() + tail).next_multiple_of(ALIGN);
        // SAFETY: node parts are counted by u32, so the size cannot overflow; the alignment is a power of two.
        unsafe { Layout::from_size_align_unchecked(size, ALIGN) }
    }

    /// A node's `units` for a block of that layout.
    #[inline(always)]
    pub(super) fn units(layout: Layout) -> u8 {
        u8::try_from(layout.size() / ALIGN).unwrap_or(0)
    }
}

const ALIGN: usize = 16;

impl Node {
    /// # Safety
    /// Nobody owns or uses the node any more.
    pub(super) unsafe fn destroy(node: NonNull<Node>) {
        // SAFETY: the caller's promise; the counts are those the node was made with.
        unsafe {
            let n = node.as_ref();
            let (outputs, edges) = (n.outputs as usize, n.edges as usize);
            let slots = n.slots_ptr();
            // The usual one of each first: the loops are seldom entered.
            ptr::drop_in_place(slots);
            for nr in 1..outputs {
                ptr::drop_in_place(slots.add(nr));
            }
            let edge = slots.add(outputs).cast::<Edge>();
            if edges > 0 {
                ptr::drop_in_place(edge);
                for k in 1..edges {
                    ptr::drop_in_place(edge.add(k));
                }
            }
            let flags = n.flags.load(Ordering::Acquire);
            if n.saved | n.values != 0 || flags & flag::SPECS != 0 {
                n.drop_lists();
            }
            let extra = n.extra.load(Ordering::Acquire);
            if !extra.is_null() {
                drop(Box::from_raw(extra));
            }
            n.drop_rule();
            if flags & flag::LISTED != 0 {
                n.flags.fetch_or(flag::DEAD, Ordering::Release);
            } else {
                pool::node_free(node.cast(), n.layout());
            }
        }
    }

    /// The block's own.
    #[inline]
    pub(super) fn layout(&self) -> Layout {
        match self.units {
            0 => self.counts().layout(),
            // SAFETY: the size of a block that exists.
            units => unsafe { Layout::from_size_align_unchecked(usize::from(units) * ALIGN, ALIGN) },
        }
    }

    /// Drops what was saved, and specs.
    ///
    /// # Safety
    /// The node is going away.
    unsafe fn drop_lists(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.saved | self.values != 0 {
                ptr::drop_in_place(ptr::slice_from_raw_parts_mut(self.saved_ptr(), self.saved as usize));
                ptr::drop_in_place(ptr::slice_from_raw_parts_mut(self.values_ptr(), self.values as usize));
            }
            if self.has(flag::SPECS) {
                let specs = ptr::slice_from_raw_parts_mut(self.specs_ptr(), self.counts().specs());
                ptr::drop_in_place(specs);
            }
        }
    }

    /// # Safety
    /// The node is going away, and nobody uses its rule again.
    #[inline]
    pub(super) unsafe fn drop_rule(&self) {
        if self.has(flag::SHARED_RULE) {
            // SAFETY: the node owned a reference.
            drop(unsafe { Arc::from_raw(self.rule.as_ptr()) });
        }
    }

    #[inline]
    pub(super) fn slots_ptr(&self) -> *mut Option<Tensor> {
        // SAFETY: the tail starts right behind the header, in the same block.
        unsafe { ptr::from_ref(self).add(1).cast_mut().cast() }
    }

    #[inline]
    pub(super) fn edges_ptr(&self) -> *mut Edge {
        // SAFETY: edges follow the slots.
        unsafe { self.slots_ptr().add(self.outputs as usize).cast() }
    }

    #[inline]
    pub(super) fn saved_ptr(&self) -> *mut SavedTensor {
        // SAFETY: saved tensors follow the edges.
        unsafe { self.edges_ptr().add(self.edges as usize).cast() }
    }

    #[inline]
    pub(super) fn values_ptr(&self) -> *mut Value {
        // SAFETY: values follow the saved tensors.
        unsafe { self.saved_ptr().add(self.saved as usize).cast() }
    }

    #[inline]
    pub(super) fn specs_ptr(&self) -> *mut Spec {
        // SAFETY: specs follow the values.
        unsafe { self.values_ptr().add(self.values as usize).cast() }
    }

    #[inline]
    pub(super) fn counts(&self) -> Counts {
        let Node { outputs, edges, saved, values, .. } = *self;
        Counts { outputs, edges, saved, values, specs: self.has(flag::SPECS) }
    }

    #[inline]
    pub(super) fn set_link(&self, next: *mut Node) {
        self.claim.store(next as usize, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn link(&self) -> *mut Node {
        self.claim.load(Ordering::Relaxed) as *mut Node
    }

    // ---- facts ----

    /// The rule that runs backward.
    #[inline]
    pub fn rule(&self) -> &dyn VjpRule {
        // SAFETY: static, or owned by the node.
        unsafe { self.rule.as_ref() }
    }

    pub fn op(&self) -> Option<OpHandle> {
        self.op
    }

    /// The op's name, or the rule's where the node was recorded by hand.
    pub fn name(&self) -> &str {
        match self.op {
            Some(op) => op.name(),
            None => self.rule().name(),
        }
    }

    #[inline]
    pub fn edges(&self) -> &[Edge] {
        // SAFETY: written at creation, immutable since.
        unsafe { std::slice::from_raw_parts(self.edges_ptr(), self.edges as usize) }
    }

    #[inline]
    pub fn values(&self) -> &[Value] {
        // SAFETY: written at creation, immutable since.
        unsafe { std::slice::from_raw_parts(self.values_ptr(), self.values as usize) }
    }

    /// What gradients of a foreign rule are checked against: the inputs behind the edges, then the outputs where there
    /// are several. Empty for most rules of ours.
    pub fn specs(&self) -> &[Spec] {
        // SAFETY: written at creation, immutable since.
        unsafe { std::slice::from_raw_parts(self.specs_ptr(), self.counts().specs()) }
    }

    /// Bits that the rule gave at recording.
    #[inline]
    pub fn bits(&self) -> u64 {
        self.bits
    }

    pub fn output_count(&self) -> usize {
        self.outputs as usize
    }

    pub fn saved_count(&self) -> usize {
        self.saved as usize
    }

    #[inline]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    #[inline]
    pub(crate) fn has(&self, bit: u16) -> bool {
        self.flags.load(Ordering::Relaxed) & bit != 0
    }

    /// The accumulator of a leaf's gradient.
    #[inline]
    pub fn is_leaf(&self) -> bool {
        self.has(flag::LEAF)
    }

    /// Its rule may be somebody else's: those of ours that are static are not.
    #[inline]
    pub(crate) fn has_shared_rule(&self) -> bool {
        self.has(flag::SHARED_RULE)
    }

    pub(crate) fn is_hidden(&self) -> bool {
        self.has(flag::HIDDEN)
    }

    pub(crate) fn hide(&self) {
        self.flags.fetch_or(flag::HIDDEN, Ordering::Relaxed);
    }

    pub(crate) fn stand(&self, computed: bool) {
        self.flags.fetch_or(flag::STANDS | if computed { flag::COMPUTED } else { 0 }, Ordering::Relaxed);
    }

    pub(crate) fn stands_for_another(&self) -> bool {
        self.has(flag::STANDS)
    }

    pub(crate) fn stands_for_computed(&self) -> bool {
        self.has(flag::COMPUTED)
    }

    pub(crate) fn is_view(&self) -> bool {
        self.has(flag::VIEW)
    }

    /// Its rule may be asked directly, and nobody wants to see its gradients.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        self.flags.load(Ordering::Acquire) & (flag::DIRECT | flag::WATCHED | flag::FREED) == flag::DIRECT
    }

    /// It, or something it leads to, holds objects of the host language.
    #[inline]
    pub fn reaches_host(&self) -> bool {
        self.has(flag::REACHES)
    }

    pub fn extra(&self) -> Option<&NodeExtra> {
        let p = self.extra.load(Ordering::Acquire);
        // SAFETY: installed once, freed with the node.
        unsafe { p.as_ref() }
    }

    /// The node's rare parts, where hooks and kept gradients are about to be put.
    pub(crate) fn watched(&self) -> &NodeExtra {
        let extra = self.extra_or_install();
        self.flags.fetch_or(flag::WATCHED, Ordering::Release);
        extra
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.flags.load(Ordering::Acquire) & flag::WATCHED != 0
    }

    pub(crate) fn extra_or_install(&self) -> &NodeExtra {
        if let Some(extra) = self.extra() {
            return extra;
        }
        let fresh = Box::into_raw(Box::default());
        match self.extra.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just installed, freed with the node.
            Ok(_) => unsafe { &*fresh },
            Err(there) => {
                // SAFETY: nobody else saw `fresh`; `there` lives as long as the node.
                unsafe {
                    drop(Box::from_raw(fresh));
                    &*there
                }
            }
        }
    }

    /// Its rule serves no other node, and what the rule holds of the host is the node's.
    fn owns_rule(&self) -> bool {
        self.op.is_none() && self.has_shared_rule() && self.rule().reaches_host()
    }

    /// Reports the host objects of a rule of its own. What somebody else holds for a moment is left out.
    pub(crate) fn trace_rule(&self, visit: &mut HostVisitor<'_>) {
        if self.owns_rule() {
            // SAFETY: the node owns a reference, which stays its own.
            let rule = ManuallyDrop::new(unsafe { Arc::from_raw(self.rule.as_ptr()) });
            if Arc::strong_count(&rule) == 1 {
                rule.trace(visit);
            }
        }
    }

    /// Takes out everything that may close a cycle, and leaves the node freed.
    pub fn clear(&self) {
        let mut taken = SmallVec::new();
        self.open_saved(false, &mut taken);
        self.flags.fetch_or(flag::FREED, Ordering::Relaxed);
        drop(taken);
        drop(self.extra().map(NodeExtra::clear));
        if self.owns_rule() {
            self.rule().clear();
        }
    }
}
