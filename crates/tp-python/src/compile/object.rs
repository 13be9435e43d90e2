//! The compiled function as a Python object with a vectorcall slot. A call whose arguments are tensors and numbers
//! goes from the stack to the plan without any other object in between; everything else is flattened first.

use super::find::{self, Found, find_or_build};
use super::notice;
use super::segmented;
use super::tree::{self, Call, FlatCall, Tree};
use super::values::FlatArgs;
use crate::error;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::heap_type::{HeapType, slot};
use crate::hot::{ret, shell};
use crate::watching::entry::PyGuards;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::os::raw::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use tp_dispatch::{Arg, Error, ErrorKind, Result, Rets, Value, state};
use tp_graph::compile::CompiledFunction;
use tp_graph::segments::Store;
use tp_tensor::Scalar;

#[repr(C)]
struct CompiledObject {
    head: ffi::PyObject,
    vectorcall: ffi::vectorcallfunc,
    inner: *mut Inner,
    dict: Obj,
    weak: Obj,
}

pub(super) struct Inner {
    pub core: Arc<CompiledFunction>,
    pub func: Obj,
    pub parameters: Vec<String>,
    /// A tuple of what the caller vouches for.
    pub assumed: Obj,
    /// Where the function need not be captured as a whole.
    pub segments: Option<Arc<Store>>,
}

/// How an entry's flat results make up what the function returned.
pub(super) struct Results {
    pub tree: Tree,
    /// The call the entry was captured for: keeps objects guarded by identity alive.
    pub _call: Arc<FlatCall>,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(ptr::null_mut());

pub fn new<'py>(
    py: Python<'py>,
    func: &Bound<'py, PyAny>,
    core: Arc<CompiledFunction>,
    parameters: Vec<String>,
    assumed: &Bound<'py, PyTuple>,
    fullgraph: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let segments = (!fullgraph).then(|| Arc::new(Store::new(&core)));
    // SAFETY: a fresh object of our type; every field is written before it is tracked.
    unsafe {
        let op = x::_PyObject_GC_New(TYPE.load(Ordering::Acquire));
        if op.is_null() {
            return Err(PyErr::fetch(py));
        }
        let this = op.cast::<CompiledObject>();
        let inner = Inner {
            core,
            func: ffi::Py_NewRef(func.as_ptr()),
            parameters,
            assumed: ffi::Py_NewRef(assumed.as_ptr()),
            segments,
        };
        ptr::write(&raw mut (*this).vectorcall, vectorcall);
        ptr::write(&raw mut (*this).inner, Box::into_raw(Box::new(inner)));
        ptr::write(&raw mut (*this).dict, ptr::null_mut());
        ptr::write(&raw mut (*this).weak, ptr::null_mut());
        x::PyObject_GC_Track(op.cast());
        Bound::from_owned_ptr_or_err(py, op)
    }
}

/// Whether a type is that of compiled functions.
pub fn is_type(ty: *mut ffi::PyTypeObject) -> bool {
    ty == TYPE.load(Ordering::Relaxed)
}

fn inner<'a>(obj: &'a Bound<'_, PyAny>) -> PyResult<&'a Inner> {
    // SAFETY: the layout of our own type.
    unsafe {
        if x::type_of(obj.as_ptr()) == TYPE.load(Ordering::Relaxed) {
            return Ok(&*(*obj.as_ptr().cast::<CompiledObject>()).inner);
        }
    }
    Err(PyTypeError::new_err(format!("expected a compiled function, got {}", obj.get_type())))
}

pub fn core<'a>(obj: &'a Bound<'_, PyAny>) -> PyResult<&'a CompiledFunction> {
    Ok(&inner(obj)?.core)
}

/// What a function in segments has compiled and where it broke off; None for one that is captured as a whole.
pub fn segments<'a>(obj: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a Store>> {
    Ok(inner(obj)?.segments.as_deref())
}

pub fn function<'py>(py: Python<'py>, obj: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: a live function held by the object.
    Ok(unsafe { Bound::from_borrowed_ptr(py, inner(obj)?.func) })
}

