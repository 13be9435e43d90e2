//! The tape's part of a tensor: which node made it, where its gradient is kept, and what makes a leaf. The bit that
//! says whether a tensor requires grad lives in the tensor's keys.

use crate::spin::Spin;
use crate::tape::{GradHook, GradSlot, HookId, Kept, Leaf, Node, NodeRef};
use crate::{hooks, view};
use std::alloc::{Layout, handle_alloc_error};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tp_dispatch::{Error, HostVisitor, Result};
use tp_tensor::{ExtHead, ExtTable, ExtVisitor, Tensor, pool};

/// The tape's part of a tensor.
///
/// # Memory
/// A tensor's `ext` slot points to the node that made it, or to its accumulator when it is a leaf: most have nothing
/// else. What was written to in place, or is not the first output of its node, has a `Meta` there. A node once reached
/// through the slot stays until the tensor dies, so it is read without a lock; only the history after a write in place
/// may change again, and is read under one.
enum Part<'t> {
    Made(ManuallyDrop<NodeRef>),
    Meta(&'t Meta),
}

#[repr(C)]
struct Meta {
    ext: ExtHead,
    is_rebased: AtomicBool,
    rebased: Spin<Option<History>>,
    /// The node before any write in place; None where the tensor had no history.
    made: Option<NodeRef>,
    nr: u32,
    /// The storage's version when the node was set: a later one means that the data is not what the node says.
    version: u32,
}

/// What a write in place left behind.
struct History {
    node: NodeRef,
    nr: u32,
    version: u32,
}

const META: Layout = Layout::new::<Meta>();

static META_TABLE: ExtTable = ExtTable {
    // SAFETY: called once, with what `Meta::new` made.
    drop: |p| unsafe {
        ptr::drop_in_place(p.cast::<Meta>().as_ptr());
        pool::node_free(p.cast(), META);
    },
    trace: |p, visit| {
        // SAFETY: alive while it is traced.
        unsafe { p.cast::<Meta>().as_ref() }.trace(visit);
    },
};

pub(crate) static NODE_TABLE: ExtTable = ExtTable {
    // SAFETY: the slot owned a reference.
    drop: |p| drop(unsafe { NodeRef::from_raw(p.cast()) }),
    // SAFETY: alive while it is traced.
    trace: |p, visit| visit_host(unsafe { p.cast::<Node>().as_ref() }, visit),
};

impl Meta {
    #[cold]
    fn new(made: Option<NodeRef>, nr: u32, version: u32, rebased: Option<History>) -> NonNull<Meta> {
        let Some(block) = pool::node_alloc(META) else { handle_alloc_error(META) };
        let fresh = block.cast::<Meta>();
        let ext = ExtHead { table: &META_TABLE };
        let is_rebased = AtomicBool::new(rebased.is_some());
        let rebased = Spin::new(rebased);
        // SAFETY: a fresh block of the right size.
        unsafe { fresh.write(Meta { ext, is_rebased, rebased, made, nr, version }) };
        fresh
    }

    /// The history that holds: node, output number, version.
    fn history(&self) -> Option<(NodeRef, u32, u32)> {
        if self.is_rebased.load(Ordering::Acquire) {
            return self.rebased.lock().as_ref().map(|h| (h.node.clone(), h.nr, h.version));
        }
        self.made.as_ref().map(|node| (node.clone(), self.nr, self.version))
    }

    /// Both nodes are owned, whichever holds.
    fn trace(&self, visit: &mut ExtVisitor<'_>) {
        if let Some(node) = &self.made {
            visit_host(node, visit);
        }
        if let Some(history) = &*self.rebased.lock() {
            visit_host(&history.node, visit);
        }
    }

    fn rebase(&self, next: History) {
        let old = self.rebased.lock().replace(next);
        self.is_rebased.store(true, Ordering::Release);
        drop(old);
    }
}

