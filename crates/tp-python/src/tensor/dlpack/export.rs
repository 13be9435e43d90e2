//! `Tensor.__dlpack__` and `__dlpack_device__`: memory lent out without a copy, kept alive by a handle of its own.
//! Shape and strides are those of the tensor's header, which does not move while the handle lives.

use super::DlDataType;
use super::{
    DlDevice, DlTensor, IS_COPIED, LEGACY_NAME, Legacy, READ_ONLY, VERSION, VERSIONED_NAME, Versioned,
    buffer_error,
};
use crate::error;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::{convert, ret, shell};
use crate::tensor::{builtin as ops, transfer};
use crate::types;
use pyo3::ffi;
use std::ffi::CStr;
use std::os::raw::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use tp_dispatch::check::check_writable;
use tp_dispatch::{Arg, Error, Result};
use tp_tensor::{Device, Tensor, runtime};

/// What a deleter frees: the structure the consumer sees, then the handle.
#[repr(C)]
struct Lent<M> {
    managed: M,
    tensor: Tensor,
}

/// The tensor as the protocol describes it; valid while a handle lives.
pub fn describe(t: &Tensor) -> Result<DlTensor> {
    let by = "x.__dlpack__() (from_dlpack calls it)";
    types::readable(t, "TP4013", "the memory of a tensor was", by, types::OWN_OP)?;
    if t.requires_grad() {
        return Err(buffer_error("a tensor that requires a gradient cannot be exported; use x.detach()"));
    }
    crate::settle::lend(t)?;
    Ok(DlTensor {
        data: if t.numel() == 0 { ptr::null_mut() } else { t.data_ptr().cast() },
        device: DlDevice::of(t.device())?,
        ndim: t.ndim() as i32,
        dtype: DlDataType::of(t.dtype()),
        shape: t.sizes().as_ptr().cast_mut(),
        strides: t.strides().as_ptr().cast_mut(),
        byte_offset: 0,
    })
}

/// Frees a `Lent`; may run on any thread, with or without the interpreter lock.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    // SAFETY: `managed` is the first field of a boxed `Lent`. A panic must not cross into C.
    let _ = catch_unwind(AssertUnwindSafe(|| unsafe { drop(Box::from_raw(managed.cast::<Lent<M>>())) }));
}

/// The versioned structure; the caller owns it through its deleter.
pub fn versioned(t: &Tensor, copied: bool) -> Result<*mut Versioned> {
    // As in the buffer protocol: where several elements share one place, a write through one would be to all.
    let read_only = if check_writable(t).is_err() { READ_ONLY } else { 0 };
    let managed = Versioned {
        version: VERSION,
        manager: ptr::null_mut(),
        deleter: Some(delete::<Versioned>),
        flags: read_only | if copied { IS_COPIED } else { 0 },
        tensor: describe(t)?,
    };
    Ok(Box::into_raw(Box::new(Lent { managed, tensor: t.clone() })).cast())
}

fn legacy(t: &Tensor) -> Result<*mut Legacy> {
    if t.storage().is_readonly() {
        return Err(buffer_error("a read-only tensor needs DLPack 1.0: call __dlpack__(max_version=(1, 0))"));
    }
    let managed = Legacy { tensor: describe(t)?, manager: ptr::null_mut(), deleter: Some(delete::<Legacy>) };
    Ok(Box::into_raw(Box::new(Lent { managed, tensor: t.clone() })).cast())
}

unsafe extern "C" fn drop_versioned(capsule: Obj) {
    // SAFETY: a capsule of that name holds an owned `Versioned`; a consumed one was renamed.
    unsafe {
        if let Some(p) = unused(capsule, VERSIONED_NAME) {
            delete::<Versioned>(p.cast());
        }
    }
}

unsafe extern "C" fn drop_legacy(capsule: Obj) {
    // SAFETY: as above.
    unsafe {
        if let Some(p) = unused(capsule, LEGACY_NAME) {
            delete::<Legacy>(p.cast());
        }
    }
}

unsafe fn unused(capsule: Obj, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a live capsule.
    unsafe {
        (ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 1)
            .then(|| ffi::PyCapsule_GetPointer(capsule, name.as_ptr()))
    }
}

/// Keyword arguments of `__dlpack__`; null where not given or None.
#[derive(Default)]
struct Options {
    stream: Option<Obj>,
    max_version: Option<Obj>,
    dl_device: Option<Obj>,
    copy: Option<Obj>,
}

unsafe fn options(args: *const Obj, nargs: isize, kwnames: Obj) -> Result<Options> {
    let mut out = Options::default();
    if nargs != 0 {
        return Err(Error::argument("TP1005", "__dlpack__ takes keyword arguments only"));
    }
    if kwnames.is_null() {
        return Ok(out);
    }
    // SAFETY: the fastcall convention: one value per name, after the positional arguments.
    unsafe {
        for k in 0..ffi::PyTuple_Size(kwnames) {
            let value = *args.offset(k);
            let name = x::shown(ffi::PyTuple_GetItem(kwnames, k));
            let slot = match name.as_str() {
                "stream" => &mut out.stream,
                "max_version" => &mut out.max_version,
                "dl_device" => &mut out.dl_device,
                "copy" => &mut out.copy,
                _ => return Err(Error::argument("TP1006", format!("__dlpack__ has no argument '{name}'"))),
            };
            *slot = (value != ffi::Py_None()).then_some(value);
        }
    }
    Ok(out)
}

