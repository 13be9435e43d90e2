//! Results on their way out: values to objects, errors to exceptions, panics to errors.

use super::convert;
use super::ffi::Obj;
use super::shell;
use crate::error;
use pyo3::ffi;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use tp_dispatch::schema::ArgType;
use tp_dispatch::{Error, Result, Rets, Schema, Value, pop_only_tensor};

/// One new reference for all results: the value itself for one, None for none, a tuple for several and for one that the
/// schema declares as a tuple.
///
/// # Safety
/// The interpreter lock is held.
#[inline(always)]
pub unsafe fn finish(rets: Rets, schema: Option<&Schema>) -> Obj {
    let mut rets = rets;
    if let Some(t) = pop_only_tensor(&mut rets) {
        // SAFETY: lock held.
        return unsafe { shell::wrap(t) };
    }
    // SAFETY: lock held.
    unsafe { finish_many(&rets, schema) }
}

#[cold]
unsafe fn finish_many(rets: &Rets, schema: Option<&Schema>) -> Obj {
    // SAFETY: a fresh tuple whose slots are filled before anyone sees it.
    unsafe {
        match rets.as_slice() {
            [] => ffi::Py_NewRef(ffi::Py_None()),
            [Value::Tensors(items)] if schema.is_some_and(returns_tuple) => {
                let items: Rets = items.iter().cloned().map(Value::Tensor).collect();
                tuple(&items)
            }
            [one] => convert::value_to_object(one),
            many => tuple(many),
        }
    }
}

/// Whether the one return of a schema is a tuple: `-> ((Tensor))`.
pub fn returns_tuple(schema: &Schema) -> bool {
    matches!(schema.returns(), [ret] if matches!(ret.ty(), ArgType::Tuple(_)))
}

unsafe fn tuple(items: &[Value]) -> Obj {
    // SAFETY: a fresh tuple whose slots are filled before anyone sees it.
    unsafe {
        let tuple = ffi::PyTuple_New(items.len() as isize);
        for (i, v) in items.iter().enumerate() {
            let obj = convert::value_to_object(v);
            if obj.is_null() {
                ffi::Py_DECREF(tuple);
                return ptr::null_mut();
            }
            ffi::PyTuple_SetItem(tuple, i as isize, obj);
        }
        tuple
    }
}

/// Runs the body of a slot made by hand: an error becomes the exception, a panic an internal error.
#[inline(always)]
pub fn guard(body: impl FnOnce() -> Result<Obj>) -> Obj {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(obj)) => obj,
        Ok(Err(e)) => raise(e),
        Err(panic) => raise(panic_error(&*panic)),
    }
}

/// As `guard`, for slots that answer with an int (-1 = exception set).
pub fn guard_int(body: impl FnOnce() -> Result<i32>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(v)) => v,
        Ok(Err(e)) => {
            raise(e);
            -1
        }
        Err(panic) => {
            raise(panic_error(&*panic));
            -1
        }
    }
}

#[cold]
fn raise(e: Error) -> Obj {
    error::set(e);
    ptr::null_mut()
}

#[cold]
pub fn panic_error(panic: &(dyn std::any::Any + Send)) -> Error {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown panic");
    Error::internal("TP9000", format!("internal error: {what}"))
        .note("this is a bug in TensorPlay: please report it with `python -m tensorplay env`")
}
