//! What the functions of a rule give back: what a setup function asked for, and the gradients that backward returned,
//! held against the inputs of the call.

use super::rule::{Kind, PyRule};
use crate::hot::ffi::{self as x, Obj};
use crate::hot::{queue, shell};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use smallvec::{SmallVec, smallvec};
use tp_autograd::rule::{BackwardCtx, Gradients, wrong_count};
use tp_autograd::tape::Saver;
use tp_dispatch::{Error, Result, Value};
use tp_tensor::Tensor;

/// An owned reference that goes at once where the lock is held.
pub struct Owned(pub Obj);

impl Owned {
    /// Gives the reference away.
    pub fn into_raw(self) -> Obj {
        std::mem::ManuallyDrop::new(self).0
    }
}

// SAFETY: the object is touched only with the interpreter lock held.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        queue::release(self.0);
    }
}

/// What a setup function asked for.
pub struct Marked {
    pub save: Vec<Option<Tensor>>,
    pub plain: Vec<Tensor>,
    pub dirty: bool,
    pub no_materialize: bool,
}

impl Marked {
    pub fn store(self, op: &str, rets: &[Value], saver: &mut Saver<'_>) -> Result<()> {
        if self.dirty {
            return Err(Error::contract("TP3214", "mark_dirty is for the forward of a Function")
                .with_op(op)
                .note("an operator declares what it writes to in mutates_args, and has no gradient then"));
        }
        keep(&self.save, self.no_materialize, rets, saver);
        for t in &self.plain {
            let Some(nr) = output_index(rets, t) else {
                let message = "mark_non_differentiable was given a tensor that is no output of this call";
                return Err(Error::contract("TP3213", message)
                    .with_op(op)
                    .note("pass the tensors that the call returns, not copies or inputs"));
            };
            saver.mark_non_differentiable(nr);
        }
        Ok(())
    }
}

/// Saves tensors, and whether gradients of unused outputs are left out.
pub fn keep(save: &[Option<Tensor>], no_materialize: bool, rets: &[Value], saver: &mut Saver<'_>) {
    for t in save {
        match t {
            None => saver.none(),
            Some(t) => match output_index(rets, t) {
                Some(nr) => saver.output(t, nr),
                None => saver.input(t),
            },
        }
    }
    if no_materialize {
        saver.set_bits(super::rule::NO_MATERIALIZE);
    }
}

/// Which output a tensor is, counting every tensor the call returned.
pub fn output_index(rets: &[Value], t: &Tensor) -> Option<usize> {
    let mut nr = 0;
    let mut found = None;
    for value in rets {
        value.for_each_tensor(|out| {
            if found.is_none() && out.same(t) {
                found = Some(nr);
            }
            nr += 1;
        });
    }
    found
}

impl PyRule {
    /// As `store`, for a tuple of tensors and Nones, or one tensor, that are all as they should be; false for anything
    /// else.
    ///
    /// # Safety
    /// Lock held, a live object.
    pub(super) unsafe fn store_plain(
        &self,
        result: Obj,
        ctx: &BackwardCtx<'_>,
        out: &mut Gradients<'_>,
    ) -> bool {
        let n = self.inputs.len();
        // SAFETY: items of a live tuple.
        unsafe {
            let is_tuple = x::type_of(result) == &raw mut ffi::PyTuple_Type;
            if if is_tuple { ffi::PyTuple_Size(result) != n as isize } else { n != 1 } {
                return false;
            }
            for i in 0..n {
                let item = if is_tuple { ffi::PyTuple_GetItem(result, i as isize) } else { result };
                if item == ffi::Py_None() {
                    continue;
                }
                if !shell::is_tensor(item) || !self.can_have(ctx, i) {
                    return false;
                }
                out.set(i, shell::tensor_of(item).clone());
            }
        }
        true
    }

