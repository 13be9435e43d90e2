//! One call of a `Function`: forward, what its results and marks have to be, and the node. Not here: the type and the
//! layers above the tape (`function`), and the way back (`function_rule`).

use super::context::{self, Needs, Phase};
use super::context_methods::{object_of, tuple_of};
use super::function::{attribute, name_of, names, owned};
use super::function_rule::{AreTensors, FunctionRule, Kind};
use super::returned::{Owned, keep, output_index};
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use crate::tensor::builtin;
use pyo3::ffi;
use smallvec::SmallVec;
use std::ptr;
use std::sync::Arc;
use tp_autograd::{Recording, Rewritten};
use tp_dispatch::state::in_foreign_kernel;
use tp_dispatch::{Arg, Error, Result, Rets, Value};
use tp_tensor::Tensor;

/// The tensors among the arguments.
pub(super) type Tensors<'a> = SmallVec<[Arg<'a>; 4]>;

/// Runs forward, and records the call where an argument needs a gradient.
///
/// # Safety
/// Lock held; a live class and live arguments.
pub(super) unsafe fn call(class: Obj, args: &[Obj], tensors: &Tensors<'_>) -> Result<Obj> {
    // SAFETY: live objects for as long as the call lasts, lock held.
    unsafe {
        let numbered = args.iter().enumerate().filter(|(_, arg)| shell::is_tensor(**arg));
        let recording = Recording::begin(numbered.map(|(i, arg)| (i, shell::tensor_of(*arg))))?;
        let ctx = Owned(context::new()?);
        let needs = needs(args.len(), recording.as_ref())?;
        context::with(ctx.0, |s| s.needs = needs);
        let outputs = in_foreign_kernel(tensors, || {
            let result = forward(class, ctx.0, args)?;
            Outputs::of(class, ctx.0, result, tensors)
        })?;
        if let Some(recording) = recording {
            outputs.record(class, &ctx, args, recording)?;
        }
        outputs.object()
    }
}

/// One bool per argument.
unsafe fn needs(inputs: usize, recording: Option<&Recording>) -> Result<Needs> {
    let edges = recording.map_or(&[][..], Recording::edges);
    if inputs <= 64 {
        let bits = edges.iter().fold(0u64, |bits, e| bits | 1 << (e.index() & 63));
        return Ok(Needs::Bits { bits, inputs });
    }
    // SAFETY: lock held.
    unsafe {
        let one = |i| ffi::PyBool_FromLong(edges.iter().any(|e| e.index() == i).into());
        Ok(Needs::Object(tuple_of((0..inputs).map(one))?))
    }
}

unsafe fn forward(class: Obj, ctx: Obj, args: &[Obj]) -> Result<Owned> {
    let names = names()?;
    // SAFETY: live callables and arguments, lock held.
    unsafe {
        let setup = attribute(class, names.setup_context)?;
        let forward = attribute(class, names.forward)?;
        let vectorcall =
            |f: &Owned, args: &[Obj]| owned(x::vectorcall(f.0, args.as_ptr(), args.len(), ptr::null_mut()));
        if setup.0 == names.no_setup {
            let mut all: SmallVec<[Obj; 8]> = SmallVec::with_capacity(args.len() + 1);
            all.push(ctx);
            all.extend_from_slice(args);
            return vectorcall(&forward, &all);
        }
        let result = vectorcall(&forward, args)?;
        let inputs = Owned(tuple_of(args.iter().map(|a| ffi::Py_NewRef(*a)))?);
        vectorcall(&setup, &[ctx, inputs.0, result.0])?;
        Ok(result)
    }
}

/// What forward gave, as the caller gets it.
struct Outputs {
    /// The result, as a tuple where it is several.
    result: Owned,
    is_single: bool,
    are_tensors: AreTensors,
    /// The tensors among the items, each of its own memory, unless forward wrote to it.
    tensors: Rets,
    /// Some of them are copies, or the result was no plain tuple.
    is_changed: bool,
    marks: Marks,
}

