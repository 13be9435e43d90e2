//! The type `tensorplay.Tensor`: its slots, members and hot methods, put together. Final, without a `__dict__`, with
//! weak references; what is not hot is installed on it from Python (`tensorplay._tensor`).
//!
//! # Limitations
//! A Python subclass is not possible: exact type checks are what makes calls cheap.

mod buffer;
mod getset;
mod indexing;
mod memory;
mod methods;
mod number;
mod scalar;
mod tape;

use super::ffi::Obj;
use super::heap_type::{HeapType, slot};
use super::{ret, shell};
use crate::error;
use crate::tensor::dlpack::exchange;
use pyo3::ffi;
use std::os::raw::c_void;
use std::ptr;
use tp_dispatch::{Error, Result};

unsafe extern "C" fn no_new(_: *mut ffi::PyTypeObject, _: Obj, _: Obj) -> Obj {
    let message =
        "a Tensor is made by tensorplay.tensor(data), tensorplay.asarray(obj) or tensorplay.empty(shape)";
    ret::guard(|| Err(Error::argument("TP1049", message)))
}

/// Identity: `==` compares elements, so that equal tensors must not share a hash.
unsafe extern "C" fn hash(op: Obj) -> ffi::Py_hash_t {
    if tp_graph::capture::active() {
        // SAFETY: called on a live tensor with the lock held.
        if let Err(e) = tp_graph::capture::watch::hashed(unsafe { shell::tensor_of(op) }) {
            error::set(e);
            return -1;
        }
    }
    // Objects lie on 16-byte boundaries: the low bits say nothing. A hash is never -1.
    ((op as usize).rotate_right(4) & (isize::MAX as usize)) as ffi::Py_hash_t
}

unsafe extern "C" fn repr(op: Obj) -> Obj {
    // SAFETY: called on a live tensor with the lock held.
    ret::guard(|| unsafe {
        let text = crate::tensor::repr::text(op)?;
        Ok(ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), text.len() as isize))
    })
}

fn slots() -> Vec<ffi::PyType_Slot> {
    let mut all = vec![
        slot(ffi::Py_tp_dealloc, shell::dealloc as *mut c_void),
        slot(ffi::Py_tp_traverse, shell::traverse as *mut c_void),
        slot(ffi::Py_tp_clear, shell::clear as *mut c_void),
        slot(ffi::Py_tp_new, no_new as *mut c_void),
        slot(ffi::Py_tp_hash, hash as *mut c_void),
        slot(ffi::Py_tp_repr, repr as *mut c_void),
        slot(ffi::Py_tp_doc, DOC.as_ptr().cast_mut().cast()),
        slot(ffi::Py_tp_methods, methods::table().cast()),
        slot(ffi::Py_tp_getset, getset::table().cast()),
    ];
    all.extend(number::slots());
    all.extend(scalar::slots());
    all.extend(indexing::slots());
    all.extend(buffer::slots());
    all
}

const DOC: &std::ffi::CStr = c"A multi-dimensional array of one dtype on one device.

Made by tensorplay.tensor, asarray, from_numpy, from_dlpack and the creation functions; arithmetic is elementwise
with broadcasting, and Python numbers are weak: they never widen the dtype within its kind.";

/// Makes the type. Null with an exception set when that fails.
///
/// # Safety
/// Lock held; called once at import, after the built-in ops were registered.
pub unsafe fn init_type() -> *mut ffi::PyTypeObject {
    let built: Result<*mut ffi::PyTypeObject> = (|| {
        number::resolve()?;
        methods::resolve()?;
        let made = HeapType {
            name: c"tensorplay.Tensor",
            basicsize: size_of::<shell::Shell>(),
            flags: 0,
            offsets: &[(c"__weaklistoffset__", shell::WEAK_OFFSET)],
            slots: slots(),
        };
        // SAFETY: tables that slots point to are static or leaked. NumPy leaves operators with a class to us whose
        // `__array_ufunc__` is None.
        unsafe {
            let ty = made.create();
            if ty.is_null()
                || ffi::PyObject_SetAttrString(ty, c"__array_ufunc__".as_ptr(), ffi::Py_None()) != 0
            {
                return Err(error::fetch());
            }
            exchange::install(ty)?;
            Ok(ty.cast())
        }
    })();
    built.unwrap_or_else(|e| {
        error::set(e);
        ptr::null_mut()
    })
}

/// The tensor in `op`; slots are called with their own type first.
///
/// # Safety
/// A live tensor object.
#[inline(always)]
unsafe fn this<'a>(op: Obj) -> &'a tp_tensor::Tensor {
    // SAFETY: the caller's promise.
    unsafe { shell::tensor_of(op) }
}

/// # Safety
/// Lock held.
unsafe fn new_ref(obj: Obj) -> Obj {
    // SAFETY: a live object.
    unsafe { ffi::Py_NewRef(obj) }
}

#[cold]
unsafe fn not_implemented() -> Obj {
    // SAFETY: lock held.
    unsafe { new_ref(ffi::Py_NotImplemented()) }
}