    /// What the rule returned, into the places of the inputs.
    pub(super) fn store(
        &self,
        result: &Bound<'_, PyAny>,
        ctx: &BackwardCtx<'_>,
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        let n = self.inputs.len();
        let items: SmallVec<[Bound<'_, PyAny>; 2]> = match result.cast::<PyTuple>() {
            Ok(t) => t.iter().collect(),
            Err(_) if result.is_instance_of::<PyList>() && !(n == 1 && self.inputs[0].kind == Kind::List) => {
                return Err(self.no_tuple("a list"));
            }
            Err(_) if n != 1 && !is_one(result) => return Err(self.no_tuple(&type_name(result))),
            Err(_) => smallvec![result.clone()],
        };
        if items.len() != n {
            return Err(wrong_count(&self.op, n, items.len()));
        }
        for (i, (item, input)) in items.iter().zip(&self.inputs).enumerate() {
            let name = &input.name;
            if input.kind == Kind::List {
                self.store_list(i, name, item, ctx, out)?;
            } else if !item.is_none() {
                let grad = self.gradient(name, item)?;
                if !self.can_have(ctx, i) {
                    return Err(self.no_gradient(name, &input.type_text));
                }
                out.set(i, grad);
            }
        }
        Ok(())
    }

    #[cold]
    fn no_tuple(&self, got: &str) -> Error {
        Error::contract("TP3230", format!("backward must return a tuple, got {got}")).with_op(&self.op).note(
            format!("one gradient per input of the op, {} in all, None for one without", self.inputs.len()),
        )
    }

    /// Tensors without a gradient are those whose dtype cannot have one; what was no tensor has its declared type.
    #[cold]
    fn no_gradient(&self, name: &str, type_text: &str) -> Error {
        let message =
            format!("backward returned a gradient for '{name}', which was no floating-point tensor");
        let it = match type_text {
            "Tensor" | "list[Tensor]" => "it had an integer or bool dtype".to_string(),
            "Tensor | None" | "list[Tensor | None]" => {
                "it was None, or had an integer or bool dtype".to_string()
            }
            other => format!("its type is {other}"),
        };
        Error::contract("TP3212", message).with_op(&self.op).note(format!("{it}; return None in its place"))
    }

    fn store_list(
        &self,
        i: usize,
        name: &str,
        item: &Bound<'_, PyAny>,
        ctx: &BackwardCtx<'_>,
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        let Some(kinds) = self.list_kinds(ctx, i) else {
            if item.is_none() {
                return Ok(());
            }
            return Err(self.no_gradient(name, &self.inputs[i].type_text));
        };
        let wrong = |got: String| {
            let message = format!(
                "the gradient of '{name}' must be a list of {} like the input, got {got}",
                kinds.len()
            );
            Error::contract("TP3231", message)
                .with_op(&self.op)
                .note("a list for a list, with None in the places that have no gradient")
        };
        let Ok(list) = item.cast::<PyList>() else { return Err(wrong(type_name(item))) };
        if list.len() != kinds.len() {
            return Err(wrong(format!("a list of {}", list.len())));
        }
        for (k, (g, can)) in list.iter().zip(kinds).enumerate() {
            if g.is_none() {
                continue;
            }
            let place = format!("{name}[{k}]");
            let grad = self.gradient(&place, &g)?;
            if !can {
                return Err(self.no_gradient(&place, &self.inputs[i].type_text));
            }
            out.set_item(i, k, grad);
        }
        Ok(())
    }

    fn gradient(&self, name: &str, item: &Bound<'_, PyAny>) -> Result<Tensor> {
        // SAFETY: a live object.
        unsafe {
            if shell::is_tensor(item.as_ptr()) {
                return Ok(shell::tensor_of(item.as_ptr()).clone());
            }
        }
        let got = type_name(item);
        let message = format!("the gradient of '{name}' must be a Tensor or None, got {got}");
        Err(Error::contract("TP3232", message).with_op(&self.op))
    }
}

/// A gradient by itself.
fn is_one(item: &Bound<'_, PyAny>) -> bool {
    // SAFETY: a live object.
    item.is_none() || unsafe { shell::is_tensor(item.as_ptr()) }
}

fn type_name(item: &Bound<'_, PyAny>) -> String {
    item.get_type().name().map_or_else(|_| "object".to_string(), |n| n.to_string())
}
