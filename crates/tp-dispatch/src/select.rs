//! Several kernels for one key: an ordered list, newest first; the first that is enabled, whose predicate holds
//! and whose layouts fit runs, and every one passed over has a reason.

use crate::error::Result;
use crate::kernel::{Call, Kernel, Provenance};
use crate::key::DispatchKey;
use crate::outcome::FallbackReason;
use crate::state::Preference;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tp_tensor::Device;

/// Where a kernel is registered: for one device, or for every device that has none of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Slot {
    Key(DispatchKey),
    Default,
}

impl Slot {
    pub fn name(self) -> &'static str {
        match self {
            Slot::Key(k) => k.name(),
            Slot::Default => "default",
        }
    }
}

/// Decides whether a kernel takes a call. A host predicate may raise; the error goes to the caller.
pub trait Predicate: Send + Sync {
    fn holds(&self, call: &Call<'_>) -> Result<bool>;
    fn describe(&self) -> String;
    fn trace(&self, visit: &mut crate::host::HostVisitor<'_>);
}

/// One registered kernel.
pub struct KernelEntry {
    pub id: u64,
    pub slot: Slot,
    pub kernel: Kernel,
    pub provenance: Provenance,
    pub when: Option<Arc<dyn Predicate>>,
    /// Arguments that must be contiguous for this kernel.
    pub contiguous: Box<[usize]>,
    /// The function that the op was made of, on the devices that it was made for: no other kernel takes its place, and
    /// no switch of a device takes it away, as none takes away a body for all devices.
    pub body: bool,
    /// The kernel of the same name that this one took the place of, while the registration may still be undone.
    pub(crate) below: Mutex<Option<Arc<KernelEntry>>>,
    /// Its registration was undone: it does not come back from below another one.
    pub(crate) undone: AtomicBool,
    /// Its registration will not be undone: it goes with the definition.
    pub(crate) kept: AtomicBool,
}

impl KernelEntry {
    pub fn name(&self) -> &str {
        &self.provenance.name
    }

    /// Whether it came with the definition, as the kernels of built-in ops do.
    pub fn came_with(&self, def: &crate::OpDef) -> bool {
        let (own, at) = (&self.provenance, &def.provenance);
        !def.custom && own.line == at.line && own.file == at.file && own.executor == at.executor
    }

    /// The nearest kernel below that is still registered.
    pub(crate) fn revived(&self) -> Option<Arc<KernelEntry>> {
        let mut next = self.below.lock().clone();
        while let Some(entry) = next {
            if !entry.undone.load(Ordering::Acquire) {
                return Some(entry);
            }
            next = entry.below.lock().clone();
        }
        None
    }

    pub fn is_conditional(&self) -> bool {
        self.when.is_some() || !self.contiguous.is_empty()
    }

    /// Runs this kernel and no other; what the op writes to counts as written.
    pub fn run(&self, call: &Call<'_>, rets: &mut crate::Rets) -> Result<()> {
        if call.def.effects.mutates {
            return crate::check::writing(call, || self.kernel.call(call, rets));
        }
        self.kernel.call(call, rets)
    }

    /// Why this kernel does not take the call, or None.
    fn refuses(&self, call: &Call<'_>, prefs: &[Preference]) -> Result<Option<FallbackReason>> {
        let mut enabled = true;
        for p in prefs.iter().filter(|p| p.op == call.op) {
            enabled = p.enables(self).unwrap_or(enabled);
        }
        if !enabled {
            return Ok(Some(FallbackReason::Disabled { kernel: self.name().to_string() }));
        }
        for &i in &self.contiguous {
            let mut bad = None;
            if let Some(arg) = call.args.get(i) {
                arg.for_each_tensor(|t| bad = bad.or((!t.is_contiguous()).then_some(t)));
            }
            if let Some(t) = bad {
                let value = call.def.params.name(i).unwrap_or("?").to_string();
                let got = format!("strides {:?}", t.strides());
                return Ok(Some(FallbackReason::Layout { value, got, wanted: "contiguous".to_string() }));
            }
        }
        if let Some(when) = &self.when
            && !when.holds(call)?
        {
            let why = format!("{} is false", when.describe());
            return Ok(Some(FallbackReason::Predicate { kernel: self.name().to_string(), why }));
        }
        Ok(None)
    }
}

/// Kernels passed over, each with its reason.
pub type Rejected = Vec<(String, FallbackReason)>;

/// The kernel that takes the call. `list` is in order of preference without the context's wishes.
pub(crate) fn choose<'t>(
    list: &'t [Arc<KernelEntry>],
    call: &Call<'_>,
    prefs: &[Preference],
    rejected: &mut Rejected,
) -> Result<Option<&'t Arc<KernelEntry>>> {
    let wanted = prefs.iter().rev().find_map(|p| p.prefers(call.op));
    let front = list.iter().filter(|k| wanted.is_some_and(|w| w == k.name()));
    let rest = list.iter().filter(|k| wanted.is_none_or(|w| w != k.name()));
    for entry in front.chain(rest) {
        match entry.refuses(call, prefs)? {
            None => return Ok(Some(entry)),
            Some(reason) => rejected.push((entry.name().to_string(), reason)),
        }
    }
    Ok(None)
}

/// What a registration says about a kernel's marker before it stamps one of its own.
pub(crate) fn static_marker(entry: &KernelEntry, op: &str, device: Device) -> crate::CodegenMarker {
    let kernel = format!("{op}/{}", entry.name());
    let proof = format!("{}:{}", entry.provenance.file, entry.provenance.line);
    crate::CodegenMarker {
        executor: entry.provenance.executor.clone(),
        kernel: kernel.into(),
        proof: Some(proof.into()),
        device,
    }
}
