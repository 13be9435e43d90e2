//! The Vmap layer: a batched tensor stands for one sample of a batch, and a call on one goes to the host, which has
//! the batching rules. Not here: the rules, the levels and who batches what (`tensorplay._batching`).
//!
//! A batched tensor is a stand-in without data whose storage owns the whole batch, so that shapes are read per
//! sample, values cannot be read at all, and the batch lives exactly as long as what stands for it.

use crate::error::guarded;
use crate::error::{self, IntoPyResult};
use crate::hot::ffi::{self as x, Obj};
use crate::hot::pykernel::{self, Role};
use crate::hot::results;
use crate::tensor::{tensor_of, wrap};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::any::Any;
use tp_dispatch::state::{self, KeyGuard};
use tp_dispatch::{Call, DispatchKey, Error, KeySet, Registry, Result, Rets, redispatch};
use tp_tensor::dim::Dims;
use tp_tensor::{StorageOwner, Tensor};

/// A batch and where its samples lie in it.
struct Batch {
    whole: Tensor,
    axis: usize,
    level: u32,
}

impl StorageOwner for Batch {
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

static RULES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static FUNCTIONS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static HOOKS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Makes the Vmap key batch. Called once, at start-up.
pub fn install() {
    Registry::global().install_layer(DispatchKey::Vmap, vmap);
}

fn vmap(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let mut batched = false;
    call.for_each_tensor(|_, t| batched |= t.is_batched());
    if !batched && !call.def.effects.random {
        // What the kernel itself calls is its own business.
        let _passed = KeyGuard::new(KeySet::EMPTY, DispatchKey::Vmap.set());
        return redispatch(call, DispatchKey::Vmap, rets);
    }
    if call.host.0.is_null() {
        return pykernel::from_rust(call, |objects| batch(call, objects, rets));
    }
    batch(call, call.host.0.cast(), rets)
}

/// Hands the call to the host's rules.
fn batch(call: &Call<'_>, objects: *const Obj, rets: &mut Rets) -> Result<()> {
    Python::attach(|py| {
        let Some(rules) = RULES.get(py) else {
            return Err(Error::internal("TP9012", "no batching rules are installed").with_op(call.op.name()));
        };
        let ask = || -> PyResult<Py<PyAny>> {
            // SAFETY: one live object per schema argument.
            let items =
                (0..call.args.len()).map(|i| unsafe { Bound::from_borrowed_ptr(py, *objects.add(i)) });
            x::require_stack()?;
            rules.call1(py, (call.op.name(), PyTuple::new(py, items)?))
        };
        let out = ask().map_err(error::from_py)?.into_ptr();
        // SAFETY: an owned result, lock held.
        unsafe { results::take(call, Role::Kernel, out, rets) }
    })
}

/// The function `(op name, arguments) -> results` that calls on batched tensors go to, `(class, arguments) -> results`
/// for those of a Function, and `(tensor, hook) -> handle` for hooks; the first ones stay.
#[pyfunction]
fn vmap_install(py: Python<'_>, rules: Py<PyAny>, functions: Py<PyAny>, hooks: Py<PyAny>) -> PyResult<()> {
    guarded(|| {
        // A second import of the rules' module installs the same ones again.
        let _ = RULES.set(py, rules);
        let _ = FUNCTIONS.set(py, functions);
        let _ = HOOKS.set(py, hooks);
        Ok(())
    })
}

/// A hook on the gradient of a batched tensor; the handle of the one on the batch.
#[cold]
pub fn hook<'py>(py: Python<'py>, t: &Tensor, hook: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let Some(hooks) = HOOKS.get(py) else {
        return Err(Error::internal("TP9012", "no batching rules are installed")).py(py);
    };
    Ok(hooks.call1(py, (wrap(py, t.clone())?, hook))?.into_bound(py))
}

/// The error of asking for gradients of single samples on the tape, which holds whole batches.
#[cold]
pub fn no_leaf() -> Error {
    Error::autograd("TP3416", "requires_grad of a batched tensor cannot be switched on inside of vmap").note(
        "differentiate the function with tensorplay.func.grad there, or require the gradient outside of vmap",
    )
}

/// A call of the Function `class`, of whose arguments some are batched.
///
/// # Safety
/// Lock held; live objects.
#[cold]
pub unsafe fn function(class: Obj, args: &[Obj]) -> Result<Obj> {
    error::attached(|py| {
        let Some(functions) = FUNCTIONS.get(py) else {
            return Err(Error::internal("TP9012", "no batching rules are installed"));
        };
        // SAFETY: the caller's promise.
        let borrowed = |op: Obj| unsafe { Bound::from_borrowed_ptr(py, op) };
        let ask = || {
            x::require_stack()?;
            functions.call1(py, (borrowed(class), PyTuple::new(py, args.iter().map(|a| borrowed(*a)))?))
        };
        Ok(ask().map_err(error::from_py)?.into_ptr())
    })
}

/// A tensor that stands for one sample of `x` along `axis`.
#[pyfunction]
fn vmap_wrap<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    axis: usize,
    level: u32,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let whole = tensor_of(x)?;
        wrap(py, stand_in(whole, axis, level).py(py)?)
    })
}

fn stand_in(whole: Tensor, axis: usize, level: u32) -> Result<Tensor> {
    if axis >= whole.ndim() {
        return Err(Error::internal("TP9012", "a batch axis outside of its tensor"));
    }
    let mut sizes: Dims = whole.sizes().into();
    sizes.remove(axis);
    let (dtype, device) = (whole.dtype(), whole.device());
    Ok(Tensor::stand_in(&sizes, dtype, device, Box::new(Batch { whole, axis, level }))?)
}

/// `(batch, axis, level)` of a batched tensor, None for any other.
#[pyfunction]
fn vmap_peel<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyAny>, usize, u32)>> {
    guarded(|| {
        let t = tensor_of(x)?;
        let owner = t.storage().owner().and_then(StorageOwner::as_any);
        match owner.and_then(|o| o.downcast_ref::<Batch>()) {
            Some(b) => Ok(Some((wrap(py, b.whole.clone())?, b.axis, b.level))),
            None => Ok(None),
        }
    })
}

/// Makes `stack` the levels of this thread, kept as `levels.stack`, and returns those before. While there are any,
/// every call of the thread goes through the batching rules; else those on batched tensors alone.
#[pyfunction]
fn vmap_enter<'py>(levels: &Bound<'py, PyAny>, stack: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let before = levels.getattr("stack")?;
        levels.setattr("stack", stack)?;
        state::set_included(DispatchKey::Vmap, !stack.is_empty());
        Ok(before)
    })
}

/// The error of reading a value that differs from sample to sample.
#[cold]
pub fn no_value() -> Error {
    Error::capture("TP4021", "the value of a batched tensor was read inside of vmap")
        .note("it differs from sample to sample: keep it a tensor, for example with where() instead of if")
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(vmap_install, m)?)?;
    m.add_function(wrap_pyfunction!(vmap_wrap, m)?)?;
    m.add_function(wrap_pyfunction!(vmap_peel, m)?)?;
    m.add_function(wrap_pyfunction!(vmap_enter, m)?)
}
