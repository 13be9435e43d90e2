//! The op as a Python object, built-in and custom alike, and the builtin function bound to it.
//!
//! The type has a vectorcall slot of its own; its methods for people (registering kernels, printing) are Python
//! functions put into the type by `tensorplay.library`, for a Python subclass would lose the fast call in 3.11.

use super::bind::Given;
use super::ffi::{self as x, Obj};
use super::heap_type::{HeapType, slot};
use super::packet::{self, Packet};
use super::ret;
use pyo3::ffi;
use std::os::raw::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use tp_dispatch::Error;

#[repr(C)]
pub struct OpObject {
    head: ffi::PyObject,
    vectorcall: ffi::vectorcallfunc,
    packet: *mut Packet,
    dict: Obj,
    weak: Obj,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());

pub fn op_type() -> *mut ffi::PyTypeObject {
    TYPE.load(Ordering::Relaxed)
}

/// The packet behind an op object, or None for any other object.
///
/// # Safety
/// Live object; the packet lives as long as it does.
pub unsafe fn packet_of<'a>(op: Obj) -> Option<&'a Packet> {
    // SAFETY: the layout of our own type.
    unsafe { (x::type_of(op) == op_type()).then(|| &*(*op.cast::<OpObject>()).packet) }
}

/// A new op object.
///
/// # Safety
/// Lock held, type initialised.
pub unsafe fn new(packet: Packet) -> Obj {
    // SAFETY: a fresh object of our type; every field is written before it is tracked.
    unsafe {
        let op = x::_PyObject_GC_New(op_type());
        if op.is_null() {
            return op;
        }
        let this = op.cast::<OpObject>();
        ptr::write(&raw mut (*this).vectorcall, vectorcall);
        ptr::write(&raw mut (*this).packet, Box::into_raw(Box::new(packet)));
        ptr::write(&raw mut (*this).dict, ptr::null_mut());
        ptr::write(&raw mut (*this).weak, ptr::null_mut());
        x::PyObject_GC_Track(op.cast());
        op
    }
}

unsafe extern "C" fn vectorcall(op: Obj, args: *const Obj, nargsf: usize, kwnames: Obj) -> Obj {
    let nargs = nargsf & !x::VECTORCALL_OFFSET_FLAG;
    // SAFETY: called on an op object by the vectorcall protocol.
    ret::guard(|| unsafe { packet::call(&*(*op.cast::<OpObject>()).packet, Given { args, nargs, kwnames }) })
}

/// The body of every builtin: `self_` is the op object.
unsafe extern "C" fn builtin(self_: Obj, args: *const Obj, nargs: isize, kwnames: Obj) -> Obj {
    let given = Given { args, nargs: nargs as usize, kwnames };
    // SAFETY: bound to an op object at construction.
    ret::guard(|| unsafe { packet::call(&*(*self_.cast::<OpObject>()).packet, given) })
}

/// A builtin function bound to `op`: the cheapest callable there is.
///
/// # Safety
/// Lock held; `op` is an op object. The function's table entry is leaked, once per name.
pub unsafe fn function(op: Obj, name: &str, doc: &str, module: Obj) -> Obj {
    let text =
        |s: &str| Box::leak(s.replace('\0', "").into_bytes().into_iter().chain([0]).collect::<Box<[u8]>>());
    let def = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: text(name).as_ptr().cast(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: builtin },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: text(doc).as_ptr().cast(),
    }));
    // SAFETY: the definition lives for ever.
    unsafe { ffi::PyCFunction_NewEx(def, op, module) }
}

unsafe extern "C" fn dealloc(op: Obj) {
    // SAFETY: last reference gone, lock held.
    unsafe {
        x::PyObject_GC_UnTrack(op.cast());
        let this = op.cast::<OpObject>();
        if !(*this).weak.is_null() {
            ffi::PyObject_ClearWeakRefs(op);
        }
        ffi::Py_CLEAR(&raw mut (*this).dict);
        drop(Box::from_raw((*this).packet));
        let ty = x::type_of(op);
        x::PyObject_GC_Del(op.cast());
        ffi::Py_DECREF(ty.cast());
    }
}

unsafe extern "C" fn traverse(op: Obj, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: called by the collector on a live object.
    unsafe {
        let r = visit(x::type_of(op).cast(), arg);
        if r != 0 {
            return r;
        }
        let dict = (*op.cast::<OpObject>()).dict;
        if dict.is_null() { 0 } else { visit(dict, arg) }
    }
}

unsafe extern "C" fn clear(op: Obj) -> c_int {
    // SAFETY: called by the collector on a live object.
    unsafe { ffi::Py_CLEAR(&raw mut (*op.cast::<OpObject>()).dict) };
    0
}

unsafe extern "C" fn no_new(_: *mut ffi::PyTypeObject, _: Obj, _: Obj) -> Obj {
    ret::guard(|| Err(Error::argument("TP1049", "ops are made by tensorplay.library.custom_op")))
}

/// Makes the type and puts it into the module under `CustomOpDef`.
///
/// # Safety
/// Lock held; called once at import.
pub unsafe fn init_type() -> *mut ffi::PyTypeObject {
    let made = HeapType {
        name: c"tensorplay.library.CustomOpDef",
        basicsize: size_of::<OpObject>(),
        flags: x::HAVE_VECTORCALL,
        offsets: &[
            (c"__vectorcalloffset__", std::mem::offset_of!(OpObject, vectorcall)),
            (c"__dictoffset__", std::mem::offset_of!(OpObject, dict)),
            (c"__weaklistoffset__", std::mem::offset_of!(OpObject, weak)),
        ],
        slots: vec![
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse as *mut c_void),
            slot(ffi::Py_tp_clear, clear as *mut c_void),
            slot(ffi::Py_tp_call, x::PyVectorcall_Call as *mut c_void),
            slot(ffi::Py_tp_new, no_new as *mut c_void),
        ],
    };
    // SAFETY: lock held; the functions above have their slots' types.
    unsafe { made.create_in(&TYPE) }
}
