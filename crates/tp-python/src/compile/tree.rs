//! Nested Python arguments and results as flat values plus a structure. Lists, tuples, named tuples and dicts are
//! walked, other containers by `tensorplay._containers`; tensors and numbers are leaves; any other object is carried by
//! identity, and of a result it must hold nothing of the capture.

use crate::error;
use crate::hot::ffi as x;
use crate::hot::sizes;
use crate::hot::{convert, shell};
use crate::types;
use crate::watching::Watching;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyModule, PyString, PyTuple, PyType};
use std::fmt::Write;
use tp_dispatch::{Error, Result, Value};
use tp_tensor::Scalar;

/// Nesting that a structure may have.
const MAX_DEPTH: usize = 64;

/// How flat values make up an object.
pub enum Tree {
    /// The next flat value.
    Leaf,
    /// An object that is no value: handed through as it is.
    Fixed(Py<PyAny>),
    Tuple(Vec<Tree>),
    /// A tuple subclass with named fields.
    Named(Py<PyAny>, Vec<Tree>),
    List(Vec<Tree>),
    Dict(Vec<(Py<PyAny>, Tree)>),
    /// A `tensorplay._containers.Form`, and its parts.
    Formed(Py<PyAny>, Vec<Tree>),
}

/// Flat values with a name each, and a text that differs whenever the structure does.
#[derive(Default)]
pub struct Flat {
    pub values: Vec<Value>,
    pub names: Vec<String>,
    pub shape: String,
}

/// Whether numbers are leaves (arguments, which are guarded) or fixed (results, which are constants).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    Leaves,
    Fixed,
}

pub fn flatten(obj: &Bound<'_, PyAny>, name: &str, numbers: Numbers, flat: &mut Flat) -> Result<Tree> {
    walk(obj, name, numbers, flat, 0)
}

fn walk(obj: &Bound<'_, PyAny>, name: &str, numbers: Numbers, flat: &mut Flat, depth: usize) -> Result<Tree> {
    if depth > MAX_DEPTH {
        return Err(Error::capture(
            "TP4010",
            format!("'{name}' is nested more than {MAX_DEPTH} levels deep"),
        ));
    }
    if let Some(v) = leaf(obj, numbers)? {
        flat.values.push(v);
        flat.names.push(name.to_string());
        flat.shape.push('*');
        return Ok(Tree::Leaf);
    }
    if let Ok(tuple) = obj.cast::<PyTuple>()
        && (tuple.is_exact_instance_of::<PyTuple>() || obj.hasattr("_fields").unwrap_or(false))
    {
        let items = tuple.iter().collect::<Vec<_>>();
        if !tuple.is_exact_instance_of::<PyTuple>() {
            flat.shape.push('N');
            let parts = sequence(&items, name, numbers, flat, depth, ('(', ')'))?;
            return Ok(Tree::Named(obj.get_type().into_any().unbind(), parts));
        }
        return Ok(Tree::Tuple(sequence(&items, name, numbers, flat, depth, ('(', ')'))?));
    }
    if let Ok(list) = obj.cast_exact::<PyList>() {
        return Ok(Tree::List(sequence(
            &list.iter().collect::<Vec<_>>(),
            name,
            numbers,
            flat,
            depth,
            ('[', ']'),
        )?));
    }
    if let Ok(dict) = obj.cast_exact::<PyDict>() {
        flat.shape.push('{');
        let mut parts = Vec::with_capacity(dict.len());
        for (key, value) in dict.iter() {
            check_key(&key, name, numbers)?;
            let text = key.repr().map_or_else(|_| "?".to_string(), |r| r.to_string());
            let _ = write!(flat.shape, "{text}:");
            parts.push((key.unbind(), walk(&value, &format!("{name}[{text}]"), numbers, flat, depth + 1)?));
        }
        flat.shape.push('}');
        return Ok(Tree::Dict(parts));
    }
    if is_atom(obj) {
        if obj.is_exact_instance_of::<PyInt>() {
            // Beyond 64 bits: no leaf, but guarded by its value all the same.
            let _ = write!(flat.shape, "i{obj}");
        } else {
            let _ = write!(flat.shape, "@{:x}", obj.as_ptr() as usize);
        }
        return Ok(Tree::Fixed(obj.clone().unbind()));
    }
    other(obj, name, numbers, flat, depth)
}