impl<'t> Part<'t> {
    #[inline]
    fn of(t: &'t Tensor) -> Option<Part<'t>> {
        let ext = t.ext()?;
        // SAFETY: whatever is installed starts with its table and lives as long as the tensor.
        unsafe {
            if ptr::eq(ext.as_ref().table, &NODE_TABLE) {
                return Some(Part::Made(ManuallyDrop::new(NodeRef::from_raw(ext.cast()))));
            }
            Some(Part::Meta(ext.cast::<Meta>().as_ref()))
        }
    }
}

fn visit_host(node: &Node, visit: &mut ExtVisitor<'_>) {
    let host = node.host();
    if !host.is_null() {
        visit(host);
    }
}

/// The tensor leads to host objects from now on, and its own object has to be looked at by the collector.
#[cold]
fn reaches(t: &Tensor) {
    t.set_needs_tracking();
    if let (false, Some(hooks)) = (t.host().is_null(), hooks::host_hooks()) {
        hooks.track(t.host());
    }
}

fn leaf_of(node: &Node) -> Option<&Leaf> {
    node.extra().and_then(|e| e.leaf.as_ref())
}

/// The history of a tensor that has one: node, output number, version.
#[inline]
pub(crate) fn history(t: &Tensor) -> Option<(NodeRef, u32, u32)> {
    match Part::of(t)? {
        Part::Made(node) => Some((NodeRef::clone(&node), 0, 0)),
        Part::Meta(meta) => meta.history(),
    }
}

/// The node before any write in place.
pub(crate) fn made(t: &Tensor) -> Option<NodeRef> {
    match Part::of(t)? {
        Part::Made(node) => Some(NodeRef::clone(&node)),
        Part::Meta(meta) => meta.made.clone(),
    }
}

/// `t`, which has no history, takes over what the tape knows of `from`, a fresh tensor over the same memory that is about
/// to go.
pub fn take_over(t: &Tensor, from: &Tensor) {
    let Some(ext) = from.ext_take() else { return };
    // SAFETY: `from` owned it, and gave it away.
    unsafe {
        if !t.ext_replace(None, ext) {
            (ext.as_ref().table.drop)(ext);
            return;
        }
    }
    t.set_requires_grad(from.requires_grad());
    if reaches_host(t) {
        reaches(t);
    }
}

/// Ties a tensor to the node that made it. For a fresh tensor that nobody else sees.
#[inline]
pub(crate) fn set_history(t: &Tensor, node: NodeRef, nr: u32) {
    if t.ext().is_some() {
        return rebase(t, node, nr);
    }
    if node.reaches_host() {
        t.mark_needs_tracking_fresh();
        if !t.host().is_null() {
            reaches(t);
        }
    }
    t.mark_requires_grad_fresh();
    let version = t.storage().version();
    let ext = if nr == 0 && version == 0 {
        node.into_raw().cast()
    } else {
        Meta::new(Some(node), nr, version, None).cast()
    };
    // SAFETY: the reference goes over to the tensor.
    unsafe { t.ext_install_fresh(ext) };
}

/// Gives a tensor another history: it was written to in place. A gradient that is kept for it is kept on.
pub(crate) fn rebase(t: &Tensor, node: NodeRef, nr: u32) {
    // A node below may have saved this very tensor, before it was written to: a cycle that only the host can find.
    if t.storage().was_saved() {
        Node::list_below(&node);
    }
    if node.reaches_host() {
        reaches(t);
    }
    if let Some((before, at, _)) = history(t)
        && before.is_watched()
        && let Some(slot) = before.extra().and_then(|e| e.forget_grad(at))
    {
        node.watched().keep_grad(nr, slot);
    }
    t.set_requires_grad(true);
    let mut next = History { node, nr, version: t.storage().version() };
    loop {
        let (old, made) = match Part::of(t) {
            Some(Part::Meta(meta)) => return meta.rebase(next),
            Some(Part::Made(node)) => (t.ext(), Some(NodeRef::clone(&node))),
            None => (None, None),
        };
        let had = made.is_some();
        let meta = Meta::new(made, 0, 0, Some(next));
        // SAFETY: the meta keeps the node it replaces; what was not handed over is taken apart again.
        unsafe {
            if t.ext_replace(old, meta.cast()) {
                if let (true, Some(old)) = (had, old) {
                    (NODE_TABLE.drop)(old);
                }
                return;
            }
            let taken = meta.as_ref().rebased.lock().take();
            (META_TABLE.drop)(meta.cast());
            match taken {
                Some(history) => next = history,
                None => return,
            }
        }
    }
}

/// The node that made `t` as its only output, where a write in place can change neither that nor what the node is of:
/// it stays as long as `t` lives.
#[inline]
pub(crate) fn lasting_node(t: &Tensor) -> Option<ManuallyDrop<NodeRef>> {
    match Part::of(t) {
        Some(Part::Made(node)) if t.requires_grad() && t.storage().version() == 0 => Some(node),
        _ => None,
    }
}

/// Where a gradient with respect to `t` goes. The caller knows that `t` requires grad.
#[inline(always)]
pub(crate) fn gradient_edge(t: &Tensor) -> Result<(NodeRef, u32)> {
    match Part::of(t) {
        Some(Part::Made(node)) if t.storage().version() == 0 || node.is_leaf() => {
            Ok((NodeRef::clone(&node), 0))
        }
        _ => other_edge(t),
    }
}

#[inline(never)]
fn other_edge(t: &Tensor) -> Result<(NodeRef, u32)> {
    let Some((node, nr, version)) = history(t) else { return accumulator(t) };
    if version != t.storage().version() && !node.is_leaf() {
        return behind(t, node, nr, version);
    }
    Ok((node, nr))
}

/// The data of `t` changed since its node was set. A view of a leaf may be used on: the leaf's accumulator is still
/// where its gradient goes, and views keep nothing of the data. Another view follows its base.
#[cold]
fn behind(t: &Tensor, node: NodeRef, nr: u32, version: u32) -> Result<(NodeRef, u32)> {
    if views_leaf(&node) {
        return Ok((node, nr));
    }
    if let Some(node) = view::follow_base(t)? {
        return Ok((node, 0));
    }
    let now = t.storage().version();
    let message = format!(
        "the data of {t:?} was changed in place behind the tape's back (version {now}, expected {version}): through another tensor that shares its memory, under no_grad, or by a kernel; its gradient would be that of the old value"
    );
    Err(Error::autograd("TP3011", message)
        .with_op(node.name())
        .note("write to this tensor itself while gradients are recorded, clone() it first, or detach() it"))
}

/// True when the node only views a leaf's memory.
pub(crate) fn views_leaf(node: &NodeRef) -> bool {
    viewed_leaf(node).is_some()
}

/// The leaf that the node is of, or only views.
pub(crate) fn viewed_leaf(node: &NodeRef) -> Option<&NodeRef> {
    let mut node = node;
    while node.is_view() {
        node = &node.edges().first()?.node;
    }
    node.is_leaf().then_some(node)
}

#[cold]
fn accumulator(t: &Tensor) -> Result<(NodeRef, u32)> {
    let fresh = Node::accumulator(t)?;
    let raw = fresh.clone().into_raw();
    // SAFETY: one reference goes over to the tensor, or is given up.
    unsafe {
        if t.ext_replace(None, raw.cast()) {
            return Ok((fresh, 0));
        }
        drop(NodeRef::from_raw(raw));
    }
    Ok(history(t).map_or((fresh, 0), |(node, nr, _)| (node, nr)))
}

// ---- what users ask and say ----

/// True unless a recorded operation made the tensor.
pub fn is_leaf(t: &Tensor) -> bool {
    grad_fn(t).is_none()
}

/// The node that made the tensor; None for leaves.
pub fn grad_fn(t: &Tensor) -> Option<NodeRef> {
    grad_fn_edge(t).map(|(node, _)| node)
}

/// The node that made the tensor, and which of its outputs it is.
pub fn grad_fn_edge(t: &Tensor) -> Option<(NodeRef, u32)> {
    if !t.requires_grad() {
        return None;
    }
    let (node, nr, version) = history(t)?;
    if version != t.storage().version()
        && !node.is_leaf()
        && !views_leaf(&node)
        && let Ok(Some(node)) = view::follow_base(t)
    {
        return Some((node, 0));
    }
    (!node.is_leaf()).then_some((node, nr))
}

/// Says that the leaf `fake`, which requires a gradient, stands for `real`: what is done to its history is done to
/// somebody else's.
pub fn stand_for(fake: &Tensor, real: &Tensor) -> Result<()> {
    let (node, _) = gradient_edge(fake)?;
    node.stand(!is_leaf(real));
    Ok(())
}

/// Asks for gradients with respect to a leaf, or no longer.
pub fn set_requires_grad(t: &Tensor, on: bool) -> Result<()> {
    if on && !t.dtype().is_float() {
        let message = format!("only float tensors can require gradients, got {}", t.dtype());
        return Err(Error::autograd("TP3012", message).note("convert it first: astype(float32)"));
    }
    if !on && !is_leaf(t) {
        let message =
            "requires_grad can be switched off for leaf tensors only; this one was computed by an operation";
        return Err(
            Error::autograd("TP3013", message).note("use detach() to get the value without its history")
        );
    }
    t.set_requires_grad(on);
    Ok(())
}

/// The gradient kept for `t`, if a backward pass left one.
pub fn grad(t: &Tensor) -> Option<Tensor> {
    let (node, nr, _) = history(t)?;
    if let Some(leaf) = leaf_of(&node) {
        return leaf.grad.lock().get();
    }
    let slot = node.extra()?.retained(nr)?;
    slot.lock().get()
}

/// The accumulator `node` keeps a gradient. One with a history usually leads back to the accumulator, and no owner
/// outside is left when the leaf goes: the host's collector has to know of them all.
pub(crate) fn keeps(node: &NodeRef, grad: &Tensor) {
    if grad.requires_grad()
        && let Some((history, _)) = grad_fn_edge(grad)
    {
        Node::list(node);
        Node::list_below(&history);
        reaches(grad);
    }
}

/// Whether the history of `t` reaches host objects.
pub(crate) fn reaches_host(t: &Tensor) -> bool {
    match Part::of(t) {
        Some(Part::Made(node)) => node.reaches_host(),
        Some(Part::Meta(meta)) => meta.history().is_some_and(|(node, ..)| node.reaches_host()),
        None => false,
    }
}

/// Sets or clears the gradient kept for `t`.
pub fn set_grad(t: &Tensor, grad: Option<Tensor>) -> Result<()> {
    if let Some(g) = &grad {
        if g.same(t) || meet(g, t) {
            let message = "a tensor cannot be its own gradient, nor can the gradient lie in its memory";
            return Err(Error::autograd("TP3014", message).note(
                "what backward adds to the gradient would be written to the tensor: assign a clone()",
            ));
        }
        if g.sizes() != t.sizes() || g.dtype() != t.dtype() || g.device() != t.device() {
            let message = format!("a gradient must be like its tensor: {t:?}, got {g:?}");
            return Err(Error::autograd("TP3014", message));
        }
    } else if t.ext().is_none() {
        return Ok(());
    }
    let old = if is_leaf(t) {
        let (node, _) = accumulator(t)?;
        let Some(leaf) = leaf_of(&node) else { return Ok(()) };
        if let Some(grad) = &grad {
            keeps(&node, grad);
        }
        std::mem::replace(&mut *leaf.grad.lock(), Kept::new(grad))
    } else {
        let slot = retain_slot(t)?;
        std::mem::replace(&mut *slot.lock(), Kept::new(grad))
    };
    drop(old);
    Ok(())
}

/// Whether the memory that two tensors reach in one storage overlaps.
fn meet(a: &Tensor, b: &Tensor) -> bool {
    let reach = |t: &Tensor| t.layout().extent().filter(|(low, high)| low < high);
    a.shares_storage(b)
        && reach(a).zip(reach(b)).is_some_and(|((low, high), (from, to))| low < to && from < high)
}

/// Where the gradient of a non-leaf is kept: with its node, so that a write in place starts anew.
fn retain_slot(t: &Tensor) -> Result<Arc<GradSlot>> {
    let (node, nr) = gradient_edge(t)?;
    Ok(node.watched().retain_grad(nr))
}

/// Keeps the gradient of a non-leaf too; leaves keep theirs anyway.
pub fn retain_grad(t: &Tensor) -> Result<()> {
    require_grad(t)?;
    if is_leaf(t) { Ok(()) } else { retain_slot(t).map(drop) }
}

pub fn retains_grad(t: &Tensor) -> bool {
    grad_fn_edge(t).is_some_and(|(node, nr)| node.extra().is_some_and(|e| e.retained(nr).is_some()))
}

/// Calls `hook` with the gradient of `t` in every backward pass, before it is used.
pub fn register_hook(t: &Tensor, hook: Arc<dyn GradHook>) -> Result<(NodeRef, HookId)> {
    require_grad(t)?;
    let (node, nr) = gradient_edge(t)?;
    let id = node.watched().add_hook(nr, hook);
    Node::list(&node);
    reaches(t);
    Ok((node, id))
}

fn require_grad(t: &Tensor) -> Result<()> {
    if t.requires_grad() {
        return Ok(());
    }
    Err(Error::autograd("TP3015", "the tensor does not require grad")
        .note("call requires_grad_() on it first"))
}

/// Reports the host objects that a node owns a reference to, once for each: those of its hooks and its payload, of what
/// it saved, the host nodes of its edges, and those of a rule that serves it alone. The rule of an op belongs to the op
/// as well.
pub fn trace_node(node: &Node, visit: &mut HostVisitor<'_>) {
    if let Some(extra) = node.extra() {
        extra.trace(visit);
    }
    node.trace_saved(visit);
    node.trace_rule(visit);
    for edge in node.edges() {
        visit_host(&edge.node, visit);
    }
}
