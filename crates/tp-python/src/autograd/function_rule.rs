//! The rule of one call of a `Function`: it has the class and the context, and asks the class for `backward` when
//! gradients arrive. Not here: the call itself (`function`).

use super::context::{self, Phase};
use super::function;
use super::returned::Owned;
use super::rule::{NO_MATERIALIZE, zeros};
use crate::error;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::{queue, shell};
use pyo3::ffi;
use smallvec::SmallVec;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use tp_autograd::rule::{BackwardCtx, Gradients, VjpRule};
use tp_autograd::tape::Edge;
use tp_dispatch::host::HostVisitor;
use tp_dispatch::{Error, Result};
use tp_tensor::Tensor;

/// What an argument of `apply` was.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Other,
    /// A tensor that cannot have a gradient.
    Whole,
    Float,
}

pub type Kinds = SmallVec<[Kind; 8]>;
/// Which items of the result were tensors.
pub type AreTensors = SmallVec<[bool; 8]>;

/// Owns a reference to the class and one to the context, until it is cleared.
pub struct FunctionRule {
    class: AtomicPtr<x::PyObject>,
    ctx: AtomicPtr<x::PyObject>,
    args: Kinds,
    outputs: AreTensors,
    name: OnceLock<Box<str>>,
}

impl FunctionRule {
    /// # Safety
    /// Lock held; a live class and a live context, of which it takes a reference each.
    pub unsafe fn new(class: Obj, ctx: Obj, args: Kinds, outputs: AreTensors) -> FunctionRule {
        // SAFETY: the caller's promise.
        let own = |op| AtomicPtr::new(unsafe { ffi::Py_NewRef(op) });
        FunctionRule { class: own(class), ctx: own(ctx), args, outputs, name: OnceLock::new() }
    }

    fn class(&self) -> Obj {
        self.class.load(Ordering::Acquire)
    }

    /// # Safety
    /// Lock held.
    unsafe fn run(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        // SAFETY: lock held; class and context live as long as the node, which the pass keeps; what is entered is left
        // before `ctx` goes.
        unsafe {
            let own = self.ctx.load(Ordering::Acquire);
            let Some(backward) = function::backward_of(self.class())? else {
                return Err(Error::autograd("TP3303", format!("{} has no backward", self.name()))
                    .with_op(self.name())
                    .note("give it a static method backward(ctx, *grads)"));
            };
            let given = self.gradients(ctx, grads)?;
            let mut args: SmallVec<[Obj; 4]> = SmallVec::new();
            args.push(own);
            args.extend(given.iter().map(|g| g.0));
            context::enter(own, ctx);
            let result = x::vectorcall(backward.0, args.as_ptr(), args.len(), ptr::null_mut());
            context::leave(own, ctx);
            if result.is_null() {
                return Err(error::fetch());
            }
            self.store(&Owned(result), ctx, out)?;
            if ctx.is_last() {
                context::with(own, |s| s.phase = Phase::Freed);
            }
            Ok(())
        }
    }

    /// Gradients of the results, None for those that were no tensors: zeros where nobody used one, unless the rule asked
    /// for None.
    ///
    /// # Safety
    /// Lock held.
    unsafe fn gradients(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
    ) -> Result<SmallVec<[Owned; 3]>> {
        let materialize = ctx.bits() & NO_MATERIALIZE == 0;
        let mut nr = 0;
        let mut list = SmallVec::new();
        for is_tensor in &self.outputs {
            let mut grad = None;
            if *is_tensor {
                grad = match grads.get(nr).and_then(Option::as_ref) {
                    Some(g) => Some(g.clone()),
                    None if materialize => ctx.output_spec(nr).map(zeros).transpose()?,
                    None => None,
                };
                nr += 1;
            }
            // SAFETY: lock held.
            let object = unsafe { super::context_methods::object_of(grad.as_ref()) };
            if object.is_null() {
                return Err(error::fetch());
            }
            list.push(Owned(object));
        }
        Ok(list)
    }

