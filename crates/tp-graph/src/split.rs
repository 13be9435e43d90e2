//! Splitting a joint graph: the forward graph gives the function's outputs and the values that the backward needs;
//! the backward graph takes those and the gradients of the outputs. Each saved value is saved once; inputs and
//! outputs of the function are referred to, not copied. What the backward makes again instead is `recompute`'s to say.

use crate::builder::{GraphBuilder, NewNode, NewOutput, NewValue};
use crate::entity::{Entity, NodeId, ValueId};
use crate::ir::{Graph, InputKind, Node, Operand, Output, Target, ValueType};
use crate::passes::dce;
use crate::recompute;
use smallvec::{SmallVec, smallvec};
use std::fmt;
use tp_dispatch::{Effects, Error, Phase, Registry, Result};
use tp_tensor::{TensorSpec, counted};

pub(crate) struct Split {
    pub forward: Graph,
    pub backward: Graph,
    /// For each `Saved` input of the backward graph, where the forward run finds it.
    pub saved: Vec<SavedFrom>,
    pub kept: Kept,
}

/// What the backward keeps alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    pub values: usize,
    pub bytes: u64,
    /// What would be kept if nothing was made again.
    pub bytes_of_all: u64,
    /// Calls of the forward that the backward makes again.
    pub again: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SavedFrom {
    /// An input of the forward graph.
    Input(u32),
    /// An output of the forward graph, one of the function's own or one added for this.
    Output(u32),
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kept { values, bytes, bytes_of_all, again } = *self;
        write!(f, "kept for the backward: {} of {bytes} bytes", counted(values, "value"))?;
        if again > 0 {
            write!(f, "; it makes {} again, or {bytes_of_all} bytes would be kept", counted(again, "call"))?;
        }
        Ok(())
    }
}

/// Splits `joint`, whose first `returned` outputs are the function's.
pub(crate) fn run(joint: &Graph, returned: usize) -> Result<Split> {
    split(joint, returned, false)
}

/// The same, where no view is saved: the backward makes it again from what it is a view of.
pub(crate) fn without_views(joint: &Graph, returned: usize) -> Result<Split> {
    split(joint, returned, true)
}

fn split(joint: &Graph, returned: usize, again: bool) -> Result<Split> {
    let is_backward = |n: &Node| n.phase == Phase::Backward;
    let (outputs, gradients) = joint.outputs.split_at(returned);
    let made_by_forward = made_by_forward(joint);
    let mut needed = vec![false; joint.values.len()];
    for node in joint.nodes.values() {
        if is_backward(node) {
            node.for_each_use(|v| needed[v.index()] = true);
        }
    }
    gradients.iter().for_each(|o| o.for_each_value(|v| needed[v.index()] = true));
    needed.iter_mut().zip(&made_by_forward).for_each(|(needed, made)| *needed &= made);
    let views = if again { views(joint, &mut needed) } else { Vec::new() };
    let choice = recompute::choose(joint, &needed, outputs);

    let mut forward = Part::new(joint);
    for input in joint.inputs.iter().filter(|i| i.kind != InputKind::Gradient) {
        forward.input(input.value, &input.name, input.kind);
    }
    for node in joint.nodes.values().filter(|n| !is_backward(n)) {
        forward.node(node)?;
    }
    let mut results: Vec<Operand> = outputs.to_vec();
    let mut saved_values: Vec<ValueId> = Vec::new();
    let mut saved: Vec<SavedFrom> = Vec::new();
    for v in joint.values.ids().filter(|v| choice.kept[v.index()]) {
        let input = joint.inputs.iter().filter(|i| i.kind != InputKind::Gradient).position(|i| i.value == v);
        let output = results.iter().position(|o| *o == Operand::Value(v));
        saved.push(match (input, output) {
            (Some(i), _) => SavedFrom::Input(i as u32),
            (None, Some(i)) => SavedFrom::Output(i as u32),
            (None, None) => {
                results.push(Operand::Value(v));
                SavedFrom::Output(results.len() as u32 - 1)
            }
        });
        saved_values.push(v);
    }
    let mut forward = forward.finish(&results)?;
    if !choice.again.is_empty() {
        // A call that only the backward needs is made there alone.
        forward = dce::run(&forward).0;
    }

    let mut backward = Part::new(joint);
    for v in &saved_values {
        let name = joint
            .inputs
            .iter()
            .find(|i| i.value == *v)
            .map_or_else(|| format!("saved{}", v.0), |i| i.name.to_string());
        backward.input(*v, &name, InputKind::Saved);
    }
    for input in joint.inputs.iter().filter(|i| i.kind == InputKind::Gradient) {
        backward.input(input.value, &input.name, InputKind::Gradient);
    }
    let mut again = [choice.again.as_slice(), views.as_slice()].concat();
    again.sort_unstable();
    again.dedup();
    for id in again {
        backward.node(&joint.nodes[id])?;
    }
    for node in joint.nodes.values().filter(|n| is_backward(n)) {
        backward.node(node)?;
    }
    let kept = Kept {
        values: saved.len(),
        bytes: choice.bytes,
        bytes_of_all: choice.bytes_of_all,
        again: choice.again.len(),
    };
    let mut backward = backward.finish(gradients)?;
    let ids: Vec<NodeId> = backward.nodes.ids().collect();
    ids.into_iter().for_each(|id| backward.nodes[id].phase = Phase::Backward);
    Ok(Split { forward, backward, saved, kept })
}

