//! What the tape knows of a tensor, as attributes and methods: requires_grad, grad, grad_fn, is_leaf, backward.

use super::{new_ref, this};
use crate::autograd;
use crate::error;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::{convert, ret, shell};
use pyo3::ffi;
use std::os::raw::{c_int, c_void};
use std::ptr;
use tp_dispatch::{Error, Result};
use tp_graph::capture::watch::{self, Fact};
use tp_tensor::Tensor;

unsafe extern "C" fn requires_grad(op: Obj, _: *mut c_void) -> Obj {
    // SAFETY: called by CPython on a live tensor with the lock held.
    ret::guard(|| unsafe {
        let on = watch::answer(this(op), Fact::RequiresGrad, Tensor::requires_grad)?;
        Ok(ffi::PyBool_FromLong(on.into()))
    })
}

unsafe extern "C" fn set_requires_grad(op: Obj, value: Obj, _: *mut c_void) -> c_int {
    // SAFETY: as above; a null value is a deletion.
    ret::guard_int(|| unsafe {
        if value.is_null() {
            return Err(Error::argument("TP1042", "requires_grad is True or False"));
        }
        autograd::set_requires_grad(this(op), flag(value)?).map(|()| 0)
    })
}

unsafe extern "C" fn grad(op: Obj, _: *mut c_void) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        Ok(match autograd::get_grad(this(op))? {
            Some(g) => shell::wrap(g),
            None => new_ref(ffi::Py_None()),
        })
    })
}

unsafe extern "C" fn set_grad(op: Obj, value: Obj, _: *mut c_void) -> c_int {
    // SAFETY: as above.
    ret::guard_int(|| unsafe { autograd::set_grad(this(op), optional(value, "grad")?.cloned()).map(|()| 0) })
}

unsafe extern "C" fn is_leaf(op: Obj, _: *mut c_void) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let leaf = watch::answer(this(op), Fact::Leaf, tp_autograd::meta::is_leaf)?;
        Ok(ffi::PyBool_FromLong(leaf.into()))
    })
}

unsafe extern "C" fn grad_fn(op: Obj, _: *mut c_void) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let t = this(op);
        error::attached(|py| autograd::grad_fn_object(py, t).map(pyo3::Py::into_ptr).map_err(error::from_py))
    })
}

/// A tensor, or None for None and null.
unsafe fn optional<'a>(obj: Obj, name: &str) -> Result<Option<&'a Tensor>> {
    // SAFETY: null or a live object.
    unsafe {
        if obj.is_null() || obj == ffi::Py_None() {
            return Ok(None);
        }
        if shell::is_tensor(obj) {
            return Ok(Some(shell::tensor_of(obj)));
        }
        let got = x::type_name(obj);
        Err(Error::argument("TP1043", format!("'{name}' must be a Tensor or None, got {got}")))
    }
}

/// A tensor, a list of tensors, or None.
#[cold]
unsafe fn tensors(obj: Obj, name: &str) -> Result<Vec<Tensor>> {
    // SAFETY: live objects.
    unsafe {
        if obj == ffi::Py_None() {
            return Ok(Vec::new());
        }
        if shell::is_tensor(obj) {
            return Ok(vec![shell::tensor_of(obj).clone()]);
        }
        let Some(items) = convert::sequence(obj).filter(|items| items.iter().all(|&t| shell::is_tensor(t)))
        else {
            return Err(Error::argument("TP1002", format!("'{name}' must be a Tensor or a list of tensors")));
        };
        if items.is_empty() {
            let message = format!("{name} is empty: name a tensor, or leave it out for all leaves");
            return Err(Error::argument("TP3309", message));
        }
        Ok(items.iter().map(|&t| shell::tensor_of(t).clone()).collect())
    }
}

const BACKWARD: [&str; 4] = ["gradient", "retain_graph", "create_graph", "inputs"];

