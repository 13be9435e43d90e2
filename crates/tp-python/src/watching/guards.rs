//! Guards on the state of Python that a captured function read: each says that one read would still give the same. If
//! all of them hold, the function would do again what it did.

use super::api::Api;
use super::buffers::Snapshot;
use super::contents::{self, Kind};
use super::expect::{Expect, found, owned};
use super::quick::has_version;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use pyo3::ffi;
use pyo3::prelude::*;
use std::sync::atomic::Ordering;

pub enum Check {
    /// An item of a dict: a global, a builtin, a module's attribute, an item by key.
    Item {
        dict: Py<PyAny>,
        key: Py<PyAny>,
        value: Expect,
    },
    /// Whether a dict has a key.
    HasKey {
        dict: Py<PyAny>,
        key: Py<PyAny>,
        there: bool,
    },
    ListItem {
        list: Py<PyAny>,
        index: isize,
        value: Expect,
    },
    Cell {
        cell: Py<PyAny>,
        value: Expect,
    },
    /// An attribute of an instance: its type, what the type has under the name, and the value.
    Attribute {
        of: Py<PyAny>,
        class: Py<PyAny>,
        name: Py<PyAny>,
        descriptor: Option<Py<PyAny>>,
        value: Expect,
    },
    /// What a class has under a name, along its MRO.
    Lookup {
        class: Py<PyAny>,
        name: Py<PyAny>,
        value: Option<Py<PyAny>>,
    },
    Type {
        of: Py<PyAny>,
        class: Py<PyAny>,
    },
    Length {
        of: Py<PyAny>,
        length: isize,
    },
    Contents {
        of: Py<PyAny>,
        kind: Kind,
        seen: Vec<Py<PyAny>>,
    },
    /// What an array of native code has in its memory.
    Buffer {
        of: Py<PyAny>,
        seen: Snapshot,
    },
    /// A call that is made again.
    Again {
        callee: Py<PyAny>,
        args: Py<PyAny>,
        value: Expect,
    },
    Function {
        of: Py<PyAny>,
        code: Py<PyAny>,
        defaults: Option<Py<PyAny>>,
        keywords: Option<Py<PyAny>>,
    },
}

pub struct Guard {
    /// The path by which the function came there.
    pub name: String,
    pub check: Check,
}

fn pointer(obj: &Option<Py<PyAny>>) -> Obj {
    obj.as_ref().map_or(std::ptr::null_mut(), Py::as_ptr)
}

/// An item, borrowed; null where there is none, or where looking for it raised.
///
/// # Safety
/// A live dict and key, lock held.
pub unsafe fn item(dict: Obj, key: Obj) -> Obj {
    unsafe {
        let value = ffi::PyDict_GetItemWithError(dict, key);
        if value.is_null() && !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_Clear();
        }
        value
    }
}

/// The value of an attribute that no descriptor of the user's own computes; owned, or null.
///
/// # Safety
/// A live object and name, lock held.
pub unsafe fn attribute(api: &Api, of: Obj, name: Obj) -> Obj {
    unsafe {
        let value = (api.generic_get)(of, name, std::ptr::null_mut(), 1);
        if value.is_null() && !ffi::PyErr_Occurred().is_null() {
            ffi::PyErr_Clear();
        }
        value
    }
}

/// # Safety
/// A live container, lock held. -1 where it has no length.
pub unsafe fn length(of: Obj) -> isize {
    unsafe {
        let n = ffi::PyObject_Size(of);
        if n < 0 {
            ffi::PyErr_Clear();
        }
        n
    }
}

unsafe fn then_drop(value: Obj, f: impl FnOnce(Obj) -> bool) -> bool {
    let answer = f(value);
    unsafe { ffi::Py_XDECREF(value) };
    answer
}

