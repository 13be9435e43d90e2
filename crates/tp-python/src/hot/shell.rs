//! The Python object of a tensor ("shell"): one pointer to the tensor's header and a weak-reference list.
//!
//! # Rationale
//! A type made by hand costs 40 to 60 ns less per operation than a PyO3 class: no borrow flag, a free list, and no
//! tracking by the cyclic collector until the tensor can close a cycle.
//!
//! # Invariants
//! * The header's `host` slot points to the live shell, or is null. Dealloc clears it *before* weak-reference
//!   callbacks run: the other order would let a callback revive a dying shell.
//! * A shell is tracked at most once; `Tensor::is_tracked` says so.
//! * Free list and `host` are guarded by the interpreter lock. A free-threaded build needs a lock bit per header.

use super::ffi::{self as x, Obj};
use pyo3::ffi;
use std::cell::UnsafeCell;
use std::os::raw::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use tp_tensor::Tensor;

#[repr(C)]
pub struct Shell {
    head: ffi::PyObject,
    pub tensor: std::mem::ManuallyDrop<Tensor>,
    weak: Obj,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());

/// Our type object; null until the module is initialised.
#[inline(always)]
pub fn tensor_type() -> *mut ffi::PyTypeObject {
    TYPE.load(Ordering::Relaxed)
}

pub fn set_tensor_type(ty: *mut ffi::PyTypeObject) {
    TYPE.store(ty, Ordering::Release);
}

/// True for tensors; the type is final, so that this is one comparison.
///
/// # Safety
/// `op` is a live object.
#[inline(always)]
pub unsafe fn is_tensor(op: Obj) -> bool {
    // SAFETY: the caller's promise.
    unsafe { x::type_of(op) == tensor_type() }
}

/// The tensor inside of a shell; lives as long as the shell does.
///
/// # Safety
/// `op` is a live tensor object.
#[inline(always)]
pub unsafe fn tensor_of<'a>(op: Obj) -> &'a Tensor {
    // SAFETY: the layout of our own type.
    unsafe { &(*op.cast::<Shell>()).tensor }
}

const FREE_LIMIT: usize = 16_384;

/// Shells without a tensor, ready for the next one.
struct FreeList(UnsafeCell<Vec<*mut Shell>>);

// SAFETY: touched only with the interpreter lock held, and never across a call that may run Python code.
unsafe impl Sync for FreeList {}

static FREE: FreeList = FreeList(UnsafeCell::new(Vec::new()));

/// A new reference to the shell of `tensor`: the live one, or a fresh one.
///
/// # Safety
/// The interpreter lock is held.
#[inline(always)]
pub unsafe fn wrap(tensor: Tensor) -> Obj {
    let host: Obj = tensor.host().cast();
    if host.is_null() {
        // SAFETY: lock held.
        return unsafe { wrap_fresh(tensor) };
    }
    // SAFETY: `host` is a live shell while it is set.
    unsafe { ffi::Py_INCREF(host) };
    host
}

/// As `wrap`, keeping the caller's handle.
///
/// # Safety
/// The interpreter lock is held.
#[inline]
pub unsafe fn wrap_ref(tensor: &Tensor) -> Obj {
    let host: Obj = tensor.host().cast();
    if host.is_null() {
        // SAFETY: lock held.
        return unsafe { wrap_fresh(tensor.clone()) };
    }
    // SAFETY: as above.
    unsafe { ffi::Py_INCREF(host) };
    host
}

#[inline(always)]
unsafe fn wrap_fresh(tensor: Tensor) -> Obj {
    // SAFETY: lock held; a popped shell has its head, type and empty weak list intact.
    unsafe {
        let free = &mut *FREE.0.get();
        let op = match free.pop() {
            Some(shell) => {
                let op: Obj = shell.cast();
                ptr::write((&raw mut (*op).ob_refcnt).cast::<isize>(), 1);
                op
            }
            None => match new_shell() {
                Some(op) => op,
                None => return ptr::null_mut(),
            },
        };
        tensor.set_host(op.cast());
        let track = tensor.needs_tracking();
        ptr::write(&raw mut (*op.cast::<Shell>()).tensor, std::mem::ManuallyDrop::new(tensor));
        if track {
            track_shell(op);
        }
        op
    }
}

