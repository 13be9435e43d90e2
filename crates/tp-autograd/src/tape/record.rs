//! Recording: which inputs a call needs gradients for, what its rule saves, and tying the outputs to the new node.

use super::draft::{Draft, Head};
use super::extra::{NodeExtra, Spec};
use super::handle::NodeRef;
use super::node::{Counts, Edge, Node, flag, tick};
use super::packed::{self, Packed, SavedHooks};
use super::saved::{self, SavedTensor};
use crate::discard::is_spent;
use crate::inplace::Rewritten;
use crate::rule::{Rule, RuleHandle, VjpRule};
use crate::{anomaly, meta};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::ptr;
use std::sync::Arc;
use tp_dispatch::host::HostRef;
use tp_dispatch::{Arg, Call, Error, OpHandle, Result, Value, state};
use tp_tensor::Tensor;

pub(crate) type Edges = SmallVec<[Edge; 2]>;

/// The edges of a call: one per tensor that requires grad, in arguments that have a gradient.
#[inline]
pub(crate) fn collect_edges(call: &Call<'_>, wanted: u64, edges: &mut Edges) -> Result<()> {
    for (i, arg) in call.args.iter().enumerate() {
        if i < 64 && wanted >> i & 1 == 0 {
            continue;
        }
        match *arg {
            Arg::Tensor(t) => push_edge(edges, t, i, 0)?,
            Arg::Tensors(ts) => {
                ts.iter().enumerate().try_for_each(|(k, t)| push_edge(edges, t, i, k))?;
            }
            Arg::OptTensors(ts) => {
                let given = ts.iter().enumerate().filter_map(|(k, t)| Some((k, t.as_ref()?)));
                for (k, t) in given {
                    push_edge(edges, t, i, k)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Inside a foreign kernel its arguments are plain values.
#[inline]
fn is_passed_by(t: &Tensor) -> bool {
    state::is_in_foreign_kernel() && state::is_kernel_argument(t)
}

#[inline]
fn push_edge(edges: &mut Edges, t: &Tensor, arg: usize, index: usize) -> Result<()> {
    if t.requires_grad() && !is_passed_by(t) {
        let (node, nr) = meta::gradient_edge(t)?;
        edges.push(Edge::new(node, nr, arg, index));
    }
    Ok(())
}

/// What a rule saved for one call. It stays where it was made and is moved into the node once.
#[derive(Default)]
pub(crate) struct Saved {
    tensors: SmallVec<[SavedTensor; 2]>,
    values: SmallVec<[Value; 2]>,
    bits: u64,
    rare: Option<Box<Rare>>,
    not_differentiable: SmallVec<[u32; 2]>,
}

impl Saved {
    /// Nothing is left in it to drop: a node took everything.
    #[inline(always)]
    pub fn is_spent(&self) -> bool {
        is_spent(&self.tensors)
            && is_spent(&self.values)
            && is_spent(&self.not_differentiable)
            && self.rare.is_none()
    }
}

#[derive(Default)]
struct Rare {
    payload: Option<HostRef>,
    packed: Vec<Packed>,
    error: Option<Error>,
}

/// Collects what a rule saves for one call.
pub struct Saver<'a> {
    edges: &'a [Edge],
    saved: &'a mut Saved,
}

impl<'a> Saver<'a> {
    #[inline]
    pub(crate) fn new(edges: &'a [Edge], saved: &'a mut Saved) -> Saver<'a> {
        Saver { edges, saved }
    }

    /// Whether argument `arg` (or an item of it) needs a gradient.
    #[inline]
    pub fn needs(&self, arg: usize) -> bool {
        self.edges.iter().any(|e| e.arg() == arg)
    }

    /// Whether item `index` of the list argument `arg` needs a gradient.
    pub fn needs_item(&self, arg: usize, index: usize) -> bool {
        self.edges.iter().any(|e| e.arg() == arg && e.index() == index)
    }

    /// The inputs that need a gradient, in order.
    #[inline]
    pub fn edges(&self) -> &'a [Edge] {
        self.edges
    }

    /// Saves a tensor that is no output of this call.
    #[inline]
    pub fn input(&mut self, t: &Tensor) {
        match packed::active() {
            None => self.saved.tensors.push(SavedTensor::input(t)),
            Some(hooks) => self.pack(hooks, t, saved::INPUT),
        }
    }

    /// Saves output `nr` (counting every tensor the call returns) without making a cycle.
    #[inline]
    pub fn output(&mut self, t: &Tensor, nr: usize) {
        match packed::active() {
            None => self.saved.tensors.push(SavedTensor::output(t, nr)),
            Some(hooks) => self.pack(hooks, &t.detach(), nr as u32),
        }
    }

    #[cold]
    fn pack(&mut self, hooks: Arc<dyn SavedHooks>, t: &Tensor, nr: u32) {
        let index = self.saved.tensors.len();
        self.saved.tensors.push(SavedTensor::packed(nr));
        let rare = self.saved.rare.get_or_insert_default();
        match packed::pack(&*hooks, index, t) {
            Ok(packed) => rare.packed.push(packed),
            Err(e) => rare.error = Some(e),
        }
    }

    /// Keeps a place for a tensor that is not there.
    pub fn none(&mut self) {
        self.saved.tensors.push(SavedTensor::none());
    }

    #[inline]
    pub fn value(&mut self, v: Value) {
        self.saved.values.push(v);
    }

    #[inline]
    pub fn ints(&mut self, v: &[i64]) {
        self.saved.values.push(Value::Ints(v.into()));
    }

    #[inline]
    pub fn int(&mut self, v: i64) {
        self.saved.values.push(Value::Int(v));
    }

    /// Sets bits that the backward call can read.
    #[inline]
    pub fn set_bits(&mut self, bits: u64) {
        self.saved.bits |= bits;
    }

    /// Output `nr` will not require grad.
    pub fn mark_non_differentiable(&mut self, nr: usize) {
        self.saved.not_differentiable.push(nr as u32);
    }

    /// Keeps an object of the host language with the node.
    pub fn set_payload(&mut self, payload: HostRef) {
        self.saved.rare.get_or_insert_default().payload = Some(payload);
    }
}

/// A node to be: everything but its outputs.
pub(crate) struct Recipe<'a> {
    pub rule: &'a Rule,
    pub op: Option<OpHandle>,
    pub edges: &'a mut Edges,
    pub saved: &'a mut Saved,
    pub outputs: u32,
    pub flags: u16,
}

impl Recipe<'_> {
    /// Builds the node. Where the rule keeps specs, `tensors` gives what they are of: the input behind each edge, then
    /// each output.
    #[inline]
    pub fn build<'t>(self, tensors: impl FnOnce(&[Edge], &mut dyn FnMut(&'t Tensor))) -> Result<NodeRef> {
        let Recipe { rule, op, edges, saved, outputs, mut flags } = self;
        let mut extra = ptr::null_mut();
        if saved.rare.is_some() || anomaly::is_on() {
            let mut rare = rare_parts(saved)?;
            if !rare.packed.get_mut().is_empty() || rare.payload.get_mut().is_some() {
                flags |= flag::REACHES;
            }
            extra = Box::into_raw(rare);
        }
        // The rule of an op is the op's own, and the collector finds what it holds there.
        let (mut seq, mut reaches) = (0, op.is_none() && rule.reaches_host);
        for e in edges.iter() {
            seq = seq.max(e.node.seq());
            reaches |= e.node.reaches_host();
        }
        if reaches || saved.tensors.iter().any(|s| s.raw().is_some_and(Tensor::needs_tracking)) {
            flags |= flag::REACHES;
        }
        let counts = Counts {
            outputs,
            edges: edges.len() as u32,
            saved: saved.tensors.len() as u32,
            values: saved.values.len() as u32,
            specs: rule.specs,
        };
        let head = Head { op, bits: saved.bits, flags, seq: tick(seq), extra };
        let mut draft = Draft::new(&rule.handle, &head, &counts)?;
        // SAFETY: exactly what was counted: as many specs as there are, then the lists themselves.
        let node = unsafe {
            if rule.specs {
                let mut left = counts.specs();
                tensors(edges, &mut |t| {
                    if left > 0 {
                        draft.spec(Spec::of(t));
                        left -= 1;
                    }
                });
                (0..left).for_each(|_| draft.spec(Spec::none()));
            }
            draft.fill(edges, &mut saved.tensors, &mut saved.values);
            draft.finish()
        };
        if flags & flag::REACHES != 0 {
            Node::list(&node);
        }
        Ok(node)
    }
}

