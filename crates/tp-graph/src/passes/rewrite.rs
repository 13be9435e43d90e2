//! Rebuilding a graph without some of its nodes and with some values replaced: by earlier ones, or by inputs. Ids stay
//! dense.

use crate::builder::{GraphBuilder, NewNode, NewOutput, NewValue};
use crate::entity::{Entity, NodeId, ValueId};
use crate::ir::{Graph, InputKind, Operand, Output, Target};
use smallvec::{SmallVec, smallvec};
use tp_dispatch::host::Location;
use tp_dispatch::{Effects, OpHandle, Phase};

/// What to change: nodes to leave out, and for a value the earlier value that takes its place.
pub(crate) struct Rewrite<'g> {
    graph: &'g Graph,
    drop: Vec<bool>,
    replace: Vec<Option<ValueId>>,
    omit: Vec<bool>,
    /// Values that become inputs behind the graph's own, and their names.
    constants: Vec<(ValueId, String)>,
    /// Inputs of which a call in front makes a copy, for all who read them, and where that is.
    copies: Vec<(ValueId, OpHandle, Option<Location>)>,
    /// Nodes that read another value in place of an operand.
    operands: Vec<(NodeId, ValueId, ValueId)>,
}

impl<'g> Rewrite<'g> {
    pub fn new(graph: &'g Graph) -> Rewrite<'g> {
        let (nodes, values) = (graph.nodes.len(), graph.values.len());
        Rewrite {
            graph,
            drop: vec![false; nodes],
            replace: vec![None; values],
            omit: vec![false; values],
            constants: Vec::new(),
            copies: Vec::new(),
            operands: Vec::new(),
        }
    }

    pub fn drop_node(&mut self, node: NodeId) {
        self.drop[node.index()] = true;
    }

    /// Leaves out an input, or one of a list of results: nobody reads it.
    pub fn omit(&mut self, value: ValueId) {
        self.omit[value.index()] = true;
    }

    /// `by` is defined before `value`.
    pub fn replace(&mut self, value: ValueId, by: ValueId) {
        self.replace[value.index()] = Some(by);
    }

    /// `value`, whose node is left out, is an input of kind `Constant`.
    pub fn constant(&mut self, value: ValueId, name: String) {
        self.constants.push((value, name));
    }

    /// Whoever reads the input gets what `op` makes of it, which is of its type and of its own memory.
    pub fn copy(&mut self, input: ValueId, op: OpHandle, at: Option<Location>) {
        self.copies.push((input, op, at));
    }

    /// `node` reads `by`, which is defined before it, in place of its operand `old`, and its results are views of it where
    /// they were of `old`.
    pub fn operand(&mut self, node: NodeId, old: ValueId, by: ValueId) {
        self.operands.push((node, old, by));
    }

    pub fn has_operands(&self) -> bool {
        !self.operands.is_empty()
    }

    /// The value that stands for `value` after the replacements.
    pub fn resolve(&self, value: ValueId) -> ValueId {
        let mut at = value;
        while let Some(by) = self.replace[at.index()] {
            at = by;
        }
        at
    }

    pub fn dropped(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.graph.nodes.ids().filter(|n| self.drop[n.index()])
    }

    pub fn finish(&self) -> Graph {
        let graph = self.graph;
        let mut builder = GraphBuilder::over(graph.symbols.clone());
        // New ids by old ids; what was dropped is never asked for.
        let mut ids: Vec<ValueId> = graph.values.ids().collect();
        for input in graph.inputs.iter().filter(|i| !self.omit[i.value.index()]) {
            let data = &graph.values[input.value];
            let alias = data.alias.map(|a| a.map(|v| ids[v.index()]));
            ids[input.value.index()] = builder.input(input.name.clone(), input.kind, data.ty.clone(), alias);
        }
        for (value, name) in &self.constants {
            let ty = graph.values[*value].ty.clone();
            ids[value.index()] = builder.input(name.as_str(), InputKind::Constant, ty, None);
        }
        for (value, op, location) in &self.copies {
            let copied = NewValue { ty: graph.values[*value].ty.clone(), alias: None };
            let new = NewNode {
                target: Target::Op(*op),
                inputs: smallvec![Operand::Value(ids[value.index()])],
                blocks: Vec::new(),
                effects: Effects::PURE,
                location: location.clone(),
                phase: Phase::Forward,
            };
            let new = builder.node(new, smallvec![NewOutput::Value(copied)]);
            let made: Option<ValueId> = builder.graph().nodes[new].defined().next();
            ids[value.index()] = made.unwrap_or(ids[value.index()]);
        }
        for (id, node) in graph.nodes.iter() {
            if self.drop[id.index()] {
                continue;
            }
            let read = |v: ValueId| {
                let other = self.operands.iter().find(|(node, old, _)| *node == id && *old == v);
                other.map_or(v, |(_, _, by)| *by)
            };
            let rename = |v: ValueId| ids[self.resolve(read(v)).index()];
            let value = |v: ValueId| {
                let data = &graph.values[v];
                NewValue { ty: data.ty.clone(), alias: data.alias.map(|a| a.map(rename)) }
            };
            let outputs: SmallVec<[NewOutput; 1]> = node
                .outputs
                .iter()
                .map(|o| match o {
                    Output::Value(v) => NewOutput::Value(value(*v)),
                    Output::List(vs) => NewOutput::List(
                        vs.iter().filter(|v| !self.omit[v.index()]).map(|v| value(*v)).collect(),
                    ),
                })
                .collect();
            let new = NewNode {
                target: node.target.clone(),
                inputs: node.inputs.iter().map(|o| o.map_values(rename)).collect(),
                blocks: node.blocks.clone(),
                effects: node.effects,
                location: node.location.clone(),
                phase: node.phase,
            };
            let new = builder.node(new, outputs);
            let defined: SmallVec<[ValueId; 2]> = builder.graph().nodes[new].defined().collect();
            for (old, new) in node.defined().filter(|v| !self.omit[v.index()]).zip(defined) {
                ids[old.index()] = new;
            }
        }
        let outputs = graph.outputs.iter().map(|o| o.map_values(|v| ids[self.resolve(v).index()])).collect();
        builder.finish(outputs)
    }
}
