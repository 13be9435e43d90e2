//! Arguments of the types that the dispatcher only carries: dicts, tuples, nested lists, lists of strings and devices,
//! unions and `Any`. Their structure is checked against the schema, and what a kernel gets is made anew, with every leaf
//! converted. A single tensor, number or text is carried as what it is, so that every layer sees it; what other objects
//! hold is found by `nest`.

use super::convert;
use super::ffi::{self as x, Obj};
use super::{nest, rank, shell};
use crate::{error, types};
use pyo3::ffi;
use tp_dispatch::bind::Param;
use tp_dispatch::schema::ArgType;
use tp_dispatch::{Error, Result, Value, state};
use tp_tensor::Scalar;

/// The argument as a carried object; None when its structure is not the declared one.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn argument(p: &Param, obj: Obj) -> Result<Option<Value>> {
    let Some(ty) = &p.opaque else { return Ok(None) };
    // SAFETY: live object; the reference is given back once the value holds its own.
    let Some(value) = (unsafe { carried(ty, obj)? }) else { return Ok(None) };
    let mut with_grad = false;
    value.for_each_tensor(|t| with_grad |= t.requires_grad());
    if with_grad && state::is_grad_enabled() {
        return Err(Error::autograd(
            "TP3023",
            format!("argument '{}' ({}) holds a tensor that requires a gradient", p.name, p.type_text),
        )
        .note("gradients go through Tensor, Tensor? and lists of them: declare it so, or pass x.detach()"));
    }
    Ok(Some(value))
}

/// What may be passed for an argument of a type of which there are no objects here.
#[cold]
pub fn stand_in(p: &Param) -> Option<String> {
    use ArgType as T;
    let ty = p.opaque.as_ref()?.without_optional();
    let ways = match ty {
        T::Layout | T::MemoryFormat | T::QScheme => "an int, its code (0 for strided and contiguous_format)",
        T::Generator | T::Stream | T::Storage | T::Quantizer if p.optional => "None",
        T::Generator | T::Stream | T::Storage | T::Quantizer => "nothing: the argument has to be optional",
        _ => return None,
    };
    Some(format!("there are no objects of type {ty} here: what can be passed is {ways}"))
}

/// A result of one of these types; None when it does not fit. A container of tensors is none: what they share and their
/// gradients are known only of results of their own.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn result(ty: &ArgType, obj: Obj) -> Result<Option<Value>> {
    // SAFETY: as above.
    match unsafe { carried(ty, obj)? } {
        Some(Value::Host(h)) if !h.tensors().is_empty() => {
            Err(Error::argument("TP3202", "it holds a tensor: declare every tensor as a result of its own"))
        }
        other => Ok(other),
    }
}

unsafe fn carried(ty: &ArgType, obj: Obj) -> Result<Option<Value>> {
    // SAFETY: live objects.
    unsafe {
        let Some(made) = convert(ty, obj)? else { return Ok(None) };
        let made = Made(made);
        match plain(made.0)? {
            Some(value) => Ok(Some(value)),
            None => Ok(Some(Value::Host(types::opaque(made.0, nest::tensors_in(made.0)?)))),
        }
    }
}

/// A tensor, or a number or text of Python's own, as a value that every layer knows.
unsafe fn plain(obj: Obj) -> Result<Option<Value>> {
    // SAFETY: live object.
    unsafe {
        if shell::is_tensor(obj) {
            return Ok(Some(Value::Tensor(shell::tensor_of(obj).clone())));
        }
        let ty = x::type_of(obj);
        Ok(match ty {
            t if t == &raw mut ffi::PyBool_Type => Some(Value::Bool(obj == ffi::Py_True())),
            t if t == &raw mut ffi::PyFloat_Type => Some(Value::Float(ffi::PyFloat_AsDouble(obj))),
            // One that needs more bits stays an object.
            t if t == &raw mut ffi::PyLong_Type => convert::int(obj).ok().flatten().map(Value::Int),
            t if t == &raw mut ffi::PyUnicode_Type => x::str_of(obj).map(|s| Value::Str(s.into())),
            _ => None,
        })
    }
}

/// An owned reference.
struct Made(Obj);

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: owned, lock held.
        unsafe { ffi::Py_DECREF(self.0) };
    }
}

