//! Stamps: which code ran a region. They are taken where the code ran, one slot per region of a plan.

use crate::plan::Plan;
use crate::report::RegionRun;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use tp_dispatch::select::{KernelEntry, Slot};
use tp_dispatch::state::{self, Sink};
use tp_dispatch::{CodegenMarker, DispatchKey, FallbackReason, OpHandle, Result, marker};
use tp_tensor::Device;

/// What one region left behind.
#[derive(Clone, Default)]
pub(crate) struct Stamp {
    pub marker: Option<Arc<CodegenMarker>>,
    /// Why this run did not use the executor planned.
    pub reason: Option<Box<FallbackReason>>,
}

/// The stamps of one run, one per region.
#[derive(Clone, Default)]
pub(crate) struct Stamps {
    regions: SmallVec<[Stamp; 2]>,
    /// Where the regions of the block that runs begin.
    base: usize,
}

impl Stamps {
    pub fn new(regions: usize) -> Stamps {
        Stamps { regions: SmallVec::from_elem(Stamp::default(), regions), base: 0 }
    }

    /// What is told from now on is of the regions of a block, which begin here among those of the plan around it; gives
    /// back what `leave` takes.
    pub fn enter(&mut self, block: usize) -> usize {
        let around = self.base;
        self.base += block;
        around
    }

    pub fn leave(&mut self, around: usize) {
        self.base = around;
    }

    #[inline]
    pub fn set(&mut self, region: u32, marker: &Arc<CodegenMarker>) {
        if let Some(stamp) = self.regions.get_mut(self.base + region as usize)
            && !stamp.marker.as_ref().is_some_and(|m| Arc::ptr_eq(m, marker))
        {
            stamp.marker = Some(marker.clone());
        }
    }

    /// As `set`, of a marker that nobody else needs.
    #[inline]
    pub fn put(&mut self, region: u32, marker: Arc<CodegenMarker>) {
        if let Some(stamp) = self.regions.get_mut(self.base + region as usize) {
            stamp.marker = Some(marker);
        }
    }

    pub fn set_reason(&mut self, region: u32, reason: FallbackReason) {
        if let Some(stamp) = self.regions.get_mut(self.base + region as usize) {
            stamp.reason = Some(Box::new(reason));
        }
    }

    /// Regions that ran, in order.
    pub fn report(&self, plan: &Plan) -> Vec<RegionRun> {
        let ran = plan.regions.iter().zip(&self.regions).enumerate();
        ran.filter_map(|(index, (region, stamp))| {
            let marker = stamp.marker.clone()?;
            let reason = stamp.reason.as_deref().or(region.reason.as_ref()).cloned();
            Some(RegionRun { index, ops: region.ops.clone(), marker, reason })
        })
        .collect()
    }
}

/// What a registration says of a kernel.
pub(crate) fn registered_marker(op: OpHandle, kernel: &KernelEntry, device: Device) -> CodegenMarker {
    let at = &kernel.provenance;
    CodegenMarker {
        executor: at.executor.clone(),
        kernel: format!("{op}/{}", at.name).into(),
        proof: Some(format!("{}:{}", at.file, at.line).into()),
        device,
    }
}

/// The kernel that the dispatcher takes for `key`, where no condition decides.
fn only_candidate(op: OpHandle, key: DispatchKey) -> Option<Arc<KernelEntry>> {
    if !state::preferences().is_empty() {
        return None;
    }
    candidates(op, key).into_iter().next().filter(|k| !k.is_conditional())
}

/// The kernels that the dispatcher asks for `key`, in its order.
pub(crate) fn candidates(op: OpHandle, key: DispatchKey) -> Vec<Arc<KernelEntry>> {
    let kernels = op.kernels();
    let of = |slot: Slot| kernels.iter().rev().filter(move |k| k.slot == slot);
    of(Slot::Key(key)).chain(of(Slot::Default)).cloned().collect()
}

/// Runs a call and finds out which kernel ran: what it stamped itself, else what the dispatcher chose.
pub(crate) fn watched(
    op: OpHandle,
    device: Device,
    call: impl FnOnce() -> Result<()>,
) -> Result<Option<Arc<CodegenMarker>>> {
    match only_candidate(op, DispatchKey::of(device)) {
        Some(kernel) => {
            drop(marker::take());
            call()?;
            let stamped = marker::take();
            Ok(Some(Arc::new(stamped.unwrap_or_else(|| registered_marker(op, &kernel, device)))))
        }
        None => {
            let listener = Listener::new();
            call()?;
            let events = listener.0.lock();
            let name = op.full_name();
            let event = events.iter().rev().find(|e| *e.op == *name);
            Ok(event.map(|e| Arc::new(e.marker.clone())))
        }
    }
}

/// An event sink in force while it lives.
struct Listener(Sink);

impl Listener {
    fn new() -> Listener {
        let sink: Sink = Arc::new(Mutex::new(Vec::new()));
        state::push_sink(sink.clone());
        Listener(sink)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        state::pop_sink(&self.0);
    }
}
