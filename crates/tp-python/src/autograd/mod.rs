//! Differentiation from Python: registering rules, running backward, and what a tensor says about its history.

mod context;
mod context_methods;
mod function;
mod function_call;
mod function_rule;
mod hooks;
mod packing;
mod returned;
mod rule;

use crate::error::guarded;
use crate::error::{self, IntoPyResult};
use crate::hot::shell;
use crate::settle;

use pyo3::prelude::*;
use std::sync::Arc;
use tp_autograd::GradOptions;
use tp_dispatch::state::Excursion;
use tp_dispatch::{Error, GradSpec, OpDef, OpHandle, Registry, Result};
use tp_graph::capture::watch::Fact;
use tp_graph::capture::{self, watch};
use tp_graph::segments;
use tp_tensor::Tensor;

/// A backward rule that can be taken back.
#[pyclass(frozen, module = "tensorplay._native")]
struct GradRegistration {
    op: OpHandle,
    before: GradSpec,
    own: GradSpec,
}

#[pymethods]
impl GradRegistration {
    /// Puts the rule before in its place again; nothing happens where another one has come since.
    fn undo(&self, py: Python<'_>) -> PyResult<()> {
        guarded(|| {
            let put_back = |d: &OpDef| {
                let grad = if is_same(&d.grad, &self.own) { &self.before } else { &d.grad };
                d.with(None, Some(grad.clone()))
            };
            match self.op.def() {
                Some(_) => Registry::global().redefine(self.op, put_back).py(py),
                None => Ok(()),
            }
        })
    }
}

fn is_same(a: &GradSpec, b: &GradSpec) -> bool {
    match (a, b) {
        (GradSpec::Custom(a), GradSpec::Custom(b)) => Arc::ptr_eq(a, b),
        (GradSpec::NotDifferentiable(a), GradSpec::NotDifferentiable(b)) => std::ptr::eq(*a, *b),
        _ => false,
    }
}

fn register_spec(py: Python<'_>, op: OpHandle, spec: GradSpec) -> PyResult<GradRegistration> {
    let before = op.def().map(|d| d.grad.clone()).unwrap_or_default();
    Registry::global().redefine(op, |d| d.with(None, Some(spec.clone()))).py(py)?;
    Ok(GradRegistration { op, before, own: spec })
}

/// Registers a backward rule for `name`: `backward(ctx, *grads)`, and `setup_context(ctx, inputs, output)`.
#[pyfunction]
#[pyo3(signature = (name, backward, setup_context=None))]
fn register_autograd(
    py: Python<'_>,
    name: &str,
    backward: &Bound<'_, PyAny>,
    setup_context: Option<&Bound<'_, PyAny>>,
) -> PyResult<GradRegistration> {
    guarded(|| {
        let op = Registry::global().lookup(name).py(py)?;
        let Some(def) = op.def() else {
            return Err(error::to_py(py, Error::registration("TP1305", format!("{name} was unregistered"))));
        };
        let rule = rule::PyRule::new(op.name(), &def.schema, backward, setup_context);
        register_spec(py, op, tp_autograd::custom_spec(Arc::new(rule)))
    })
}

/// Declares that `name` has no gradient: its outputs never require one.
#[pyfunction]
fn register_autograd_none(py: Python<'_>, name: &str) -> PyResult<GradRegistration> {
    guarded(|| {
        let op = Registry::global().lookup(name).py(py)?;
        register_spec(py, op, GradSpec::NotDifferentiable("declared by its author"))
    })
}

/// A tensor argument of a PyO3 function.
pub struct TensorArg(pub Tensor);

impl<'py> FromPyObject<'_, 'py> for TensorArg {
    type Error = PyErr;
    fn extract(obj: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // SAFETY: a live object.
        unsafe {
            if shell::is_tensor(obj.as_ptr()) {
                let t = shell::tensor_of(obj.as_ptr()).clone();
                settle::quietly(&t).map_err(|e| error::to_py(obj.py(), e))?;
                return Ok(TensorArg(t));
            }
        }
        let message = format!("expected a Tensor, got {}", obj.get_type().name()?);
        Err(error::to_py(obj.py(), Error::argument("TP3305", message)))
    }
}

