//! Backends: who may run a pointwise region. A backend says whether it is there (`probe`), whether it takes a region
//! (`supports`), and makes something that runs it (`lower`); every refusal is a typed reason. The set is open: a
//! backend is registered by name, and nothing here knows one but the native one, which is always last.

use crate::entity::ValueId;
use crate::ir::Graph;
use crate::raw::RawKernel;
use crate::region::{self, KernelLayout, Space, Uses};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tp_dispatch::{CodegenMarker, FallbackReason, Result};
use tp_expr::Program;
use tp_tensor::{Device, Tensor, TensorSpec};

/// Whether something can be used here, and why not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capability {
    pub name: Arc<str>,
    pub available: bool,
    pub reason: Option<String>,
    pub details: Vec<(String, String)>,
}

impl Capability {
    pub fn available(name: &str) -> Capability {
        Capability { name: name.into(), available: true, reason: None, details: Vec::new() }
    }

    pub fn missing(name: &str, reason: impl Into<String>) -> Capability {
        Capability { name: name.into(), available: false, reason: Some(reason.into()), details: Vec::new() }
    }
}

/// A pointwise region as a backend sees it.
#[derive(Clone, Debug)]
pub struct Region {
    /// Full names of the ops, in order.
    pub ops: Arc<[String]>,
    /// One scalar function: value `k` of its inputs is `reads[k]`. `expand()` writes transcendentals out.
    pub program: Program,
    pub layout: KernelLayout,
    pub device: Device,
    pub inputs: Vec<TensorSpec>,
    pub outputs: Vec<TensorSpec>,
    pub(crate) reads: Vec<ValueId>,
    pub(crate) writes: Vec<ValueId>,
    /// Some size is known in a run only; `layout` is that of the usual run.
    pub symbolic: bool,
    pub(crate) space: Space,
    /// Ops that divide integers, in order, each with the program of its result alone.
    pub(crate) dividers: Arc<[(String, Program)]>,
}

pub trait Backend: Send + Sync {
    fn name(&self) -> &str;
    /// Is it there? Asked before every build; cheap after the first time.
    fn probe(&self) -> Capability;
    fn supports(&self, region: &Region) -> std::result::Result<(), FallbackReason>;
    fn lower(&self, region: &Region) -> std::result::Result<Lowered, FallbackReason>;

    /// Why a region and an op over its rows had better run as one native step; None where this backend wants the region to
    /// itself, and the op is called behind it.
    fn leaves_rows(&self) -> Option<String> {
        None
    }
}

/// What a backend made of a region.
#[derive(Clone)]
pub enum Lowered {
    /// Writes to outputs that are given to it.
    Region(Arc<dyn Executor>),
    /// Code at an address; called from here, without the host.
    Raw(Arc<RawKernel>),
    /// Returns tensors of its own, which are checked against the region's promise.
    Host(Arc<dyn HostExecutor>),
    /// Still being made; the region runs native until it is there.
    Pending(Arc<Pending>),
}

/// Runs one region on given outputs: fresh, contiguous, of the promised types.
pub trait Executor: Send + Sync {
    /// Returns the stamp of what ran.
    fn run(&self, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<Arc<CodegenMarker>>;
}

/// Runs one region and returns its outputs, with the stamp of what ran.
pub trait HostExecutor: Send + Sync {
    fn run(&self, inputs: &[&Tensor]) -> Result<(Vec<Tensor>, Arc<CodegenMarker>)>;

    /// What the stamps of its runs will say, for the list of what was built.
    fn proof(&self) -> Option<Arc<str>> {
        None
    }
}

/// A place that a background build fills in, once.
pub struct Pending {
    started: Instant,
    made: OnceLock<(std::result::Result<Lowered, FallbackReason>, f64)>,
}

impl Pending {
    pub fn new() -> Arc<Pending> {
        Arc::new(Pending { started: Instant::now(), made: OnceLock::new() })
    }

    /// The first answer stays. One that is pending itself counts as none.
    pub fn set(&self, made: std::result::Result<Lowered, FallbackReason>) {
        if !matches!(made, Ok(Lowered::Pending(_))) {
            let _ = self.made.set((made, self.started.elapsed().as_secs_f64()));
        }
    }

    pub fn get(&self) -> Option<&std::result::Result<Lowered, FallbackReason>> {
        self.made.get().map(|(made, _)| made)
    }

    /// How long the answer took.
    pub fn seconds(&self) -> Option<f64> {
        self.made.get().map(|(_, seconds)| *seconds)
    }
}

static BACKENDS: RwLock<BTreeMap<String, Arc<dyn Backend>>> = RwLock::new(BTreeMap::new());

/// Adds a backend, or replaces the one of that name.
pub fn register(backend: Arc<dyn Backend>) {
    let before = BACKENDS.write().insert(backend.name().to_string(), backend);
    drop(before);
}

pub fn get(name: &str) -> Option<Arc<dyn Backend>> {
    BACKENDS.read().get(name).cloned()
}

/// Names people may ask for.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = BACKENDS.read().keys().cloned().collect();
    if !names.iter().any(|n| n == NATIVE) {
        names.insert(0, NATIVE.to_string());
    }
    names
}

/// The backend that is always there.
pub const NATIVE: &str = "native";

/// The native backend by name, so that it can be asked for like any other. The compiler falls back to the same code.
pub struct Native;

impl Backend for Native {
    fn name(&self) -> &str {
        NATIVE
    }

    fn probe(&self) -> Capability {
        Capability::available(NATIVE)
    }

    fn supports(&self, region: &Region) -> std::result::Result<(), FallbackReason> {
        crate::native::supports(region)
    }

    fn lower(&self, region: &Region) -> std::result::Result<Lowered, FallbackReason> {
        crate::native::NativeKernel::compile(region).map(|k| Lowered::Region(Arc::new(k)))
    }
}

impl Graph {
    /// The pointwise regions of this graph, as backends see them.
    pub fn regions(&self) -> Vec<Region> {
        let uses = Uses::of(self);
        let parts = crate::passes::partition::run(self).parts;
        let pointwise = parts.iter().filter(|p| p.opaque.is_none());
        pointwise.filter_map(|p| region::build(self, &uses, &p.nodes).ok()).collect()
    }
}
