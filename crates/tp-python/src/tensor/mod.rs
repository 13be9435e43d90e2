//! Tensors from and to everything else: Python data, NumPy and other buffers, DLPack, bytes, files, text. Plain PyO3
//! functions of `_native`; `tensorplay._tensor` makes members of the type of them. What is called in the hot path
//! lives in `hot::tensor_type`.

mod buffers;
pub mod builtin;
pub mod create;
pub mod dlpack;
pub mod file;
mod format;
pub mod memory;
mod nested;
mod numpy;
pub mod repr;
pub mod transfer;
mod values;

use crate::error;
use crate::given;
use crate::hot::{queue, shell};
use crate::settle;
use crate::types;
use pyo3::ffi;
use pyo3::prelude::*;
use tp_dispatch::Result;
use tp_tensor::{DType, Device, Dims, Layout, StorageOwner, Tensor, TensorError};

/// Adds the functions of this folder to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add {
        ($($function:path),* $(,)?) => { $(m.add_function(wrap_pyfunction!($function, m)?)?;)* };
    }
    add!(
        create::tensor,
        create::asarray,
        create::from_numpy,
        dlpack::import::from_dlpack,
        numpy::tensor_numpy,
        numpy::tensor_array,
        values::tensor_tolist,
        values::tensor_format,
        transfer::tensor_to_device,
        memory::tensor_bytes,
        memory::tensor_from_bytes,
        memory::tensor_storage,
        memory::storage_copy,
        memory::tensor_alias_as,
        file::save,
        file::load,
        file::load_metadata,
        values::manual_seed,
        values::rng_state,
        values::set_rng_state,
    );
    m.add_class::<values::RandomDraws>()?;
    Ok(())
}

/// A new reference to the Python object of `t`.
pub fn wrap(py: Python<'_>, t: Tensor) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: lock held; `wrap` gives an owned reference or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, shell::wrap(t)) }
}

/// The tensor that an object is, if it is one.
pub fn as_tensor(obj: &Bound<'_, PyAny>) -> Option<Tensor> {
    // SAFETY: a live object.
    unsafe { shell::is_tensor(obj.as_ptr()).then(|| shell::tensor_of(obj.as_ptr()).clone()) }
}

/// A tensor argument.
pub fn tensor_of(obj: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if let Some(t) = as_tensor(obj) {
        settle::quietly(&t).map_err(|e| error::to_py(obj.py(), e))?;
        return Ok(t);
    }
    Err(given::expected("a Tensor", obj))
}

/// A device as a function argument: a device object or its name.
pub struct DeviceArg(pub Device);

impl<'py> FromPyObject<'_, 'py> for DeviceArg {
    type Error = PyErr;
    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // SAFETY: a live object.
        let found = unsafe { types::device_of(obj.as_ptr()) }.map_err(|e| error::to_py(obj.py(), e))?;
        found.map(DeviceArg).ok_or_else(|| given::expected("a device or its name", &obj))
    }
}

/// A Python object that keeps borrowed memory alive; given back wherever the last tensor goes.
pub struct ObjectOwner(*mut ffi::PyObject);

// SAFETY: the reference is only ever given back, through the queue where the lock is not held.
unsafe impl Send for ObjectOwner {}
// SAFETY: as above.
unsafe impl Sync for ObjectOwner {}

impl StorageOwner for ObjectOwner {}

impl ObjectOwner {
    pub fn new(obj: Bound<'_, PyAny>) -> ObjectOwner {
        ObjectOwner(obj.into_ptr())
    }
}

impl Drop for ObjectOwner {
    fn drop(&mut self) {
        queue::release(self.0);
    }
}

/// A tensor over somebody else's memory; `data` is element 0, strides count elements and may be negative.
///
/// # Safety
/// Every element that the layout reaches is valid while `owner` lives, and writable unless `read_only`.
pub unsafe fn borrow_memory(
    data: *mut u8,
    sizes: Dims,
    strides: Dims,
    dtype: DType,
    device: Device,
    owner: Box<dyn StorageOwner>,
    read_only: bool,
) -> Result<Tensor> {
    let mut layout = Layout { sizes, strides, offset: 0 };
    for (size, stride) in layout.sizes.iter().zip(layout.strides.iter_mut()) {
        // Strides that are never walked may be anything; arithmetic on them must not overflow.
        if *size <= 1 && stride.checked_mul(2 * dtype.itemsize() as i64).is_none() {
            *stride = 1;
        }
    }
    tp_tensor::layout::checked_numel(&layout.sizes, dtype.itemsize())?;
    let (low, high) = layout.extent().ok_or_else(|| TensorError::TooLarge(layout.sizes.clone()))?;
    let item = dtype.itemsize() as i64;
    let nbytes = (high - low).checked_mul(item).ok_or_else(|| TensorError::TooLarge(layout.sizes.clone()))?;
    // Storage starts at the lowest element, so that offsets are never negative.
    layout.offset = -low;
    // SAFETY: the caller's promise.
    unsafe {
        let start = data.offset((low * item) as isize);
        Ok(Tensor::from_foreign(start, nbytes as usize, &layout, dtype, device, owner, read_only)?)
    }
}