fn tensors(list: Vec<TensorArg>) -> Vec<Tensor> {
    list.into_iter().map(|t| t.0).collect()
}

fn optional(list: Vec<Option<TensorArg>>) -> Vec<Option<Tensor>> {
    list.into_iter().map(|t| t.map(|t| t.0)).collect()
}

fn options(retain_graph: Option<bool>, create_graph: bool, allow_unused: bool) -> GradOptions {
    GradOptions { retain_graph, create_graph, allow_unused }
}

/// Runs backward from `outputs` and adds to the `.grad` of every leaf reached, or of `inputs` alone.
#[pyfunction]
#[pyo3(signature = (outputs, gradients, retain_graph, create_graph, inputs=None))]
fn backward(
    py: Python<'_>,
    outputs: Vec<TensorArg>,
    gradients: Vec<Option<TensorArg>>,
    retain_graph: Option<bool>,
    create_graph: bool,
    inputs: Option<Vec<TensorArg>>,
) -> PyResult<()> {
    guarded(|| {
        let (outputs, inputs) = (tensors(outputs), tensors(inputs.unwrap_or_default()));
        stays_inside(&outputs, &inputs).py(py)?;
        let _at_once = settle::leave("backward()").py(py)?;
        let options = options(retain_graph, create_graph, true);
        tp_autograd::backward(&outputs, &optional(gradients), options, &inputs).py(py)
    })
}

/// How many nodes of the tape that reach Python objects are alive.
#[pyfunction]
fn live_nodes() -> PyResult<usize> {
    guarded(|| Ok(crate::hot::node_host::live()))
}

/// Gradients of `outputs` with respect to `inputs`, one per input; None where `allow_unused` permits it.
#[pyfunction]
#[pyo3(signature = (outputs, inputs, gradients, retain_graph, create_graph, allow_unused))]
fn grad<'py>(
    py: Python<'py>,
    outputs: Vec<TensorArg>,
    inputs: Vec<TensorArg>,
    gradients: Vec<Option<TensorArg>>,
    retain_graph: Option<bool>,
    create_graph: bool,
    allow_unused: bool,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    guarded(|| {
        let (outputs, inputs, gradients) = (tensors(outputs), tensors(inputs), optional(gradients));
        watch::gradients(&outputs, &inputs).py(py)?;
        let _at_once = settle::leave("grad()").py(py)?;
        let found = tp_autograd::grad(
            &outputs,
            &inputs,
            &gradients,
            options(retain_graph, create_graph, allow_unused),
        )
        .py(py)?;
        found.iter().map(|g| object(py, g.as_ref())).collect()
    })
}

/// Counts a leaf no longer among those that others may differentiate by.
#[pyfunction]
fn hide_leaf(py: Python<'_>, x: TensorArg) -> PyResult<()> {
    guarded(|| tp_autograd::hide_leaf(&x.0).py(py))
}

/// Whether a leaf other than `inputs` takes part in `outputs`.
#[pyfunction]
fn reaches_other_leaf(py: Python<'_>, outputs: Vec<TensorArg>, inputs: Vec<TensorArg>) -> PyResult<bool> {
    guarded(|| tp_autograd::reaches_other_leaf(&tensors(outputs), &tensors(inputs)).py(py))
}

// ---- what a tensor says and is told ----

/// The gradient kept for `t`. Under capture that of a tensor from outside is guarded where there is none, else refused.
pub fn get_grad(t: &Tensor) -> Result<Option<Tensor>> {
    if capture::active() && watch::behind(t).is_some() {
        if !watch::answer(t, Fact::HasGrad, |_| false)? {
            return Ok(None);
        }
        return Err(watch::refusal(
            "TP4030",
            "grad of a tensor from outside of the captured function was read",
        )
        .note("pass the gradient in as an argument: it is another tensor in every run"));
    }
    if t.is_pending() {
        settle::read(t, "TP4030", || "grad of a tensor was read".to_string())?;
    }
    Ok(tp_autograd::meta::grad(t))
}

