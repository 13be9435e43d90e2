//! Recording: which inputs a call needs gradients for, what its rule saves, and tying the outputs to the new node.

use super::extra::{NodeExtra, Spec};
use super::node::{Edge, Node, NodeRef, Parts, flag};
use super::saved::SavedTensor;
use crate::rule::{RuleHandle, VjpRule};
use crate::{anomaly, hooks, meta};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use tp_dispatch::host::HostRef;
use tp_dispatch::{Call, OpHandle, Result, Value, state};
use tp_tensor::Tensor;

pub(crate) type Edges = SmallVec<[Edge; 2]>;

/// The edges of a call: one per tensor that requires grad, in arguments that have a gradient.
#[inline]
pub(crate) fn collect_edges(call: &Call<'_>, wanted: u64) -> Result<Edges> {
    let mut edges = Edges::new();
    for (i, arg) in call.args.iter().enumerate() {
        if i < 64 && wanted >> i & 1 == 0 {
            continue;
        }
        match *arg {
            tp_dispatch::Arg::Tensor(t) => push_edge(&mut edges, t, i, 0)?,
            tp_dispatch::Arg::Tensors(ts) => {
                ts.iter().enumerate().try_for_each(|(k, t)| push_edge(&mut edges, t, i, k))?;
            }
            tp_dispatch::Arg::OptTensors(ts) => {
                let given = ts.iter().enumerate().filter_map(|(k, t)| Some((k, t.as_ref()?)));
                for (k, t) in given {
                    push_edge(&mut edges, t, i, k)?;
                }
            }
            _ => {}
        }
    }
    Ok(edges)
}

#[inline]
fn push_edge(edges: &mut Edges, t: &Tensor, arg: usize, index: usize) -> Result<()> {
    if t.requires_grad() {
        let (node, nr) = meta::gradient_edge(t)?;
        edges.push(Edge::new(node, nr, arg, index));
    }
    Ok(())
}

/// Collects what a rule saves for one call.
pub struct Saver<'a> {
    edges: &'a [Edge],
    tensors: SmallVec<[SavedTensor; 3]>,
    values: SmallVec<[Value; 2]>,
    bits: u64,
    not_differentiable: SmallVec<[u32; 2]>,
    payload: Option<HostRef>,
}

impl<'a> Saver<'a> {
    #[inline]
    pub(crate) fn new(edges: &'a [Edge]) -> Saver<'a> {
        Saver {
            edges,
            tensors: SmallVec::new(),
            values: SmallVec::new(),
            bits: 0,
            not_differentiable: SmallVec::new(),
            payload: None,
        }
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
        self.tensors.push(SavedTensor::input(t));
    }

    /// Saves output `nr` (counting every tensor the call returns) without making a cycle.
    #[inline]
    pub fn output(&mut self, t: &Tensor, nr: usize) {
        self.tensors.push(SavedTensor::output(t, nr));
    }

    /// Keeps a place for a tensor that is not there.
    pub fn none(&mut self) {
        self.tensors.push(SavedTensor::none());
    }

    #[inline]
    pub fn value(&mut self, v: Value) {
        self.values.push(v);
    }

    #[inline]
    pub fn ints(&mut self, v: &[i64]) {
        self.values.push(Value::Ints(v.into()));
    }

    #[inline]
    pub fn int(&mut self, v: i64) {
        self.values.push(Value::Int(v));
    }

    /// Sets bits that the backward call can read.
    #[inline]
    pub fn set_bits(&mut self, bits: u64) {
        self.bits |= bits;
    }

    /// Output `nr` will not require grad.
    pub fn mark_non_differentiable(&mut self, nr: usize) {
        self.not_differentiable.push(nr as u32);
    }

    /// Keeps an object of the host language with the node.
    pub fn set_payload(&mut self, payload: HostRef) {
        self.payload = Some(payload);
    }
}

/// Builds the node of a call. Its outputs are tied to it by `tie`.
#[inline]
pub(crate) fn build(
    rule: RuleHandle,
    op: Option<OpHandle>,
    edges: Edges,
    saved: Saved,
    outputs: &Outputs<'_>,
) -> Result<NodeRef> {
    let r = rule.get();
    let mut flags = outputs.flags;
    let reaches = r.reaches_host()
        || saved.payload.is_some()
        || edges.iter().any(|e| e.node.reaches_host())
        || saved.tensors.iter().any(|s| s.raw().is_some_and(Tensor::needs_tracking));
    if reaches {
        flags |= flag::REACHES;
    }
    let extra = match r.is_foreign() || saved.payload.is_some() || anomaly::is_on() {
        true => Some(make_extra(r.is_foreign(), &edges, saved.payload, outputs)),
        false => None,
    };
    let node = Node::create(Parts {
        rule,
        op,
        bits: saved.bits,
        outputs: outputs.count,
        flags,
        edges,
        saved: saved.tensors,
        values: saved.values,
        extra,
    })?;
    if reaches && let Some(hooks) = hooks::host_hooks() {
        hooks.recorded(&node);
    }
    Ok(node)
}

/// Gives every differentiable output its history.
#[inline]
pub(crate) fn tie(node: NodeRef, outputs: &Outputs<'_>, not_differentiable: &[u32]) {
    let mut last: Option<(u32, &Tensor)> = None;
    outputs.for_each(|nr, t| {
        // An output that already requires grad is an input handed through.
        if t.dtype().is_float() && !t.requires_grad() && !not_differentiable.contains(&nr) {
            if let Some((nr, t)) = last.replace((nr, t)) {
                meta::set_history(t, node.clone(), nr);
            }
        }
    });
    if let Some((nr, t)) = last {
        meta::set_history(t, node, nr);
    }
}

/// A saver that let go of the edges it looked at.
pub(crate) struct Saved {
    tensors: SmallVec<[SavedTensor; 3]>,
    values: SmallVec<[Value; 2]>,
    bits: u64,
    payload: Option<HostRef>,
}

impl Saver<'_> {
    /// What was saved, and the outputs marked as not differentiable.
    #[inline]
    pub(crate) fn close(self) -> (Saved, SmallVec<[u32; 2]>) {
        let Saver { tensors, values, bits, not_differentiable, payload, .. } = self;
        (Saved { tensors, values, bits, payload }, not_differentiable)
    }
}

