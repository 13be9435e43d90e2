//! The dispatch table of one op: one cell per key, computed from what is registered whenever that changes.
//!
//! Invariants: a table is immutable once published; a cell of a device holds that device's kernels, newest first,
//! then the default ones; a cell of a layer holds the op's own kernel for that layer, else the layer's fallback,
//! else falls through.

use crate::dispatcher;
use crate::error::{Error, Result};
use crate::kernel::{Call, Kernel, KernelFn, KernelObject, OneFn, Short};
use crate::key::{DispatchKey, KEY_COUNT, KeySet};
use crate::op::OpDef;
use crate::schema::ArgType;
use crate::select::{KernelEntry, Slot};
use crate::value::Rets;
use std::sync::Arc;
use tp_tensor::Tensor;

pub(crate) enum Cell {
    Fn(KernelFn),
    Object(Arc<dyn KernelObject>),
    /// More than one kernel, or conditions: chosen per call.
    Choose,
}

/// A power of two, so that an index needs no check.
const CELLS: usize = KEY_COUNT.next_power_of_two();

pub struct DispatchTable {
    /// None once the op was unregistered.
    pub(crate) def: Option<Arc<OpDef>>,
    /// One per key, then up to a power of two.
    pub(crate) cells: [Cell; CELLS],
    pub(crate) candidates: [Box<[Arc<KernelEntry>]>; KEY_COUNT],
    pub(crate) mutates: bool,
    /// The short form of the CPU's kernel, where that one takes every call.
    pub(crate) short: Option<Short>,
    /// The op writes to nothing and returns one tensor.
    gives_one: bool,
    /// The form of the Autograd layer for one tensor, where that layer has the op.
    recorded: Option<OneFn>,
}

/// The fallback kernel of a layer, and its form for one tensor if it has one.
#[derive(Clone, Copy)]
pub(crate) struct Layer {
    pub call: KernelFn,
    pub one: Option<OneFn>,
}

/// One per key.
pub(crate) type Layers = [Option<Layer>; KEY_COUNT];

impl DispatchTable {
    pub(crate) fn unregistered() -> DispatchTable {
        DispatchTable {
            def: None,
            cells: std::array::from_fn(|_| Cell::Fn(dispatcher::unregistered)),
            candidates: std::array::from_fn(|_| Box::default()),
            mutates: false,
            short: None,
            gives_one: false,
            recorded: None,
        }
    }

    pub(crate) fn build(def: Arc<OpDef>, kernels: &[Arc<KernelEntry>], layers: &Layers) -> DispatchTable {
        let candidates: [Box<[Arc<KernelEntry>]>; KEY_COUNT] =
            DispatchKey::ALL.map(|key| candidates_for(key, kernels));
        let cells = std::array::from_fn(|i| match DispatchKey::ALL.get(i) {
            Some(&key) => cell_for(key, &candidates[i], layers),
            None => Cell::Fn(dispatcher::fall_through),
        });
        let mutates = def.effects.mutates;
        let short = match &cells[DispatchKey::Cpu as usize] {
            Cell::Object(o) if !mutates => o.short(),
            _ => None,
        };
        let gives_one = !mutates && matches!(def.schema.returns(), [r] if *r.ty() == ArgType::Tensor);
        let autograd = DispatchKey::Autograd as usize;
        let is_layers = candidates[autograd].is_empty();
        let recorded = layers[autograd].filter(|_| is_layers && gives_one).and_then(|layer| layer.one);
        DispatchTable { def: Some(def), cells, candidates, mutates, short, gives_one, recorded }
    }

    /// The result of a call that passes `keys`; see `OneFn`. A short kernel needs no call of its own with them.
    #[inline(always)]
    pub(crate) fn one(&self, call: &Call<'_>, keys: KeySet) -> Option<Result<Tensor>> {
        const CPU: KeySet = DispatchKey::Cpu.set();
        const RECORDED: KeySet = KeySet(CPU.0 | DispatchKey::Autograd.set().0);
        match keys {
            CPU if self.gives_one => {
                if let Some(out) = self.short.and_then(|short| (short.fresh)(call.args)) {
                    return Some(Ok(out));
                }
                match &self.cells[DispatchKey::Cpu as usize] {
                    Cell::Object(o) => o.one(&Call { keys, ..*call }),
                    _ => None,
                }
            }
            RECORDED => (self.recorded?)(&Call { keys, ..*call }),
            _ => None,
        }
    }

