//! A plan: the steps of a graph over numbered slots, with every literal made, every region's executor chosen, and
//! the last use of every value known. Made once per graph; `run` walks it.

use crate::backend::{Executor, HostExecutor, Pending};
use crate::control::Control;
use crate::ir::Operand;
use crate::memory::SlotMemory;
use crate::native::NativeKernel;
use crate::raw::RawKernel;
use crate::rows::RowStep;
use smallvec::SmallVec;
use std::sync::Arc;
use tp_dispatch::host::Location;
use tp_dispatch::{CodegenMarker, FallbackReason, OpHandle, Value};
use tp_tensor::TensorSpec;
use tp_tensor::symbols::{Binding, Poly, Promise, Shapes};

/// Where a tensor is found while a plan runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Src {
    Input(u32),
    Slot(u32),
}

/// What fills an argument of a call.
pub(crate) enum ArgSrc {
    Tensor(Src),
    Tensors(Box<[Src]>),
    Optional(Box<[Option<Src>]>),
    Literal(Value),
    /// Numbers that depend on the sizes of the run: one, or a list.
    Size(Poly),
    Sizes(Box<[Poly]>),
}

/// What becomes of an output of a call.
pub(crate) struct OutSlot {
    pub slot: u32,
    /// What the fake rule said it would be.
    pub promise: TensorSpec,
    /// The same where a size is symbolic, for a run to replace.
    pub shape: Option<Box<Promise>>,
}

pub(crate) enum Work {
    Call(CallStep),
    Fused(FusedStep),
    Control(Box<ControlStep>),
}

/// Control flow: which of the blocks run is found out by each run.
pub(crate) struct ControlStep {
    pub control: Control,
    /// The bool that a `cond` asks.
    pub pred: Option<Src>,
    /// What the blocks take; of a loop, what is carried comes first.
    pub operands: Box<[Src]>,
    pub carried: usize,
    pub outputs: Box<[OutSlot]>,
    pub blocks: Box<[Block]>,
    pub location: Option<Location>,
}

/// A block as a plan of its own.
pub(crate) struct Block {
    pub plan: Plan,
    /// Where its regions stand among those of the plan around it.
    pub base: usize,
    /// Says in a report that this block ran.
    pub marker: Arc<CodegenMarker>,
}

/// One op, called through the dispatcher below Autograd.
pub(crate) struct CallStep {
    pub op: OpHandle,
    pub args: Box<[ArgSrc]>,
    /// One per declared return; a list has one slot per element.
    pub outputs: Box<[CallOutput]>,
    pub stamp: CallStamp,
    pub location: Option<Location>,
}

/// How the marker of a call is known.
pub(crate) enum CallStamp {
    /// The op has one kernel, in native code.
    Only(Arc<CodegenMarker>),
    /// Found out at each run: kernels come and go, and some launch other code.
    Watch,
}

pub(crate) enum CallOutput {
    Tensor(OutSlot),
    List(Box<[OutSlot]>),
    /// No tensor. The function was captured with the fake rule's value, which the kernel has to return too.
    Known(Option<Operand>),
}

/// One pointwise region, perhaps with the op that reads its rows.
pub(crate) struct FusedStep {
    pub inputs: Box<[Src]>,
    pub outputs: Box<[OutSlot]>,
    pub with: Exec,
    /// For each output the input whose memory it may be written to, where there is one; empty where there is none at all.
    pub over: Box<[Option<u32>]>,
}

pub(crate) enum Exec {
    Native(Arc<NativeKernel>),
    /// For sizes that each run finds: the program as native code, and as compiled code where a backend made some.
    Shaped {
        native: Arc<NativeKernel>,
        raw: Option<Arc<RawKernel>>,
    },
    /// Together with an op over the rows of its result.
    Rows(Box<RowStep>),
    Object(Arc<dyn Executor>),
    Host(Arc<dyn HostExecutor>),
    /// Native until the artifact is there.
    Pending {
        backend: Arc<str>,
        made: Arc<Pending>,
        native: Arc<NativeKernel>,
    },
}

pub(crate) struct Step {
    pub region: u32,
    pub work: Work,
    /// Slots whose last use this is.
    pub free: SmallVec<[u32; 4]>,
}

/// One region of the report.
#[derive(Clone)]
pub(crate) struct PlanRegion {
    pub ops: Arc<[String]>,
    /// Name of the executor chosen.
    pub executor: Arc<str>,
    pub reason: Option<FallbackReason>,
    /// A view, or control flow: nothing to compute, so nothing to fall back from.
    pub view: bool,
}

/// An output of the graph.
pub(crate) enum OutSrc {
    Tensor(Src),
    Value(Value),
    Size(Poly),
}

pub struct Plan {
    pub(crate) slots: usize,
    pub(crate) steps: Vec<Step>,
    pub(crate) outputs: Vec<OutSrc>,
    pub(crate) regions: Vec<PlanRegion>,
    /// Of each slot.
    pub(crate) memory: Vec<SlotMemory>,
    /// Some step goes through the dispatcher.
    pub(crate) calls: bool,
    /// What runs are held to, where sizes are symbolic.
    pub(crate) shapes: Option<Arc<Shapes>>,
    /// The whole plan is one flat native region.
    pub(crate) fast: Option<crate::fast::Fast>,
}

impl Plan {
    /// The symbolic sizes of one run, none of them known yet; None where all sizes are.
    pub(crate) fn binding(&self) -> Option<Binding> {
        self.shapes.as_ref().map(|shapes| Binding::new(shapes.clone()))
    }

    /// Reasons of regions that do not run where they were asked to, one per region.
    pub fn fallbacks(&self) -> impl Iterator<Item = &FallbackReason> {
        self.regions.iter().filter(|r| !r.view).filter_map(|r| r.reason.as_ref())
    }
}
