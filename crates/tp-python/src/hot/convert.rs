//! Single objects to values and back. What each kind accepts follows what people know: a bool is an int, an int is
//! a float, a 0-d tensor is a number, NumPy scalars are numbers; a float is never an int, None is never a tensor.

use super::bind::Scratch;
use super::ffi::{self as x, Obj};
use super::sizes;
use super::{nested, refusals, shell};
use crate::{error, types};
use pyo3::ffi;
use smallvec::SmallVec;
use std::ptr;
use tp_dispatch::bind::{Param, ParamKind};
use tp_dispatch::{Arg, Error, Result, Value, state};
use tp_tensor::{DType, Scalar, Tensor, symbols};

/// # Safety
/// The interpreter lock is held; `obj` and `scratch` outlive the argument.
pub unsafe fn object_to_arg<'a>(op: &str, p: &Param, obj: Obj, scratch: &mut Scratch) -> Result<Arg<'a>> {
    // SAFETY: live objects throughout.
    unsafe {
        if obj == ffi::Py_None() {
            return if p.optional { Ok(Arg::None) } else { Err(refusals::wrong(op, p, obj)) };
        }
        scratch.converted |= !is_exact(p.kind, obj);
        let found = read(op, p, obj, scratch).map_err(|e| refusals::about(op, p, e))?;
        found.ok_or_else(|| refusals::wrong(op, p, obj))
    }
}

unsafe fn read<'a>(op: &str, p: &Param, obj: Obj, scratch: &mut Scratch) -> Result<Option<Arg<'a>>> {
    // SAFETY: live objects throughout.
    unsafe {
        Ok(match p.kind {
            ParamKind::Tensor => shell::is_tensor(obj).then(|| Arg::Tensor(shell::tensor_of(obj))),
            ParamKind::Scalar => number(obj)?.map(Arg::Scalar),
            ParamKind::Int => match sizes::integer(p, obj)? {
                Some(v) => {
                    scratch.symbolic |= symbols::given(&[v]);
                    Some(Arg::Int(v))
                }
                None => None,
            },
            ParamKind::Float => float(obj)?.map(Arg::Float),
            ParamKind::Bool => boolean(obj)?.map(Arg::Bool),
            ParamKind::Str => is_str(obj).then(|| x::str_of(obj).map(Arg::Str)).flatten(),
            ParamKind::DType => types::dtype_of(obj).map(Arg::DType),
            ParamKind::Device => types::device_of(obj)?.map(Arg::Device),
            ParamKind::Opaque => nested::argument(p, obj)?.map(|v| scratch.keep(v)),
            _ => list(op, p, obj)?.map(|v| {
                scratch.symbolic |= matches!(&v, Value::Ints(ints) if symbols::given(ints));
                scratch.keep(v)
            }),
        })
    }
}

/// Whether an object is what a kernel gets for it: of the very type, so that it needs no conversion. Lists are always
/// made anew, for the caller's own is not the kernel's to change.
#[inline]
unsafe fn is_exact(kind: ParamKind, obj: Obj) -> bool {
    // SAFETY: live object.
    let ty = unsafe { x::type_of(obj) };
    let (float, int) = (&raw mut ffi::PyFloat_Type, &raw mut ffi::PyLong_Type);
    let boolean = &raw mut ffi::PyBool_Type;
    match kind {
        ParamKind::Tensor => true,
        ParamKind::Scalar => ty == float || ty == int || ty == boolean,
        ParamKind::Int => ty == int,
        ParamKind::Float => ty == float,
        ParamKind::Bool => ty == boolean,
        ParamKind::Str => ty == &raw mut ffi::PyUnicode_Type,
        ParamKind::DType => types::is_dtype(obj),
        // SAFETY: live object.
        ParamKind::Device => unsafe { !is_str(obj) },
        _ => false,
    }
}

pub unsafe fn is_str(obj: Obj) -> bool {
    // SAFETY: live object.
    unsafe { ffi::PyUnicode_Check(obj) != 0 }
}

/// A Python or NumPy number, or a 0-d tensor.
///
/// # Safety
/// Live object, lock held.
#[inline]
pub unsafe fn number(obj: Obj) -> Result<Option<Scalar>> {
    // SAFETY: live object.
    unsafe {
        let ty = x::type_of(obj);
        if ty == &raw mut ffi::PyFloat_Type {
            return Ok(Some(Scalar::Float(ffi::PyFloat_AsDouble(obj))));
        }
        if ty == &raw mut ffi::PyBool_Type {
            return Ok(Some(Scalar::Bool(obj == ffi::Py_True())));
        }
        if ty == &raw mut ffi::PyLong_Type {
            return long(obj).map(|v| Some(Scalar::Int(v)));
        }
        number_slow(obj)
    }
}

