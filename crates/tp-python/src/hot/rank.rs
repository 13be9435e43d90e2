//! How well an object fits a schema type, by its type alone: no code of the object runs. Overloads are tried in that
//! order; whether an object is taken at all is `convert`'s business.

use super::convert;
use super::ffi::{self as x, Obj};
use super::shell;
use crate::types;
use pyo3::ffi;
use tp_dispatch::schema::ArgType;
use tp_tensor::dtype::Category;

/// One step of conversion. `T?` costs less than a step more than `T`, so that it loses among equals.
const STEP: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    Bool,
    Int,
    Float,
}

/// 0 for an object of the very type, more for conversions, None where the types do not go together.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn cost(ty: &ArgType, obj: Obj) -> Option<u32> {
    use ArgType as T;
    // SAFETY: live object.
    unsafe {
        let none = obj == ffi::Py_None();
        match ty {
            T::Any | T::AnyEnumType | T::AnyClassType | T::Class(_) | T::Var(_) | T::Capsule => {
                Some(20 * STEP)
            }
            T::NoneType => none.then_some(0),
            T::Optional(_) if none => Some(0),
            T::Optional(inner) => cost(inner, obj).map(|c| c + 1),
            _ if none => None,
            T::Tensor => shell::is_tensor(obj).then_some(0),
            T::Str => convert::is_str(obj).then_some(0),
            T::ScalarType if types::is_dtype(obj) => Some(0),
            T::ScalarType => types::dtype_of(obj).map(|_| STEP),
            T::Device if convert::is_str(obj) => Some(2 * STEP),
            T::Device => matches!(types::device_of(obj), Ok(Some(_))).then_some(0),
            T::Complex if ffi::PyComplex_Check(obj) != 0 => Some(0),
            T::List(element, size) => list(element, *size, obj),
            T::Tuple(items) => {
                let given = convert::sequence(obj).filter(|given| given.len() == items.len())?;
                items.iter().zip(given.iter()).try_fold(0, |worst, (ty, o)| Some(cost(ty, *o)?.max(worst)))
            }
            T::Dict(_) => (ffi::PyDict_Check(obj) != 0).then_some(0),
            T::Union(members) => members.iter().filter_map(|ty| cost(ty, obj)).min(),
            _ => number(ty, obj),
        }
    }
}

unsafe fn list(element: &ArgType, size: Option<u32>, obj: Obj) -> Option<u32> {
    // SAFETY: live object.
    unsafe {
        let Some(items) = convert::sequence(obj) else {
            let repeated = size.is_some_and(|n| n > 0).then(|| number(element, obj)).flatten();
            return repeated.map(|c| c + 3 * STEP);
        };
        if size.is_some_and(|n| n > 1 && n as usize != items.len()) {
            return None;
        }
        items.iter().try_fold(0, |worst, o| Some(cost(element, *o)?.max(worst)))
    }
}

unsafe fn number(ty: &ArgType, obj: Obj) -> Option<u32> {
    use ArgType as T;
    // SAFETY: live object.
    let (found, extra) = unsafe { kind(obj)? };
    let steps = match (ty, found) {
        (T::Int | T::SymInt, Number::Int)
        | (T::Float, Number::Float)
        | (T::Bool | T::SymBool, Number::Bool) => 0,
        (T::Scalar | T::Number, _) => 1,
        (T::Float, Number::Int) => 2,
        (T::Int | T::SymInt, Number::Bool) | (T::Complex, _) => 3,
        (T::Float, Number::Bool) => 4,
        (T::Bool | T::SymBool, Number::Int) => 5,
        _ => return None,
    };
    Some(steps * STEP + extra)
}

/// What kind of number an object is, and what reading it costs: subclasses and NumPy's more than Python's own, tensors
/// of no dimension most.
unsafe fn kind(obj: Obj) -> Option<(Number, u32)> {
    // SAFETY: live object.
    unsafe {
        let ty = x::type_of(obj);
        if shell::is_tensor(obj) {
            let t = shell::tensor_of(obj);
            let found = match t.dtype().category() {
                Category::Bool => Number::Bool,
                Category::Int => Number::Int,
                Category::Float => Number::Float,
            };
            return (t.ndim() == 0).then_some((found, 6 * STEP));
        }
        let plain = |n: Number, exact: *mut ffi::PyTypeObject| Some((n, u32::from(ty != exact)));
        if ty == &raw mut ffi::PyBool_Type {
            return Some((Number::Bool, 0));
        }
        if ffi::PyFloat_Check(obj) != 0 {
            return plain(Number::Float, &raw mut ffi::PyFloat_Type);
        }
        if ffi::PyLong_Check(obj) != 0 {
            return plain(Number::Int, &raw mut ffi::PyLong_Type);
        }
        if convert::is_str(obj) || convert::sequence(obj).is_some() {
            return None;
        }
        if ffi::PyIndex_Check(obj) != 0 {
            return Some((Number::Int, 1));
        }
        if x::type_name(obj).starts_with("bool") {
            return Some((Number::Bool, 1));
        }
        let floats = ffi::PyObject_HasAttrString(ty.cast(), c"__float__".as_ptr()) != 0;
        floats.then_some((Number::Float, 1))
    }
}
