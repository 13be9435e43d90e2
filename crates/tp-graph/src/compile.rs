//! Compiled functions: entries found by their guards, made on a miss, up to a limit. Finding and running take no lock
//! and count no reference; entries are only ever added.

use crate::backend::Backend;
use crate::capture::{self, CaptureScope, Captured};
use crate::entity::Entity;
use crate::entry::{Direct, Entry, Held};
use crate::guard::{Context, GuardSet};
use crate::guard_sizes::SizeGuards;
use crate::host_guards::HostGuards;
use crate::inputs::{captured_ops, context, moving, places};
use crate::ir::{Graph, InputKind, Operand};
use crate::joint::{self, Joint};
use crate::last;
use crate::lower::{self, Artifacts};
use crate::passes::partition::Break;
use crate::passes::{self, Memory};
use crate::report::{Build, Explanation, FallbackPolicy, Recompile, RunReport};
use crate::sizing::{Dynamic, Mark, Sizing, Wanted};
use crate::split::{self, SavedFrom};
use crate::training::{Training, Typed};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use tp_dispatch::{Arg, CodegenMarker, Error, ErrorKind, FallbackReason, Phase, Result, Rets, Value};
use tp_tensor::symbols::Symbols;
use tp_tensor::{Device, Tensor};

#[derive(Clone)]
pub struct CompileOptions {
    /// In order of preference; native code is always last.
    pub backends: Vec<Arc<dyn Backend>>,
    pub policy: FallbackPolicy,
    /// Captures of one function, at most.
    pub limit: usize,
    /// When sizes of arguments are symbols.
    pub dynamic: Dynamic,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            backends: Vec::new(),
            policy: FallbackPolicy::Record,
            limit: 8,
            dynamic: Dynamic::Auto,
        }
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
    /// Somebody has been told that the limit is reached.
    is_limit_told: AtomicBool,
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
            is_limit_told: AtomicBool::new(false),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn options(&self) -> &CompileOptions {
        &self.options
    }

    /// The first entry whose guards hold.
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
    pub fn call(&self, args: &[Arg<'_>], rets: &mut Rets) -> Result<Option<&Arc<Entry>>> {
        let Some(entry) = self.find(args) else { return Ok(None) };
        // SAFETY: its guards hold.
        unsafe { entry.run_guarded(args, rets)? };
        Ok(Some(entry))
    }

    /// As `call`, on a thread without modes (`state::is_plain`), where the first entry whose guards hold is one short
    /// region with one result; None where `call` has to do it.
    #[inline(always)]
    pub fn call_plainly(&self, args: &[Arg<'_>]) -> Option<(Result<Tensor>, &Arc<Entry>)> {
        for place in &self.entries {
            let entry = place.get()?;
            if entry.guards.holds_plainly(args) {
                // SAFETY: its guards hold.
                return Some((unsafe { entry.run_direct(args)? }, entry));
            }
        }
        None
    }

    /// Captures and compiles the function for these arguments, unless an entry serves them already. Axes that the caller
    /// marked have sizes that are symbols.
    pub fn build(
        &self,
        args: &[Arg<'_>],
        names: &[Arc<str>],
        marks: &[Mark],
        f: &mut CaptureFn<'_>,
    ) -> Result<Built> {
        if let Some(entry) = self.find(args) {
            return Ok(Built::Entry(entry.clone()));
        }
        let known: Vec<&Arc<Entry>> = self.entries.iter().map_while(OnceLock::get).collect();
        let missed = known.last().and_then(|e| e.guards.check(args).err());
        if known.len() == self.entries.len() {
            return self.over_limit(missed);
        }
        let guards = known.iter().map(|e| e.guards.arguments());
        let wanted = Wanted::of(self.options.dynamic, args, marks, guards);
        let table = Symbols::new();
        let mut made = self.compile(known.len(), args, names, (&wanted, &table), f);
        // What cannot be captured with symbols is captured with the sizes as they are. A function may have caught the
        // error that said so; the host notes an exception that may come of symbols.
        let failed = made.as_ref().is_err_and(|e| e.kind() != ErrorKind::Host);
        if marks.is_empty() && !wanted.is_empty() && (failed || table.has_given_up()) {
            made = self.compile(known.len(), args, names, (&Wanted::default(), &Symbols::new()), f);
        }
        let entry = Arc::new(made?);
        if let (Some(reason), FallbackPolicy::Error) = (entry.fallbacks().first(), self.options.policy) {
            return Err(refused(reason, Some(&entry)));
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
                // Another thread was here a moment before.
                Err(back) => match place.get().filter(|other| other.guards.holds(args)) {
                    Some(other) => return Ok(Built::Entry(other.clone())),
                    None => entry = back,
                },
            }
        }
        self.over_limit(missed)
    }

    #[cold]
    fn over_limit(&self, missed: Option<String>) -> Result<Built> {
        let guard = missed.unwrap_or_default();
        let reason = FallbackReason::RecompileLimit { limit: self.entries.len(), guard };
        match self.options.policy {
            FallbackPolicy::Error => Err(refused(&reason, None)),
            FallbackPolicy::Record | FallbackPolicy::Warn => Ok(Built::Eager(reason)),
        }
    }

    /// True once: for the first who meets the limit, whom the host warns.
    pub fn tell_limit(&self) -> bool {
        !self.is_limit_told.swap(true, Ordering::Relaxed)
    }

    fn compile(
        &self,
        number: usize,
        args: &[Arg<'_>],
        names: &[Arc<str>],
        (wanted, table): (&Wanted, &Arc<Symbols>),
        f: &mut CaptureFn<'_>,
    ) -> Result<Entry> {
        let scope = CaptureScope::over(table.clone());
        let sizing = Sizing::declare(table, args, wanted);
        let fakes = capture::fake_inputs_as(&scope, args, names, &|i, t| sizing.spec(i, t))?;
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
        let Captured { graph, lifted, own, .. } = scope.close_at(all, joint.as_ref().map(|j| j.boundary))?;
        table.close();
        let sizes = SizeGuards::new(&sizing, table);
        sizing.check_marks(table, names)?;
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
            sizing,
            sizes,
            ..context(&graph, args, &lifted, ops)
        };
        let guards = GuardSet::new(args, names, context);
        let folded = passes::fold::run(&graph);
        let removed = [removed, folded.removed].concat();
        let own = [own, vec![true; folded.constants.len()]].concat();
        let held = Held { own, tensors: [lifted, folded.constants].concat() };
        let graph = folded.graph;
        let half = Half { graph, removed, guards, held, moving, structure, returned, number };
        match joint {
            Some(joint) if !joint.outputs.is_empty() => self.training(half, joint, args),
            _ => self.inference(half, args),
        }
    }

    fn inference(&self, half: Half, args: &[Arg<'_>]) -> Result<Entry> {
        let Half { mut graph, removed, guards, held, moving, structure, returned, number } = half;
        graph.outputs.truncate(returned);
        let (plan, breaks) = lower::plan(&graph, &self.options.backends, &self.artifacts)?;
        let inputs = places(&graph, args);
        let function = self.id;
        let direct = Direct::new(&plan, &inputs);
        Ok(Entry {
            direct,
            number,
            function,
            guards,
            graph,
            plan,
            inputs,
            held,
            moving: moving.into(),
            returned,
            training: None,
            removed,
            breaks,
            structure,
        })
    }

    fn training(&self, half: Half, joint: Joint, args: &[Arg<'_>]) -> Result<Entry> {
        let Half { graph, removed, guards, held, moving, structure, returned, number } = half;
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
            kept: split.kept,
        };
        let inputs = places(&split.forward, args);
        Ok(Entry {
            direct: None,
            number,
            function: self.id,
            guards,
            graph: split.forward,
            plan,
            inputs,
            held,
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

    /// The guard that no entry held when the entry of that number was made; None for the first one.
    pub fn missed(&self, entry: usize) -> Option<String> {
        self.recompiles.lock().iter().find(|r| r.graph == entry).map(|r| r.guard.clone())
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
            out.memory.extend(entry.memory());
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
    held: Held,
    /// Lifted tensors that runs fetch anew, and their places at the host.
    moving: Vec<(u32, u32)>,
    structure: Box<dyn Any + Send + Sync>,
    returned: usize,
    number: usize,
}

/// `entry` is where the reason is a node's or a region's.
#[cold]
fn refused(reason: &FallbackReason, entry: Option<&Entry>) -> Error {
    let mut error = Error::fallback("TP4101", format!("on_fallback=\"error\": {reason}"));
    let graphs = || entry.into_iter().flat_map(|e| std::iter::once(e.graph()).chain(e.backward_graph()));
    let named = |wanted: &str| {
        let mut nodes = graphs().flat_map(|g| g.nodes.values().map(move |n| (g, n)));
        nodes.find(|(_, n)| n.target.name() == wanted)
    };
    // A backend names the operation of a region that it does not take; the op is then one of the region's.
    let region = entry.into_iter().flat_map(Entry::regions).find(|r| r.reason.as_ref() == Some(reason));
    let region = region.as_ref().map_or(&[][..], |r| &r.ops);
    if let Some((graph, node)) = reason.op().and_then(named) {
        error = error.note(format!("the node: {}", graph.node_text(node)));
    } else if let Some((graph, node)) = region.first().and_then(|op| named(op)) {
        let (shown, more) = region.split_at(region.len().min(4));
        let of = match more.len() {
            _ if region.len() == 1 => String::new(),
            0 => format!(" of {}", shown.join(", ")),
            more => format!(" of {} and {more} more", shown.join(", ")),
        };
        error = error.note(format!("the region{of} begins at: {}", graph.node_text(node)));
    }
    error
        .with_reason(reason.clone())
        .note("on_fallback=\"record\" runs it there all the same: the results are right, the times are not the backend's")
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
    fn close_at(self, outputs: Vec<Operand>, boundary: Option<usize>) -> Result<Captured> {
        let mut captured = self.close(outputs)?;
        let ids: Vec<crate::NodeId> = captured.graph.nodes.ids().collect();
        for id in ids {
            let backward = boundary.is_some_and(|b| id.index() >= b + captured.copies);
            captured.graph.nodes[id].phase = if backward { Phase::Backward } else { Phase::Forward };
        }
        Ok(captured)
    }
}