    /// How often the lists of candidates hold this kernel, and the cells its object.
    pub(crate) fn uses(&self, entry: &Arc<KernelEntry>) -> (usize, usize) {
        let candidates = self.candidates.iter().flatten().filter(|k| Arc::ptr_eq(k, entry)).count();
        let of_kernel = |cell: &&Cell| match (cell, &entry.kernel) {
            (Cell::Object(a), Kernel::Object(b)) => std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b)),
            _ => false,
        };
        (candidates, self.cells.iter().filter(of_kernel).count())
    }

    /// Runs the cell of the highest key of `call.keys`.
    #[inline(always)]
    pub(crate) fn run(&self, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        let key = call.keys.highest();
        if self.mutates && KeySet(1 << key) & KeySet::BACKENDS != KeySet::EMPTY {
            return crate::check::writing(call, || self.run_cell(key, call, rets));
        }
        self.run_cell(key, call, rets)
    }

    #[inline(always)]
    fn run_cell(&self, key: usize, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        match &self.cells[key & (CELLS - 1)] {
            Cell::Fn(f) => f(call, rets),
            Cell::Object(o) => o.call(call, rets),
            Cell::Choose => dispatcher::choose_and_run(self, call, rets),
        }
    }
}

fn candidates_for(key: DispatchKey, kernels: &[Arc<KernelEntry>]) -> Box<[Arc<KernelEntry>]> {
    let own = kernels.iter().rev().filter(|k| k.slot == Slot::Key(key));
    let device = KeySet::BACKENDS.contains(key) && key != DispatchKey::Meta;
    let shared = kernels.iter().rev().filter(|k| device && k.slot == Slot::Default);
    own.chain(shared).cloned().collect()
}

fn cell_for(key: DispatchKey, candidates: &[Arc<KernelEntry>], layers: &Layers) -> Cell {
    if key == DispatchKey::Slow {
        return Cell::Fn(dispatcher::slow);
    }
    match candidates.first() {
        Some(first) if !first.is_conditional() => match &first.kernel {
            Kernel::Fn(f) => Cell::Fn(*f),
            Kernel::Object(o) => Cell::Object(o.clone()),
        },
        Some(_) => Cell::Choose,
        None => Cell::Fn(match layers[key as usize] {
            Some(layer) => layer.call,
            None if KeySet::BACKENDS.contains(key) => dispatcher::no_kernel,
            None => dispatcher::fall_through,
        }),
    }
}

/// A readable dump: which kernel each key would run.
pub(crate) fn describe(table: &DispatchTable) -> Vec<(DispatchKey, String)> {
    DispatchKey::ALL
        .into_iter()
        .filter(|k| *k != DispatchKey::Slow)
        .map(|key| {
            let list = &table.candidates[key as usize];
            let text = match (list.is_empty(), &table.cells[key as usize]) {
                (false, _) => list
                    .iter()
                    .map(|k| format!("{} ({}:{})", k.name(), k.provenance.file, k.provenance.line))
                    .collect::<Vec<_>>()
                    .join(", "),
                (true, Cell::Fn(f)) if std::ptr::fn_addr_eq(*f, dispatcher::no_kernel as KernelFn) => {
                    "none".to_string()
                }
                (true, Cell::Fn(f)) if std::ptr::fn_addr_eq(*f, dispatcher::fall_through as KernelFn) => {
                    "falls through".to_string()
                }
                (true, _) => "layer fallback".to_string(),
            };
            (key, text)
        })
        .collect()
}

pub(crate) fn unregistered_error(name: &str) -> Error {
    Error::registration("TP1305", format!("{name} was unregistered"))
        .note("the Library that defined it is gone; keep it alive, or define the op again")
}
