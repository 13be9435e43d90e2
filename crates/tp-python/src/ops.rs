//! Ops from Python: definitions, kernels, fake rules, look-up, and the thread's wishes about kernels. The Python
//! side (`tensorplay.library`) infers schemas and keeps the conveniences; what holds is decided here.

use crate::error::{self, IntoPyResult, guarded};
use crate::given;
use crate::hot::packet::Packet;
use crate::hot::pykernel::{PyKernel, Role};
use crate::hot::{convert, opobj, predicate::PyPredicate};
use crate::registration::{PyRegistration, forget};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList};
use std::sync::Arc;
use tp_dispatch::bind::Params;
use tp_dispatch::registry::{KernelSpec, Parts};
use tp_dispatch::select::{KernelEntry, Slot};
use tp_dispatch::state::{self, Preference, PreferenceKind};
use tp_dispatch::{
    Arg, DispatchKey, Effects, FakeRule, GradSpec, Kernel, OpDef, OpHandle, Provenance, Registry, Schema,
    Value, dispatcher, fake,
};
use tp_graph::capture::watch;

/// Op objects by `ns::name`; made once per name and kept.
pub(crate) fn packets(py: Python<'_>) -> &Bound<'_, PyDict> {
    static PACKETS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    PACKETS.get_or_init(py, || PyDict::new(py).unbind()).bind(py)
}

/// `ns::name` of `ns::name.overload`.
pub fn base_name(name: &str) -> &str {
    let start = name.find("::").map_or(0, |i| i + 2);
    name[start..].find('.').map_or(name, |dot| &name[..start + dot])
}

/// The op object of a name, made if there is none yet.
pub fn op_object<'py>(py: Python<'py>, op: OpHandle) -> PyResult<Bound<'py, PyAny>> {
    let base = base_name(op.name());
    if let Some(found) = packets(py).get_item(base)? {
        // SAFETY: a live object.
        if let Some(p) = unsafe { opobj::packet_of(found.as_ptr()) } {
            p.add_overload(op);
        }
        return Ok(found);
    }
    // SAFETY: lock held, the type is ready once the module is.
    let obj = unsafe { Bound::from_owned_ptr_or_err(py, opobj::new(Packet::new(base, &[op])))? };
    packets(py).set_item(base, &obj)?;
    Ok(obj)
}

pub(crate) fn packet<'a>(op: &'a Bound<'_, PyAny>) -> PyResult<&'a Packet> {
    // SAFETY: a live object, and the packet lives as long as it does.
    unsafe { opobj::packet_of(op.as_ptr()) }.ok_or_else(|| given::expected("an op", op))
}

pub fn provenance(at: At) -> Provenance {
    Provenance { name: at.0.into(), file: at.1.into(), line: at.2, executor: at.3.into() }
}

pub(crate) fn slot_of(name: &str) -> PyResult<Slot> {
    if name == "default" {
        return Ok(Slot::Default);
    }
    let key = DispatchKey::ALL
        .into_iter()
        .find(|k| k.name() == name && !matches!(k, DispatchKey::Slow | DispatchKey::Segment));
    key.map(Slot::Key).ok_or_else(|| {
        let message = format!("'{name}' is no device type; known are 'cpu', 'cuda', 'meta' and 'default'");
        error::attached(|py| error::to_py(py, tp_dispatch::Error::registration("TP1312", message)))
    })
}

type At = (String, String, u32, String);

/// A kernel as `library` describes it: slot, function, where it is from, predicate, arguments that must be contiguous,
/// and whether it fills outputs that are passed in.
type KernelParts<'py> = (String, Bound<'py, PyAny>, At, Option<Bound<'py, PyAny>>, Vec<String>, bool);

