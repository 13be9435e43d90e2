//! The rare parts of a node, in a block of their own: hooks, retained gradients, the leaf's `.grad`, and what a host
//! rule keeps.

use super::packed::Packed;
use super::saved::Kept;
use crate::spin::Spin;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use tp_dispatch::host::HostRef;
use tp_dispatch::{DispatchKey, HostVisitor, Result, state};
use tp_tensor::{DType, Device, Dims, Tensor};

/// Called with a gradient before it is used; may replace it.
pub trait GradHook: Send + Sync {
    fn call(&self, grad: &Tensor) -> Result<Option<Tensor>>;
    /// Host objects it owns, for the cycle collector.
    fn trace(&self, _visit: &mut HostVisitor<'_>) {}
}

/// Names a hook so that it can be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HookId(u64);

/// Shape, dtype and device of a tensor that a gradient must fit.
#[derive(Clone, PartialEq, Debug)]
pub struct Spec {
    pub sizes: Dims,
    pub dtype: DType,
    pub device: Device,
}

impl Spec {
    /// That of no tensor.
    pub(super) fn none() -> Spec {
        Spec { sizes: Dims::new(), dtype: DType::Bool, device: Device::CPU }
    }

    #[inline]
    pub fn of(t: &Tensor) -> Spec {
        Spec { sizes: t.sizes_owned(), dtype: t.dtype(), device: t.device() }
    }
}

/// A gradient kept for the user.
pub(crate) type GradSlot = Spin<Kept>;

/// What a leaf's accumulator keeps: it outlives neither the leaf nor the graph, and does not own the leaf.
pub(crate) struct Leaf {
    pub spec: Spec,
    /// Whether the leaf has no data.
    pub fake: bool,
    pub grad: GradSlot,
}

pub(super) struct Hook {
    id: HookId,
    nr: u32,
    hook: Arc<dyn GradHook>,
}

/// Gradients kept for the user, by output.
type Retained = SmallVec<[(u32, Arc<GradSlot>); 1]>;

#[derive(Default)]
pub struct NodeExtra {
    pub(crate) leaf: Option<Leaf>,
    pub(crate) host: AtomicPtr<()>,
    pub(crate) payload: Mutex<Option<HostRef>>,
    pub(super) packed: Mutex<Vec<Packed>>,
    /// Where the node was recorded, while anomalies are looked for.
    pub(crate) location: Option<tp_dispatch::host::Location>,
    /// A hook was set, or a gradient asked for, outside of a capture: one in progress is not what they are for.
    pub(super) outside: AtomicBool,
    pub(super) hooks: Mutex<SmallVec<[Hook; 1]>>,
    pub(super) retained: Mutex<Retained>,
}

static NEXT_HOOK: AtomicU64 = AtomicU64::new(1);

impl NodeExtra {
    pub(crate) fn add_hook(&self, nr: u32, hook: Arc<dyn GradHook>) -> HookId {
        let id = HookId(NEXT_HOOK.fetch_add(1, Ordering::Relaxed));
        self.note_watcher();
        self.hooks.lock().push(Hook { id, nr, hook });
        id
    }

    /// Whether somebody outside of the capture in progress wants to see the gradients.
    pub(crate) fn is_watched_from_outside(&self) -> bool {
        self.outside.load(Ordering::Relaxed)
            && (!self.hooks.lock().is_empty() || !self.retained.lock().is_empty())
    }

    fn note_watcher(&self) {
        if !state::includes(DispatchKey::Capture) {
            self.outside.store(true, Ordering::Relaxed);
        }
    }

    /// Removes a hook; false when it was gone already.
    pub fn remove_hook(&self, id: HookId) -> bool {
        let mut hooks = self.hooks.lock();
        let found = hooks.iter().position(|h| h.id == id).map(|at| hooks.remove(at));
        drop(hooks);
        found.is_some()
    }

