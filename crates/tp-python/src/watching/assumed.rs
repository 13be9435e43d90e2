//! What the caller of `tp.compile` vouches for: functions that are called once, by the capture, and objects and names that
//! are read and not guarded.

use super::addresses::AddressSet;
use super::natives::is_descriptor;
use super::session::Session;
use crate::hot::ffi::{self as x, Obj};
use pyo3::ffi;
use pyo3::prelude::*;

/// Objects that are vouched for live as long as the compiled function, and so for the time of a capture.
#[derive(Default)]
pub(super) struct Assumed {
    objects: AddressSet,
    /// Of native methods: what they are bound to, and their names. They are made anew each time they are read.
    methods: Vec<(usize, String)>,
    /// Of native methods taken from their classes: the class, and the name; they stand for those of every instance.
    of_classes: Vec<(usize, String)>,
    names: Vec<String>,
}

impl Assumed {
    pub(super) fn contains(&self, obj: Obj) -> bool {
        self.objects.contains(&(obj as usize))
    }

    /// Whether a native function is vouched for, by its object and name or by its full name.
    ///
    /// # Safety
    /// A live object or null, lock held.
    pub(super) unsafe fn has_call(&self, on: Obj, module: &str, name: &str) -> bool {
        let is_instance = |class: usize| unsafe {
            !on.is_null() && ffi::PyType_IsSubtype(x::type_of(on), class as *mut ffi::PyTypeObject) != 0
        };
        self.methods.iter().any(|(of, method)| *of == on as usize && method == name)
            || self.of_classes.iter().any(|(class, method)| method == name && is_instance(*class))
            || self.names.iter().any(|n| {
                n == name || n.strip_suffix(name).is_some_and(|rest| rest.strip_suffix('.') == Some(module))
            })
    }

    /// Whether a guard is about something that is vouched for by its path, or about a part of it.
    pub(super) fn has_path(&self, path: &str) -> bool {
        let path = ["global ", "closure ", "builtin "]
            .iter()
            .find_map(|kind| path.strip_prefix(kind))
            .unwrap_or(path);
        self.names.iter().any(|name| {
            path.strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }
}

impl Session {
    /// `all`: a tuple of functions, other objects, and names.
    pub(super) fn assume(&mut self, all: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        for one in all.iter() {
            if let Ok(name) = one.extract::<String>() {
                self.assumed.names.push(name);
                continue;
            }
            let obj = one.as_ptr();
            // SAFETY: a live object, lock held.
            unsafe {
                let ty = x::type_of(obj);
                if ty == self.api.method_type {
                    self.assumed.objects.insert((self.api.method_function)(obj) as usize);
                } else if ffi::PyCFunction_Check(obj) != 0 {
                    let of = ffi::PyCFunction_GetSelf(obj);
                    if !of.is_null() && ffi::PyModule_Check(of) == 0 {
                        self.assumed.methods.push((of as usize, one.getattr("__name__")?.extract()?));
                    }
                } else if is_descriptor(obj) {
                    let class = one.getattr("__objclass__")?.as_ptr();
                    self.assumed.of_classes.push((class as usize, one.getattr("__name__")?.extract()?));
                } else if ty != self.api.function_type {
                    self.mark_fresh(obj);
                }
                self.assumed.objects.insert(obj as usize);
            }
        }
        Ok(())
    }
}
