//! Guards on the state of Python that a captured function read: each says that one read would still give the same. If
//! all of them hold, the function would do again what it did.

use super::api::Api;
use super::contents::{self, Kind};
use super::expect::{Expect, found, owned};
use super::frame::function_state;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use pyo3::ffi;
use pyo3::prelude::*;
use std::any::Any;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use tp_graph::host_guards::{HostGuards, Word};
use tp_tensor::Tensor;

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
    unsafe fn present(&self, api: &Api) -> Option<Obj> {
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
            | Check::Attribute { value, .. } => Some(value),
            _ => None,
        }
    }

    fn is_function(&self) -> bool {
        matches!(self, Check::Function { .. })
    }

    /// Every object that the guard owns.
    fn each(&self, f: &mut dyn FnMut(Obj)) {
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
            Check::Length { of, .. } => [Some(of), None, None, None],
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
    unsafe fn text(&self) -> String {
        let name = &self.name;
        unsafe {
            match &self.check {
                Check::Item { value, .. } | Check::ListItem { value, .. } | Check::Cell { value, .. } => {
                    value.text(name)
                }
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
    unsafe fn miss(&self, api: &Api) -> String {
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

/// The guards of one entry.
pub struct PyGuards {
    /// Of functions, which stay until the guards are dropped: their words are compared by the entry.
    functions: Vec<Guard>,
    list: UnsafeCell<Vec<Guard>>,
    /// Places of one tensor each, which others may come to: numbers in `list`.
    places: Vec<usize>,
    /// The collector took the objects away: nothing holds any more.
    is_cleared: AtomicBool,
    api: &'static Api,
}

// SAFETY: the list is read and cleared with the interpreter lock held. It is cleared only by the collector, when nobody
// refers to the compiled function any more: no call of it is under way.
unsafe impl Send for PyGuards {}
// SAFETY: as above.
unsafe impl Sync for PyGuards {}

impl PyGuards {
    /// `is_pinned`: whether a tensor was met by other ways than by reading one place, or it mattered which one it is.
    pub fn new(api: &'static Api, list: Vec<Guard>, is_pinned: impl Fn(Obj) -> bool) -> PyGuards {
        let (functions, list): (Vec<Guard>, _) =
            list.into_iter().partition(|guard| guard.check.is_function());
        let tensor = |guard: &Guard| match guard.check.expected() {
            Some(Expect::Tensor { seen, .. }) => Some(seen.as_ptr()),
            _ => None,
        };
        let met: Vec<Obj> = list.iter().filter_map(tensor).collect();
        let is_alone = |obj: Obj| !is_pinned(obj) && met.iter().filter(|other| **other == obj).count() == 1;
        let places = (0..list.len()).filter(|&i| tensor(&list[i]).is_some_and(is_alone)).collect();
        PyGuards { functions, list: UnsafeCell::new(list), places, is_cleared: AtomicBool::new(false), api }
    }

    fn list(&self) -> &[Guard] {
        // SAFETY: see above.
        unsafe { &*self.list.get() }
    }

    fn all(&self) -> impl Iterator<Item = &Guard> {
        self.functions.iter().chain(self.list())
    }

    /// Every object that the guards own, for the collector.
    pub fn each(&self, f: &mut dyn FnMut(Obj)) {
        self.all().for_each(|guard| guard.check.each(f));
    }

    /// Gives up the objects but functions, which the collector clears itself; the guards fail from now on.
    ///
    /// # Safety
    /// Lock held; no check is under way.
    pub unsafe fn clear(&self) {
        if self.list().is_empty() {
            return;
        }
        self.is_cleared.store(true, Ordering::Relaxed);
        // Dropped after the list is empty: finalisers may come back here.
        let taken = unsafe { std::mem::take(&mut *self.list.get()) };
        drop(taken);
    }
}

impl std::fmt::Debug for PyGuards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.texts()).finish()
    }
}

impl HostGuards for PyGuards {
    fn holds(&self) -> bool {
        // SAFETY: compiled functions are called with the lock held.
        !self.is_cleared.load(Ordering::Relaxed)
            && self.list().iter().all(|guard| unsafe { guard.check.holds(self.api) })
    }

    fn miss(&self) -> Option<String> {
        // SAFETY: as above.
        let failed = self.all().find(|guard| unsafe { !guard.check.holds(self.api) })?;
        Some(unsafe { failed.miss(self.api) })
    }

    fn texts(&self) -> Vec<String> {
        // SAFETY: as above.
        self.all().map(|guard| unsafe { guard.text() }).collect()
    }

    fn slot_of(&self, t: &Tensor) -> Option<u32> {
        let is_it = |&&i: &&usize| match self.list()[i].check.expected() {
            // SAFETY: a live tensor, owned by the guard.
            Some(Expect::Tensor { seen, .. }) => unsafe { shell::tensor_of(seen.as_ptr()).same(t) },
            _ => false,
        };
        self.places.iter().find(is_it).and_then(|&i| u32::try_from(i).ok())
    }

    fn release(&self, slot: u32) {
        if let Some(Expect::Tensor { moves, .. }) =
            self.list().get(slot as usize).and_then(|guard| guard.check.expected())
        {
            moves.store(true, Ordering::Relaxed);
        }
    }

    fn fetch(&self, slot: u32) -> Option<Tensor> {
        let check = &self.list().get(slot as usize)?.check;
        let Some(Expect::Tensor { like, .. }) = check.expected() else { return None };
        // SAFETY: compiled functions are called with the lock held; the reference is given back.
        unsafe {
            let now = check.present(self.api).filter(|now| !now.is_null())?;
            let found = shell::is_tensor(now).then(|| shell::tensor_of(now).clone());
            ffi::Py_DECREF(now);
            found.filter(|t| like.holds(t))
        }
    }

    fn words(&self) -> Vec<Word> {
        let of = |guard: &Guard| match &guard.check {
            Check::Function { of, .. } => Some(of.as_ptr()),
            _ => None,
        };
        let functions = self.functions.iter().filter_map(of);
        // SAFETY: the functions live as long as the guards, and change with the interpreter lock held. A call that went
        // well without defaults goes as well with some.
        unsafe {
            let state = functions.flat_map(|f| function_state(f, self.api.layout));
            state.filter(|at| at.read() != 0).map(|at| Word::new(at)).collect()
        }
    }

    fn is_words_only(&self) -> bool {
        self.list().is_empty()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
