//! Memory of native arrays (NumPy, `array.array`, `bytearray`, `memoryview`), which a guard compares with a copy.

use crate::hot::ffi::Obj;
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::{c_char, c_int};

/// Bytes of an array that are compared at each call, at most.
pub const MOST: usize = 1 << 20;

/// What an array was when it was read.
#[derive(PartialEq, Eq)]
pub struct Snapshot {
    format: Vec<u8>,
    item: isize,
    shape: Vec<isize>,
    bytes: Vec<u8>,
}

/// Memory lent by an object; given back when dropped.
struct Lent(Box<ffi::Py_buffer>);

impl Lent {
    unsafe fn of(obj: Obj, flags: c_int) -> Option<Lent> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the caller's live object; the lock is held.
        if unsafe { ffi::PyObject_GetBuffer(obj, &raw mut *view, flags) } != 0 {
            unsafe { ffi::PyErr_Clear() };
            return None;
        }
        Some(Lent(view))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: lent by `of`, lock held.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

unsafe fn format(view: &ffi::Py_buffer) -> Vec<u8> {
    if view.format.is_null() {
        return b"B".to_vec();
    }
    // SAFETY: ends in NUL, by the protocol.
    unsafe { std::ffi::CStr::from_ptr(view.format) }.to_bytes().to_vec()
}

unsafe fn shape(view: &ffi::Py_buffer) -> Vec<isize> {
    if view.shape.is_null() {
        return vec![view.len];
    }
    // SAFETY: `ndim` lengths, by the protocol.
    unsafe { std::slice::from_raw_parts(view.shape, view.ndim as usize) }.to_vec()
}

impl Snapshot {
    /// A copy; None where the memory cannot be had, is too large, or holds references.
    ///
    /// # Safety
    /// A live object, lock held; so below.
    pub unsafe fn of(obj: Obj) -> Option<Snapshot> {
        unsafe {
            let lent = Lent::of(obj, ffi::PyBUF_FULL_RO)?;
            let view = &*lent.0;
            let format = format(view);
            if view.len as usize > MOST || format.contains(&b'O') {
                return None;
            }
            let mut bytes = vec![0u8; view.len as usize];
            let order = b'C' as c_char;
            if view.len > 0
                && ffi::PyBuffer_ToContiguous(bytes.as_mut_ptr().cast(), view, view.len, order) != 0
            {
                ffi::PyErr_Clear();
                return None;
            }
            Some(Snapshot { format, item: view.itemsize, shape: shape(view), bytes })
        }
    }

    /// Whether the array is what it was.
    pub unsafe fn holds(&self, obj: Obj) -> bool {
        unsafe {
            let Some(lent) = Lent::of(obj, ffi::PyBUF_FULL_RO) else { return false };
            let view = &*lent.0;
            if view.len as usize != self.bytes.len()
                || view.itemsize != self.item
                || shape(view) != self.shape
                || format(view) != self.format
            {
                return false;
            }
            if view.len == 0 {
                return true;
            }
            if ffi::PyBuffer_IsContiguous(view, b'C' as c_char) != 0 {
                return std::slice::from_raw_parts(view.buf.cast::<u8>(), self.bytes.len()) == self.bytes;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { Snapshot::of(obj) }.is_some_and(|now| now == *self)
    }

    /// Puts the values back; the lengths of arrays that can grow too.
    pub unsafe fn restore(&self, obj: Obj) {
        unsafe {
            self.resize(obj);
            let Some(lent) = Lent::of(obj, ffi::PyBUF_FULL) else { return };
            let view = &*lent.0;
            let len = self.bytes.len() as isize;
            if view.len == len
                && len > 0
                && ffi::PyBuffer_FromContiguous(view, self.bytes.as_ptr().cast(), len, b'C' as c_char) != 0
            {
                ffi::PyErr_Clear();
            }
        }
    }

    unsafe fn resize(&self, obj: Obj) {
        let done = crate::error::attached(|py| -> PyResult<()> {
            let array: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, obj) };
            let whole = pyo3::types::PySlice::full(py);
            let bytes = pyo3::types::PyBytes::new(py, &self.bytes);
            if array.is_instance_of::<pyo3::types::PyByteArray>() {
                return array.set_item(whole, bytes);
            }
            if array.hasattr("frombytes")? {
                array.del_item(whole)?;
                array.call_method1("frombytes", (bytes,))?;
            }
            Ok(())
        });
        // What cannot be put back is refused all the same.
        drop(done);
    }
}
