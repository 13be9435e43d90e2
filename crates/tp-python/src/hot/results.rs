//! What a Python kernel or fake rule returned, as values of the declared returns. Every refusal names the op, the
//! output, the item where it is a list, what the schema wants and what came.

use super::ffi::{self as x, Obj};
use super::pykernel::Role;
use super::{convert, nested, shell};
use crate::types;
use pyo3::ffi;
use tp_dispatch::kernel::Call;
use tp_dispatch::schema::{ArgType, Return};
use tp_dispatch::{Error, ErrorKind, Result, Rets, Value, push_tensor};
use tp_tensor::{Tensor, symbols};

/// Owned result to values, by the declared returns.
///
/// # Safety
/// Lock held; takes over the reference to `out`.
#[inline(always)]
pub unsafe fn take(call: &Call<'_>, role: Role, out: Obj, rets: &mut Rets) -> Result<()> {
    let declared = call.def.schema.returns();
    // SAFETY: an owned reference, given back on every way.
    unsafe {
        if let [one] = declared
            && *one.ty() == ArgType::Tensor
            && shell::is_tensor(out)
        {
            push_tensor(rets, shell::unwrap(out));
            return Ok(());
        }
        let done = take_many(call, role, declared, out, rets);
        ffi::Py_DECREF(out);
        done
    }
}

#[cold]
unsafe fn take_many(
    call: &Call<'_>,
    role: Role,
    declared: &[Return],
    out: Obj,
    rets: &mut Rets,
) -> Result<()> {
    // SAFETY: live objects.
    unsafe {
        match declared {
            [] if out == ffi::Py_None() => Ok(()),
            [] => Err(returned(call, role, "a value", "nothing (None)", out)),
            [one] => {
                rets.push(Output { call, role, i: 0, ty: one.ty() }.value(one.ty(), out)?);
                Ok(())
            }
            many => {
                let Some(items) = convert::sequence(out) else {
                    let want = format!("a tuple of {}", many.len());
                    return Err(returned(call, role, "no tuple", &want, out));
                };
                if items.len() != many.len() {
                    let (who, got, want) = (role.text(), items.len(), many.len());
                    let message = format!("{who} returned {got} values, the schema declares {want}");
                    return Err(contract(call, "TP3201", message));
                }
                for (i, (item, ret)) in items.iter().copied().zip(many).enumerate() {
                    rets.push(Output { call, role, i, ty: ret.ty() }.value(ret.ty(), item)?);
                }
                Ok(())
            }
        }
    }
}

/// One declared return.
struct Output<'a> {
    call: &'a Call<'a>,
    role: Role,
    i: usize,
    ty: &'a ArgType,
}

