//! Tensors inside of the containers that an argument or a result may be: dicts, lists, tuples, sets and dataclasses, as
//! deep as they go. The one walker for all who have to know: keys and devices of a call, aliases, gradients, debug
//! checks, fakes, autocast and vmap. An object of another class is carried whole; what it holds is its own business.

use super::ffi::Obj;
use super::shell;
use crate::error::{self, guarded};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyFrozenSet, PyList, PySet, PyTuple, PyType};
use std::collections::{HashMap, HashSet};
use tp_dispatch::Result;
use tp_tensor::Tensor;

/// Every tensor inside of `obj`, `obj` itself included; a container that is met twice counts once.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn tensors_in(obj: Obj) -> Result<Box<[Tensor]>> {
    error::attached(|py| {
        // SAFETY: a live object.
        let obj = unsafe { Bound::from_borrowed_ptr(py, obj) };
        let mut found = Vec::new();
        collect(obj, &mut found).map_err(error::from_py)?;
        Ok(found.into())
    })
}

fn collect(obj: Bound<'_, PyAny>, found: &mut Vec<Tensor>) -> PyResult<()> {
    let mut seen = HashSet::new();
    let mut left = vec![obj];
    while let Some(obj) = left.pop() {
        // SAFETY: a live object.
        if let Some(t) = unsafe { tensor(&obj) } {
            found.push(t.clone());
            continue;
        }
        let Some(kind) = Kind::of(&obj)? else { continue };
        if seen.insert(obj.as_ptr()) {
            let items = kind.items(&obj)?;
            // Addresses in `seen` stay those of live objects: the containers own them, or the list does.
            left.extend(items.into_iter().rev());
        }
    }
    Ok(())
}

unsafe fn tensor<'a>(obj: &'a Bound<'_, PyAny>) -> Option<&'a Tensor> {
    // SAFETY: a live object, borrowed as long as the handle.
    unsafe { shell::is_tensor(obj.as_ptr()).then(|| shell::tensor_of(obj.as_ptr())) }
}

/// The containers that are looked into.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Dict,
    List,
    Tuple,
    Set,
    Dataclass,
}

impl Kind {
    fn of(obj: &Bound<'_, PyAny>) -> PyResult<Option<Kind>> {
        let py = obj.py();
        Ok(Some(match obj {
            o if o.is_instance_of::<PyDict>() => Kind::Dict,
            o if o.is_instance_of::<PyList>() => Kind::List,
            o if o.is_instance_of::<PyTuple>() => Kind::Tuple,
            o if o.is_instance_of::<PySet>() || o.is_instance_of::<PyFrozenSet>() => Kind::Set,
            o if o.is_instance_of::<PyType>() => return Ok(None),
            o if o.get_type().hasattr(pyo3::intern!(py, "__dataclass_fields__"))? => Kind::Dataclass,
            _ => return Ok(None),
        }))
    }

    fn items<'py>(self, obj: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        match self {
            Kind::Dict => Ok(obj.cast::<PyDict>()?.values().iter().collect()),
            Kind::List => Ok(obj.cast::<PyList>()?.iter().collect()),
            Kind::Tuple => Ok(obj.cast::<PyTuple>()?.iter().collect()),
            Kind::Set => obj.try_iter()?.collect(),
            // A field without a value yet has no attribute.
            Kind::Dataclass => fields(obj)?.iter().filter_map(|n| obj.getattr_opt(n).transpose()).collect(),
        }
    }
}

/// Names of a dataclass's fields.
fn fields<'py>(obj: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, pyo3::types::PyString>>> {
    let fields = obj.get_type().getattr(pyo3::intern!(obj.py(), "__dataclass_fields__"))?;
    let Ok(fields) = fields.cast::<PyDict>() else { return Ok(Vec::new()) };
    fields.keys().iter().map(|name| Ok(name.cast_into::<pyo3::types::PyString>()?)).collect()
}

/// A copy of `obj` with `other` of every tensor inside in its place; the containers are new, all else is shared.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn replaced(obj: Obj, other: tp_dispatch::host::Replace<'_>) -> Result<Obj> {
    error::attached(|py| {
        // SAFETY: a live object.
        let obj = unsafe { Bound::from_borrowed_ptr(py, obj) };
        let mut failed = None;
        let made = Map::new(false, &mut |t| {
            // SAFETY: a tensor, for leaves of other kinds are not asked about.
            let found = other(unsafe { shell::tensor_of(t.as_ptr()) });
            let new = found.map_err(|e| {
                failed = Some(e);
                pyo3::exceptions::PyRuntimeError::new_err("the tensor has no replacement")
            })?;
            crate::tensor::wrap(t.py(), new)
        })
        .of(&obj);
        match (made, failed) {
            (Ok(made), _) => Ok(made.into_ptr()),
            (Err(_), Some(e)) => Err(e),
            (Err(e), None) => Err(error::from_py(e)),
        }
    })
}

