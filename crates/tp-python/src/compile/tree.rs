//! Nested Python arguments and results as flat values plus a structure. Lists, tuples, named tuples and dicts are
//! walked; tensors and numbers are leaves; any other object is carried by identity.

use crate::error;
use crate::hot::ffi as x;
use crate::hot::sizes;
use crate::hot::{convert, shell};
use crate::types;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
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
    if let Ok(tuple) = obj.cast::<PyTuple>() {
        let items = tuple.iter().collect::<Vec<_>>();
        if obj.hasattr("_fields").unwrap_or(false) {
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
            let text = key.repr().map_or_else(|_| "?".to_string(), |r| r.to_string());
            let _ = write!(flat.shape, "{text}:");
            parts.push((key.unbind(), walk(&value, &format!("{name}[{text}]"), numbers, flat, depth + 1)?));
        }
        flat.shape.push('}');
        return Ok(Tree::Dict(parts));
    }
    // Guarded by identity; the tree keeps the object alive, so that its address names it.
    let _ = write!(flat.shape, "@{:x}", obj.as_ptr() as usize);
    Ok(Tree::Fixed(obj.clone().unbind()))
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
            return Ok(Some(Value::Tensor(shell::tensor_of(p).clone())));
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
        if ty == &raw mut ffi::PyLong_Type
            || ty == &raw mut ffi::PyFloat_Type
            || ty == &raw mut ffi::PyBool_Type
        {
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

    /// Calls `func` with `values` in the places of the leaves.
    pub fn call<'py>(
        &self,
        py: Python<'py>,
        func: &Bound<'py, PyAny>,
        values: &[Value],
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut values = values.iter().cloned();
        let args = PyTuple::new(py, all(py, &self.args, &mut values)?)?;
        if self.kwargs.is_empty() {
            return func.call1(args);
        }
        let kwargs = PyDict::new(py);
        for (key, tree) in &self.kwargs {
            kwargs.set_item(key.bind(py), unflatten(py, tree, &mut values)?)?;
        }
        func.call(args, Some(&kwargs))
    }
}
