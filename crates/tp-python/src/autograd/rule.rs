//! A differentiation rule written in Python: `setup_context` when a call is recorded, `backward` when its gradients
//! are asked for.

use super::context::{self, Needs, Phase};
use super::object;
use super::returned::{Marked, Owned};
use crate::error;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::{convert, queue, ret, shell};
use crate::watching;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};
use pyo3::{IntoPyObjectExt, ffi};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;
use tp_autograd::rule::{BackwardCtx, Gradients, Short, VjpRule};
use tp_autograd::tape::{Edge, Saver};
use tp_dispatch::host::{HostObject, HostVisitor};
use tp_dispatch::{Arg, Call, Error, Result, Schema, Value};
use tp_tensor::Tensor;

pub struct PyRule {
    pub(super) op: String,
    backward: Obj,
    setup: Obj,
    pub(super) inputs: Vec<Input>,
    keyword_only: Vec<String>,
    returns: Vec<Return>,
    /// Nothing is set up, no list comes or goes, and one tensor (no tuple of one) is returned.
    is_plain: bool,
}

/// One positional argument.
pub(super) struct Input {
    pub name: String,
    pub kind: Kind,
    /// For messages.
    pub type_text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tensor,
    List,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Return {
    Tensor,
    List,
    Other,
}

// SAFETY: the objects are touched only with the interpreter lock held, and dropped through the queue.
unsafe impl Send for PyRule {}
// SAFETY: as above.
unsafe impl Sync for PyRule {}

pub(super) const NO_MATERIALIZE: u64 = 1;
/// Bits of a node above the first: which of the first arguments can have a gradient at all.
const MASKED: usize = 63;

impl PyRule {
    pub fn new(
        op: &str,
        schema: &Schema,
        backward: &Bound<'_, PyAny>,
        setup: Option<&Bound<'_, PyAny>>,
    ) -> PyRule {
        let (positional, keyword) = schema.arguments().split_at(schema.positional_count());
        // SAFETY: live callables, lock held.
        let own = |f: &Bound<'_, PyAny>| unsafe { ffi::Py_NewRef(f.as_ptr()) };
        let input = |a: &tp_dispatch::schema::Argument| Input {
            name: a.name().to_string(),
            kind: match return_kind(a.ty()) {
                Return::Tensor => Kind::Tensor,
                Return::List => Kind::List,
                Return::Other => Kind::Other,
            },
            type_text: a.ty().annotation(),
        };
        let is_long = positional.len() > MASKED
            || !keyword.is_empty()
            || positional.iter().any(|a| return_kind(a.ty()) == Return::List);
        let gives_one = matches!(schema.returns(), [r] if *r.ty() == tp_dispatch::schema::ArgType::Tensor);
        PyRule {
            op: op.to_string(),
            backward: own(backward),
            setup: setup.map_or(std::ptr::null_mut(), own),
            inputs: positional.iter().map(input).collect(),
            keyword_only: keyword.iter().map(|a| a.name().to_string()).collect(),
            returns: schema.returns().iter().map(|r| return_kind(r.ty())).collect(),
            is_plain: setup.is_none() && gives_one && !is_long,
        }
    }

    fn run_setup(
        &self,
        py: Python<'_>,
        call: &Call<'_>,
        rets: &[Value],
        saver: &mut Saver<'_>,
    ) -> Result<()> {
        // SAFETY: lock held; the context is owned until the node has it.
        unsafe {
            let ctx = Owned(context::new()?);
            let needs = self.needs(py, call, saver.edges());
            context::with(ctx.0, |s| s.needs = needs);
            self.call_setup(py, ctx.0, call, rets).map_err(error::from_py)?;
            let marked = context::with(ctx.0, |s| {
                s.phase = Phase::Recorded;
                Marked {
                    save: std::mem::take(&mut s.to_save),
                    plain: std::mem::take(&mut s.not_differentiable),
                    dirty: !std::mem::take(&mut s.dirty).is_empty(),
                    no_materialize: s.no_materialize,
                }
            });
            marked.store(&self.op, rets, saver)?;
            saver.set_payload(Arc::new(Payload(ctx)));
        }
        Ok(())
    }