/// The parts of a node that few have.
#[cold]
fn rare_parts(saved: &mut Saved) -> Result<Box<NodeExtra>> {
    let rare = saved.rare.as_deref_mut().map(std::mem::take).unwrap_or_default();
    if let Some(e) = rare.error {
        return Err(e);
    }
    Ok(Box::new(NodeExtra {
        payload: Mutex::new(rare.payload),
        packed: Mutex::new(rare.packed),
        location: if anomaly::is_on() { tp_dispatch::host::location() } else { None },
        ..NodeExtra::default()
    }))
}

/// Gives every differentiable output its history; outputs are numbered in order, lists flattened.
#[inline]
pub(crate) fn tie(node: NodeRef, rets: &[Value], saved: &Saved) {
    if let ([Value::Tensor(t)], true) = (rets, saved.not_differentiable.is_empty()) {
        return if differentiable(t) {
            meta::set_history(t, node, 0)
        };
    }
    let mut nr = 0;
    for value in rets {
        value.for_each_tensor(|t| {
            tie_one(&node, t, nr, saved);
            nr += 1;
        });
    }
}

/// An output that already requires grad is an input handed through, with its own history.
#[inline]
pub(crate) fn differentiable(t: &Tensor) -> bool {
    t.dtype().is_float() && !t.requires_grad()
}

