//! Methods that tell of a tensor's memory: address, strides, sizes, and the exchange methods. `set_` serves code
//! written for tensors that can be pointed at another storage, such as Triton's interpreter.

use super::getset::int_tuple;
use super::this;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell::{self, Shell};
use crate::hot::sizes;
use crate::hot::{convert, ret};
use crate::tensor::dlpack::export;
use crate::{error, settle, types};
use pyo3::ffi;
use std::mem::ManuallyDrop;
use std::ptr;
use tp_dispatch::{Error, Result};
use tp_graph::capture;
use tp_graph::capture::watch::{self, Answer, Fact};
use tp_tensor::{Dims, Layout, Tensor, TensorError, layout, symbols};

unsafe extern "C" fn data_ptr(op: Obj, _: Obj) -> Obj {
    // SAFETY: a live tensor, lock held; likewise below.
    ret::guard(|| unsafe {
        let t = this(op);
        types::readable(t, "TP4005", "the address of a tensor was", "x.data_ptr()", types::OWN_OP)?;
        settle::lend(t)?;
        Ok(ffi::PyLong_FromUnsignedLongLong(t.data_ptr() as u64))
    })
}

unsafe extern "C" fn numel(op: Obj, _: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let t = this(op);
        if symbols::any(t.sizes()) {
            return Ok(sizes::size_object(symbols::product(t.sizes())?));
        }
        Ok(ffi::PyLong_FromLongLong(t.numel()))
    })
}

unsafe extern "C" fn element_size(op: Obj, _: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe { Ok(ffi::PyLong_FromSize_t(this(op).dtype().itemsize())) })
}

unsafe extern "C" fn dim(op: Obj, _: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe { Ok(ffi::PyLong_FromSize_t(this(op).ndim())) })
}

unsafe extern "C" fn storage_offset(op: Obj, _: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let t = this(op);
        if t.is_pending() {
            settle::read(t, "TP4030", || "storage_offset() of a tensor was read".to_string())?;
        }
        let offset = match capture::active().then(|| watch::ask(t, Fact::StorageOffset)).transpose()? {
            Some(Answer::Int(offset)) => offset,
            _ => t.offset(),
        };
        Ok(ffi::PyLong_FromLongLong(offset))
    })
}

unsafe extern "C" fn is_contiguous(op: Obj, _: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe { Ok(ffi::PyBool_FromLong(this(op).is_contiguous().into())) })
}

/// `stride(dim=None)`: all strides in elements, or one.
unsafe extern "C" fn stride(op: Obj, args: *const Obj, nargs: isize, kwnames: Obj) -> Obj {
    // SAFETY: the fastcall convention.
    ret::guard(|| unsafe {
        let given = arguments::<1>("stride", ["dim"], args, nargs, kwnames)?[0];
        let t = this(op);
        if capture::active() {
            watch::ask_strides()?;
        }
        if given.is_null() || given == ffi::Py_None() {
            return int_tuple(t.strides());
        }
        let axis = convert::int(given)?
            .ok_or_else(|| Error::argument("TP1002", "argument 'dim' must be int").with_op("stride"))?;
        let axis = layout::normalize_axis(axis, t.ndim())?;
        let stride = t.strides().get(axis).ok_or(TensorError::Axis { axis: axis as i64, ndim: t.ndim() })?;
        Ok(ffi::PyLong_FromLongLong(*stride))
    })
}

/// Places arguments by position and keyword; null where one was not given.
pub unsafe fn arguments<const N: usize>(
    method: &str,
    names: [&str; N],
    args: *const Obj,
    nargs: isize,
    kwnames: Obj,
) -> Result<[Obj; N]> {
    let mut out = [ptr::null_mut(); N];
    if nargs as usize > N {
        let message = format!("takes at most {N} arguments, got {nargs}");
        return Err(Error::argument("TP1005", message).with_op(method));
    }
    // SAFETY: the fastcall convention.
    unsafe {
        for (i, slot) in out.iter_mut().enumerate().take(nargs as usize) {
            *slot = *args.add(i);
        }
        let keywords = if kwnames.is_null() { 0 } else { ffi::PyTuple_Size(kwnames) };
        for k in 0..keywords {
            let name = x::str_of(ffi::PyTuple_GetItem(kwnames, k)).unwrap_or("?");
            let Some(i) = names.iter().position(|n| *n == name).filter(|i| out[*i].is_null()) else {
                let message = format!("unexpected keyword argument '{name}'");
                return Err(Error::argument("TP1006", message).with_op(method));
            };
            out[i] = *args.offset(nargs + k);
        }
    }
    Ok(out)
}

