//! `from_dlpack`: memory of another library as a tensor, without a copy, read-only where the producer says so.

use super::{
    DlTensor, LEGACY_NAME, LEGACY_USED, Legacy, READ_ONLY, VERSION, VERSIONED_NAME, VERSIONED_USED,
    Versioned, buffer_error,
};
use crate::error::IntoPyResult;
use crate::error::guarded;
use crate::given;
use crate::hot::{ffi as x, shell};
use crate::tensor::{self, DeviceArg, builtin as ops, transfer};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{ffi, intern};
use std::ffi::CStr;
use std::ptr;
use tp_dispatch::{Arg, Result};
use tp_graph::capture::{active, made};
use tp_tensor::{Device, Dims, StorageOwner, Tensor, layout};

/// Gives the memory back to the library it came from.
struct Borrowed<M>(*mut M, Option<unsafe extern "C" fn(*mut M)>);

// SAFETY: the protocol lets a deleter run on any thread.
unsafe impl<M> Send for Borrowed<M> {}
// SAFETY: nothing is read through it.
unsafe impl<M> Sync for Borrowed<M> {}

impl<M> StorageOwner for Borrowed<M> {}

impl<M> Drop for Borrowed<M> {
    fn drop(&mut self) {
        if let Some(delete) = self.1 {
            // SAFETY: taken over once, given back once.
            unsafe { delete(self.0) };
        }
    }
}

/// Takes a versioned structure over.
///
/// # Safety
/// `managed` is owned by the caller and follows the protocol.
pub unsafe fn take_versioned(managed: *mut Versioned) -> Result<Tensor> {
    // SAFETY: version and deleter are readable whatever the version is.
    unsafe {
        let owner = Box::new(Borrowed(managed, (*managed).deleter));
        let found = (*managed).version;
        if found.major != VERSION.major {
            return Err(buffer_error(format!(
                "DLPack version {}.{} is not supported",
                found.major, found.minor
            )));
        }
        let read_only = (*managed).flags & READ_ONLY != 0;
        adopt(&(*managed).tensor, owner, read_only)
    }
}

unsafe fn take_legacy(managed: *mut Legacy) -> Result<Tensor> {
    // SAFETY: as above.
    unsafe {
        let owner = Box::new(Borrowed(managed, (*managed).deleter));
        adopt(&(*managed).tensor, owner, false)
    }
}

unsafe fn adopt(dl: &DlTensor, owner: Box<dyn StorageOwner>, read_only: bool) -> Result<Tensor> {
    let dtype = dl.dtype.dtype()?;
    let device = dl.device.device()?;
    let n = usize::try_from(dl.ndim).map_err(|_| buffer_error("a negative number of dimensions"))?;
    let list = |p: *const i64| -> Dims {
        // SAFETY: `ndim` numbers, by the protocol.
        if n == 0 { Dims::new() } else { unsafe { std::slice::from_raw_parts(p, n) }.into() }
    };
    let sizes = list(dl.shape);
    let strides = if dl.strides.is_null() { layout::contiguous_strides(&sizes) } else { list(dl.strides) };
    let data = if dl.data.is_null() {
        ptr::dangling_mut::<u64>().cast()
    } else {
        // SAFETY: the offset stays inside of the producer's allocation.
        unsafe { dl.data.cast::<u8>().add(dl.byte_offset as usize) }
    };
    // SAFETY: the producer's promise; the owner keeps the memory alive.
    unsafe { tensor::borrow_memory(data, sizes, strides, dtype, device, owner, read_only) }
}

/// The structure inside of a capsule, which is marked as used.
unsafe fn open(capsule: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let py = capsule.py();
    let take = |name: &CStr, used: &CStr| -> Option<*mut std::os::raw::c_void> {
        // SAFETY: a live object; the pointer is ours once the capsule is renamed.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
                return None;
            }
            let p = ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr());
            (ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) == 0).then_some(p)
        }
    };
    // SAFETY: as above.
    unsafe {
        if let Some(p) = take(VERSIONED_NAME, VERSIONED_USED) {
            return take_versioned(p.cast()).py(py);
        }
        if let Some(p) = take(LEGACY_NAME, LEGACY_USED) {
            return take_legacy(p.cast()).py(py);
        }
    }
    Err(PyBufferError::new_err("not an unused DLPack capsule: it can be taken over only once"))
}

