//! One backward run: nodes in decreasing order of recording, which is a topological order, so that a node runs when
//! every gradient for it has arrived. A gradient that is the only one under way stays in the hand, which is all that
//! happens in a chain; others wait inside the nodes. A node that another run is using (another thread, or a run around
//! this one) keeps its gradient in a table here instead.

use super::reach::{ByNode, Reach, id};
use super::{accumulate, check};
use crate::anomaly;
use crate::discard::Brief;
use crate::rule::{BackwardCtx, Gradients};
use crate::tape::{Claim, Kept, Node, NodeExtra, NodeRef, Spec};
use smallvec::SmallVec;
use std::collections::BinaryHeap;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use tp_dispatch::{DispatchKey, Error, Result, host, state};
use tp_tensor::layout::same_dims;
use tp_tensor::{Dim, Tensor};

pub(super) type Grads = SmallVec<[Option<Tensor>; 1]>;

/// Gradients that a run collects instead of adding them to leaves.
pub(super) struct Wanted {
    /// By node: output number and index of the result.
    pub targets: ByNode<SmallVec<[(u32, usize); 1]>>,
    pub results: Vec<Option<Tensor>>,
    pub reach: Reach,
    /// Nodes at which the run ends: what lies behind them, and who watches them, is for others.
    pub ends: ByNode<()>,
    /// The nodes of the targets, which the table names by address.
    pub _alive: SmallVec<[NodeRef; 4]>,
}

