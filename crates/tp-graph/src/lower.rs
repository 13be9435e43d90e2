//! Planning: partition a graph, offer each pointwise region to the backends in the caller's order, and lay the rest
//! out as calls. Each region that does not go where it was asked to carries the reason.

use crate::args::{ArgSource, source};
use crate::backend::{self, Backend, Lowered, Pending, Region};
use crate::entity::{Entity, NodeId, ValueId};
use crate::ir::{Const, Graph, Node, Operand, Output, ValueType};
use crate::memory::{self, SlotMemory};
use crate::native::NativeKernel;
use crate::passes::partition::{self, Break, Part};
use crate::plan::{
    ArgSrc, CallOutput, CallStamp, CallStep, Exec, FusedStep, OutSlot, OutSrc, Plan, PlanRegion, Src, Step,
    Work,
};
use crate::pointwise::NotPointwise;
use crate::raw::{RawExecutor, RawKernel};
use crate::region::{self, KernelLayout, Uses};
use crate::report::Build;
use crate::rows::{self, Fused};
use crate::stamp::{self, registered_marker};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tp_dispatch::{DispatchKey, Error, FallbackReason, Result, Value};
use tp_tensor::symbols::{self, Promise, Shapes};
use tp_tensor::{Device, Dim, TensorError};

/// Which artifacts a compiled function has, so that one program and one loop pattern are built once.
#[derive(Default)]
pub(crate) struct Artifacts {
    made: Mutex<HashMap<(String, u128, KernelLayout), Arc<RawKernel>>>,
    builds: Mutex<Vec<Build>>,
    /// Those made meanwhile, by the name of their backend.
    pending: Mutex<Vec<(Arc<str>, Arc<Pending>)>>,
}

impl Artifacts {
    pub fn builds(&self) -> Vec<Build> {
        let mut builds = self.builds.lock().clone();
        for (backend, pending) in &*self.pending.lock() {
            if let (Some(Ok(Lowered::Raw(kernel))), Some(seconds)) = (pending.get(), pending.seconds()) {
                let hash = kernel.marker().proof.clone().unwrap_or_else(|| "".into());
                builds.push(Build { backend: backend.clone(), hash, seconds, cached: kernel.is_cached() });
            }
        }
        builds
    }

    /// The kernel made for these loops; for sizes 0 and 1, which are loops of other kinds by themselves alone, one made for
    /// larger sizes.
    fn known(&self, key: &(String, u128, KernelLayout), region: &Region) -> Option<Arc<RawKernel>> {
        let made = self.made.lock();
        let is_small = || region.outputs.iter().any(|o| o.sizes.iter().any(|s| matches!(s, 0 | 1)));
        made.get(key).cloned().or_else(|| {
            let serves = |layout| region.space.for_kernel(layout, region.inputs.len()).is_some();
            let mut others = made.iter().filter(|((name, print, layout), _)| {
                *name == key.0 && *print == key.1 && is_small() && serves(*layout)
            });
            others.next().map(|(_, kernel)| kernel.clone())
        })
    }
}

/// The plan of a graph, and where its pointwise chains end.
pub(crate) fn plan(
    graph: &Graph,
    backends: &[Arc<dyn Backend>],
    artifacts: &Artifacts,
) -> Result<(Plan, Vec<Break>)> {
    let _table = symbols::enter(graph.symbols.clone());
    let partition = partition::run(graph);
    let mut planner = Planner {
        graph,
        uses: Uses::of(graph),
        backends,
        absent: backends.iter().map(|b| absence(&**b)).collect(),
        artifacts,
        places: vec![None; graph.values.len()],
        memory: Vec::new(),
        steps: Vec::new(),
        regions: Vec::new(),
        breaks: Vec::new(),
    };
    for (i, input) in graph.inputs.iter().enumerate() {
        planner.places[input.value.index()] = Some(Src::Input(i as u32));
    }
    let mut parts = partition.parts.iter().peekable();
    while let Some(part) = parts.next() {
        match parts.peek().is_some_and(|behind| planner.rows(part, behind).is_some()) {
            true => drop(parts.next()),
            false => planner.part(part)?,
        }
    }
    let outputs = graph.outputs.iter().map(|o| planner.output(o)).collect::<Result<Vec<OutSrc>>>()?;
    let breaks = partition.breaks.into_iter().chain(planner.breaks).collect();
    let mut plan = Plan {
        slots: planner.memory.len(),
        steps: planner.steps,
        outputs,
        regions: planner.regions,
        memory: planner.memory,
        calls: false,
        shapes: (!graph.symbols.is_empty()).then(|| Arc::new(Shapes::of(&graph.symbols))),
        fast: None,
    };
    plan.calls = plan.steps.iter().any(|s| !matches!(s.work, Work::Fused(_)));
    memory::free_at_last_use(&mut plan);
    memory::write_over(&mut plan);
    plan.fast = crate::fast::fast(&plan);
    Ok((plan, breaks))
}

