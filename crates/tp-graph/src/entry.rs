//! One compiled capture of a function: its guards, its graphs, its plans.

use crate::capture::copy;
use crate::fast::{Fast, Inputs};
use crate::guard::{GuardSet, Place};
use crate::host_guards::Fetched;
use crate::ir::Graph;
use crate::last;
use crate::memory::Usage;
use crate::passes::Removed;
use crate::passes::partition::Break;
use crate::plan::Plan;
use crate::report::{PlannedRegion, RunReport};
use crate::stamp::Stamps;
use crate::training::{self, BackwardStamps, Training};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;
use tp_dispatch::{Arg, Error, FallbackReason, KeySet, Result, Rets, push_tensor, state};
use tp_expr::DirectStep;
use tp_tensor::{DType, Tensor};

pub struct Entry {
    pub(crate) number: usize,
    pub(crate) function: u32,
    pub(crate) guards: GuardSet,
    pub(crate) graph: Graph,
    pub(crate) plan: Plan,
    /// Where each input of the graph comes from.
    pub(crate) inputs: Box<[Place]>,
    pub(crate) held: Held,
    /// Lifted tensors that each run fetches anew, and their places at the host.
    pub(crate) moving: Box<[(u32, u32)]>,
    /// Outputs of the forward plan that are the function's own; saved ones follow.
    pub(crate) returned: usize,
    pub(crate) training: Option<Arc<Training>>,
    pub(crate) removed: Vec<Removed>,
    pub(crate) breaks: Vec<Break>,
    pub(crate) structure: Box<dyn Any + Send + Sync>,
    pub(crate) direct: Option<Direct>,
}

/// The tensors of a graph that are no arguments.
pub(crate) struct Held {
    /// Those that the function reached on its own, then the graph's constants, in the order of their inputs.
    pub tensors: Vec<Tensor>,
    /// Which of them nobody else holds.
    pub own: Vec<bool>,
}

/// One instruction over the arguments' elements is all there is to a run.
pub(crate) struct Direct {
    step: DirectStep,
    /// The argument whose sizes and device the result has.
    like: u32,
    dtype: DType,
}

impl Direct {
    /// None where a run takes more than that.
    pub(crate) fn new(plan: &Plan, inputs: &[Place]) -> Option<Direct> {
        let fast = plan.fast.as_ref().filter(|fast| fast.sized.is_none())?;
        let argument = |k: usize| match inputs.get(*fast.inputs.get(k)? as usize)? {
            Place::Argument(i) => Some(*i),
            Place::Lifted(_) => None,
        };
        let step = fast.kernel.direct(argument)?;
        Some(Direct { step, like: argument(fast.like?)?, dtype: fast.output.dtype })
    }

    /// None when an integer is divided by zero: the error is found by the longer way.
    ///
    /// # Safety
    /// The guards of the entry hold of `args`.
    #[inline(always)]
    unsafe fn run(&self, args: &[Arg<'_>]) -> Option<Result<Tensor>> {
        let out = match Tensor::empty_like_contiguous(unsafe { tensor_at(args, self.like) }, self.dtype) {
            Ok(out) => out,
            Err(e) => return Some(Err(e.into())),
        };
        // SAFETY: the tensors are of the captured types, and live as long as `args`; the output is fresh.
        let done = unsafe { self.step.run(|i| tensor_at(args, i).data_ptr(), out.data_ptr()) };
        done.then_some(Ok(out))
    }
}

/// # Safety
/// Argument `i` is a tensor, as a guard that holds says.
#[inline(always)]
unsafe fn tensor_at<'a>(args: &[Arg<'a>], i: u32) -> &'a Tensor {
    debug_assert!(matches!(args.get(i as usize), Some(Arg::Tensor(_))));
    match unsafe { args.get_unchecked(i as usize) } {
        Arg::Tensor(t) => t,
        // SAFETY: the caller's promise.
        _ => unsafe { std::hint::unreachable_unchecked() },
    }
}

/// Arguments, and lifted tensors of the capture.
struct Fixed<'a> {
    entry: &'a Entry,
    args: &'a [Arg<'a>],
}

impl Inputs for Fixed<'_> {
    #[inline(always)]
    fn get(&self, i: usize) -> Result<&Tensor> {
        self.entry.fixed(self.args, self.entry.inputs[i])
    }
}

/// Arguments, and lifted tensors some of which stand in for others.
struct Present<'a> {
    entry: &'a Entry,
    args: &'a [Arg<'a>],
    moved: &'a [(u32, Tensor)],
}

impl Inputs for Present<'_> {
    fn get(&self, i: usize) -> Result<&Tensor> {
        self.entry.tensor(self.args, self.moved, self.entry.inputs[i])
    }
}

