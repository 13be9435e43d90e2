//! The buffer protocol: CPU memory lent to `memoryview`, NumPy and everything else that reads buffers, strides and
//! read-only flag included. bfloat16 has no format code, and a tensor that is being differentiated must be detached
//! first: a write through the buffer would be invisible to the tape. Where grad mode is off, as in every kernel, nothing
//! is being recorded, and the memory is lent.

use super::{slot, this};
use crate::hot::ffi::Obj;
use crate::hot::ret;
use crate::settle;
use crate::types;
use pyo3::ffi::{self, Py_buffer};
use std::ffi::CStr;
use std::os::raw::{c_int, c_void};
use std::ptr;
use tp_dispatch::Error;
use tp_tensor::{DType, Tensor};

/// Shape and strides in bytes of one export; freed when the buffer is released.
struct Export {
    shape: Box<[isize]>,
    strides: Box<[isize]>,
}

/// The struct-module code of a dtype in native byte order.
fn format(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::U8 => c"B",
        DType::I8 => c"b",
        DType::I16 => c"h",
        DType::I32 => c"i",
        // NumPy's int64 is a C long wherever that has 64 bits; `q` would be another type of the same width.
        DType::I64 if size_of::<std::os::raw::c_long>() == 8 => c"l",
        DType::I64 => c"q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::BF16 => return None,
    })
}

/// Why a tensor cannot lend its memory, as a BufferError.
fn refusal(t: &Tensor) -> Option<String> {
    if t.device().is_meta() {
        return Some("a tensor on 'meta' is without data, and cannot be exported".into());
    }
    if !t.device().is_cpu() {
        return Some(format!("the tensor is on {}; move it with .cpu() first", t.device()));
    }
    if t.requires_grad() && tp_dispatch::state::is_grad_enabled() {
        return Some("the tensor requires a gradient; export x.detach() instead".into());
    }
    None
}

/// A write through the buffer is refused where an op that writes would refuse it.
fn is_readonly(t: &Tensor) -> bool {
    tp_dispatch::check::check_writable(t).is_err()
}

unsafe extern "C" fn get_buffer(op: Obj, view: *mut Py_buffer, flags: c_int) -> c_int {
    // SAFETY: called by CPython on a live tensor with the lock held; `view` is writable.
    ret::guard_int(|| unsafe {
        (*view).obj = ptr::null_mut();
        if this(op).is_batched() {
            return Err(crate::batch::no_value());
        }
        let by = "memoryview(x) or another reader of buffers";
        types::readable(this(op), "TP4013", "the memory of a tensor was", by, types::OWN_OP)?;
        match export(op, view, flags) {
            Ok(()) => Ok(0),
            Err(message) => {
                let message = std::ffi::CString::new(message)
                    .map_err(|_| Error::internal("TP9021", "NUL in a message"))?;
                ffi::PyErr_SetString(ffi::PyExc_BufferError, message.as_ptr());
                Ok(-1)
            }
        }
    })
}

unsafe fn export(op: Obj, view: *mut Py_buffer, flags: c_int) -> Result<(), String> {
    // SAFETY: see `get_buffer`.
    unsafe {
        let t = this(op);
        if let Some(why) = refusal(t) {
            return Err(why);
        }
        let format = format(t.dtype())
            .ok_or("bfloat16 has no buffer format; use .float(), or .numpy() with ml_dtypes installed")?;
        check_request(t, flags)?;
        let item = t.dtype().itemsize() as isize;
        let exported = Box::new(Export {
            shape: t.sizes().iter().map(|&s| s as isize).collect(),
            strides: t.strides().iter().map(|&s| s as isize * item).collect(),
        });
        let asked = |flag: c_int| flags & flag == flag;
        let v = &mut *view;
        v.buf = if t.data_ptr().is_null() { ptr::dangling_mut::<u64>().cast() } else { t.data_ptr().cast() };
        v.len = t.nbytes() as isize;
        v.itemsize = item;
        v.readonly = is_readonly(t).into();
        v.ndim = if asked(ffi::PyBUF_ND) { t.ndim() as c_int } else { 1 };
        v.format = if asked(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() };
        v.shape = if asked(ffi::PyBUF_ND) { exported.shape.as_ptr().cast_mut() } else { ptr::null_mut() };
        v.strides =
            if asked(ffi::PyBUF_STRIDES) { exported.strides.as_ptr().cast_mut() } else { ptr::null_mut() };
        v.suboffsets = ptr::null_mut();
        v.internal = Box::into_raw(exported).cast();
        v.obj = ffi::Py_NewRef(op);
        settle::lend(t).map_err(|e| e.message().to_string())?;
        Ok(())
    }
}

fn check_request(t: &Tensor, flags: c_int) -> Result<(), String> {
    let asked = |flag: c_int| flags & flag == flag;
    if asked(ffi::PyBUF_WRITABLE) && is_readonly(t) {
        return Err("the tensor is read-only, or several of its elements share one place in memory".into());
    }
    let c = t.is_contiguous();
    let fortran = || {
        let reversed = |v: &[i64]| v.iter().rev().copied().collect::<Vec<_>>();
        tp_tensor::layout::is_contiguous(&reversed(t.sizes()), &reversed(t.strides()))
    };
    let fits = if asked(ffi::PyBUF_C_CONTIGUOUS) || !asked(ffi::PyBUF_STRIDES) {
        c
    } else if asked(ffi::PyBUF_F_CONTIGUOUS) {
        fortran()
    } else {
        !asked(ffi::PyBUF_ANY_CONTIGUOUS) || c || fortran()
    };
    if fits { Ok(()) } else { Err("the tensor is not contiguous; export x.contiguous() instead".into()) }
}

unsafe extern "C" fn release_buffer(_: Obj, view: *mut Py_buffer) {
    // SAFETY: `internal` came from `export`, and a buffer is released once.
    unsafe { drop(Box::from_raw((*view).internal.cast::<Export>())) };
}

pub fn slots() -> Vec<ffi::PyType_Slot> {
    vec![
        slot(ffi::Py_bf_getbuffer, get_buffer as *mut c_void),
        slot(ffi::Py_bf_releasebuffer, release_buffer as *mut c_void),
    ]
}