/// `backward(gradient=None, retain_graph=None, create_graph=False, inputs=None)`.
unsafe extern "C" fn backward(op: Obj, args: *const Obj, nargs: isize, kwnames: Obj) -> Obj {
    // SAFETY: the fastcall convention.
    ret::guard(|| unsafe {
        let nargs = nargs as usize;
        if nargs == 0 && kwnames.is_null() {
            autograd::stays_inside(std::slice::from_ref(this(op)), &[])?;
            let _at_once = autograd::at_once(this(op), None)?;
            tp_autograd::backward_from(this(op))?;
            return Ok(new_ref(ffi::Py_None()));
        }
        let mut given: [Obj; 4] = [ptr::null_mut(); 4];
        if nargs > given.len() {
            return Err(Error::argument(
                "TP1005",
                format!("backward takes at most 4 arguments, got {nargs}"),
            ));
        }
        for (i, slot) in given.iter_mut().enumerate().take(nargs) {
            *slot = *args.add(i);
        }
        let keywords = if kwnames.is_null() { 0 } else { ffi::PyTuple_Size(kwnames) as usize };
        for k in 0..keywords {
            let name = x::str_of(ffi::PyTuple_GetItem(kwnames, k as isize)).unwrap_or("?");
            let Some(i) = BACKWARD.iter().position(|n| *n == name) else {
                let message = format!("unknown keyword argument '{name}'; known are {}", BACKWARD.join(", "));
                return Err(Error::argument("TP1006", message).with_op("backward"));
            };
            given[i] = *args.add(nargs + k);
        }
        let gradient = optional(given[0], "gradient")?.cloned();
        let retain = if given[1].is_null() || given[1] == ffi::Py_None() {
            None
        } else {
            Some(convert::option(given[1], "backward", "retain_graph")?)
        };
        let create = !given[2].is_null() && convert::option(given[2], "backward", "create_graph")?;
        let inputs = if given[3].is_null() { Vec::new() } else { tensors(given[3], "inputs")? };
        autograd::backward_one(this(op), gradient, retain, create, &inputs)?;
        Ok(new_ref(ffi::Py_None()))
    })
}

unsafe fn flag(obj: Obj) -> Result<bool> {
    // SAFETY: a live object.
    unsafe {
        convert::strict_boolean(obj)?.ok_or_else(|| {
            Error::argument("TP1042", format!("requires_grad is True or False, got {}", x::type_name(obj)))
        })
    }
}

/// `requires_grad_(requires_grad=True)`: sets the flag and returns the tensor.
unsafe extern "C" fn requires_grad_(op: Obj, args: *const Obj, nargs: isize, kwnames: Obj) -> Obj {
    // SAFETY: the fastcall convention.
    ret::guard(|| unsafe {
        let keywords = if kwnames.is_null() { 0 } else { ffi::PyTuple_Size(kwnames) };
        for k in 0..keywords {
            let name = x::str_of(ffi::PyTuple_GetItem(kwnames, k)).unwrap_or("?");
            if name != "requires_grad" {
                let message = format!("unknown keyword argument '{name}'; known is requires_grad");
                return Err(Error::argument("TP1006", message).with_op("requires_grad_"));
            }
        }
        if nargs + keywords > 1 {
            let message = format!("requires_grad_ takes at most 1 argument, got {}", nargs + keywords);
            return Err(Error::argument("TP1005", message).with_op("requires_grad_"));
        }
        let on = if nargs + keywords == 1 { flag(*args)? } else { true };
        autograd::set_requires_grad(this(op), on)?;
        Ok(new_ref(op))
    })
}

/// Attributes for the type's table.
pub fn attributes() -> Vec<ffi::PyGetSetDef> {
    let entry = |name: &'static std::ffi::CStr, get, set, doc: &'static std::ffi::CStr| ffi::PyGetSetDef {
        name: name.as_ptr(),
        get: Some(get),
        set,
        doc: doc.as_ptr(),
        closure: ptr::null_mut(),
    };
    vec![
        entry(
            c"requires_grad",
            requires_grad,
            Some(set_requires_grad as ffi::setter),
            c"Whether operations on this tensor are recorded.",
        ),
        entry(c"grad", grad, Some(set_grad as ffi::setter), c"The gradient that backward left, or None."),
        entry(c"is_leaf", is_leaf, None, c"Whether no recorded operation made this tensor."),
        entry(c"grad_fn", grad_fn, None, c"The recorded operation that made this tensor, or None."),
    ]
}

/// Methods for the type's table.
pub fn methods() -> Vec<ffi::PyMethodDef> {
    let entry = |name: &'static std::ffi::CStr, f, doc: &'static std::ffi::CStr| ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: f },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: doc.as_ptr(),
    };
    vec![
        entry(
            c"backward",
            backward,
            c"backward(gradient=None, retain_graph=None, create_graph=False, inputs=None)\n--\n\nAdds the gradients of this tensor to the .grad of every leaf it was computed from, or of `inputs` alone.",
        ),
        entry(c"requires_grad_", requires_grad_, c"requires_grad_(requires_grad=True)\n--\n\nSets requires_grad and returns the tensor."),
    ]
}
