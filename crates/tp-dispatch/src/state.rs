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
            PreferenceKind::Enabled(slot, on) if *slot == entry.slot && !entry.body => Some(*on),
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
    modes: Cell<Modes>,
    depth: Cell<*const AtomicU32>,
    backward: Cell<u32>,
    /// What autocast casts to, in the encoding of whoever installs that layer; 0 when off.
    autocast: Cell<u32>,
    /// The innermost foreign kernel that runs; null outside of any.
    kernel: Cell<*const ForeignKernel>,
    /// Where the stack becomes too short for foreign functions; above every address until `stack` has found it.
    pub(crate) stack_floor: Cell<usize>,
}

/// Included and excluded keys and grad mode in one word, so that a scope saves and restores them at once.
#[derive(Clone, Copy)]
struct Modes(u64);

impl Modes {
    const EXCLUDE: u32 = 16;
    /// `!exclude`, without Autograd when grad mode is off: kept ready for the fast path.
    const ALLOW: u32 = 32;
    const GRAD: u64 = 1 << 48;
    const SLOW: u64 = DispatchKey::Slow.set().0 as u64;

    const fn new(include: u16, exclude: u16, grad: bool) -> Modes {
        let off = if grad { 0 } else { DispatchKey::Autograd.set().0 };
        let allow = !(exclude | off);
        Modes(
            include as u64
                | (exclude as u64) << Modes::EXCLUDE
                | (allow as u64) << Modes::ALLOW
                | if grad { Modes::GRAD } else { 0 },
        )
    }