    fn call_setup<'py>(
        &self,
        py: Python<'py>,
        ctx: Obj,
        call: &Call<'_>,
        rets: &[Value],
    ) -> PyResult<Bound<'py, PyAny>> {
        let n = self.inputs.len();
        let kwargs = PyDict::new(py);
        // SAFETY: a live object.
        kwargs.set_item("ctx", unsafe { Bound::from_borrowed_ptr(py, ctx) })?;
        kwargs.set_item(
            "inputs",
            PyTuple::new(py, (0..n).map(|i| argument(py, call, i)).collect::<PyResult<Vec<_>>>()?)?,
        )?;
        kwargs.set_item("output", outputs(py, rets, &call.def.schema)?)?;
        if !self.keyword_only.is_empty() {
            let extra = PyDict::new(py);
            for (k, name) in self.keyword_only.iter().enumerate() {
                extra.set_item(name, argument(py, call, n + k)?)?;
            }
            kwargs.set_item("keyword_only_inputs", extra)?;
        }
        // SAFETY: a live callable.
        let setup = unsafe { Bound::from_borrowed_ptr(py, self.setup) };
        x::require_stack()?;
        // A view of an output that ctx keeps would own the output, whose history will own ctx.
        let alone = |on| rets.iter().for_each(|v| v.for_each_tensor(|t| t.set_alone(on)));
        alone(true);
        let result = watching::paused(|| setup.call((), Some(&kwargs)));
        alone(false);
        result
    }

    /// One bool per positional input; for a list one of its own length.
    fn needs(&self, py: Python<'_>, call: &Call<'_>, edges: &[Edge]) -> Needs {
        let length = |i: usize| match call.args.get(i) {
            Some(Arg::Tensors(ts)) => Some(ts.len()),
            Some(Arg::OptTensors(ts)) => Some(ts.len()),
            _ => None,
        };
        self.needs_of(py, edges, &length)
    }

    fn needs_of(&self, py: Python<'_>, edges: &[Edge], length: &dyn Fn(usize) -> Option<usize>) -> Needs {
        let inputs = self.inputs.len();
        if inputs <= 64 && !self.has_lists() {
            let bits = edges.iter().fold(0u64, |bits, e| bits | 1 << (e.arg() & 63));
            return Needs::Bits { bits, inputs };
        }
        let needs = |i: usize| edges.iter().any(|e| e.arg() == i);
        let item = |i: usize, k: usize| edges.iter().any(|e| e.arg() == i && e.index() == k);
        let one = |i: usize| match length(i) {
            Some(n) => PyList::new(py, (0..n).map(|k| item(i, k)))
                .map_or_else(|_| py.None().into_bound(py), Bound::into_any),
            None => boolean(py, needs(i)),
        };
        let tuple = PyTuple::new(py, (0..inputs).map(one));
        tuple.map_or(Needs::Unknown, |t| Needs::Object(t.into_any().into_ptr()))
    }

    fn has_lists(&self) -> bool {
        self.inputs.iter().any(|i| i.kind == Kind::List)
    }

    /// Which of the first arguments are floating tensors, as bits from the second on.
    #[inline]
    fn kinds(&self, call: &Call<'_>) -> u64 {
        let first = call.args.iter().take(self.inputs.len().min(MASKED)).enumerate();
        first.fold(0, |bits, (i, arg)| match arg {
            Arg::Tensor(t) => bits | u64::from(t.dtype().is_float()) << (i + 1),
            _ => bits,
        })
    }

    /// Keeps which arguments can have a gradient: floating tensors that are there; for a list, which of its items.
    fn keep_kinds(&self, call: &Call<'_>, saver: &mut Saver<'_>) {
        let can = |i: usize| matches!(call.args.get(i), Some(Arg::Tensor(t)) if t.dtype().is_float());
        saver.set_bits(self.kinds(call));
        if self.inputs.len() > MASKED {
            saver.value(Value::Bools((MASKED..self.inputs.len()).map(can).collect()));
        }
        for (i, _) in self.inputs.iter().enumerate().filter(|(_, input)| input.kind == Kind::List) {
            saver.value(match call.args.get(i) {
                Some(Arg::Tensors(ts)) => Value::Bools(ts.iter().map(|t| t.dtype().is_float()).collect()),
                Some(Arg::OptTensors(ts)) => Value::Bools(
                    ts.iter().map(|t| t.as_ref().is_some_and(|t| t.dtype().is_float())).collect(),
                ),
                _ => Value::None,
            });
        }
    }

    /// Where the kept kinds of arguments begin among a node's values.
    fn kinds_at(&self) -> usize {
        self.returns.iter().filter(|r| **r == Return::List).count()
    }

    /// Whether argument `i` was a floating tensor.
    pub(super) fn can_have(&self, ctx: &BackwardCtx<'_>, i: usize) -> bool {
        if i < MASKED {
            return ctx.bits() >> (i + 1) & 1 == 1;
        }
        matches!(ctx.value(self.kinds_at()), Value::Bools(all) if all.get(i - MASKED) == Some(&true))
    }

    /// Which items of the list argument `i` were floating tensors; None where there was no list.
    pub(super) fn list_kinds<'a>(&self, ctx: &BackwardCtx<'a>, i: usize) -> Option<&'a [bool]> {
        let before = self.inputs[..i].iter().filter(|input| input.kind == Kind::List).count();
        let wide = usize::from(self.inputs.len() > MASKED);
        match ctx.value(self.kinds_at() + wide + before) {
            Value::Bools(items) => Some(items),
            _ => None,
        }
    }

    /// Gradients of the outputs as the rule gets them: zeros for outputs nobody used, unless it asked for None.
    fn gradients<'py>(
        &self,
        py: Python<'py>,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
    ) -> Result<SmallVec<[Bound<'py, PyAny>; 2]>> {
        let materialize = ctx.bits() & NO_MATERIALIZE == 0;
        let mut nr = 0;
        let mut next = || -> Result<Bound<'py, PyAny>> {
            let k = nr;
            nr += 1;
            let grad = match grads.get(k).and_then(Option::as_ref) {
                Some(g) => Some(g.clone()),
                None if materialize => ctx.output_spec(k).map(zeros).transpose()?,
                None => None,
            };
            object(py, grad.as_ref()).map_err(error::from_py)
        };
        let counts = ctx.values();
        let mut lists = 0;
        let mut out = SmallVec::new();
        for kind in &self.returns {
            out.push(match kind {
                Return::Tensor => next()?,
                Return::Other => py.None().into_bound(py),
                Return::List => {
                    let n = counts.get(lists).and_then(|v| v.as_arg().int()).unwrap_or(0);
                    lists += 1;
                    let items = (0..n).map(|_| next()).collect::<Result<Vec<_>>>()?;
                    PyList::new(py, items).map_err(error::from_py)?.into_any()
                }
            });
        }
        Ok(out)
    }
}

