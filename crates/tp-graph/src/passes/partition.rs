//! Pointwise partition: which nodes run as one region. A region is a set of pointwise nodes over one iteration shape,
//! convex in the graph (no path leaves it and comes back), within one stretch between two writes. Every other node is
//! a region of its own. Regions come in an order in which they can run. Where a node could not join the region of an
//! operand, a break names the reason and the node that it is true of: the one of the two that is not pointwise, or else
//! the later one.

use crate::entity::{Entity, NodeId, ValueId};
use crate::ir::{Def, Graph, Node};
use crate::pointwise::{self, NotPointwise};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use tp_tensor::dim::Dims;
use tp_tensor::{Device, Dim};

/// A region has at most this many nodes and reads at most this many values from outside.
const MAX_NODES: usize = 256;
const MAX_READS: usize = 32;

#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// In the order in which they run.
    pub nodes: Vec<NodeId>,
    /// None for pointwise nodes.
    pub opaque: Option<NotPointwise>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Partition {
    pub parts: Vec<Part>,
    pub breaks: Vec<Break>,
}

/// Why a region ends at `node`: `node` did not join the region of an operand, or is the operand and none can join it.
#[derive(Clone, PartialEq, Debug)]
pub struct Break {
    pub node: NodeId,
    pub target: String,
    pub reason: BreakReason,
    /// The node is one of the backward graph.
    pub backward: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub enum BreakReason {
    NotPointwise(NotPointwise),
    Shape {
        from: Dims,
        to: Dims,
    },
    Device {
        from: Device,
        to: Device,
    },
    /// Another node between the two would have to run before and after the region.
    NotConvex,
    /// Something is written between the two.
    Write,
    TooLarge,
}

impl fmt::Display for BreakReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BreakReason::NotPointwise(why) => why.fmt(f),
            BreakReason::Shape { from, to } => {
                write!(f, "the shape changes from {:?} to {:?}", Dim::slice(from), Dim::slice(to))
            }
            BreakReason::Device { from, to } => write!(f, "the device changes from {from} to {to}"),
            BreakReason::NotConvex => {
                f.write_str("a node between them needs the region's result and feeds it")
            }
            BreakReason::Write => f.write_str("a tensor is written to in between"),
            BreakReason::TooLarge => f.write_str("the region is full"),
        }
    }
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = if self.backward { "backward " } else { "" };
        write!(f, "{phase}{} ({}): {}", self.node, self.target, self.reason)
    }
}

struct Group {
    nodes: Vec<NodeId>,
    opaque: Option<NotPointwise>,
    /// Iteration shape and device of a pointwise group.
    space: Option<(Dims, Device)>,
    /// Number of writes before it.
    stretch: u32,
    /// Groups whose results it needs, directly or not.
    needs: BitSet,
    /// Values it reads from outside.
    reads: Vec<ValueId>,
}

pub fn run(graph: &Graph) -> Partition {
    let mut builder = Builder { graph, groups: Vec::new(), of: Vec::new(), breaks: Vec::new(), stretch: 0 };
    let mut last_effect = None;
    for (id, node) in graph.nodes.iter() {
        builder.place(id, node, &mut last_effect);
    }
    let order = builder.order();
    let mut groups: Vec<Option<Group>> = builder.groups.into_iter().map(Some).collect();
    let parts = order.into_iter().filter_map(|g| groups[g].take());
    let parts = parts.map(|g| Part { nodes: g.nodes, opaque: g.opaque }).collect();
    Partition { parts, breaks: builder.breaks }
}

struct Builder<'g> {
    graph: &'g Graph,
    groups: Vec<Group>,
    /// The group of each node placed so far.
    of: Vec<usize>,
    breaks: Vec<Break>,
    stretch: u32,
}

