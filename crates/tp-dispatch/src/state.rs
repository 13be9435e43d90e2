//! Per-thread state of calls: grad mode, included and excluded keys, kernel preferences, trace sinks. Modes belong
//! to the thread. One word decides the fast path; everything rare sets the `Slow` bit.

use crate::epoch;
use crate::key::{DispatchKey, KeySet};
use crate::op::OpHandle;
use crate::outcome::{CallEvent, Phase};
use crate::select::{KernelEntry, Slot};
use crate::value::Arg;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};
use tp_tensor::Tensor;

/// A wish of this thread about one op's kernels, in force until its context ends.
#[derive(Clone)]
pub struct Preference {
    pub op: OpHandle,
    pub what: PreferenceKind,
    /// Contexts may end out of order; each removes its own.
    pub token: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PreferenceKind {
    /// Put the kernel of this name in front.
    Prefer(Box<str>),
    /// Enable or disable all kernels of a slot.
    Enabled(Slot, bool),
}

impl Preference {
    pub(crate) fn enables(&self, entry: &KernelEntry) -> Option<bool> {
        match &self.what {
            PreferenceKind::Enabled(slot, on) if *slot == entry.slot => Some(*on),
            _ => None,
        }
    }

    pub(crate) fn prefers(&self, op: OpHandle) -> Option<&str> {
        match &self.what {
            PreferenceKind::Prefer(name) if self.op == op => Some(name),
            _ => None,
        }
    }
}

/// Where events go while tracing.
pub type Sink = Arc<Mutex<Vec<CallEvent>>>;

pub struct CallState {
    include: Cell<u16>,
    exclude: Cell<u16>,
    grad: Cell<bool>,
    /// `!exclude`, without Autograd when grad mode is off: kept ready for the fast path.
    allow: Cell<u16>,
    depth: Cell<*const AtomicU32>,
    backward: Cell<u32>,
    /// What autocast casts to, in the encoding of whoever installs that layer; 0 when off.
    autocast: Cell<u32>,
    /// The innermost foreign kernel that runs; null outside of any.
    kernel: Cell<*const ForeignKernel>,
}

/// A foreign kernel that is running: its arguments, and the kernel around it.
struct ForeignKernel {
    args: *const Arg<'static>,
    count: usize,
    outer: *const ForeignKernel,
}

/// What only the slow path reads. Apart from `CallState`, which must need no destructor to be cheap to reach.
#[derive(Default)]
struct Rare {
    prefs: RefCell<Vec<Preference>>,
    sinks: RefCell<Vec<Sink>>,
    /// Contexts of debug mode in force.
    debug: Cell<u32>,
}

tp_tensor::per_thread!(fn own() -> *const CallState = CallState::new());

thread_local! {
    static RARE: Rare = Rare::default();
}

/// The state of this thread.
#[inline(always)]
pub fn with<R>(f: impl FnOnce(&CallState) -> R) -> R {
    // SAFETY: the calling thread's own state, which lives as long as it does.
    f(unsafe { &*own() })
}

impl CallState {
    const fn new() -> CallState {
        CallState {
            include: Cell::new(0),
            exclude: Cell::new(0),
            grad: Cell::new(true),
            allow: Cell::new(KeySet::ALL.0),
            depth: Cell::new(std::ptr::null()),
            backward: Cell::new(0),
            autocast: Cell::new(0),
            kernel: Cell::new(std::ptr::null()),
        }
    }

    /// The keys a call passes, given the union of its tensors' keys.
    #[inline(always)]
    pub fn effective(&self, tensors: u16) -> KeySet {
        KeySet((tensors | self.include.get()) & self.allow.get())
    }

    #[inline]
    pub fn slow_bit(&self) -> KeySet {
        KeySet(self.include.get()) & DispatchKey::Slow.set()
    }

    /// Marks the thread as inside dispatch: tables it reads stay alive until the guard is dropped.
    #[inline(always)]
    pub fn enter(&self) -> InDispatch {
        let mut slot = self.depth.get();
        if slot.is_null() {
            slot = epoch::register_thread();
            self.depth.set(slot);
        }
        // SAFETY: slots are never freed, and this thread alone writes to this one.
        let depth = unsafe { &*slot };
        let n = depth.load(Ordering::Relaxed);
        depth.store(n + 1, Ordering::Relaxed);
        // The store must come before the table is read; `epoch` has the other half of this fence.
        compiler_fence(Ordering::SeqCst);
        InDispatch { depth: slot, outer: n }
    }

