//! Views that lead back: a view that lies where an earlier one of the same memory lies, element for element (a transpose
//! of a transpose, a reshape there and back, `contiguous` of what is), gives way to that one; a view of a view that the op
//! would make of the first in the same way (an expand of an expand, a reshape of a reshape) is made of the first. Where
//! views lie their ops' fake rules say. Nothing is copied or computed, so nothing changes but how many headers there are.
//!
//! What is returned stays a tensor of its own, and so does what a kernel of the user's is given. Sizes that are known in
//! runs alone are left as they are.

use super::rewrite::Rewrite;
use super::{Memory, Removed, own_kernel};
use crate::args::{ArgSource, source};
use crate::entity::{Entity, NodeId, ValueId};
use crate::ir::{Alias, Def, Graph, Node, Output};
use smallvec::SmallVec;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, Call, Effects, FakeRule, KeySet, Value, fake};
use tp_tensor::Tensor;

pub fn run(graph: &Graph) -> (Graph, Vec<Removed>) {
    let unchanged = || (graph.clone(), Vec::new());
    let is_view = |n: &Node| n.defined().any(|v| graph.values[v].alias.is_some());
    if !graph.symbols.is_empty() || !graph.nodes.values().any(is_view) {
        return unchanged();
    }
    let mut views = Views::of(graph);
    let mut rewrite = Rewrite::new(graph);
    for (id, node) in graph.nodes.iter() {
        views.node(id, node, &mut rewrite);
    }
    let removed: Vec<Removed> = rewrite.dropped().map(|n| Removed::of(graph, n, "view")).collect();
    if removed.is_empty() && !rewrite.has_operands() { unchanged() } else { (rewrite.finish(), removed) }
}

struct Views<'g> {
    graph: &'g Graph,
    memory: Memory,
    /// By value: it is returned itself.
    returned: Vec<bool>,
    /// A tensor without data that lies where the value does; views share the storage of what they are views of.
    fakes: Vec<Option<Tensor>>,
}

impl<'g> Views<'g> {
    fn of(graph: &'g Graph) -> Views<'g> {
        let mut returned = vec![false; graph.values.len()];
        graph.for_each_output_value(|v| returned[v.index()] = true);
        let fakes = graph.values.ids().map(|v| match graph.values[v].alias {
            None => fresh(graph, v),
            // How inputs that share memory lie in it is not known.
            Some(_) => None,
        });
        Views { graph, memory: Memory::of(graph), returned, fakes: fakes.collect() }
    }

    fn node(&mut self, id: NodeId, node: &Node, rewrite: &mut Rewrite<'_>) {
        let &[Output::Value(result)] = node.outputs.as_slice() else { return };
        let Some(alias) = self.graph.values[result].alias else { return };
        // A kernel of the user's may return another view than the rule says, which the run has to find out.
        if node.effects != Effects::PURE || own_kernel(node).is_none() {
            return;
        }
        let of = rewrite.resolve(alias.of());
        self.fakes[result.index()] = self.view(node, alias.of(), of);
        let is_told = self.memory.is_shown(result) || self.returned[result.index()];
        if matches!(alias, Alias::Same(_)) && !is_told {
            rewrite.replace(result, of);
            rewrite.drop_node(id);
            return;
        }
        let Some(own) = &self.fakes[result.index()] else { return };
        let chain: SmallVec<[ValueId; 4]> = self.bases(of, rewrite);
        let lies_there = |v: &&ValueId| {
            let other = self.fakes[v.index()].as_ref();
            other.is_some_and(|other| is_like(own, other)) && self.graph.spec(**v) == self.graph.spec(result)
        };
        if let Some(&earlier) = chain.iter().find(lies_there)
            && !is_told
        {
            rewrite.replace(result, earlier);
            rewrite.drop_node(id);
            return;
        }
        let made_alike = |v: &&ValueId| self.view(node, alias.of(), **v).is_some_and(|t| is_like(own, &t));
        if let Some(&first) = chain.iter().skip(1).rev().find(made_alike) {
            rewrite.operand(id, alias.of(), first);
        }
    }

    /// The value and what it is a view of, and so on.
    fn bases(&self, from: ValueId, rewrite: &Rewrite<'_>) -> SmallVec<[ValueId; 4]> {
        let mut chain: SmallVec<[ValueId; 4]> = SmallVec::new();
        let mut at = from;
        loop {
            chain.push(at);
            match (self.graph.values[at].def, self.graph.values[at].alias) {
                (Def::Node(_), Some(alias)) if alias.of() < at => at = rewrite.resolve(alias.of()),
                _ => return chain,
            }
        }
    }

    /// Where the result of `node` lies, were it made of `base` in place of its operand `of`; None where that is no view.
    fn view(&self, node: &Node, of: ValueId, base: ValueId) -> Option<Tensor> {
        let op = node.target.op()?;
        let def = op.def()?;
        if !matches!(def.fake, FakeRule::Fn(_)) {
            return None;
        }
        let fake_of = |v: ValueId| self.fakes[if v == of { base } else { v }.index()].clone();
        let argument = |source: ArgSource| match source {
            ArgSource::Value(v) => fake_of(v).map(Value::Tensor),
            ArgSource::Literal(value) => Some(value),
            ArgSource::Values(_) | ArgSource::Optional(_) => None,
        };
        let values: SmallVec<[Value; 4]> = node
            .inputs
            .iter()
            .zip(&def.params.all)
            .map(|(o, p)| argument(source(o, p).ok()?))
            .collect::<Option<_>>()?;
        let args: SmallVec<[Arg<'_>; 8]> = values.iter().map(Value::as_arg).collect();
        let call =
            Call { op, def: &def, args: &args, keys: KeySet::EMPTY, host: HostArgs::NONE, table: None };
        let made = fake::materialize_fakes(&call, &mut || 0).ok()?;
        let t = made.into_iter().next()?.into_tensor()?;
        t.shares_storage(self.fakes[base.index()].as_ref()?).then_some(t)
    }
}

fn fresh(graph: &Graph, v: ValueId) -> Option<Tensor> {
    let spec = graph.spec(v)?;
    Tensor::fake(&spec.sizes, &spec.strides, spec.dtype, spec.device, 0).ok()
}

fn is_like(a: &Tensor, b: &Tensor) -> bool {
    a.dtype() == b.dtype() && a.layout() == b.layout() && a.shares_storage(b)
}