    #[inline(always)]
    fn include(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    fn exclude(self) -> u16 {
        (self.0 >> Modes::EXCLUDE) as u16
    }

    #[inline(always)]
    fn allow(self) -> u16 {
        (self.0 >> Modes::ALLOW) as u16
    }

    #[inline(always)]
    fn grad(self) -> bool {
        self.0 & Modes::GRAD != 0
    }

    #[inline(always)]
    fn with_grad(self, on: bool) -> Modes {
        const AUTOGRAD: u64 = DispatchKey::Autograd.set().0 as u64;
        const ALLOWED: u64 = AUTOGRAD << Modes::ALLOW;
        if on {
            let allowed = (!self.0 >> Modes::EXCLUDE & AUTOGRAD) << Modes::ALLOW;
            Modes(self.0 | Modes::GRAD | allowed)
        } else {
            Modes(self.0 & !(Modes::GRAD | ALLOWED))
        }
    }

    /// Inside of a foreign kernel: grad mode off, Autograd neither included nor excluded, Capture passed by, nothing put off.
    #[inline(always)]
    fn in_kernel(self) -> Modes {
        const AUTOGRAD: u64 = DispatchKey::Autograd.set().0 as u64;
        const CAPTURE: u64 = DispatchKey::Capture.set().0 as u64;
        const SEGMENT: u64 = DispatchKey::Segment.set().0 as u64;
        const OFF: u64 = AUTOGRAD | CAPTURE;
        const CLEAR: u64 = OFF | SEGMENT | AUTOGRAD << Modes::EXCLUDE | OFF << Modes::ALLOW | Modes::GRAD;
        Modes(self.0 & !CLEAR | CAPTURE << Modes::EXCLUDE)
    }
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
            modes: Cell::new(Modes::new(0, !KeySet::ALL.0, true)),
            depth: Cell::new(std::ptr::null()),
            backward: Cell::new(0),
            autocast: Cell::new(0),
            kernel: Cell::new(std::ptr::null()),
            stack_floor: Cell::new(usize::MAX),
        }
    }

    /// The keys a call passes, given the union of its tensors' keys.
    #[inline(always)]
    pub fn effective(&self, tensors: u16) -> KeySet {
        let modes = self.modes.get();
        KeySet((tensors | modes.include()) & modes.allow())
    }

    #[inline]
    pub fn slow_bit(&self) -> KeySet {
        KeySet(self.modes.get().include()) & DispatchKey::Slow.set()
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

    fn set_slow(&self, slow: bool) {
        let modes = self.modes.get().0 & !Modes::SLOW;
        self.modes.set(Modes(modes | if slow { Modes::SLOW } else { 0 }));
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
    with(|s| s.modes.get().grad())
}

/// Sets grad mode and returns the mode before.
#[inline]
pub fn set_grad_enabled(on: bool) -> bool {
    with(|s| {
        let before = s.modes.get();
        if before.grad() != on {
            s.modes.set(before.with_grad(on));
        }
        before.grad()
    })
}

/// Keys added to and taken from every call of this thread while it lives; grad mode is restored with them.
pub struct KeyGuard(Modes);

impl KeyGuard {
    #[inline]
    pub fn new(include: KeySet, exclude: KeySet) -> KeyGuard {
        with(|s| {
            let before = s.modes.get();
            let included = (before.include() | include.0) & !exclude.0;
            let excluded = (before.exclude() | exclude.0) & !include.0;
            s.modes.set(Modes::new(included, excluded, before.grad()));
            KeyGuard(before)
        })
    }

    /// What a foreign function runs under: grad mode off, Autograd and Capture passed by.
    #[inline]
    pub fn foreign_kernel() -> KeyGuard {
        const OFF: u16 = DispatchKey::Autograd.set().0 | DispatchKey::Capture.set().0;
        with(|s| {
            let before = s.modes.get();
            let include = before.include() & !(OFF | DispatchKey::Segment.set().0);
            s.modes.set(Modes::new(include, before.exclude() | OFF, false));
            KeyGuard(before)
        })
    }
}

/// Runs the body of a foreign kernel with grad mode off and Capture passed by. The body may switch grad mode on again
/// for what it makes itself; the arguments of the call, and what comes from them, stay unrecorded: the op's own rule
/// is their only derivative.
#[inline(always)]
pub fn in_foreign_kernel<R>(args: &[Arg<'_>], body: impl FnOnce() -> R) -> R {
    with(|s| {
        let before = s.modes.get();
        let _guard = KeyGuard(before);
        s.modes.set(before.in_kernel());
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
            let slow = s.modes.get().0 & Modes::SLOW;
            s.modes.set(Modes(self.0.0 & !Modes::SLOW | slow));
        });
    }
}

/// Sends every call of this thread through `key`, or no longer; returns what was so before. Unlike a guard it may
/// end after scopes that began later.
pub fn set_included(key: DispatchKey, on: bool) -> bool {
    with(|s| {
        let (modes, bit) = (s.modes.get(), key.set().0);
        let (include, exclude) = if on {
            (modes.include() | bit, modes.exclude() & !bit)
        } else {
            (modes.include() & !bit, modes.exclude())
        };
        s.modes.set(Modes::new(include, exclude, modes.grad()));
        modes.include() & bit != 0
    })
}

/// Takes a key out of every call of this thread while it lives.
pub struct Excursion(DispatchKey);

impl Excursion {
    /// None where the key is not included anyway.
    pub fn from(key: DispatchKey) -> Option<Excursion> {
        set_included(key, false).then_some(Excursion(key))
    }
}

impl Drop for Excursion {
    fn drop(&mut self) {
        set_included(self.0, true);
    }
}

/// Calls of this thread pass no layer but what their tensors ask for, with the given grad mode, while it lives.
pub fn plainly(grad: bool) -> KeyGuard {
    with(|s| {
        let before = s.modes.get();
        let slow = before.0 & Modes::SLOW;
        s.modes.set(Modes(Modes::new(0, !KeySet::ALL.0, grad).0 | slow));
        KeyGuard(before)
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
#[inline]
pub fn includes(key: DispatchKey) -> bool {
    with(|s| KeySet(s.modes.get().include()).contains(key))
}

/// As `includes`, for any of `keys`.
#[inline(always)]
pub fn includes_any(keys: KeySet) -> bool {
    with(|s| s.modes.get().include() & keys.0 != 0)
}

/// True while nothing but the tensors themselves decides what a call on this thread passes: no capture, no autocast, no
/// vmap, nobody who records or prefers kernels.
#[inline(always)]
pub fn is_plain() -> bool {
    with(|s| s.modes.get().include() == 0)
}

/// Marks calls of this thread as part of a backward pass while it lives.
pub struct BackwardPhase(());

impl BackwardPhase {
    #[inline]
    pub fn enter() -> BackwardPhase {
        with(|s| s.backward.set(s.backward.get() + 1));
        BackwardPhase(())
    }
}

impl Drop for BackwardPhase {
    #[inline]
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