impl Builder<'_> {
    fn place(&mut self, id: NodeId, node: &Node, last_effect: &mut Option<usize>) {
        let operands = self.operand_groups(node);
        let (opaque, space) = match pointwise::expression(self.graph, node) {
            Ok(p) => (None, Some((p.spec.sizes.clone(), p.spec.device))),
            Err(why) => (Some(why), None),
        };
        let mut needs = BitSet::default();
        for &g in &operands {
            needs.insert(g);
            needs.extend(&self.groups[g].needs);
        }
        // Calls with effects keep their order among each other.
        if !node.effects.removable()
            && let Some(before) = *last_effect
        {
            needs.insert(before);
            needs.extend(&self.groups[before].needs);
        }
        let mut reads: Vec<ValueId> = Vec::new();
        if opaque.is_none() {
            node.for_each_use(|v| reads.push(v));
        }
        if node.effects.mutates {
            self.stretch += 1;
        }
        let stretch = self.stretch;
        if node.effects.mutates {
            self.stretch += 1;
        }
        let own = self.groups.len();
        self.groups.push(Group { nodes: vec![id], opaque, space, stretch, needs, reads });
        self.of.push(own);
        if !node.effects.removable() {
            *last_effect = Some(own);
        }
        self.join(id, own, operands);
    }

    fn operand_groups(&self, node: &Node) -> Vec<usize> {
        let mut out = Vec::new();
        node.for_each_use(|v: ValueId| {
            if let Def::Node(n) = self.graph.values[v].def {
                let g = self.of[n.index()];
                if !out.contains(&g) {
                    out.push(g);
                }
            }
        });
        out
    }

    /// Joins the new group with the groups of its operands where that is allowed.
    fn join(&mut self, id: NodeId, own: usize, operands: Vec<usize>) {
        let mut into = own;
        for g in operands {
            if g == into {
                continue;
            }
            match self.refuse(into, g) {
                None => into = self.merge(into, g),
                // A break is worth telling only where two pointwise nodes could have met, or one met an opaque one.
                Some(reason) => {
                    // An opaque group is one node.
                    let behind = self.groups[into].opaque.is_none() && self.groups[g].opaque.is_some();
                    let node = if behind { self.groups[g].nodes[0] } else { id };
                    let target = self.graph.nodes[node].target.name();
                    if !self.breaks.iter().any(|b| b.node == node && b.reason == reason) {
                        self.breaks.push(Break { node, target, reason, backward: false });
                    }
                }
            }
        }
    }

    fn refuse(&self, a: usize, b: usize) -> Option<BreakReason> {
        let (x, y) = (&self.groups[a], &self.groups[b]);
        if let Some(why) = x.opaque.clone().or_else(|| y.opaque.clone()) {
            return Some(BreakReason::NotPointwise(why));
        }
        let (Some((xs, xd)), Some((ys, yd))) = (&x.space, &y.space) else {
            return Some(BreakReason::NotConvex);
        };
        if xd != yd {
            return Some(BreakReason::Device { from: *yd, to: *xd });
        }
        if xs != ys {
            return Some(BreakReason::Shape { from: ys.clone(), to: xs.clone() });
        }
        if x.stretch != y.stretch {
            return Some(BreakReason::Write);
        }
        if x.nodes.len() + y.nodes.len() > MAX_NODES || self.joint_reads(x, y).len() > MAX_READS {
            return Some(BreakReason::TooLarge);
        }
        // Convex: no group outside needs one of the two and is needed by the other.
        let needed_by_either = |h: usize| x.needs.contains(h) || y.needs.contains(h);
        let between = |h: usize| {
            h != a
                && h != b
                && needed_by_either(h)
                && (self.groups[h].needs.contains(a) || self.groups[h].needs.contains(b))
        };
        (0..self.groups.len()).any(between).then_some(BreakReason::NotConvex)
    }

    /// What two groups would read from outside if they were one.
    fn joint_reads(&self, x: &Group, y: &Group) -> Vec<ValueId> {
        let inside = |v: &ValueId| match self.graph.values[*v].def {
            Def::Node(n) => x.nodes.binary_search(&n).is_ok() || y.nodes.binary_search(&n).is_ok(),
            Def::Input(_) => false,
        };
        let mut reads: Vec<ValueId> =
            x.reads.iter().chain(&y.reads).copied().filter(|v| !inside(v)).collect();
        reads.sort_unstable();
        reads.dedup();
        reads
    }

    /// Puts group `a` into `b`; later groups that need one now need both.
    fn merge(&mut self, a: usize, b: usize) -> usize {
        let (from, to) = (a.max(b), a.min(b));
        let reads = self.joint_reads(&self.groups[from], &self.groups[to]);
        let taken = std::mem::take(&mut self.groups[from].nodes);
        let needs = std::mem::take(&mut self.groups[from].needs);
        let group = &mut self.groups[to];
        for n in &taken {
            self.of[n.index()] = to;
        }
        group.nodes.extend(taken);
        group.nodes.sort_unstable();
        group.needs.extend(&needs);
        group.needs.remove(to);
        group.needs.remove(from);
        group.reads = reads;
        let all = group.needs.clone();
        // Whatever needs one of the two came after the older one.
        for g in to + 1..self.groups.len() {
            let needs = &mut self.groups[g].needs;
            if g != to && (needs.contains(from) || needs.contains(to)) {
                needs.remove(from);
                needs.insert(to);
                needs.extend(&all);
            }
        }
        to
    }

    /// What each group needs directly: the groups of its operands, and the call with effects before its own.
    fn direct_needs(&self) -> Vec<Vec<usize>> {
        let mut out: Vec<Vec<usize>> = vec![Vec::new(); self.groups.len()];
        let mut last_effect: Option<usize> = None;
        for (id, node) in self.graph.nodes.iter() {
            let own = self.of[id.index()];
            let effect = if node.effects.removable() { None } else { last_effect.replace(own) };
            out[own].extend(self.operand_groups(node).into_iter().chain(effect).filter(|&g| g != own));
        }
        for needs in &mut out {
            needs.sort_unstable();
            needs.dedup();
        }
        out
    }

    /// Groups in an order that respects needs and stretches, otherwise as the nodes came.
    fn order(&self) -> Vec<usize> {
        let needs = self.direct_needs();
        let mut missing: Vec<usize> = needs.iter().map(Vec::len).collect();
        let mut dependants: Vec<Vec<usize>> = vec![Vec::new(); self.groups.len()];
        for (g, needs) in needs.iter().enumerate() {
            needs.iter().for_each(|&d| dependants[d].push(g));
        }
        let key = |g: usize| Reverse((self.groups[g].stretch, self.groups[g].nodes[0], g));
        let alive = (0..self.groups.len()).filter(|&g| !self.groups[g].nodes.is_empty());
        let mut ready: BinaryHeap<_> = alive.filter(|&g| missing[g] == 0).map(key).collect();
        let mut out = Vec::new();
        while let Some(Reverse((_, _, g))) = ready.pop() {
            out.push(g);
            for &d in &dependants[g] {
                missing[d] -= 1;
                if missing[d] == 0 {
                    ready.push(key(d));
                }
            }
        }
        out
    }
}

/// A growing set of small integers.
#[derive(Clone, Default)]
struct BitSet(Vec<u64>);

impl BitSet {
    fn insert(&mut self, i: usize) {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn remove(&mut self, i: usize) {
        if let Some(word) = self.0.get_mut(i / 64) {
            *word &= !(1 << (i % 64));
        }
    }

    fn contains(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w & 1 << (i % 64) != 0)
    }

    fn extend(&mut self, other: &BitSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }
}
