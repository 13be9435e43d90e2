//! Raw bytes: what pickling, storages and files need of a tensor's memory.

use super::{ObjectOwner, borrow_memory, buffers, tensor_of, wrap};
use crate::error::IntoPyResult;
use crate::error::guarded;
use crate::settle;
use crate::types::{self, DTypeArg};
use pyo3::prelude::*;
use smallvec::smallvec;
use tp_dispatch::{Error, Result};
use tp_tensor::{DType, Device, Dims, Layout, Tensor, layout};

/// The bytes of a contiguous tensor as a uint8 tensor over the same memory.
#[pyfunction]
pub fn tensor_bytes<'py>(py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let t = tensor_of(x)?;
        let bytes = bytes_of(&t).py(py)?;
        wrap(py, bytes)
    })
}

fn bytes_of(t: &Tensor) -> Result<Tensor> {
    types::readable(t, "TP4003", "the values of a tensor were", "pickling or copying it", types::RESULT)?;
    let item = t.dtype().itemsize() as i64;
    if !t.is_contiguous() || !t.device().is_cpu() {
        return Err(Error::value("TP1159", "only a contiguous CPU tensor has its bytes in a row"));
    }
    let layout =
        Layout { sizes: smallvec![t.numel() * item], strides: smallvec![1], offset: t.offset() * item };
    Ok(t.view_as(&layout, DType::U8)?)
}

/// A tensor of a dtype and shape over a buffer of its bytes.
#[pyfunction]
#[pyo3(signature = (buffer, dtype, shape, *, copy))]
pub fn tensor_from_bytes<'py>(
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    dtype: DTypeArg,
    shape: Vec<i64>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let bytes = buffers::borrow(buffer)?
            .ok_or_else(|| Error::argument("TP1002", format!("expected a buffer, got {}", buffer.get_type())))
            .py(py)?;
        let t = typed(&bytes, buffer, dtype.0, &shape, copy).py(py)?;
        let t = tp_graph::capture::made(t, !copy).py(py)?;
        wrap(py, t)
    })
}

fn typed(
    bytes: &Tensor,
    buffer: &Bound<'_, PyAny>,
    dtype: DType,
    shape: &[i64],
    copy: bool,
) -> Result<Tensor> {
    let numel = layout::checked_numel(shape, dtype.itemsize())?;
    let want = numel as usize * dtype.itemsize();
    if bytes.nbytes() != want || !bytes.is_contiguous() {
        let message =
            format!("{dtype}{shape:?} takes {want} bytes in a row, the buffer has {}", bytes.nbytes());
        return Err(Error::value("TP1160", message));
    }
    if copy {
        let t = Tensor::empty(shape, dtype, Device::CPU)?;
        // SAFETY: both have exactly that many bytes, and the target is fresh.
        unsafe { std::ptr::copy_nonoverlapping(bytes.data_ptr(), t.data_ptr(), want) };
        return Ok(t);
    }
    let sizes: Dims = shape.into();
    let strides = layout::contiguous_strides(&sizes);
    let owner = Box::new(ObjectOwner::new(wrap(buffer.py(), bytes.clone()).map_err(crate::error::from_py)?));
    // SAFETY: the bytes live as long as their tensor, which the owner holds.
    unsafe {
        borrow_memory(
            bytes.data_ptr(),
            sizes,
            strides,
            dtype,
            Device::CPU,
            owner,
            bytes.storage().is_readonly(),
        )
    }
}

/// Address and bytes of the whole storage under a tensor.
#[pyfunction]
pub fn tensor_storage(py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
    guarded(|| {
        let t = tensor_of(x)?;
        let by = "x.untyped_storage()";
        types::readable(&t, "TP4005", "the address of a storage was", by, types::OWN_OP).py(py)?;
        settle::lend(&t).py(py)?;
        Ok((t.storage().data() as usize, t.storage().nbytes()))
    })
}

/// Copies all bytes of one storage to another of the same size.
#[pyfunction]
pub fn storage_copy(py: Python<'_>, to: &Bound<'_, PyAny>, from: &Bound<'_, PyAny>) -> PyResult<()> {
    guarded(|| {
        let (to, from) = (tensor_of(to)?, tensor_of(from)?);
        let (a, b) = (to.storage(), from.storage());
        for t in [&to, &from] {
            let by = "storage.copy_()";
            types::readable(t, "TP4003", "the bytes of a storage were", by, types::OWN_OP).py(py)?;
        }
        let checked = if a.nbytes() != b.nbytes() {
            Err(Error::value("TP1161", format!("storages of {} and {} bytes", a.nbytes(), b.nbytes())))
        } else if a.is_readonly() {
            Err(Error::value("TP1601", "the storage is read-only"))
        } else if !(a.device().is_cpu() && b.device().is_cpu()) {
            Err(Error::device("TP2105", "storages are copied between CPU tensors only"))
        } else {
            Ok(())
        };
        checked.py(py)?;
        tp_graph::segments::before_write(&to).py(py)?;
        if a.data() != b.data() {
            // SAFETY: both are valid for that many bytes.
            unsafe { std::ptr::copy(b.data(), a.data(), a.nbytes()) };
        }
        a.bump_version();
        Ok(())
    })
}

/// The tensor's memory read as another dtype of the same width.
#[pyfunction]
pub fn tensor_alias_as<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    dtype: DTypeArg,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let t = tensor_of(x)?;
        let view = alias_as(&t, dtype.0).py(py)?;
        wrap(py, view)
    })
}

/// See `tensor_alias_as`.
pub fn alias_as(t: &Tensor, dtype: DType) -> Result<Tensor> {
    if dtype.itemsize() != t.dtype().itemsize() {
        return Err(Error::dtype("TP1231", format!("{dtype} and {} have different widths", t.dtype())));
    }
    Ok(t.view_as(&t.layout(), dtype)?)
}
