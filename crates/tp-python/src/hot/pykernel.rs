//! A Python function as a kernel: the caller's own objects go in where they are of the declared types, converted ones
//! elsewhere; results are checked against the schema (`results`), and the function runs with grad mode off and Autograd
//! and Capture passed by.

use super::convert;
use super::ffi::{self as x, Obj};
use super::{outputs, results, ret, shell};
use crate::error;
use pyo3::ffi;
use smallvec::{SmallVec, smallvec};
use tp_dispatch::host::HostVisitor;
use tp_dispatch::kernel::{Call, KernelObject};
use tp_dispatch::schema::ArgType;
use tp_dispatch::state::in_foreign_kernel;
use tp_dispatch::{Result, Rets, Schema, Value, check};
use tp_tensor::Tensor;

/// What a Python function stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Outputs are checked for count, type and aliasing.
    Kernel,
    /// A kernel that fills outputs made for it, from what the fake rule says of them: `fn(*args, out=...)`.
    Out,
    /// A fake rule: outputs are checked for count and type by whoever called it.
    Fake,
}

impl Role {
    /// As messages call it.
    pub fn text(self) -> &'static str {
        match self {
            Role::Kernel | Role::Out => "the kernel",
            Role::Fake => "the fake rule",
        }
    }
}

pub struct PyKernel {
    func: Obj,
    positional: usize,
    /// Names of keyword-only arguments as a tuple, or null.
    kwnames: Obj,
    role: Role,
    /// Results are one new tensor.
    gives_one: bool,
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
                kwnames: keyword_names(schema, positional, (role == Role::Out).then_some("out")),
                role,
                gives_one: role == Role::Kernel
                    && matches!(schema.returns(), [r] if *r.ty() == ArgType::Tensor && r.alias().is_none()),
            }
        }
    }

    /// As `run`, for a kernel that gives one tensor.
    ///
    /// # Safety
    /// Lock held; one object per schema argument.
    #[inline(always)]
    unsafe fn run_one(&self, call: &Call<'_>, objects: *const Obj) -> Result<Tensor> {
        // SAFETY: the caller's promise, positional objects first.
        let out = in_foreign_kernel(call.args, || unsafe {
            x::vectorcall(self.func, objects, self.positional, self.kwnames)
        });
        if out.is_null() {
            return Err(error::fetch());
        }
        // SAFETY: an owned result.
        unsafe {
            if shell::is_tensor(out) {
                let out = shell::unwrap(out);
                return if check::is_result(call, &out) { Ok(out) } else { self.checked(call, out) };
            }
            let mut rets = Rets::new();
            results::take(call, self.role, out, &mut rets)?;
            Err(tp_dispatch::Error::internal("TP9008", "one tensor was expected").with_op(call.op.name()))
        }
    }

    /// A result that may be no new tensor.
    #[cold]
    fn checked(&self, call: &Call<'_>, out: Tensor) -> Result<Tensor> {
        check::check_results(call, &smallvec![Value::Tensor(out.clone())])?;
        Ok(out)
    }

    /// # Safety
    /// Lock held.
    #[inline(always)]
    unsafe fn run(&self, call: &Call<'_>, objects: *const Obj, rets: &mut Rets) -> Result<()> {
        if self.role == Role::Out {
            // SAFETY: the caller's promise.
            return unsafe { self.fill(call, objects, rets) };
        }
        // SAFETY: one object per schema argument, positional ones first.
        let out = in_foreign_kernel(call.args, || unsafe {
            x::vectorcall(self.func, objects, self.positional, self.kwnames)
        });
        if out.is_null() {
            return Err(error::fetch());
        }
        // SAFETY: an owned result.
        unsafe { results::take(call, self.role, out, rets)? };
        if self.role == Role::Kernel { check::check_results(call, rets) } else { Ok(()) }
    }
}

impl PyKernel {
    /// Makes the outputs, lets the function write to them, and gives them back.
    #[cold]
    unsafe fn fill(&self, call: &Call<'_>, objects: *const Obj, rets: &mut Rets) -> Result<()> {
        let outputs = outputs::make(call)?;
        // SAFETY: one object per schema argument, positional ones first, and `out` last.
        unsafe {
            let mut given: SmallVec<[Obj; 8]> =
                std::slice::from_raw_parts(objects, call.args.len()).iter().copied().collect();
            let out = ret::finish(outputs.clone(), Some(&call.def.schema));
            given.push(out);
            let result = in_foreign_kernel(call.args, || {
                x::vectorcall(self.func, given.as_ptr(), self.positional, self.kwnames)
            });
            let nothing = result == ffi::Py_None() || result == out;
            ffi::Py_XDECREF(result);
            ffi::Py_XDECREF(out);
            match (result.is_null(), nothing) {
                (true, _) => return Err(error::fetch()),
                (false, false) => return Err(outputs::not_filled(call)),
                (false, true) => {}
            }
        }
        *rets = outputs;
        check::check_results(call, rets)
    }
}

/// Names of the keyword-only arguments as an owned tuple, with one more if given; null for none.
///
/// # Safety
/// Lock held.
pub unsafe fn keyword_names(schema: &Schema, positional: usize, more: Option<&str>) -> Obj {
    let names: Vec<&str> = schema.arguments()[positional..].iter().map(|a| a.name()).chain(more).collect();
    if names.is_empty() {
        return std::ptr::null_mut();
    }
    // SAFETY: a fresh tuple, filled before anyone sees it.
    unsafe {
        let tuple = ffi::PyTuple_New(names.len() as isize);
        for (i, name) in names.iter().enumerate() {
            ffi::PyTuple_SetItem(tuple, i as isize, x::intern(name));
        }
        tuple
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

    #[inline]
    fn one(&self, call: &Call<'_>) -> Option<Result<Tensor>> {
        if !self.gives_one || call.host.0.is_null() {
            return None;
        }
        // SAFETY: the door passes its objects along only while it holds the lock.
        Some(unsafe { self.run_one(call, call.host.0.cast()) })
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
            call.args.iter().map(|a| unsafe { convert::arg_to_object(*a) }).collect();
        let out =
            if objects.iter().any(|o| o.is_null()) { Err(error::fetch()) } else { body(objects.as_ptr()) };
        for o in objects {
            // SAFETY: owned references.
            unsafe { ffi::Py_XDECREF(o) };
        }
        out
    })
}
