//! The gradient of control flow under capture. A `cond` whose results require a gradient gives, besides them, what the
//! backward of each branch needs; one node of the tape has for its rule a `cond` of the branches' backwards, over the same
//! bool. What only one branch saves is memory that nobody reads in the other.

use super::branches::{current, lost};
use super::control::{Branch, Fill, Read, Union, contiguous, emit, operand, rebuilt, shows_new};
use super::watch;
use crate::control::Control;
use crate::entity::ValueId;
use crate::ir::{Graph, InputKind, Operand};
use crate::split::{self, SavedFrom, Split};
use std::sync::Arc;
use tp_autograd::{BackwardCtx, Gradients, VjpRule, record_node};
use tp_dispatch::{Arg, Error, Registry, Result, call_one, state};
use tp_tensor::{Tensor, TensorSpec};

/// One branch cut in two.
struct Half {
    split: Split,
    reads: Vec<Read>,
    tangents: Vec<usize>,
    by: Vec<(Tensor, bool)>,
}

/// A result beside the function's own: what a backward needs. Which of the outputs of each half it is.
struct Slot {
    spec: TensorSpec,
    own: [Option<usize>; 2],
}

/// What a backward takes of the forward.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// An operand, by its value.
    Read(ValueId),
    /// A result of the node.
    Result(usize),
}

/// The node of a `cond` whose results require a gradient, and its results.
pub(super) fn cond(pred: &Tensor, union: &Union, branches: [Branch; 2], known: u32) -> Result<Vec<Tensor>> {
    let [yes, no] = branches;
    let (results, differentiable) = (yes.results.clone(), yes.differentiable.clone());
    let halves = [half(yes, results.len())?, half(no, results.len())?];
    let slots = slots(&halves, results.len());
    let symbols = current()?.borrow().symbols();
    for slot in &slots {
        if shows_new(&symbols, &slot.spec, known) {
            let message =
                format!("the gradient of cond would save {}, a size that only one branch knows", slot.spec);
            return Err(watch::refusal("TP4306", message)
                .note("compute what the size depends on before, or take the gradient outside"));
        }
    }
    let mut blocks = Vec::new();
    for (k, half) in halves.iter().enumerate() {
        let mut fill: Vec<Fill> = (0..results.len()).map(Fill::Own).collect();
        fill.extend(slots.iter().map(|s| s.own[k].map_or_else(|| Fill::Nothing(s.spec.clone()), Fill::Own)));
        blocks.push(union.block(&half.split.forward, &half.reads, &fill)?);
    }
    let specs: Vec<TensorSpec> =
        results.iter().cloned().chain(slots.iter().map(|s| s.spec.clone())).collect();
    let mut all = emit(Control::Cond, vec![operand(pred)?, union.operands()], blocks, &specs)?;
    let outputs: Vec<usize> = (0..results.len()).filter(|i| differentiable[*i]).collect();
    record(pred, union, &halves, (&slots, &outputs), &all)?;
    all.truncate(results.len());
    Ok(all)
}

fn half(branch: Branch, results: usize) -> Result<Half> {
    let split = split::without_views(&branch.graph, results)?;
    // Gradients stand among the inputs of the whole, and not among those of its forward.
    let before = |i: usize| {
        let inputs = branch.graph.inputs.iter().take(i);
        inputs.filter(|input| input.kind != InputKind::Gradient).count()
    };
    let reads = branch.reads.into_iter().map(|r| Read { input: before(r.input), ..r }).collect();
    Ok(Half { split, reads, tangents: branch.tangents, by: branch.by })
}

/// A slot serves one value of each branch, of one type.
fn slots(halves: &[Half; 2], results: usize) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for (k, half) in halves.iter().enumerate() {
        let graph = &half.split.forward;
        for (i, output) in graph.outputs.iter().enumerate().skip(results) {
            let Some(spec) = output.value().and_then(|v| graph.spec(v)) else { continue };
            match slots.iter_mut().find(|s| s.own[k].is_none() && s.spec == *spec) {
                Some(slot) => slot.own[k] = Some(i),
                None => {
                    let mut own = [None; 2];
                    own[k] = Some(i);
                    slots.push(Slot { spec: spec.clone(), own });
                }
            }
        }
    }
    slots
}

