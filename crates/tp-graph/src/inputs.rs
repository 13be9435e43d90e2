//! What is to be known of a captured graph's inputs: where each comes from in a call, which of them runs fetch anew, and
//! what the guards must cover besides the arguments themselves.

use crate::capture::Between;
use crate::capture::watch::Asked;
use crate::guard::{Context, Place};
use crate::host_guards::HostGuards;
use crate::ir::{Graph, InputKind};
use crate::passes::Memory;
use tp_dispatch::{Arg, OpHandle};
use tp_tensor::Tensor;

/// Where each input of a forward graph comes from: arguments in order, then lifted tensors in order, and constants, which
/// are kept behind those.
pub(crate) fn places(graph: &Graph, args: &[Arg<'_>]) -> Box<[Place]> {
    let mut arguments = distinct_tensors(args).into_iter();
    let mut lifted = 0u32..;
    let place = |kind: InputKind| match kind {
        InputKind::Argument => arguments.next().map(Place::Argument),
        InputKind::Lifted | InputKind::Constant => lifted.next().map(Place::Lifted),
        InputKind::Gradient | InputKind::Saved => None,
    };
    graph.inputs.iter().map(|i| i.kind).filter_map(place).collect()
}

/// Argument numbers of the tensors, a tensor that is passed twice counted once.
fn distinct_tensors(args: &[Arg<'_>]) -> Vec<u32> {
    let mut seen: Vec<&Tensor> = Vec::new();
    let mut out = Vec::new();
    for (i, arg) in (0u32..).zip(args) {
        if let Arg::Tensor(t) = arg
            && !seen.iter().any(|s| s.same(t))
        {
            seen.push(t);
            out.push(i);
        }
    }
    out
}

/// Lifted tensors in whose places others may come: nothing is written to any input, and nothing was asked of the tensor
/// or shares its memory, and no gradient is taken beside it. The host is told.
pub(crate) fn moving(
    graph: &Graph,
    args: &[Arg<'_>],
    lifted: &[Tensor],
    (asked, between): (&[Asked], &Between),
    host: &dyn HostGuards,
) -> Vec<(u32, u32)> {
    let memory = Memory::of(graph);
    if graph.inputs.iter().any(|i| memory.is_written(i.value)) {
        return Vec::new();
    }
    let shares = |t: &Tensor| {
        let arguments = args.iter().filter_map(Arg::tensor);
        let others = lifted.iter().filter(|other| !other.same(t)).chain(arguments);
        others.into_iter().any(|other| other.shares_storage(t))
    };
    let mut out = Vec::new();
    for (i, t) in (0u32..).zip(lifted) {
        if let Some(slot) = host.slot_of(t)
            && !shares(t)
            && !asked.iter().any(|a| a.of.same(t))
            && !between.apart.iter().any(|(a, b)| a.same(t) || b.same(t))
        {
            host.release(slot);
            out.push((i, slot));
        }
    }
    out
}

/// What the guards must cover besides the arguments themselves.
pub(crate) fn context(graph: &Graph, args: &[Arg<'_>], lifted: &[Tensor], ops: Vec<OpHandle>) -> Context {
    let memory = Memory::of(graph);
    let inputs = graph.inputs.iter().filter(|i| matches!(i.kind, InputKind::Argument | InputKind::Lifted));
    let inputs: Vec<(Place, bool)> =
        places(graph, args).into_iter().zip(inputs).map(|(p, i)| (p, memory.is_written(i.value))).collect();
    let mut pairs = Vec::new();
    for (a, (place, written)) in inputs.iter().enumerate() {
        for (b, (other, other_written)) in inputs.iter().enumerate() {
            if *written && a != b && (a < b || !other_written) {
                pairs.push((*place, *other));
            }
        }
    }
    Context { memory: pairs, ops, lifted: lifted.to_vec(), ..Context::default() }
}

/// Every op that was captured, those included whose nodes are simplified away.
pub(crate) fn captured_ops(graph: &Graph) -> Vec<OpHandle> {
    let mut ops: Vec<OpHandle> = Vec::new();
    crate::control::for_each_node(graph, &mut |node| {
        ops.extend(node.target.op().filter(|op| !ops.contains(op)));
    });
    ops
}