fn return_kind(ty: &tp_dispatch::schema::ArgType) -> Return {
    use tp_dispatch::schema::ArgType;
    if let ArgType::Tuple(items) = ty {
        return match items.len() {
            _ if items.iter().any(|t| *t != ArgType::Tensor) => Return::Other,
            1 => Return::Tensor,
            _ => Return::List,
        };
    }
    if ty.as_list().is_some() && ty.is_tensor_like() {
        Return::List
    } else if ty.is_tensor_like() {
        Return::Tensor
    } else {
        Return::Other
    }
}

impl VjpRule for PyRule {
    fn name(&self) -> &str {
        &self.op
    }

    fn save_outputs(&self, call: &Call<'_>, rets: &[Value], saver: &mut Saver<'_>) -> Result<()> {
        let n = self.inputs.len();
        if let Some(k) = (0..self.keyword_only.len()).find(|k| saver.needs(n + k)) {
            return Err(keyword_gradient(&self.op, &self.keyword_only[k]));
        }
        for value in rets {
            if let Value::Tensors(ts) = value {
                saver.int(ts.len() as i64);
            }
        }
        self.keep_kinds(call, saver);
        if self.setup.is_null() {
            return Ok(());
        }
        error::attached(|py| self.run_setup(py, call, rets, saver))
    }

    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        gradients_out: &mut Gradients<'_>,
    ) -> Result<()> {
        if let ([Some(grad)], true) = (grads, self.is_plain) {
            // SAFETY: asks about this thread.
            if unsafe { x::PyGILState_Check() } == 1 {
                // SAFETY: lock held.
                return unsafe { self.backward_plain(ctx, grad, gradients_out) };
            }
        }
        error::attached(|py| {
            let payload = ctx.payload();
            let held = payload.as_ref().and_then(|p| p.as_any().downcast_ref::<Payload>());
            // SAFETY: lock held; a live callable and live arguments; what is entered is left before `ctx` goes.
            unsafe {
                let object = Owned(match held {
                    Some(p) => ffi::Py_NewRef(p.0.0),
                    None => self.bare_context(py, ctx)?,
                });
                let grads = self.gradients(py, ctx, grads)?;
                let mut args: SmallVec<[Obj; 4]> = SmallVec::new();
                args.push(object.0);
                args.extend(grads.iter().map(|g| g.as_ptr()));
                context::enter(object.0, ctx);
                let call = || x::vectorcall(self.backward, args.as_ptr(), args.len(), std::ptr::null_mut());
                let out = watching::paused(call);
                context::leave(object.0, ctx);
                let result = Bound::from_owned_ptr_or_err(py, out).map_err(error::from_py)?;
                self.store(&result, ctx, gradients_out)?;
                if ctx.is_last() {
                    context::with(object.0, |s| s.free());
                }
                Ok(())
            }
        })
    }

    fn is_foreign(&self) -> bool {
        true
    }

    fn short(&self) -> Short {
        if self.is_plain { Short::Kinds } else { Short::No }
    }

    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.backward.cast());
        if !self.setup.is_null() {
            visit(self.setup.cast());
        }
    }
}