unsafe extern "C" fn vectorcall(op: Obj, args: *const Obj, nargsf: usize, kwnames: Obj) -> Obj {
    let nargs = nargsf & !x::VECTORCALL_OFFSET_FLAG;
    // SAFETY: called on a compiled object by the vectorcall protocol.
    ret::guard(|| unsafe {
        let inner = &*(*op.cast::<CompiledObject>()).inner;
        if kwnames.is_null()
            && state::is_plain()
            && let Some(done) = short(inner, std::slice::from_raw_parts(args, nargs))
        {
            return done;
        }
        other(inner, args, nargs, kwnames)
    })
}

/// The arguments of a call that is looked up on the stack, at most.
const FEW: usize = 4;

/// A few positional tensors and numbers, and an entry for them whose result is one tensor, on a thread without modes.
///
/// # Safety
/// Live objects; the interpreter lock is held.
#[inline(always)]
unsafe fn short(inner: &Inner, given: &[Obj]) -> Option<Result<Obj>> {
    let mut args = [Arg::None; FEW];
    let args = args.get_mut(..given.len())?;
    // SAFETY: the caller's promise.
    unsafe {
        for (arg, &obj) in args.iter_mut().zip(given) {
            *arg = simple(obj)?;
        }
        let (out, entry) = inner.core.call_plainly(args)?;
        // SAFETY: every entry is built below, with such a structure.
        let results = &*ptr::from_ref(entry.structure()).cast::<Results>();
        Some(match (out, &results.tree) {
            (Ok(t), Tree::Leaf) => Ok(shell::wrap(t)),
            (Ok(t), tree) => rebuild(tree, Rets::from_iter([Value::Tensor(t)])),
            // An error has a longer way, where the function need not be captured as a whole.
            (Err(_), _) if inner.segments.is_some() => return None,
            (Err(e), _) => Err(e),
        })
    }
}

/// Every other call.
#[inline(never)]
unsafe fn other(inner: &Inner, args: *const Obj, nargs: usize, kwnames: Obj) -> Result<Obj> {
    // SAFETY: live objects, by the vectorcall protocol; lock held.
    unsafe {
        // Under capture the function is inlined, also where its own tensors are real: their values may change.
        if kwnames.is_null() && !tp_graph::capture::active() && !tp_graph::segments::active() {
            let given = std::slice::from_raw_parts(args, nargs);
            let flat: Option<FlatArgs<'_>> = given.iter().map(|&obj| simple(obj)).collect();
            if let Some(done) = flat.and_then(|flat| long(inner, &flat)) {
                return done;
            }
        }
        slow(inner, args, nargs, kwnames)
    }
}

