//! Compiled functions: entries found by their guards, made on a miss, up to a limit. Finding and running take no lock
//! and count no reference; entries are only ever added.

use crate::backend::Backend;
use crate::capture::watch::Asked;
use crate::capture::{self, Between, CaptureScope, Captured};
use crate::entity::Entity;
use crate::entry::Entry;
use crate::guard::{Context, GuardSet, Place};
use crate::host_guards::HostGuards;
use crate::ir::{Graph, InputKind, Operand};
use crate::joint::{self, Joint};
use crate::last;
use crate::lower::{self, Artifacts};
use crate::passes::partition::Break;
use crate::passes::{self, Memory};
use crate::report::{Build, Explanation, FallbackPolicy, Recompile, RunReport};
use crate::split::{self, SavedFrom};
use crate::training::{Training, Typed};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tp_dispatch::{Arg, CodegenMarker, Error, FallbackReason, OpHandle, Phase, Result, Rets, Value};
use tp_tensor::{Device, Tensor};

#[derive(Clone)]
pub struct CompileOptions {
    /// In order of preference; native code is always last.
    pub backends: Vec<Arc<dyn Backend>>,
    pub policy: FallbackPolicy,
    /// Captures of one function, at most.
    pub limit: usize,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions { backends: Vec::new(), policy: FallbackPolicy::Record, limit: 8 }
    }
}

/// Runs the function over fakes and literals; gives flat outputs and the host's own account of their structure.
pub type CaptureFn<'a> = dyn FnMut(&[Value]) -> Result<(Vec<Value>, Box<dyn Any + Send + Sync>)> + 'a;

/// What came of a miss.
pub enum Built {
    Entry(Arc<Entry>),
    /// Over the limit: call the function itself.
    Eager(FallbackReason),
}

pub struct CompiledFunction {
    id: u32,
    options: CompileOptions,
    entries: Box<[OnceLock<Arc<Entry>>]>,
    artifacts: Artifacts,
    recompiles: Mutex<Vec<Recompile>>,
    eager: Arc<CodegenMarker>,
}

static NEXT_ID: AtomicU32 = AtomicU32::new(0);

impl CompiledFunction {
    pub fn new(options: CompileOptions) -> CompiledFunction {
        let entries = (0..options.limit.max(1)).map(|_| OnceLock::new()).collect();
        let eager = CodegenMarker {
            executor: "eager".into(),
            kernel: "function".into(),
            proof: None,
            device: Device::CPU,
        };
        CompiledFunction {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            options,
            entries,
            artifacts: Artifacts::default(),
            recompiles: Mutex::new(Vec::new()),
            eager: Arc::new(eager),
        }
    }