fn kernel_spec(
    op: &str,
    schema: &Schema,
    params: &Params,
    (slot, func, at, when, contiguous, out): KernelParts<'_>,
) -> PyResult<KernelSpec> {
    let index = |arg: &String| {
        params.index(arg).ok_or_else(|| {
            let message = format!("{op} has no argument '{arg}'");
            error::attached(|py| error::to_py(py, tp_dispatch::Error::argument("TP1314", message)))
        })
    };
    let role = if out { Role::Out } else { Role::Kernel };
    // SAFETY: a live callable, lock held.
    let kernel = unsafe { PyKernel::new(func.as_ptr(), schema, role) };
    let when = when.map(|w| Arc::new(PyPredicate::new(&w, schema, &at.0)) as _);
    Ok(KernelSpec {
        slot: slot_of(&slot)?,
        kernel: Kernel::Object(Arc::new(kernel)),
        provenance: provenance(at),
        when,
        contiguous: contiguous.iter().map(index).collect::<PyResult<_>>()?,
    })
}

fn fake_rule(func: &Bound<'_, PyAny>, schema: &Schema) -> FakeRule {
    // SAFETY: a live callable, lock held.
    FakeRule::Object(Arc::new(unsafe { PyKernel::new(func.as_ptr(), schema, Role::Fake) }))
}

/// Defines `schema` (with namespace) in one step with its kernels and fake rule; `effects` is a set of "random",
/// "ordered", "nondeterministic"; the first `bodies` kernels are its own body. Returns the op, its registration, and one per kernel.
#[pyfunction]
#[pyo3(signature = (schema, at, *, effects=Vec::new(), tags=Vec::new(), kernels=Vec::new(), bodies=0, fake=None, replace=false))]
#[allow(clippy::too_many_arguments, clippy::type_complexity)] // Python's keywords
pub fn define_op<'py>(
    py: Python<'py>,
    schema: &str,
    at: At,
    effects: Vec<String>,
    tags: Vec<String>,
    kernels: Vec<KernelParts<'py>>,
    bodies: usize,
    fake: Option<Bound<'py, PyAny>>,
    replace: bool,
) -> PyResult<(Bound<'py, PyAny>, PyRegistration, Vec<PyRegistration>)> {
    guarded(|| {
        let schema = Schema::parse_definition(schema).map_err(tp_dispatch::Error::from).py(py)?;
        let name = full_name(&schema)?;
        let params = Params::compile(&schema).py(py)?;
        let has = |what: &str| effects.iter().any(|e| e == what);
        let spec = |parts| kernel_spec(&name, &schema, &params, parts);
        let kernels = kernels.into_iter().map(spec).collect::<PyResult<_>>()?;
        let parts = Parts { kernels, bodies, fake: fake.map(|f| fake_rule(&f, &schema)) };
        let def = OpDef {
            params,
            effects: Effects {
                mutates: schema.is_mutable(),
                random: has("random"),
                ordered: has("ordered"),
                nondeterministic: has("nondeterministic"),
            },
            fake: fake::of_schema(&schema),
            schema: Arc::new(schema),
            grad: GradSpec::Missing,
            pointwise: None,
            custom: true,
            tags: tags.into_iter().map(Arc::from).collect(),
            provenance: provenance(at),
        };
        let (definition, kernels) = Registry::global().define_whole(&name, def, parts, replace).py(py)?;
        crate::autocast::forget(definition.op());
        forget(py, definition.op())?;
        let op = op_object(py, definition.op())?;
        let held = |r| PyRegistration(Some(r));
        Ok((op, held(definition), kernels.into_iter().map(held).collect()))
    })
}

fn full_name(schema: &Schema) -> PyResult<String> {
    let n = schema.name();
    let ns = n.namespace().ok_or_else(|| {
        let message = format!("an op needs a namespace: 'ns::{}', not '{}'", n.name(), n.name());
        let kind = tp_dispatch::ErrorKind::Schema;
        error::attached(|py| error::to_py(py, tp_dispatch::Error::new(kind, "TP1323", message)))
    })?;
    Ok(match n.overload() {
        Some(overload) => format!("{ns}::{}.{overload}", n.name()),
        None => format!("{ns}::{}", n.name()),
    })
}

pub(crate) fn lookup(py: Python<'_>, name: &str) -> PyResult<OpHandle> {
    Registry::global().lookup(name).py(py)
}