impl Output<'_> {
    /// # Safety
    /// Live object, lock held.
    unsafe fn value(&self, ty: &ArgType, obj: Obj) -> Result<Value> {
        // SAFETY: the caller's promise.
        match unsafe { self.read(ty, obj) } {
            Ok(Some(v)) => Ok(v),
            // SAFETY: live object.
            Ok(None) => Err(unsafe { self.unfit(None, &self.ty.to_string(), obj) }),
            // SAFETY: live object.
            Err(e) => Err(unsafe { self.blame(None, self.ty, obj, e) }),
        }
    }

    unsafe fn read(&self, ty: &ArgType, obj: Obj) -> Result<Option<Value>> {
        use ArgType as T;
        // SAFETY: live object.
        unsafe {
            let none = obj == ffi::Py_None();
            Ok(match ty {
                T::Optional(_) | T::NoneType | T::Any if none => Some(Value::None),
                T::Optional(inner) => self.read(inner, obj)?,
                T::Tensor => shell::is_tensor(obj).then(|| Value::Tensor(shell::tensor_of(obj).clone())),
                T::Any if shell::is_tensor(obj) => Some(Value::Tensor(shell::tensor_of(obj).clone())),
                T::Int | T::SymInt => convert::int(obj)?.map(|v| Value::Int(symbols::plain(v))),
                T::Bool | T::SymBool => convert::strict_boolean(obj)?.map(Value::Bool),
                T::Float => convert::float(obj)?.map(Value::Float),
                T::Scalar | T::Number => convert::number(obj)?.map(Value::Scalar),
                T::Str => {
                    convert::is_str(obj).then(|| x::str_of(obj)).flatten().map(|s| Value::Str(s.into()))
                }
                T::ScalarType => types::dtype_of(obj).map(Value::DType),
                T::Device => types::device_of(obj)?.map(Value::Device),
                T::List(element, size) => self.list(element, *size, obj)?,
                T::Tuple(items) if items.iter().all(|t| *t == T::Tensor) => {
                    let given = convert::sequence(obj).filter(|given| given.len() == items.len());
                    given.map(|given| self.items(&T::Tensor, &given, tensor)).transpose()?.map(Value::Tensors)
                }
                _ => nested::result(ty, obj)?,
            })
        }
    }

    unsafe fn list(&self, element: &ArgType, size: Option<u32>, obj: Obj) -> Result<Option<Value>> {
        use ArgType as T;
        // SAFETY: live object.
        unsafe {
            let Some(items) = convert::sequence(obj) else { return Ok(None) };
            if size.is_some_and(|n| n > 1 && n as usize != items.len()) {
                return Ok(None);
            }
            Ok(Some(match element {
                T::Tensor => Value::Tensors(self.items(element, &items, tensor)?),
                T::Optional(inner) if **inner == T::Tensor => {
                    Value::OptTensors(self.items(element, &items, optional_tensor)?)
                }
                T::Int | T::SymInt => {
                    Value::Ints(self.items(element, &items, |o| Ok(convert::int(o)?.map(symbols::plain)))?)
                }
                T::Float => Value::Floats(self.items(element, &items, |o| convert::float(o))?),
                T::Bool => Value::Bools(self.items(element, &items, |o| convert::strict_boolean(o))?),
                T::Scalar | T::Number => Value::Scalars(self.items(element, &items, |o| convert::number(o))?),
                _ => return nested::result(&T::List(Box::new(element.clone()), size), obj),
            }))
        }
    }

    unsafe fn items<T>(
        &self,
        element: &ArgType,
        items: &[Obj],
        read: impl Fn(Obj) -> Result<Option<T>>,
    ) -> Result<Box<[T]>> {
        let one = |(n, obj): (usize, &Obj)| match read(*obj) {
            Ok(Some(v)) => Ok(v),
            // SAFETY: live object.
            Ok(None) => Err(unsafe { self.unfit(Some(n), &element.to_string(), *obj) }),
            // SAFETY: live object.
            Err(e) => Err(unsafe { self.blame(Some(n), element, *obj, e) }),
        };
        items.iter().enumerate().map(one).collect()
    }

    /// The function's own exceptions and refusals that are complete go on; a value that cannot be read is the
    /// function's fault.
    #[cold]
    unsafe fn blame(&self, item: Option<usize>, want: &ArgType, obj: Obj, e: Error) -> Error {
        if !matches!(e.kind(), ErrorKind::Argument | ErrorKind::Value) {
            return e;
        }
        // SAFETY: live object.
        unsafe { self.unfit(item, &want.to_string(), obj) }.note(e.message())
    }

    #[cold]
    unsafe fn unfit(&self, item: Option<usize>, want: &str, obj: Obj) -> Error {
        // SAFETY: live object.
        let got = unsafe { shown(obj) };
        let at = item.map_or_else(|| format!("output {}", self.i), |n| format!("output {}[{n}]", self.i));
        contract(self.call, "TP3202", format!("{at} must be {want}, {} returned {got}", self.role.text()))
    }
}

fn tensor(obj: Obj) -> Result<Option<Tensor>> {
    // SAFETY: an item of a live list.
    Ok(unsafe { shell::is_tensor(obj).then(|| shell::tensor_of(obj).clone()) })
}

fn optional_tensor(obj: Obj) -> Result<Option<Option<Tensor>>> {
    // SAFETY: an item of a live list.
    if obj == unsafe { ffi::Py_None() } { Ok(Some(None)) } else { tensor(obj).map(|t| t.map(Some)) }
}

/// The type of an object, with the length of a list.
unsafe fn shown(obj: Obj) -> String {
    // SAFETY: live object.
    unsafe {
        let name = x::type_name(obj);
        match convert::sequence(obj) {
            Some(items) => format!("{name} of {}", items.len()),
            None => name,
        }
    }
}

#[cold]
fn contract(call: &Call<'_>, code: &'static str, message: String) -> Error {
    Error::contract(code, message).with_op(call.op.name()).note(format!("schema: {}", call.def.schema))
}

#[cold]
unsafe fn returned(call: &Call<'_>, role: Role, what: &str, want: &str, obj: Obj) -> Error {
    // SAFETY: live object.
    let got = unsafe { x::type_name(obj) };
    contract(call, "TP3201", format!("{} returned {what} ({got}), the schema declares {want}", role.text()))
}
