//! The few CPython symbols and flags that pyo3-ffi does not name under the limited API of 3.11, and the smallest
//! helpers over raw objects. All symbols are exported by every CPython from 3.11 on.

use pyo3::exceptions::PyRecursionError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::{c_int, c_ulong};
use tp_dispatch::stack;

pub use ffi::PyObject;

pub type Obj = *mut PyObject;

unsafe extern "C" {
    pub fn _PyObject_GC_New(ty: *mut ffi::PyTypeObject) -> Obj;
    pub fn PyObject_GC_Track(op: *mut std::ffi::c_void);
    pub fn PyObject_GC_UnTrack(op: *mut std::ffi::c_void);
    pub fn PyObject_GC_Del(op: *mut std::ffi::c_void);
    pub fn PyGILState_Check() -> c_int;
    pub fn PyVectorcall_Call(f: Obj, args: Obj, kwargs: Obj) -> Obj;
}

mod raw {
    use super::Obj;

    unsafe extern "C" {
        pub fn PyObject_Vectorcall(f: Obj, args: *const Obj, nargsf: usize, kwnames: Obj) -> Obj;
    }
}

/// Calls `f`, or raises RecursionError where the stack of this thread is nearly used up: what is called may call an op
/// again, and that one its kernel. An owned result, or null with the exception set.
///
/// # Safety
/// The lock is held; a live callable, and arguments by the vectorcall convention.
#[inline(always)]
pub unsafe fn vectorcall(f: Obj, args: *const Obj, nargsf: usize, kwnames: Obj) -> Obj {
    if stack::is_low() {
        too_deep();
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    unsafe { raw::PyObject_Vectorcall(f, args, nargsf, kwnames) }
}

/// Before a function of the user is called by other ways than `vectorcall`.
#[inline]
pub fn require_stack() -> PyResult<()> {
    if stack::is_low() { Err(too_deep_error()) } else { Ok(()) }
}

#[cold]
fn too_deep() {
    crate::error::attached(|py| too_deep_error().restore(py));
}

#[cold]
fn too_deep_error() -> PyErr {
    PyRecursionError::new_err("maximum recursion depth exceeded: the stack of this thread is nearly used up")
}

/// In the limited API only from 3.12 on; the bit and its meaning are the same in 3.11.
pub const HAVE_VECTORCALL: c_ulong = 1 << 11;
pub const VECTORCALL_OFFSET_FLAG: usize = 1 << (usize::BITS - 1);

/// # Safety
/// `op` is a live object and the interpreter lock is held.
#[inline(always)]
pub unsafe fn type_of(op: Obj) -> *mut ffi::PyTypeObject {
    // SAFETY: every object starts with the fixed head.
    unsafe { (*op).ob_type }
}

/// A borrowed `str` as UTF-8, or None (with no exception set) when it has lone surrogates.
///
/// # Safety
/// `op` is a live `str`; the slice lives as long as the object.
pub unsafe fn str_of<'a>(op: Obj) -> Option<&'a str> {
    // SAFETY: the caller's promise; the pointer is cached inside of the object.
    unsafe {
        let mut len = 0;
        let p = ffi::PyUnicode_AsUTF8AndSize(op, &mut len);
        if p.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        Some(std::str::from_utf8_unchecked(std::slice::from_raw_parts(p.cast(), len as usize)))
    }
}

/// A `str` for messages: what is no character in it stands there as an escape.
///
/// # Safety
/// `op` is a live `str` and the interpreter lock is held.
#[cold]
pub unsafe fn shown(op: Obj) -> String {
    // SAFETY: the caller's promise; the bytes are an owned reference, and UTF-8 by their making.
    unsafe {
        if let Some(text) = str_of(op) {
            return text.to_string();
        }
        let bytes = ffi::PyUnicode_AsEncodedString(op, c"utf-8".as_ptr(), c"backslashreplace".as_ptr());
        if bytes.is_null() {
            ffi::PyErr_Clear();
            return "?".to_string();
        }
        let (start, len) = (ffi::PyBytes_AsString(bytes).cast(), ffi::PyBytes_Size(bytes) as usize);
        let text = String::from_utf8_lossy(std::slice::from_raw_parts(start, len)).into_owned();
        ffi::Py_DECREF(bytes);
        text
    }
}

/// The short name of an object's type, for messages.
///
/// # Safety
/// `op` is a live object and the interpreter lock is held.
pub unsafe fn type_name(op: Obj) -> String {
    // SAFETY: attribute access on a live type object.
    unsafe {
        if op == ffi::Py_None() {
            return "None".to_string();
        }
        let name = ffi::PyObject_GetAttrString(type_of(op).cast(), c"__name__".as_ptr());
        if name.is_null() {
            ffi::PyErr_Clear();
            return "object".to_string();
        }
        let text = shown(name);
        ffi::Py_DECREF(name);
        text
    }
}

/// Interned `str` that lives for ever.
///
/// # Safety
/// The interpreter lock is held.
pub unsafe fn intern(text: &str) -> Obj {
    // SAFETY: makes a fresh object and hands its reference to the intern table's user.
    unsafe {
        let mut s = ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), text.len() as isize);
        if !s.is_null() {
            ffi::PyUnicode_InternInPlace(&mut s);
        }
        s
    }
}