impl Wanted {
    fn collect(&mut self, node: &Node, grads: &[Option<Tensor>]) {
        let Some(places) = self.targets.get(&id(node)) else { return };
        for &(nr, index) in places {
            self.results[index] = grads.get(nr as usize).cloned().flatten();
        }
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
struct Entry {
    seq: u64,
    node: NonNull<Node>,
}

/// Nodes that have a gradient, latest first. The top is kept apart: a chain never touches the heap.
#[derive(Default)]
struct Ready {
    top: Option<Entry>,
    rest: BinaryHeap<Entry>,
}

impl Ready {
    #[inline]
    fn push(&mut self, e: Entry) {
        match self.top {
            Some(top) if top > e => self.rest.push(e),
            Some(top) => {
                self.rest.push(top);
                self.top = Some(e);
            }
            None if self.rest.peek().is_none_or(|r| *r < e) => self.top = Some(e),
            None => self.rest.push(e),
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<Entry> {
        if self.top.is_none() && self.rest.is_empty() {
            return None;
        }
        self.top.take().or_else(|| self.rest.pop())
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.top.is_none() && self.rest.is_empty()
    }
}

/// A gradient on its way to output `nr` of `node`.
struct InHand {
    node: NonNull<Node>,
    nr: u32,
    grad: Tensor,
}

pub(super) struct Run {
    /// This run's mark on nodes; made when the first one is needed.
    claim: Option<Claim>,
    /// Held only while nothing is ready.
    hand: Option<InHand>,
    ready: Ready,
    /// Gradients for nodes that another run has claimed.
    aside: ByNode<Grads>,
    retain: bool,
    pub wanted: Option<Wanted>,
    steps: u32,
}

static NEXT_RUN: AtomicUsize = AtomicUsize::new(1);
const POLL_EVERY: u32 = 256;

impl Run {
    pub fn new(retain: bool, wanted: Option<Wanted>) -> Run {
        Run {
            claim: None,
            hand: None,
            ready: Ready::default(),
            aside: ByNode::default(),
            retain,
            wanted,
            steps: 0,
        }
    }

    /// Adds a gradient for output `nr` of `node`. Whoever calls keeps the graph alive until the run is over.
    #[inline]
    pub fn give(&mut self, node: &NodeRef, nr: u32, grad: Tensor) -> Result<()> {
        if let Some(wanted) = &self.wanted
            && !wanted.reach.leads(node)
        {
            return Ok(());
        }
        if self.hand.is_none() && self.ready.is_empty() {
            self.hand = Some(InHand { node: node.as_ptr(), nr, grad });
            return Ok(());
        }
        if let Some(first) = self.hand.take() {
            // SAFETY: alive like every node of the graph; the reference is borrowed from the roots.
            let node = ManuallyDrop::new(unsafe { NodeRef::from_raw(first.node) });
            self.store(&node, first.nr, first.grad)?;
        }
        self.store(node, nr, grad)
    }

    /// Lets a gradient wait in its node.
    fn store(&mut self, node: &NodeRef, nr: u32, grad: Tensor) -> Result<()> {
        let entry = Entry { seq: node.seq(), node: node.as_ptr() };
        let claim = *self.claim.get_or_insert_with(|| Claim(NEXT_RUN.fetch_add(1, Ordering::Relaxed)));
        if !claim.holds(node) {
            // A node that was busy at its first gradient keeps its place aside, even if it is free by now.
            let is_aside = !self.aside.is_empty() && self.aside.contains_key(&id(node));
            if is_aside || !claim.take(node) {
                return self.give_aside(node, nr, grad, entry);
            }
            self.ready.push(entry);
        }
        // SAFETY: this run holds the node, and the reference ends here.
        match unsafe { claim.slot(node, nr) } {
            Some(slot) => accumulate::add_into(slot, grad),
            None => Err(no_output(node, nr)),
        }
    }

    #[cold]
    fn give_aside(&mut self, node: &NodeRef, nr: u32, grad: Tensor, entry: Entry) -> Result<()> {
        let grads = self.aside.entry(id(node)).or_insert_with(|| {
            self.ready.push(entry);
            std::iter::repeat_with(|| None).take(node.output_count()).collect()
        });
        match grads.get_mut(nr as usize) {
            Some(slot) => accumulate::add_into(slot, grad),
            None => Err(no_output(node, nr)),
        }
    }

    /// Takes the gradients that wait for a node, and gives the node free.
    fn take(&mut self, node: &Node) -> Grads {
        let Some(claim) = self.claim.filter(|c| c.holds(node)) else {
            return self.aside.remove(&id(node)).unwrap_or_default();
        };
        let mut grads = Grads::new();
        for nr in 0..node.output_count() as u32 {
            // SAFETY: this run holds the node, and the reference ends here.
            grads.push(unsafe { claim.slot(node, nr) }.and_then(Option::take));
        }
        claim.release(node);
        grads
    }

    /// Runs until no gradient is left.
    pub fn run(&mut self) -> Result<()> {
        loop {
            self.steps += 1;
            if self.steps.is_multiple_of(POLL_EVERY) {
                host::poll()?;
            }
            if let Some(InHand { node, nr, grad }) = self.hand.take() {
                // SAFETY: the roots keep every node of the graph alive; the reference is borrowed from them.
                let node = ManuallyDrop::new(unsafe { NodeRef::from_raw(node) });
                if nr == 0 && node.is_leaf() && self.wanted.is_none() && !node.is_watched() {
                    finish_leaf(&node, grad)?;
                    continue;
                }
                let Some(grad) = self.direct(&node, grad)? else { continue };
                if node.output_count() == 1 && nr == 0 {
                    self.step(&node, &mut [Some(grad)])?;
                } else {
                    self.step(&node, &mut alone(&node, nr, grad)?)?;
                }
            } else if let Some(entry) = self.ready.pop() {
                // SAFETY: as above.
                let node = ManuallyDrop::new(unsafe { NodeRef::from_raw(entry.node) });
                let mut grads = self.take(&node);
                self.step(&node, &mut grads)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Runs a node whose rule needs no lists. The gradient comes back where it does.
    #[inline(always)]
    fn direct(&mut self, node: &NodeRef, grad: Tensor) -> Result<Option<Tensor>> {
        let [edge] = node.edges() else { return Ok(Some(grad)) };
        if !node.is_direct() || self.wanted.is_some() || anomaly::is_on() {
            return Ok(Some(grad));
        }
        let mut grad = Some(grad);
        match node.rule().direct(node, &mut grad) {
            None => return Ok(grad),
            // Nothing else is under way: a gradient was in the hand.
            Some(Ok(grad)) => self.hand = Some(InHand { node: edge.node.as_ptr(), nr: edge.nr, grad }),
            Some(Err(e)) => return Err(anomaly::located(node, e)),
        }
        Ok(None)
    }

    /// Runs a node; its gradients are used up.
    fn step(&mut self, node: &NodeRef, grads: &mut [Option<Tensor>]) -> Result<()> {
        if let Some(wanted) = &mut self.wanted
            && wanted.ends.contains_key(&id(node))
        {
            wanted.collect(node, grads);
            return Ok(());
        }
        if node.is_watched()
            && let Some(extra) = node.extra()
        {
            run_hooks(node, extra, grads)?;
        }
        if let Some(wanted) = &mut self.wanted {
            wanted.collect(node, grads);
            if !node.edges().iter().any(|e| wanted.reach.leads(&e.node)) {
                return Ok(());
            }
        } else if node.is_leaf() {
            return grads.first_mut().and_then(Option::take).map_or(Ok(()), |grad| finish_leaf(node, grad));
        }
        let mut out = Gradients::new(node.edges());
        self.apply(node, grads, &mut out)?;
        // Given up before the results go on, so that a gradient handed through is nobody else's.
        grads.iter_mut().for_each(|g| *g = None);
        if let (false, Some(extra)) = (self.retain, node.extra()) {
            extra.drop_packed();
        }
        let done = self.pass_on(node, &mut out);
        out.spend();
        done
    }

    /// Runs the node's rule over what it saved.
    #[inline(always)]
    fn apply(&self, node: &NodeRef, grads: &[Option<Tensor>], out: &mut Gradients<'_>) -> Result<()> {
        let mut ctx = BackwardCtx { node, saved: Brief::new(SmallVec::new()), last: !self.retain };
        if !node.open_saved(self.retain, &mut ctx.saved) {
            return Err(anomaly::located(node, freed(node)));
        }
        let done = match node.has_shared_rule() && node.rule().is_foreign() {
            true => check::run_foreign(node, &ctx, grads, out),
            false => node.rule().backward(&ctx, grads, out),
        };
        done.map_err(|e| {
            if !self.retain {
                node.restore_saved(std::mem::take(&mut *ctx.saved));
            }
            anomaly::located(node, e)
        })
    }

    #[inline(always)]
    fn pass_on(&mut self, node: &NodeRef, out: &mut Gradients<'_>) -> Result<()> {
        let foreign = node.has_shared_rule() && node.rule().is_foreign();
        for ((k, edge), slot) in node.edges().iter().enumerate().zip(out.slots.iter_mut()) {
            let Some(mut grad) = slot.take() else { continue };
            if foreign {
                grad = check::fit_input(node, k, grad).map_err(|e| anomaly::located(node, e))?;
            }
            anomaly::check(node, &grad, || "its backward gave a NaN".into())?;
            self.give(&edge.node, edge.nr, grad)?;
        }
        Ok(())
    }
}

impl Drop for Run {
    /// After an error gradients still wait in nodes: they go, and the nodes are free again.
    fn drop(&mut self) {
        while let Some(entry) = self.ready.pop() {
            // SAFETY: as in `run`.
            let node = ManuallyDrop::new(unsafe { NodeRef::from_raw(entry.node) });
            drop(self.take(&node));
        }
    }
}

/// The gradients of a node of which only output `nr` has one.
#[cold]
fn alone(node: &Node, nr: u32, grad: Tensor) -> Result<Grads> {
    let mut grads: Grads = std::iter::repeat_with(|| None).take(node.output_count()).collect();
    match grads.get_mut(nr as usize) {
        Some(slot) => *slot = Some(grad),
        None => return Err(no_output(node, nr)),
    }
    Ok(grads)
}

/// Adds a gradient to that of a leaf.
fn finish_leaf(node: &NodeRef, grad: Tensor) -> Result<()> {
    let Some(leaf) = node.extra().and_then(|e| e.leaf.as_ref()) else { return Ok(()) };
    let spec = &leaf.spec;
    if !same_dims(grad.sizes(), &spec.sizes) || grad.dtype() != spec.dtype {
        return Err(wrong_gradient(&grad, spec));
    }
    accumulate::into_leaf(node, leaf, grad)
}

#[cold]
fn wrong_gradient(grad: &Tensor, spec: &Spec) -> Error {
    let message = format!(
        "a gradient of {} {:?} arrived at a leaf of {} {:?}",
        grad.dtype(),
        Dim::slice(grad.sizes()),
        spec.dtype,
        Dim::slice(&spec.sizes)
    );
    Error::contract("TP3204", message).note("the backward of an operation on the way is wrong")
}

/// Hooks see the whole gradient of an output and may replace it; then it is kept where the user asked for it.
#[cold]
fn run_hooks(node: &Node, extra: &NodeExtra, grads: &mut [Option<Tensor>]) -> Result<()> {
    if state::includes(DispatchKey::Capture) && extra.is_watched_from_outside() {
        return Err(watched_from_outside(node));
    }
    for (nr, slot) in grads.iter_mut().enumerate() {
        let Some(grad) = slot else { continue };
        for hook in extra.hooks(nr as u32) {
            let before = check::Versions::of(std::iter::once(&*grad));
            let other = hook.call(grad)?;
            before.compare(std::iter::once(&*grad), "a hook", node)?;
            let Some(other) = other else { continue };
            let whose = || check::Whose { op: None, what: "the tensor of a hook".into() };
            *grad = check::replacing(other, grad, whose)?;
            anomaly::check(node, grad, || "a hook gave a NaN for its gradient".into())?;
        }
        if let Some(kept) = extra.retained(nr as u32) {
            let before = kept.lock().take().into_tensor();
            let sum = match before {
                None => accumulate::own(grad.clone())?,
                Some(old) => crate::ops::add(&old, grad)?,
            };
            let none = std::mem::replace(&mut *kept.lock(), Kept::new(Some(sum)));
            drop(none);
        }
    }
    Ok(())
}

#[cold]
fn watched_from_outside(node: &Node) -> Error {
    let message = "a gradient inside of a captured function passes a tensor with a hook, or a gradient that is kept, from outside of it: that would take effect in the capture alone";
    Error::capture("TP4031", message)
        .with_op(node.name())
        .note("set the hook inside of the function, or take the gradient outside of it")
}

#[cold]
fn freed(node: &Node) -> Error {
    Error::autograd("TP3004", "the graph was freed: its saved tensors are gone after the first backward pass")
        .with_op(node.name())
        .note("pass retain_graph=True to every backward pass but the last")
}

#[cold]
fn no_output(node: &Node, nr: u32) -> Error {
    let message = format!(
        "a gradient for output {nr} of a node with {}",
        tp_tensor::counted(node.output_count(), "output")
    );
    Error::internal("TP9009", message).with_op(node.name())
}
