//! A Python function as a kernel: the caller's own objects go in, results are checked against the schema, and the
//! function runs with grad mode off and Autograd and Capture passed by.

use super::convert;
use super::ffi::{self as x, Obj};
use super::shell;
use crate::error;
use pyo3::ffi;
use smallvec::SmallVec;
use tp_dispatch::host::HostVisitor;
use tp_dispatch::kernel::{Call, KernelObject};
use tp_dispatch::schema::{ArgType, Return};
use tp_dispatch::state::in_foreign_kernel;
use tp_dispatch::{Error, Result, Rets, Schema, Value, check, push_tensor};
use tp_tensor::Tensor;

/// What a Python function stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Outputs are checked for count, type and aliasing.
    Kernel,
    /// A fake rule: outputs are checked for count and type by whoever called it.
    Fake,
}

pub struct PyKernel {
    func: Obj,
    positional: usize,
    /// Names of keyword-only arguments as a tuple, or null.
    kwnames: Obj,
    role: Role,
}

// SAFETY: the objects are touched only with the interpreter lock held; see `Drop`.
unsafe impl Send for PyKernel {}
// SAFETY: as above.
unsafe impl Sync for PyKernel {}

impl PyKernel {
    /// # Safety
    /// Lock held; `func` is a live callable.
    pub unsafe fn new(func: Obj, schema: &Schema, role: Role) -> PyKernel {
        let positional = schema.positional_count();
        // SAFETY: lock held.
        unsafe {
            PyKernel {
                func: ffi::Py_NewRef(func),
                positional,
                kwnames: keyword_names(schema, positional),
                role,
            }
        }
    }

    /// # Safety
    /// Lock held.
    #[inline(always)]
    unsafe fn run(&self, call: &Call<'_>, objects: *const Obj, rets: &mut Rets) -> Result<()> {
        // SAFETY: one object per schema argument, positional ones first.
        let out = in_foreign_kernel(call.args, || unsafe {
            x::PyObject_Vectorcall(self.func, objects, self.positional, self.kwnames)
        });
        if out.is_null() {
            return Err(error::fetch());
        }
        // SAFETY: an owned result.
        unsafe { take_results(call, out, rets)? };
        if self.role == Role::Kernel { check::check_outputs(call, rets) } else { Ok(()) }
    }
}

/// Names of the keyword-only arguments as an owned tuple, or null.
///
/// # Safety
/// Lock held.
pub unsafe fn keyword_names(schema: &Schema, positional: usize) -> Obj {
    let keyword = &schema.arguments()[positional..];
    if keyword.is_empty() {
        return std::ptr::null_mut();
    }
    // SAFETY: a fresh tuple, filled before anyone sees it.
    unsafe {
        let names = ffi::PyTuple_New(keyword.len() as isize);
        for (i, a) in keyword.iter().enumerate() {
            ffi::PyTuple_SetItem(names, i as isize, x::intern(a.name()));
        }
        names
    }
}

impl KernelObject for PyKernel {
    #[inline]
    fn call(&self, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        if !call.host.0.is_null() {
            // SAFETY: the door passes its objects along only while it holds the lock.
            return unsafe { self.run(call, call.host.0.cast(), rets) };
        }
        from_rust(call, |objects| {
            // SAFETY: lock held inside.
            unsafe { self.run(call, objects, rets) }
        })
    }

    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.func.cast());
    }

    fn host_function(&self) -> *mut () {
        self.func.cast()
    }
}

impl Drop for PyKernel {
    fn drop(&mut self) {
        super::queue::release(self.func);
        super::queue::release(self.kwnames);
    }
}

/// A call that came from Rust: objects are made for the arguments, with the lock taken if it is not held.
#[cold]
pub fn from_rust(call: &Call<'_>, body: impl FnOnce(*const Obj) -> Result<()>) -> Result<()> {
    error::attached(|_| {
        // SAFETY: lock held.
        let objects: SmallVec<[Obj; 8]> =
            call.args.iter().map(|a| unsafe { convert::value_to_object(&a.to_value()) }).collect();
        let out =
            if objects.iter().any(|o| o.is_null()) { Err(error::fetch()) } else { body(objects.as_ptr()) };
        for o in objects {
            // SAFETY: owned references.
            unsafe { ffi::Py_XDECREF(o) };
        }
        out
    })
}

