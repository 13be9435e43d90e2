//! Passes inside of blocks: each block is a graph, and is simplified as one. What nobody uses of a `cond` is no result any
//! more, and what no block reads is no operand, so that the calls that made it can go in turn. Nodes are gone through from
//! the last on: what one does not read, an earlier one need not give.

use super::{Removed, Rewrite, simplify};
use crate::control::{self, Control};
use crate::entity::{Entity, NodeId, ValueId};
use crate::ir::{Graph, Node, Operand, Output};

/// Simplifies every block, and takes out what is not used of the nodes that hold them.
pub fn run(graph: &Graph) -> (Graph, Vec<Removed>) {
    let mut removed = Vec::new();
    let mut out = graph.clone();
    let mut used = vec![false; graph.values.len()];
    graph.for_each_output_value(|v| used[v.index()] = true);
    let mut unused: Vec<ValueId> = Vec::new();
    let ids: Vec<NodeId> = graph.nodes.ids().collect();
    for id in ids.into_iter().rev() {
        let node = &mut out.nodes[id];
        if let Some(control) = node.target.control() {
            if control == Control::Cond {
                drop_results(node, &used, &mut unused);
            }
            for block in &mut node.blocks {
                let (simpler, went) = simplify(block);
                *block = simpler;
                removed.extend(went);
            }
            drop_operands(node);
            node.effects = control::effects(&node.blocks);
        }
        node.for_each_use(|v| used[v.index()] = true);
    }
    if unused.is_empty() {
        return (out, removed);
    }
    let mut rewrite = Rewrite::new(&out);
    unused.into_iter().for_each(|v| rewrite.omit(v));
    (rewrite.finish(), removed)
}

/// Takes the outputs that nobody uses out of both blocks, and notes the results.
fn drop_results(node: &mut Node, used: &[bool], unused: &mut Vec<ValueId>) {
    let Node { outputs, blocks, .. } = node;
    let Some(Output::List(results)) = outputs.first() else { return };
    unused.extend(results.iter().filter(|v| !used[v.index()]));
    for block in blocks {
        let mut keep = results.iter().map(|v| used[v.index()]);
        block.outputs.retain(|_| keep.next().unwrap_or(true));
    }
}

/// Takes out the operands that no block reads; what a loop carries stays.
fn drop_operands(node: &mut Node) {
    let read: Vec<Vec<bool>> = node.blocks.iter().map(reads).collect();
    let Some(Operand::List(operands)) = node.inputs.last() else { return };
    // Carried values stand before these.
    let before = read.first().map_or(0, Vec::len).saturating_sub(operands.len());
    let is_read = |i: usize| read.iter().any(|r| r.get(i).copied().unwrap_or(true));
    if (0..operands.len()).all(|i| is_read(before + i)) {
        return;
    }
    let kept: Box<[Operand]> = operands
        .iter()
        .enumerate()
        .filter(|(i, _)| is_read(before + i))
        .map(|(_, operand)| operand.clone())
        .collect();
    for block in &mut node.blocks {
        let mut rewrite = Rewrite::new(block);
        let inputs = block.inputs.iter().enumerate();
        inputs.filter(|(i, _)| *i >= before && !is_read(*i)).for_each(|(_, input)| rewrite.omit(input.value));
        let smaller = rewrite.finish();
        *block = smaller;
    }
    if let Some(last) = node.inputs.last_mut() {
        *last = Operand::List(kept);
    }
}

/// Which inputs of a block are read.
fn reads(block: &Graph) -> Vec<bool> {
    let mut used = vec![false; block.values.len()];
    block.nodes.values().for_each(|node| node.for_each_use(|v| used[v.index()] = true));
    block.for_each_output_value(|v| used[v.index()] = true);
    block.inputs.iter().map(|input| used[input.value.index()]).collect()
}
