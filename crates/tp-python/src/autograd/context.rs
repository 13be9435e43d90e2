//! `ctx`: what a setup function leaves for the backward function of the same call. A type made by hand: it takes part
//! in cyclic collection with its attributes, and goes at once with the node that owns it. Its methods for people are
//! in `context_methods`.
//!
//! # Invariants
//! * State is touched with the interpreter lock held, and never borrowed across anything that may run Python code.
//! * What is read back for a backward call belongs to that call: entries name the thread, the innermost comes last, so
//!   that two threads, or a pass inside of a pass, over one graph do not see each other's.

use super::context_methods as methods;
use crate::error;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::heap_type::{HeapType, slot};
use crate::hot::{queue, shell};
use pyo3::ffi;
use smallvec::SmallVec;
use std::cell::UnsafeCell;
use std::os::raw::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use tp_autograd::rule::BackwardCtx;
use tp_dispatch::{Error, Result, state};
use tp_tensor::Tensor;

#[repr(C)]
pub struct Context {
    head: ffi::PyObject,
    dict: Obj,
    weak: Obj,
    state: State,
}

/// Where a context is in the life of its call.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The setup function may still save.
    #[default]
    Setup,
    /// The tape has what was saved.
    Recorded,
    /// The rule has no setup function: nothing was saved, nor will be.
    Bare,
    /// A backward pass gave it up.
    Freed,
}