    /// The first entry whose guards hold.
    #[inline(always)]
    pub fn find(&self, args: &[Arg<'_>]) -> Option<&Arc<Entry>> {
        for place in &self.entries {
            let entry = place.get()?;
            if entry.guards.holds(args) {
                return Some(entry);
            }
        }
        None
    }

    /// Runs the first entry whose guards hold; None when there is none, and nothing has run.
    #[inline]
    pub fn call(&self, args: &[Arg<'_>], rets: &mut Rets) -> Result<Option<&Arc<Entry>>> {
        let Some(entry) = self.find(args) else { return Ok(None) };
        // SAFETY: its guards hold.
        unsafe { entry.run_guarded(args, rets)? };
        Ok(Some(entry))
    }

    /// As `call`, where the first entry whose guards hold is one short region with one result; None where `call` has to
    /// do it.
    #[inline(always)]
    pub fn call_short(&self, args: &[Arg<'_>]) -> Option<(Result<Tensor>, &Arc<Entry>)> {
        let entry = self.find(args)?;
        // SAFETY: its guards hold.
        Some((unsafe { entry.run_short(args)? }, entry))
    }

    /// Captures and compiles the function for these arguments, unless an entry serves them already.
    pub fn build(&self, args: &[Arg<'_>], names: &[Arc<str>], f: &mut CaptureFn<'_>) -> Result<Built> {
        if let Some(entry) = self.find(args) {
            return Ok(Built::Entry(entry.clone()));
        }
        let known: Vec<&Arc<Entry>> = self.entries.iter().map_while(OnceLock::get).collect();
        let missed = known.last().and_then(|e| e.guards.check(args).err());
        if known.len() == self.entries.len() {
            let guard = missed.unwrap_or_default();
            return Ok(Built::Eager(FallbackReason::RecompileLimit { limit: self.entries.len(), guard }));
        }
        let entry = Arc::new(self.compile(known.len(), args, names, f)?);
        if let (Some(reason), FallbackPolicy::Error) = (entry.fallbacks().first(), self.options.policy) {
            return Err(refused(reason));
        }
        self.add(entry, args, missed)
    }

    /// Puts an entry into the first free place; another thread may have taken the one it was made for.
    fn add(&self, mut entry: Arc<Entry>, args: &[Arg<'_>], missed: Option<String>) -> Result<Built> {
        for (i, place) in self.entries.iter().enumerate() {
            if let Some(other) = place.get() {
                if other.guards.holds(args) {
                    return Ok(Built::Entry(other.clone()));
                }
                continue;
            }
            if let Some(own) = Arc::get_mut(&mut entry) {
                own.number = i;
            }
            match place.set(entry) {
                Ok(()) => {
                    self.recompiles.lock().extend(missed.map(|guard| Recompile { graph: i, guard }));
                    let made = place.get().ok_or_else(|| Error::internal("TP9109", "an entry vanished"))?;
                    return Ok(Built::Entry(made.clone()));
                }
                Err(back) => entry = back,
            }
        }
        Ok(Built::Eager(FallbackReason::RecompileLimit {
            limit: self.entries.len(),
            guard: missed.unwrap_or_default(),
        }))
    }

    fn compile(
        &self,
        number: usize,
        args: &[Arg<'_>],
        names: &[Arc<str>],
        f: &mut CaptureFn<'_>,
    ) -> Result<Entry> {
        let scope = CaptureScope::begin();
        let fakes = capture::fake_inputs(&scope, args, names)?;
        let (outputs, structure) = f(&fakes)?;
        let operands = scope.outputs(&outputs)?;
        let (asked, grad_mode) = scope.recorder().take_asked();
        let host = scope.recorder().host_guards.take();
        joint::check_written(&scope, args, &fakes)?;
        joint::check_outputs(&outputs)?;
        let returned = operands.len();
        let joint = match joint::is_training(&outputs) {
            true => Some(joint::run(&scope, args, &fakes, &outputs, &operands)?),
            false => None,
        };
        let gradients = joint.iter().flat_map(|j| j.gradients.iter().filter_map(|(_, g)| g.clone()));
        let all: Vec<Operand> = operands.iter().cloned().chain(gradients).collect();
        let between = std::mem::take(&mut scope.recorder().between);
        let Captured { graph, lifted } = scope.close_at(all, joint.as_ref().map(|j| j.boundary));
        graph.check()?;
        let ops = captured_ops(&graph);
        let (graph, removed) = passes::simplify(&graph);
        let moving = host
            .as_deref()
            .map_or_else(Vec::new, |host| moving(&graph, args, &lifted, (&asked, &between), host));
        let context = Context {
            asked,
            grad_mode,
            between,
            host,
            moving: moving.clone(),
            ..context(&graph, args, &lifted, ops)
        };
        let guards = GuardSet::new(args, names, context);
        let half = Half { graph, removed, guards, lifted, moving, structure, returned, number };
        match joint {
            Some(joint) if !joint.outputs.is_empty() => self.training(half, joint, args),
            _ => self.inference(half, args),
        }
    }

    fn inference(&self, half: Half, args: &[Arg<'_>]) -> Result<Entry> {
        let Half { mut graph, removed, guards, lifted, moving, structure, returned, number } = half;
        graph.outputs.truncate(returned);
        let (plan, breaks) = lower::plan(&graph, &self.options.backends, &self.artifacts)?;
        let inputs = places(&graph, args);
        let function = self.id;
        Ok(Entry {
            number,
            function,
            guards,
            graph,
            plan,
            inputs,
            lifted,
            moving: moving.into(),
            returned,
            training: None,
            removed,
            breaks,
            structure,
        })
    }

    fn training(&self, half: Half, joint: Joint, args: &[Arg<'_>]) -> Result<Entry> {
        let Half { graph, removed, guards, lifted, moving, structure, returned, number } = half;
        let split = split::run(&graph, returned)?;
        check_saved(&split.forward, &split.saved)?;
        let (plan, mut breaks) = lower::plan(&split.forward, &self.options.backends, &self.artifacts)?;
        let (backward, more) = lower::plan(&split.backward, &self.options.backends, &self.artifacts)?;
        breaks.extend(more.into_iter().map(|b| Break { backward: true, ..b }));
        let types = |kind: InputKind| {
            let inputs = split.backward.inputs.iter().filter(move |i| i.kind == kind);
            let specs = inputs.filter_map(|i| split.backward.spec(i.value).cloned());
            specs.map(|spec| Typed::new(&split.backward.symbols, spec)).collect()
        };
        let mut next = 0..;
        let gradients =
            joint.gradients.iter().map(|(place, g)| (*place, g.as_ref().and_then(|_| next.next()))).collect();
        let training = Training {
            saved_types: types(InputKind::Saved),
            tangents: types(InputKind::Gradient),
            graph: split.backward.clone(),
            plan: backward,
            gradients,
            outputs: joint.outputs,
            saved: split.saved,
        };
        let inputs = places(&split.forward, args);
        Ok(Entry {
            number,
            function: self.id,
            guards,
            graph: split.forward,
            plan,
            inputs,
            lifted,
            moving: moving.into(),
            returned,
            training: Some(Arc::new(training)),
            removed,
            breaks,
            structure,
        })
    }

    /// The function itself ran, for this reason.
    pub fn note_eager(&self, reason: &FallbackReason) {
        last::note_eager(self.id, reason, &self.eager);
    }

    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.iter().map_while(OnceLock::get).cloned().collect()
    }

    /// The host's own guards of every entry.
    pub fn host_guards(&self) -> impl Iterator<Item = &dyn HostGuards> {
        self.entries.iter().map_while(OnceLock::get).filter_map(|entry| entry.guards.host())
    }

    pub fn builds(&self) -> Vec<Build> {
        self.artifacts.builds()
    }

    /// The last run on this thread.
    pub fn last_run(&self) -> Option<RunReport> {
        last::report(self.id)
    }

    pub fn policy(&self) -> FallbackPolicy {
        self.options.policy
    }

    /// What is known so far, without a new capture.
    pub fn explanation(&self) -> Explanation {
        let mut out = Explanation { recompiles: self.recompiles.lock().clone(), ..Explanation::default() };
        for entry in self.entries() {
            out.graphs.push((entry.graph().text(), entry.backward_graph().map(Graph::text)));
            out.guards.push(entry.guards());
            let _table = tp_tensor::symbols::enter(entry.graph().symbols.clone());
            out.breaks.extend(entry.breaks.iter().map(ToString::to_string));
            out.removed.extend(entry.removed.iter().cloned());
            out.regions.extend(entry.regions());
        }
        out
    }
}

impl Drop for CompiledFunction {
    fn drop(&mut self) {
        last::forget(self.id);
    }
}

/// A capture on its way to becoming an entry.
struct Half {
    graph: Graph,
    removed: Vec<passes::Removed>,
    guards: GuardSet,
    lifted: Vec<Tensor>,
    /// Lifted tensors that runs fetch anew, and their places at the host.
    moving: Vec<(u32, u32)>,
    structure: Box<dyn Any + Send + Sync>,
    returned: usize,
    number: usize,
}

#[cold]
fn refused(reason: &FallbackReason) -> Error {
    Error::fallback("TP4101", format!("on_fallback=\"error\": {reason}"))
        .with_reason(reason.clone())
        .note("on_fallback=\"record\" runs it there all the same: the results are right, the times are not the backend's")
}

/// Where each input of a forward graph comes from: arguments in order, then lifted tensors in order.
fn places(graph: &Graph, args: &[Arg<'_>]) -> Box<[Place]> {
    let mut arguments = distinct_tensors(args).into_iter();
    let mut lifted = 0u32..;
    let place = |kind: InputKind| match kind {
        InputKind::Argument => arguments.next().map(Place::Argument),
        InputKind::Lifted => lifted.next().map(Place::Lifted),
        InputKind::Gradient | InputKind::Saved => None,
    };
    graph.inputs.iter().map(|i| i.kind).filter_map(place).collect()
}

/// Argument numbers of the tensors, a tensor that is passed twice counted once.
fn distinct_tensors(args: &[Arg<'_>]) -> Vec<u32> {
    let mut seen: Vec<&Tensor> = Vec::new();
    let mut out = Vec::new();
    for (i, arg) in (0u32..).zip(args) {
        if let Arg::Tensor(t) = arg
            && !seen.iter().any(|s| s.same(t))
        {
            seen.push(t);
            out.push(i);
        }
    }
    out
}

/// Lifted tensors in whose places others may come: nothing is written to any input, and nothing was asked of the tensor
/// or shares its memory, and no gradient is taken beside it. The host is told.
fn moving(
    graph: &Graph,
    args: &[Arg<'_>],
    lifted: &[Tensor],
    (asked, between): (&[Asked], &Between),
    host: &dyn HostGuards,
) -> Vec<(u32, u32)> {
    let memory = Memory::of(graph);
    if graph.inputs.iter().any(|i| memory.is_written(i.value)) {
        return Vec::new();
    }
    let shares = |t: &Tensor| {
        let arguments = args.iter().filter_map(Arg::tensor);
        let others = lifted.iter().filter(|other| !other.same(t)).chain(arguments);
        others.into_iter().any(|other| other.shares_storage(t))
    };
    let mut out = Vec::new();
    for (i, t) in (0u32..).zip(lifted) {
        if let Some(slot) = host.slot_of(t)
            && !shares(t)
            && !asked.iter().any(|a| a.of.same(t))
            && !between.apart.iter().any(|(a, b)| a.same(t) || b.same(t))
        {
            host.release(slot);
            out.push((i, slot));
        }
    }
    out
}

/// What the guards must cover besides the arguments themselves.
fn context(graph: &Graph, args: &[Arg<'_>], lifted: &[Tensor], ops: Vec<OpHandle>) -> Context {
    let memory = Memory::of(graph);
    let inputs = graph.inputs.iter().filter(|i| matches!(i.kind, InputKind::Argument | InputKind::Lifted));
    let inputs: Vec<(Place, bool)> =
        places(graph, args).into_iter().zip(inputs).map(|(p, i)| (p, memory.is_written(i.value))).collect();
    let mut pairs = Vec::new();
    for (a, (place, written)) in inputs.iter().enumerate() {
        for (b, (other, other_written)) in inputs.iter().enumerate() {
            if *written && a != b && (a < b || !other_written) {
                pairs.push((*place, *other));
            }
        }
    }
    Context { memory: pairs, ops, lifted: lifted.to_vec(), ..Context::default() }
}

/// Every op that was captured, those included whose nodes are simplified away.
fn captured_ops(graph: &Graph) -> Vec<OpHandle> {
    let mut ops: Vec<OpHandle> = Vec::new();
    for op in graph.nodes.values().filter_map(|n| n.target.op()) {
        if !ops.contains(&op) {
            ops.push(op);
        }
    }
    ops
}

/// The tape watched every fake for writes, but not the tensors that were lifted.
fn check_saved(forward: &Graph, saved: &[SavedFrom]) -> Result<()> {
    let memory = Memory::of(forward);
    for from in saved {
        let SavedFrom::Input(i) = *from else { continue };
        let Some(input) = forward.inputs.get(i as usize) else { continue };
        if input.kind == InputKind::Lifted && memory.is_written(input.value) {
            let message = format!("{} is needed by the backward, and the function writes to it", input.name);
            return Err(Error::capture("TP4008", message)
                .note("write to a clone(), or pass the tensor as an argument"));
        }
    }
    Ok(())
}

impl CaptureScope {
    /// Ends a capture; nodes recorded from `boundary` on are the backward, those before it the forward.
    fn close_at(self, outputs: Vec<Operand>, boundary: Option<usize>) -> Captured {
        let mut captured = self.close(outputs);
        let ids: Vec<crate::NodeId> = captured.graph.nodes.ids().collect();
        for id in ids {
            let backward = boundary.is_some_and(|b| id.index() >= b);
            captured.graph.nodes[id].phase = if backward { Phase::Backward } else { Phase::Forward };
        }
        captured
    }
}
