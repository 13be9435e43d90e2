//! Control flow under capture: each branch is run once over tensors without data and becomes a block; the capture around
//! them gets one node, which takes what the branches read. Where a result requires a gradient, the tape's own backward
//! runs inside of each branch too, so that the node's gradient is a node of the same kind (`control_gradient`).

use super::branches::{BranchScope, current, lost};
use super::control_gradient;
use super::{Recorder, watch};
use crate::builder::{NewNode, NewOutput, NewValue};
use crate::control::{self, Control};
use crate::entity::{Entity, ValueId};
use crate::ir::{Const, Graph, InputKind, Operand, Target, ValueType};
use crate::passes;
use crate::split;
use smallvec::smallvec;
use std::fmt;
use tp_dispatch::{Arg, Phase, Registry, Result, call_one, host, state};
use tp_tensor::symbols::Symbols;
use tp_tensor::{Dim, Tensor, TensorSpec};

/// Runs a branch over the tensors that stand for what a loop carries; gives its results.
pub type BranchFn<'a> = dyn FnMut(&[Tensor]) -> Result<Vec<Tensor>> + 'a;

/// What a branch is, for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    True,
    False,
    Condition,
    Body,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::True => "true_fn of cond",
            Role::False => "false_fn of cond",
            Role::Condition => "cond_fn of while_loop",
            Role::Body => "body_fn of while_loop",
        })
    }
}

/// A value of the capture around a branch, the tensors by which the branch had it, and where the branch's graph has it.
pub(super) struct Read {
    pub value: ValueId,
    pub tensors: Vec<Tensor>,
    pub input: usize,
}

/// A branch as a graph: what it returns, and then its gradients by `by`, in order.
pub(super) struct Branch {
    pub graph: Graph,
    pub reads: Vec<Read>,
    pub results: Vec<TensorSpec>,
    /// Which results require a gradient.
    pub differentiable: Vec<bool>,
    /// Which results the graph takes gradients of, in the order of its inputs for them.
    pub tangents: Vec<usize>,
    /// Tensors from outside that require a gradient, and whether this branch has one for each.
    pub by: Vec<(Tensor, bool)>,
}

