//! One compiled capture of a function: its guards, its graphs, its plans.

use crate::guard::{GuardSet, Place};
use crate::ir::Graph;
use crate::last;
use crate::passes::Removed;
use crate::passes::partition::Break;
use crate::plan::{Fast, Plan};
use crate::report::{PlannedRegion, RunReport};
use crate::run::Inputs;
use crate::stamp::Stamps;
use crate::training::{self, BackwardStamps, Training};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;
use tp_dispatch::{Arg, Error, FallbackReason, KeySet, Result, Rets, push_tensor, state};
use tp_tensor::Tensor;

pub struct Entry {
    pub(crate) number: usize,
    pub(crate) function: u32,
    pub(crate) guards: GuardSet,
    pub(crate) graph: Graph,
    pub(crate) plan: Plan,
    /// Where each input of the graph comes from.
    pub(crate) inputs: Box<[Place]>,
    pub(crate) lifted: Vec<Tensor>,
    /// Lifted tensors that each run fetches anew, and their places at the host.
    pub(crate) moving: Box<[(u32, u32)]>,
    /// Outputs of the forward plan that are the function's own; saved ones follow.
    pub(crate) returned: usize,
    pub(crate) training: Option<Arc<Training>>,
    pub(crate) removed: Vec<Removed>,
    pub(crate) breaks: Vec<Break>,
    pub(crate) structure: Box<dyn Any + Send + Sync>,
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

/// Numbers of lifted tensors, and what stands in their places now.
type Moved = SmallVec<[(u32, Tensor); 4]>;

impl Entry {
    /// Runs the entry. The arguments are checked against the guards first; the host's state was when it was found.
    pub fn run(self: &Arc<Self>, args: &[Arg<'_>], rets: &mut Rets) -> Result<()> {
        if let Err(guard) = self.guards.check_arguments(args) {
            return Err(Error::internal(
                "TP9107",
                format!("a compiled entry was run though its guard fails: {guard}"),
            ));
        }
        // SAFETY: the guards hold.
        unsafe { self.run_guarded(args, rets) }
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

    /// The one result of an entry that is one flat native region; None where `run_guarded` has to run it.
    ///
    /// # Safety
    /// As `run_guarded`.
    #[inline(always)]
    pub(crate) unsafe fn run_short(self: &Arc<Self>, args: &[Arg<'_>]) -> Option<Result<Tensor>> {
        let (Some(fast), None) = (&self.plan.fast, &self.training) else { return None };
        if is_tracing() {
            return None;
        }
        if !self.moving.is_empty() {
            // SAFETY: as above.
            return Some(unsafe { self.run_moved(args, fast) });
        }
        // SAFETY: the guards hold, so the inputs fit.
        let out = unsafe { fast.run(&Fixed { entry: self, args }) };
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
    unsafe fn run_moved(self: &Arc<Self>, args: &[Arg<'_>], fast: &Fast) -> Result<Tensor> {
        let moved = self.fetch()?;
        // SAFETY: as above.
        let out = unsafe { fast.run(&Present { entry: self, args, moved: &moved }) };
        last::note_one(self.function, self, fast.kernel.marker());
        out
    }

    /// The present tensors in the places that may change.
    fn fetch(&self) -> Result<Moved> {
        let host = self.guards.host();
        let present = |&(i, slot): &(u32, u32)| {
            let found = host.and_then(|host| host.fetch(slot));
            found
                .map(|t| (i, t))
                .ok_or_else(|| Error::internal("TP9108", "a compiled entry lost one of its inputs"))
        };
        self.moving.iter().map(present).collect()
    }

    #[inline]
    fn tensor<'a>(
        &'a self,
        args: &[Arg<'a>],
        moved: &'a [(u32, Tensor)],
        place: Place,
    ) -> Result<&'a Tensor> {
        if let Place::Lifted(i) = place
            && let Some((_, t)) = moved.iter().find(|(m, _)| *m == i)
        {
            return Ok(t);
        }
        self.fixed(args, place)
    }

    /// An input that is an argument, or the tensor of the capture.
    #[inline(always)]
    fn fixed<'a>(&'a self, args: &[Arg<'a>], place: Place) -> Result<&'a Tensor> {
        let found = match place {
            Place::Argument(i) => args.get(i as usize).and_then(Arg::tensor),
            Place::Lifted(i) => self.lifted.get(i as usize),
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