#[cold]
fn keyword_gradient(op: &str, name: &str) -> Error {
    let message =
        format!("keyword-only argument '{name}' requires a gradient, which the backward rule cannot return");
    Error::autograd("TP3024", message)
        .with_op(op)
        .note("backward returns one gradient per positional argument: make it positional, or pass x.detach()")
}

impl PyRule {
    /// One gradient in, and nothing that was set up: without a list on the way.
    ///
    /// # Safety
    /// Lock held.
    unsafe fn backward_plain(
        &self,
        ctx: &BackwardCtx<'_>,
        grad: &Tensor,
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        let bits = ctx.edges().iter().fold(0u64, |bits, e| bits | 1 << (e.arg() & 63));
        // SAFETY: a live callable and live arguments; what is entered is left before `ctx` goes.
        unsafe {
            let object = context::borrow(Needs::Bits { bits, inputs: self.inputs.len() })?;
            let args = [object, shell::wrap_ref(grad)];
            if args[1].is_null() {
                context::give_up(object);
                return Err(error::fetch());
            }
            context::enter(object, ctx);
            let call = || x::vectorcall(self.backward, args.as_ptr(), 2, std::ptr::null_mut());
            let result = watching::paused(call);
            context::leave(object, ctx);
            ffi::Py_DECREF(args[1]);
            context::give_up(object);
            if result.is_null() {
                return Err(error::fetch());
            }
            let stored = if self.store_plain(result, ctx, out) {
                Ok(())
            } else {
                error::attached(|py| self.store(&Bound::from_borrowed_ptr(py, result), ctx, out))
            };
            ffi::Py_DECREF(result);
            stored
        }
    }

    /// A context for a rule that has no setup function.
    unsafe fn bare_context(&self, py: Python<'_>, ctx: &BackwardCtx<'_>) -> Result<Obj> {
        let needs = self.needs_of(py, ctx.edges(), &|i| match self.inputs[i].kind {
            Kind::List => self.list_kinds(ctx, i).map(<[bool]>::len),
            _ => None,
        });
        // SAFETY: lock held; a fresh context.
        unsafe {
            let object = context::new()?;
            context::with(object, |s| {
                s.needs = needs;
                s.phase = Phase::Bare;
            });
            Ok(object)
        }
    }
}

impl Drop for PyRule {
    fn drop(&mut self) {
        queue::release(self.backward);
        queue::release(self.setup);
    }
}

/// The context, as the node keeps it.
struct Payload(Owned);

impl HostObject for Payload {
    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.0.0.cast());
    }
    fn clear(&self) {}
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Positional or keyword-only argument `i` as the caller's own object where there is one.
fn argument<'py>(py: Python<'py>, call: &Call<'_>, i: usize) -> PyResult<Bound<'py, PyAny>> {
    if !call.host.0.is_null() {
        // SAFETY: one live object per schema argument.
        return Ok(unsafe { Bound::from_borrowed_ptr(py, (*call.host.0.add(i)).cast()) });
    }
    match call.args.get(i) {
        // SAFETY: lock held.
        Some(arg) => unsafe { Bound::from_owned_ptr_or_err(py, convert::arg_to_object(*arg)) },
        None => py.None().into_bound_py_any(py),
    }
}

fn outputs<'py>(py: Python<'py>, rets: &[Value], schema: &Schema) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: lock held.
    let one = |v: &Value| unsafe { Bound::from_owned_ptr_or_err(py, convert::value_to_object(v)) };
    match rets {
        [Value::Tensors(items)] if ret::returns_tuple(schema) => {
            let items = items.iter().map(|t| one(&Value::Tensor(t.clone()))).collect::<PyResult<Vec<_>>>()?;
            Ok(PyTuple::new(py, items)?.into_any())
        }
        [v] => one(v),
        many => Ok(PyTuple::new(py, many.iter().map(one).collect::<PyResult<Vec<_>>>()?)?.into_any()),
    }
}

fn boolean(py: Python<'_>, v: bool) -> Bound<'_, PyAny> {
    PyBool::new(py, v).to_owned().into_any()
}

pub(super) fn zeros(spec: &tp_autograd::tape::Spec) -> Result<Tensor> {
    let args = [Arg::Ints(&spec.sizes), Arg::DType(spec.dtype), Arg::Device(spec.device)];
    tp_dispatch::call_one(tp_dispatch::Registry::global().lookup("tp::zeros")?, &args)
}
