//! Attributes that are read often: shape, dtype, device, rank, transposes, and what the tape knows of a tensor.

use super::{new_ref, this};
use crate::error;
use crate::hot::ffi::Obj;
use crate::hot::sizes;
use crate::hot::{ret, shell};
use crate::tensor::builtin as ops;
use crate::types;
use pyo3::ffi;
use std::ffi::CStr;
use std::os::raw::{c_int, c_void};
use std::ptr;
use tp_dispatch::{Arg, Error, Result};
use tp_graph::capture::watch::{self, Fact};
use tp_tensor::Tensor;

type Getter = unsafe extern "C" fn(Obj, *mut c_void) -> Obj;
type Setter = unsafe extern "C" fn(Obj, Obj, *mut c_void) -> c_int;

/// A tuple of sizes.
///
/// # Safety
/// Lock held.
pub unsafe fn int_tuple(values: &[i64]) -> Result<Obj> {
    // SAFETY: a fresh tuple whose slots are filled before anyone sees it.
    unsafe {
        let tuple = ffi::PyTuple_New(values.len() as isize);
        if tuple.is_null() {
            return Err(error::fetch());
        }
        for (i, &v) in values.iter().enumerate() {
            let size = sizes::size_object(v);
            if size.is_null() {
                ffi::Py_DECREF(tuple);
                return Err(error::fetch());
            }
            ffi::PyTuple_SetItem(tuple, i as isize, size);
        }
        Ok(tuple)
    }
}

macro_rules! getters {
    ($($name:ident($t:ident) $body:block)*) => {
        $(unsafe extern "C" fn $name(op: Obj, _: *mut c_void) -> Obj {
            // SAFETY: called by CPython on a live tensor with the lock held.
            ret::guard(|| unsafe { let $t = this(op); $body })
        })*
    };
}

getters! {
    shape(t) { int_tuple(t.sizes()) }
    dtype(t) { Ok(new_ref(types::dtype_object(t.dtype()))) }
    device(t) { Ok(types::device_object(t.device())) }
    ndim(t) { Ok(ffi::PyLong_FromSize_t(t.ndim())) }
    transposed(t) { transpose(t, "T").map(|t| shell::wrap(t)) }
    matrix_transposed(t) { transpose(t, "mT").map(|t| shell::wrap(t)) }
    version(t) { counted(t).map(|v| ffi::PyLong_FromLong(v.into())) }
    is_view(t) { watch::answer(t, Fact::View, Tensor::is_view).map(|v| ffi::PyBool_FromLong(v.into())) }
    is_readonly(t) {
        watch::answer(t, Fact::Readonly, |t| t.storage().is_readonly()).map(|v| ffi::PyBool_FromLong(v.into()))
    }
    is_fake(t) { Ok(ffi::PyBool_FromLong((t.is_fake() && !t.is_pending()).into())) }
}

/// The number of writes so far. A compiled function that asked for it would be captured anew after each.
fn counted(t: &Tensor) -> Result<u32> {
    if tp_graph::capture::active() {
        return Err(watch::refusal("TP4030", "_version of a tensor was read")
            .note("read it outside of the captured function"));
    }
    if t.is_pending() {
        crate::settle::read(t, "TP4030", || "_version of a tensor was read".to_string())?;
    }
    Ok(t.storage().version())
}

fn transpose(t: &Tensor, name: &str) -> Result<Tensor> {
    match (t.ndim(), name) {
        (0 | 1, "T") => ops::ALIAS.call(&[Arg::Tensor(t)]),
        (2, _) | (3.., "mT") => ops::TRANSPOSE.call(&[Arg::Tensor(t), Arg::Int(-2), Arg::Int(-1)]),
        (n, _) => {
            Err(Error::shape("TP1118", format!(".{name} of a tensor with {n} dimensions is not defined"))
                .note("use .mT for the last two dimensions, or .permute(...)"))
        }
    }
}

fn entry(name: &'static CStr, get: Getter, set: Option<Setter>, doc: &'static CStr) -> ffi::PyGetSetDef {
    ffi::PyGetSetDef { name: name.as_ptr(), get: Some(get), set, doc: doc.as_ptr(), closure: ptr::null_mut() }
}

/// The table of the type, ended by an empty entry.
pub fn table() -> *mut ffi::PyGetSetDef {
    let mut all = vec![
        entry(c"shape", shape, None, c"Sizes as a tuple of ints."),
        entry(c"dtype", dtype, None, c"Type of the elements."),
        entry(c"device", device, None, c"Where the data is."),
        entry(c"ndim", ndim, None, c"Number of dimensions."),
        entry(c"T", transposed, None, c"The transpose of a matrix, as a view."),
        entry(c"mT", matrix_transposed, None, c"The last two dimensions swapped, as a view."),
        entry(c"_version", version, None, c"In-place writes to the storage so far; views share it."),
        entry(c"is_view", is_view, None, c"Whether this tensor was made as a view of another."),
        entry(c"is_readonly", is_readonly, None, c"Whether writing to the memory is refused."),
        entry(c"is_fake", is_fake, None, c"Whether this tensor has no data, as during capture."),
    ];
    all.extend(super::tape::attributes());
    // SAFETY: the terminator is all zeros.
    all.push(unsafe { std::mem::zeroed() });
    Box::leak(all.into_boxed_slice()).as_mut_ptr()
}