pub fn set_grad(t: &Tensor, grad: Option<Tensor>) -> Result<()> {
    for one in grad.iter().chain([t]).filter(|one| one.is_pending()) {
        settle::read(one, "TP4030", || "grad of a tensor was set".to_string())?;
    }
    if grad.is_some() || capture::active() && watch::answer(t, Fact::HasGrad, |_| false)? {
        watch::changes(t, "setting grad")?;
    }
    tp_autograd::meta::set_grad(t, grad)
}

pub fn set_requires_grad(t: &Tensor, on: bool) -> Result<()> {
    if on && t.is_batched() {
        return Err(crate::batch::no_leaf());
    }
    if segments::active()
        || t.is_pending()
        || capture::active() && watch::answer(t, Fact::RequiresGrad, Tensor::requires_grad)? != on
    {
        settle::quietly(t)?;
        watch::changes(t, "setting requires_grad")?;
    }
    tp_autograd::meta::set_requires_grad(t, on)
}

/// Under capture a backward run must leave its gradients with tensors that the function makes.
pub fn stays_inside(outputs: &[Tensor], inputs: &[Tensor]) -> Result<()> {
    if capture::active() && tp_autograd::reaches_outside(outputs, inputs)? {
        let way_out = "use tensorplay.autograd.grad and return the gradients, or call backward() outside";
        return watch::once("the gradients that backward() leaves with tensors from outside", way_out);
    }
    Ok(())
}

/// What a history says of operations outside of a capture is not the capture's to read.
fn reads_history(py: Python<'_>) -> PyResult<()> {
    if !capture::active() {
        return Ok(());
    }
    Err(watch::refusal("TP4030", "the history of a tensor was read")
        .note("`grad_fn is None` and is_leaf may be asked; read the rest outside of the captured function"))
    .py(py)
}

/// The node that made a tensor, as people see it.
#[pyclass(frozen, name = "Node", module = "tensorplay.autograd")]
struct PyNode(tp_autograd::NodeRef);