#[cold]
unsafe fn number_slow(obj: Obj) -> Result<Option<Scalar>> {
    // SAFETY: live object.
    unsafe {
        if shell::is_tensor(obj) {
            let t = shell::tensor_of(obj);
            return if t.ndim() == 0 { only_value(t).map(Some) } else { Ok(None) };
        }
        if ffi::PyFloat_Check(obj) != 0 {
            return Ok(Some(Scalar::Float(ffi::PyFloat_AsDouble(obj))));
        }
        if is_str(obj) || is_sized(obj)? {
            return Ok(None);
        }
        if ffi::PyIndex_Check(obj) != 0 {
            return index(obj).map(|v| v.map(Scalar::Int));
        }
        let name = x::type_name(obj);
        if !is_real(obj, &name) {
            return Ok(None);
        }
        if name.starts_with("bool") {
            let truth = ffi::PyObject_IsTrue(obj);
            return if truth < 0 { unfit() } else { Ok(Some(Scalar::Bool(truth == 1))) };
        }
        if ffi::PyObject_HasAttrString(obj, c"__float__".as_ptr()) != 0 {
            let v = ffi::PyFloat_AsDouble(obj);
            return if v == -1.0 && !ffi::PyErr_Occurred().is_null() {
                unfit()
            } else {
                Ok(Some(Scalar::Float(v)))
            };
        }
        Ok(None)
    }
}

/// The number that a 0-d tensor is given for. Nothing is recorded of it, so that a gradient would be lost.
fn only_value(t: &Tensor) -> Result<Scalar> {
    let is_plain = state::is_in_foreign_kernel() && state::is_kernel_argument(t);
    if t.requires_grad() && state::is_grad_enabled() && !is_plain {
        let message =
            "a tensor that requires a gradient was given for a number, through which no gradient goes";
        return Err(Error::argument("TP1044", message)
            .note("pass it where a tensor is expected, or detach() it, or call item() under no_grad()"));
    }
    types::item(t)
}

/// Whether a float says all of what converts to one. A complex number would lose a part, and a time its unit.
unsafe fn is_real(obj: Obj, name: &str) -> bool {
    const OTHERS: [&str; 3] = ["complex", "clongdouble", "timedelta"];
    // SAFETY: a live object.
    let is_complex = unsafe { ffi::PyComplex_Check(obj) != 0 };
    !is_complex && !OTHERS.iter().any(|other| name.starts_with(other))
}

unsafe fn is_sized(obj: Obj) -> Result<bool> {
    // SAFETY: live object. A NumPy scalar has no length; an array with elements is no number.
    unsafe {
        let n = ffi::PyObject_Size(obj);
        if n < 0 { unfit::<()>().map(|_| false) } else { Ok(true) }
    }
}

/// After a failed conversion: a TypeError says that the object is not of the kind asked for, anything else is the
/// object's own exception and goes to the caller as it is.
unsafe fn unfit<T>() -> Result<Option<T>> {
    // SAFETY: lock held, an exception is set.
    unsafe {
        if ffi::PyErr_ExceptionMatches(ffi::PyExc_TypeError) == 0 {
            return Err(error::fetch());
        }
        ffi::PyErr_Clear();
    }
    Ok(None)
}

unsafe fn long(obj: Obj) -> Result<i64> {
    // SAFETY: an exact int.
    unsafe {
        let mut overflow = 0;
        let v = ffi::PyLong_AsLongLongAndOverflow(obj, &mut overflow);
        if overflow != 0 {
            return Err(Error::argument("TP1007", "an integer does not fit in 64 bits"));
        }
        Ok(v)
    }
}

unsafe fn index(obj: Obj) -> Result<Option<i64>> {
    // SAFETY: live object.
    unsafe {
        let n = ffi::PyNumber_Index(obj);
        if n.is_null() {
            return unfit();
        }
        let v = long(n);
        ffi::Py_DECREF(n);
        v.map(Some)
    }
}

/// # Safety
/// Live object, lock held.
#[inline]
pub unsafe fn int(obj: Obj) -> Result<Option<i64>> {
    // SAFETY: live object.
    unsafe {
        if x::type_of(obj) == &raw mut ffi::PyLong_Type {
            return long(obj).map(Some);
        }
        Ok(match number(obj)? {
            Some(Scalar::Int(v)) => Some(v),
            Some(Scalar::Bool(v)) => Some(v as i64),
            _ => None,
        })
    }
}

/// # Safety
/// Live object, lock held.
pub unsafe fn float(obj: Obj) -> Result<Option<f64>> {
    // SAFETY: live object.
    unsafe {
        if x::type_of(obj) == &raw mut ffi::PyLong_Type {
            return wide(obj).map(Some);
        }
        Ok(number(obj)?.map(|s| s.to::<f64>()))
    }
}

