//! Constant folding: a call that reads only literals, results of such calls, and of other tensors no more than shape and
//! dtype (the tag `like`), gives the same bits in every run. It runs
//! once, now, by the very kernel that a run would have called, and what comes of it becomes an input of kind `constant`
//! that the graph's owner holds. Exact by construction: nothing here calculates.
//!
//! A result stays a call where somebody could tell: it is returned or written to (each run hands out a new tensor), a
//! kernel that is not the library's own reads it (it may keep it, or look who it is), its sizes are known in runs alone,
//! or it is large.

use super::rewrite::Rewrite;
use super::{Memory, Removed, own_kernel};
use crate::args::{ArgSource, source};
use crate::entity::{Entity, ValueId};
use crate::ir::{Graph, Node, Output};
use crate::native::fits;
use smallvec::SmallVec;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::state::KeyGuard;
use tp_dispatch::{Arg, DispatchKey, Effects, KeySet, OpHandle, Rets, Value, dispatcher};
use tp_tensor::symbols;
use tp_tensor::{Tensor, TensorSpec};

/// A result of more bytes is not computed ahead, nor are more than so many of them kept.
const MAX_BYTES: i64 = 64 << 10;
const MAX_BYTES_OF_ALL: i64 = 1 << 20;

/// A graph whose constants are inputs.
pub struct Folded {
    pub graph: Graph,
    /// The tensors behind the inputs of kind `constant`, in order.
    pub constants: Vec<Tensor>,
    pub removed: Vec<Removed>,
}

pub fn run(graph: &Graph) -> Folded {
    let mut found = Constants::of(graph);
    for node in graph.nodes.values() {
        found.compute(node);
    }
    let needed = found.needed();
    let mut rewrite = Rewrite::new(graph);
    let mut constants = Vec::new();
    for (id, node) in graph.nodes.iter().filter(|(_, n)| found.goes(n, &needed)) {
        rewrite.drop_node(id);
        for v in node.defined().filter(|v| needed[v.index()]) {
            rewrite.constant(v, name(graph, constants.len()));
            constants.extend(found.values[v.index()].clone());
        }
    }
    let removed: Vec<Removed> = rewrite.dropped().map(|n| Removed::of(graph, n, "constant")).collect();
    let graph = if removed.is_empty() { graph.clone() } else { rewrite.finish() };
    Folded { graph, constants, removed }
}

/// A name that no input has.
fn name(graph: &Graph, number: usize) -> String {
    let taken = |name: &String| graph.inputs.iter().any(|i| *i.name == **name);
    let mut name = format!("constant{number}");
    while taken(&name) {
        name.push('_');
    }
    name
}

struct Constants<'g> {
    graph: &'g Graph,
    memory: Memory,
    /// What is known of each value.
    values: Vec<Option<Tensor>>,
    bytes: i64,
}

