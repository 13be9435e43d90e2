//! `autograd.Function`: a forward and a backward written together, without a name in the registry. Lives here: the type,
//! and the layers that a call passes. Not here: the call itself (`function_call`), the way back (`function_rule`), and
//! ops with a contract of their own.
//!
//! A call is like that of a kernel that people write: grad mode is off in forward, the arguments are plain values there,
//! and results share memory with nothing. No graph holds one, and vmap runs it sample by sample.

use super::context_methods::given;
use super::function_call::{Tensors, call};
use super::returned::Owned;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::heap_type::{HeapType, slot};
use crate::hot::{ret, shell};
use crate::settle;
use crate::{batch, error};
use pyo3::ffi;
use std::ffi::CStr;
use std::os::raw::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::time::Instant;
use tp_dispatch::state::{self, KeyGuard};
use tp_dispatch::{Arg, DispatchKey, Error, KeySet, Result};
use tp_tensor::Tensor;

/// Attribute names, and what they are in a class that does not define them.
pub(super) struct Names {
    pub forward: Obj,
    pub setup_context: Obj,
    backward: Obj,
    pub no_setup: Obj,
    no_backward: Obj,
}

// SAFETY: the objects live for ever, and are touched only with the interpreter lock held.
unsafe impl Send for Names {}
// SAFETY: as above.
unsafe impl Sync for Names {}

static NAMES: OnceLock<Names> = OnceLock::new();

pub(super) fn names() -> Result<&'static Names> {
    NAMES.get().ok_or_else(|| Error::internal("TP9008", "the type Function was not initialised"))
}

/// An attribute of a class, read anew at every call.
///
/// # Safety
/// Lock held; live objects.
pub(super) unsafe fn attribute(class: Obj, name: Obj) -> Result<Owned> {
    // SAFETY: live objects, lock held.
    unsafe { owned(ffi::PyObject_GetAttr(class, name)) }
}

/// A new reference that a C call gave, or its exception.
pub(super) fn owned(object: Obj) -> Result<Owned> {
    if object.is_null() { Err(error::fetch()) } else { Ok(Owned(object)) }
}

/// The backward of a class, None where it has none.
///
/// # Safety
/// Lock held; a live class.
pub unsafe fn backward_of(class: Obj) -> Result<Option<Owned>> {
    let names = names()?;
    // SAFETY: the caller's promise.
    let found = unsafe { attribute(class, names.backward)? };
    Ok((found.0 != names.no_backward).then_some(found))
}

/// What messages call a class.
///
/// # Safety
/// Lock held; a live class.
#[cold]
pub unsafe fn name_of(class: Obj) -> String {
    // SAFETY: the caller's promise.
    unsafe {
        let name = Owned(ffi::PyObject_GetAttrString(class, c"__name__".as_ptr()));
        if name.0.is_null() {
            ffi::PyErr_Clear();
            return "Function".to_string();
        }
        match ffi::PyUnicode_Check(name.0) {
            0 => "Function".to_string(),
            _ => x::str_of(name.0).unwrap_or("Function").to_string(),
        }
    }
}

unsafe extern "C" fn apply(class: Obj, args: *mut Obj, nargs: isize) -> Obj {
    // SAFETY: the fastcall convention.
    ret::guard(|| unsafe { enter(class, given(args, nargs)) })
}

/// The layers above the tape, each of which is seldom there.
unsafe fn enter(class: Obj, args: &[Obj]) -> Result<Obj> {
    let _at_once = settle::leave("a Function")?;
    for &arg in args {
        // SAFETY: live objects.
        if unsafe { shell::is_tensor(arg) } {
            settle::quietly(unsafe { shell::tensor_of(arg) })?;
        }
    }
    let mut tensors = Tensors::new();
    let mut keys = 0;
    // SAFETY: live objects, lock held.
    unsafe {
        for &arg in args {
            if shell::is_tensor(arg) {
                let t = shell::tensor_of(arg);
                keys |= t.keys();
                tensors.push(Arg::Tensor(t));
            }
        }
        let layers = state::with(|s| s.effective(keys));
        if layers.contains(DispatchKey::Vmap) {
            if tensors.iter().filter_map(Arg::tensor).any(Tensor::is_batched) {
                return batch::function(class, args);
            }
            // What forward itself calls is its own business.
            let _passed = KeyGuard::new(KeySet::EMPTY, DispatchKey::Vmap.set());
            return enter(class, args);
        }
        if layers.contains(DispatchKey::Capture) {
            return Err(tp_graph::capture::refuse_function(&name_of(class)));
        }
        if state::is_tracing() {
            return traced(class, args, &tensors);
        }
        call(class, args, &tensors)
    }
}

