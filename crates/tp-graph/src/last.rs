//! What each thread ran last, per compiled function. Kept small and touched once per call; a report is built only
//! when somebody reads it.

use crate::entry::Entry;
use crate::report::{RegionRun, RunReport};
use crate::stamp::Stamps;
use crate::training::BackwardStamps;
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};
use tp_dispatch::{CodegenMarker, FallbackReason};

#[derive(Clone, Default)]
pub(crate) struct Last {
    entry: Weak<Entry>,
    forward: Stamps,
    backward: Option<BackwardStamps>,
    /// Set when the function itself ran, uncompiled.
    eager: Option<Box<RunReport>>,
    /// The runs of the segments, where the function ran in such.
    parts: Option<Arc<[Last]>>,
}

impl Last {
    fn report(&self) -> Option<RunReport> {
        if let Some(parts) = &self.parts {
            return Some(joined(parts));
        }
        if let Some(report) = &self.eager {
            return Some(RunReport::clone(report));
        }
        let entry = self.entry.upgrade()?;
        let stamps = self.backward.as_ref().and_then(|b| b.lock().clone());
        Some(entry.report(&self.forward, stamps.as_ref()))
    }
}

/// The regions of several runs one behind another, numbered through.
fn joined(parts: &[Last]) -> RunReport {
    let mut out = RunReport::default();
    for report in parts.iter().filter_map(Last::report) {
        for (all, more) in [(&mut out.forward, report.forward), (&mut out.backward, report.backward)] {
            let start = all.len();
            let numbered = more.into_iter().enumerate();
            all.extend(numbered.map(|(i, run)| RegionRun { index: start + i, ..run }));
        }
    }
    out
}

tp_tensor::per_thread!(
    /// The function and entry that the record of a one-region run on this thread is already about. A function's number
    /// and its entries' addresses are never used again while the function lives.
    fn noted_here() -> *const Cell<(u32, *const Entry)> = Cell::new((0, std::ptr::null()))
);

#[inline(always)]
fn noted() -> &'static Cell<(u32, *const Entry)> {
    // SAFETY: this thread's own value; the reference is used up at once.
    unsafe { &*noted_here() }
}

thread_local! {
    static LAST: RefCell<Vec<Option<Box<Last>>>> = const { RefCell::new(Vec::new()) };
}

/// Every change of a record goes through here.
fn with<R>(function: u32, f: impl FnOnce(&mut Last) -> R) -> R {
    noted().set((0, std::ptr::null()));
    LAST.with_borrow_mut(|all| {
        let at = function as usize;
        if all.len() <= at {
            all.resize_with(at + 1, || None);
        }
        f(all[at].get_or_insert_default())
    })
}

/// A run of a plan with one region, whose marker is always the same.
#[inline(always)]
pub(crate) fn note_one(function: u32, entry: &Arc<Entry>, marker: &Arc<CodegenMarker>) {
    let this = (function, Arc::as_ptr(entry));
    if noted().get() != this {
        note_first(function, entry, marker);
        noted().set(this);
    }
}

#[cold]
fn note_first(function: u32, entry: &Arc<Entry>, marker: &Arc<CodegenMarker>) {
    let mut forward = Stamps::new(1);
    forward.set(0, marker);
    note(function, entry, forward, None);
}

pub(crate) fn note(function: u32, entry: &Arc<Entry>, forward: Stamps, backward: Option<BackwardStamps>) {
    let entry = Arc::downgrade(entry);
    with(function, |last| *last = Last { entry, forward, backward, ..Last::default() });
}

/// What a function ran last on this thread.
pub(crate) fn of(function: u32) -> Option<Last> {
    LAST.with_borrow(|all| all.get(function as usize)?.as_deref().cloned())
}

/// The function ran in segments, whose runs are these.
pub(crate) fn note_parts(function: u32, parts: Vec<Last>) {
    with(function, |last| *last = Last { parts: Some(parts.into()), ..Last::default() });
}

pub(crate) fn note_eager(function: u32, reason: &FallbackReason, marker: &Arc<CodegenMarker>) {
    with(function, |last| *last = eager(reason, marker, Arc::default()));
}

/// A run without compiled code, for that reason.
pub(crate) fn eager(reason: &FallbackReason, marker: &Arc<CodegenMarker>, ops: Arc<[String]>) -> Last {
    let run = RegionRun { index: 0, ops, marker: marker.clone(), reason: Some(reason.clone()) };
    let report = RunReport { forward: vec![run], backward: Vec::new(), graph: 0 };
    Last { eager: Some(Box::new(report)), ..Last::default() }
}

/// The last run of a function on this thread.
pub(crate) fn report(function: u32) -> Option<RunReport> {
    of(function)?.report()
}

/// Forgets a function that is gone. Other threads keep a small empty record.
pub(crate) fn forget(function: u32) {
    noted().set((0, std::ptr::null()));
    // During thread teardown there is nothing left to forget.
    let _ = LAST.try_with(|all| {
        if let Ok(mut all) = all.try_borrow_mut()
            && let Some(slot) = all.get_mut(function as usize)
        {
            *slot = None;
        }
    });
}
