//! Nodes of the tape that reach Python objects, as the cyclic collector sees them. Such a node goes on a list when it
//! is recorded; only when a collection starts do those that are still alive get a host object each, whose Python
//! reference count is from then on the node's owner count. Steps that end before a collection starts pay for a list
//! entry, nothing more.
//!
//! # Invariants
//! * Every owner of a promoted node (a tensor header, an edge, a Rust variable) owns one reference to its host object.
//! * `traverse` reports exactly the references that the node itself owns; what somebody else may hold too is left out,
//!   which keeps it alive.
//! * The list is never locked across anything that may run Python code.

use super::ffi::{self as x, Obj};
use super::heap_type::{HeapType, slot};
use super::{queue, ret, shell};
use parking_lot::Mutex;
use pyo3::ffi;
use std::os::raw::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use tp_autograd::tape::Listed;
use tp_autograd::{HostHooks, Node, NodeRef, meta};
use tp_dispatch::Result;
use tp_tensor::Tensor;

#[repr(C)]
struct NodeHost {
    head: ffi::PyObject,
    node: NonNull<Node>,
}

struct Waiting {
    nodes: Vec<NonNull<Node>>,
    /// The length at which dead entries are looked for.
    limit: usize,
}

// SAFETY: the addresses are handed to `Node`, which says what may be done with them.
unsafe impl Send for Waiting {}

const FEW: usize = 512;

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { nodes: Vec::new(), limit: FEW });
static HOSTED: AtomicUsize = AtomicUsize::new(0);
static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());

struct Hooks;

static HOOKS: Hooks = Hooks;

impl HostHooks for Hooks {
    fn retain(&self, host: *mut ()) {
        // SAFETY: a live host object; the tape is used with the interpreter lock held.
        unsafe { ffi::Py_INCREF(host.cast()) };
    }

    fn release(&self, host: *mut ()) {
        queue::release(host.cast());
    }

    #[inline]
    fn recorded(&self, node: &NodeRef) {
        let mut waiting = WAITING.lock();
        if waiting.nodes.len() >= waiting.limit {
            sweep(&mut waiting);
        }
        waiting.nodes.push(node.as_ptr());
    }

    fn own(&self, t: &Tensor) -> bool {
        // SAFETY: called from `promote`, with the lock held.
        unsafe {
            let shell = shell::wrap_ref(t);
            if shell.is_null() {
                ffi::PyErr_Clear();
                return false;
            }
            shell::track_shell(shell);
            true
        }
    }

    fn track(&self, host: *mut ()) {
        // SAFETY: the live shell of a tensor; asks about this thread.
        unsafe {
            if x::PyGILState_Check() == 1 {
                shell::track_shell(host.cast());
            }
        }
    }
}

/// Gives back the blocks of dead nodes. Nothing here runs Python code.
#[cold]
fn sweep(waiting: &mut Waiting) {
    waiting.nodes.retain(|&node| {
        // SAFETY: on the list, so neither promoted nor reclaimed.
        unsafe {
            if !Node::is_dead(node) {
                return true;
            }
            Node::reclaim(node);
            false
        }
    });
    waiting.limit = FEW.max(2 * waiting.nodes.len());
}

/// Makes host objects for the nodes that are alive: a collection is about to start.
///
/// # Safety
/// Lock held.
unsafe fn promote_all() {
    let nodes = std::mem::take(&mut WAITING.lock().nodes);
    let mut dying = Vec::new();
    for at in nodes {
        // SAFETY: on the list until now, so neither promoted nor reclaimed.
        unsafe {
            match Node::listed(at) {
                Listed::Dead => Node::reclaim(at),
                Listed::Dying => dying.push(at),
                Listed::Alive(node) => {
                    if !promote(&node) {
                        dying.push(at);
                    }
                }
            }
        }
    }
    WAITING.lock().nodes.append(&mut dying);
}

