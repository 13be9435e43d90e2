//! The tape's part of a tensor: which node made it, where its gradient is kept, and what makes a leaf. The bit that
//! says whether a tensor requires grad lives in the tensor's keys.

use crate::rule::RuleHandle;
use crate::spin::Spin;
use crate::tape::{GradHook, GradSlot, HookId, Leaf, Node, NodeExtra, NodeRef, Parts, Spec, flag};
use smallvec::SmallVec;
use std::sync::Arc;
use tp_dispatch::{Error, HostVisitor, Result};
use tp_tensor::{ExtVisitor, Tensor, TensorExt};

/// Installed in a tensor's `ext` slot.
pub struct AutogradMeta {
    history: Spin<History>,
}

/// The node that made the tensor, or its accumulator when it is a leaf.
struct History {
    node: Option<NodeRef>,
    nr: u32,
    /// The storage's version when the node was set: a later one means that the data is not what the node says.
    version: u32,
}

impl AutogradMeta {
    fn new(node: Option<NodeRef>, nr: u32, version: u32) -> AutogradMeta {
        AutogradMeta { history: Spin::new(History { node, nr, version }) }
    }
}

impl TensorExt for AutogradMeta {
    fn trace(&self, visit: &mut ExtVisitor<'_>) {
        let node = self.history.lock().node.clone();
        let Some(node) = node else { return };
        let host = node.host();
        if !host.is_null() {
            visit(host);
        }
        if let Some(leaf) = leaf_of(&node)
            && let Some(grad) = &*leaf.grad.lock()
            && !grad.host().is_null()
        {
            visit(grad.host());
        }
    }

    fn clear(&self) {
        let node = self.history.lock().node.take();
        drop(node);
    }
}

fn leaf_of(node: &Node) -> Option<&Leaf> {
    node.extra().and_then(|e| e.leaf.as_ref())
}

/// Ties a tensor to the node that made it. For a fresh tensor that nobody else sees.
#[inline]
pub(crate) fn set_history(t: &Tensor, node: NodeRef, nr: u32) {
    if node.reaches_host() {
        t.set_needs_tracking();
    }
    if t.ext::<AutogradMeta>().is_some() {
        return rebase(t, node, nr);
    }
    let version = t.storage().version();
    t.mark_requires_grad_fresh();
    t.ext_install_fresh(AutogradMeta::new(Some(node), nr, version));
}

/// Gives a tensor another history: it was written to in place.
pub(crate) fn rebase(t: &Tensor, node: NodeRef, nr: u32) {
    if node.reaches_host() {
        t.set_needs_tracking();
    }
    t.set_requires_grad(true);
    let version = t.storage().version();
    if let Some(meta) = t.ext_or_install(|| AutogradMeta::new(None, 0, version)) {
        let old = std::mem::replace(&mut *meta.history.lock(), History { node: Some(node), nr, version });
        drop(old);
    }
}

/// Where a gradient with respect to `t` goes. The caller knows that `t` requires grad.
#[inline]
pub(crate) fn gradient_edge(t: &Tensor) -> Result<(NodeRef, u32)> {
    let Some(meta) = t.ext::<AutogradMeta>() else { return accumulator(t) };
    let history = meta.history.lock();
    let Some(node) = &history.node else {
        drop(history);
        return accumulator(t);
    };
    let edge = (node.clone(), history.nr);
    let version = history.version;
    drop(history);
    if version != t.storage().version() && !edge.0.is_leaf() {
        check_stale(t, &edge.0, version)?;
    }
    Ok(edge)
}

/// The data of `t` changed since its node was set. That is fine only for a view of a leaf: the leaf's accumulator
/// is still where its gradient goes, and views keep nothing of the data.
#[cold]
fn check_stale(t: &Tensor, node: &NodeRef, version: u32) -> Result<()> {
    if views_leaf(node) {
        return Ok(());
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
    let mut node = node;
    while node.is_view() {
        match node.edges().first() {
            Some(edge) => node = &edge.node,
            None => return false,
        }
    }
    node.is_leaf()
}

#[cold]
fn accumulator(t: &Tensor) -> Result<(NodeRef, u32)> {
    let version = t.storage().version();
    let Some(meta) = t.ext_or_install(|| AutogradMeta::new(None, 0, version)) else {
        return Err(Error::internal("TP9003", "the tape's slot of a tensor holds something else"));
    };
    if let Some(node) = &meta.history.lock().node {
        return Ok((node.clone(), 0));
    }
    let fresh = Node::create(Parts {
        rule: RuleHandle::Static(&crate::rule::LEAF),
        op: None,
        bits: 0,
        outputs: 1,
        flags: flag::LEAF,
        edges: &mut SmallVec::new(),
        saved: &mut SmallVec::new(),
        values: &mut SmallVec::new(),
        extra: Some(NodeExtra::with_leaf(Spec::of(t))),
    })?;
    let mut history = meta.history.lock();
    let node = history.node.get_or_insert_with(|| fresh.clone()).clone();
    let nr = history.nr;
    drop(history);
    Ok((node, nr))
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
    let meta = t.ext::<AutogradMeta>()?;
    let history = meta.history.lock();
    history.node.as_ref().filter(|n| !n.is_leaf()).map(|n| (n.clone(), history.nr))
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
    let meta = t.ext::<AutogradMeta>()?;
    let history = meta.history.lock();
    let (node, nr) = (history.node.clone()?, history.nr);
    drop(history);
    if let Some(leaf) = leaf_of(&node) {
        return leaf.grad.lock().clone();
    }
    let slot = node.extra()?.retained(nr)?;
    slot.lock().clone()
}

/// Sets or clears the gradient kept for `t`.
pub fn set_grad(t: &Tensor, grad: Option<Tensor>) -> Result<()> {
    if let Some(g) = &grad {
        if g.sizes() != t.sizes() || g.dtype() != t.dtype() || g.device() != t.device() {
            let message = format!("a gradient must be like its tensor: {t:?}, got {g:?}");
            return Err(Error::autograd("TP3014", message));
        }
    } else if t.ext::<AutogradMeta>().is_none() {
        return Ok(());
    }
    let old = if is_leaf(t) {
        let (node, _) = accumulator(t)?;
        let Some(leaf) = leaf_of(&node) else { return Ok(()) };
        std::mem::replace(&mut *leaf.grad.lock(), grad)
    } else {
        let slot = retain_slot(t)?;
        std::mem::replace(&mut *slot.lock(), grad)
    };
    drop(old);
    Ok(())
}

/// Where the gradient of a non-leaf is kept: with its node, so that a write in place starts anew.
fn retain_slot(t: &Tensor) -> Result<Arc<GradSlot>> {
    let (node, nr) = gradient_edge(t)?;
    Ok(node.extra_or_install().retain_grad(nr))
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
    let id = node.extra_or_install().add_hook(nr, hook);
    Ok((node, id))
}

fn require_grad(t: &Tensor) -> Result<()> {
    if t.requires_grad() {
        return Ok(());
    }
    Err(Error::autograd("TP3015", "the tensor does not require grad")
        .note("call requires_grad_() on it first"))
}

/// Reports the host objects of a node: those of its rule, hooks and payload, and the host nodes of its edges.
pub fn trace_node(node: &Node, visit: &mut HostVisitor<'_>) {
    node.rule().trace(visit);
    if let Some(extra) = node.extra() {
        extra.trace(visit);
    }
    for edge in node.edges() {
        let host = edge.node.host();
        if !host.is_null() {
            visit(host);
        }
    }
}