/// # Safety
/// The interpreter lock is held.
unsafe fn long(inner: &Inner, args: &[Arg<'_>]) -> Option<Result<Obj>> {
    let mut rets = Rets::new();
    let entry = match inner.core.call(args, &mut rets) {
        Ok(entry) => entry?,
        Err(_) if inner.segments.is_some() && inner.core.find(args).is_some_and(|e| e.is_pure()) => {
            return None;
        }
        Err(e) => return Some(Err(e)),
    };
    let results = entry.structure().downcast_ref::<Results>()?;
    // SAFETY: lock held.
    Some(match results.tree {
        Tree::Leaf => Ok(unsafe { ret::finish(rets, None) }),
        _ => rebuild(&results.tree, rets),
    })
}

#[inline(always)]
unsafe fn simple<'a>(obj: Obj) -> Option<Arg<'a>> {
    // SAFETY: live object.
    unsafe {
        if shell::is_tensor(obj) {
            let t = shell::tensor_of(obj);
            return (!t.is_batched()).then_some(Arg::Tensor(t));
        }
        let ty = x::type_of(obj);
        if ty == &raw mut ffi::PyFloat_Type {
            return Some(Arg::Float(ffi::PyFloat_AsDouble(obj)));
        }
        if ty == &raw mut ffi::PyLong_Type {
            return match crate::hot::convert::number(obj) {
                Ok(Some(Scalar::Int(v))) => Some(Arg::Int(v)),
                _ => None,
            };
        }
        None
    }
}

#[cold]
fn rebuild(tree: &Tree, rets: Rets) -> Result<Obj> {
    error::attached(|py| {
        let mut values = rets.into_iter();
        tree::unflatten(py, tree, &mut values).map(Bound::into_ptr).map_err(error::from_py)
    })
}

#[inline(never)]
unsafe fn slow(inner: &Inner, args: *const Obj, nargs: usize, kwnames: Obj) -> Result<Obj> {
    error::attached(|py| {
        // SAFETY: the vectorcall convention.
        let call = unsafe { collect(py, args, nargs, kwnames) }.map_err(error::from_py)?;
        let mut rets = Rets::new();
        let (found, ran) = find::run(py, inner, &call, &mut rets)?;
        match found {
            Found::Entry(entry, _, is_new) => {
                // SAFETY: a live function held by the object.
                let func = unsafe { Bound::from_borrowed_ptr(py, inner.func) };
                if let Err(e) = ran {
                    return match &inner.segments {
                        // The function may catch what an op raises by the values it meets.
                        Some(store) if e.kind() != ErrorKind::Host && entry.is_pure() => {
                            segmented::call(py, &func, (store, None), &call).map(Bound::into_ptr)
                        }
                        _ => Err(e),
                    };
                }
                if is_new {
                    notice::ran(py, &func, &inner.core).map_err(error::from_py)?;
                }
                match entry.structure().downcast_ref::<Results>() {
                    Some(results) => rebuild(&results.tree, rets),
                    None => Err(Error::internal("TP9111", "an entry without a structure")),
                }
            }
            Found::Eager => {
                // Held for the call: the collector may clear the object meanwhile.
                // SAFETY: a live function held by the object.
                let func = unsafe { Bound::from_borrowed_ptr(py, inner.func) };
                let out = x::require_stack().and_then(|()| func.call(&call.args, call.kwargs.as_ref()));
                out.map(Bound::into_ptr).map_err(error::from_py)
            }
            Found::Segments(store, suspicion) => {
                // SAFETY: a live function held by the object.
                let func = unsafe { Bound::from_borrowed_ptr(py, inner.func) };
                segmented::call(py, &func, (&store, suspicion), &call).map(Bound::into_ptr)
            }
        }
    })
}

unsafe fn collect<'py>(py: Python<'py>, args: *const Obj, nargs: usize, kwnames: Obj) -> PyResult<Call<'py>> {
    // SAFETY: borrowed live objects.
    unsafe {
        let item = |i: usize| Bound::from_borrowed_ptr(py, *args.add(i));
        let positional = PyTuple::new(py, (0..nargs).map(item))?;
        if kwnames.is_null() {
            return Ok(Call { args: positional, kwargs: None });
        }
        let names = Bound::from_borrowed_ptr(py, kwnames).cast_into::<PyTuple>()?;
        let kwargs = PyDict::new(py);
        for (k, name) in names.iter().enumerate() {
            kwargs.set_item(name, item(nargs + k))?;
        }
        Ok(Call { args: positional, kwargs: Some(kwargs) })
    }
}

pub fn prepare(obj: &Bound<'_, PyAny>, call: Call<'_>) -> Result<()> {
    if tp_graph::capture::active() {
        let mut e = Error::capture("TP4011", "a function cannot be compiled while another one is captured");
        if let Some(at) = tp_dispatch::host::location() {
            e = e.note(format!("captured at {at}"));
        }
        return Err(e.note("prepare it before the capture, or call it: a call is inlined"));
    }
    let _at_once = crate::settle::leave("explain()")?;
    let inner = inner(obj).map_err(error::from_py)?;
    find_or_build(obj.py(), inner, &call).map(drop)
}