fn tie_one(node: &NodeRef, t: &Tensor, nr: u32, saved: &Saved) {
    if differentiable(t) && !saved.not_differentiable.contains(&nr) {
        meta::set_history(t, node.clone(), nr);
    }
}

/// A call that is recorded by hand: who needs its gradient, and what it saved so far. The edges have argument 0 and the
/// input's number as index.
pub struct Recording {
    edges: Edges,
    saved: Saved,
}

impl Recording {
    /// Looks at the inputs, each with its number, before the call runs. None when no input requires grad or grad mode is
    /// off.
    #[inline]
    pub fn begin<'t>(inputs: impl Iterator<Item = (usize, &'t Tensor)>) -> Result<Option<Recording>> {
        if !state::is_grad_enabled() {
            return Ok(None);
        }
        let mut edges = Edges::new();
        for (k, t) in inputs {
            push_edge(&mut edges, t, 0, k)?;
        }
        Ok((!edges.is_empty()).then(|| Recording { edges, saved: Saved::default() }))
    }

    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    pub fn saver(&mut self) -> Saver<'_> {
        Saver::new(&self.edges, &mut self.saved)
    }

    /// The node, of which `outputs` are from now on; `rewritten` says which of them are inputs that the call wrote to.
    /// `rule` knows how to go back, and `input` gives the input of a number again. None where there is no output.
    pub fn finish<'t>(
        mut self,
        rule: Arc<dyn VjpRule>,
        input: impl Fn(usize) -> Option<&'t Tensor>,
        outputs: impl Iterator<Item = &'t Tensor> + Clone,
        rewritten: Vec<Rewritten>,
    ) -> Result<Option<NodeRef>> {
        let count = outputs.clone().count() as u32;
        if count == 0 {
            return Ok(None);
        }
        let recipe = Recipe {
            rule: &Rule::of(RuleHandle::Shared(rule)),
            op: None,
            edges: &mut self.edges,
            saved: &mut self.saved,
            outputs: count,
            flags: 0,
        };
        let node = recipe.build(|edges, keep| {
            edges.iter().filter_map(|e| input(e.index())).chain(outputs.clone()).for_each(keep);
        })?;
        for (nr, t) in (0u32..).zip(outputs) {
            if !rewritten.iter().any(|r| r.is_of(t)) {
                tie_one(&node, t, nr, &self.saved);
            }
        }
        rewritten.into_iter().try_for_each(|r| r.end(&node))?;
        Ok(Some(node))
    }
}

/// Records one node by hand: `outputs` were computed from `inputs`, and `rule` knows how to go back. The edges of
/// the node have argument 0 and the input's position. None when no input requires grad, grad mode is off, or there is no
/// output.
pub fn record_node(
    rule: Arc<dyn VjpRule>,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    save: impl FnOnce(&mut Saver<'_>) -> Result<()>,
) -> Result<Option<NodeRef>> {
    let Some(mut recording) = Recording::begin(inputs.iter().copied().enumerate())? else { return Ok(None) };
    save(&mut recording.saver())?;
    recording.finish(rule, |k| inputs.get(k).copied(), outputs.iter().copied(), Vec::new())
}
