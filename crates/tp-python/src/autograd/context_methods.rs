//! Methods and attributes of `ctx` for the people who write setup and backward functions.

use super::context::{self, Needs, tensor, with};
use crate::error;
use crate::hot::ffi::Obj;
use crate::hot::{convert, ret, shell};
use pyo3::ffi;
use std::ffi::CStr;
use std::os::raw::c_void;
use std::ptr;
use tp_dispatch::Result;
use tp_tensor::Tensor;

unsafe fn none() -> Obj {
    // SAFETY: lock held.
    unsafe { ffi::Py_NewRef(ffi::Py_None()) }
}

/// A tuple of owned objects; null among them means that an exception is set.
///
/// # Safety
/// Lock held; the references go over to the tuple.
pub unsafe fn tuple_of(items: impl ExactSizeIterator<Item = Obj>) -> Result<Obj> {
    // SAFETY: a fresh tuple whose slots are filled before anyone sees it.
    unsafe {
        let tuple = ffi::PyTuple_New(items.len() as isize);
        if tuple.is_null() {
            return Err(error::fetch());
        }
        for (i, item) in items.enumerate() {
            if item.is_null() {
                ffi::Py_DECREF(tuple);
                return Err(error::fetch());
            }
            ffi::PyTuple_SetItem(tuple, i as isize, item);
        }
        Ok(tuple)
    }
}

/// A new reference to the object of a tensor, or to None.
///
/// # Safety
/// Lock held.
pub unsafe fn object_of(t: Option<&Tensor>) -> Obj {
    // SAFETY: lock held.
    unsafe { t.map_or_else(|| none(), |t| shell::wrap_ref(t)) }
}

/// The arguments of a fastcall.
///
/// # Safety
/// As that convention has it.
pub unsafe fn given<'a>(args: *mut Obj, nargs: isize) -> &'a [Obj] {
    if nargs == 0 {
        return &[];
    }
    // SAFETY: the fastcall convention.
    unsafe { std::slice::from_raw_parts(args, nargs as usize) }
}

unsafe fn all_tensors(args: &[Obj], what: &str) -> Result<Vec<Tensor>> {
    // SAFETY: live objects.
    args.iter().map(|&t| unsafe { tensor(t, what) }).collect()
}

unsafe extern "C" fn save_for_backward(op: Obj, args: *mut Obj, nargs: isize) -> Obj {
    // SAFETY: a live context, the fastcall convention; likewise below.
    ret::guard(|| unsafe {
        let mut list = Vec::with_capacity(nargs as usize);
        for &t in given(args, nargs) {
            list.push(if t == ffi::Py_None() {
                None
            } else {
                Some(tensor(t, "save_for_backward takes tensors or None")?)
            });
        }
        let old = with(op, |s| std::mem::replace(&mut s.to_save, list));
        drop(old);
        Ok(none())
    })
}

unsafe extern "C" fn mark_non_differentiable(op: Obj, args: *mut Obj, nargs: isize) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let list = all_tensors(given(args, nargs), "mark_non_differentiable takes outputs")?;
        with(op, |s| s.not_differentiable.extend(list));
        Ok(none())
    })
}

unsafe extern "C" fn mark_dirty(op: Obj, args: *mut Obj, nargs: isize) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let list = all_tensors(given(args, nargs), "mark_dirty takes the inputs that forward wrote to")?;
        with(op, |s| s.dirty.extend(list));
        Ok(none())
    })
}

unsafe extern "C" fn set_materialize_grads(op: Obj, value: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let on = convert::option(value, "set_materialize_grads", "value")?;
        with(op, |s| s.no_materialize = !on);
        Ok(none())
    })
}

unsafe extern "C" fn saved_tensors(op: Obj, _: *mut c_void) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let list = context::saved(op)?;
        tuple_of(list.iter().map(|t| object_of(t.as_ref())))
    })
}

unsafe extern "C" fn needs_input_grad(op: Obj, _: *mut c_void) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let (known, bits, inputs) = with(op, |s| match s.needs {
            Needs::Unknown => (ptr::null_mut(), 0, 0),
            Needs::Bits { bits, inputs } => (ptr::null_mut(), bits, inputs),
            Needs::Object(tuple) => (ffi::Py_NewRef(tuple), 0, 0),
        });
        if !known.is_null() {
            return Ok(known);
        }
        tuple_of((0..inputs).map(|i| ffi::PyBool_FromLong((bits >> i & 1) as _)))
    })
}

/// `<context of 2 saved tensors>`.
pub unsafe extern "C" fn repr(op: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let text = match context::saved(op) {
            Ok(list) => format!("<context of {}>", tp_tensor::counted(list.len(), "saved tensor")),
            Err(_) => "<context>".to_string(),
        };
        Ok(ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), text.len() as isize))
    })
}

type Fast = unsafe extern "C" fn(Obj, *mut Obj, isize) -> Obj;
type One = unsafe extern "C" fn(Obj, Obj) -> Obj;

/// The table of methods; it lives for ever.
pub fn methods() -> *mut ffi::PyMethodDef {
    let entry = |name: &'static CStr, ml_meth, ml_flags, doc: &'static CStr| ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth,
        ml_flags,
        ml_doc: doc.as_ptr(),
    };
    let fast = |name, f: Fast, doc| {
        entry(name, ffi::PyMethodDefPointer { PyCFunctionFast: f }, ffi::METH_FASTCALL, doc)
    };
    let one = |name, f: One, flags, doc| entry(name, ffi::PyMethodDefPointer { PyCFunction: f }, flags, doc);
    let all = vec![
        fast(
            c"save_for_backward",
            save_for_backward,
            c"Keeps tensors (or None) for backward. They are version-checked when read, and freed after backward.",
        ),
        fast(c"mark_non_differentiable", mark_non_differentiable, c"Marks outputs that have no gradient."),
        fast(
            c"mark_dirty",
            mark_dirty,
            c"Marks inputs that the forward of a Function wrote to and returns.",
        ),
        one(
            c"set_materialize_grads",
            set_materialize_grads,
            ffi::METH_O,
            c"With False, gradients of unused outputs arrive as None instead of zeros.",
        ),
        // SAFETY: the terminator is all zeros.
        unsafe { std::mem::zeroed() },
    ];
    Box::leak(all.into_boxed_slice()).as_mut_ptr()
}

unsafe extern "C" fn dict(op: Obj, _: *mut c_void) -> Obj {
    // SAFETY: the type has a place for the dictionary.
    unsafe { ffi::PyObject_GenericGetDict(op, ptr::null_mut()) }
}

/// The table of attributes; it lives for ever.
pub fn attributes() -> *mut ffi::PyGetSetDef {
    let entry = |name: &'static CStr, get, doc: &'static CStr| ffi::PyGetSetDef {
        name: name.as_ptr(),
        get: Some(get),
        set: None,
        doc: doc.as_ptr(),
        closure: ptr::null_mut(),
    };
    let all = vec![
        entry(
            c"saved_tensors",
            saved_tensors,
            c"The saved tensors, as a tuple. AutogradError when one was written to since, or after they were freed.",
        ),
        entry(
            c"needs_input_grad",
            needs_input_grad,
            c"One bool per positional input, always of full length; a nested list for list inputs.",
        ),
        entry(c"__dict__", dict, c"Attributes that were set."),
        // SAFETY: the terminator is all zeros.
        unsafe { std::mem::zeroed() },
    ];
    Box::leak(all.into_boxed_slice()).as_mut_ptr()
}
