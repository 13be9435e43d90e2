//! Common-subexpression removal: two calls of one op with equal operands become one, when the op is pure and
//! deterministic, nothing wrote to an operand in between, nobody writes to either result, and the function does not
//! hand out both.

use super::rewrite::Rewrite;
use super::sizes::Sizes;
use super::{Memory, Removed};
use crate::entity::{Entity, NodeId, ValueId};
use crate::ir::{Graph, Node, Operand};
use smallvec::SmallVec;
use std::collections::HashMap;
use tp_dispatch::OpId;

/// What makes two calls equal: op, operands, and how often each operand's storage had been written to.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    op: OpId,
    inputs: SmallVec<[Operand; 4]>,
    writes: SmallVec<[u32; 4]>,
}

pub fn run(graph: &Graph) -> (Graph, Vec<Removed>) {
    let mut memory = Memory::of(graph);
    let mut rewrite = Rewrite::new(graph);
    let mut seen: HashMap<Key, NodeId> = HashMap::new();
    let mut writes = vec![0u32; graph.values.len()];
    let sizes = Sizes::of(graph);
    for (id, node) in graph.nodes.iter() {
        // Two calls that show fresh sizes have a symbol each, which stays in other types and literals.
        if !sizes.shows(id)
            && let Some(key) = key_of(node, &rewrite, &memory, &writes)
        {
            match seen.get(&key) {
                Some(&first) if may_merge(graph, &graph.nodes[first], node, &memory) => {
                    for (old, new) in node.defined().zip(graph.nodes[first].defined()) {
                        if memory.escapes(old) {
                            memory.set_escapes(new);
                        }
                        rewrite.replace(old, new);
                    }
                    rewrite.drop_node(id);
                }
                Some(_) => {}
                None => drop(seen.insert(key, id)),
            }
        }
        for v in node.written() {
            writes[memory.root(v).index()] += 1;
        }
    }
    let removed: Vec<Removed> =
        rewrite.dropped().map(|n| Removed::of(graph, n, "common subexpression")).collect();
    if removed.is_empty() { (graph.clone(), removed) } else { (rewrite.finish(), removed) }
}

fn key_of(node: &Node, rewrite: &Rewrite<'_>, memory: &Memory, writes: &[u32]) -> Option<Key> {
    if !node.effects.mergeable() {
        return None;
    }
    let op = node.target.op()?.id();
    let inputs: SmallVec<[Operand; 4]> =
        node.inputs.iter().map(|o| o.map_values(|v| rewrite.resolve(v))).collect();
    let mut at = SmallVec::new();
    for operand in &inputs {
        operand.for_each_value(|v| at.push(writes[memory.root(v).index()]));
    }
    Some(Key { op, inputs, writes: at })
}

fn may_merge(graph: &Graph, first: &Node, second: &Node, memory: &Memory) -> bool {
    let pairs: SmallVec<[(ValueId, ValueId); 2]> = first.defined().zip(second.defined()).collect();
    first.defined().count() == second.defined().count()
        && pairs.iter().all(|&(a, b)| {
            let kept_apart = memory.escapes(a) && memory.escapes(b);
            graph.values[a].ty == graph.values[b].ty
                && !memory.is_written(a)
                && !memory.is_written(b)
                && !kept_apart
        })
}