    /// Whether the hook is still there.
    pub fn has_hook(&self, id: HookId) -> bool {
        self.hooks.lock().iter().any(|h| h.id == id)
    }

    /// Hooks of output `nr`, in the order they were added.
    pub(crate) fn hooks(&self, nr: u32) -> SmallVec<[Arc<dyn GradHook>; 1]> {
        self.hooks.lock().iter().filter(|h| h.nr == nr).map(|h| h.hook.clone()).collect()
    }

    /// The place for the gradient of output `nr`, from now on filled in every backward pass.
    pub(crate) fn retain_grad(&self, nr: u32) -> Arc<GradSlot> {
        self.note_watcher();
        let mut retained = self.retained.lock();
        if let Some((_, slot)) = retained.iter().find(|(n, _)| *n == nr) {
            return slot.clone();
        }
        let slot = Arc::new(Spin::new(Kept::NONE));
        retained.push((nr, slot.clone()));
        slot
    }

    /// The place for the gradient of output `nr`, if somebody asked for it.
    pub(crate) fn retained(&self, nr: u32) -> Option<Arc<GradSlot>> {
        self.retained.lock().iter().find(|(n, _)| *n == nr).map(|(_, slot)| slot.clone())
    }

    /// Takes out the place for the gradient of output `nr`: its tensor has another history now.
    pub(crate) fn forget_grad(&self, nr: u32) -> Option<Arc<GradSlot>> {
        let mut retained = self.retained.lock();
        let at = retained.iter().position(|(n, _)| *n == nr)?;
        Some(retained.remove(at).1)
    }

    pub(crate) fn keep_grad(&self, nr: u32, slot: Arc<GradSlot>) {
        self.note_watcher();
        self.retained.lock().push((nr, slot));
    }

    /// What the host rule kept at recording.
    pub fn payload(&self) -> Option<HostRef> {
        self.payload.lock().clone()
    }

    /// Reports the host objects of hooks and payload.
    pub fn trace(&self, visit: &mut HostVisitor<'_>) {
        // A thread inside `lock` is not in the collector, so a held lock means that this one is being changed by
        // the thread that collects: its objects are in use and stay.
        // What somebody else holds too is not ours alone, and stays.
        if let Some(hooks) = self.hooks.try_lock() {
            let own = hooks.iter().filter(|h| Arc::strong_count(&h.hook) == 1);
            own.for_each(|h| h.hook.trace(visit));
        }
        if let Some(payload) = self.payload.try_lock()
            && let Some(payload) = &*payload
            && Arc::strong_count(payload) == 1
        {
            payload.trace(visit);
        }
        if let Some(packed) = self.packed.try_lock() {
            packed.iter().for_each(|p| p.trace(visit));
        }
        if let Some(host) = self.leaf.as_ref().and_then(|leaf| leaf.grad.lock().saved().handed()) {
            visit(host);
        }
    }

    /// Gives up what hooks keep of saved tensors.
    pub(crate) fn drop_packed(&self) {
        let packed = std::mem::take(&mut *self.packed.lock());
        drop(packed);
    }

    /// Takes out what may close a cycle, for the caller to drop.
    pub(crate) fn clear(&self) -> impl Sized + use<> {
        let hooks = std::mem::take(&mut *self.hooks.lock());
        let retained = std::mem::take(&mut *self.retained.lock());
        let packed = std::mem::take(&mut *self.packed.lock());
        let grad = self.leaf.as_ref().map(|leaf| leaf.grad.lock().take());
        (hooks, retained, packed, grad, self.payload.lock().take())
    }

    pub(crate) fn with_leaf(spec: Spec, fake: bool) -> Box<NodeExtra> {
        Box::new(NodeExtra {
            leaf: Some(Leaf { spec, fake, grad: Spin::new(Kept::NONE) }),
            host: AtomicPtr::new(ptr::null_mut()),
            ..NodeExtra::default()
        })
    }
}
