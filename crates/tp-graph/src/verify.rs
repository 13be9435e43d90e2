//! The verifier. This is the specification of a well-formed graph; every rule has the short name that its
//! violations carry.
//!
//! Structure
//! - `def-numbering`: values are numbered in the order of their definitions: inputs first, then the results of each
//!   node in order; each value's `def` names the input or node that lists it.
//! - `def-before-use`: a node reads only values that an input or an earlier node defines; so do the outputs.
//! - `tensor-operand`: a value that is read is a tensor.
//! - `input-names`: inputs have distinct, non-empty names.
//!
//! Calls
//! - `registered`: the target is a defined op.
//! - `arity`: one operand per schema argument.
//! - `argument-kind`: each operand fits its argument: a value where a tensor is expected, a literal of the right kind
//!   elsewhere, None only where the schema allows it.
//! - `results`: as many results as the schema declares; a list exactly where it declares a list of tensors, a tensor
//!   exactly where it declares one.
//! - `effects`: the node's effects are those of its op.
//! - `constant`: no node writes to a constant.
//!
//! Types
//! - `fake-rule`: where the op's fake rule is native code, running it over the operands' types gives the types of the
//!   results: dtype, sizes, strides, device.
//!
//! Sizes
//! - `size-known`: every symbol is declared, and a symbol in a literal was shown before: it is in the type of an input or
//!   of an earlier result. A backward graph, whose inputs are saved values and gradients, knows the sizes of the forward's
//!   inputs.
//!
//! Aliases
//! - `alias-order`: an alias fact names an earlier value, which is a tensor.
//! - `alias-type`: a value that is the same tensor as another has its type; a view has its device.
//! - `alias-declared`: a result shares memory with an operand only if the schema says so.
//!
//! Control flow
//! - `blocks`: a node of control flow holds its blocks, over the symbols of this graph; a call holds none.
//! - `control-operands`: `cond` takes a bool of one element and a list of tensors; `while_loop` two lists of tensors. The
//!   results are one list.
//! - `block-types`: each block takes tensors of the types of the operands. Those of a `cond` both give the types of the
//!   results; the `cond` of a loop gives one bool of one element, and its `body` what is carried, as are the results.
//! - `block-writes`: no call in a block writes to memory of an input of the block.
//!
//! The effects of such a node are those of all calls in its blocks, writes apart. Every rule holds in each block too;
//! sizes that were shown before the node are known there.
//!
//! All violations are collected; none stops the search.

use crate::args::{ArgSource, source};
use crate::entity::{Entity, NodeId, ValueId};
use crate::ir::{Alias, Def, Graph, InputKind, Node, Output, ValueType};
use crate::passes::sizes::for_each_symbol;
use crate::text::NodeText;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::fmt;
use tp_dispatch::host::Location;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::schema::ArgType;
use tp_dispatch::{Arg, Call, Error, FakeRule, KeySet, OpDef, OpHandle, Result, Value, fake};
use tp_tensor::{Dim, Tensor, TensorSpec, symbols};

/// One broken rule.
#[derive(Clone, PartialEq, Debug)]
pub struct Violation {
    pub rule: &'static str,
    pub node: Option<NodeId>,
    pub value: Option<ValueId>,
    pub message: String,
    pub location: Option<Location>,
    /// The node as the text form prints it.
    pub text: Option<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.rule)?;
        match (self.node, self.value) {
            (Some(n), _) => write!(f, "{n}: ")?,
            (None, Some(v)) => write!(f, "{v}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.message)?;
        if let Some(text) = &self.text {
            write!(f, "\n    {text}")?;
        }
        Ok(())
    }
}

impl Graph {
    /// Every violation of the rules above.
    pub fn verify(&self) -> Vec<Violation> {
        self.verify_with(HashSet::new())
    }

    /// The same, where these symbols are known already.
    pub(crate) fn verify_with(&self, shown: HashSet<u32>) -> Vec<Violation> {
        let _table = symbols::enter(self.symbols.clone());
        let mut v = Verifier { graph: self, found: Vec::new(), node: None, shown };
        v.inputs();
        v.numbering();
        self.inputs.iter().for_each(|input| v.shows(input.value));
        // A backward begins with the sizes that its forward found.
        if self.inputs.iter().any(|i| matches!(i.kind, InputKind::Saved | InputKind::Gradient)) {
            v.shown.extend(0..self.symbols.inputs().len() as u32);
        }
        for (id, node) in self.nodes.iter() {
            v.node = Some(id);
            v.uses(id, node);
            match node.target.control() {
                Some(control) => v.control(control, node),
                None => v.call(node),
            }
            v.sizes(node);
            v.aliases(node);
            v.writes(node);
        }
        v.node = None;
        v.outputs();
        v.found
    }

