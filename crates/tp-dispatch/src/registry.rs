//! The registry: names to op slots, and what was registered for each. Every change computes a new dispatch table
//! and retires the old one. No lock is held while anything foreign is called or dropped.

use crate::epoch;
use crate::error::{Error, Result};
use crate::host::HostVisitor;
use crate::kernel::{Kernel, KernelFn, OneFn, Provenance};
use crate::key::{DispatchKey, KEY_COUNT};
use crate::op::{OpDef, OpEntry, OpHandle, OpId, OpState};
use crate::select::{KernelEntry, Predicate, Slot};
use crate::table::{DispatchTable, Layer, Layers};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// All ops of the process.
pub struct Registry {
    ops: RwLock<BTreeMap<Box<str>, OpHandle>>,
    layers: RwLock<Layers>,
    next_id: AtomicU64,
}

static REGISTRY: Registry = Registry {
    ops: RwLock::new(BTreeMap::new()),
    layers: RwLock::new([None; KEY_COUNT]),
    next_id: AtomicU64::new(1),
};

/// Counts changes to any op, so that whoever depends on some of them can see in one load that nothing happened.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// The number of changes so far.
#[inline]
pub fn changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// A kernel as a registration describes it.
pub struct KernelSpec {
    pub slot: Slot,
    pub kernel: Kernel,
    pub provenance: Provenance,
    pub when: Option<Arc<dyn Predicate>>,
    pub contiguous: Box<[usize]>,
}

/// What a definition brings along.
#[derive(Default)]
pub struct Parts {
    pub kernels: Vec<KernelSpec>,
    /// So many of the kernels, from the first, are the op's own body; see `KernelEntry::body`.
    pub bodies: usize,
    /// The fake rule in force; the one of the definition comes back when it is taken away.
    pub fake: Option<crate::FakeRule>,
}

/// What dropping undoes. `keep` makes it permanent.
#[must_use = "dropping a registration undoes it"]
pub struct Registration {
    op: OpHandle,
    what: Undo,
}

enum Undo {
    Nothing,
    Kernel(Arc<KernelEntry>),
    Definition(u64),
}

impl Registration {
    pub fn keep(mut self) {
        if let Undo::Kernel(entry) = std::mem::replace(&mut self.what, Undo::Nothing) {
            entry.kept.store(true, Ordering::Release);
            let below = entry.below.lock().take();
            drop(below);
        }
    }

    pub fn op(&self) -> OpHandle {
        self.op
    }