/// Calls of the forward that make a needed view, in order; what they are views of is needed instead.
fn views(joint: &Graph, needed: &mut [bool]) -> Vec<NodeId> {
    let mut out = Vec::new();
    for (id, node) in joint.nodes.iter().rev().filter(|(_, n)| n.phase == Phase::Forward) {
        let is_view = node.effects == Effects::PURE
            && node.defined().all(|v| joint.values[v].alias.is_some())
            && node.defined().any(|v| needed[v.index()]);
        if is_view {
            node.defined().for_each(|v| needed[v.index()] = false);
            node.for_each_use(|v| needed[v.index()] = true);
            out.push(id);
        }
    }
    out.reverse();
    out
}

/// Values that exist once the forward is done.
fn made_by_forward(joint: &Graph) -> Vec<bool> {
    let mut made = vec![false; joint.values.len()];
    for input in joint.inputs.iter().filter(|i| i.kind != InputKind::Gradient) {
        made[input.value.index()] = true;
    }
    for node in joint.nodes.values().filter(|n| n.phase == Phase::Forward) {
        node.defined().for_each(|v| made[v.index()] = true);
    }
    made
}

/// One of the two graphs under construction.
pub(crate) struct Part<'g> {
    joint: &'g Graph,
    builder: GraphBuilder,
    ids: Vec<Option<ValueId>>,
}

impl<'g> Part<'g> {
    pub fn new(joint: &'g Graph) -> Part<'g> {
        Part {
            joint,
            builder: GraphBuilder::over(joint.symbols.clone()),
            ids: vec![None; joint.values.len()],
        }
    }

    pub fn input(&mut self, v: ValueId, name: &str, kind: InputKind) {
        let data = &self.joint.values[v];
        // A saved view need not come with its base; what matters then is that nothing here writes to either.
        let base = data.alias.and_then(|a| self.ids[a.of().index()].map(|v| a.map(|_| v)));
        self.ids[v.index()] = Some(self.builder.input(name, kind, data.ty.clone(), base));
    }

    /// An input that is none of the joint graph.
    pub fn stranger(&mut self, name: &str, spec: &TensorSpec) {
        self.builder.input(name, InputKind::Argument, ValueType::Tensor(spec.clone()), None);
    }

    /// Appends a call of an op, which the joint graph does not have, that makes a tensor of that type.
    pub fn made(&mut self, op: &str, inputs: Vec<Operand>, spec: &TensorSpec) -> Result<Operand> {
        let op = Registry::global().lookup(op)?;
        let new = NewNode {
            target: Target::Op(op),
            inputs: inputs.into(),
            blocks: Vec::new(),
            effects: op.def().map_or(Effects::PURE, |d| d.effects),
            location: None,
            phase: Phase::Forward,
        };
        let value = NewValue { ty: ValueType::Tensor(spec.clone()), alias: None };
        let node = self.builder.node(new, smallvec![NewOutput::Value(value)]);
        let made = self.builder.graph().nodes[node].defined().next();
        made.map(Operand::Value).ok_or_else(|| Error::internal("TP9104", format!("{op} gave nothing")))
    }

    pub fn node(&mut self, node: &Node) -> Result<()> {
        let mut inputs: SmallVec<[Operand; 4]> = SmallVec::new();
        for operand in &node.inputs {
            inputs.push(self.operand(operand)?);
        }
        let value = |v: ValueId| {
            let data = &self.joint.values[v];
            let alias = data.alias.and_then(|a| self.ids[a.of().index()].map(|v| a.map(|_| v)));
            NewValue { ty: data.ty.clone(), alias }
        };
        let outputs: SmallVec<[NewOutput; 1]> = node
            .outputs
            .iter()
            .map(|o| match o {
                Output::Value(v) => NewOutput::Value(value(*v)),
                Output::List(vs) => NewOutput::List(vs.iter().map(|v| value(*v)).collect()),
            })
            .collect();
        let Node { target, blocks, effects, location, phase, .. } = node.clone();
        let new = self.builder.node(NewNode { target, inputs, blocks, effects, location, phase }, outputs);
        let defined: SmallVec<[ValueId; 2]> = self.builder.graph().nodes[new].defined().collect();
        for (old, new) in node.defined().zip(defined) {
            self.ids[old.index()] = Some(new);
        }
        Ok(())
    }

    pub fn operand(&self, operand: &Operand) -> Result<Operand> {
        let mut missing = None;
        operand.for_each_value(|v| {
            if self.ids[v.index()].is_none() {
                missing = Some(v);
            }
        });
        if let Some(v) = missing {
            return Err(Error::internal(
                "TP9104",
                format!("the forward graph would need {v}, which the backward makes"),
            ));
        }
        Ok(operand.map_values(|v| self.ids[v.index()].unwrap_or(v)))
    }

    /// The graph with outputs found before.
    pub fn close(self, outputs: Vec<Operand>) -> Graph {
        self.builder.finish(outputs)
    }

    pub fn finish(self, outputs: &[Operand]) -> Result<Graph> {
        let outputs = outputs.iter().map(|o| self.operand(o)).collect::<Result<Vec<Operand>>>()?;
        Ok(self.builder.finish(outputs))
    }
}