pub(crate) fn def_of(py: Python<'_>, op: OpHandle) -> PyResult<Arc<OpDef>> {
    op.def()
        .ok_or_else(|| tp_dispatch::Error::registration("TP1305", format!("{op} was unregistered")))
        .py(py)
}

/// Registers a Python function as a kernel of `name` for `slot` ("cpu", "cuda", "default", ...).
#[pyfunction]
pub fn register_kernel(py: Python<'_>, name: &str, kernel: KernelParts<'_>) -> PyResult<PyRegistration> {
    guarded(|| {
        let op = lookup(py, name)?;
        let def = def_of(py, op)?;
        let spec = kernel_spec(op.name(), &def.schema, &def.params, kernel)?;
        Ok(PyRegistration(Some(Registry::global().register_kernel(op, spec).py(py)?)))
    })
}

/// Sets the fake rule of `name`; None brings back the one that the op was defined with.
#[pyfunction]
pub fn register_fake(py: Python<'_>, name: &str, func: Option<Bound<'_, PyAny>>) -> PyResult<()> {
    guarded(|| {
        let op = lookup(py, name)?;
        let def = def_of(py, op)?;
        let fake = match &func {
            Some(f) => fake_rule(f, &def.schema),
            None => Registry::global().original_fake(op),
        };
        Registry::global().redefine(op, |d| d.with(Some(fake), None)).py(py)
    })
}

/// The object of one overload alone; made once per overload and kept.
fn overload_object<'py>(py: Python<'py>, op: OpHandle) -> PyResult<Bound<'py, PyAny>> {
    let full = op.full_name();
    if let Some(found) = packets(py).get_item(&full)? {
        return Ok(found);
    }
    // SAFETY: lock held, the type is ready once the module is.
    let obj = unsafe { Bound::from_owned_ptr_or_err(py, opobj::new(Packet::new(&full, &[op])))? };
    packets(py).set_item(full, &obj)?;
    Ok(obj)
}

/// The op object of `ns::name`, that of one overload for `ns::name.overload`, or None.
#[pyfunction]
pub fn get_op<'py>(py: Python<'py>, name: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    guarded(|| {
        let name: &str = &given::read::<String>("get_op", "name", name)?;
        if let Some(op) = Registry::global().get(name) {
            // `f.default` is `f` itself while there is no other overload.
            let whole = op_object(py, op)?;
            let named = base_name(op.name()) != op.name();
            let chosen = named || (base_name(name) != name && packet(&whole)?.overloads().len() > 1);
            return if chosen { overload_object(py, op).map(Some) } else { Ok(Some(whole)) };
        }
        // Only overloads may be defined under the base name.
        let prefix = format!("{name}.");
        let ns = name.split("::").next();
        let found = Registry::global().list(ns).into_iter().find(|op| op.name().starts_with(&prefix));
        found.map(|op| op_object(py, op)).transpose()
    })
}

/// Full names (`ns::name` or `ns::name.overload`) of all ops, or of one namespace.
#[pyfunction]
#[pyo3(signature = (namespace=None))]
pub fn list_ops(namespace: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<&'static str>> {
    guarded(|| {
        let namespace = given::optional::<String>("list_ops", "namespace", namespace)?;
        Ok(Registry::global().list(namespace.as_deref()).into_iter().map(|op| op.name()).collect())
    })
}

/// `ns::name` of an op object, `ns::name.overload` of one that stands for one overload.
#[pyfunction]
pub fn op_name(op: &Bound<'_, PyAny>) -> PyResult<String> {
    guarded(|| Ok(packet(op)?.name.to_string()))
}