/// Puts the node on the tape.
fn record(
    pred: &Tensor,
    union: &Union,
    halves: &[Half; 2],
    (slots, outputs): (&[Slot], &[usize]),
    all: &[Tensor],
) -> Result<()> {
    let results = all.len() - slots.len();
    let source = |k: usize, from: SavedFrom| match from {
        SavedFrom::Input(i) => {
            let read = halves[k].reads.iter().find(|r| r.input == i as usize);
            read.map(|r| Source::Read(r.value)).ok_or_else(lost)
        }
        SavedFrom::Output(i) if (i as usize) < results => Ok(Source::Result(i as usize)),
        SavedFrom::Output(i) => {
            let slot = slots.iter().position(|s| s.own[k] == Some(i as usize)).ok_or_else(lost)?;
            Ok(Source::Result(results + slot))
        }
    };
    let mut sources: Vec<Source> = Vec::new();
    let mut of: [Vec<Source>; 2] = [Vec::new(), Vec::new()];
    for (k, half) in halves.iter().enumerate() {
        for from in &half.split.saved {
            let source = source(k, *from)?;
            of[k].push(source);
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
    }
    let saved = |source: &Source| match source {
        Source::Result(i) => all.get(*i),
        Source::Read(v) => union.values.iter().position(|u| u == v).and_then(|i| union.tensors.get(i)),
    };
    let mut tensors: Vec<Tensor> = Vec::new();
    for one in &sources {
        tensors.push(saved(one).ok_or_else(lost)?.clone());
    }
    let wanted =
        tp_autograd::distinct(halves.iter().flat_map(|h| h.by.iter().map(|(t, _)| t.clone())).collect())?;
    let tangents: Vec<TensorSpec> = outputs.iter().map(|i| TensorSpec::of(&all[*i])).collect();
    let rule = CondBackward::new(halves, &of, (&sources, &tensors), (outputs, tangents), &wanted)?;
    let inputs: Vec<&Tensor> = wanted.iter().collect();
    let recorded: Vec<&Tensor> = outputs.iter().map(|i| &all[*i]).collect();
    record_node(Arc::new(rule), &inputs, &recorded, |saver| {
        saver.input(pred);
        for (source, t) in sources.iter().zip(&tensors) {
            let nr = match source {
                Source::Result(i) => outputs.iter().position(|o| o == i),
                Source::Read(_) => None,
            };
            match nr {
                Some(nr) => saver.output(t, nr),
                None => saver.input(t),
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// The rule of one `cond`.
struct CondBackward {
    blocks: [Graph; 2],
    /// Types of the gradients that come in, one per recorded output.
    tangents: Vec<TensorSpec>,
    /// For each input of the node, which result of the blocks its gradient is.
    gradients: Vec<Option<usize>>,
    results: Vec<TensorSpec>,
}

impl CondBackward {
    fn new(
        halves: &[Half; 2],
        of: &[Vec<Source>; 2],
        (sources, saved): (&[Source], &[Tensor]),
        (outputs, tangents): (&[usize], Vec<TensorSpec>),
        wanted: &[Tensor],
    ) -> Result<CondBackward> {
        let mut gradients: Vec<Option<usize>> = Vec::new();
        let mut results: Vec<TensorSpec> = Vec::new();
        // For each half, which of its gradients each result is.
        let mut own: [Vec<Option<usize>>; 2] = [Vec::new(), Vec::new()];
        for t in wanted {
            let found = [place(&halves[0], t)?, place(&halves[1], t)?];
            gradients.push(found.iter().any(Option::is_some).then_some(results.len()));
            if found.iter().any(Option::is_some) {
                results.push(TensorSpec::contiguous(t.sizes(), t.dtype(), t.device()));
                own.iter_mut().zip(found).for_each(|(own, found)| own.push(found));
            }
        }
        let block = |k: usize| -> Result<Graph> {
            let half = &halves[k];
            let mut inputs: Vec<(String, TensorSpec, Option<usize>)> = Vec::new();
            for (n, (source, t)) in sources.iter().zip(saved).enumerate() {
                let position = of[k].iter().position(|s| s == source);
                inputs.push((format!("saved{n}"), TensorSpec::of(t), position));
            }
            for (i, spec) in outputs.iter().zip(&tangents) {
                let position = half.tangents.iter().position(|t| t == i).map(|p| half.split.saved.len() + p);
                inputs.push((format!("grad_out{i}"), spec.clone(), position));
            }
            let zeros = |(spec, own): (&TensorSpec, &Option<usize>)| {
                own.map_or_else(|| Fill::Zeros(spec.clone()), Fill::Own)
            };
            let fill: Vec<Fill> = results.iter().zip(&own[k]).map(zeros).collect();
            rebuilt(&half.split.backward, &inputs, &fill)
        };
        Ok(CondBackward { blocks: [block(0)?, block(1)?], tangents, gradients, results })
    }
}

/// Which of the gradients of a half is that of `t`.
fn place(half: &Half, t: &Tensor) -> Result<Option<usize>> {
    let mut next = 0;
    for (other, is_there) in &half.by {
        if *is_there {
            if tp_autograd::same_edge(other, t)? {
                return Ok(Some(next));
            }
            next += 1;
        }
    }
    Ok(None)
}

impl VjpRule for CondBackward {
    fn name(&self) -> &str {
        "cond"
    }

    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        if state::is_grad_enabled() {
            let message = "a second derivative through cond in a captured function is not supported";
            return Err(Error::autograd("TP3022", message)
                .note("call the function uncompiled where create_graph=True"));
        }
        let pred = operand(&ctx.saved(0)?)?;
        let mut operands: Vec<Operand> = Vec::new();
        for k in 1..ctx.saved_count() {
            operands.push(operand(&ctx.saved(k)?)?);
        }
        for (nr, spec) in self.tangents.iter().enumerate() {
            let tangent = match grads.get(nr).and_then(Option::as_ref) {
                Some(g) => contiguous(g)?,
                None => zeros(spec)?,
            };
            operands.push(operand(&tangent)?);
        }
        let inputs = vec![pred, Operand::List(operands.into())];
        let made = emit(Control::Cond, inputs, self.blocks.to_vec(), &self.results)?;
        for (k, edge) in ctx.edges().iter().enumerate() {
            let result = self.gradients.get(edge.index()).copied().flatten();
            out.put(k, result.and_then(|i| made.get(i)).cloned());
        }
        Ok(())
    }
}

/// A result that nobody used has a gradient of zeros.
fn zeros(spec: &TensorSpec) -> Result<Tensor> {
    let args = [Arg::Ints(&spec.sizes), Arg::DType(spec.dtype), Arg::Device(spec.device)];
    call_one(Registry::global().lookup("tp::zeros")?, &args)
}

/// Puts a loop on the tape whose trips only a run knows: its gradient is refused when somebody asks for it.
pub(super) fn refuse_loop(carried: &[Tensor], branches: [&Branch; 2], results: &[Tensor]) -> Result<()> {
    let read = branches.iter().flat_map(|b| &b.reads).flat_map(|r| &r.tensors);
    let inputs: Vec<&Tensor> = carried.iter().chain(read).filter(|t| t.requires_grad()).collect();
    let outputs: Vec<&Tensor> = results.iter().filter(|t| t.dtype().is_float()).collect();
    record_node(Arc::new(LoopBackward), &inputs, &outputs, |_| Ok(()))?;
    Ok(())
}

struct LoopBackward;

impl VjpRule for LoopBackward {
    fn name(&self) -> &str {
        "while_loop"
    }

    fn backward(&self, _: &BackwardCtx<'_>, _: &[Option<Tensor>], _: &mut Gradients<'_>) -> Result<()> {
        let message =
            "the gradient of while_loop in a captured function is not supported: only a run knows its trips";
        Err(Error::autograd("TP3026", message).note(
            "call the function uncompiled, where each trip is recorded; or detach() what the loop takes",
        ))
    }
}
