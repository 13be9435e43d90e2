//! Building graphs: inputs first, then nodes in the order in which they run. The builder keeps ids dense; whether
//! the graph means anything is the verifier's business.

use crate::entity::{NodeId, ValueId};
use crate::ir::{Alias, Def, Graph, Input, InputKind, Node, Operand, Output, Target, ValueData, ValueType};
use smallvec::SmallVec;
use std::sync::Arc;
use tp_dispatch::host::Location;
use tp_dispatch::{Effects, Phase};
use tp_tensor::symbols::Symbols;

/// A value about to be defined.
#[derive(Clone, Debug)]
pub struct NewValue {
    pub ty: ValueType,
    pub alias: Option<Alias>,
}

/// What one declared return of a new node gives.
#[derive(Clone, Debug)]
pub enum NewOutput {
    Value(NewValue),
    List(Vec<NewValue>),
}

/// All of a node but its outputs.
#[derive(Clone, Debug)]
pub struct NewNode {
    pub target: Target,
    pub inputs: SmallVec<[Operand; 4]>,
    pub blocks: Vec<Graph>,
    pub effects: Effects,
    pub location: Option<Location>,
    pub phase: Phase,
}

#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    pub fn new() -> GraphBuilder {
        GraphBuilder::default()
    }

    /// A builder of a graph over the symbols of another.
    pub fn over(symbols: Arc<Symbols>) -> GraphBuilder {
        GraphBuilder { graph: Graph { symbols, ..Graph::default() } }
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    pub fn input(
        &mut self,
        name: impl Into<Arc<str>>,
        kind: InputKind,
        ty: ValueType,
        alias: Option<Alias>,
    ) -> ValueId {
        let def = Def::Input(self.graph.inputs.len() as u32);
        let value = self.graph.values.push(ValueData { ty, def, alias });
        self.graph.inputs.push(Input { value, name: name.into(), kind });
        value
    }

    pub fn node(&mut self, new: NewNode, outputs: SmallVec<[NewOutput; 1]>) -> NodeId {
        let id = self.graph.nodes.next_id();
        let values = &mut self.graph.values;
        let mut define =
            |new: NewValue| values.push(ValueData { ty: new.ty, def: Def::Node(id), alias: new.alias });
        let outputs = outputs
            .into_iter()
            .map(|o| match o {
                NewOutput::Value(v) => Output::Value(define(v)),
                NewOutput::List(vs) => Output::List(vs.into_iter().map(&mut define).collect()),
            })
            .collect();
        let NewNode { target, inputs, blocks, effects, location, phase } = new;
        self.graph.nodes.push(Node { target, inputs, outputs, blocks, effects, location, phase })
    }

    pub fn finish(mut self, outputs: Vec<Operand>) -> Graph {
        self.graph.outputs = outputs;
        self.graph
    }
}