/// Numbers of lifted tensors, ascending, and what stands in their places now.
type Moved = SmallVec<[(u32, Tensor); 4]>;

impl Entry {
    /// Runs the entry, unless a guard on the arguments or on what is registered fails: then nothing has run, and the answer
    /// is false. The host's state was checked when the entry was found or made; what the host ran since, such as a logger of
    /// its own, or another thread, may have registered a kernel.
    pub fn run(self: &Arc<Self>, args: &[Arg<'_>], rets: &mut Rets) -> Result<bool> {
        if !self.guards.arguments_hold(args) {
            return Ok(false);
        }
        // SAFETY: the guards hold.
        unsafe { self.run_guarded(args, rets) }.map(|()| true)
    }

    /// # Safety
    /// The guards hold of `args`.
    #[inline]
    pub(crate) unsafe fn run_guarded(self: &Arc<Self>, args: &[Arg<'_>], rets: &mut Rets) -> Result<()> {
        // SAFETY: as above.
        if let Some(out) = unsafe { self.run_short(args) } {
            rets.clear();
            push_tensor(rets, out?);
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.run_steps(args, rets) }
    }

    /// The one result of an entry of one instruction, on a thread without modes; None where `run_guarded` has to run it.
    ///
    /// # Safety
    /// As `run_guarded`.
    #[inline(always)]
    pub(crate) unsafe fn run_direct(self: &Arc<Self>, args: &[Arg<'_>]) -> Option<Result<Tensor>> {
        let (Some(direct), Some(fast)) = (&self.direct, &self.plan.fast) else {
            // SAFETY: as above.
            return unsafe { self.run_short(args) };
        };
        // SAFETY: as above.
        let out = unsafe { direct.run(args)? };
        last::note_one(self.function, self, fast.kernel.marker());
        Some(out)
    }

    /// The one result of an entry that is one flat native region; None where `run_guarded` has to run it.
    ///
    /// # Safety
    /// As `run_guarded`.
    #[inline(never)]
    pub(crate) unsafe fn run_short(self: &Arc<Self>, args: &[Arg<'_>]) -> Option<Result<Tensor>> {
        let (Some(fast), None) = (&self.plan.fast, &self.training) else { return None };
        if is_tracing() {
            return None;
        }
        if !self.moving.is_empty() {
            // SAFETY: as above.
            return unsafe { self.run_moved(args, fast).transpose() };
        }
        // SAFETY: the guards hold, so the inputs fit.
        let out = unsafe { fast.run(&Fixed { entry: self, args })? };
        last::note_one(self.function, self, fast.kernel.marker());
        Some(out)
    }

    /// # Safety
    /// As `run_guarded`.
    unsafe fn run_steps(self: &Arc<Self>, args: &[Arg<'_>], rets: &mut Rets) -> Result<()> {
        let moved = self.fetch()?;
        let mut inputs: SmallVec<[&Tensor; 8]> = SmallVec::new();
        for place in &self.inputs {
            inputs.push(self.tensor(args, &moved, *place)?);
        }
        let mut stamps = Stamps::new(self.plan.regions.len());
        let mut sizes = self.plan.binding();
        if let (Some(sizes), Some(guards)) = (&mut sizes, self.guards.sizes()) {
            sizes.set_inputs(guards.values(args));
        }
        // SAFETY: the guards hold, so the inputs fit.
        let ran = unsafe { self.plan.run(&inputs, &mut stamps, &mut sizes) };
        let backward = self.training.as_ref().map(|_| BackwardStamps::default());
        last::note(self.function, self, stamps, backward.clone());
        *rets = ran?;
        if let (Some(training), Some(backward)) = (&self.training, backward) {
            let wanted: SmallVec<[&Tensor; 8]> = training
                .gradients
                .iter()
                .map(|(place, _)| self.tensor(args, &moved, *place))
                .collect::<Result<_>>()?;
            training::record(training, (backward, sizes), &wanted, &inputs, rets)?;
            rets.truncate(self.returned);
        }
        Ok(())
    }

    /// # Safety
    /// As `run_guarded`.
    #[inline(never)]
    unsafe fn run_moved(self: &Arc<Self>, args: &[Arg<'_>], fast: &Fast) -> Result<Option<Tensor>> {
        let moved = self.fetch()?;
        // SAFETY: as above.
        let Some(out) = (unsafe { fast.run(&Present { entry: self, args, moved: &moved }) }) else {
            return Ok(None);
        };
        last::note_one(self.function, self, fast.kernel.marker());
        out.map(Some)
    }

    /// What stands in the places that may change, where it is another tensor than that of the capture.
    fn fetch(&self) -> Result<Moved> {
        let mut moved = Moved::new();
        let Some(host) = self.guards.host() else { return Ok(moved) };
        for &(i, slot) in &self.moving {
            match host.fetch(slot) {
                Fetched::Same => {}
                Fetched::Other(t) => moved.push((i, t)),
                Fetched::Lost => {
                    return Err(Error::internal("TP9108", "a compiled entry lost one of its inputs"));
                }
            }
        }
        Ok(moved)
    }

    #[inline]
    fn tensor<'a>(
        &'a self,
        args: &[Arg<'a>],
        moved: &'a [(u32, Tensor)],
        place: Place,
    ) -> Result<&'a Tensor> {
        if let Place::Lifted(i) = place
            && !moved.is_empty()
            && let Ok(at) = moved.binary_search_by_key(&i, |(m, _)| *m)
        {
            return Ok(&moved[at].1);
        }
        self.fixed(args, place)
    }

    /// An input that is an argument, or the tensor of the capture.
    #[inline(always)]
    fn fixed<'a>(&'a self, args: &[Arg<'a>], place: Place) -> Result<&'a Tensor> {
        let found = match place {
            Place::Argument(i) => args.get(i as usize).and_then(Arg::tensor),
            Place::Lifted(i) => self.held.tensors.get(i as usize),
        };
        found.ok_or_else(|| Error::internal("TP9108", "a compiled entry lost one of its inputs"))
    }

    /// What the capture gave besides flat outputs.
    pub fn structure(&self) -> &(dyn Any + Send + Sync) {
        &*self.structure
    }

    pub fn number(&self) -> usize {
        self.number
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Whether a run changes nothing and runs no code of a user: one that failed can be made again in another way.
    pub fn is_pure(&self) -> bool {
        let is_plain = |node: &crate::ir::Node| {
            let is_custom = node.target.op().is_none_or(|op| op.def().is_none_or(|def| def.custom));
            node.effects == tp_dispatch::Effects::PURE && !is_custom
        };
        self.graph.nodes.values().all(is_plain)
    }

    /// The tensors behind the graph's lifted inputs, in order, and those behind its constants; of what is the entry's own,
    /// copies, for whoever gets them may write to them.
    pub fn held(&self) -> Result<Vec<Tensor>> {
        let all = self.held.tensors.iter().zip(&self.held.own);
        all.map(|(t, own)| if *own { copy(t) } else { Ok(t.clone()) }).collect()
    }

    /// The backward graph of a training entry.
    pub fn backward_graph(&self) -> Option<&Graph> {
        self.training.as_ref().map(|t| &t.graph)
    }

    pub fn guards(&self) -> Vec<String> {
        self.guards.texts()
    }

    pub fn removed(&self) -> &[Removed] {
        &self.removed
    }

    pub fn breaks(&self) -> &[Break] {
        &self.breaks
    }

    /// Every region as planned, forward then backward.
    pub fn regions(&self) -> Vec<PlannedRegion> {
        let forward = planned(&self.plan, false);
        let backward = self.training.as_ref().map(|t| planned(&t.plan, true));
        forward.into_iter().chain(backward.into_iter().flatten()).collect()
    }

    /// What runs keep and write over, a line each.
    pub fn memory(&self) -> Vec<String> {
        let forward = format!("forward: {}", Usage::of(&self.plan));
        let backward = self
            .training
            .iter()
            .flat_map(|t| [t.kept.to_string(), format!("backward: {}", Usage::of(&t.plan))]);
        [forward].into_iter().chain(backward).collect()
    }

    /// Reasons of the regions that do not run where they were asked to.
    pub fn fallbacks(&self) -> Vec<FallbackReason> {
        let backward = self.training.iter().flat_map(|t| t.plan.fallbacks());
        self.plan.fallbacks().chain(backward).cloned().collect()
    }

    pub(crate) fn report(&self, forward: &Stamps, backward: Option<&Stamps>) -> RunReport {
        let backward = self.training.as_ref().zip(backward).map_or_else(Vec::new, |(t, s)| s.report(&t.plan));
        RunReport { forward: forward.report(&self.plan), backward, graph: self.number }
    }
}

/// The slow bit is off in nearly every call, and quicker to read.
#[inline(always)]
fn is_tracing() -> bool {
    state::with(|s| s.slow_bit() != KeySet::EMPTY) && state::is_tracing()
}

fn planned(plan: &Plan, backward: bool) -> Vec<PlannedRegion> {
    let region = |(index, r): (usize, &crate::plan::PlanRegion)| PlannedRegion {
        index,
        ops: r.ops.clone(),
        executor: r.executor.clone(),
        reason: r.reason.clone(),
        backward,
    };
    plan.regions.iter().enumerate().map(region).collect()
}