/// Owned result to values, by the declared returns.
///
/// # Safety
/// Lock held; `out` is an owned object.
#[inline(always)]
pub unsafe fn take_results(call: &Call<'_>, out: Obj, rets: &mut Rets) -> Result<()> {
    let declared = call.def.schema.returns();
    // SAFETY: an owned live object.
    unsafe {
        if declared.len() == 1 && shell::is_tensor(out) {
            push_tensor(rets, shell::unwrap(out));
            return Ok(());
        }
        let done = take_many(call, declared, out, rets);
        ffi::Py_DECREF(out);
        done
    }
}

#[cold]
unsafe fn take_many(call: &Call<'_>, declared: &[Return], out: Obj, rets: &mut Rets) -> Result<()> {
    // SAFETY: live objects.
    unsafe {
        match declared {
            [] if out == ffi::Py_None() => Ok(()),
            [] => Err(returned(call, "a value", "nothing (None)", out)),
            [one] => {
                rets.push(result(call, 0, one.ty(), out)?);
                Ok(())
            }
            many => {
                let Some(items) = convert::sequence(out) else {
                    return Err(returned(call, "no tuple", &format!("a tuple of {}", many.len()), out));
                };
                if items.len() != many.len() {
                    let message = format!(
                        "the kernel returned {} values, the schema declares {}",
                        items.len(),
                        many.len()
                    );
                    return Err(Error::contract("TP3201", message)
                        .with_op(call.op.name())
                        .note(format!("schema: {}", call.def.schema)));
                }
                for (i, (&item, ret)) in items.iter().zip(many).enumerate() {
                    rets.push(result(call, i, ret.ty(), item)?);
                }
                Ok(())
            }
        }
    }
}

unsafe fn result(call: &Call<'_>, i: usize, ty: &ArgType, obj: Obj) -> Result<Value> {
    use ArgType as T;
    // SAFETY: live object.
    unsafe {
        let none = obj == ffi::Py_None();
        let found = match ty {
            T::Optional(_) | T::NoneType | T::Any if none => Some(Value::None),
            T::Optional(inner) => return result(call, i, inner, obj),
            T::Tensor => shell::is_tensor(obj).then(|| Value::Tensor(shell::tensor_of(obj).clone())),
            T::Int | T::SymInt => convert::int(obj)?.map(Value::Int),
            T::Bool | T::SymBool => {
                (obj == ffi::Py_True() || obj == ffi::Py_False()).then(|| Value::Bool(obj == ffi::Py_True()))
            }
            T::Float => convert::number(obj)?.map(|s| Value::Float(s.to::<f64>())),
            T::Scalar | T::Number => convert::number(obj)?.map(Value::Scalar),
            T::Str => x::str_of(obj).map(|s| Value::Str(s.into())),
            T::List(e, _) if **e == T::Tensor => {
                convert::sequence(obj).and_then(|items| tensors(&items)).map(Value::Tensors)
            }
            _ => None,
        };
        found.ok_or_else(|| {
            let got = x::type_name(obj);
            Error::contract("TP3202", format!("output {i} must be {ty}, the kernel returned {got}"))
                .with_op(call.op.name())
                .note(format!("schema: {}", call.def.schema))
        })
    }
}

/// The tensors of a list, or None when an element is something else.
///
/// # Safety
/// Live objects.
unsafe fn tensors(items: &[Obj]) -> Option<Box<[Tensor]>> {
    // SAFETY: live objects.
    items.iter().map(|&o| unsafe { shell::is_tensor(o).then(|| shell::tensor_of(o).clone()) }).collect()
}

#[cold]
unsafe fn returned(call: &Call<'_>, what: &str, want: &str, obj: Obj) -> Error {
    // SAFETY: live object.
    let got = unsafe { x::type_name(obj) };
    Error::contract("TP3201", format!("the kernel returned {what} ({got}), the schema declares {want}"))
        .with_op(call.op.name())
        .note(format!("schema: {}", call.def.schema))
}
