//! Recording the short way: a call that returned one tensor, and of whose arguments only single tensors need gradients.
//! Most of a tape are such nodes, so everything is written straight into the node.

use super::draft::{Draft, Head};
use super::extra::Spec;
use super::node::{Counts, Edge, Node, flag, tick};
use super::record::differentiable;
use crate::rule::{Rule, RuleHandle};
use crate::{meta, view};
use std::ptr;
use tp_dispatch::dispatcher::redispatch_one;
use tp_dispatch::{Arg, Call, DispatchKey, Result};
use tp_tensor::Tensor;

/// No more arguments than a set of them has bits.
const MOST: usize = 64;

/// The arguments that are tensors and require grad, and those that are floating tensors, as bits; None where an item of
/// a list requires grad, or there are too many.
#[inline(always)]
fn sets(args: &[Arg<'_>]) -> Option<(u64, u64)> {
    if args.len() > MOST {
        return None;
    }
    let (mut requiring, mut floating, mut in_list) = (0, 0, false);
    for (i, arg) in args.iter().enumerate() {
        match arg {
            Arg::Tensor(t) => {
                requiring |= u64::from(t.requires_grad()) << i;
                floating |= u64::from(t.dtype().is_float()) << i;
            }
            Arg::Tensors(_) | Arg::OptTensors(_) => arg.for_each_tensor(|t| in_list |= t.requires_grad()),
            _ => {}
        }
    }
    (!in_list).then_some((requiring, floating))
}

/// Calls `f` with the positions of the bits of `set`, lowest first.
#[inline(always)]
pub(crate) fn for_each_bit(set: u64, mut f: impl FnMut(usize)) {
    let mut left = set;
    while left != 0 {
        f(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}

/// Runs a call whose rule keeps nothing of it but specs, and with `kinds` the bits of `Short::Kinds`, and records it.
/// None where it has no short form.
#[inline(never)]
pub(crate) fn record(call: &Call<'_>, rule: &Rule, kinds: bool) -> Option<Result<Tensor>> {
    let (requiring, floating) = sets(call.args)?;
    let (set, bits) = (requiring & rule.args, if kinds { floating << 1 } else { 0 });
    let out = match redispatch_one(call, DispatchKey::Autograd)? {
        Ok(out) => out,
        Err(e) => return Some(Err(e)),
    };
    if set != 0 && differentiable(&out) {
        let kept = Kept { bits, specs: rule.specs, ..Kept::default() };
        if let Err(e) = tie(call, &out, set, &rule.handle, &kept, |_| {}) {
            return Some(Err(e));
        }
    }
    Some(Ok(out))
}

/// What a node keeps besides its edges.
#[derive(Default)]
pub(crate) struct Kept {
    pub bits: u64,
    pub tensors: u32,
    pub values: u32,
    /// With the spec of every input that needs a gradient.
    pub specs: bool,
    /// A tensor that is kept leads to host objects.
    pub reaches: bool,
}

/// Gives `out` a node with an edge per argument in `set`, which is not empty. `fill` writes the tensors and values that
/// `kept` counts.
#[inline(always)]
pub(crate) fn tie(
    call: &Call<'_>,
    out: &Tensor,
    set: u64,
    rule: &RuleHandle,
    kept: &Kept,
    fill: impl FnOnce(&mut Draft),
) -> Result<()> {
    // Two copies of the same: most nodes have one edge, for which the first is much shorter.
    match set & (set - 1) {
        0 => tie_edges(call, out, set, 1, rule, kept, fill),
        _ => tie_edges(call, out, set, set.count_ones(), rule, kept, fill),
    }
}

/// As `tie`, with the number of edges.
#[inline(always)]
fn tie_edges(
    call: &Call<'_>,
    out: &Tensor,
    set: u64,
    edges: u32,
    rule: &RuleHandle,
    kept: &Kept,
    fill: impl FnOnce(&mut Draft),
) -> Result<()> {
    let counts = Counts { outputs: 1, edges, saved: kept.tensors, values: kept.values, specs: kept.specs };
    let head = Head { op: Some(call.op), bits: kept.bits, flags: 0, seq: 0, extra: ptr::null_mut() };
    let mut draft = Draft::new(rule, &head, &counts)?;
    fill(&mut draft);
    let (mut newest, mut reaches, mut left) = (0, kept.reaches, set);
    for _ in 0..edges {
        let i = left.trailing_zeros() as usize;
        left &= left - 1;
        let Some(t) = call.opt_tensor(i) else { continue };
        match meta::gradient_edge(t) {
            // SAFETY: one edge, and one spec where there are specs, per bit of the set: as counted.
            Ok((node, nr)) => unsafe {
                newest = newest.max(node.seq());
                reaches |= node.reaches_host();
                draft.edge(Edge::new(node, nr, i, 0));
                if kept.specs {
                    draft.spec(Spec::of(t));
                }
            },
            Err(e) => {
                draft.abandon();
                return Err(e);
            }
        }
    }
    let mut flags = if reaches { flag::REACHES } else { 0 };
    if edges == 1 && kept.tensors == 0 && matches!(rule, RuleHandle::Static(_)) {
        flags |= flag::DIRECT;
    }
    if out.is_view() {
        flags |= view::made(call, out);
    }
    // SAFETY: everything that was counted is written.
    let node = unsafe { draft.finish_with(tick(newest), flags) };
    if reaches {
        Node::list(&node);
    }
    meta::set_history(out, node, 0);
    Ok(())
}