/// A container that is no plain one, or any other object.
#[cold]
fn other(
    obj: &Bound<'_, PyAny>,
    name: &str,
    numbers: Numbers,
    flat: &mut Flat,
    depth: usize,
) -> Result<Tree> {
    let opened = open(obj, numbers).map_err(error::from_py)?;
    if let Some((form, tag, labels, items)) = opened {
        let _ = write!(flat.shape, "<{tag}");
        check_key(&form.getattr("keys").map_err(error::from_py)?, name, numbers)?;
        let parts = labels.iter().zip(&items);
        let parts =
            parts.map(|(label, item)| walk(item, &format!("{name}{label}"), numbers, flat, depth + 1));
        let parts = parts.collect::<Result<_>>()?;
        flat.shape.push('>');
        return Ok(Tree::Formed(form.unbind(), parts));
    }
    if numbers == Numbers::Fixed
        && let Some(what) = leak(obj).map_err(error::from_py)?
    {
        let class = obj.get_type().fully_qualified_name().map_or_else(|_| "?".into(), |n| n.to_string());
        return Err(unheld(&format!("{name} of type {class}"), &what));
    }
    // Guarded by identity; the tree keeps the object alive, so that its address names it.
    let _ = write!(flat.shape, "@{:x}", obj.as_ptr() as usize);
    Ok(Tree::Fixed(obj.clone().unbind()))
}

/// Objects that hold no others, or are whole as they are.
fn is_atom(obj: &Bound<'_, PyAny>) -> bool {
    obj.is_exact_instance_of::<PyInt>()
        || obj.is_exact_instance_of::<PyString>()
        || obj.is_exact_instance_of::<PyFloat>()
        || obj.is_exact_instance_of::<PyBool>()
        || obj.is_none()
        || obj.is_instance_of::<PyType>()
        || obj.is_instance_of::<PyModule>()
}

type Opened<'py> = (Bound<'py, PyAny>, String, Vec<String>, Vec<Bound<'py, PyAny>>);

fn open<'py>(obj: &Bound<'py, PyAny>, numbers: Numbers) -> PyResult<Option<Opened<'py>>> {
    let result = numbers == Numbers::Fixed;
    // Arguments are walked at every call: most objects among them are no containers.
    // SAFETY: a live object.
    let may_be = result
        || unsafe {
            let p = obj.as_ptr();
            ffi::PyDict_Check(p) != 0 || ffi::PyList_Check(p) != 0 || ffi::PyTuple_Check(p) != 0
        }
        || obj.is_instance(DEQUE.import(obj.py(), "collections", "deque")?)?;
    if !may_be {
        return Ok(None);
    }
    containers(obj.py())?.getattr("opened")?.call1((obj, result))?.extract()
}

static DEQUE: PyOnceLock<Py<PyType>> = PyOnceLock::new();

fn containers(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Ok(MODULE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("tensorplay._containers")?.unbind()))?.bind(py))
}

fn leak(obj: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    containers(obj.py())?.getattr("leak")?.call1((obj,))?.extract()
}

/// Keys of a result stay as they are: they must be the same in every run.
fn check_key(key: &Bound<'_, PyAny>, name: &str, numbers: Numbers) -> Result<()> {
    if numbers == Numbers::Leaves || is_atom(key) {
        return Ok(());
    }
    match leak(key).map_err(error::from_py)? {
        Some(what) => Err(unheld(&format!("a key of {name}"), &what)),
        None => Ok(()),
    }
}

#[cold]
fn unheld(place: &str, what: &str) -> Error {
    let e =
        Error::capture("TP4033", format!("{place} holds {what}, which means nothing outside of the capture"));
    let e = match tp_dispatch::host::location() {
        Some(at) => e.note(format!("called at {at}")),
        None => e,
    };
    e.note("return tensors and sizes by themselves, or in lists, tuples, dicts, deques and dataclasses")
}

fn sequence(
    items: &[Bound<'_, PyAny>],
    name: &str,
    numbers: Numbers,
    flat: &mut Flat,
    depth: usize,
    brackets: (char, char),
) -> Result<Vec<Tree>> {
    flat.shape.push(brackets.0);
    let parts = items
        .iter()
        .enumerate()
        .map(|(i, item)| walk(item, &format!("{name}[{i}]"), numbers, flat, depth + 1))
        .collect();
    flat.shape.push(brackets.1);
    parts
}

fn leaf(obj: &Bound<'_, PyAny>, numbers: Numbers) -> Result<Option<Value>> {
    let p = obj.as_ptr();
    // SAFETY: a live object, lock held.
    unsafe {
        if shell::is_tensor(p) {
            let t = shell::tensor_of(p);
            crate::settle::quietly(t)?;
            return Ok(Some(Value::Tensor(t.clone())));
        }
        if numbers == Numbers::Fixed {
            // A size that a run finds is computed anew by each.
            return Ok(sizes::raw_size(p)?.map(Value::Int));
        }
        plain(p)
    }
}

/// A Python object that is guarded by type and value.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn plain(p: x::Obj) -> Result<Option<Value>> {
    // SAFETY: the caller's promise.
    unsafe {
        let ty = x::type_of(p);
        if p == ffi::Py_None() {
            return Ok(Some(Value::None));
        }
        if ty == &raw mut ffi::PyLong_Type {
            // One that does not fit is an object like any other.
            return Ok(match convert::number(p) {
                Ok(Some(Scalar::Int(v))) => Some(Value::Int(v)),
                _ => None,
            });
        }
        if ty == &raw mut ffi::PyFloat_Type || ty == &raw mut ffi::PyBool_Type {
            return Ok(convert::number(p)?.map(|s| match s {
                Scalar::Int(v) => Value::Int(v),
                Scalar::Float(v) => Value::Float(v),
                Scalar::Bool(v) => Value::Bool(v),
            }));
        }
        if ty == &raw mut ffi::PyUnicode_Type {
            return Ok(x::str_of(p).map(|s| Value::Str(s.into())));
        }
        Ok(types::dtype_of(p).map(Value::DType))
    }
}