/// A tensor over the memory of any object with `__dlpack__`, shared and not copied; read-only memory stays
/// read-only. `copy=True` always copies, `copy=False` refuses to.
#[pyfunction]
#[pyo3(signature = (x, /, *, device=None, copy=None))]
pub fn from_dlpack<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    device: Option<DeviceArg>,
    #[pyo3(from_py_with = given::optional_flag)] copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let t = take(x, device.map(|d| d.0), copy)?;
        tensor::wrap(py, t)
    })
}

/// See `from_dlpack`.
pub fn take(x: &Bound<'_, PyAny>, device: Option<Device>, copy: Option<bool>) -> PyResult<Tensor> {
    let py = x.py();
    if copy != Some(true)
        && let Some(t) = own(x)
    {
        let t = if active() { ops::DETACH.call(&[Arg::Tensor(&t)]).py(py)? } else { t.detach() };
        return match device {
            Some(d) if d != t.device() && copy == Some(false) => Err(moving(t.device(), d)),
            Some(d) => transfer::to_device(&t, d).py(py),
            None => Ok(t),
        };
    }
    // SAFETY: asks about the type.
    let is_capsule = unsafe { ffi::PyCapsule_CheckExact(x.as_ptr()) != 0 };
    let t = if is_capsule {
        // SAFETY: a live capsule.
        unsafe { open(x)? }
    } else {
        // SAFETY: what `__dlpack__` returned is looked at before it is used.
        unsafe { open(&request(x, device, copy)?)? }
    };
    let t = made(t, true).py(py)?;
    let t = match device {
        Some(d) if d != t.device() && copy == Some(false) => {
            return Err(moving(t.device(), d));
        }
        Some(d) => transfer::to_device(&t, d).py(py)?,
        None => t,
    };
    // A producer from before `copy` was known may have shared.
    if copy == Some(true) && is_capsule { ops::CLONE.run(&[Arg::Tensor(&t)]).py(py) } else { Ok(t) }
}

fn moving(from: Device, to: Device) -> PyErr {
    PyBufferError::new_err(format!("moving from {from} to {to} needs a copy, and copy is False"))
}

/// A tensor of ours with its storage, so that a write through either is seen by the other. What `__dlpack__` would
/// refuse to export is left to it.
fn own(x: &Bound<'_, PyAny>) -> Option<Tensor> {
    // SAFETY: a live object.
    let t = unsafe { shell::is_tensor(x.as_ptr()).then(|| shell::tensor_of(x.as_ptr()).clone()) }?;
    (t.device() == Device::CPU && !t.is_fake() && !t.requires_grad()).then_some(t)
}

/// Calls `x.__dlpack__`, with fewer keywords where the producer is older than they are.
fn request<'py>(
    x: &Bound<'py, PyAny>,
    device: Option<Device>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = x.py();
    let Ok(method) = x.getattr(intern!(py, "__dlpack__")) else {
        return Err(given::wrong("from_dlpack", "x", "an object with __dlpack__", x));
    };
    let answer = if device.is_none() && copy.is_none() {
        with_version(&method)
    } else {
        let kwargs = PyDict::new(py);
        kwargs.set_item("max_version", (VERSION.major, VERSION.minor))?;
        if let Some(copy) = copy {
            kwargs.set_item("copy", copy)?;
        }
        if device == Some(Device::CPU) && copy != Some(false) && !is_on_cpu(x)? {
            kwargs.set_item("dl_device", (1, 0))?;
        }
        method.call((), Some(&kwargs))
    };
    match answer {
        Err(e) if e.is_instance_of::<PyTypeError>(py) && copy != Some(true) => method.call0(),
        other => other,
    }
}

/// The usual call, `__dlpack__(max_version=...)`, without a dict.
fn with_version<'py>(method: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static CALL: PyOnceLock<(Py<PyTuple>, Py<PyTuple>)> = PyOnceLock::new();
    let py = method.py();
    let (names, version) = CALL.get_or_try_init(py, || {
        let names = PyTuple::new(py, [intern!(py, "max_version")])?;
        Ok::<_, PyErr>((names.unbind(), PyTuple::new(py, [VERSION.major, VERSION.minor])?.unbind()))
    })?;
    let args = [version.as_ptr()];
    // SAFETY: live objects; one value for the one keyword.
    unsafe {
        Bound::from_owned_ptr_or_err(py, x::vectorcall(method.as_ptr(), args.as_ptr(), 0, names.as_ptr()))
    }
}

fn is_on_cpu(x: &Bound<'_, PyAny>) -> PyResult<bool> {
    let (kind, _): (i32, i32) = x.call_method0("__dlpack_device__")?.extract()?;
    Ok(matches!(kind, 1 | 3))
}