/// `set_(storage, offset, size, stride)`: points a fresh empty tensor at a storage.
///
/// The object gets another header, so nothing may hold the old one: only a tensor without elements or history that
/// one variable alone refers to is taken.
unsafe extern "C" fn set_(op: Obj, args: *const Obj, nargs: isize, kwnames: Obj) -> Obj {
    // SAFETY: the fastcall convention.
    ret::guard(|| unsafe {
        let given = arguments("set_", ["source", "storage_offset", "size", "stride"], args, nargs, kwnames)?;
        if given.contains(&ptr::null_mut()) {
            return Err(
                Error::argument("TP1003", "takes source, storage_offset, size and stride").with_op("set_")
            );
        }
        let t = this(op);
        settle::read(t, "TP4031", || "set_() takes effect at its place".to_string())?;
        // One reference of the variable, one of the call.
        let alone = ffi::Py_REFCNT(op) <= 2 && t.ref_count() == 1 && !t.is_tracked();
        if t.numel() != 0 || t.requires_grad() || t.is_fake() || !alone {
            return Err(Error::value(
                "TP1157",
                "set_ takes only a fresh empty tensor, as new_empty(0) gives it",
            ));
        }
        let source = ffi::PyObject_GetAttrString(given[0], c"tensor".as_ptr());
        if source.is_null() {
            return Err(error::fetch());
        }
        let view = if shell::is_tensor(source) {
            settle::quietly(this(source)).and_then(|()| view_of(this(source), t, &given))
        } else {
            Err(no_storage())
        };
        ffi::Py_DECREF(source);
        watch::once("set_()", "call it outside of the function")?;
        repoint(op, view?);
        Ok(ffi::Py_NewRef(op))
    })
}

#[cold]
fn no_storage() -> Error {
    Error::argument("TP1002", "argument 'source' must be what untyped_storage() returns").with_op("set_")
}

unsafe fn view_of(source: &Tensor, like: &Tensor, given: &[Obj; 4]) -> Result<Tensor> {
    let wrong =
        |what: &str| Error::argument("TP1002", format!("argument '{what}' must be ints")).with_op("set_");
    // SAFETY: live objects.
    unsafe {
        let offset = convert::int(given[1])?.ok_or_else(|| wrong("storage_offset"))?;
        let list = |obj: Obj, what: &str| -> Result<Dims> {
            let items = convert::sequence(obj).ok_or_else(|| wrong(what))?;
            items.iter().map(|&o| convert::int(o)?.ok_or_else(|| wrong(what))).collect()
        };
        let (sizes, strides) = (list(given[2], "size")?, list(given[3], "stride")?);
        if sizes.len() != strides.len() {
            return Err(Error::shape("TP1158", "size and stride must have the same length").with_op("set_"));
        }
        layout::checked_numel(&sizes, like.dtype().itemsize())?;
        Ok(source.view_as(&Layout { sizes, strides, offset }, like.dtype())?)
    }
}

unsafe fn repoint(op: Obj, tensor: Tensor) {
    // SAFETY: nobody else holds the header, see `set_`.
    unsafe {
        let slot = &mut (*op.cast::<Shell>()).tensor;
        slot.set_host(ptr::null_mut());
        tensor.set_host(op.cast());
        ManuallyDrop::drop(&mut std::mem::replace(slot, ManuallyDrop::new(tensor)));
    }
}

type NoArgs = unsafe extern "C" fn(Obj, Obj) -> Obj;
type FastCall = unsafe extern "C" fn(Obj, *const Obj, isize, Obj) -> Obj;

pub fn methods(
    plain: impl Fn(&str, NoArgs, &str) -> ffi::PyMethodDef,
    fast: impl Fn(&str, FastCall, &str) -> ffi::PyMethodDef,
) -> Vec<ffi::PyMethodDef> {
    vec![
        plain("data_ptr", data_ptr, "Address of the first element."),
        plain("numel", numel, "Number of elements."),
        plain("element_size", element_size, "Bytes per element."),
        plain("dim", dim, "Number of dimensions; the same as ndim."),
        plain("storage_offset", storage_offset, "Position of the first element in its storage, in elements."),
        plain("is_contiguous", is_contiguous, "Whether the elements lie in row-major order without gaps."),
        plain("__dlpack_device__", export::dlpack_device, "DLPack device type and index."),
        fast(
            "stride",
            stride,
            "stride($self, /, dim=None)\n--\n\nStrides in elements: all as a tuple, or one.",
        ),
        fast(
            "set_",
            set_,
            "set_($self, /, source, storage_offset, size, stride)\n--\n\nPoints a fresh empty tensor at a storage.",
        ),
        fast(
            "__dlpack__",
            export::dlpack,
            "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n\
             A DLPack capsule over the tensor's memory.",
        ),
    ]
}