unsafe extern "C" fn dealloc(op: Obj) {
    // SAFETY: last reference gone, lock held.
    unsafe {
        x::PyObject_GC_UnTrack(op.cast());
        let this = op.cast::<CompiledObject>();
        if !(*this).weak.is_null() {
            ffi::PyObject_ClearWeakRefs(op);
        }
        ffi::Py_CLEAR(&raw mut (*this).dict);
        let inner = Box::from_raw((*this).inner);
        ffi::Py_XDECREF(inner.func);
        ffi::Py_XDECREF(inner.assumed);
        // Entries hold Python objects: PyO3 must know that the lock is held.
        error::attached(|_| drop(inner));
        let ty = x::type_of(op);
        x::PyObject_GC_Del(op.cast());
        ffi::Py_DECREF(ty.cast());
    }
}

unsafe extern "C" fn traverse(op: Obj, visit: ffi::visitproc, arg: *mut c_void) -> c_int {
    // SAFETY: called by the collector on a live object.
    unsafe {
        let this = op.cast::<CompiledObject>();
        for obj in [x::type_of(op).cast(), (*this).dict, (*(*this).inner).func, (*(*this).inner).assumed] {
            if !obj.is_null() {
                let r = visit(obj, arg);
                if r != 0 {
                    return r;
                }
            }
        }
        let mut stopped = 0;
        for guards in python_guards(&(*(*this).inner).core) {
            guards.each(&mut |obj| {
                if stopped == 0 {
                    stopped = visit(obj, arg);
                }
            });
        }
        stopped
    }
}

/// What the entries guard of Python's state, which owns objects.
fn python_guards(core: &CompiledFunction) -> impl Iterator<Item = &PyGuards> {
    core.host_guards().filter_map(|guards| guards.as_any().downcast_ref())
}

unsafe extern "C" fn clear(op: Obj) -> c_int {
    // SAFETY: called by the collector on a live object.
    unsafe {
        let this = op.cast::<CompiledObject>();
        ffi::Py_CLEAR(&raw mut (*this).dict);
        let func = std::mem::replace(&mut (*(*this).inner).func, ffi::Py_NewRef(ffi::Py_None()));
        ffi::Py_XDECREF(func);
        let assumed = std::mem::replace(&mut (*(*this).inner).assumed, ffi::PyTuple_New(0));
        ffi::Py_XDECREF(assumed);
        // Whoever is called while objects go may come back, to an entry without guards that hold.
        error::attached(|_| python_guards(&(*(*this).inner).core).for_each(|guards| guards.clear()));
    }
    0
}

/// Binds like a function when it is a class attribute.
unsafe extern "C" fn descr_get(op: Obj, instance: Obj, _owner: Obj) -> Obj {
    // SAFETY: lock held.
    unsafe {
        if instance.is_null() || instance == ffi::Py_None() {
            return ffi::Py_NewRef(op);
        }
        ffi::PyObject_CallMethod(op, c"_bind".as_ptr(), c"(O)".as_ptr(), instance)
    }
}

/// Makes the type.
///
/// # Safety
/// Lock held; called once at import.
pub unsafe fn init_type() -> *mut ffi::PyTypeObject {
    let made = HeapType {
        name: c"tensorplay.compiler.CompiledFunction",
        basicsize: size_of::<CompiledObject>(),
        flags: ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION | x::HAVE_VECTORCALL,
        offsets: &[
            (c"__vectorcalloffset__", std::mem::offset_of!(CompiledObject, vectorcall)),
            (c"__dictoffset__", std::mem::offset_of!(CompiledObject, dict)),
            (c"__weaklistoffset__", std::mem::offset_of!(CompiledObject, weak)),
        ],
        slots: vec![
            slot(ffi::Py_tp_dealloc, dealloc as *mut c_void),
            slot(ffi::Py_tp_traverse, traverse as *mut c_void),
            slot(ffi::Py_tp_clear, clear as *mut c_void),
            slot(ffi::Py_tp_call, x::PyVectorcall_Call as *mut c_void),
            slot(ffi::Py_tp_descr_get, descr_get as *mut c_void),
        ],
    };
    // SAFETY: lock held; the functions above have their slots' types.
    unsafe { made.create_in(&TYPE) }
}