/// The tensors a call returned.
pub(crate) struct Outputs<'a> {
    pub rets: &'a [Value],
    pub given: &'a [&'a Tensor],
    /// Inputs in the order of the edges, for the specs of foreign rules.
    pub inputs: &'a dyn Fn(&Edge) -> Option<&'a Tensor>,
    pub count: u32,
    pub flags: u16,
}

impl<'a> Outputs<'a> {
    pub fn for_each(&self, mut f: impl FnMut(u32, &'a Tensor)) {
        let mut nr = 0;
        for value in self.rets {
            value.for_each_tensor(|t| {
                f(nr, t);
                nr += 1;
            });
        }
        for t in self.given {
            f(nr, t);
            nr += 1;
        }
    }
}

#[cold]
fn make_extra(
    foreign: bool,
    edges: &Edges,
    payload: Option<HostRef>,
    outputs: &Outputs<'_>,
) -> Box<NodeExtra> {
    let mut specs: Vec<Spec> = Vec::new();
    if foreign {
        specs.extend(edges.iter().filter_map(|e| (outputs.inputs)(e)).map(Spec::of));
        outputs.for_each(|_, t| specs.push(Spec::of(t)));
    }
    Box::new(NodeExtra {
        specs: foreign.then(|| specs.into()),
        payload: Mutex::new(payload),
        location: if anomaly::is_on() { tp_dispatch::host::location() } else { None },
        ..NodeExtra::default()
    })
}

/// Records one node by hand: `outputs` were computed from `inputs`, and `rule` knows how to go back. The edges of
/// the node have argument 0 and the input's position. None when no input requires grad or grad mode is off.
pub fn record_node(
    rule: Arc<dyn VjpRule>,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
    save: impl FnOnce(&mut Saver<'_>) -> Result<()>,
) -> Result<Option<NodeRef>> {
    if !state::is_grad_enabled() {
        return Ok(None);
    }
    let mut edges = Edges::new();
    for (k, t) in inputs.iter().enumerate() {
        push_edge(&mut edges, t, 0, k)?;
    }
    if edges.is_empty() {
        return Ok(None);
    }
    let mut saver = Saver::new(&edges);
    save(&mut saver)?;
    let (saved, not_differentiable) = saver.close();
    let find = |e: &Edge| inputs.get(e.index()).copied();
    let outputs = Outputs { rets: &[], given: outputs, inputs: &find, count: outputs.len() as u32, flags: 0 };
    let node = build(RuleHandle::Shared(rule), None, edges, saved, &outputs)?;
    tie(node.clone(), &outputs, &not_differentiable);
    Ok(Some(node))
}
