//! Passes: graph in, graph out, and a list of what went. Each one asks a node's declared effects and the alias facts
//! of its values; the name of an op never decides. Passes change no bit of any result, and no two tensors that the
//! function returns become one.

pub mod blocks;
pub mod canonicalize;
pub mod cse;
pub mod dce;
pub mod fold;
mod identity;
pub mod layout;
pub mod partition;
mod rewrite;
pub(crate) mod sizes;

pub(crate) use rewrite::Rewrite;

use crate::backend::NATIVE;
use crate::entity::{Entity, ValueId};
use crate::ir::{Graph, Node};
use std::sync::Arc;
use tp_dispatch::host::Location;
use tp_dispatch::{DispatchKey, OpDef, OpHandle};

/// A call that a pass dropped.
#[derive(Clone, PartialEq, Debug)]
pub struct Removed {
    pub target: String,
    pub pass: &'static str,
    pub location: Option<Location>,
}

impl Removed {
    fn of(graph: &Graph, node: crate::NodeId, pass: &'static str) -> Removed {
        let node = &graph.nodes[node];
        Removed { target: node.target.name(), pass, location: node.location.clone() }
    }
}

/// Every pass, in order, once.
pub fn simplify(graph: &Graph) -> (Graph, Vec<Removed>) {
    let _table = tp_tensor::symbols::enter(graph.symbols.clone());
    let (graph, mut removed) = canonicalize::run(graph);
    let (graph, views) = layout::run(&graph);
    let (graph, merged) = cse::run(&graph);
    let (graph, dead) = dce::run(&graph);
    removed.extend(views);
    removed.extend(merged);
    removed.extend(dead);
    if graph.nodes.values().all(|n| n.blocks.is_empty()) {
        return (graph, removed);
    }
    let (graph, inside) = blocks::run(&graph);
    let (graph, dead) = dce::run(&graph);
    removed.extend(inside);
    removed.extend(dead);
    (graph, removed)
}

/// The op of a call that no kernel but the library's own can run on the CPU.
pub(crate) fn own_kernel(node: &Node) -> Option<(OpHandle, Arc<OpDef>)> {
    let op = node.target.op()?;
    let def = op.def()?;
    let native = || op.kernels().iter().all(|k| &*k.provenance.executor == NATIVE);
    (!def.custom && op.runs_own_kernel(&def, DispatchKey::Cpu) && native()).then_some((op, def))
}

/// Which storages a graph writes to, which it hands out, and which kernels of the user's see; all by the value that owns
/// the storage.
pub(crate) struct Memory {
    roots: Vec<ValueId>,
    written: Vec<bool>,
    escapes: Vec<bool>,
    shown: Vec<bool>,
}

impl Memory {
    pub fn of(graph: &Graph) -> Memory {
        let n = graph.values.len();
        // Facts point backwards, so one pass in order finds every root.
        let mut roots: Vec<ValueId> = Vec::with_capacity(n);
        for (v, data) in graph.values.iter() {
            roots.push(data.alias.map_or(v, |a| roots.get(a.of().index()).copied().unwrap_or(v)));
        }
        let mut memory =
            Memory { roots, written: vec![false; n], escapes: vec![false; n], shown: vec![false; n] };
        for node in graph.nodes.values() {
            if own_kernel(node).is_none() {
                node.for_each_use(|v| {
                    let root = memory.root(v);
                    memory.shown[root.index()] = true;
                });
            }
            for v in node.written() {
                let root = memory.root(v);
                memory.written[root.index()] = true;
            }
        }
        graph.for_each_output_value(|v| {
            let root = memory.root(v);
            memory.escapes[root.index()] = true;
        });
        memory
    }

    pub fn root(&self, v: ValueId) -> ValueId {
        self.roots[v.index()]
    }

    pub fn is_written(&self, v: ValueId) -> bool {
        self.written[self.root(v).index()]
    }

    pub fn escapes(&self, v: ValueId) -> bool {
        self.escapes[self.root(v).index()]
    }

    /// Whether a kernel that is not the library's own reads it: one may keep what it is given, or ask which tensor it is.
    pub fn is_shown(&self, v: ValueId) -> bool {
        self.shown[self.root(v).index()]
    }

    pub fn set_escapes(&mut self, v: ValueId) {
        let root = self.root(v);
        self.escapes[root.index()] = true;
    }
}