fn absence(backend: &dyn Backend) -> Option<FallbackReason> {
    let capability = backend.probe();
    (!capability.available).then(|| FallbackReason::BackendUnavailable {
        backend: backend.name().to_string(),
        missing: capability.reason.unwrap_or_else(|| "not installed".to_string()),
    })
}

pub(crate) struct Planner<'a> {
    pub graph: &'a Graph,
    uses: Uses,
    pub backends: &'a [Arc<dyn Backend>],
    /// Per backend, why it is not there.
    absent: Vec<Option<FallbackReason>>,
    pub artifacts: &'a Artifacts,
    places: Vec<Option<Src>>,
    /// Of each slot.
    memory: Vec<SlotMemory>,
    pub steps: Vec<Step>,
    pub regions: Vec<PlanRegion>,
    /// Where chains in blocks end.
    pub breaks: Vec<Break>,
}

impl Planner<'_> {
    /// A pointwise part and an op over the rows of its result as one native step, where no backend wants the part.
    fn rows(&mut self, part: &Part, behind: &Part) -> Option<()> {
        let &[node] = behind.nodes.as_slice() else { return None };
        if part.opaque.is_some() || behind.opaque != Some(NotPointwise::NoExpression) {
            return None;
        }
        let Fused { step, region, ops, result } = rows::fuse(self.graph, &self.uses, &part.nodes, node)?;
        let reason = self.left(&self.graph.nodes[node].target.name())?;
        let inputs = region.reads.iter().map(|v| self.src(*v)).collect::<Result<Box<[Src]>>>().ok()?;
        let outputs = [self.out_slot(result).ok()?].into();
        self.step(
            ops,
            backend::NATIVE,
            FusedStep { inputs, outputs, with: Exec::Rows(Box::new(step)), over: Box::default() },
            reason,
        );
        Some(())
    }

    /// Why the backends in front of the native one leave a region and the op over its rows to it; None where one does not.
    fn left(&self, op: &str) -> Option<Option<FallbackReason>> {
        let mut reason = None;
        for (backend, absent) in self.backends.iter().zip(&self.absent) {
            if backend.name() == backend::NATIVE {
                break;
            }
            let why = match absent {
                Some(absent) => absent.clone(),
                None => FallbackReason::UnsupportedOp { op: op.to_string(), why: backend.leaves_rows()? },
            };
            reason = reason.or(Some(why));
        }
        Some(reason)
    }

    fn part(&mut self, part: &Part) -> Result<()> {
        if let &[node] = part.nodes.as_slice()
            && let Some(control) = self.graph.nodes[node].target.control()
        {
            return self.control(node, control);
        }
        if let Some(why) = &part.opaque {
            let reason = self.opaque_reason(part, why);
            return self.calls(&part.nodes, reason, matches!(why, NotPointwise::View));
        }
        match region::build(self.graph, &self.uses, &part.nodes) {
            Ok(region) => self.region(region, &part.nodes),
            Err(reason) => self.calls(&part.nodes, Some(reason), false),
        }
    }

    /// Why an op that is no pointwise one does not run on the backend asked for.
    fn opaque_reason(&self, part: &Part, why: &NotPointwise) -> Option<FallbackReason> {
        let asked = self.backends.first().filter(|b| b.name() != backend::NATIVE)?;
        if let Some(absent) = self.absent.first().cloned().flatten() {
            return Some(absent);
        }
        let op = part.nodes.first().map(|n| self.graph.nodes[*n].target.name()).unwrap_or_default();
        let why = match why {
            NotPointwise::NoExpression => why.to_string(),
            other => format!("{other}; '{}' takes pure pointwise ops only", asked.name()),
        };
        Some(FallbackReason::UnsupportedOp { op, why })
    }

    fn region(&mut self, region: Region, nodes: &[NodeId]) -> Result<()> {
        let mut reason = None;
        for (i, backend) in self.backends.iter().enumerate() {
            if backend.name() == backend::NATIVE {
                break;
            }
            let lowered = match &self.absent[i] {
                Some(absent) => Err(absent.clone()),
                None => self.lower(&**backend, &region),
            };
            match lowered {
                Ok(with) => return self.fused(&region, backend.name(), with, reason),
                Err(why) => reason = reason.or(Some(why)),
            }
        }
        match NativeKernel::compile(&region) {
            Ok(kernel) => {
                let native = Arc::new(kernel);
                let with = match region.symbolic {
                    true => Exec::Shaped { native, raw: None },
                    false => Exec::Native(native),
                };
                self.fused(&region, backend::NATIVE, with, reason)
            }
            // The ops run one by one.
            Err(why) => self.calls(nodes, reason.or(Some(why)), false),
        }
    }

    fn lower(&self, backend: &dyn Backend, region: &Region) -> std::result::Result<Exec, FallbackReason> {
        backend.supports(region)?;
        let key = (backend.name().to_string(), region.program.fingerprint(), region.layout);
        let known = self.artifacts.known(&key, region);
        if let Some(kernel) = known {
            if region.symbolic {
                return shaped(region, kernel);
            }
            return Ok(Exec::Object(Arc::new(RawExecutor::new(region, kernel)?)));
        }
        let start = Instant::now();
        let lowered = backend.lower(region)?;
        let with = match &lowered {
            Lowered::Raw(_) => None,
            _ if region.symbolic => Some(FallbackReason::UnsupportedOp {
                op: region.ops.first().cloned().unwrap_or_default(),
                why: format!("symbolic sizes; '{}' makes code for known sizes", backend.name()),
            }),
            _ => None,
        };
        if let Some(reason) = with {
            return Err(reason);
        }
        let with = match &lowered {
            Lowered::Pending(made) => {
                let native = Arc::new(NativeKernel::compile(region)?);
                self.artifacts.pending.lock().push((backend.name().into(), made.clone()));
                return Ok(Exec::Pending { backend: backend.name().into(), made: made.clone(), native });
            }
            Lowered::Raw(kernel) => {
                self.artifacts.made.lock().insert(key, kernel.clone());
                let proof = kernel.marker().proof.clone();
                self.note_build(backend.name(), region, proof, kernel.is_cached(), start);
                if region.symbolic {
                    return shaped(region, kernel.clone());
                }
                return Ok(Exec::Object(Arc::new(RawExecutor::new(region, kernel.clone())?)));
            }
            Lowered::Region(executor) => Exec::Object(executor.clone()),
            Lowered::Host(executor) => Exec::Host(executor.clone()),
        };
        let proof = if let Lowered::Host(executor) = &lowered { executor.proof() } else { None };
        self.note_build(backend.name(), region, proof, false, start);
        Ok(with)
    }

    fn note_build(
        &self,
        backend: &str,
        region: &Region,
        proof: Option<Arc<str>>,
        cached: bool,
        start: Instant,
    ) {
        let hash = proof.unwrap_or_else(|| format!("{:032x}", region.program.fingerprint()).into());
        let seconds = start.elapsed().as_secs_f64();
        self.artifacts.builds.lock().push(Build { backend: backend.into(), hash, seconds, cached });
    }

    fn fused(
        &mut self,
        region: &Region,
        executor: &str,
        with: Exec,
        reason: Option<FallbackReason>,
    ) -> Result<()> {
        let inputs = region.reads.iter().map(|v| self.src(*v)).collect::<Result<Box<[Src]>>>()?;
        let outputs = region.writes.iter().map(|v| self.out_slot(*v)).collect::<Result<Box<[OutSlot]>>>()?;
        self.step(
            region.ops.clone(),
            executor,
            FusedStep { inputs, outputs, with, over: Box::default() },
            reason,
        );
        Ok(())
    }

    fn step(&mut self, ops: Arc<[String]>, executor: &str, step: FusedStep, reason: Option<FallbackReason>) {
        let region = self.regions.len() as u32;
        self.regions.push(PlanRegion { ops, executor: executor.into(), reason, view: false });
        self.steps.push(Step { region, work: Work::Fused(step), free: SmallVec::new() });
    }

    /// One region whose ops are called one by one.
    fn calls(&mut self, nodes: &[NodeId], reason: Option<FallbackReason>, view: bool) -> Result<()> {
        let index = self.regions.len() as u32;
        let ops = nodes.iter().map(|n| self.graph.nodes[*n].target.name()).collect();
        let executor = nodes.first().map_or(backend::NATIVE.into(), |n| self.executor(&self.graph.nodes[*n]));
        self.regions.push(PlanRegion { ops, executor, reason, view });
        for &n in nodes {
            let graph = self.graph;
            let step = self.call(&graph.nodes[n])?;
            self.steps.push(Step { region: index, work: Work::Call(step), free: SmallVec::new() });
        }
        Ok(())
    }

    /// Who may run a call: the executors of its kernels for the device, in the order in which they are asked.
    fn executor(&self, node: &Node) -> Arc<str> {
        let Some(op) = node.target.op() else { return backend::NATIVE.into() };
        let mut names: Vec<Arc<str>> = Vec::new();
        for kernel in stamp::candidates(op, DispatchKey::of(self.device(node))) {
            if !names.contains(&kernel.provenance.executor) {
                names.push(kernel.provenance.executor.clone());
            }
            if !kernel.is_conditional() {
                break;
            }
        }
        names.join(" or ").into()
    }

    fn device(&self, node: &Node) -> Device {
        node.defined().find_map(|v| self.graph.spec(v)).map_or(Device::CPU, |s| s.device)
    }

    fn call(&mut self, node: &Node) -> Result<CallStep> {
        let name = node.target.name();
        let missing = || Error::registration("TP1301", format!("no operator named '{name}'"));
        let op = node.target.op().ok_or_else(missing)?;
        let def = op.def().ok_or_else(missing)?;
        let mut args = Vec::with_capacity(node.inputs.len());
        for (operand, param) in node.inputs.iter().zip(&def.params.all) {
            let source =
                source(operand, param).map_err(|why| Error::graph("TP5003", why).with_op(op.name()))?;
            args.push(match source {
                ArgSource::Value(v) => ArgSrc::Tensor(self.src(v)?),
                ArgSource::Values(vs) => {
                    ArgSrc::Tensors(vs.iter().map(|v| self.src(*v)).collect::<Result<_>>()?)
                }
                ArgSource::Optional(vs) => {
                    let item = |v: &Option<ValueId>| v.map(|v| self.src(v)).transpose();
                    ArgSrc::Optional(vs.iter().map(item).collect::<Result<_>>()?)
                }
                ArgSource::Literal(value) => self.literal(value)?,
            });
        }
        let outputs = node.outputs.iter().map(|o| self.call_output(o)).collect::<Result<_>>()?;
        let device = self.device(node);
        let stamp = match op.kernels().as_slice() {
            [only]
                if !def.custom && !only.is_conditional() && &*only.provenance.executor == backend::NATIVE =>
            {
                CallStamp::Only(Arc::new(registered_marker(op, only, device)))
            }
            _ => CallStamp::Watch,
        };
        Ok(CallStep { op, args: args.into(), outputs, stamp, location: node.location.clone() })
    }

    /// A literal as it stands, or what a run makes of its symbols.
    fn literal(&self, value: Value) -> Result<ArgSrc> {
        let poly = |v: i64| self.graph.symbols.poly(Dim::from_raw(v)).ok_or(TensorError::Symbolic(v));
        Ok(match value {
            Value::Int(v) => match symbols::number(v) {
                Some(v) => ArgSrc::Literal(Value::Int(v)),
                None => ArgSrc::Size(poly(v)?),
            },
            Value::Ints(vs) => match vs.iter().map(|&v| symbols::number(v)).collect() {
                Some(known) => ArgSrc::Literal(Value::Ints(known)),
                None => ArgSrc::Sizes(vs.iter().map(|&v| poly(v)).collect::<std::result::Result<_, _>>()?),
            },
            known => ArgSrc::Literal(known),
        })
    }

    fn call_output(&mut self, output: &Output) -> Result<CallOutput> {
        Ok(match output {
            Output::Value(v) if self.graph.spec(*v).is_none() => CallOutput::Known(self.known(*v)),
            Output::Value(v) => CallOutput::Tensor(self.out_slot(*v)?),
            Output::List(vs) => {
                CallOutput::List(vs.iter().map(|v| self.out_slot(*v)).collect::<Result<_>>()?)
            }
        })
    }

    fn known(&self, v: ValueId) -> Option<Operand> {
        match &self.graph.values[v].ty {
            ValueType::Known(value) => Some(value.clone()),
            ValueType::Tensor(_) | ValueType::Other(_) => None,
        }
    }

    pub fn out_slot(&mut self, v: ValueId) -> Result<OutSlot> {
        let promise = self.graph.spec(v).cloned().ok_or_else(|| no_place(v))?;
        let slot = self.memory.len() as u32;
        self.places[v.index()] = Some(Src::Slot(slot));
        let owner = match self.places[self.graph.root(v).index()] {
            Some(Src::Slot(owner)) => Some(owner),
            Some(Src::Input(_)) | None => None,
        };
        self.memory.push(SlotMemory { bytes: region::bytes(self.graph, v), owner });
        let shape = Promise::of(&self.graph.symbols, &promise).map(Box::new);
        Ok(OutSlot { slot, promise, shape })
    }

    pub fn src(&self, v: ValueId) -> Result<Src> {
        self.places[v.index()].ok_or_else(|| no_place(v))
    }

    fn output(&self, operand: &Operand) -> Result<OutSrc> {
        Ok(match operand {
            Operand::Value(v) => OutSrc::Tensor(self.src(*v)?),
            Operand::Const(Const::Size(v)) => {
                OutSrc::Size(self.graph.symbols.poly(*v).ok_or(TensorError::Symbolic(v.raw()))?)
            }
            Operand::Const(c) => OutSrc::Value(c.value()),
            Operand::List(items) => OutSrc::Value(known_list(items)?),
        })
    }
}

/// Code for all sizes, beside the native code for runs whose loops it does not fit.
fn shaped(region: &Region, kernel: Arc<RawKernel>) -> std::result::Result<Exec, FallbackReason> {
    Ok(Exec::Shaped { native: Arc::new(NativeKernel::compile(region)?), raw: Some(kernel) })
}

/// A list that the function returned, as a value of its own.
fn known_list(items: &[Operand]) -> Result<Value> {
    let scalar = |o: &Operand| match o {
        Operand::Const(c) => c.scalar(),
        _ => None,
    };
    let scalars: Option<Box<[tp_tensor::Scalar]>> = items.iter().map(scalar).collect();
    scalars.map(Value::Scalars).ok_or_else(|| Error::graph("TP5004", "a returned list may hold numbers only"))
}

#[cold]
fn no_place(v: ValueId) -> Error {
    Error::graph("TP5002", format!("{v} is used, but no step of the plan makes it"))
}
