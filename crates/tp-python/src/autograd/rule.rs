//! A differentiation rule written in Python: `setup_context` when a call is recorded, `backward` when its gradients
//! are asked for.

use super::context::{Context, Needs, boolean, object};
use crate::error;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::{convert, queue, shell};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use pyo3::{IntoPyObjectExt, ffi};
use smallvec::{SmallVec, smallvec};
use std::any::Any;
use std::sync::Arc;
use tp_autograd::rule::{BackwardCtx, Gradients, VjpRule, wrong_count};
use tp_autograd::tape::Saver;
use tp_dispatch::host::{HostObject, HostVisitor};
use tp_dispatch::{Arg, Call, Error, Result, Schema, Value};
use tp_tensor::Tensor;

pub struct PyRule {
    op: String,
    backward: Obj,
    setup: Obj,
    /// One entry per positional argument: its name, and whether it is a list.
    inputs: Vec<(String, bool)>,
    keyword_only: Vec<String>,
    /// One entry per return: true for lists.
    returns: Vec<Return>,
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

const NO_MATERIALIZE: u64 = 1;

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
        PyRule {
            op: op.to_string(),
            backward: own(backward),
            setup: setup.map_or(std::ptr::null_mut(), own),
            inputs: positional.iter().map(|a| (a.name().to_string(), a.ty().as_list().is_some())).collect(),
            keyword_only: keyword.iter().map(|a| a.name().to_string()).collect(),
            returns: schema.returns().iter().map(|r| return_kind(r.ty())).collect(),
        }
    }

    fn run_setup(
        &self,
        py: Python<'_>,
        call: &Call<'_>,
        rets: &[Value],
        saver: &mut Saver<'_>,
    ) -> Result<()> {
        let ctx = Bound::new(py, Context::new()).map_err(error::from_py)?;
        let needs = self.needs_tuple(py, call.args, &|a| saver.needs(a), &|a, i| saver.needs_item(a, i));
        ctx.get().with(|s| s.needs = needs.map_or(Needs::Unknown, |t| Needs::Object(t.into_any().unbind())));
        self.call_setup(py, &ctx, call, rets).map_err(error::from_py)?;
        let (tensors, plain, skip) = ctx.get().with(|s| {
            (std::mem::take(&mut s.to_save), s.no_materialize, std::mem::take(&mut s.not_differentiable))
        });
        for t in tensors {
            save(saver, t.as_ref(), rets);
        }
        if plain {
            saver.set_bits(NO_MATERIALIZE);
        }
        for t in skip {
            if let Some(nr) = output_index(rets, &t) {
                saver.mark_non_differentiable(nr);
            }
        }
        saver.set_payload(Arc::new(Payload(ctx.unbind())));
        Ok(())
    }

    fn call_setup(
        &self,
        py: Python<'_>,
        ctx: &Bound<'_, Context>,
        call: &Call<'_>,
        rets: &[Value],
    ) -> PyResult<()> {
        let n = self.inputs.len();
        let kwargs = PyDict::new(py);
        kwargs.set_item("ctx", ctx)?;
        kwargs.set_item(
            "inputs",
            PyTuple::new(py, (0..n).map(|i| argument(py, call, i)).collect::<PyResult<Vec<_>>>()?)?,
        )?;
        kwargs.set_item("output", outputs(py, rets)?)?;
        if !self.keyword_only.is_empty() {
            let extra = PyDict::new(py);
            for (k, name) in self.keyword_only.iter().enumerate() {
                extra.set_item(name, argument(py, call, n + k)?)?;
            }
            kwargs.set_item("keyword_only_inputs", extra)?;
        }
        // SAFETY: a live callable.
        let setup = unsafe { Bound::from_borrowed_ptr(py, self.setup) };
        setup.call((), Some(&kwargs)).map(drop)
    }

    fn needs_tuple<'py>(
        &self,
        py: Python<'py>,
        args: &[Arg<'_>],
        needs: &dyn Fn(usize) -> bool,
        item: &dyn Fn(usize, usize) -> bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let one = |i: usize| match args.get(i) {
            Some(Arg::Tensors(ts)) => Ok(PyList::new(py, (0..ts.len()).map(|k| item(i, k)))?.into_any()),
            Some(Arg::OptTensors(ts)) => Ok(PyList::new(py, (0..ts.len()).map(|k| item(i, k)))?.into_any()),
            _ => Ok(boolean(py, needs(i))),
        };
        PyTuple::new(py, (0..self.inputs.len()).map(one).collect::<PyResult<Vec<_>>>()?)
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

    /// What the rule returned, into the places of the inputs.
    fn store(&self, result: &Bound<'_, PyAny>, ctx: &BackwardCtx<'_>, out: &mut Gradients<'_>) -> Result<()> {
        let n = self.inputs.len();
        let items: SmallVec<[Bound<'_, PyAny>; 2]> = match result.cast::<PyTuple>() {
            Ok(t) => t.iter().collect(),
            Err(_) if result.is_instance_of::<PyList>() && !(n == 1 && self.inputs[0].1) => {
                return Err(
                    Error::contract("TP3230", "backward must return a tuple, got a list").with_op(&self.op)
                );
            }
            Err(_) => smallvec![result.clone()],
        };
        if items.len() != n {
            return Err(wrong_count(&self.op, n, items.len()));
        }
        for (i, (item, (name, is_list))) in items.iter().zip(&self.inputs).enumerate() {
            if item.is_none() {
                continue;
            }
            if *is_list {
                self.store_list(i, name, item, ctx, out)?;
            } else {
                out.set(i, self.gradient(name, item)?);
            }
        }
        Ok(())
    }

    fn store_list(
        &self,
        i: usize,
        name: &str,
        item: &Bound<'_, PyAny>,
        ctx: &BackwardCtx<'_>,
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        let wrong = |got: String| {
            let message = format!("the gradient of '{name}' must be a list like the input, got {got}");
            Error::contract("TP3231", message).with_op(&self.op)
        };
        let Ok(list) = item.cast::<PyList>() else { return Err(wrong(item.get_type().to_string())) };
        let highest = ctx.edges().iter().filter(|e| e.arg() == i).map(|e| e.index() + 1).max().unwrap_or(0);
        if list.len() < highest {
            return Err(wrong(format!("{} elements", list.len())));
        }
        for (k, g) in list.iter().enumerate() {
            if !g.is_none() {
                out.set_item(i, k, self.gradient(name, &g)?);
            }
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
        let got = item.get_type().name().map_or_else(|_| "object".to_string(), |n| n.to_string());
        let message = format!("the gradient of '{name}' must be a Tensor or None, got {got}");
        Err(Error::contract("TP3232", message).with_op(&self.op))
    }
}

fn return_kind(ty: &tp_dispatch::schema::ArgType) -> Return {
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
        for value in rets {
            if let Value::Tensors(ts) = value {
                saver.int(ts.len() as i64);
            }
        }
        if self.setup.is_null() {
            return Ok(());
        }
        error::attached(|py| self.run_setup(py, call, rets, saver))
    }

    fn backward(
        &self,
        ctx: &BackwardCtx<'_>,
        grads: &[Option<Tensor>],
        out: &mut Gradients<'_>,
    ) -> Result<()> {
        error::attached(|py| {
            let payload = ctx.payload();
            let held = payload.as_ref().and_then(|p| p.as_any().downcast_ref::<Payload>());
            let object = match held {
                Some(p) => p.0.bind(py).clone(),
                None => Bound::new(py, Context::new()).map_err(error::from_py)?,
            };
            let unpacked = (0..ctx.saved_count()).map(|k| ctx.saved_opt(k)).collect();
            let needs = self.needs_of(py, ctx);
            object.get().with(|s| {
                s.unpacked = unpacked;
                s.needs = needs;
            });
            let grads = self.gradients(py, ctx, grads)?;
            let mut args: SmallVec<[Obj; 4]> = SmallVec::new();
            args.push(object.as_ptr());
            args.extend(grads.iter().map(|g| g.as_ptr()));
            // SAFETY: a live callable and live arguments.
            let result = unsafe {
                let out =
                    x::PyObject_Vectorcall(self.backward, args.as_ptr(), args.len(), std::ptr::null_mut());
                Bound::from_owned_ptr_or_err(py, out)
            };
            let gone = object.get().with(|s| std::mem::take(&mut s.unpacked));
            drop(gone);
            self.store(&result.map_err(error::from_py)?, ctx, out)
        })
    }

    fn is_foreign(&self) -> bool {
        true
    }

    fn reaches_host(&self) -> bool {
        true
    }

    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.backward.cast());
        if !self.setup.is_null() {
            visit(self.setup.cast());
        }
    }
}