/// What forward said of its results.
#[derive(Default)]
struct Marks {
    dirty: Vec<Tensor>,
    /// By their places among the tensors.
    plain: Vec<usize>,
}

impl Outputs {
    /// Takes the result apart, with grad mode off, and holds the marks of the context against it.
    unsafe fn of(class: Obj, ctx: Obj, result: Owned, inputs: &Tensors<'_>) -> Result<Outputs> {
        // SAFETY: live objects, lock held; a tuple owns its items.
        unsafe {
            let is_tuple = ffi::PyTuple_Check(result.0) != 0;
            let is_list = ffi::PyList_Check(result.0) != 0;
            let is_single = !is_tuple && !is_list;
            let result = if is_list { owned(ffi::PyList_AsTuple(result.0))? } else { result };
            let is_changed = is_tuple && x::type_of(result.0) != &raw mut ffi::PyTuple_Type;
            let mut out = Outputs {
                result,
                is_single,
                are_tensors: AreTensors::new(),
                tensors: Rets::new(),
                is_changed,
                marks: Marks::default(),
            };
            let mut given: SmallVec<[&Tensor; 2]> = SmallVec::new();
            for i in 0..out.len() {
                let item = out.item(i);
                let is_tensor = shell::is_tensor(item);
                out.are_tensors.push(is_tensor);
                if is_tensor {
                    given.push(shell::tensor_of(item));
                }
            }
            out.marks = Marks::of(class, ctx, &given, inputs)?;
            for t in &given {
                out.take(t, inputs)?;
            }
            out.settle(ctx, &given);
            Ok(out)
        }
    }

    unsafe fn len(&self) -> usize {
        // SAFETY: a tuple where it is not single.
        if self.is_single { 1 } else { unsafe { ffi::PyTuple_Size(self.result.0) as usize } }
    }

    unsafe fn item(&self, i: usize) -> Obj {
        // SAFETY: as above, in bounds.
        if self.is_single {
            self.result.0
        } else {
            unsafe { ffi::PyTuple_GetItem(self.result.0, i as isize) }
        }
    }

    /// One tensor more: a copy where it is, or shares memory with, another that the caller sees.
    fn take(&mut self, t: &Tensor, inputs: &Tensors<'_>) -> Result<()> {
        let shares = |o: &Tensor| o.shares_storage(t);
        let is_seen = || {
            t.requires_grad()
                || inputs.iter().filter_map(Arg::tensor).any(shares)
                || self.tensors.iter().filter_map(Value::tensor).any(shares)
        };
        let own = if !contains(&self.marks.dirty, t) && is_seen() {
            self.is_changed = true;
            builtin::CLONE.call(&[Arg::Tensor(t)])?
        } else {
            t.clone()
        };
        self.tensors.push(Value::Tensor(own));
        Ok(())
    }

    /// What forward saved of its results is what the caller gets of them.
    unsafe fn settle(&self, ctx: Obj, given: &[&Tensor]) {
        if !self.is_changed {
            return;
        }
        let own = |t: &Tensor| {
            let at = given.iter().position(|g| g.same(t))?;
            self.tensors.get(at).and_then(Value::tensor).cloned()
        };
        // SAFETY: a live context, lock held; what goes is dropped outside.
        unsafe {
            let saved = context::with(ctx, |s| std::mem::take(&mut s.to_save));
            let settled = saved.iter().map(|t| t.as_ref().map(|t| own(t).unwrap_or_else(|| t.clone())));
            let settled = settled.collect();
            context::with(ctx, |s| s.to_save = settled);
        }
    }