    fn refresh(&self) {
        let grad = if self.grad.get() { KeySet::EMPTY } else { DispatchKey::Autograd.set() };
        self.allow.set((!(KeySet(self.exclude.get()) | grad)).0);
    }

    fn set_slow(&self, slow: bool) {
        let bit = DispatchKey::Slow.set().0;
        self.include.set(if slow { self.include.get() | bit } else { self.include.get() & !bit });
    }
}

/// See `CallState::enter`.
pub struct InDispatch {
    depth: *const AtomicU32,
    outer: u32,
}

impl Drop for InDispatch {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: see `enter`.
        unsafe { (*self.depth).store(self.outer, Ordering::Release) };
    }
}

#[inline]
pub fn is_grad_enabled() -> bool {
    with(|s| s.grad.get())
}

/// Sets grad mode and returns the mode before.
#[inline]
pub fn set_grad_enabled(on: bool) -> bool {
    with(|s| {
        let before = s.grad.replace(on);
        if before != on {
            s.refresh();
        }
        before
    })
}

/// Keys added to and taken from every call of this thread while it lives.
pub struct KeyGuard {
    include: u16,
    exclude: u16,
    grad: bool,
}

impl KeyGuard {
    #[inline]
    pub fn new(include: KeySet, exclude: KeySet) -> KeyGuard {
        with(|s| {
            let guard = KeyGuard { include: s.include.get(), exclude: s.exclude.get(), grad: s.grad.get() };
            s.include.set((s.include.get() | include.0) & !exclude.0);
            s.exclude.set((s.exclude.get() | exclude.0) & !include.0);
            s.refresh();
            guard
        })
    }

    /// What a foreign function runs under: grad mode off, Autograd and Capture passed by.
    #[inline]
    pub fn foreign_kernel() -> KeyGuard {
        const OFF: KeySet = KeySet(DispatchKey::Autograd.set().0 | DispatchKey::Capture.set().0);
        with(|s| {
            let guard =
                KeyGuard { include: s.include.get(), exclude: s.exclude.get(), grad: s.grad.replace(false) };
            s.include.set(s.include.get() & !OFF.0);
            s.exclude.set(s.exclude.get() | OFF.0);
            s.allow.set(s.allow.get() & !OFF.0);
            guard
        })
    }
}