/// A choice between two branches, each of which is called once; gives its results.
///
/// The error is TP4302 where the branches differ in what they return; `names` are those of the results.
pub fn cond(
    pred: &Tensor,
    names: &dyn Fn(usize) -> String,
    branches: [&mut BranchFn<'_>; 2],
) -> Result<Vec<Tensor>> {
    let known = current()?.borrow().symbols().len() as u32;
    let [yes, no] = branches;
    let mut yes = capture(Role::True, &[], yes)?;
    let mut no = capture(Role::False, &[], no)?;
    compare(&yes, &no, names)?;
    for (a, b) in yes.differentiable.iter_mut().zip(&mut no.differentiable) {
        *a |= *b;
        *b = *a;
    }
    let union = Union::of(&[&yes, &no]);
    if !yes.differentiable.contains(&true) {
        let blocks = vec![union.block(&yes.graph, &yes.reads, &[])?, union.block(&no.graph, &no.reads, &[])?];
        return emit(Control::Cond, vec![operand(pred)?, union.operands()], blocks, &yes.results);
    }
    control_gradient::cond(pred, &union, [yes, no], known)
}

/// The loop over `carried`: its results, of the types of what was put in.
pub fn while_loop(
    carried: &[Tensor],
    condition: &mut BranchFn<'_>,
    body: &mut BranchFn<'_>,
) -> Result<Vec<Tensor>> {
    let carried = carried.iter().map(contiguous).collect::<Result<Vec<Tensor>>>()?;
    let cond = capture(Role::Condition, &carried, condition)?;
    match cond.results.as_slice() {
        [spec] if control::is_truth(spec) => {}
        _ => return Err(watch::refusal("TP4301", "cond_fn of while_loop returns no bool of one element")),
    }
    let body = capture(Role::Body, &carried, body)?;
    let specs: Vec<TensorSpec> = carried.iter().map(TensorSpec::of).collect();
    if body.results != specs {
        return Err(watch::refusal(
            "TP4303",
            "body_fn of while_loop returns other shapes or dtypes than it takes",
        ));
    }
    let union = Union::of(&[&cond, &body]);
    let mut first: Vec<Operand> = Vec::new();
    for t in &carried {
        first.push(operand(t)?);
    }
    let blocks = vec![
        union.block_of_loop(&cond.graph, &cond.reads, &specs)?,
        union.block_of_loop(&body.graph, &body.reads, &specs)?,
    ];
    let inputs = vec![Operand::List(first.into()), union.operands()];
    let results = emit(Control::WhileLoop, inputs, blocks, &specs)?;
    control_gradient::refuse_loop(&carried, [&cond, &body], &results)?;
    Ok(results)
}

/// Runs one branch in a capture of its own.
fn capture(role: Role, carried: &[Tensor], f: &mut BranchFn<'_>) -> Result<Branch> {
    let scope = BranchScope::begin(role)?;
    let known = scope.recorder().symbols().len() as u32;
    let mut given: Vec<Tensor> = Vec::new();
    for (i, t) in carried.iter().enumerate() {
        let fake =
            scope.recorder().fresh_input(&TensorSpec::of(t), &format!("carried{i}"), InputKind::Argument)?;
        fake.set_requires_grad(t.requires_grad());
        given.push(fake);
    }
    let results = f(&given)?.iter().map(contiguous).collect::<Result<Vec<Tensor>>>()?;
    scope.restore_modes()?;
    let mut outputs: Vec<Operand> = Vec::new();
    for t in &results {
        outputs.push(Operand::Value(scope.recorder().operand_of(t)?));
    }
    let specs: Vec<TensorSpec> = results.iter().map(TensorSpec::of).collect();
    let symbols = scope.recorder().symbols();
    check_sizes(&symbols, role, &specs, known)?;
    let records = state::is_grad_enabled();
    let differentiable: Vec<bool> = results.iter().map(|t| records && t.requires_grad()).collect();
    let boundary = scope.recorder().builder().graph().nodes.len();
    let (mut by, mut tangents) = (Vec::new(), Vec::new());
    if matches!(role, Role::True | Role::False) && differentiable.contains(&true) {
        tangents = (0..results.len()).filter(|i| differentiable[*i]).collect();
        by = gradients(&scope, &results, &mut outputs)?;
    }
    let mut recorder = scope.recorder();
    let reached =
        recorder.around.as_mut().map(|around| std::mem::take(&mut around.reached)).ok_or_else(lost)?;
    let mut graph = recorder.take(outputs)?.graph;
    for (id, node) in graph.nodes.ids().collect::<Vec<_>>().into_iter().zip(graph.nodes.values_mut()) {
        node.phase = if id.index() < boundary { Phase::Forward } else { Phase::Backward };
    }
    let reads =
        reached.into_iter().map(|r| Read { value: r.value, tensors: r.tensors, input: r.input }).collect();
    Ok(Branch { graph: passes::simplify(&graph).0, reads, results: specs, differentiable, tangents, by })
}

/// Runs the backward of a branch's results to everything from outside that requires a gradient, under the same capture;
/// the gradients are added to the outputs.
fn gradients(
    scope: &BranchScope,
    results: &[Tensor],
    outputs: &mut Vec<Operand>,
) -> Result<Vec<(Tensor, bool)>> {
    let (mut roots, mut tangents): (Vec<Tensor>, Vec<Option<Tensor>>) = (Vec::new(), Vec::new());
    for (i, t) in results.iter().enumerate().filter(|(_, t)| t.requires_grad()) {
        let spec = TensorSpec::contiguous(t.sizes(), t.dtype(), t.device());
        tangents.push(Some(scope.recorder().fresh_input(
            &spec,
            &format!("grad_out{i}"),
            InputKind::Gradient,
        )?));
        roots.push(t.clone());
    }
    let reached: Vec<Tensor> = {
        let recorder = scope.recorder();
        let around = recorder.around.as_ref().ok_or_else(lost)?;
        around.reached.iter().flat_map(|r| r.tensors.iter().cloned()).filter(Tensor::requires_grad).collect()
    };
    let wanted = tp_autograd::distinct(reached)?;
    let found = tp_autograd::grad_up_to(&roots, &wanted, &tangents)?;
    let mut by = Vec::new();
    for (t, gradient) in wanted.into_iter().zip(found) {
        if let Some(gradient) = &gradient {
            let gradient = contiguous(gradient)?;
            outputs.push(Operand::Value(scope.recorder().operand_of(&gradient)?));
        }
        by.push((t, gradient.is_some()));
    }
    Ok(by)
}

/// A size that only the branch finds cannot be told outside of it.
fn check_sizes(symbols: &Symbols, role: Role, specs: &[TensorSpec], known: u32) -> Result<()> {
    for (i, spec) in specs.iter().enumerate() {
        if shows_new(symbols, spec, known) {
            let message =
                format!("result {i} of {role} is {spec}: its size depends on data that the branch computes");
            return Err(watch::refusal("TP4306", message)
                .note("compute what the size depends on before, or pad to a known size"));
        }
    }
    Ok(())
}

/// Whether a type names a symbol that was declared since there were `known`.
pub(super) fn shows_new(symbols: &Symbols, spec: &TensorSpec, known: u32) -> bool {
    let mut found = false;
    for &raw in spec.sizes.iter().filter(|&&d| Dim::from_raw(d).is_symbol()) {
        if let Some(poly) = symbols.poly(Dim::from_raw(raw)) {
            poly.for_each_symbol(&mut |id| {
                found |= Dim::symbol(id).as_unbacked().is_some_and(|u| u >= known)
            });
        }
    }
    found
}

fn compare(yes: &Branch, no: &Branch, names: &dyn Fn(usize) -> String) -> Result<()> {
    let (a, b) = (yes.results.len(), no.results.len());
    if a != b {
        let message = format!("true_fn of cond returns {}, false_fn {b}", tp_tensor::counted(a, "tensor"));
        return Err(watch::refusal("TP4302", message));
    }
    for (i, (a, b)) in yes.results.iter().zip(&no.results).enumerate() {
        if a != b {
            let message = format!("{} is {a} in true_fn of cond, {b} in false_fn", names(i));
            return Err(watch::refusal("TP4302", message)
                .note("both branches return tensors of the same shapes and dtypes"));
        }
    }
    Ok(())
}

/// Calls `tp::contiguous`, which gives a contiguous tensor back.
pub(super) fn contiguous(t: &Tensor) -> Result<Tensor> {
    if t.is_contiguous() {
        return Ok(t.clone());
    }
    call_one(Registry::global().lookup("tp::contiguous")?, &[Arg::Tensor(t)])
}

/// What a tensor is in the capture in progress.
pub(super) fn operand(t: &Tensor) -> Result<Operand> {
    let recorder = current()?;
    let value = recorder.borrow_mut().operand_of(t)?;
    Ok(Operand::Value(value))
}

/// Appends a node of control flow to the capture in progress; gives its results.
pub(super) fn emit(
    control: Control,
    inputs: Vec<Operand>,
    blocks: Vec<Graph>,
    specs: &[TensorSpec],
) -> Result<Vec<Tensor>> {
    let recorder = current()?;
    let mut recorder = recorder.borrow_mut();
    let mut results: Vec<Tensor> = Vec::new();
    for spec in specs {
        let id = Recorder::next_fake_id();
        results.push(Tensor::fake(&spec.sizes, &spec.strides, spec.dtype, spec.device, id)?);
    }
    let values = specs.iter().map(|s| NewValue { ty: ValueType::Tensor(s.clone()), alias: None }).collect();
    let new = NewNode {
        target: Target::Control(control),
        inputs: inputs.into(),
        effects: control::effects(&blocks),
        blocks,
        location: host::location(),
        phase: state::phase(),
    };
    let node = recorder.builder.node(new, smallvec![NewOutput::List(values)]);
    let defined: Vec<ValueId> = recorder.builder.graph().nodes[node].defined().collect();
    for (value, t) in defined.into_iter().zip(&results) {
        recorder.name(value, t);
    }
    Ok(results)
}

/// What any of several branches reads: the operands of their node.
pub(super) struct Union {
    pub values: Vec<ValueId>,
    pub tensors: Vec<Tensor>,
}

impl Union {
    pub fn of(branches: &[&Branch]) -> Union {
        let mut union = Union { values: Vec::new(), tensors: Vec::new() };
        for read in branches.iter().flat_map(|b| &b.reads) {
            if !union.values.contains(&read.value)
                && let Some(t) = read.tensors.first()
            {
                union.values.push(read.value);
                union.tensors.push(t.clone());
            }
        }
        union
    }

    pub fn operands(&self) -> Operand {
        Operand::List(self.values.iter().map(|v| Operand::Value(*v)).collect())
    }

    /// A graph whose inputs are all operands, `fill` being added to its outputs.
    pub fn block(&self, graph: &Graph, reads: &[Read], fill: &[Fill]) -> Result<Graph> {
        self.over(graph, reads, &[], fill)
    }

    /// The same behind what a loop carries.
    fn block_of_loop(&self, graph: &Graph, reads: &[Read], carried: &[TensorSpec]) -> Result<Graph> {
        self.over(graph, reads, carried, &[])
    }

    fn over(&self, graph: &Graph, reads: &[Read], carried: &[TensorSpec], fill: &[Fill]) -> Result<Graph> {
        let first = (0..carried.len()).map(|i| (format!("carried{i}"), carried[i].clone(), Some(i)));
        let rest = self.values.iter().zip(&self.tensors).enumerate().map(|(i, (value, t))| {
            let input = reads.iter().find(|r| r.value == *value).map(|r| r.input);
            (format!("x{i}"), TensorSpec::of(t), input)
        });
        let inputs: Vec<(String, TensorSpec, Option<usize>)> = first.chain(rest).collect();
        rebuilt(graph, &inputs, fill)
    }
}

/// An output of a block beside those of its graph, or in their places.
#[derive(Clone, Debug)]
pub(super) enum Fill {
    /// That output of the graph.
    Own(usize),
    /// Memory that nobody reads, where another branch has something.
    Nothing(TensorSpec),
    Zeros(TensorSpec),
}

/// The graph over other inputs: each has a name, a type, and perhaps the input of the graph that it is. Its outputs are
/// those that `fill` says, or its own where that is empty.
pub(super) fn rebuilt(
    graph: &Graph,
    inputs: &[(String, TensorSpec, Option<usize>)],
    fill: &[Fill],
) -> Result<Graph> {
    let mut part = split::Part::new(graph);
    for (name, spec, input) in inputs {
        match input.and_then(|i| graph.inputs.get(i)) {
            Some(input) => part.input(input.value, name, InputKind::Argument),
            None => part.stranger(name, spec),
        }
    }
    for node in graph.nodes.values() {
        part.node(node)?;
    }
    let mut outputs: Vec<Operand> = Vec::new();
    for one in fill {
        outputs.push(match one {
            Fill::Own(i) => part.operand(graph.outputs.get(*i).ok_or_else(lost)?)?,
            Fill::Nothing(spec) => {
                part.made("tp::empty_strided", sizes(&[&spec.sizes, &spec.strides], spec), spec)?
            }
            Fill::Zeros(spec) => part.made("tp::zeros", sizes(&[&spec.sizes], spec), spec)?,
        });
    }
    match fill.is_empty() {
        true => part.finish(&graph.outputs),
        false => Ok(part.close(outputs)),
    }
}

/// Operands of an op that makes a tensor of that type.
fn sizes(lists: &[&[i64]], spec: &TensorSpec) -> Vec<Operand> {
    let number = |&d: &i64| match Dim::from_raw(d) {
        dim if dim.is_symbol() => Operand::Const(Const::Size(dim)),
        _ => Operand::Const(Const::Int(d)),
    };
    let lists = lists.iter().map(|list| Operand::List(list.iter().map(number).collect()));
    lists
        .chain([Operand::Const(Const::DType(spec.dtype)), Operand::Const(Const::Device(spec.device))])
        .collect()
}