impl PyRule {
    fn needs_of(&self, py: Python<'_>, ctx: &BackwardCtx<'_>) -> Needs {
        let inputs = self.inputs.len();
        if inputs <= 64 && !self.inputs.iter().any(|(_, is_list)| *is_list) {
            let bits = ctx.edges().iter().fold(0u64, |bits, e| bits | 1 << (e.arg() & 63));
            return Needs::Bits { bits, inputs };
        }
        let one = |i: usize| {
            if !self.inputs[i].1 {
                return boolean(py, ctx.needs(i));
            }
            let n = ctx.edges().iter().filter(|e| e.arg() == i).map(|e| e.index() + 1).max().unwrap_or(0);
            let list = PyList::new(py, (0..n).map(|k| ctx.needs_item(i, k)));
            list.map_or_else(|_| py.None().into_bound(py), Bound::into_any)
        };
        let tuple = PyTuple::new(py, (0..inputs).map(one));
        tuple.map_or(Needs::Unknown, |t| Needs::Object(t.into_any().unbind()))
    }
}

impl Drop for PyRule {
    fn drop(&mut self) {
        queue::release(self.backward);
        queue::release(self.setup);
    }
}

/// The context, as the node keeps it.
struct Payload(Py<Context>);

impl HostObject for Payload {
    fn trace(&self, visit: &mut HostVisitor<'_>) {
        visit(self.0.as_ptr().cast());
    }
    fn clear(&self) {}
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn save(saver: &mut Saver<'_>, t: Option<&Tensor>, rets: &[Value]) {
    match t {
        None => saver.none(),
        Some(t) => match output_index(rets, t) {
            Some(nr) => saver.output(t, nr),
            None => saver.input(t),
        },
    }
}

/// Which output a tensor is, counting every tensor the call returned.
fn output_index(rets: &[Value], t: &Tensor) -> Option<usize> {
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

/// Positional or keyword-only argument `i` as the caller's own object where there is one.
fn argument<'py>(py: Python<'py>, call: &Call<'_>, i: usize) -> PyResult<Bound<'py, PyAny>> {
    if !call.host.0.is_null() {
        // SAFETY: one live object per schema argument.
        return Ok(unsafe { Bound::from_borrowed_ptr(py, (*call.host.0.add(i)).cast()) });
    }
    match call.args.get(i) {
        // SAFETY: lock held.
        Some(arg) => unsafe { Bound::from_owned_ptr_or_err(py, convert::value_to_object(&arg.to_value())) },
        None => py.None().into_bound_py_any(py),
    }
}

fn outputs<'py>(py: Python<'py>, rets: &[Value]) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: lock held.
    let one = |v: &Value| unsafe { Bound::from_owned_ptr_or_err(py, convert::value_to_object(v)) };
    match rets {
        [v] => one(v),
        many => Ok(PyTuple::new(py, many.iter().map(one).collect::<PyResult<Vec<_>>>()?)?.into_any()),
    }
}

fn zeros(spec: &tp_autograd::tape::Spec) -> Result<Tensor> {
    let op = tp_dispatch::Registry::global().lookup("tp::zeros")?;
    let args = [Arg::Ints(&spec.sizes), Arg::DType(spec.dtype), Arg::Device(spec.device)];
    let mut rets = tp_dispatch::Rets::new();
    tp_dispatch::call(op, &args, tp_dispatch::kernel::HostArgs::NONE, &mut rets)?;
    rets.pop().and_then(Value::into_tensor).ok_or_else(|| Error::internal("TP9008", "zeros gave no tensor"))
}