/// A Python int of any size as a float.
unsafe fn wide(obj: Obj) -> Result<f64> {
    // SAFETY: an exact int.
    unsafe {
        let v = ffi::PyLong_AsDouble(obj);
        if v == -1.0 && !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_Clear();
            return Err(Error::argument("TP1007", "an integer is too large for a float"));
        }
        Ok(v)
    }
}

/// A bool of Python, NumPy or a 0-d tensor; an integer is none.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn strict_boolean(obj: Obj) -> Result<Option<bool>> {
    // SAFETY: the caller's promise.
    Ok(match unsafe { number(obj)? } {
        Some(Scalar::Bool(v)) => Some(v),
        _ => None,
    })
}

/// An option of `owner` that is True or False.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn option(obj: Obj, owner: &str, name: &str) -> Result<bool> {
    // SAFETY: the caller's promise.
    unsafe {
        strict_boolean(obj)?.ok_or_else(|| {
            let got = x::type_name(obj);
            let message = format!("{owner}: argument '{name}' must be True or False, got {got}");
            Error::argument("TP1002", message)
        })
    }
}

/// As `strict_boolean`, and an integer counts as whether it is zero.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn boolean(obj: Obj) -> Result<Option<bool>> {
    // SAFETY: live object.
    Ok(match unsafe { number(obj)? } {
        Some(Scalar::Bool(v)) => Some(v),
        Some(Scalar::Int(v)) => Some(v != 0),
        _ => None,
    })
}

/// Items of a list or tuple, each held: reading one may run code that takes the others out of their list.
pub struct Items(SmallVec<[Obj; 8]>);

impl std::ops::Deref for Items {
    type Target = [Obj];
    fn deref(&self) -> &[Obj] {
        &self.0
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        // SAFETY: one reference each is ours; lock held, as when they were taken.
        self.0.iter().for_each(|item| unsafe { ffi::Py_DECREF(*item) });
    }
}

/// Elements of a list or tuple (the real ones and their subclasses); None for anything else.
///
/// # Safety
/// Live object, lock held, also while the items live.
pub unsafe fn sequence(obj: Obj) -> Option<Items> {
    // SAFETY: live object; no code runs between an item's look-up and its new reference.
    unsafe {
        let held = |item: Obj| ffi::Py_NewRef(item);
        if ffi::PyTuple_Check(obj) != 0 {
            return Some(Items(
                (0..ffi::PyTuple_Size(obj)).map(|i| held(ffi::PyTuple_GetItem(obj, i))).collect(),
            ));
        }
        if ffi::PyList_Check(obj) != 0 {
            return Some(Items(
                (0..ffi::PyList_Size(obj)).map(|i| held(ffi::PyList_GetItem(obj, i))).collect(),
            ));
        }
        None
    }
}

unsafe fn list(op: &str, p: &Param, obj: Obj) -> Result<Option<Value>> {
    // SAFETY: live objects.
    unsafe {
        let Some(items) = sequence(obj) else { return single(p, obj) };
        check_length(op, p, items.len())?;
        let out = match p.kind {
            ParamKind::Ints => Value::Ints(each(op, p, &items, |o| sizes::integer(p, o))?),
            ParamKind::Floats => Value::Floats(each(op, p, &items, |o| float(o))?),
            ParamKind::Bools => Value::Bools(each(op, p, &items, |o| boolean(o))?),
            ParamKind::Scalars => Value::Scalars(each(op, p, &items, |o| number(o))?),
            ParamKind::Tensors => Value::Tensors(each(op, p, &items, |o| tensor(o))?),
            ParamKind::OptTensors => {
                let one =
                    |o: Obj| if o == ffi::Py_None() { Ok(Some(None)) } else { Ok(tensor(o)?.map(Some)) };
                Value::OptTensors(each(op, p, &items, one)?)
            }
            _ => return Ok(None),
        };
        Ok(Some(out))
    }
}

/// A list of a declared size has that many items. Size 1 only says that a single value will do.
fn check_length(op: &str, p: &Param, n: usize) -> Result<()> {
    match p.list_size {
        Some(size) if size > 1 && n != size as usize => Err(refusals::wrong_length(op, p, size, n)),
        _ => Ok(()),
    }
}

/// Longest list that a single value is repeated into; as for defaults.
const MAX_REPEAT: u32 = 1024;

/// A single value for a list of a declared size: repeated.
unsafe fn single(p: &Param, obj: Obj) -> Result<Option<Value>> {
    let n = match p.list_size {
        Some(n) if n > 0 && n <= MAX_REPEAT => n as usize,
        _ => return Ok(None),
    };
    // SAFETY: live object.
    unsafe {
        Ok(match p.kind {
            ParamKind::Ints => sizes::integer(p, obj)?.map(|v| Value::Ints(vec![v; n].into())),
            ParamKind::Floats => float(obj)?.map(|v| Value::Floats(vec![v; n].into())),
            ParamKind::Bools => boolean(obj)?.map(|v| Value::Bools(vec![v; n].into())),
            ParamKind::Scalars => number(obj)?.map(|v| Value::Scalars(vec![v; n].into())),
            _ => None,
        })
    }
}