#[derive(Default)]
pub struct State {
    pub phase: Phase,
    /// Given to `save_for_backward`, until the tape takes them.
    pub to_save: Vec<Option<Tensor>>,
    pub not_differentiable: Vec<Tensor>,
    pub dirty: Vec<Tensor>,
    pub no_materialize: bool,
    pub needs: Needs,
    /// Backward calls that are under way: the thread, and what they saved.
    running: SmallVec<[(usize, *const BackwardCtx<'static>); 1]>,
}

impl State {
    /// After the last backward pass.
    pub fn free(&mut self) {
        if self.phase != Phase::Bare {
            self.phase = Phase::Freed;
        }
    }

    /// As it was made, whatever the inputs need.
    fn is_unused(&self) -> bool {
        let lists = self.to_save.is_empty() && self.not_differentiable.is_empty() && self.dirty.is_empty();
        lists && !self.no_materialize && self.running.is_empty()
    }
}

/// Which inputs need a gradient.
#[derive(Default)]
pub enum Needs {
    #[default]
    Unknown,
    /// One bit per positional input, none of them a list; the tuple is made when it is asked for.
    Bits { bits: u64, inputs: usize },
    /// An owned tuple.
    Object(Obj),
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());

/// A new context.
///
/// # Safety
/// Lock held, type initialised.
pub unsafe fn new() -> Result<Obj> {
    // SAFETY: a fresh object of our type; every field is written before it is tracked.
    unsafe {
        let op = x::_PyObject_GC_New(TYPE.load(Ordering::Relaxed));
        if op.is_null() {
            return Err(error::fetch());
        }
        let this = op.cast::<Context>();
        ptr::write(&raw mut (*this).dict, ptr::null_mut());
        ptr::write(&raw mut (*this).weak, ptr::null_mut());
        ptr::write(&raw mut (*this).state, State::default());
        x::PyObject_GC_Track(op.cast());
        Ok(op)
    }
}

/// A context that a backward call without a setup function used, for the next one.
struct Spare(UnsafeCell<Obj>);

// SAFETY: touched only with the interpreter lock held, and never across a call that may run Python code.
unsafe impl Sync for Spare {}

static SPARE: Spare = Spare(UnsafeCell::new(ptr::null_mut()));

/// A context for one backward call of a rule without a setup function, which `give_up` ends. The collector does not
/// know of it before that: whoever keeps it makes it a context like any other.
///
/// # Safety
/// Lock held, type initialised.
#[inline]
pub unsafe fn borrow(needs: Needs) -> Result<Obj> {
    // SAFETY: the spare one is nobody else's.
    unsafe {
        let mut op = std::mem::replace(&mut *SPARE.0.get(), ptr::null_mut());
        if op.is_null() {
            op = new()?;
            x::PyObject_GC_UnTrack(op.cast());
        }
        with(op, |s| {
            s.needs = needs;
            s.phase = Phase::Bare;
        });
        Ok(op)
    }
}

/// # Safety
/// `op` came from `borrow`, and its call is over.
pub unsafe fn give_up(op: Obj) {
    // SAFETY: lock held; one reference is ours.
    unsafe {
        let this = op.cast::<Context>();
        let is_plain = (*this).dict.is_null() && (*this).weak.is_null() && (*this).state.is_unused();
        let spare = &mut *SPARE.0.get();
        if is_plain && ffi::Py_REFCNT(op) == 1 && spare.is_null() {
            *spare = op;
            return;
        }
        x::PyObject_GC_Track(op.cast());
        ffi::Py_DECREF(op);
    }
}

/// Changes the state of a context; nothing in `change` may run Python code.
///
/// # Safety
/// A live context, lock held.
#[inline]
pub unsafe fn with<R>(op: Obj, change: impl FnOnce(&mut State) -> R) -> R {
    // SAFETY: the lock gives one thread access, and no other borrow is alive while `change` runs.
    change(unsafe { &mut (*op.cast::<Context>()).state })
}

fn this_thread() -> usize {
    state::with(|s| ptr::from_ref(s) as usize)
}

/// Makes what `call` saved readable on this thread, until `leave`.
///
/// # Safety
/// A live context, lock held; `leave` follows before `call` goes.
pub unsafe fn enter(op: Obj, call: &BackwardCtx<'_>) {
    let entry = (this_thread(), ptr::from_ref(call).cast());
    // SAFETY: the caller's promise.
    unsafe { with(op, |s| s.running.push(entry)) }
}

/// # Safety
/// As `enter`, which came before.
pub unsafe fn leave(op: Obj, call: &BackwardCtx<'_>) {
    let call: *const BackwardCtx<'static> = ptr::from_ref(call).cast();
    // SAFETY: the caller's promise.
    unsafe {
        with(op, |s| {
            if let Some(at) = s.running.iter().rposition(|(_, c)| ptr::eq(*c, call)) {
                s.running.remove(at);
            }
        });
    }
}

/// The saved tensors, as whoever asks may see them: what the setup function gave, or what the backward call that is
/// under way reads back, each checked for writes since.
///
/// # Safety
/// A live context, lock held.
pub unsafe fn saved(op: Obj) -> Result<Vec<Option<Tensor>>> {
    let here = this_thread();
    // SAFETY: lock held. An entry of this thread belongs to a call further down its stack, so that it outlives this
    // one; that of another thread may end while Python code runs, so it is copied first.
    unsafe {
        let (own, any, phase) = with(op, |s| {
            let own = s.running.iter().rev().find(|(thread, _)| *thread == here).map(|e| e.1);
            (own, s.running.last().map(|e| e.1), s.phase)
        });
        match (own, any, phase) {
            (.., Phase::Bare) => Err(nothing_saved()),
            (Some(call), ..) => unpack(&*call),
            (None, Some(call), _) => (*call).copied(unpack),
            (None, None, Phase::Setup) => Ok(with(op, |s| s.to_save.clone())),
            (None, None, phase) => Err(not_now(phase)),
        }
    }
}

fn unpack(call: &BackwardCtx<'_>) -> Result<Vec<Option<Tensor>>> {
    (0..call.saved_count()).map(|k| call.saved_opt(k)).collect()
}

#[cold]
fn nothing_saved() -> Error {
    Error::autograd("TP3317", "nothing was saved: the backward rule was registered without setup_context")
        .note("register_autograd(backward, setup_context=setup), where setup(ctx, inputs, output) calls ctx.save_for_backward(...)")
}

#[cold]
fn not_now(phase: Phase) -> Error {
    if phase == Phase::Freed {
        return Error::autograd("TP3004", "the saved tensors were freed by the first backward pass")
            .note("pass retain_graph=True to every backward pass but the last");
    }
    Error::autograd("TP3304", "the saved tensors are with the graph until backward runs")
        .note("read ctx.saved_tensors inside of backward")
}

unsafe extern "C" fn dealloc(op: Obj) {
    // SAFETY: last reference gone, lock held.
    unsafe {
        x::PyObject_GC_UnTrack(op.cast());
        let this = op.cast::<Context>();
        if !(*this).weak.is_null() {
            ffi::PyObject_ClearWeakRefs(op);
        }
        ffi::Py_CLEAR(&raw mut (*this).dict);
        ptr::drop_in_place(&raw mut (*this).state);
        let ty = x::type_of(op);
        x::PyObject_GC_Del(op.cast());
        ffi::Py_DECREF(ty.cast());
    }
}

unsafe extern "C" fn traverse(op: Obj, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: called by the collector on a live object.
    unsafe {
        let this = op.cast::<Context>();
        for owned in [x::type_of(op).cast(), (*this).dict] {
            if !owned.is_null() {
                let r = visit(owned, arg);
                if r != 0 {
                    return r;
                }
            }
        }
        0
    }
}

unsafe extern "C" fn clear(op: Obj) -> c_int {
    // SAFETY: called by the collector on a live object.
    unsafe { ffi::Py_CLEAR(&raw mut (*op.cast::<Context>()).dict) };
    0
}

unsafe extern "C" fn make(_: *mut ffi::PyTypeObject, _: Obj, _: Obj) -> Obj {
    // SAFETY: called by CPython with the lock held.
    crate::hot::ret::guard(|| unsafe { new() })
}

impl Drop for Needs {
    fn drop(&mut self) {
        if let Needs::Object(tuple) = *self {
            queue::release(tuple);
        }
    }
}

/// Makes the type.
///
/// # Safety
/// Lock held; called once at import.
pub unsafe fn init_type() -> Obj {
    let made = HeapType {
        name: c"tensorplay._native.Context",
        basicsize: size_of::<Context>(),
        flags: 0,
        offsets: &[
            (c"__dictoffset__", std::mem::offset_of!(Context, dict)),
            (c"__weaklistoffset__", std::mem::offset_of!(Context, weak)),
        ],
        slots: vec![
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse as *mut c_void),
            slot(ffi::Py_tp_clear, clear as *mut c_void),
            slot(ffi::Py_tp_new, make as *mut c_void),
            slot(ffi::Py_tp_repr, methods::repr as *mut c_void),
            slot(ffi::Py_tp_doc, DOC.as_ptr().cast_mut().cast()),
            slot(ffi::Py_tp_methods, methods::methods().cast()),
            slot(ffi::Py_tp_getset, methods::attributes().cast()),
        ],
    };
    // SAFETY: lock held; the functions above have their slots' types, the tables live for ever.
    unsafe { made.create_in(&TYPE) }.cast()
}

const DOC: &std::ffi::CStr = c"State of one differentiated call; any further attributes may be set on it.";

/// The tensor in `op`, or an error that says what was wanted.
///
/// # Safety
/// A live object.
pub unsafe fn tensor(op: Obj, what: &str) -> Result<Tensor> {
    // SAFETY: the caller's promise.
    unsafe {
        if shell::is_tensor(op) {
            return Ok(shell::tensor_of(op).clone());
        }
        Err(Error::argument("TP3305", format!("{what}, got {}", x::type_name(op))))
    }
}
