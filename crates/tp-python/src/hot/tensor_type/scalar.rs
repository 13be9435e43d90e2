//! A tensor of one element as a Python number: bool, int, float, index, complex and `item`.

use super::{slot, this};
use crate::hot::ffi::Obj;
use crate::hot::{convert, ret};
use crate::{error, types};
use pyo3::ffi;
use std::os::raw::{c_int, c_void};
use tp_dispatch::{Error, Result};
use tp_graph::capture::watch;
use tp_tensor::{Scalar, Tensor};

/// The value, asked for by the user with `by`: under capture a refusal holds even where it is caught.
fn value(t: &Tensor, by: &str) -> Result<Scalar> {
    types::item_by(t, by).map_err(watch::refused)
}

unsafe extern "C" fn truth(op: Obj) -> c_int {
    // SAFETY: a live tensor, lock held.
    ret::guard_int(|| unsafe {
        Ok(match value(this(op), "bool(x)").map_err(ambiguous)? {
            Scalar::Bool(v) => v.into(),
            Scalar::Int(v) => (v != 0).into(),
            Scalar::Float(v) => (v != 0.0).into(),
        })
    })
}

#[cold]
fn ambiguous(e: Error) -> Error {
    if e.code() == "TP1112" { e.note("use .any() or .all() for the truth of many elements") } else { e }
}

unsafe extern "C" fn int(op: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let value = convert::scalar_to_object(value(this(op), "int(x)")?);
        let out = ffi::PyNumber_Long(value);
        ffi::Py_XDECREF(value);
        checked(out)
    })
}

unsafe extern "C" fn float(op: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe { Ok(ffi::PyFloat_FromDouble(value(this(op), "float(x)")?.to::<f64>())) })
}

unsafe extern "C" fn index(op: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let t = this(op);
        if !t.dtype().is_int() {
            let message = format!("only an integer tensor can be used as an index, got {}", t.dtype());
            return Err(Error::dtype("TP1232", message));
        }
        if t.ndim() != 0 {
            // A TypeError: `bytes(x)` tries the index first and goes on to the buffer only then.
            let message = format!("only a 0-d tensor can be used as an index, got shape {:?}", t.sizes());
            return Err(Error::argument("TP1152", message));
        }
        Ok(convert::scalar_to_object(value(t, "its use as an index")?))
    })
}

/// `item()`: the value as a Python number.
pub unsafe extern "C" fn item(op: Obj, _: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe { Ok(convert::scalar_to_object(value(this(op), "x.item()")?)) })
}

/// `__complex__()`.
pub unsafe extern "C" fn complex(op: Obj, _: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        checked(ffi::PyComplex_FromDoubles(value(this(op), "complex(x)")?.to::<f64>(), 0.0))
    })
}

fn checked(out: Obj) -> Result<Obj> {
    if out.is_null() { Err(error::fetch()) } else { Ok(out) }
}

pub fn slots() -> Vec<ffi::PyType_Slot> {
    vec![
        slot(ffi::Py_nb_bool, truth as *mut c_void),
        slot(ffi::Py_nb_int, int as *mut c_void),
        slot(ffi::Py_nb_float, float as *mut c_void),
        slot(ffi::Py_nb_index, index as *mut c_void),
    ]
}
