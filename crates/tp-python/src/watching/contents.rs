//! What the built-in containers hold, in order, read without running any code of the user.

use crate::hot::ffi::{self as x, Obj};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// How the contents of a container are read. Subclasses count as what they extend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    List,
    Dict,
    /// Its order is not that of the dict in it.
    OrderedDict,
    Set,
    Deque,
    /// Of a dict that is kept elsewhere: keys, values or items.
    View,
}

fn collection(py: Python<'_>, name: &'static str) -> Option<*mut ffi::PyTypeObject> {
    static ORDERED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static DEQUE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let place = if name == "deque" { &DEQUE } else { &ORDERED };
    place.import(py, "collections", name).ok().map(|t| t.as_ptr().cast())
}

/// The kind of a mutable built-in container; None for any other object.
///
/// # Safety
/// A live object, lock held; so below.
pub unsafe fn kind(obj: Obj) -> Option<Kind> {
    unsafe {
        if ffi::PyList_Check(obj) != 0 {
            return Some(Kind::List);
        }
        let ty = x::type_of(obj);
        let extends = |name| {
            crate::error::attached(|py| collection(py, name))
                .is_some_and(|base| ffi::PyType_IsSubtype(ty, base) != 0)
        };
        if ffi::PyDict_Check(obj) != 0 {
            let plain = ty == &raw mut ffi::PyDict_Type;
            return Some(if !plain && extends("OrderedDict") { Kind::OrderedDict } else { Kind::Dict });
        }
        if ty == &raw mut ffi::PySet_Type || ffi::PyType_IsSubtype(ty, &raw mut ffi::PySet_Type) != 0 {
            return Some(Kind::Set);
        }
        if ty == &raw mut ffi::PyDictKeys_Type
            || ty == &raw mut ffi::PyDictValues_Type
            || ty == &raw mut ffi::PyDictItems_Type
        {
            return Some(Kind::View);
        }
        (!is_core(ty) && extends("deque")).then_some(Kind::Deque)
    }
}

/// Types that are met at nearly every opcode, and are no deques.
unsafe fn is_core(ty: *mut ffi::PyTypeObject) -> bool {
    ty == &raw mut ffi::PyTuple_Type || ty == &raw mut ffi::PyUnicode_Type || ty == &raw mut ffi::PyLong_Type
}

/// What the container holds, keys before their values, as owned references. Null stands for no item.
pub unsafe fn contents(obj: Obj, kind: Kind) -> Vec<Py<PyAny>> {
    use super::expect::owned;
    let mut out = Vec::new();
    unsafe {
        match kind {
            Kind::List => {
                for i in 0..ffi::PyList_Size(obj) {
                    out.push(owned(ffi::PyList_GetItem(obj, i)));
                }
            }
            Kind::Dict => {
                let (mut at, mut key, mut value) = (0, std::ptr::null_mut(), std::ptr::null_mut());
                while ffi::PyDict_Next(obj, &mut at, &mut key, &mut value) != 0 {
                    out.push(owned(key));
                    out.push(owned(value));
                }
            }
            Kind::OrderedDict | Kind::Set | Kind::Deque | Kind::View => walk(obj, kind, &mut out),
        }
    }
    out
}

unsafe fn walk(obj: Obj, kind: Kind, out: &mut Vec<Py<PyAny>>) {
    let walked = crate::error::attached(|py| -> PyResult<()> {
        let container: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, obj) };
        let base = match kind {
            Kind::OrderedDict => collection(py, "OrderedDict"),
            Kind::Deque => collection(py, "deque"),
            Kind::Set => Some(&raw mut ffi::PySet_Type),
            _ => Some(unsafe { x::type_of(obj) }),
        };
        let Some(base) = base else { return Ok(()) };
        // The built-in type's own iterator, also of a subclass that has another.
        let class: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, base.cast()) };
        for item in class.call_method1("__iter__", (&container,))?.try_iter()? {
            let item = item?;
            if kind == Kind::OrderedDict {
                // SAFETY: a live dict and key; the result is borrowed.
                let value = unsafe { ffi::PyDict_GetItemWithError(obj, item.as_ptr()) };
                out.push(item.unbind());
                if !value.is_null() {
                    out.push(unsafe { super::expect::owned(value) });
                }
            } else if kind == Kind::View && item.is_instance_of::<pyo3::types::PyTuple>() {
                out.extend(item.cast::<pyo3::types::PyTuple>()?.iter().map(Bound::unbind));
            } else {
                out.push(item.unbind());
            }
        }
        Ok(())
    });
    drop(walked);
}

/// Whether the container holds just these objects, in this order; None where it has to be read whole to tell.
#[inline]
unsafe fn same_quickly(obj: Obj, kind: Kind, seen: &[Py<PyAny>]) -> Option<bool> {
    unsafe {
        match kind {
            Kind::List => {
                let n = ffi::PyList_Size(obj);
                Some(
                    n as usize == seen.len()
                        && (0..n).all(|i| ffi::PyList_GetItem(obj, i) == seen[i as usize].as_ptr()),
                )
            }
            Kind::Dict => {
                let (mut at, mut key, mut value) = (0, std::ptr::null_mut(), std::ptr::null_mut());
                let mut pairs = seen.chunks_exact(2);
                while ffi::PyDict_Next(obj, &mut at, &mut key, &mut value) != 0 {
                    match pairs.next() {
                        Some(pair) if pair[0].as_ptr() == key && pair[1].as_ptr() == value => {}
                        _ => return Some(false),
                    }
                }
                Some(pairs.next().is_none())
            }
            _ => None,
        }
    }
}

/// Whether the container holds what it held. Immutable values count by type and bits.
pub unsafe fn same(obj: Obj, kind: Kind, seen: &[Py<PyAny>]) -> bool {
    unsafe {
        if same_quickly(obj, kind, seen) == Some(true) {
            return true;
        }
        let now = contents(obj, kind);
        now.len() == seen.len()
            && now.iter().zip(seen).all(|(now, seen)| super::expect::same_value(seen.as_ptr(), now.as_ptr()))
    }
}

/// Puts back what a container held.
pub unsafe fn restore(obj: Obj, kind: Kind, seen: &[Py<PyAny>]) -> PyResult<()> {
    crate::error::attached(|py| {
        let container: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, obj) };
        let base = |name: &str| py.import("builtins")?.getattr(name);
        match kind {
            Kind::List => {
                let all = pyo3::types::PyList::new(py, seen)?;
                let whole = pyo3::types::PySlice::full(py);
                base("list")?.call_method1("__setitem__", (container, whole, all)).map(drop)
            }
            Kind::Dict | Kind::OrderedDict => {
                let class = match (kind, collection(py, "OrderedDict")) {
                    (Kind::OrderedDict, Some(t)) => unsafe { Bound::from_borrowed_ptr(py, t.cast()) },
                    _ => base("dict")?,
                };
                class.call_method1("clear", (&container,))?;
                for pair in seen.chunks_exact(2) {
                    class.call_method1("__setitem__", (&container, &pair[0], &pair[1]))?;
                }
                Ok(())
            }
            Kind::Set | Kind::Deque => {
                container.call_method0("clear")?;
                let put = if kind == Kind::Set { "add" } else { "append" };
                seen.iter().try_for_each(|one| container.call_method1(put, (one,)).map(drop))
            }
            Kind::View => Ok(()),
        }
    })
}
