//! All guards of one entry: what a call compares by itself, what it asks for when that changed, and what it asks for each
//! time; and the tensors that runs fetch from their places.

use super::api::Api;
use super::expect::{Expect, owned};
use super::frame::{dict_version, function_state};
use super::guards::{Check, Guard};
use super::quick::{Quick, class_version};
use crate::hot::ffi::Obj;
use crate::hot::shell;
use pyo3::ffi;
use pyo3::prelude::*;
use std::any::Any;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use tp_graph::host_guards::{Fetched, HostGuards, Word};
use tp_tensor::Tensor;

/// The guards of one entry.
pub struct PyGuards {
    /// Of functions, which stay until the guards are dropped: their words are compared by the entry.
    functions: Vec<Guard>,
    /// Dicts and classes whose versions are compared by the entry, and which stay for that.
    dicts: Vec<Py<PyAny>>,
    classes: Vec<Py<PyAny>>,
    /// Of those dicts and classes.
    covered: UnsafeCell<Vec<Guard>>,
    list: UnsafeCell<Vec<Guard>>,
    /// Beside each of `list`.
    quick: Box<[Quick]>,
    /// Places of one tensor each, which others may come to: numbers in `list`.
    places: Vec<usize>,
    /// Zero: the collector took the objects away, nothing holds any more.
    is_alive: AtomicUsize,
    api: &'static Api,
}

// SAFETY: the lists are read and cleared with the interpreter lock held. They are cleared only by the collector, when
// nobody refers to the compiled function any more: no call of it is under way.
unsafe impl Send for PyGuards {}
// SAFETY: as above.
unsafe impl Sync for PyGuards {}

impl PyGuards {
    /// `is_pinned`: whether a tensor was met by other ways than by reading one place, or it mattered which one it is.
    pub fn new(api: &'static Api, list: Vec<Guard>, is_pinned: impl Fn(Obj) -> bool) -> PyGuards {
        let (functions, list): (Vec<Guard>, _) =
            list.into_iter().partition(|guard| guard.check.is_function());
        // SAFETY: the guards own what they are of; lock held.
        let is_covered =
            |guard: &Guard| unsafe { guard.check.dict().is_some() || guard.check.looked_up(api).is_some() };
        let (covered, list): (Vec<Guard>, Vec<Guard>) = list.into_iter().partition(is_covered);
        let quick: Box<[Quick]> = list.iter().map(|guard| unsafe { Quick::of(guard, api) }).collect();
        // SAFETY: as above.
        let [dicts, classes] = unsafe {
            let of_class = covered.iter().filter_map(|guard| guard.check.looked_up(api));
            [
                distinct(covered.iter().filter_map(|guard| guard.check.dict())),
                distinct(of_class.chain(quick.iter().filter_map(Quick::class))),
            ]
        };
        let tensor = |guard: &Guard| match guard.check.expected() {
            Some(Expect::Tensor { seen, .. }) => Some(seen.as_ptr()),
            _ => None,
        };
        let met: Vec<Obj> = list.iter().filter_map(tensor).collect();
        let is_alone = |obj: Obj| !is_pinned(obj) && met.iter().filter(|other| **other == obj).count() == 1;
        let places = (0..list.len()).filter(|&i| tensor(&list[i]).is_some_and(is_alone)).collect();
        PyGuards {
            functions,
            dicts,
            classes,
            covered: UnsafeCell::new(covered),
            list: UnsafeCell::new(list),
            quick,
            places,
            is_alive: AtomicUsize::new(1),
            api,
        }
    }

    fn covered(&self) -> &[Guard] {
        // SAFETY: see above.
        unsafe { &*self.covered.get() }
    }

    fn list(&self) -> &[Guard] {
        // SAFETY: see above.
        unsafe { &*self.list.get() }
    }

    fn all(&self) -> impl Iterator<Item = &Guard> {
        self.functions.iter().chain(self.covered()).chain(self.list())
    }

    /// Every object that the guards own, for the collector.
    pub fn each(&self, f: &mut dyn FnMut(Obj)) {
        self.all().for_each(|guard| guard.check.each(f));
        self.dicts.iter().chain(&self.classes).for_each(|of| f(of.as_ptr()));
    }

    fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Relaxed) != 0
    }

    /// A guard that its words do not tell of.
    #[cold]
    #[inline(never)]
    fn holds_slowly(&self, guard: &Guard, quick: &Quick) -> bool {
        // SAFETY: compiled functions are called with the lock held.
        unsafe {
            let holds = guard.check.holds(self.api);
            if holds {
                quick.renew(guard, self.api.layout);
            }
            holds
        }
    }

    /// Gives up the objects but functions, dicts and classes, which the collector clears itself; the guards fail from now on.
    ///
    /// # Safety
    /// Lock held; no check is under way.
    pub unsafe fn clear(&self) {
        if self.list().is_empty() && self.covered().is_empty() {
            return;
        }
        self.is_alive.store(0, Ordering::Relaxed);
        // Dropped after the lists are empty: finalisers may come back here.
        let taken =
            unsafe { [std::mem::take(&mut *self.list.get()), std::mem::take(&mut *self.covered.get())] };
        drop(taken);
    }
}

impl std::fmt::Debug for PyGuards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.texts()).finish()
    }
}

impl HostGuards for PyGuards {
    fn holds(&self) -> bool {
        // SAFETY: compiled functions are called with the lock held.
        let holds = |(guard, quick): (&Guard, &Quick)| {
            unsafe { quick.holds(guard, self.api) }.unwrap_or_else(|| self.holds_slowly(guard, quick))
        };
        self.is_alive() && self.list().iter().zip(&self.quick).all(holds)
    }

    fn covered_hold(&self) -> bool {
        // The words beside attributes of instances say nothing of their classes.
        let of_instances = self.list().iter().filter(|guard| matches!(guard.check, Check::Attribute { .. }));
        let mut guards = self.functions.iter().chain(self.covered()).chain(of_instances);
        // SAFETY: as above.
        self.is_alive() && guards.all(|guard| unsafe { guard.check.holds(self.api) })
    }

    fn miss(&self) -> Option<String> {
        // SAFETY: as above.
        let failed = self.all().find(|guard| unsafe { !guard.check.holds(self.api) })?;
        Some(unsafe { failed.miss(self.api) })
    }

    fn texts(&self) -> Vec<String> {
        // SAFETY: as above.
        self.all().map(|guard| unsafe { guard.text() }).collect()
    }

    fn slot_of(&self, t: &Tensor) -> Option<u32> {
        let is_it = |&&i: &&usize| match self.list()[i].check.expected() {
            // SAFETY: a live tensor, owned by the guard.
            Some(Expect::Tensor { seen, .. }) => unsafe { shell::tensor_of(seen.as_ptr()).same(t) },
            _ => false,
        };
        self.places.iter().find(is_it).and_then(|&i| u32::try_from(i).ok())
    }

    fn release(&self, slot: u32) {
        if let Some(Expect::Tensor { moves, .. }) =
            self.list().get(slot as usize).and_then(|guard| guard.check.expected())
        {
            moves.store(true, Ordering::Relaxed);
        }
    }

    fn fetch(&self, slot: u32) -> Fetched {
        let at = slot as usize;
        let (Some(guard), Some(quick)) = (self.list().get(at), self.quick.get(at)) else {
            return Fetched::Lost;
        };
        // SAFETY: compiled functions are called with the lock held; the reference is given back.
        unsafe {
            if quick.is_seen(self.api.layout) {
                return Fetched::Same;
            }
            let Some(Expect::Tensor { like, .. }) = guard.check.expected() else { return Fetched::Lost };
            let Some(now) = guard.check.present(self.api).filter(|now| !now.is_null()) else {
                return Fetched::Lost;
            };
            let found = shell::is_tensor(now).then(|| shell::tensor_of(now).clone());
            ffi::Py_DECREF(now);
            found.filter(|t| like.holds(t)).map_or(Fetched::Lost, Fetched::Other)
        }
    }

    fn words(&self) -> Vec<Word> {
        let of = |guard: &Guard| match &guard.check {
            Check::Function { of, .. } => Some(of.as_ptr()),
            _ => None,
        };
        let functions = self.functions.iter().filter_map(of);
        // SAFETY: the functions and dicts live as long as the guards, as does the flag, and all change with the interpreter
        // lock held. A call that went well without defaults goes as well with some.
        unsafe {
            let state = functions.flat_map(|f| function_state(f, self.api.layout));
            let mut words: Vec<Word> = state.filter(|at| at.read() != 0).map(|at| Word::new(at)).collect();
            words.extend(self.dicts.iter().map(|d| Word::new(dict_version(d.as_ptr(), self.api.layout))));
            words.extend(self.classes.iter().map(|c| Word::new(class_version(c.as_ptr(), self.api.layout))));
            if !self.covered().is_empty() {
                words.push(Word::new(self.is_alive.as_ptr().cast_const()));
            }
            words
        }
    }

    fn is_words_only(&self) -> bool {
        self.list().is_empty()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Objects that guards own, each once.
unsafe fn distinct(of: impl Iterator<Item = Obj>) -> Vec<Py<PyAny>> {
    let mut all: Vec<Obj> = of.collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|one| unsafe { owned(one) }).collect()
}