impl<'g> Constants<'g> {
    fn of(graph: &'g Graph) -> Constants<'g> {
        let values = vec![None; graph.values.len()];
        Constants { graph, memory: Memory::of(graph), values, bytes: 0 }
    }

    /// Runs the node if all it reads is known.
    fn compute(&mut self, node: &Node) {
        if let Some(results) = self.results(node) {
            for (v, t) in results {
                self.bytes += t.nbytes() as i64;
                self.values[v.index()] = Some(t);
            }
        }
    }

    fn results(&self, node: &Node) -> Option<SmallVec<[(ValueId, Tensor); 1]>> {
        let graph = self.graph;
        let (op, def) = own_kernel(node)?;
        let written = node.defined().any(|v| self.memory.is_written(v));
        if node.effects != Effects::PURE || written || node.outputs.is_empty() {
            return None;
        }
        let bytes = node.defined().map(|v| graph.spec(v).and_then(bytes)).sum::<Option<i64>>()?;
        if bytes > MAX_BYTES || self.bytes + bytes > MAX_BYTES_OF_ALL {
            return None;
        }
        let like = def.tags.iter().any(|t| &**t == "like");
        let values: SmallVec<[Value; 4]> = node
            .inputs
            .iter()
            .zip(&def.params.all)
            .map(|(o, p)| match source(o, p).ok()? {
                ArgSource::Value(v) if like => stand_in(graph.spec(v)?).map(Value::Tensor),
                known => self.argument(known),
            })
            .collect::<Option<_>>()?;
        let rets = call(op, &values)?;
        let mut out = SmallVec::new();
        for (output, value) in node.outputs.iter().zip(rets) {
            let tensors = match (output, value) {
                (Output::Value(_), Value::Tensor(t)) => vec![t],
                (Output::List(_), Value::Tensors(ts)) => ts.to_vec(),
                _ => return None,
            };
            out.extend(output.values().iter().copied().zip(tensors));
        }
        let is_as_promised =
            |(v, t): &(ValueId, Tensor)| graph.spec(*v).is_some_and(|spec| fits(t, spec)) && !t.is_fake();
        (out.len() == node.defined().count() && out.iter().all(is_as_promised)).then_some(out)
    }

    fn argument(&self, source: ArgSource) -> Option<Value> {
        let known = |v: &ValueId| self.values[v.index()].clone();
        Some(match source {
            ArgSource::Value(v) => Value::Tensor(known(&v)?),
            ArgSource::Values(vs) => Value::Tensors(vs.iter().map(known).collect::<Option<_>>()?),
            ArgSource::Optional(vs) => {
                let item = |v: &Option<ValueId>| match v {
                    Some(v) => known(v).map(Some),
                    None => Some(None),
                };
                Value::OptTensors(vs.iter().map(item).collect::<Option<_>>()?)
            }
            ArgSource::Literal(value) => numbers(&self.graph.symbols, value)?,
        })
    }

    /// Whether the value may be one tensor in all runs.
    fn may_stay(&self, v: ValueId) -> bool {
        self.values[v.index()].is_some() && !self.memory.escapes(v) && !self.memory.is_shown(v)
    }

    /// A view of a constant that is read stays a call: a constant has memory of its own.
    fn goes(&self, node: &Node, needed: &[bool]) -> bool {
        let is_own = |v: ValueId| {
            let own = self.graph.values[v].alias.is_none();
            own && self.values[v.index()].as_ref().is_some_and(Tensor::is_contiguous)
        };
        !node.outputs.is_empty()
            && node.defined().all(|v| self.may_stay(v) && (is_own(v) || !needed[v.index()]))
    }

    /// The values that calls which stay read.
    fn needed(&self) -> Vec<bool> {
        let mut needed = vec![false; self.graph.values.len()];
        self.graph.for_each_output_value(|v| needed[v.index()] = true);
        for node in self.graph.nodes.values().rev() {
            if !self.goes(node, &needed) {
                node.for_each_use(|v| needed[v.index()] = true);
            }
        }
        needed
    }
}

/// A tensor of that shape, dtype and device, whatever its elements and strides, in the memory of one element.
fn stand_in(spec: &TensorSpec) -> Option<Tensor> {
    bytes(spec)?;
    let one = Tensor::empty(&[], spec.dtype, spec.device).ok()?;
    one.view(&one.layout().expand(&spec.sizes).ok()?).ok()
}

/// The bytes of a tensor on the CPU whose sizes are known.
fn bytes(spec: &TensorSpec) -> Option<i64> {
    let known = spec.device.is_cpu() && !symbols::any(&spec.sizes) && !symbols::any(&spec.strides);
    let elements = || spec.sizes.iter().try_fold(1i64, |n, size| n.checked_mul(*size));
    known.then(elements).flatten()?.checked_mul(spec.dtype.itemsize() as i64)
}

/// A literal whose numbers are no sizes of a run.
fn numbers(table: &std::sync::Arc<symbols::Symbols>, value: Value) -> Option<Value> {
    let _table = symbols::enter(table.clone());
    Some(match value {
        Value::Int(v) => Value::Int(symbols::number(v)?),
        Value::Ints(vs) => Value::Ints(vs.iter().map(|&v| symbols::number(v)).collect::<Option<_>>()?),
        known => known,
    })
}

/// Calls the kernel below all layers. What it refuses is left for the run to refuse.
fn call(op: OpHandle, values: &[Value]) -> Option<Rets> {
    let layers = !KeySet::BACKENDS | DispatchKey::Meta.set();
    let _keys = KeyGuard::new(KeySet::EMPTY, layers);
    let args: SmallVec<[Arg<'_>; 8]> = values.iter().map(Value::as_arg).collect();
    let mut rets = Rets::new();
    dispatcher::call(op, &args, HostArgs::NONE, &mut rets).is_ok().then_some(rets)
}