/// A new reference to what a kernel gets for `obj`; None when it does not fit.
unsafe fn convert(ty: &ArgType, obj: Obj) -> Result<Option<Obj>> {
    use ArgType as T;
    // SAFETY: live objects; every new reference is owned by the container or given out.
    unsafe {
        let itself = || ffi::Py_NewRef(obj);
        let made = |v: Option<Value>| v.map(|v| convert::value_to_object(&v)).filter(|o| !o.is_null());
        Ok(match ty {
            T::Any | T::AnyEnumType | T::AnyClassType | T::Class(_) | T::Var(_) | T::Capsule => {
                Some(itself())
            }
            T::NoneType => (obj == ffi::Py_None()).then(itself),
            T::Optional(_) if obj == ffi::Py_None() => Some(itself()),
            T::Optional(inner) => convert(inner, obj)?,
            T::Tensor => shell::is_tensor(obj).then(itself),
            T::Int | T::SymInt => made(convert::int(obj)?.map(|v| Value::Scalar(Scalar::Int(v)))),
            T::Float => made(convert::float(obj)?.map(Value::Float)),
            T::Bool | T::SymBool => made(convert::boolean(obj)?.map(Value::Bool)),
            T::Scalar | T::Number => made(convert::number(obj)?.map(Value::Scalar)),
            T::Str => {
                made(convert::is_str(obj).then(|| x::str_of(obj)).flatten().map(|s| Value::Str(s.into())))
            }
            T::ScalarType => made(types::dtype_of(obj).map(Value::DType)),
            T::Device => made(types::device_of(obj)?.map(Value::Device)),
            T::Complex if ffi::PyComplex_Check(obj) != 0 => Some(itself()),
            T::Complex => convert::float(obj)?.map(|v| ffi::PyComplex_FromDoubles(v, 0.0)),
            T::List(element, size) => {
                let items =
                    convert::sequence(obj).filter(|v| size.is_none_or(|n| n < 2 || n as usize == v.len()));
                match items {
                    Some(items) => list(items.iter().map(|&o| (&**element, o)))?,
                    None => None,
                }
            }
            T::Tuple(types) => match convert::sequence(obj).filter(|v| v.len() == types.len()) {
                Some(items) => {
                    let made = list(types.iter().zip(items.iter().copied()))?.map(Made);
                    made.map(|made| ffi::PyList_AsTuple(made.0))
                }
                None => None,
            },
            T::Dict(pair) => dict(&pair.0, &pair.1, obj)?,
            T::Union(members) => {
                let best = members.iter().filter_map(|ty| Some((rank::cost(ty, obj)?, ty)));
                match best.min_by_key(|(cost, _)| *cost) {
                    Some((_, ty)) => convert(ty, obj)?,
                    None => None,
                }
            }
            // What schemas write as a word (`strided`, `contiguous_format`) is its code.
            T::Layout | T::MemoryFormat | T::QScheme if x::type_of(obj) == &raw mut ffi::PyLong_Type => {
                made(convert::int(obj)?.map(Value::Int))
            }
            // Nothing in Python stands for these here.
            _ => None,
        })
    }
}

unsafe fn list<'t>(items: impl Iterator<Item = (&'t ArgType, Obj)>) -> Result<Option<Obj>> {
    // SAFETY: a fresh list that nobody else sees; items are kept alive by reading them before anything runs.
    unsafe {
        let items: Vec<(&ArgType, Made)> = items.map(|(ty, o)| (ty, Made(ffi::Py_NewRef(o)))).collect();
        let made = Made(ffi::PyList_New(0));
        for (ty, obj) in items {
            let Some(item) = convert(ty, obj.0)?.map(Made) else { return Ok(None) };
            if ffi::PyList_Append(made.0, item.0) < 0 {
                return Err(error::fetch());
            }
        }
        Ok(Some(ffi::Py_NewRef(made.0)))
    }
}

unsafe fn dict(key: &ArgType, value: &ArgType, obj: Obj) -> Result<Option<Obj>> {
    // SAFETY: the list of items is ours; the dict is fresh.
    unsafe {
        if ffi::PyDict_Check(obj) == 0 {
            return Ok(None);
        }
        let (items, made) = (Made(ffi::PyDict_Items(obj)), Made(ffi::PyDict_New()));
        for i in 0..ffi::PyList_Size(items.0) {
            let item = ffi::PyList_GetItem(items.0, i);
            let Some(k) = convert(key, ffi::PyTuple_GetItem(item, 0))?.map(Made) else {
                return Ok(None);
            };
            let Some(v) = convert(value, ffi::PyTuple_GetItem(item, 1))?.map(Made) else {
                return Ok(None);
            };
            if ffi::PyDict_SetItem(made.0, k.0, v.0) < 0 {
                return Err(error::fetch());
            }
        }
        Ok(Some(ffi::Py_NewRef(made.0)))
    }
}
