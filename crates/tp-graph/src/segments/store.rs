//! What a function in segments has compiled so far: one compiled function per structure of a piece, up to a limit; and
//! where its calls broke off.

use super::queue::Step;
use super::replay::Key;
use crate::compile::{CompileOptions, CompiledFunction};
use crate::entry::Entry;
use crate::last::{self, Last};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tp_dispatch::host::Location;
use tp_dispatch::{CodegenMarker, FallbackReason};
use tp_tensor::Device;

/// Structures of segments that one function keeps compiled.
const STRUCTURES: usize = 64;
/// Breaks that are kept for the report, each place once.
const BREAKS: usize = 256;
/// Kinds of arguments for which a capture of the whole function was refused; then no more are tried.
const REFUSALS: usize = 8;

/// Where a call broke off, and why.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Break {
    pub code: Cow<'static, str>,
    pub text: String,
    pub location: Option<Location>,
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.code, self.text)?;
        self.location.as_ref().map_or(Ok(()), |at| write!(f, ", at {at}"))
    }
}

/// A new entry of a segment, and the function that it is of.
pub type Fresh = (Arc<CompiledFunction>, Arc<Entry>);

pub struct Store {
    /// Number of the compiled function.
    id: u32,
    options: CompileOptions,
    cores: Mutex<Cores>,
    breaks: Mutex<Vec<Break>>,
    /// Breaks that nobody has been told of.
    untold: Mutex<Vec<Break>>,
    fresh: Mutex<Vec<Fresh>>,
    refused: Mutex<HashSet<u64>>,
    is_settled: AtomicBool,
    eager: Arc<CodegenMarker>,
}

#[derive(Default)]
struct Cores {
    by_key: HashMap<u64, Vec<Known>>,
    in_order: Vec<Arc<CompiledFunction>>,
}

struct Known {
    key: Key,
    core: Arc<CompiledFunction>,
    /// Why it is not compiled any more.
    failed: Option<FallbackReason>,
}

pub(super) enum Core {
    Known(Arc<CompiledFunction>),
    /// Its steps run one by one, for that reason.
    None(FallbackReason),
}

impl Store {
    /// For the function whose whole captures are `function`.
    pub fn new(function: &CompiledFunction) -> Store {
        let eager = CodegenMarker {
            executor: "eager".into(),
            kernel: "segment".into(),
            proof: None,
            device: Device::CPU,
        };
        Store {
            id: function.id(),
            options: function.options().clone(),
            cores: Mutex::default(),
            breaks: Mutex::default(),
            untold: Mutex::default(),
            fresh: Mutex::default(),
            refused: Mutex::default(),
            is_settled: AtomicBool::new(false),
            eager: Arc::new(eager),
        }
    }

    /// Whether a capture of the whole function is worth trying for arguments of that kind.
    pub fn may_capture(&self, kind: u64) -> bool {
        let refused = self.refused.lock();
        refused.len() < REFUSALS && !refused.contains(&kind)
    }

    /// The whole function was refused for arguments of that kind.
    pub fn refuse(&self, kind: u64, why: Break) {
        self.refused.lock().insert(kind);
        self.note(why);
    }

    pub(super) fn note_break(&self, code: &'static str, text: String, location: Option<Location>) {
        self.note(Break { code: code.into(), text, location });
    }

    fn note(&self, one: Break) {
        let mut breaks = self.breaks.lock();
        let is_known = |b: &Break| b.location == one.location && *b == one;
        if breaks.len() < BREAKS && !breaks.iter().any(is_known) {
            breaks.push(one.clone());
            drop(breaks);
            self.untold.lock().push(one);
        }
    }

    /// Where calls broke off so far.
    pub fn breaks(&self) -> Vec<Break> {
        self.breaks.lock().clone()
    }

    /// New breaks and new entries since this was asked last.
    pub fn take_news(&self) -> (Vec<Break>, Vec<Fresh>) {
        (std::mem::take(&mut *self.untold.lock()), std::mem::take(&mut *self.fresh.lock()))
    }

    /// What is compiled, in the order in which it was met.
    pub fn functions(&self) -> Vec<Arc<CompiledFunction>> {
        self.cores.lock().in_order.clone()
    }

    pub(super) fn core(&self, key: &Key) -> Core {
        let mut cores = self.cores.lock();
        let Cores { by_key, in_order } = &mut *cores;
        let alike = by_key.entry(key.hash).or_default();
        if let Some(known) = alike.iter().find(|known| known.key == *key) {
            return match &known.failed {
                Some(reason) => Core::None(reason.clone()),
                None => Core::Known(known.core.clone()),
            };
        }
        if in_order.len() >= STRUCTURES {
            let guard = "a segment of another structure".to_string();
            return Core::None(FallbackReason::RecompileLimit { limit: STRUCTURES, guard });
        }
        let core = Arc::new(CompiledFunction::new(self.options.clone()));
        alike.push(Known { key: key.clone(), core: core.clone(), failed: None });
        in_order.push(core.clone());
        Core::Known(core)
    }

    /// Segments of that structure cannot be compiled.
    pub(super) fn give_up(&self, key: &Key, reason: FallbackReason) {
        let mut cores = self.cores.lock();
        let known = cores.by_key.get_mut(&key.hash).into_iter().flatten().find(|known| known.key == *key);
        if let Some(known) = known {
            known.failed = Some(reason);
        }
    }

    pub(super) fn built(&self, core: &Arc<CompiledFunction>, entry: &Arc<Entry>) {
        self.fresh.lock().push((core.clone(), entry.clone()));
    }

    pub(super) fn eager_part(&self, reason: &FallbackReason, steps: &[Step]) -> Last {
        let ops = steps.iter().map(|step| step.op.full_name()).collect();
        last::eager(reason, &self.eager, ops)
    }

    pub(super) fn is_cold(&self) -> bool {
        !self.is_settled.load(Ordering::Relaxed)
    }

    pub(super) fn ended(&self, parts: Vec<Last>, has_built: bool) {
        self.is_settled.store(!has_built, Ordering::Relaxed);
        last::note_parts(self.id, parts);
    }
}