    /// An error that lists every violation, if there is one.
    pub fn check(&self) -> Result<()> {
        let found = self.verify();
        let Some(first) = found.first() else { return Ok(()) };
        let more = found.len() - 1;
        let tail = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        let error = Error::graph("TP5002", format!("the graph breaks a rule: {first}{tail}"));
        Err(found.iter().skip(1).fold(error, |e, v| e.note(v.to_string())))
    }
}

pub(crate) struct Verifier<'a> {
    pub graph: &'a Graph,
    pub found: Vec<Violation>,
    pub node: Option<NodeId>,
    /// Symbols that the types of inputs and earlier results show.
    pub shown: HashSet<u32>,
}

impl<'a> Verifier<'a> {
    pub fn report(&mut self, rule: &'static str, value: Option<ValueId>, message: String) {
        let node = self.node.and_then(|n| self.graph.nodes.get(n));
        let text = node.map(|node| NodeText { graph: self.graph, node }.to_string());
        let location = node.and_then(|n| n.location.clone());
        self.found.push(Violation { rule, node: self.node, value, message, location, text });
    }

    fn inputs(&mut self) {
        let mut names = HashSet::new();
        for input in &self.graph.inputs {
            let inner = input.kind == InputKind::Saved || input.kind == InputKind::Gradient;
            if input.name.is_empty() && !inner {
                self.report("input-names", Some(input.value), "an input has no name".to_string());
            } else if !names.insert(&input.name) {
                self.report(
                    "input-names",
                    Some(input.value),
                    format!("two inputs are called {:?}", input.name),
                );
            }
        }
    }

    /// The order in which the graph lists its definitions.
    fn numbering(&mut self) {
        let graph = self.graph;
        let inputs = graph.inputs.iter().enumerate().map(|(i, input)| (input.value, Def::Input(i as u32)));
        let nodes = graph.nodes.iter().flat_map(|(id, n)| n.defined().map(move |v| (v, Def::Node(id))));
        let mut expected = 0usize;
        for (value, def) in inputs.chain(nodes) {
            if value.index() != expected {
                self.report(
                    "def-numbering",
                    Some(value),
                    format!("{value} is defined where %{expected} comes next"),
                );
            }
            match graph.values.get(value) {
                None => self.report("def-numbering", Some(value), format!("{value} does not exist")),
                Some(data) if data.def != def => {
                    self.report(
                        "def-numbering",
                        Some(value),
                        format!("{value} says that {} defines it", data.def),
                    );
                }
                Some(_) => {}
            }
            expected += 1;
        }
        if expected != graph.values.len() {
            let message = format!("{expected} values are defined, {} exist", graph.values.len());
            self.report("def-numbering", None, message);
        }
    }

    fn uses(&mut self, id: NodeId, node: &Node) {
        let mut used: SmallVec<[ValueId; 4]> = SmallVec::new();
        node.for_each_use(|v| used.push(v));
        for v in used {
            let earlier = self.graph.values.get(v).is_some_and(|data| match data.def {
                Def::Input(_) => true,
                Def::Node(at) => at < id,
            });
            self.check_use(v, earlier);
        }
    }

    fn check_use(&mut self, v: ValueId, defined: bool) {
        if !defined {
            self.report("def-before-use", Some(v), format!("{v} is read before it is defined"));
        } else if self.graph.spec(v).is_none() {
            self.report("tensor-operand", Some(v), format!("{v} is read, but it is no tensor"));
        }
    }

    fn outputs(&mut self) {
        let mut used: SmallVec<[ValueId; 4]> = SmallVec::new();
        self.graph.for_each_output_value(|v| used.push(v));
        for v in used {
            self.check_use(v, self.graph.values.contains(v));
        }
    }