impl Check {
    /// Whether the read would give what it gave.
    ///
    /// # Safety
    /// Lock held; so below.
    pub unsafe fn holds(&self, api: &Api) -> bool {
        unsafe {
            match self {
                Check::Item { dict, key, value } => value.holds(api, item(dict.as_ptr(), key.as_ptr())),
                Check::HasKey { dict, key, there } => item(dict.as_ptr(), key.as_ptr()).is_null() != *there,
                Check::ListItem { list, index, value } => {
                    let (list, n) = (list.as_ptr(), ffi::PyList_Size(list.as_ptr()));
                    let i = if *index < 0 { index + n } else { *index };
                    let now =
                        if (0..n).contains(&i) { ffi::PyList_GetItem(list, i) } else { std::ptr::null_mut() };
                    value.holds(api, now)
                }
                Check::Cell { cell, value } => {
                    then_drop((api.cell_get)(cell.as_ptr()), |now| value.holds(api, now))
                }
                Check::Attribute { of, class, name, descriptor, value } => {
                    let (of, name) = (of.as_ptr(), name.as_ptr());
                    let ty = x::type_of(of);
                    ty.cast() == class.as_ptr()
                        && (api.type_lookup)(ty, name) == pointer(descriptor)
                        && (matches!(value, Expect::Any)
                            || then_drop(attribute(api, of, name), |now| value.holds(api, now)))
                }
                Check::Lookup { class, name, value } => {
                    (api.type_lookup)(class.as_ptr().cast(), name.as_ptr()) == pointer(value)
                }
                Check::Type { of, class } => x::type_of(of.as_ptr()).cast() == class.as_ptr(),
                Check::Length { of, length: seen } => length(of.as_ptr()) == *seen,
                Check::Contents { of, kind, seen } => contents::same(of.as_ptr(), *kind, seen),
                Check::Buffer { of, seen } => seen.holds(of.as_ptr()),
                Check::Again { value, .. } => {
                    self.present(api).is_some_and(|now| then_drop(now, |now| value.holds(api, now)))
                }
                Check::Function { of, code, defaults, keywords } => {
                    let of = of.as_ptr();
                    (api.function_code)(of) == code.as_ptr()
                        && (defaults.is_none() || (api.function_defaults)(of) == pointer(defaults))
                        && (keywords.is_none() || (api.function_kwdefaults)(of) == pointer(keywords))
                }
            }
        }
    }

    /// What stands at a place now, owned, or null; None of guards that are no place of one value.
    pub(super) unsafe fn present(&self, api: &Api) -> Option<Obj> {
        unsafe {
            let value = match self {
                Check::Item { dict, key, .. } => item(dict.as_ptr(), key.as_ptr()),
                Check::ListItem { list, index, .. } => {
                    let (list, n) = (list.as_ptr(), ffi::PyList_Size(list.as_ptr()));
                    let i = if *index < 0 { index + n } else { *index };
                    if (0..n).contains(&i) { ffi::PyList_GetItem(list, i) } else { std::ptr::null_mut() }
                }
                Check::Cell { cell, .. } => return Some((api.cell_get)(cell.as_ptr())),
                Check::Attribute { of, name, .. } => return Some(attribute(api, of.as_ptr(), name.as_ptr())),
                Check::Again { callee, args, .. } => {
                    let now = ffi::PyObject_CallObject(callee.as_ptr(), args.as_ptr());
                    if now.is_null() {
                        ffi::PyErr_Clear();
                    }
                    return Some(now);
                }
                _ => return None,
            };
            ffi::Py_XINCREF(value);
            Some(value)
        }
    }

    /// What is expected at a place of one value.
    pub fn expected(&self) -> Option<&Expect> {
        match self {
            Check::Item { value, .. }
            | Check::ListItem { value, .. }
            | Check::Cell { value, .. }
            | Check::Again { value, .. }
            | Check::Attribute { value, .. } => Some(value),
            _ => None,
        }
    }

    pub(super) fn is_function(&self) -> bool {
        matches!(self, Check::Function { .. })
    }

    /// The dict that a guard is about alone. What may be another tensor is looked at each time.
    pub(super) unsafe fn dict(&self) -> Option<Obj> {
        let of = match self {
            Check::Item { value: Expect::Tensor { .. }, .. } => return None,
            Check::Item { dict, .. } | Check::HasKey { dict, .. } => dict.as_ptr(),
            Check::Length { of, .. } | Check::Contents { of, kind: Kind::Dict, .. } => {
                // Another class may have a length of its own.
                return (unsafe { x::type_of(of.as_ptr()) } == &raw mut ffi::PyDict_Type)
                    .then(|| of.as_ptr());
            }
            _ => return None,
        };
        Some(of)
    }

    /// The class whose version tells whether a look-up along its MRO gives the same.
    pub(super) unsafe fn looked_up(&self, api: &Api) -> Option<Obj> {
        match self {
            // SAFETY: the guard owns the class; lock held.
            Check::Lookup { class, .. } if unsafe { has_version(class.as_ptr(), api) } => {
                Some(class.as_ptr())
            }
            _ => None,
        }
    }