unsafe fn tensor(obj: Obj) -> Result<Option<Tensor>> {
    // SAFETY: live object.
    Ok(unsafe { shell::is_tensor(obj).then(|| shell::tensor_of(obj).clone()) })
}

/// Each item, read by `read`.
unsafe fn each<T, C: FromIterator<T>>(
    op: &str,
    p: &Param,
    items: &Items,
    read: impl Fn(Obj) -> Result<Option<T>>,
) -> Result<C> {
    // SAFETY: live objects, held by `items`.
    let one =
        |(i, o): (usize, &Obj)| read(*o)?.ok_or_else(|| unsafe { refusals::wrong_element(op, p, i, *o) });
    items.iter().enumerate().map(one).collect()
}

/// A new reference, or null with an exception set.
///
/// # Safety
/// The interpreter lock is held.
pub unsafe fn value_to_object(v: &Value) -> Obj {
    // SAFETY: lock held.
    unsafe { arg_to_object(v.as_arg()) }
}

/// As `value_to_object`, for a borrowed value.
///
/// # Safety
/// The interpreter lock is held.
pub unsafe fn arg_to_object(v: Arg<'_>) -> Obj {
    // SAFETY: lock held.
    unsafe {
        match v {
            Arg::None => none(),
            Arg::Tensor(t) => shell::wrap_ref(t),
            Arg::Scalar(s) => scalar_to_object(s),
            Arg::Int(v) => sizes::int_object(v),
            Arg::Float(v) => ffi::PyFloat_FromDouble(v),
            Arg::Bool(v) => ffi::PyBool_FromLong(v.into()),
            Arg::Str(s) => ffi::PyUnicode_FromStringAndSize(s.as_ptr().cast(), s.len() as isize),
            Arg::Ints(v) => list_of(v, |v| sizes::int_object(*v)),
            Arg::Floats(v) => list_of(v, |v| ffi::PyFloat_FromDouble(*v)),
            Arg::Bools(v) => list_of(v, |v| ffi::PyBool_FromLong((*v).into())),
            Arg::Scalars(v) => list_of(v, |v| scalar_to_object(*v)),
            Arg::Tensors(v) => list_of(v, |t| shell::wrap_ref(t)),
            Arg::OptTensors(v) => list_of(v, |t| t.as_ref().map_or_else(|| none(), |t| shell::wrap_ref(t))),
            Arg::DType(d) => dtype_to_object(d),
            Arg::Device(d) => types::device_object(d),
            Arg::Host(h) => types::opaque_object(h),
        }
    }
}

/// As `value_to_object`, for a value from outside of any capture, where every number is itself.
///
/// # Safety
/// The interpreter lock is held.
pub unsafe fn plain_object(v: &Value) -> Obj {
    // SAFETY: lock held.
    unsafe {
        match v {
            Value::Int(v) => ffi::PyLong_FromLongLong(*v),
            Value::Ints(v) => list_of(v, |v| ffi::PyLong_FromLongLong(*v)),
            other => value_to_object(other),
        }
    }
}

unsafe fn none() -> Obj {
    // SAFETY: lock held.
    unsafe { ffi::Py_NewRef(ffi::Py_None()) }
}

unsafe fn dtype_to_object(d: DType) -> Obj {
    // SAFETY: dtype objects are immortal singletons.
    unsafe { ffi::Py_NewRef(types::dtype_object(d)) }
}

/// # Safety
/// The interpreter lock is held.
pub unsafe fn scalar_to_object(s: Scalar) -> Obj {
    // SAFETY: lock held.
    unsafe {
        match s {
            Scalar::Bool(v) => ffi::PyBool_FromLong(v.into()),
            Scalar::Int(v) => ffi::PyLong_FromLongLong(v),
            Scalar::Float(v) => ffi::PyFloat_FromDouble(v),
        }
    }
}

unsafe fn list_of<T>(items: &[T], make: impl Fn(&T) -> Obj) -> Obj {
    // SAFETY: a fresh list whose slots are filled before anyone sees it.
    unsafe {
        let list = ffi::PyList_New(items.len() as isize);
        if list.is_null() {
            return ptr::null_mut();
        }
        for (i, item) in items.iter().enumerate() {
            let obj = make(item);
            if obj.is_null() {
                ffi::Py_DECREF(list);
                return ptr::null_mut();
            }
            ffi::PyList_SetItem(list, i as isize, obj);
        }
        list
    }
}