/// Names of the overloads defined now, in definition order.
#[pyfunction]
pub fn op_overloads(op: &Bound<'_, PyAny>) -> PyResult<Vec<&'static str>> {
    guarded(|| Ok(packet(op)?.overloads().into_iter().filter(|o| o.is_defined()).map(|o| o.name()).collect()))
}

/// Everything known of one overload, as a dict.
#[pyfunction]
pub fn op_info<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyDict>> {
    guarded(|| {
        let op = lookup(py, name)?;
        let def = def_of(py, op)?;
        let out = PyDict::new(py);
        out.set_item("name", op.name())?;
        out.set_item("full_name", op.full_name())?;
        out.set_item("schema", def.schema.to_string())?;
        out.set_item("effects", def.effects.names().collect::<Vec<_>>())?;
        out.set_item("custom", def.custom)?;
        out.set_item("tags", def.tags.iter().map(|t| t.to_string()).collect::<Vec<_>>())?;
        out.set_item("at", at(&def.provenance))?;
        out.set_item("fake", fake_kind(&def.fake))?;
        out.set_item("autograd", grad_kind(&def.grad))?;
        out.set_item("pointwise", def.pointwise.as_ref().map(|p| p.to_string()))?;
        out.set_item("generation", op.generation())?;
        let kernels = PyList::empty(py);
        for k in op.kernels().iter().rev() {
            kernels.append((k.slot.name(), at(&k.provenance), k.when.as_ref().map(|w| w.describe())))?;
        }
        out.set_item("kernels", kernels)?;
        let table: Vec<(&str, String)> =
            dispatcher::describe_table(op).into_iter().map(|(k, t)| (k.name(), t)).collect();
        out.set_item("table", table)?;
        let defaults = PyDict::new(py);
        for p in &def.params.all {
            if let Some(v) = &p.default {
                // SAFETY: lock held.
                let v = unsafe { Bound::from_owned_ptr_or_err(py, convert::plain_object(v))? };
                defaults.set_item(&*p.name, v)?;
            }
        }
        out.set_item("defaults", defaults)?;
        Ok(out)
    })
}

fn at(p: &Provenance) -> (String, String, u32, String) {
    (p.name.to_string(), p.file.to_string(), p.line, p.executor.to_string())
}

fn fake_kind(f: &FakeRule) -> &'static str {
    match f {
        FakeRule::Missing => "missing",
        FakeRule::Nothing => "nothing",
        FakeRule::Fn(_) => "native",
        FakeRule::Object(_) => "python",
    }
}

fn grad_kind(g: &GradSpec) -> &'static str {
    match g {
        GradSpec::Missing => "missing",
        GradSpec::NotDifferentiable(_) => "not differentiable",
        GradSpec::Expr(_) => "expression",
        GradSpec::Rule(_) => "rule",
        GradSpec::Custom(_) => "custom",
    }
}

/// The Python function registered under a slot of `name` (newest first), or None.
#[pyfunction]
#[pyo3(signature = (name, slot, kernel=None))]
pub fn kernel_function<'py>(
    py: Python<'py>,
    name: &str,
    slot: &str,
    kernel: Option<&str>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    guarded(|| {
        let op = lookup(py, name)?;
        Ok(kernel_of(op, slot_of(slot)?, kernel).and_then(|k| match &k.kernel {
            Kernel::Object(o) if !o.host_function().is_null() => {
                // SAFETY: a live function held by the entry.
                Some(unsafe { Bound::from_borrowed_ptr(py, o.host_function().cast()) })
            }
            _ => None,
        }))
    })
}

/// Puts the kernel of that name in front for this thread; returns a token.
#[pyfunction]
pub fn push_preference(py: Python<'_>, name: &str, kernel: &str) -> PyResult<u64> {
    guarded(|| {
        let way_out = "enter it around the call, or call one kernel by library.get_kernel";
        watch::once(&format!("prefer('{kernel}')"), way_out).py(py)?;
        push(lookup(py, name)?, PreferenceKind::Prefer(kernel.into()))
    })
}

/// Enables or disables the kernels of a slot for this thread; returns a token.
#[pyfunction]
pub fn push_enabled(py: Python<'_>, name: &str, slot: &str, enabled: bool) -> PyResult<u64> {
    guarded(|| {
        watch::once("set_kernel_enabled()", "enter it around the call").py(py)?;
        push(lookup(py, name)?, PreferenceKind::Enabled(slot_of(slot)?, enabled))
    })
}

fn push(op: OpHandle, what: PreferenceKind) -> PyResult<u64> {
    let token = Registry::global().token();
    state::push_preference(Preference { op, what, token });
    Ok(token)
}