/// Rebuilds the object from flat values.
pub fn unflatten<'py>(
    py: Python<'py>,
    tree: &Tree,
    values: &mut dyn Iterator<Item = Value>,
) -> PyResult<Bound<'py, PyAny>> {
    Ok(match tree {
        Tree::Leaf => {
            let v = values.next().unwrap_or(Value::None);
            // SAFETY: lock held.
            unsafe { Bound::from_owned_ptr_or_err(py, convert::plain_object(&v))? }
        }
        Tree::Fixed(obj) => obj.bind(py).clone(),
        Tree::Tuple(parts) => PyTuple::new(py, all(py, parts, values)?)?.into_any(),
        Tree::Named(class, parts) => class.bind(py).call1(PyTuple::new(py, all(py, parts, values)?)?)?,
        Tree::List(parts) => PyList::new(py, all(py, parts, values)?)?.into_any(),
        Tree::Formed(form, parts) => form.bind(py).call_method1("build", (all(py, parts, values)?,))?,
        Tree::Dict(parts) => {
            let dict = PyDict::new(py);
            for (key, part) in parts {
                dict.set_item(key.bind(py), unflatten(py, part, values)?)?;
            }
            dict.into_any()
        }
    })
}

fn all<'py>(
    py: Python<'py>,
    parts: &[Tree],
    values: &mut dyn Iterator<Item = Value>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    parts.iter().map(|p| unflatten(py, p, values)).collect()
}

/// Arguments of one call as Python passed them.
pub struct Call<'py> {
    pub args: Bound<'py, PyTuple>,
    pub kwargs: Option<Bound<'py, PyDict>>,
}

/// How a call is watched.
#[derive(Clone, Copy)]
pub struct Watch<'a, 'py> {
    /// What the caller vouches for.
    pub assumed: &'a Bound<'py, PyTuple>,
    /// The function runs once more where this fails.
    pub is_tentative: bool,
}

/// A call's arguments, flat, with what is needed to make the call again.
pub struct FlatCall {
    pub flat: Flat,
    args: Vec<Tree>,
    kwargs: Vec<(Py<PyString>, Tree)>,
}

impl FlatCall {
    /// `parameters` names the positional arguments as far as it goes.
    pub fn new(call: &Call<'_>, parameters: &[String]) -> Result<FlatCall> {
        let mut flat = Flat::default();
        let mut args = Vec::with_capacity(call.args.len());
        for (i, obj) in call.args.iter().enumerate() {
            let fallback = || format!("args[{i}]");
            let name = parameters.get(i).cloned().unwrap_or_else(fallback);
            args.push(flatten(&obj, &name, Numbers::Leaves, &mut flat)?);
        }
        let mut kwargs = Vec::new();
        if let Some(given) = &call.kwargs {
            let mut items: Vec<(String, Bound<'_, PyString>, Bound<'_, PyAny>)> = Vec::new();
            for (key, value) in given.iter() {
                let key = key.cast_into::<PyString>().map_err(|e| error::from_py(e.into()))?;
                items.push((key.to_string(), key, value));
            }
            items.sort_by(|a, b| a.0.cmp(&b.0));
            for (name, key, value) in items {
                let _ = write!(flat.shape, "{name}=");
                kwargs.push((key.unbind(), flatten(&value, &name, Numbers::Leaves, &mut flat)?));
            }
        }
        Ok(FlatCall { flat, args, kwargs })
    }

    /// The shape of a call whose positional arguments are all leaves; it needs no structure guard.
    pub fn is_plain(&self) -> bool {
        self.flat.shape.bytes().all(|b| b == b'*')
    }