/// Runs the body of a foreign kernel with grad mode off and Capture passed by. The body may switch grad mode on again
/// for what it makes itself; the arguments of the call, and what comes from them, stay unrecorded: the op's own rule
/// is their only derivative.
#[inline(always)]
pub fn in_foreign_kernel<R>(args: &[Arg<'_>], body: impl FnOnce() -> R) -> R {
    const OFF: KeySet = KeySet(DispatchKey::Autograd.set().0 | DispatchKey::Capture.set().0);
    with(|s| {
        let _guard =
            KeyGuard { include: s.include.get(), exclude: s.exclude.get(), grad: s.grad.replace(false) };
        s.include.set(s.include.get() & !OFF.0);
        s.exclude.set((s.exclude.get() & !DispatchKey::Autograd.set().0) | DispatchKey::Capture.set().0);
        s.allow.set(s.allow.get() & !OFF.0);
        let frame = ForeignKernel { args: args.as_ptr().cast(), count: args.len(), outer: s.kernel.get() };
        let _running = Running(s.kernel.replace(&frame));
        body()
    })
}

/// Puts the kernel around back in its place.
struct Running(*const ForeignKernel);

impl Drop for Running {
    #[inline]
    fn drop(&mut self) {
        with(|s| s.kernel.set(self.0));
    }
}

/// Whether this thread is inside a foreign kernel.
#[inline]
pub fn is_in_foreign_kernel() -> bool {
    with(|s| !s.kernel.get().is_null())
}

/// Whether `t` is an argument of a foreign kernel that this thread is in.
pub fn is_kernel_argument(t: &Tensor) -> bool {
    let mut next = with(|s| s.kernel.get());
    // SAFETY: frames live on this thread's stack as long as they are linked, and so do the arguments of their calls.
    while let Some(frame) = unsafe { next.as_ref() } {
        let mut found = false;
        // SAFETY: as above.
        for arg in unsafe { std::slice::from_raw_parts(frame.args, frame.count) } {
            arg.for_each_tensor(|a| found |= a.same(t));
        }
        if found {
            return true;
        }
        next = frame.outer;
    }
    false
}

impl Drop for KeyGuard {
    #[inline]
    fn drop(&mut self) {
        with(|s| {
            // The slow bit follows its own contexts, which may have begun or ended inside.
            let slow = s.include.get() & DispatchKey::Slow.set().0;
            s.include.set((self.include & !DispatchKey::Slow.set().0) | slow);
            s.exclude.set(self.exclude);
            s.grad.set(self.grad);
            s.refresh();
        });
    }
}

/// Sends every call of this thread through `key`, or no longer; returns what was so before. Unlike a guard it may
/// end after scopes that began later.
pub fn set_included(key: DispatchKey, on: bool) -> bool {
    with(|s| {
        let before = KeySet(s.include.get()).contains(key);
        let bit = key.set().0;
        s.include.set(if on { s.include.get() | bit } else { s.include.get() & !bit });
        if on {
            s.exclude.set(s.exclude.get() & !bit);
            s.refresh();
        }
        before
    })
}

/// What autocast casts to on this thread; 0 when it is off.
#[inline]
pub fn autocast() -> u32 {
    with(|s| s.autocast.get())
}

/// Sets it, switches the Autocast key accordingly, and returns what was set before.
pub fn set_autocast(word: u32) -> u32 {
    set_included(DispatchKey::Autocast, word != 0);
    with(|s| s.autocast.replace(word))
}

/// True while this thread includes `key` in every call.
pub fn includes(key: DispatchKey) -> bool {
    with(|s| KeySet(s.include.get()).contains(key))
}

/// Marks calls of this thread as part of a backward pass while it lives.
pub struct BackwardPhase(());

impl BackwardPhase {
    pub fn enter() -> BackwardPhase {
        with(|s| s.backward.set(s.backward.get() + 1));
        BackwardPhase(())
    }
}

impl Drop for BackwardPhase {
    fn drop(&mut self) {
        with(|s| s.backward.set(s.backward.get() - 1));
    }
}

pub fn phase() -> Phase {
    with(|s| if s.backward.get() > 0 { Phase::Backward } else { Phase::Forward })
}

// ---- contexts of the slow path ----

/// Changes the rare state and keeps the slow bit in step with it.
fn rarely<R>(change: impl FnOnce(&Rare) -> R) -> R {
    RARE.with(|r| {
        let out = change(r);
        let slow = !r.prefs.borrow().is_empty() || !r.sinks.borrow().is_empty() || r.debug.get() > 0;
        with(|s| s.set_slow(slow));
        out
    })
}

pub fn push_preference(p: Preference) {
    rarely(|r| r.prefs.borrow_mut().push(p));
}

pub fn pop_preference(token: u64) {
    rarely(|r| r.prefs.borrow_mut().retain(|p| p.token != token));
}

/// Enters debug mode: foreign kernels of this thread are checked at every call until `pop_debug`.
pub fn push_debug() {
    rarely(|r| r.debug.set(r.debug.get() + 1));
}

/// Leaves one context of debug mode.
pub fn pop_debug() {
    rarely(|r| r.debug.set(r.debug.get().saturating_sub(1)));
}

pub fn is_debugging() -> bool {
    with(|s| s.slow_bit() != KeySet::EMPTY) && RARE.with(|r| r.debug.get() > 0)
}

pub fn preferences() -> Vec<Preference> {
    RARE.with(|r| r.prefs.borrow().clone())
}

pub fn push_sink(sink: Sink) {
    rarely(|r| r.sinks.borrow_mut().push(sink));
}

/// Removes the innermost use of `sink`.
pub fn pop_sink(sink: &Sink) {
    rarely(|r| {
        let mut sinks = r.sinks.borrow_mut();
        if let Some(at) = sinks.iter().rposition(|x| Arc::ptr_eq(x, sink)) {
            sinks.remove(at);
        }
    });
}

pub fn is_tracing() -> bool {
    with(|s| s.slow_bit() != KeySet::EMPTY) && RARE.with(|r| !r.sinks.borrow().is_empty())
}

/// Hands an event to every sink of this thread.
pub fn record(event: &CallEvent) {
    let sinks = RARE.with(|r| r.sinks.borrow().clone());
    for sink in sinks {
        sink.lock().push(event.clone());
    }
}