    /// What backward returned, into the places of the arguments.
    ///
    /// # Safety
    /// Lock held; a live object.
    unsafe fn store(&self, result: &Owned, ctx: &BackwardCtx<'_>, out: &mut Gradients<'_>) -> Result<()> {
        // SAFETY: items of a live tuple.
        unsafe {
            let is_tuple = ffi::PyTuple_Check(result.0) != 0;
            let is_one = shell::is_tensor(result.0) || result.0 == ffi::Py_None();
            let is_list = ffi::PyList_Check(result.0) != 0;
            if !is_tuple && (is_list || !is_one && self.args.len() != 1) {
                let got = if is_list { "a list".to_string() } else { x::type_name(result.0) };
                return Err(self
                    .broken(&format!("must return a tuple, got {got}"))
                    .note("return one gradient, or a tuple of one per argument of apply"));
            }
            let got = if is_tuple { ffi::PyTuple_Size(result.0) as usize } else { 1 };
            if got != self.args.len() {
                return Err(self.broken(&format!(
                    "must return {}, got {got}",
                    tp_tensor::counted(self.args.len(), "gradient")
                )));
            }
            for (i, kind) in self.args.iter().enumerate() {
                let item = if is_tuple { ffi::PyTuple_GetItem(result.0, i as isize) } else { result.0 };
                if item != ffi::Py_None() {
                    self.check(i, *kind, item)?;
                    if let Some(k) = ctx.edges().iter().position(|e| e.index() == i) {
                        out.put(k, Some(shell::tensor_of(item).clone()));
                    }
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// Lock held; a live object.
    unsafe fn check(&self, i: usize, kind: Kind, item: Obj) -> Result<()> {
        // SAFETY: the caller's promise.
        let is_tensor = unsafe { shell::is_tensor(item) };
        match kind {
            Kind::Float if is_tensor => Ok(()),
            Kind::Other => {
                Err(self.broken(&format!("returned a gradient for argument {i}, which is no tensor")))
            }
            Kind::Whole if is_tensor => {
                let what =
                    format!("returned a gradient for argument {i}, which was no floating-point tensor");
                Err(self
                    .error("TP3212", &what)
                    .note("it had an integer or bool dtype; return None in its place"))
            }
            _ => {
                // SAFETY: as above.
                let got = unsafe { x::type_name(item) };
                let what = format!("returned {got} for argument {i}: a Tensor or None is wanted");
                Err(self.broken(&what))
            }
        }
    }

    #[cold]
    fn broken(&self, what: &str) -> Error {
        self.error("TP3208", what)
    }

    #[cold]
    fn error(&self, code: &'static str, what: &str) -> Error {
        let name = self.name();
        Error::contract(code, format!("{name}.backward {what}")).with_op(name)
    }

    /// Gives both references back.
    fn release(&self) {
        for owned in [&self.ctx, &self.class] {
            queue::release(owned.swap(ptr::null_mut(), Ordering::AcqRel));
        }
    }
}

impl VjpRule for FunctionRule {
    /// Looked up when somebody asks.
    fn name(&self) -> &str {
        if let Some(name) = self.name.get() {
            return name;
        }
        let class = self.class();
        let name = match class.is_null() {
            true => "Function".into(),
            // SAFETY: lock held; the class is alive, for the rule was not cleared.
            false => error::attached(|_| unsafe { function::name_of(class) }),
        };
        self.name.get_or_init(|| name.into())
    }

    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        // SAFETY: asks about this thread; lock held in the calls.
        unsafe {
            if x::PyGILState_Check() == 1 {
                return self.run(ctx, grads, out);
            }
            error::attached(|_| self.run(ctx, grads, out))
        }
    }

    fn is_foreign(&self) -> bool {
        true
    }

    fn reaches_host(&self) -> bool {
        true
    }

    fn trace(&self, visit: &mut HostVisitor<'_>) {
        for owned in [&self.class, &self.ctx] {
            let object = owned.load(Ordering::Acquire);
            if !object.is_null() {
                visit(object.cast());
            }
        }
    }

    fn clear(&self) {
        self.release();
    }

    fn argument(&self, edge: &Edge) -> Option<String> {
        Some(format!("argument {}", edge.index()))
    }
}

impl Drop for FunctionRule {
    fn drop(&mut self) {
        self.release();
    }
}