    /// Reports the host objects that live by this registration alone, for the host's cycle collector: those of a
    /// kernel, or of a definition with the kernels that were registered for it for good; `of_grad` reports those of a
    /// gradient rule. Nothing of a kernel that somebody else holds, nor while the op is being changed: a collection
    /// may overlook garbage, and never takes what is in use. What was reported is dropped by dropping this.
    pub fn trace(
        &self,
        visit: &mut HostVisitor<'_>,
        of_grad: impl FnOnce(&crate::GradSpec, &mut HostVisitor<'_>),
    ) {
        let Some(state) = self.op.0.state.try_lock() else { return };
        match &self.what {
            Undo::Nothing => {}
            Undo::Kernel(entry) => state.trace_kernel(self.op, entry, 1, visit),
            Undo::Definition(generation) => {
                let Some(def) = state.def.as_ref().filter(|_| state.generation == *generation) else {
                    return;
                };
                for entry in state.kernels.iter().filter(|k| k.kept.load(Ordering::Acquire)) {
                    state.trace_kernel(self.op, entry, 0, visit);
                }
                if let crate::FakeRule::Object(rule) = &def.fake {
                    rule.trace(visit);
                }
                of_grad(&def.grad, visit);
            }
        }
    }
}

impl OpState {
    /// Reports what `entry` holds, if nobody has it but `others`, this state and the table that goes with it.
    fn trace_kernel(
        &self,
        op: OpHandle,
        entry: &Arc<KernelEntry>,
        others: usize,
        visit: &mut HostVisitor<'_>,
    ) {
        // SAFETY: a table is swapped out with the state locked, as it is here, and freed after that.
        let table = unsafe { op.table() };
        let listed = self.kernels.iter().filter(|k| Arc::ptr_eq(k, entry)).count();
        let is_below = |k: &&Arc<KernelEntry>| {
            k.below.try_lock().is_some_and(|below| below.as_ref().is_some_and(|b| Arc::ptr_eq(b, entry)))
        };
        let below = self.kernels.iter().filter(is_below).count();
        let (candidates, cells) = table.uses(entry);
        let Kernel::Object(kernel) = &entry.kernel else { return };
        if Arc::strong_count(entry) == others + listed + below + candidates
            && Arc::strong_count(kernel) == 1 + cells
        {
            kernel.trace(visit);
            if let Some(when) = &entry.when {
                when.trace(visit);
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        match &self.what {
            Undo::Nothing => {}
            Undo::Kernel(entry) => {
                entry.undone.store(true, Ordering::Release);
                let back = entry.revived();
                self.op.update(|s| take_back(&mut s.kernels, entry, back));
            }
            Undo::Definition(generation) => {
                self.op.update(|s| {
                    if s.generation == *generation {
                        s.contract += 1;
                        s.original = None;
                        s.def = None;
                        s.kernels.clear();
                    }
                });
            }
        }
    }
}

/// Puts a kernel in front; it takes the place of one of the same name and slot, and remembers that one. The op's own
/// body stays behind.
fn place(kernels: &mut Vec<Arc<KernelEntry>>, entry: &Arc<KernelEntry>) {
    let same = |k: &Arc<KernelEntry>| k.slot == entry.slot && k.name() == entry.name() && !k.body;
    if let Some(at) = kernels.iter().position(same) {
        *entry.below.lock() = Some(kernels.remove(at));
    }
    kernels.push(entry.clone());
}

/// Takes a kernel out of the list; the one it stood in front of comes back to its own place.
fn take_back(kernels: &mut Vec<Arc<KernelEntry>>, entry: &KernelEntry, back: Option<Arc<KernelEntry>>) {
    let Some(at) = kernels.iter().position(|k| k.id == entry.id) else { return };
    kernels.remove(at);
    if let Some(back) = back {
        let at = kernels.partition_point(|k| k.id < back.id);
        kernels.insert(at, back);
    }
}

impl Registry {
    pub fn global() -> &'static Registry {
        &REGISTRY
    }

    /// The op of that exact name (`ns::name` or `ns::name.overload`), if it is defined now.
    pub fn get(&self, name: &str) -> Option<OpHandle> {
        let name = name.strip_suffix(".default").unwrap_or(name);
        let op = self.ops.read().get(name).copied()?;
        op.is_defined().then_some(op)
    }

    pub fn lookup(&self, name: &str) -> Result<OpHandle> {
        self.get(name).ok_or_else(|| {
            if self.ops.read().contains_key(name.strip_suffix(".default").unwrap_or(name)) {
                return crate::table::unregistered_error(name);
            }
            let mut e = Error::registration("TP1301", format!("no operator named '{name}'"));
            if let Some(near) = self.closest(name) {
                e = e.note(format!("did you mean '{near}'?"));
            }
            e
        })
    }

    /// Ops defined now, by name; of one namespace when given.
    pub fn list(&self, namespace: Option<&str>) -> Vec<OpHandle> {
        let ops = self.ops.read();
        let in_namespace = |name: &str| namespace.is_none_or(|ns| name.split("::").next() == Some(ns));
        ops.iter()
            .filter(|(name, _)| in_namespace(name))
            .map(|(_, op)| *op)
            .filter(|op| op.is_defined())
            .collect()
    }

    /// The op that a misspelt name most likely means: the same name elsewhere, else the fewest letters away.
    fn closest(&self, name: &str) -> Option<String> {
        let tail = |n: &str| n.rsplit("::").next().unwrap_or(n).to_string();
        let (wanted, defined) = (tail(name), self.list(None));
        if let Some(op) = defined.iter().find(|op| tail(op.name()) == wanted) {
            return Some(op.name().to_string());
        }
        // Of two as near, the one that was begun or gone past.
        let apart =
            |n: &str| (crate::bind::edit_distance(name, n), !(n.starts_with(name) || name.starts_with(n)));
        let near = defined.iter().map(|op| (apart(op.name()), op.name())).min()?;
        let length = wanted.split('.').next().map_or(0, str::len);
        (near.0.0 <= 1 + length / 4).then(|| near.1.to_string())
    }

    /// Defines an op, or gives it another definition when `replace` is set. Kernels of an earlier definition go.
    pub fn define(&self, name: &str, def: OpDef, replace: bool) -> Result<Registration> {
        self.define_whole(name, def, Parts::default(), replace).map(|(definition, _)| definition)
    }

    /// As `define`, with what belongs to the definition: a call meets the op as it was before or all of this.
    /// The registrations of the parts come in their order.
    pub fn define_whole(
        &self,
        name: &str,
        def: OpDef,
        parts: Parts,
        replace: bool,
    ) -> Result<(Registration, Vec<Registration>)> {
        let op = self.slot(name);
        let original = Arc::new(def);
        let def = match parts.fake {
            None => original.clone(),
            Some(fake) => Arc::new(original.with(Some(fake), None)),
        };
        let numbered = parts.kernels.into_iter().enumerate();
        let entries: Vec<_> = numbered.map(|(i, spec)| self.entry(spec, i < parts.bodies)).collect();
        let mut clash = None;
        let mut generation = 0;
        op.update(|s| {
            if let (Some(old), false) = (&s.def, replace) {
                clash = Some(old.provenance.clone());
                return;
            }
            s.def = Some(def.clone());
            s.kernels.clear();
            s.original = Some(original.clone());
            s.contract += 1;
            s.generation += 1;
            generation = s.generation;
            for entry in &entries {
                place(&mut s.kernels, entry);
            }
        });
        match clash {
            None => {
                let kernels = entries.into_iter().map(|e| Registration { op, what: Undo::Kernel(e) });
                let kernels = kernels.collect();
                Ok((Registration { op, what: Undo::Definition(generation) }, kernels))
            }
            Some(old) => Err(Error::registration(
                "TP1302",
                format!("operator '{name}' is already defined at {}:{}", old.file, old.line),
            )
            .note(format!("the new definition is at {}:{}", def.provenance.file, def.provenance.line))
            .note("choose another name, or pass override=True")),
        }
    }

    /// Changes the description of an op (its fake rule, its gradient) and keeps its kernels.
    pub fn redefine(&self, op: OpHandle, change: impl FnOnce(&OpDef) -> OpDef) -> Result<()> {
        let mut missing = false;
        op.update(|s| match &s.def {
            Some(old) => {
                s.def = Some(Arc::new(change(old)));
                s.contract += 1;
            }
            None => missing = true,
        });
        if missing { Err(crate::table::unregistered_error(op.name())) } else { Ok(()) }
    }

    /// The fake rule that the op was defined with.
    pub fn original_fake(&self, op: OpHandle) -> crate::FakeRule {
        op.0.state.lock().original.as_ref().map_or(crate::FakeRule::Missing, |d| d.fake.clone())
    }

    /// Adds a kernel. One of the same name in the same slot is replaced.
    pub fn register_kernel(&self, op: OpHandle, spec: KernelSpec) -> Result<Registration> {
        let entry = self.entry(spec, false);
        let mut missing = false;
        op.update(|s| match s.def {
            None => missing = true,
            Some(_) => place(&mut s.kernels, &entry),
        });
        if missing {
            return Err(crate::table::unregistered_error(op.name()));
        }
        Ok(Registration { op, what: Undo::Kernel(entry) })
    }

    fn entry(&self, spec: KernelSpec, body: bool) -> Arc<KernelEntry> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let KernelSpec { slot, kernel, provenance, when, contiguous } = spec;
        let (below, undone, kept) = (Mutex::new(None), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(KernelEntry { id, slot, kernel, provenance, when, contiguous, body, below, undone, kept })
    }

    /// Installs the fallback kernel of a layer, for every op.
    pub fn install_layer(&self, key: DispatchKey, kernel: KernelFn) {
        self.install(key, Layer { call: kernel, one: None });
    }

    /// As `install_layer`, with a form for ops that return one tensor. Only the Autograd layer's is used.
    pub fn install_layer_with(&self, key: DispatchKey, kernel: KernelFn, one: OneFn) {
        self.install(key, Layer { call: kernel, one: Some(one) });
    }

    fn install(&self, key: DispatchKey, layer: Layer) {
        self.layers.write()[key as usize] = Some(layer);
        let ops: Vec<OpHandle> = self.ops.read().values().copied().collect();
        for op in ops {
            op.update(|_| {});
        }
    }

    /// A fresh number for kernels and contexts.
    pub fn token(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    fn slot(&self, name: &str) -> OpHandle {
        if let Some(op) = self.ops.read().get(name) {
            return *op;
        }
        let mut ops = self.ops.write();
        if let Some(op) = ops.get(name) {
            return *op;
        }
        let empty = Box::into_raw(Box::new(DispatchTable::unregistered()));
        let entry = OpEntry {
            id: OpId(ops.len() as u32),
            name: name.into(),
            table: AtomicPtr::new(empty),
            state: Mutex::new(OpState::default()),
        };
        // The slot of an op lives for ever: handles are kept everywhere.
        let op = OpHandle(Box::leak(Box::new(entry)));
        ops.insert(name.into(), op);
        op
    }
}

impl OpHandle {
    pub fn is_defined(self) -> bool {
        self.0.state.lock().def.is_some()
    }

    /// Applies a change to the registrations and publishes the table they give. Everything taken out is dropped
    /// after the lock is released.
    fn update(self, change: impl FnOnce(&mut OpState)) {
        let layers = *REGISTRY.layers.read();
        let mut state = self.0.state.lock();
        let before = OpState {
            def: state.def.clone(),
            kernels: state.kernels.clone(),
            original: state.original.clone(),
            ..OpState::default()
        };
        change(&mut state);
        state.revision += 1;
        let table = match &state.def {
            Some(def) => DispatchTable::build(def.clone(), &state.kernels, &layers),
            None => DispatchTable::unregistered(),
        };
        let old = self.0.table.swap(Box::into_raw(Box::new(table)), Ordering::AcqRel);
        drop(state);
        CHANGES.fetch_add(1, Ordering::Release);
        drop(before);
        // SAFETY: the pointer came from Box::into_raw, and the swap took it out for good.
        epoch::retire(unsafe { Box::from_raw(old) });
    }
}

/// Frees retired tables that had to wait, if they can go now.
pub fn collect() {
    epoch::collect();
}
