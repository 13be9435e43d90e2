//! Sizes between objects and arguments: ints as everywhere, and symbolic ones (`symint`) where a parameter takes sizes.

use super::convert;
use super::ffi::{self as x, Obj};
use crate::error;
use crate::symint::{PySymInt, needed, object, of_another_capture};
use pyo3::ffi;
use pyo3::prelude::*;
use std::sync::Arc;
use tp_dispatch::Result;
use tp_dispatch::bind::Param;
use tp_tensor::{Dim, TensorError, symbols};

/// A raw size as an object: an int, or a symbol of the table in force. Null with an exception set where it is a symbol
/// and no table is.
///
/// # Safety
/// Lock held.
#[inline]
pub unsafe fn size_object(raw: i64) -> Obj {
    // SAFETY: lock held.
    if Dim::from_raw(raw).is_symbol() { symbol_object(raw) } else { unsafe { ffi::PyLong_FromLongLong(raw) } }
}

#[cold]
fn symbol_object(raw: i64) -> Obj {
    error::attached(|py| {
        let found = symbols::current().and_then(|table| Some((table.poly(Dim::from_raw(raw))?, table)));
        let Some((poly, table)) = found else {
            error::set(TensorError::Symbolic(raw).into());
            return std::ptr::null_mut();
        };
        match object(py, poly, &table) {
            Ok(object) => object.into_ptr(),
            Err(e) => {
                e.restore(py);
                std::ptr::null_mut()
            }
        }
    })
}

/// An argument as an object: an int, or a symbol of the table in force. Null with an exception set where memory is out.
///
/// # Safety
/// Lock held.
#[inline]
pub unsafe fn int_object(raw: i64) -> Obj {
    match symbols::number(raw) {
        // SAFETY: lock held.
        Some(v) => unsafe { ffi::PyLong_FromLongLong(v) },
        None => symbol_object(raw),
    }
}

/// The raw size that a `SymInt` is; None for any other object. One of another capture is an error.
///
/// # Safety
/// Live object, lock held.
#[cold]
pub unsafe fn raw_size(obj: Obj) -> Result<Option<i64>> {
    error::attached(|py| {
        // SAFETY: a live object.
        let obj = unsafe { Bound::from_borrowed_ptr(py, obj) };
        let Ok(size) = obj.cast::<PySymInt>() else { return Ok(None) };
        let size = size.get();
        if !symbols::current().is_some_and(|table| Arc::ptr_eq(&table, &size.table)) {
            return Err(of_another_capture(&size.poly));
        }
        let raw = size.table.name(&size.poly);
        raw.map(Some).ok_or_else(|| needed(size.poly.to_string()))
    })
}

/// An int for a parameter; a symbolic size where the parameter takes sizes. A plain number is never taken for one.
///
/// # Safety
/// Live object, lock held.
#[inline]
pub unsafe fn integer(p: &Param, obj: Obj) -> Result<Option<i64>> {
    // SAFETY: live object.
    unsafe {
        let plain = x::type_of(obj) == &raw mut ffi::PyLong_Type;
        if !plain
            && p.symbolic
            && let Some(raw) = raw_size(obj)?
        {
            return Ok(Some(raw));
        }
        Ok(convert::int(obj)?.map(symbols::plain))
    }
}
