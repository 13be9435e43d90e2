//! Arguments of the types that the dispatcher only carries: dicts, tuples, nested lists, lists of strings and devices.
//! Their structure is checked against the schema, and what a kernel gets is made anew, with every leaf converted.

use super::convert;
use super::ffi::{self as x, Obj};
use super::{rank, shell};
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
    let mut tensors = Tensors::default();
    // SAFETY: live object; the reference is given back once `opaque` holds its own.
    unsafe {
        let Some(made) = convert(ty, obj, &mut tensors)? else { return Ok(None) };
        let made = Made(made);
        if tensors.with_grad && state::is_grad_enabled() {
            return Err(Error::autograd(
                "TP3023",
                format!("argument '{}' ({}) holds a tensor that requires a gradient", p.name, p.type_text),
            )
            .note(
                "gradients go through Tensor, Tensor? and lists of them: declare it so, or pass x.detach()",
            ));
        }
        Ok(Some(Value::Host(types::opaque(made.0))))
    }
}

/// A result of one of these types as a carried object; None when it does not fit or holds tensors, which have to be
/// results of their own.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn result(ty: &ArgType, obj: Obj) -> Result<Option<Value>> {
    let mut tensors = Tensors::default();
    // SAFETY: as above.
    unsafe {
        let Some(made) = convert(ty, obj, &mut tensors)? else { return Ok(None) };
        let made = Made(made);
        Ok((!tensors.any).then(|| Value::Host(types::opaque(made.0))))
    }
}

/// What was met on the way down.
#[derive(Default)]
struct Tensors {
    any: bool,
    with_grad: bool,
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
unsafe fn convert(ty: &ArgType, obj: Obj, tensors: &mut Tensors) -> Result<Option<Obj>> {
    use ArgType as T;
    // SAFETY: live objects; every new reference is owned by the container or given out.
    unsafe {
        let itself = || ffi::Py_NewRef(obj);
        let made = |v: Option<Value>| v.map(|v| convert::value_to_object(&v)).filter(|o| !o.is_null());
        Ok(match ty {
            T::Any | T::AnyEnumType | T::AnyClassType | T::Class(_) | T::Var(_) | T::Capsule => {
                if shell::is_tensor(obj) {
                    tensors.meet(obj);
                }
                Some(itself())
            }
            T::NoneType => (obj == ffi::Py_None()).then(itself),
            T::Optional(_) if obj == ffi::Py_None() => Some(itself()),
            T::Optional(inner) => convert(inner, obj, tensors)?,
            T::Tensor => shell::is_tensor(obj).then(|| {
                tensors.meet(obj);
                itself()
            }),
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
                    Some(items) => list(items.iter().map(|&o| (&**element, o)), tensors)?,
                    None => None,
                }
            }
            T::Tuple(types) => match convert::sequence(obj).filter(|v| v.len() == types.len()) {
                Some(items) => {
                    let made = list(types.iter().zip(items.iter().copied()), tensors)?.map(Made);
                    made.map(|made| ffi::PyList_AsTuple(made.0))
                }
                None => None,
            },
            T::Dict(pair) => dict(&pair.0, &pair.1, obj, tensors)?,
            T::Union(members) => {
                let best = members.iter().filter_map(|ty| Some((rank::cost(ty, obj)?, ty)));
                match best.min_by_key(|(cost, _)| *cost) {
                    Some((_, ty)) => convert(ty, obj, tensors)?,
                    None => None,
                }
            }
            // Nothing in Python stands for these here.
            _ => None,
        })
    }
}

impl Tensors {
    unsafe fn meet(&mut self, obj: Obj) {
        self.any = true;
        // SAFETY: a live tensor.
        self.with_grad |= unsafe { shell::tensor_of(obj).requires_grad() };
    }
}

unsafe fn list<'t>(
    items: impl Iterator<Item = (&'t ArgType, Obj)>,
    tensors: &mut Tensors,
) -> Result<Option<Obj>> {
    // SAFETY: a fresh list that nobody else sees; items are kept alive by reading them before anything runs.
    unsafe {
        let items: Vec<(&ArgType, Made)> = items.map(|(ty, o)| (ty, Made(ffi::Py_NewRef(o)))).collect();
        let made = Made(ffi::PyList_New(0));
        for (ty, obj) in items {
            let Some(item) = convert(ty, obj.0, tensors)?.map(Made) else { return Ok(None) };
            if ffi::PyList_Append(made.0, item.0) < 0 {
                return Err(error::fetch());
            }
        }
        Ok(Some(ffi::Py_NewRef(made.0)))
    }
}

unsafe fn dict(key: &ArgType, value: &ArgType, obj: Obj, tensors: &mut Tensors) -> Result<Option<Obj>> {
    // SAFETY: the list of items is ours; the dict is fresh.
    unsafe {
        if ffi::PyDict_Check(obj) == 0 {
            return Ok(None);
        }
        let (items, made) = (Made(ffi::PyDict_Items(obj)), Made(ffi::PyDict_New()));
        for i in 0..ffi::PyList_Size(items.0) {
            let item = ffi::PyList_GetItem(items.0, i);
            let Some(k) = convert(key, ffi::PyTuple_GetItem(item, 0), tensors)?.map(Made) else {
                return Ok(None);
            };
            let Some(v) = convert(value, ffi::PyTuple_GetItem(item, 1), tensors)?.map(Made) else {
                return Ok(None);
            };
            if ffi::PyDict_SetItem(made.0, k.0, v.0) < 0 {
                return Err(error::fetch());
            }
        }
        Ok(Some(ffi::Py_NewRef(made.0)))
    }
}