unsafe fn int_pair(obj: Obj, what: &str) -> Result<(i64, i64)> {
    let wrong = || Error::argument("TP1002", format!("{what} must be a tuple of two ints"));
    // SAFETY: live objects.
    unsafe {
        let items = convert::sequence(obj).filter(|v| v.len() == 2).ok_or_else(wrong)?;
        // The device type is an IntEnum in some libraries.
        let int = |o: Obj| convert::int(o)?.ok_or_else(wrong);
        Ok((int(items[0])?, int(items[1])?))
    }
}

/// `__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None)`.
pub unsafe extern "C" fn dlpack(op: Obj, args: *const Obj, nargs: isize, kwnames: Obj) -> Obj {
    // SAFETY: the fastcall convention, on a live tensor.
    ret::guard(|| unsafe {
        let options = options(args, nargs, kwnames)?;
        let source = shell::tensor_of(op);
        crate::settle::quietly(source)?;
        let (t, copied) = on_device(source, &options)?;
        synchronize(source, &t, options.stream)?;
        let modern = match options.max_version {
            Some(v) => int_pair(v, "max_version")?.0 >= 1,
            None => false,
        };
        let capsule = if modern {
            ffi::PyCapsule_New(versioned(&t, copied)?.cast(), VERSIONED_NAME.as_ptr(), Some(drop_versioned))
        } else {
            ffi::PyCapsule_New(legacy(&t)?.cast(), LEGACY_NAME.as_ptr(), Some(drop_legacy))
        };
        if capsule.is_null() { Err(error::fetch()) } else { Ok(capsule) }
    })
}

/// The tensor to lend, on the device asked for, and whether it is a copy.
unsafe fn on_device(t: &Tensor, options: &Options) -> Result<(Tensor, bool)> {
    let flag = |c: Obj| {
        // SAFETY: a live object, lock held.
        let (value, got) = unsafe { (convert::strict_boolean(c)?, x::type_name(c)) };
        let message = || format!("__dlpack__: argument 'copy' must be True, False or None, got {got}");
        value.ok_or_else(|| Error::argument("TP1002", message()))
    };
    let copy = options.copy.map(flag).transpose()?;
    let own = DlDevice::of(t.device())?;
    let wanted = match options.dl_device {
        // SAFETY: a live object.
        Some(d) => unsafe { int_pair(d, "dl_device")? },
        None => (own.kind.into(), own.index.into()),
    };
    if wanted != (own.kind.into(), own.index.into()) {
        if copy == Some(false) {
            return Err(buffer_error(format!(
                "moving to DLPack device {wanted:?} needs a copy, and copy is False"
            )));
        }
        if wanted != (1, 0) {
            return Err(buffer_error(format!(
                "cannot export to DLPack device {wanted:?}; the tensor is on {}",
                t.device()
            )));
        }
        describe(t)?;
        return Ok((transfer::to_device(t, Device::CPU)?, true));
    }
    if copy == Some(true) {
        describe(t)?;
        return Ok((ops::CLONE.run(&[Arg::Tensor(t)])?, true));
    }
    Ok((t.clone(), false))
}

/// Work queued on the tensor's device is done before the consumer's stream may read.
unsafe fn synchronize(source: &Tensor, lent: &Tensor, stream: Option<Obj>) -> Result<()> {
    // SAFETY: a live object.
    let stream = match stream {
        Some(s) => unsafe { convert::int(s)? }
            .ok_or_else(|| Error::argument("TP1002", "stream must be an int or None"))?,
        None if source.device().is_cpu() => return Ok(()),
        None => 1,
    };
    if lent.device().is_cpu() {
        // The protocol knows no stream of the CPU; -1 asks for nothing.
        return if stream == -1 {
            Ok(())
        } else {
            Err(buffer_error("a CPU tensor has no stream: pass stream=None"))
        };
    }
    match stream {
        -1 => Ok(()),
        0 => Err(buffer_error(
            "stream 0 is ambiguous in CUDA: pass 1 (legacy default) or 2 (per-thread default)",
        )),
        _ => {
            runtime::runtime(lent.device())?.synchronize(lent.device());
            Ok(())
        }
    }
}

/// `__dlpack_device__()`.
pub unsafe extern "C" fn dlpack_device(op: Obj, _: Obj) -> Obj {
    // SAFETY: a live tensor, lock held.
    ret::guard(|| unsafe {
        let d = DlDevice::of(shell::tensor_of(op).device())?;
        let pair = ffi::PyTuple_New(2);
        if pair.is_null() {
            return Err(error::fetch());
        }
        ffi::PyTuple_SetItem(pair, 0, ffi::PyLong_FromLong(d.kind.into()));
        ffi::PyTuple_SetItem(pair, 1, ffi::PyLong_FromLong(d.index.into()));
        Ok(pair)
    })
}