/// A host object for one node; false when there is no memory for it.
unsafe fn promote(node: &NodeRef) -> bool {
    // SAFETY: lock held; the object is complete before it is tracked, and starts with the count of the node's owners.
    unsafe {
        let op = x::_PyObject_GC_New(TYPE.load(Ordering::Relaxed));
        if op.is_null() {
            ffi::PyErr_Clear();
            return false;
        }
        ptr::write(&raw mut (*op.cast::<NodeHost>()).node, node.as_ptr());
        let owners = node.promote(op.cast(), &HOOKS);
        ptr::write((&raw mut (*op).ob_refcnt).cast::<isize>(), owners as isize);
        HOSTED.fetch_add(1, Ordering::Relaxed);
        x::PyObject_GC_Track(op.cast());
        true
    }
}

/// Nodes that reach Python objects and are alive.
pub fn live() -> usize {
    let mut waiting = WAITING.lock();
    sweep(&mut waiting);
    waiting.nodes.len() + HOSTED.load(Ordering::Relaxed)
}

unsafe fn node_of<'a>(op: Obj) -> &'a Node {
    // SAFETY: the layout of our own type; the node lives as long as its host object.
    unsafe { (*op.cast::<NodeHost>()).node.as_ref() }
}

unsafe extern "C" fn traverse(op: Obj, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: called by the collector on a live object.
    unsafe {
        let mut result = visit(x::type_of(op).cast(), arg);
        meta::trace_node(node_of(op), &mut |p| {
            if result == 0 {
                result = visit(p.cast(), arg);
            }
        });
        result
    }
}

unsafe extern "C" fn clear(op: Obj) -> c_int {
    // SAFETY: called by the collector on a live object that only garbage reaches.
    unsafe { node_of(op).clear() };
    0
}

unsafe extern "C" fn dealloc(op: Obj) {
    // SAFETY: last reference gone, lock held: nobody owns the node any more.
    unsafe {
        x::PyObject_GC_UnTrack(op.cast());
        let node = (*op.cast::<NodeHost>()).node;
        let ty = x::type_of(op);
        x::PyObject_GC_Del(op.cast());
        ffi::Py_DECREF(ty.cast());
        HOSTED.fetch_sub(1, Ordering::Relaxed);
        Node::free_hosted(node);
    }
}

unsafe extern "C" fn started(_: Obj, args: *mut Obj, nargs: isize) -> Obj {
    // SAFETY: the fastcall convention: the phase as a string, and a dictionary.
    ret::guard(|| unsafe {
        if nargs > 0 && ffi::PyUnicode_Check(*args) != 0 && x::str_of(*args) == Some("start") {
            promote_all();
        }
        Result::Ok(ffi::Py_NewRef(ffi::Py_None()))
    })
}

/// Makes the type, and asks the collector to tell when it starts.
///
/// # Safety
/// Lock held; called once at import. False with an exception set when that fails.
pub unsafe fn init() -> bool {
    let made = HeapType {
        name: c"tensorplay._native.NodeHost",
        basicsize: size_of::<NodeHost>(),
        flags: 1 << 7, // not to be made from Python
        offsets: &[],
        slots: vec![
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse as *mut c_void),
            slot(ffi::Py_tp_clear, clear as *mut c_void),
        ],
    };
    // SAFETY: lock held; the functions above have their slots' types, the definition lives for ever.
    unsafe {
        if made.create_in(&TYPE).is_null() {
            return false;
        }
        let def = Box::leak(Box::new(ffi::PyMethodDef {
            ml_name: c"tensorplay_collection_started".as_ptr(),
            ml_meth: ffi::PyMethodDefPointer { PyCFunctionFast: started },
            ml_flags: ffi::METH_FASTCALL,
            ml_doc: ptr::null(),
        }));
        let function = ffi::PyCFunction_NewEx(def, ptr::null_mut(), ptr::null_mut());
        let gc = ffi::PyImport_ImportModule(c"gc".as_ptr());
        if function.is_null() || gc.is_null() {
            return false;
        }
        let callbacks = ffi::PyObject_GetAttrString(gc, c"callbacks".as_ptr());
        let done = !callbacks.is_null() && ffi::PyList_Append(callbacks, function) == 0;
        ffi::Py_XDECREF(callbacks);
        ffi::Py_DECREF(gc);
        ffi::Py_DECREF(function);
        done && tp_autograd::set_host_hooks(&HOOKS)
            && tp_tensor::base::set_host_release(|host| queue::release(host.cast()))
    }
}
