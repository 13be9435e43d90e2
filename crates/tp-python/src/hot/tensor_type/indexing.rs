//! `x[key]`, `x[key] = value`, `len(x)` and iteration. Integers, slices, None and Ellipsis are views, made by the
//! view ops one axis at a time; integer arrays and boolean masks go to `index` and `index_put_`, with NumPy's rules.
//!
//! # Limitations
//! A negative step copies when read, for strides of views stay positive; assigning through one works.

mod key;
mod mesh;
mod place;

use super::{slot, this};
use crate::hot::ffi::{self as x, Obj};
use crate::hot::{convert, ret, shell};
use crate::tensor::builtin as ops;
use key::Given;
use pyo3::ffi;
use std::os::raw::{c_int, c_void};
use tp_dispatch::{Arg, Error, Result, state};
use tp_tensor::{Tensor, TensorError, symbols};

unsafe extern "C" fn subscript(op: Obj, key: Obj) -> Obj {
    // SAFETY: a live tensor and key, lock held.
    ret::guard(|| unsafe {
        let t = this(op);
        if x::type_of(key) == &raw mut ffi::PyLong_Type
            && t.ndim() > 0
            && let Some(i) = convert::int(key)?
        {
            let at = Arg::Int(symbols::plain(i));
            return Ok(shell::wrap(ops::SELECT.call(&[Arg::Tensor(t), Arg::Int(0), at])?));
        }
        Ok(shell::wrap(place::locate(t, key::parse(key)?)?.read(t)?))
    })
}

unsafe extern "C" fn assign(op: Obj, key: Obj, value: Obj) -> c_int {
    // SAFETY: as above; a null value means deletion.
    ret::guard_int(|| unsafe {
        if value.is_null() {
            return Err(Error::argument("TP1016", "elements of a tensor cannot be deleted"));
        }
        store(this(op), key::parse(key)?, &key::given(value)?)?;
        Ok(0)
    })
}

/// Writes through a view of `t`. Where that would give memory without a history its first one, `t` itself is written:
/// the tape does so only while a single view is alive.
fn store(t: &Tensor, items: key::Items, value: &Given) -> Result<()> {
    let by_arrays = items.iter().any(key::Item::is_array);
    let recorded = !t.requires_grad() && matches!(value, Given::Tensor(v) if v.requires_grad());
    if recorded && !by_arrays && state::is_grad_enabled() && t.ndim() > 0 {
        let arrays = mesh::arrays(t, &items)?;
        let values = place::fitted(value.tensor_like(t)?, place::rank_of(&arrays))?;
        return ops::INDEX_PUT_
            .call(&[Arg::Tensor(t), Arg::OptTensors(&arrays), Arg::Tensor(&values)])
            .map(drop);
    }
    place::locate(t, items)?.write(value)
}

unsafe extern "C" fn length(op: Obj) -> ffi::Py_ssize_t {
    let mut out = -1;
    // SAFETY: a live tensor, lock held.
    ret::guard_int(|| unsafe {
        let Some(&first) = this(op).sizes().first() else {
            return Err(Error::argument("TP1017", "a 0-d tensor has no len()"));
        };
        out = symbols::settled(first).ok_or(TensorError::Symbolic(first))? as ffi::Py_ssize_t;
        Ok(0)
    });
    out
}

/// Item `i` of the first axis; what iteration calls, so that it ends by a plain IndexError.
unsafe extern "C" fn at(op: Obj, i: ffi::Py_ssize_t) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let t = this(op);
        if t.sizes().first().and_then(|&n| symbols::settled(n)).is_some_and(|n| i as i64 >= n) {
            ffi::PyErr_SetString(ffi::PyExc_IndexError, c"index out of range".as_ptr());
            return Ok(std::ptr::null_mut());
        }
        Ok(shell::wrap(ops::SELECT.call(&[Arg::Tensor(t), Arg::Int(0), Arg::Int(i as i64)])?))
    })
}

unsafe extern "C" fn iterate(op: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        if this(op).ndim() == 0 {
            return Err(Error::argument(
                "TP1018",
                "a 0-d tensor cannot be iterated over; use .item() for its value",
            ));
        }
        Ok(ffi::PySeqIter_New(op))
    })
}

pub fn slots() -> Vec<ffi::PyType_Slot> {
    vec![
        slot(ffi::Py_mp_subscript, subscript as *mut c_void),
        slot(ffi::Py_mp_ass_subscript, assign as *mut c_void),
        slot(ffi::Py_mp_length, length as *mut c_void),
        slot(ffi::Py_sq_item, at as *mut c_void),
        slot(ffi::Py_tp_iter, iterate as *mut c_void),
    ]
}