/// Ends a wish.
#[pyfunction]
pub fn pop_preference(token: u64) -> PyResult<()> {
    guarded(|| {
        state::pop_preference(token);
        Ok(())
    })
}

/// The newest kernel of a slot, of that name when one is given.
pub(crate) fn kernel_of(op: OpHandle, slot: Slot, name: Option<&str>) -> Option<Arc<KernelEntry>> {
    op.kernels().into_iter().rev().find(|k| k.slot == slot && name.is_none_or(|n| n == k.name()))
}

/// What the op computes and the schemas of its overloads, behind a signature that `inspect` reads where its defaults are
/// literals of Python.
fn documentation(name: &str, def: &OpDef, schemas: &[String]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for (i, p) in def.params.all.iter().enumerate() {
        if i == def.params.positional {
            parts.push("*".to_string());
        }
        parts.push(match &p.default {
            None => p.name.to_string(),
            Some(v) => format!("{}={}", p.name, literal(v)),
        });
    }
    let said = tp_kernels::describe(name).unwrap_or_default();
    format!("{name}({})\n--\n\n{said}\n\n{}", parts.join(", "), schemas.join("\n"))
}

fn literal(v: &Value) -> String {
    match v {
        Value::None => "None".to_string(),
        Value::Bool(_) | Value::Int(_) | Value::Str(_) => format!("{:?}", v.as_arg()),
        Value::Scalar(s) if s.to::<f64>().is_finite() => match s {
            tp_tensor::Scalar::Bool(v) => format!("{:?}", Arg::Bool(*v)),
            tp_tensor::Scalar::Int(v) => v.to_string(),
            tp_tensor::Scalar::Float(v) => format!("{v:?}"),
        },
        Value::Float(x) if x.is_finite() => format!("{x:?}"),
        _ => "...".to_string(),
    }
}

/// Calls `name` with the Autograd and Capture layers passed by: the kernel of the tensors' device alone.
#[pyfunction]
#[pyo3(signature = (op, *args, **kwargs))]
pub fn call_kernel<'py>(
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, pyo3::types::PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| {
        let _guard = state::KeyGuard::foreign_kernel();
        op.call(args, kwargs)
    })
}

/// Enters debug mode on this thread.
#[pyfunction]
pub fn push_debug(py: Python<'_>) -> PyResult<()> {
    guarded(|| {
        watch::once("debug_checks()", "enter it around the call").py(py)?;
        state::push_debug();
        Ok(())
    })
}

/// Leaves one context of debug mode. `_before` is what `push_debug` returned: nothing.
#[pyfunction]
pub fn pop_debug(_before: &Bound<'_, PyAny>) -> PyResult<()> {
    guarded(|| {
        state::pop_debug();
        Ok(())
    })
}

/// Every built-in op as a builtin function of the module's `builtins` dict, under its own name and its aliases.
pub fn install_builtins(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    let functions = PyDict::new(py);
    // Definition order matters within a name: the default overload is the first a call is tried on.
    let mut all = Registry::global().list(Some("tp"));
    all.sort_by_key(|op| op.id());
    for &op in &all {
        let object = op_object(py, op)?;
        let name = base_name(op.name()).trim_start_matches("tp::");
        if functions.contains(name)? {
            continue;
        }
        let forms: Vec<String> = (all.iter().filter(|o| base_name(o.name()) == base_name(op.name())))
            .filter_map(|o| o.def().map(|d| d.schema.to_string()))
            .collect();
        let doc = op.def().map(|d| documentation(name, &d, &forms)).unwrap_or_default();
        // SAFETY: an op object, lock held.
        let f = unsafe {
            Bound::from_owned_ptr_or_err(
                py,
                opobj::function(object.as_ptr(), name, &doc, std::ptr::null_mut()),
            )?
        };
        functions.set_item(name, f)?;
    }
    for (alias, name) in tp_kernels::ALIASES {
        if let Some(f) = functions.get_item(name)? {
            functions.set_item(alias, f)?;
        }
    }
    m.add("builtins", functions)
}
