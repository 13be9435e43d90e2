//! Dead-code removal: a call goes when nobody uses its results and its effects allow it. One that gave a number stays:
//! the function was captured with that number, which only a run can confirm. So does one that shows a symbolic size,
//! where a literal or a check needs the symbol.

use super::Removed;
use super::rewrite::Rewrite;
use super::sizes::Sizes;
use crate::control::for_each_operand;
use crate::entity::Entity;
use crate::ir::Graph;

pub fn run(graph: &Graph) -> (Graph, Vec<Removed>) {
    let mut used = vec![false; graph.values.len()];
    graph.for_each_output_value(|v| used[v.index()] = true);
    let mut rewrite = Rewrite::new(graph);
    let mut sizes = Sizes::of(graph);
    for (id, node) in graph.nodes.iter().rev() {
        let live = !node.effects.removable()
            || graph.has_known(node)
            || node.defined().any(|v| used[v.index()])
            || sizes.is_needed_from(id);
        if live {
            for_each_operand(node, &mut |o| sizes.need(graph, o));
            node.for_each_use(|v| used[v.index()] = true);
        } else {
            rewrite.drop_node(id);
        }
    }
    let removed: Vec<Removed> = rewrite.dropped().map(|n| Removed::of(graph, n, "dead code")).collect();
    if removed.is_empty() { (graph.clone(), removed) } else { (rewrite.finish(), removed) }
}