    /// Puts the call on the tape.
    unsafe fn record(&self, class: Obj, ctx: &Owned, args: &[Obj], mut recording: Recording) -> Result<()> {
        if self.tensors.is_empty() {
            return Ok(());
        }
        // SAFETY: live objects, lock held.
        unsafe {
            let rewritten = self.rewritten().map_err(|e| e.with_op(&name_of(class)))?;
            let (saved, no_materialize) = context::with(ctx.0, |s| {
                s.phase = Phase::Recorded;
                (std::mem::take(&mut s.to_save), s.no_materialize)
            });
            let mut saver = recording.saver();
            keep(&saved, no_materialize, &self.tensors, &mut saver);
            self.marks.plain.iter().for_each(|&nr| saver.mark_non_differentiable(nr));
            let kinds = args.iter().map(|&arg| kind(arg)).collect();
            let rule = FunctionRule::new(class, ctx.0, kinds, self.are_tensors.clone());
            let input = |k: usize| args.get(k).map(|&arg| shell::tensor_of(arg));
            let outputs = self.tensors.iter().filter_map(Value::tensor);
            recording.finish(Arc::new(rule), input, outputs, rewritten)?;
            Ok(())
        }
    }

    /// The inputs that get a new history: those that forward wrote to, each at its first place among the results.
    fn rewritten(&self) -> Result<Vec<Rewritten>> {
        let dirty = self.marks.dirty.iter().filter(|t| t.dtype().is_float());
        let placed = dirty.filter_map(|t| Some((t, output_index(&self.tensors, t)?)));
        let mut found: Vec<Rewritten> = Vec::new();
        for (t, nr) in placed {
            if !self.marks.plain.contains(&nr) {
                found.push(Rewritten::new(t, nr)?);
            }
        }
        Ok(found)
    }

    /// The result in the structure that forward gave it.
    unsafe fn object(self) -> Result<Obj> {
        // SAFETY: lock held.
        unsafe {
            if !self.is_changed {
                return Ok(ffi::Py_NewRef(self.result.0));
            }
            let mut rest = self.tensors.iter();
            let mut one = |i: usize| match self.are_tensors[i] {
                true => object_of(rest.next().and_then(Value::tensor)),
                false => ffi::Py_NewRef(self.item(i)),
            };
            if self.is_single {
                return Ok(owned(one(0))?.into_raw());
            }
            tuple_of((0..self.are_tensors.len()).map(one))
        }
    }
}

impl Marks {
    /// The marks of a context; an error where they are not of what they must be of.
    unsafe fn of(class: Obj, ctx: Obj, given: &[&Tensor], inputs: &Tensors<'_>) -> Result<Marks> {
        // SAFETY: a live context, lock held.
        let (dirty, plain) = unsafe {
            context::with(ctx, |s| (std::mem::take(&mut s.dirty), std::mem::take(&mut s.not_differentiable)))
        };
        let place = |t: &Tensor| given.iter().position(|g| g.same(t));
        let is_input = |t: &Tensor| inputs.iter().filter_map(Arg::tensor).any(|i| i.same(t));
        let wrong = |code, what: &str| {
            // SAFETY: a live class, lock held.
            let name = unsafe { name_of(class) };
            Error::contract(code, format!("{name}.forward marked a tensor as {what}")).with_op(&name)
        };
        if !dirty.iter().all(|t| is_input(t) && place(t).is_some()) {
            return Err(wrong("TP3214", "dirty that is not both an input and an output")
                .note("return every input that was written to"));
        }
        let plain = plain.iter().map(place).collect::<Option<Vec<usize>>>();
        let plain = plain.ok_or_else(|| wrong("TP3213", "non-differentiable that is no output"))?;
        let mut once: Vec<Tensor> = Vec::new();
        for t in dirty {
            if !contains(&once, &t) {
                once.push(t);
            }
        }
        Ok(Marks { dirty: once, plain })
    }
}

fn contains(list: &[Tensor], t: &Tensor) -> bool {
    list.iter().any(|o| o.same(t))
}

unsafe fn kind(arg: Obj) -> Kind {
    // SAFETY: a live object.
    unsafe {
        if !shell::is_tensor(arg) {
            return Kind::Other;
        }
        if shell::tensor_of(arg).dtype().is_float() { Kind::Float } else { Kind::Whole }
    }
}