    /// Calls `func` with `values` in the places of the leaves; an error where it writes to what the arguments hold.
    /// With `watch` what it reads beyond them becomes a guard of the capture, but for what that tuple vouches for. What a
    /// tentative call wrote is taken back whatever it failed of.
    pub fn call<'py>(
        &self,
        py: Python<'py>,
        func: &Bound<'py, PyAny>,
        parameters: &[String],
        values: &[Value],
        watch: Option<Watch<'_, 'py>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        x::require_stack()?;
        let mut values = values.iter().cloned();
        let args = PyTuple::new(py, all(py, &self.args, &mut values)?)?;
        if self.kwargs.is_empty() {
            return self.watched(py, func, parameters, (args, None), watch);
        }
        let kwargs = PyDict::new(py);
        for (key, tree) in &self.kwargs {
            kwargs.set_item(key.bind(py), unflatten(py, tree, &mut values)?)?;
        }
        self.watched(py, func, parameters, (args, Some(&kwargs)), watch)
    }

    fn watched<'py>(
        &self,
        py: Python<'py>,
        func: &Bound<'py, PyAny>,
        parameters: &[String],
        (args, kwargs): (Bound<'py, PyTuple>, Option<&Bound<'py, PyDict>>),
        watch_state: Option<Watch<'_, 'py>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let watch = self.watch(func, parameters, &args, kwargs)?;
        let Some(Watch { assumed, is_tentative }) = watch_state else {
            let out = func.call(args, kwargs)?;
            return unwritten(watch.as_ref()).map(|()| out);
        };
        let mut made = Vec::new();
        let given = self.args.iter().zip(args.iter());
        given.for_each(|(tree, object)| made_of(tree, &object, &mut made));
        for (key, tree) in &self.kwargs {
            if let Some(object) = kwargs.and_then(|k| k.get_item(key.bind(py)).ok().flatten()) {
                made_of(tree, &object, &mut made);
            }
        }
        let watching = Watching::begin(py, func, &made, assumed)?;
        let out = func.call(args, kwargs);
        let done = out.and_then(|out| unwritten(watch.as_ref()).map(|()| out));
        match (done, watching) {
            (Ok(out), Some(watching)) => watching.finish(py, &out).map(|()| out),
            (Err(e), Some(watching)) => {
                let again = super::dynamic::failed(py, &e);
                watching.abandon(py, again || is_tentative || tp_graph::capture::watch::is_refused());
                Err(e)
            }
            (done, None) => done,
        }
    }

    /// Notes what the arguments hold besides tensors and numbers; None where they hold nothing.
    fn watch<'py>(
        &self,
        func: &Bound<'py, PyAny>,
        parameters: &[String],
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let is_leaf = |tree: &Tree| matches!(tree, Tree::Leaf);
        // The object of a bound method is an argument like any other.
        let bound = func.getattr_opt("__self__")?;
        if bound.is_none()
            && self.args.iter().all(is_leaf)
            && self.kwargs.iter().all(|(_, tree)| is_leaf(tree))
        {
            return Ok(None);
        }
        let named = args.iter().enumerate().map(|(i, a)| (parameters.get(i).cloned(), i, a));
        let mut roots: Vec<(String, Bound<'py, PyAny>)> =
            named.map(|(name, i, a)| (name.unwrap_or_else(|| format!("args[{i}]")), a)).collect();
        roots.extend(bound.map(|object| ("self".to_string(), object)));
        for (key, value) in kwargs.iter().flat_map(|k| k.iter()) {
            roots.push((key.to_string(), value));
        }
        containers(args.py())?.getattr("Watch")?.call1((roots,)).map(Some)
    }
}

/// Addresses of the containers that were made for this call alone.
fn made_of(tree: &Tree, object: &Bound<'_, PyAny>, out: &mut Vec<x::Obj>) {
    let parts: Vec<&Tree> = match tree {
        Tree::Leaf | Tree::Fixed(_) => return,
        Tree::Tuple(parts) | Tree::Named(_, parts) | Tree::List(parts) | Tree::Formed(_, parts) => {
            parts.iter().collect()
        }
        Tree::Dict(parts) => parts.iter().map(|(_, part)| part).collect(),
    };
    out.push(object.as_ptr());
    let items: Vec<Bound<'_, PyAny>> = match object.cast::<PyDict>() {
        Ok(dict) => dict.values().iter().collect(),
        Err(_) => object.try_iter().into_iter().flatten().flatten().collect(),
    };
    parts.iter().zip(&items).for_each(|(part, item)| made_of(part, item, out));
}

/// A write to an argument's container happens in the capture alone: a run's function is the graph.
fn unwritten(watch: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let Some(watch) = watch else { return Ok(()) };
    let Some(name) = watch.call_method0("changed")?.extract::<Option<String>>()? else { return Ok(()) };
    let e = Error::capture("TP4032", format!("the captured function writes to its argument '{name}'"));
    let e = match tp_dispatch::host::location() {
        Some(at) => e.note(format!("called at {at}")),
        None => e,
    };
    let e = e.note("a run would not do it: return the new value, and write it where the function is called");
    Err(error::to_py(watch.py(), e))
}
