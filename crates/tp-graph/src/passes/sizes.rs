//! Who shows which symbolic size: the first value whose type has a symbol is where a run finds what it stands for.

use crate::entity::NodeId;
use crate::ir::{Const, Def, Graph, Operand, ValueType};
use std::collections::{HashMap, HashSet};
use tp_tensor::Dim;
use tp_tensor::symbols::Poly;

pub(crate) struct Sizes {
    /// The node that shows each symbol; inputs show the others.
    shown_by: HashMap<u32, NodeId>,
    needed: HashSet<NodeId>,
}

/// Every symbol in an operand's numbers.
pub(crate) fn for_each_symbol(graph: &Graph, operand: &Operand, f: &mut dyn FnMut(u32)) {
    match operand {
        Operand::Const(Const::Size(v)) => symbols_of(graph, &[v.raw()], f),
        Operand::List(items) => items.iter().for_each(|item| for_each_symbol(graph, item, f)),
        Operand::Const(_) | Operand::Value(_) => {}
    }
}

fn symbols_of(graph: &Graph, raw: &[i64], f: &mut dyn FnMut(u32)) {
    for &d in raw.iter().filter(|&&d| Dim::from_raw(d).is_symbol()) {
        if let Some(poly) = graph.symbols.poly(Dim::from_raw(d)) {
            poly.for_each_symbol(f);
        }
    }
}

impl Sizes {
    pub fn of(graph: &Graph) -> Sizes {
        let mut sizes = Sizes { shown_by: HashMap::new(), needed: HashSet::new() };
        if graph.symbols.is_empty() {
            return sizes;
        }
        let mut known: HashSet<u32> = HashSet::new();
        for data in graph.values.values() {
            let ValueType::Tensor(spec) = &data.ty else { continue };
            symbols_of(graph, &spec.sizes, &mut |id| {
                if let (true, Def::Node(node)) = (known.insert(id), data.def) {
                    sizes.shown_by.insert(id, node);
                }
            });
        }
        for check in graph.symbols.checks() {
            sizes.need_poly(&check.statement.left);
            sizes.need_poly(&check.statement.right);
        }
        graph.outputs.iter().for_each(|o| sizes.need(graph, o));
        sizes
    }

    /// The numbers of `operand` will be asked for.
    pub fn need(&mut self, graph: &Graph, operand: &Operand) {
        let Sizes { shown_by, needed } = self;
        for_each_symbol(graph, operand, &mut |id| needed.extend(shown_by.get(&id).copied()));
    }

    fn need_poly(&mut self, poly: &Poly) {
        let Sizes { shown_by, needed } = self;
        poly.for_each_symbol(&mut |id| needed.extend(shown_by.get(&id).copied()));
    }

    pub fn is_needed_from(&self, node: NodeId) -> bool {
        self.needed.contains(&node)
    }

    /// Whether a run finds the value of some symbol at this node.
    pub fn shows(&self, node: NodeId) -> bool {
        self.shown_by.values().any(|n| *n == node)
    }
}
