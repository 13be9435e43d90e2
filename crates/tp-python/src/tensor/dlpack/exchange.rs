//! `Tensor.__dlpack_c_exchange_api__`: a table of C functions for libraries that exchange tensors without going
//! through Python calls. The table lives as long as the process; no panic crosses it.

use super::{DlTensor, VERSION, Version, Versioned, export, import};
use crate::error;
use crate::hot::ffi::Obj;
use crate::hot::{ret, shell};
use pyo3::ffi;
use std::ffi::CStr;
use std::os::raw::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use tp_dispatch::{Error, Result};
use tp_tensor::{Device, Tensor, runtime};

#[repr(C)]
struct Header {
    version: Version,
    previous: *const Header,
}

type SetError = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);

#[repr(C)]
struct Api {
    header: Header,
    allocate:
        unsafe extern "C" fn(*mut DlTensor, *mut *mut Versioned, *mut c_void, Option<SetError>) -> c_int,
    from_object: unsafe extern "C" fn(*mut c_void, *mut *mut Versioned) -> c_int,
    to_object: unsafe extern "C" fn(*mut Versioned, *mut *mut c_void) -> c_int,
    borrow_object: unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int,
    current_stream: unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int,
}

// SAFETY: immutable.
unsafe impl Sync for Api {}

static API: Api = Api {
    header: Header { version: VERSION, previous: ptr::null() },
    allocate,
    from_object,
    to_object,
    borrow_object,
    current_stream,
};

const NAME: &CStr = c"dlpack_exchange_api";

/// A tensor like `prototype`. May be called without the interpreter lock: errors go to the caller's function.
unsafe extern "C" fn allocate(
    prototype: *mut DlTensor,
    out: *mut *mut Versioned,
    context: *mut c_void,
    set_error: Option<SetError>,
) -> c_int {
    let made = catch_unwind(AssertUnwindSafe(|| -> Result<*mut Versioned> {
        // SAFETY: the caller's prototype is readable.
        let (dl, n) = unsafe { (&*prototype, (*prototype).ndim.max(0) as usize) };
        // SAFETY: `ndim` sizes.
        let sizes = if n == 0 { &[][..] } else { unsafe { std::slice::from_raw_parts(dl.shape, n) } };
        let t = Tensor::empty(sizes, dl.dtype.dtype()?, dl.device.device()?)?;
        export::versioned(&t, false)
    }));
    let message = match made {
        Ok(Ok(managed)) => {
            // SAFETY: the caller's slot.
            unsafe { *out = managed };
            return 0;
        }
        Ok(Err(e)) => e.message().to_string(),
        Err(_) => "internal error while allocating".to_string(),
    };
    if let Some(set_error) = set_error {
        let message = std::ffi::CString::new(message).unwrap_or_default();
        // SAFETY: the caller's function and context.
        unsafe { set_error(context, c"RuntimeError".as_ptr(), message.as_ptr()) };
    }
    -1
}

unsafe fn tensor<'a>(object: *mut c_void) -> Result<&'a Tensor> {
    // SAFETY: a live object.
    unsafe {
        let op: Obj = object.cast();
        if !shell::is_tensor(op) {
            return Err(Error::argument("TP1002", "the object is no tensorplay.Tensor"));
        }
        Ok(shell::tensor_of(op))
    }
}

unsafe extern "C" fn from_object(object: *mut c_void, out: *mut *mut Versioned) -> c_int {
    // SAFETY: lock held; the caller's slot.
    ret::guard_int(|| unsafe {
        *out = export::versioned(tensor(object)?, false)?;
        Ok(0)
    })
}

unsafe extern "C" fn to_object(managed: *mut Versioned, out: *mut *mut c_void) -> c_int {
    // SAFETY: lock held; ownership of `managed` comes to us.
    ret::guard_int(|| unsafe {
        let op = shell::wrap(import::take_versioned(managed)?);
        if op.is_null() {
            return Err(error::fetch());
        }
        *out = op.cast();
        Ok(0)
    })
}

unsafe extern "C" fn borrow_object(object: *mut c_void, out: *mut DlTensor) -> c_int {
    // SAFETY: lock held; the caller keeps the object alive while it reads.
    ret::guard_int(|| unsafe {
        ptr::write(out, export::describe(tensor(object)?)?);
        Ok(0)
    })
}

unsafe extern "C" fn current_stream(kind: i32, index: i32, out: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's slot.
    ret::guard_int(|| unsafe {
        let device = super::DlDevice { kind, index }.device()?;
        let stream = if device == Device::CPU { 0 } else { runtime::runtime(device)?.current_stream(device) };
        *out = stream as usize as *mut c_void;
        Ok(0)
    })
}

/// Puts the table on the type.
///
/// # Safety
/// Lock held, live type object.
pub unsafe fn install(ty: Obj) -> Result<()> {
    // SAFETY: the table is static.
    unsafe {
        let capsule = ffi::PyCapsule_New((&raw const API).cast_mut().cast(), NAME.as_ptr(), None);
        if capsule.is_null() {
            return Err(error::fetch());
        }
        let done = ffi::PyObject_SetAttrString(ty, c"__dlpack_c_exchange_api__".as_ptr(), capsule);
        ffi::Py_DECREF(capsule);
        if done == 0 { Ok(()) } else { Err(error::fetch()) }
    }
}
