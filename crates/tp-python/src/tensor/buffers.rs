//! Memory of NumPy arrays and other buffers as tensors, without a copy. Elements the dtypes here do not have
//! (big-endian, complex, objects, ...) are refused by name.

use super::{ObjectOwner, borrow_memory};
use crate::error::IntoPyResult;
use pyo3::ffi::{self, Py_buffer};
use pyo3::prelude::*;
use std::ffi::CStr;
use tp_dispatch::Error;
use tp_tensor::{DType, Device, Dims, Tensor};

/// A filled buffer, released when dropped.
struct Opened(Box<Py_buffer>);

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: filled once, released once, lock held.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) };
    }
}

/// A tensor over the memory of `obj`; None when it has no buffer at all.
pub fn borrow(obj: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    let py = obj.py();
    // SAFETY: asks about the type, then makes a view.
    let view = unsafe {
        if ffi::PyObject_CheckBuffer(obj.as_ptr()) == 0 {
            return Ok(None);
        }
        Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromObject(obj.as_ptr()))
    };
    match view {
        Ok(view) => borrow_view(obj, view, None).map(Some),
        Err(refused) => without_view(obj, refused).map(Some),
    }
}

/// An array whose elements the buffer protocol has no code for.
#[cold]
fn without_view(obj: &Bound<'_, PyAny>, refused: PyErr) -> PyResult<Tensor> {
    let py = obj.py();
    match dtype_name(obj).as_deref() {
        // Its bits travel as integers.
        Some("bfloat16") => {
            let bits = obj.call_method1("view", ("int16",))?;
            // SAFETY: a live object.
            let view =
                unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromObject(bits.as_ptr()))? };
            borrow_view(obj, view, Some(DType::BF16))
        }
        Some(name) => Err(unsupported(name)).py(py),
        None => Err(refused),
    }
}

/// Name of a NumPy dtype, if the object has one.
fn dtype_name(obj: &Bound<'_, PyAny>) -> Option<String> {
    obj.getattr("dtype").and_then(|d| d.getattr("name")).and_then(|n| n.extract()).ok()
}

/// The dtype that a NumPy dtype stands for; None where there is none, and the numbers are none the less exact as Python's.
pub fn dtype_named(described: &Bound<'_, PyAny>) -> tp_dispatch::Result<Option<DType>> {
    let Some(name) = described.getattr("name").ok().and_then(|n| n.extract::<String>().ok()) else {
        return Ok(None);
    };
    match name.parse() {
        Ok(dtype) => Ok(Some(dtype)),
        Err(_) if name.starts_with("complex") || name.starts_with("float") => Err(unsupported(&name)),
        Err(_) => Ok(None),
    }
}

/// The memory view holds the export for as long as the tensor lives; its own buffer is looked at and released.
fn borrow_view(
    obj: &Bound<'_, PyAny>,
    view: Bound<'_, PyAny>,
    reading_as: Option<DType>,
) -> PyResult<Tensor> {
    let py = obj.py();
    // SAFETY: a live object; the buffer is filled by the call.
    let opened = unsafe {
        let mut opened = Box::new(std::mem::zeroed::<Py_buffer>());
        if ffi::PyObject_GetBuffer(view.as_ptr(), &mut *opened, ffi::PyBUF_FULL_RO) != 0 {
            return Err(PyErr::fetch(py));
        }
        Opened(opened)
    };
    let b = &opened.0;
    // SAFETY: by the protocol, `ndim` sizes and strides, and a NUL-terminated format.
    let (format, sizes, strides) = unsafe {
        let format = if b.format.is_null() { c"B" } else { CStr::from_ptr(b.format) };
        let list = |p: *const isize| -> Vec<isize> {
            if b.ndim == 0 { Vec::new() } else { std::slice::from_raw_parts(p, b.ndim as usize).to_vec() }
        };
        (format.to_string_lossy(), list(b.shape), list(b.strides))
    };
    if !b.suboffsets.is_null() {
        return Err(Error::value("TP1155", "a buffer with suboffsets cannot be shared: copy it first"))
            .py(py);
    }
    let name = || match dtype_name(obj) {
        // NumPy's names do not tell byte orders apart.
        Some(name) if format.starts_with(FOREIGN_ORDER) => {
            format!("{name} with its bytes in the other order")
        }
        Some(name) => name,
        None => format!("format '{format}'"),
    };
    let dtype = dtype_of(&format, b.itemsize).ok_or_else(|| unsupported(&name())).py(py)?;
    // NumPy lends a date, a duration or a record as its bytes.
    if dtype == DType::U8 && dtype_name(obj).is_some_and(|name| name != "uint8") {
        return Err(unsupported(&name())).py(py);
    }
    let item = dtype.itemsize() as isize;
    let mut steps = Dims::new();
    for (axis, (&size, &stride)) in sizes.iter().zip(&strides).enumerate() {
        if size > 1 && stride % item != 0 {
            let message =
                format!("axis {axis} steps by {stride} bytes, which is no multiple of {item}: copy it first");
            return Err(Error::value("TP1156", message)).py(py);
        }
        steps.push((stride / item) as i64);
    }
    let sizes = sizes.iter().map(|&s| s as i64).collect();
    let (data, read_only) = (b.buf.cast::<u8>(), b.readonly != 0);
    drop(opened);
    let owner = Box::new(ObjectOwner::new(view));
    // SAFETY: the view keeps the export alive; strides and sizes are the exporter's.
    let dtype = reading_as.unwrap_or(dtype);
    unsafe { borrow_memory(data, sizes, steps, dtype, Device::CPU, owner, read_only) }.py(py)
}

/// What a struct-module code of the other byte order starts with.
const FOREIGN_ORDER: &[char] = if cfg!(target_endian = "little") { &['>', '!'] } else { &['<'] };

/// The dtype of a struct-module code in native byte order.
fn dtype_of(format: &str, itemsize: isize) -> Option<DType> {
    let code = match format.as_bytes() {
        [code] => code,
        [b'@' | b'=', code] => code,
        [b'<', code] if cfg!(target_endian = "little") || itemsize == 1 => code,
        [b'>' | b'!', code] if cfg!(target_endian = "big") || itemsize == 1 => code,
        _ => return None,
    };
    Some(match (code, itemsize) {
        (b'?', 1) => DType::Bool,
        (b'B', 1) => DType::U8,
        (b'b', 1) => DType::I8,
        (b'h' | b'i' | b'l' | b'q' | b'n', 2) => DType::I16,
        (b'h' | b'i' | b'l' | b'q' | b'n', 4) => DType::I32,
        (b'h' | b'i' | b'l' | b'q' | b'n', 8) => DType::I64,
        (b'e', 2) => DType::F16,
        (b'f', 4) => DType::F32,
        (b'd', 8) => DType::F64,
        _ => return None,
    })
}

#[cold]
fn unsupported(name: &str) -> Error {
    Error::dtype("TP1230", format!("elements of type {name} have no tensorplay dtype"))
        .note("supported are bool, uint8, int8 to int64, float16, bfloat16, float32 and float64 in native byte order")
}