#[cold]
unsafe fn traced(class: Obj, args: &[Obj], tensors: &Tensors<'_>) -> Result<Obj> {
    let start = Instant::now();
    // SAFETY: the caller's promise.
    let (out, name) = unsafe { (call(class, args, tensors)?, name_of(class)) };
    let host_seconds = start.elapsed().as_secs_f64();
    let given = || tensors.iter().filter_map(Arg::tensor);
    let device = given().map(Tensor::device).next().unwrap_or(tp_tensor::Device::CPU);
    state::record(&tp_dispatch::CallEvent {
        op: name.as_str().into(),
        key: if device.is_cpu() { DispatchKey::Cpu } else { DispatchKey::Cuda },
        phase: state::phase(),
        marker: tp_dispatch::CodegenMarker {
            executor: "python".into(),
            kernel: format!("{name}.forward").into(),
            proof: None,
            device,
        },
        rejected: Default::default(),
        shapes: given().map(|t| t.sizes().to_vec()).collect(),
        dtypes: given().map(Tensor::dtype).collect(),
        host_seconds,
        device_seconds: None,
    });
    Ok(out)
}

// ---- the type ----

unsafe fn not_given(what: &CStr) -> Obj {
    // SAFETY: lock held.
    unsafe { ffi::PyErr_SetString(ffi::PyExc_NotImplementedError, what.as_ptr()) };
    ptr::null_mut()
}

unsafe extern "C" fn no_forward(_: Obj, _: *const Obj, _: isize, _: Obj) -> Obj {
    // SAFETY: called with the lock held.
    unsafe { not_given(c"a Function needs a static method forward") }
}

unsafe extern "C" fn no_backward(_: Obj, _: *const Obj, _: isize, _: Obj) -> Obj {
    // SAFETY: as above.
    unsafe { not_given(c"a Function needs a static method backward") }
}

unsafe extern "C" fn no_setup(_: Obj, _: *const Obj, _: isize, _: Obj) -> Obj {
    // SAFETY: as above.
    unsafe { ffi::Py_NewRef(ffi::Py_None()) }
}

unsafe extern "C" fn traverse(op: Obj, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: called by the collector on a live object.
    unsafe { visit(x::type_of(op).cast(), arg) }
}

unsafe extern "C" fn dealloc(op: Obj) {
    // SAFETY: last reference gone, lock held.
    unsafe {
        x::PyObject_GC_UnTrack(op.cast());
        let ty = x::type_of(op);
        x::PyObject_GC_Del(op.cast());
        ffi::Py_DECREF(ty.cast());
    }
}

const DOC: &CStr = c"A differentiable function: subclass it, write `forward` and `backward` as static methods, call `apply`.

`forward(ctx, *args)` saves what backward needs on `ctx`; or `forward(*args)` with `setup_context(ctx, inputs,
output)`. `backward(ctx, *grads)` returns one gradient (or None) per argument. forward runs with grad mode off. A
result that is an argument, or shares memory with one, is given as a copy; an argument that forward wrote to, marked
with `ctx.mark_dirty` and returned, is given as itself.";

type Placeholder = unsafe extern "C" fn(Obj, *const Obj, isize, Obj) -> Obj;

/// The table of methods; it lives for ever.
fn methods() -> *mut ffi::PyMethodDef {
    let placeholder = |name: &'static CStr, f: Placeholder, doc: &'static CStr| ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: f },
        ml_flags: ffi::METH_STATIC | ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: doc.as_ptr(),
    };
    let all = vec![
        ffi::PyMethodDef {
            ml_name: c"apply".as_ptr(),
            ml_meth: ffi::PyMethodDefPointer { PyCFunctionFast: apply },
            ml_flags: ffi::METH_CLASS | ffi::METH_FASTCALL,
            ml_doc: c"apply($type, /, *args)\n--\n\nCalls the function, and records it where a gradient may be needed."
                .as_ptr(),
        },
        placeholder(c"forward", no_forward, c"forward(*args)\n--\n\nComputes the results."),
        placeholder(
            c"setup_context",
            no_setup,
            c"setup_context(ctx, inputs, output)\n--\n\nSaves what backward needs, where forward takes no `ctx`.",
        ),
        placeholder(
            c"backward",
            no_backward,
            c"backward(ctx, *grads)\n--\n\nComputes the gradients of the arguments.",
        ),
        // SAFETY: the terminator is all zeros.
        unsafe { std::mem::zeroed() },
    ];
    Box::leak(all.into_boxed_slice()).as_mut_ptr()
}

/// Makes the type; null with an exception set when that fails.
///
/// # Safety
/// Lock held; called once at import.
pub unsafe fn init_type() -> Obj {
    let made = HeapType {
        name: c"tensorplay.autograd.Function",
        basicsize: size_of::<ffi::PyObject>(),
        flags: ffi::Py_TPFLAGS_BASETYPE,
        offsets: &[],
        slots: vec![
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse as *mut c_void),
            slot(ffi::Py_tp_doc, DOC.as_ptr().cast_mut().cast()),
            slot(ffi::Py_tp_methods, methods().cast()),
        ],
    };
    // SAFETY: lock held; the functions above have their slots' types, the tables live for ever.
    unsafe {
        let class: Obj = made.create();
        if class.is_null() {
            return class;
        }
        let [forward, setup_context, backward] =
            ["forward", "setup_context", "backward"].map(|n| x::intern(n));
        let (no_setup, no_backward) =
            (ffi::PyObject_GetAttr(class, setup_context), ffi::PyObject_GetAttr(class, backward));
        if no_setup.is_null() || no_backward.is_null() {
            return ptr::null_mut();
        }
        let _ = NAMES.set(Names { forward, setup_context, backward, no_setup, no_backward });
        class
    }
}