type Leaf<'a, 'py> = &'a mut dyn FnMut(&Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>;

/// Containers being copied, with the copy of each that was met: a container may hold itself.
struct Map<'a, 'py> {
    all: bool,
    leaf: Leaf<'a, 'py>,
    made: HashMap<Obj, Bound<'py, PyAny>>,
}

impl<'a, 'py> Map<'a, 'py> {
    /// `leaf` is asked about tensors, and about everything else that is no container where `all` is set.
    fn new(all: bool, leaf: Leaf<'a, 'py>) -> Map<'a, 'py> {
        Map { all, leaf, made: HashMap::new() }
    }

    fn of(&mut self, obj: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: a live object.
        if unsafe { shell::is_tensor(obj.as_ptr()) } {
            return (self.leaf)(obj);
        }
        let Some(kind) = Kind::of(obj)? else {
            return if self.all { (self.leaf)(obj) } else { Ok(obj.clone()) };
        };
        if let Some(made) = self.made.get(&obj.as_ptr()) {
            return Ok(made.clone());
        }
        // SAFETY: lock held; left again below.
        if unsafe { ffi::Py_EnterRecursiveCall(c" in nested arguments".as_ptr()) } != 0 {
            return Err(PyErr::fetch(obj.py()));
        }
        let made = self.container(kind, obj);
        // SAFETY: entered above.
        unsafe { ffi::Py_LeaveRecursiveCall() };
        made
    }

    fn container(&mut self, kind: Kind, obj: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = obj.py();
        if matches!(kind, Kind::Tuple | Kind::Set) {
            let items = kind.items(obj)?.iter().map(|o| self.of(o)).collect::<PyResult<Vec<_>>>()?;
            let items = PyTuple::new(py, items)?;
            let ty = obj.get_type();
            return match kind {
                Kind::Tuple if ty.is(py.get_type::<PyTuple>()) => Ok(items.into_any()),
                // A named tuple takes its items one by one.
                Kind::Tuple if ty.hasattr("_make")? => ty.call_method1("_make", (items,)),
                _ => ty.call1((items,)),
            };
        }
        let made = copy_of(obj)?;
        self.made.insert(obj.as_ptr(), made.clone());
        match kind {
            Kind::Dict => {
                for (key, value) in obj.cast::<PyDict>()?.iter() {
                    made.set_item(key, self.of(&value)?)?;
                }
            }
            Kind::List => {
                for (i, item) in obj.cast::<PyList>()?.iter().enumerate() {
                    made.set_item(i, self.of(&item)?)?;
                }
            }
            _ => {
                // A frozen dataclass refuses its own way of setting fields.
                let set = py.get_type::<PyAny>().getattr("__setattr__")?;
                for name in fields(obj)? {
                    if let Some(value) = obj.getattr_opt(&name)? {
                        set.call1((&made, &name, self.of(&value)?))?;
                    }
                }
            }
        }
        Ok(made)
    }
}

fn copy_of<'py>(obj: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static COPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = obj.py();
    if obj.get_type().is(py.get_type::<PyDict>()) {
        return Ok(obj.cast::<PyDict>()?.copy()?.into_any());
    }
    COPY.import(py, "copy", "copy")?.call1((obj,))
}

/// The tensors inside of nested containers, in order.
#[pyfunction]
fn nest_tensors<'py>(obj: Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    guarded(|| {
        let (py, mut found) = (obj.py(), Vec::new());
        collect(obj, &mut found)?;
        found.into_iter().map(|t| crate::tensor::wrap(py, t)).collect()
    })
}

/// A copy of nested containers with `fn(x)` in the place of every tensor, or of every leaf.
#[pyfunction]
#[pyo3(signature = (f, obj, leaves = false))]
fn nest_map<'py>(
    f: &Bound<'py, PyAny>,
    obj: &Bound<'py, PyAny>,
    leaves: bool,
) -> PyResult<Bound<'py, PyAny>> {
    guarded(|| Map::new(leaves, &mut |x| f.call1((x,))).of(obj))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(nest_tensors, m)?)?;
    m.add_function(wrap_pyfunction!(nest_map, m)?)
}