/// Takes the tensor out of an owned reference; the shell goes back to the free list when nobody else has it.
///
/// # Safety
/// `op` is an owned reference to a tensor object; the interpreter lock is held.
#[inline(always)]
pub unsafe fn unwrap(op: Obj) -> Tensor {
    // SAFETY: the caller's promise.
    unsafe {
        let shell = op.cast::<Shell>();
        let t = &(*shell).tensor;
        let free = &mut *FREE.0.get();
        let alone = ffi::Py_REFCNT(op) == 1 && (*shell).weak.is_null() && !t.is_tracked();
        if alone && free.len() < FREE_LIMIT {
            t.set_host(ptr::null_mut());
            let tensor = ptr::read(&raw const *(&raw const (*shell).tensor).cast::<Tensor>());
            free.push(shell);
            return tensor;
        }
        let tensor = Tensor::clone(t);
        ffi::Py_DECREF(op);
        tensor
    }
}

#[cold]
unsafe fn new_shell() -> Option<Obj> {
    super::queue::drain();
    // SAFETY: lock held; the object comes untracked.
    unsafe {
        let op = x::_PyObject_GC_New(tensor_type());
        if op.is_null() {
            return None;
        }
        ptr::write(&raw mut (*op.cast::<Shell>()).weak, ptr::null_mut());
        Some(op)
    }
}

/// Puts a shell under the cyclic collector unless it is already.
///
/// # Safety
/// `op` is a live tensor object, completely built; the interpreter lock is held.
#[cold]
pub unsafe fn track_shell(op: Obj) {
    // SAFETY: the caller's promise.
    unsafe {
        let t = tensor_of(op);
        if !t.is_tracked() {
            t.set_tracked(true);
            x::PyObject_GC_Track(op.cast());
        }
    }
}

pub unsafe extern "C" fn dealloc(op: Obj) {
    // SAFETY: called by CPython with the last reference gone and the lock held.
    unsafe {
        let shell = op.cast::<Shell>();
        let t = &(*shell).tensor;
        if t.is_tracked() {
            t.set_tracked(false);
            x::PyObject_GC_UnTrack(op.cast());
        }
        t.set_host(ptr::null_mut());
        if !(*shell).weak.is_null() {
            ffi::PyObject_ClearWeakRefs(op);
        }
        std::mem::ManuallyDrop::drop(&mut (*shell).tensor);
        let free = &mut *FREE.0.get();
        if free.len() < FREE_LIMIT {
            free.push(shell);
        } else {
            let ty = x::type_of(op);
            x::PyObject_GC_Del(op.cast());
            ffi::Py_DECREF(ty.cast());
        }
    }
}

/// Reports what only this shell keeps alive: the Python objects its tape extension reaches, when no other header
/// handle exists.
pub unsafe extern "C" fn traverse(op: Obj, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: called by the collector on a live object.
    unsafe {
        let ty: Obj = x::type_of(op).cast();
        let r = visit(ty, arg);
        if r != 0 {
            return r;
        }
        let t = tensor_of(op);
        if t.ref_count() != 1 {
            return 0;
        }
        let mut result = 0;
        t.ext_trace(&mut |p| {
            if result == 0 {
                result = visit(p.cast(), arg);
            }
        });
        match t.handed_base() {
            Some(base) if result == 0 => visit(base.cast(), arg),
            _ => result,
        }
    }
}

pub unsafe extern "C" fn clear(op: Obj) -> c_int {
    // SAFETY: called by the collector on a live object.
    unsafe {
        let t = tensor_of(op);
        if t.ref_count() == 1 {
            t.ext_clear();
        }
    }
    0
}

/// Offset of the weak-reference list, for the type's members.
pub const WEAK_OFFSET: usize = std::mem::offset_of!(Shell, weak);