    fn call(&mut self, node: &Node) {
        let name = node.target.name();
        let Some((op, def)) = node.target.op().and_then(|op| op.def().map(|d| (op, d))) else {
            self.report("registered", None, format!("{name} is not registered"));
            return;
        };
        if !node.blocks.is_empty() {
            self.report("blocks", None, format!("{name} is a call, and holds graphs"));
        }
        if node.effects != def.effects {
            let message = format!("the node says {}, {name} is {}", node.effects, def.effects);
            self.report("effects", None, message);
        }
        let fits = self.results(node, &def);
        if node.inputs.len() != def.params.len() {
            let message = format!(
                "{name} takes {}, got {}",
                tp_tensor::counted(def.params.len(), "argument"),
                node.inputs.len()
            );
            self.report("arity", None, message);
            return;
        }
        let mut sources: Vec<ArgSource> = Vec::with_capacity(node.inputs.len());
        for (operand, param) in node.inputs.iter().zip(&def.params.all) {
            match source(operand, param) {
                Ok(s) => sources.push(s),
                Err(message) => self.report("argument-kind", None, message),
            }
        }
        if fits && sources.len() == node.inputs.len() {
            self.types(node, op, &def, &sources);
        }
    }

    fn results(&mut self, node: &Node, def: &OpDef) -> bool {
        let declared = def.schema.returns();
        let before = self.found.len();
        if declared.len() != node.outputs.len() {
            let message = format!(
                "the schema declares {}, the node has {}",
                tp_tensor::counted(declared.len(), "result"),
                node.outputs.len()
            );
            self.report("results", None, message);
            return false;
        }
        for (i, (ret, output)) in declared.iter().zip(&node.outputs).enumerate() {
            let tensors = output.values().iter().all(|v| self.graph.spec(*v).is_some());
            let fits = match (ret.ty(), output) {
                (ArgType::Tensor, Output::Value(_)) => tensors,
                (ArgType::Tuple(items), Output::List(vs)) => {
                    tensors && vs.len() == items.len() && items.iter().all(|t| *t == ArgType::Tensor)
                }
                (ty, Output::List(_)) => tensors && ty.as_list().is_some_and(|(e, _)| *e == ArgType::Tensor),
                (ty, Output::Value(_)) => !tensors || matches!(ty, ArgType::Any) || ty.is_optional(),
            };
            if !fits {
                self.report("results", None, format!("result {i} does not fit the declared {}", ret.ty()));
            }
            let aliased =
                output.values().iter().any(|v| self.graph.values.get(*v).is_some_and(|d| d.alias.is_some()));
            if aliased && ret.alias().is_none() {
                let message =
                    format!("result {i} shares memory with an operand, the schema declares a new tensor");
                self.report("alias-declared", None, message);
            }
        }
        self.found.len() == before
    }