#[pymethods]
impl PyNode {
    /// Name of the operation.
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        guarded(|| {
            reads_history(py)?;
            Ok(self.0.name().to_string())
        })
    }

    /// Nodes that made the inputs, with the output index each.
    #[getter]
    fn next_functions(&self, py: Python<'_>) -> PyResult<Vec<(PyNode, u32)>> {
        guarded(|| {
            reads_history(py)?;
            Ok(self.0.edges().iter().map(|e| (PyNode(e.node.clone()), e.nr)).collect())
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        guarded(|| {
            reads_history(py)?;
            Ok(format!("<{}>", self.0.name()))
        })
    }
}

pub fn grad_fn_object(py: Python<'_>, t: &Tensor) -> PyResult<Py<PyAny>> {
    let behind = if capture::active() { watch::behind(t) } else { None };
    watch::answer(t, Fact::Leaf, |_| false).py(py)?;
    match tp_autograd::meta::grad_fn(behind.as_ref().unwrap_or(t)) {
        Some(node) => Ok(Bound::new(py, PyNode(node))?.into_any().unbind()),
        None => Ok(py.None()),
    }
}

/// Before a backward from `t`, which runs at its place.
#[inline]
pub fn at_once(t: &Tensor, gradient: Option<&Tensor>) -> Result<Option<Excursion>> {
    for one in gradient.into_iter().chain([t]).filter(|one| one.is_pending()) {
        settle::quietly(one)?;
    }
    settle::leave("backward()")
}

/// `x.backward(gradient)`: the shortest way, for the tensor method.
pub fn backward_one(
    t: &Tensor,
    gradient: Option<Tensor>,
    retain_graph: Option<bool>,
    create_graph: bool,
    inputs: &[Tensor],
) -> Result<()> {
    stays_inside(std::slice::from_ref(t), inputs)?;
    let _at_once = at_once(t, gradient.as_ref())?;
    tp_autograd::backward(
        std::slice::from_ref(t),
        &[gradient],
        options(retain_graph, create_graph, true),
        inputs,
    )
}

#[pyfunction]
fn retain_grad(py: Python<'_>, t: TensorArg) -> PyResult<()> {
    guarded(|| {
        if !tp_autograd::meta::is_leaf(watch::behind(&t.0).as_ref().unwrap_or(&t.0)) {
            watch::changes(&t.0, "retain_grad()").py(py)?;
        }
        tp_autograd::meta::retain_grad(&t.0).py(py)
    })
}

#[pyfunction]
fn retains_grad(py: Python<'_>, t: TensorArg) -> PyResult<bool> {
    guarded(|| watch::answer(&t.0, Fact::RetainsGrad, tp_autograd::meta::retains_grad).py(py))
}

/// Anomaly mode while it is entered: the first NaN in a backward pass is an error that names the recorded call.
#[pyclass(module = "tensorplay.autograd")]
struct AnomalyMode(Option<tp_autograd::anomaly::DetectAnomaly>);

#[pymethods]
impl AnomalyMode {
    #[new]
    fn new() -> PyResult<AnomalyMode> {
        guarded(|| Ok(AnomalyMode(None)))
    }

    fn enter(&mut self, py: Python<'_>, check_nan: bool) -> PyResult<()> {
        guarded(|| {
            watch::once("anomaly mode", "enter it around the call").py(py)?;
            self.0 = Some(tp_autograd::anomaly::DetectAnomaly::enter(check_nan));
            Ok(())
        })
    }

    fn leave(&mut self) -> PyResult<()> {
        guarded(|| {
            self.0 = None;
            Ok(())
        })
    }

    /// One that is entered.
    #[staticmethod]
    fn entered(py: Python<'_>, check_nan: bool) -> PyResult<AnomalyMode> {
        guarded(|| {
            let mut mode = AnomalyMode(None);
            mode.enter(py, check_nan)?;
            Ok(mode)
        })
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    // SAFETY: the type is made once, at import, with the lock held.
    m.add("Context", unsafe { Bound::from_owned_ptr_or_err(m.py(), context::init_type())? })?;
    // SAFETY: as above.
    m.add("Function", unsafe { Bound::from_owned_ptr_or_err(m.py(), function::init_type())? })?;
    m.add_class::<PyNode>()?;
    m.add_class::<AnomalyMode>()?;
    hooks::register(m)?;
    packing::register(m)?;
    m.add_function(wrap_pyfunction!(live_nodes, m)?)?;
    m.add_function(wrap_pyfunction!(register_autograd, m)?)?;
    m.add_function(wrap_pyfunction!(register_autograd_none, m)?)?;
    m.add_function(wrap_pyfunction!(backward, m)?)?;
    m.add_function(wrap_pyfunction!(grad, m)?)?;
    m.add_function(wrap_pyfunction!(reaches_other_leaf, m)?)?;
    m.add_function(wrap_pyfunction!(hide_leaf, m)?)?;
    m.add_function(wrap_pyfunction!(retain_grad, m)?)?;
    m.add_function(wrap_pyfunction!(retains_grad, m)?)
}

/// Our error for whatever a Python callback raised.
pub(crate) fn raised(e: PyErr) -> Error {
    error::from_py(e)
}

/// The Python object of a tensor, or None.
pub fn object<'py>(py: Python<'py>, t: Option<&Tensor>) -> PyResult<Bound<'py, PyAny>> {
    match t {
        // SAFETY: lock held.
        Some(t) => unsafe { Bound::from_owned_ptr_or_err(py, shell::wrap_ref(t)) },
        None => Ok(py.None().into_bound(py)),
    }
}