    /// Every object that the guard owns.
    pub(super) fn each(&self, f: &mut dyn FnMut(Obj)) {
        let mut value = None;
        let owned: [Option<&Py<PyAny>>; 4] = match self {
            Check::Item { dict, key, value: v } => {
                value = Some(v);
                [Some(dict), Some(key), None, None]
            }
            Check::HasKey { dict, key, .. } => [Some(dict), Some(key), None, None],
            Check::ListItem { list: of, value: v, .. } | Check::Cell { cell: of, value: v } => {
                value = Some(v);
                [Some(of), None, None, None]
            }
            Check::Attribute { of, class, name, descriptor, value: v } => {
                value = Some(v);
                [Some(of), Some(class), Some(name), descriptor.as_ref()]
            }
            Check::Lookup { class, name, value } => [Some(class), Some(name), value.as_ref(), None],
            Check::Type { of, class } => [Some(of), Some(class), None, None],
            Check::Length { of, .. } | Check::Buffer { of, .. } => [Some(of), None, None, None],
            Check::Again { callee, args, value: v } => {
                value = Some(v);
                [Some(callee), Some(args), None, None]
            }
            Check::Contents { of, seen, .. } => {
                seen.iter().for_each(|one| f(one.as_ptr()));
                [Some(of), None, None, None]
            }
            Check::Function { of, code, defaults, keywords } => {
                [Some(of), Some(code), defaults.as_ref(), keywords.as_ref()]
            }
        };
        owned.into_iter().flatten().for_each(|one| f(one.as_ptr()));
        if let Some(value) = value {
            value.each(f);
        }
    }
}

impl Guard {
    pub(super) unsafe fn text(&self) -> String {
        let name = &self.name;
        unsafe {
            match &self.check {
                Check::Item { value, .. }
                | Check::ListItem { value, .. }
                | Check::Cell { value, .. }
                | Check::Again { value, .. } => value.text(name),
                Check::Buffer { .. } => format!("{name} holds the values of the capture"),
                Check::Attribute { value: Expect::Any, .. } => {
                    format!("{name} is the attribute of the capture")
                }
                Check::Attribute { value, .. } => value.text(name),
                Check::HasKey { there, .. } => {
                    format!("{name} {}", if *there { "exists" } else { "does not exist" })
                }
                Check::Lookup { value: None, .. } => format!("{name} does not exist"),
                Check::Lookup { value: Some(value), .. } => Expect::Is(owned(value.as_ptr())).text(name),
                Check::Type { class, .. } => format!("type({name}) is {}", type_text(class.as_ptr())),
                Check::Length { length, .. } => format!("len({name}) == {length}"),
                Check::Contents { kind: Kind::Dict | Kind::OrderedDict, seen, .. } => {
                    format!("{name} holds the {} items of the capture", seen.len() / 2)
                }
                Check::Contents { seen, .. } => {
                    format!("{name} holds the {} objects of the capture", seen.len())
                }
                Check::Function { .. } => format!("the code and defaults of {name} are those of the capture"),
            }
        }
    }

    /// The guard, and what was found.
    pub(super) unsafe fn miss(&self, api: &Api) -> String {
        unsafe {
            let text = self.text();
            if let Some(Expect::Tensor { like, moves, .. }) = self.check.expected()
                && moves.load(Ordering::Relaxed)
                && let Some(now) = self.check.present(api)
            {
                let is_tensor = !now.is_null() && shell::is_tensor(now);
                let text = match is_tensor {
                    true => like.miss(&self.name, shell::tensor_of(now)),
                    false => format!("{text}, got {}", found(now)),
                };
                ffi::Py_XDECREF(now);
                return text;
            }
            let got = match &self.check {
                Check::Item { dict, key, .. } => found(item(dict.as_ptr(), key.as_ptr())),
                Check::Cell { cell, .. } => {
                    let now = (api.cell_get)(cell.as_ptr());
                    let text = found(now);
                    ffi::Py_XDECREF(now);
                    text
                }
                Check::Attribute { of, name, value, .. } if !matches!(value, Expect::Any) => {
                    let now = attribute(api, of.as_ptr(), name.as_ptr());
                    let text = found(now);
                    ffi::Py_XDECREF(now);
                    text
                }
                Check::Length { of, .. } => length(of.as_ptr()).to_string(),
                _ => return format!("{text}, which changed"),
            };
            format!("{text}, got {got}")
        }
    }
}

unsafe fn type_text(class: Obj) -> String {
    crate::error::attached(|py| {
        let class: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, class) };
        class.getattr("__qualname__").map_or_else(|_| "?".to_string(), |n| n.to_string())
    })
}