    /// Runs a native fake rule over the operands' types and compares.
    fn types(&mut self, node: &Node, op: OpHandle, def: &std::sync::Arc<OpDef>, sources: &[ArgSource]) {
        if !matches!(def.fake, FakeRule::Fn(_)) {
            return;
        }
        let Some(values) = sources.iter().map(|s| self.fake_argument(s)).collect::<Option<Vec<Value>>>()
        else {
            return;
        };
        let args: SmallVec<[Arg<'_>; 8]> = values.iter().map(Value::as_arg).collect();
        let call = Call { op, def, args: &args, keys: KeySet::EMPTY, host: HostArgs::NONE, table: None };
        // The rule may ask for sizes that depend on data: not for the graph.
        let table = self.graph.symbols.fork();
        let _table = symbols::enter(table.clone());
        let rets = match fake::materialize_fakes(&call, &mut || 0) {
            Ok(rets) => rets,
            Err(e) => {
                return self.report("fake-rule", None, format!("the fake rule refuses the operands: {e}"));
            }
        };
        let mut predicted: Vec<Option<TensorSpec>> = Vec::new();
        for value in &rets {
            match value {
                Value::Tensor(t) => predicted.push(Some(TensorSpec::of(t))),
                Value::Tensors(ts) => predicted.extend(ts.iter().map(|t| Some(TensorSpec::of(t)))),
                _ => predicted.push(None),
            }
        }
        for (v, want) in node.defined().zip(&predicted) {
            if let (Some(got), Some(want)) = (self.graph.spec(v), want)
                && !self.agrees(got, want, &table)
            {
                let message = format!("{v} is {got}, the fake rule of {} gives {want}", node.target.name());
                self.report("fake-rule", Some(v), message);
            }
        }
    }

    /// Whether a value is what its rule predicts, where a size that only data tells is any of the declared range.
    fn agrees(&self, got: &TensorSpec, want: &TensorSpec, table: &symbols::Symbols) -> bool {
        let is_fresh =
            |d: i64| Dim::from_raw(d).as_unbacked().is_some_and(|u| u as usize >= self.graph.symbols.len());
        if !want.sizes.iter().copied().any(is_fresh) {
            return got == want;
        }
        let range = |d: i64| table.poly(Dim::from_raw(d)).map(|poly| table.declared_range(&poly));
        let fits = |(&got, &want): (&i64, &i64)| {
            if is_fresh(want) { range(got) == range(want) } else { got == want }
        };
        let strides =
            got.strides.len() == want.strides.len() && got.strides.iter().zip(&want.strides).all(fits);
        strides
            && (got.dtype, got.device, got.sizes.len()) == (want.dtype, want.device, want.sizes.len())
            && got.sizes.iter().zip(&want.sizes).all(fits)
    }

    fn fake_argument(&self, source: &ArgSource) -> Option<Value> {
        let fake = |v: ValueId| {
            let spec = self.graph.spec(v)?;
            Tensor::fake(&spec.sizes, &spec.strides, spec.dtype, spec.device, 0).ok()
        };
        Some(match source {
            ArgSource::Literal(value) => value.clone(),
            ArgSource::Value(v) => Value::Tensor(fake(*v)?),
            ArgSource::Values(vs) => Value::Tensors(vs.iter().map(|v| fake(*v)).collect::<Option<_>>()?),
            ArgSource::Optional(vs) => {
                let item = |v: &Option<ValueId>| match v {
                    Some(v) => fake(*v).map(Some),
                    None => Some(None),
                };
                Value::OptTensors(vs.iter().map(item).collect::<Option<_>>()?)
            }
        })
    }

    fn sizes(&mut self, node: &Node) {
        let mut hidden = None;
        for operand in &node.inputs {
            for_each_symbol(self.graph, operand, &mut |id| {
                hidden = hidden.or((!self.shown.contains(&id)).then_some(id));
            });
        }
        if let Some(id) = hidden {
            let message = format!("{} stands in a literal, but no type before shows it", Dim::symbol(id));
            self.report("size-known", None, message);
        }
        node.defined().for_each(|v| self.shows(v));
    }

    fn shows(&mut self, v: ValueId) {
        let Some(spec) = self.graph.spec(v) else { return };
        for &raw in spec.sizes.iter().filter(|&&d| Dim::from_raw(d).is_symbol()) {
            let Some(poly) = self.graph.symbols.poly(Dim::from_raw(raw)) else { continue };
            let mut stray = None;
            poly.for_each_symbol(&mut |id| {
                self.shown.insert(id);
                let declared = match Dim::symbol(id).as_unbacked() {
                    Some(u) => (u as usize) < self.graph.symbols.len(),
                    None => (id as usize) < self.graph.symbols.inputs().len(),
                };
                stray = stray.or((!declared).then_some(id));
            });
            if let Some(id) = stray {
                let message = format!("{} is not declared", Dim::symbol(id));
                self.report("size-known", Some(v), message);
            }
        }
    }

    fn writes(&mut self, node: &Node) {
        let graph = self.graph;
        for v in node.written() {
            let root = graph.root(v);
            if graph.inputs.iter().any(|i| i.value == root && i.kind == InputKind::Constant) {
                self.report("constant", Some(v), format!("{v} is written to, and {root} is a constant"));
            }
        }
    }

    fn aliases(&mut self, node: &Node) {
        for v in node.defined() {
            let Some((ty, alias)) = self.graph.values.get(v).and_then(|d| d.alias.map(|a| (&d.ty, a))) else {
                continue;
            };
            let of = alias.of();
            if of >= v || self.graph.spec(of).is_none() {
                self.report("alias-order", Some(v), format!("{v} aliases {of}, which is no earlier tensor"));
                continue;
            }
            let fits = match (alias, ty, self.graph.spec(of)) {
                (Alias::Same(_), ValueType::Tensor(spec), Some(base)) => spec == base,
                (_, ValueType::Tensor(spec), Some(base)) => spec.device == base.device,
                _ => false,
            };
            if !fits {
                self.report("alias-type", Some(v), format!("{v} aliases {of}, but their types do not agree"));
            }
        }
    }
}
