//! An operator: its fixed slot (`OpHandle`) and the immutable description of the moment (`OpDef`). The slot of an
//! op lives for ever, so a handle that outlives its registration gives an error and never dangles.

use crate::bind::Params;
use crate::effects::Effects;
use crate::grad::GradSpec;
use crate::kernel::{FakeRule, Provenance};
use crate::schema::Schema;
use crate::select::KernelEntry;
use crate::table::DispatchTable;
use parking_lot::Mutex;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use tp_expr::ScalarExpr;

/// Dense number of an op, in order of first definition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u32);

/// What an op is at this moment. Changed only by building another one.
pub struct OpDef {
    pub schema: Arc<Schema>,
    /// The schema compiled for binding arguments.
    pub params: Params,
    pub effects: Effects,
    pub fake: FakeRule,
    pub grad: GradSpec,
    /// The scalar expression of a pointwise op, over its tensor and scalar arguments in schema order.
    pub pointwise: Option<Arc<ScalarExpr>>,
    /// Defined by a user, so that its kernels are checked at every call.
    pub custom: bool,
    /// Free-form words given at registration.
    pub tags: Vec<Arc<str>>,
    pub provenance: Provenance,
}

impl OpDef {
    /// The same definition with another fake rule or gradient.
    pub fn with(&self, fake: Option<FakeRule>, grad: Option<GradSpec>) -> OpDef {
        OpDef {
            schema: self.schema.clone(),
            params: self.params.clone(),
            effects: self.effects,
            fake: fake.unwrap_or_else(|| self.fake.clone()),
            grad: grad.unwrap_or_else(|| self.grad.clone()),
            pointwise: self.pointwise.clone(),
            custom: self.custom,
            tags: self.tags.clone(),
            provenance: self.provenance.clone(),
        }
    }
}

/// The permanent slot of an op name.
pub struct OpEntry {
    pub(crate) id: OpId,
    pub(crate) name: Box<str>,
    pub(crate) table: AtomicPtr<DispatchTable>,
    pub(crate) state: Mutex<OpState>,
}

/// What registrations have said so far; the table is computed from it.
#[derive(Default)]
pub(crate) struct OpState {
    pub def: Option<Arc<OpDef>>,
    pub kernels: Vec<Arc<KernelEntry>>,
    /// Counts definitions, so that caches notice a redefinition.
    pub generation: u64,
    /// Counts what was said of the op itself: definitions, fake rules, gradients.
    pub contract: u64,
    /// Counts every change, kernels included.
    pub revision: u64,
    /// The description as it was defined, for what is registered over parts of it to be taken back.
    pub original: Option<Arc<OpDef>>,
}

/// A copyable handle to an op.
#[derive(Clone, Copy)]
pub struct OpHandle(pub(crate) &'static OpEntry);

impl OpHandle {
    pub fn id(self) -> OpId {
        self.0.id
    }

    /// `ns::name` or `ns::name.overload`.
    pub fn name(self) -> &'static str {
        &self.0.name
    }

    /// `ns::name.overload`, with `default` where no overload is named.
    pub fn full_name(self) -> String {
        let name = self.name();
        let local = name.rsplit("::").next().unwrap_or(name);
        if local.contains('.') { name.to_string() } else { format!("{name}.default") }
    }

    /// The description of the moment; None after unregistration.
    pub fn def(self) -> Option<Arc<OpDef>> {
        self.0.state.lock().def.clone()
    }

    /// Kernels registered so far, newest first per slot.
    pub fn kernels(self) -> Vec<Arc<KernelEntry>> {
        self.0.state.lock().kernels.clone()
    }

    pub fn generation(self) -> u64 {
        self.0.state.lock().generation
    }

    /// Changes when the op gets another definition, fake rule or gradient.
    pub fn contract(self) -> u64 {
        self.0.state.lock().contract
    }

    /// Changes with every registration for the op, kernels included.
    pub fn revision(self) -> u64 {
        self.0.state.lock().revision
    }

    /// Whether every kernel that `key` could run is the one that the op was defined with.
    pub fn runs_own_kernel(self, def: &OpDef, key: crate::DispatchKey) -> bool {
        use crate::select::Slot;
        let state = self.0.state.lock();
        let mut candidates =
            state.kernels.iter().filter(|k| k.slot == Slot::Key(key) || k.slot == Slot::Default);
        candidates.all(|k| k.came_with(def) && !k.is_conditional())
    }

    /// The table of the moment.
    ///
    /// # Safety
    /// The thread is inside `state::CallState::enter`: retired tables are freed only when no thread is.
    #[inline]
    pub(crate) unsafe fn table<'a>(self) -> &'a DispatchTable {
        // SAFETY: never null after construction, and see above.
        unsafe { &*self.0.table.load(Ordering::Acquire) }
    }
}

impl PartialEq for OpHandle {
    #[inline]
    fn eq(&self, other: &OpHandle) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for OpHandle {}

impl Hash for OpHandle {
    fn hash<H: Hasher>(&self, h: &mut H) {
        self.0.id.hash(h);
    }
}

impl fmt::Debug for OpHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for OpHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
