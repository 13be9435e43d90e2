//! Guards on one place told by a few words of the interpreter's memory, as its own caches of attributes do it: what an
//! instance holds under a name lies at an index that its class gives, and a dict whose version is the same holds the same.
//! Where the words tell nothing the guard itself is asked. That the class means by the name what it meant is not looked at
//! here: the entry compares the class's version before.

use super::api::Api;
use super::attributes::is_data;
use super::expect::Expect;
use super::frame::{Layout, dict_version};
use super::guards::{Check, Guard, item};
use crate::hot::ffi::{self as x, Obj};
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::c_ulong;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `Py_TPFLAGS_MANAGED_DICT`: attributes lie in front of the instance, and in a dict only once somebody asked for it.
const MANAGED_DICT: c_ulong = 1 << 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// No words tell.
    Slow,
    Item,
    Attribute,
    /// A data descriptor of the class computes it.
    Computed,
}

/// Beside one guard, which owns the objects.
pub struct Quick {
    form: Form,
    /// A tensor is expected, and what it is like has to be looked at.
    is_tensor: bool,
    /// Where in the instance's values the name is; None where the class's instances have no such name.
    index: Option<u32>,
    /// How many names the class's instances had between them.
    names: usize,
    of: Obj,
    class: Obj,
    /// What has to stand there.
    seen: Obj,
    /// What stood in the dict at a version of it.
    version: AtomicUsize,
    value: AtomicUsize,
}

/// The names that instances of a class have between them, as CPython's `PyDictKeysObject`; null where it keeps none.
unsafe fn names_of(class: Obj, layout: &Layout) -> *const u8 {
    unsafe { class.cast::<u8>().add(layout.class_names).cast::<*const u8>().read() }
}

unsafe fn count(names: *const u8, layout: &Layout) -> usize {
    if names.is_null() { 0 } else { unsafe { names.add(layout.names_count).cast::<usize>().read() } }
}

/// The index of a name among those of a class.
unsafe fn index_of(class: Obj, name: Obj, layout: &Layout) -> Option<u32> {
    unsafe {
        let names = names_of(class, layout);
        let text = x::str_of(name)?;
        let log2 = names.as_ref().map(|_| names.add(layout.names_log2_bytes).read())?;
        let entries = names.add(layout.names_indices + (1usize << log2)).cast::<[Obj; 2]>();
        (0..count(names, layout))
            .find(|&i| {
                let key = (*entries.add(i))[0];
                key == name || !key.is_null() && x::str_of(key) == Some(text)
            })
            .and_then(|i| u32::try_from(i).ok())
    }
}

/// The values in front of an instance, null once it has a dict; and that dict, null before.
#[inline(always)]
unsafe fn parts(of: Obj, layout: &Layout) -> [*const Obj; 2] {
    [layout.values, layout.own_dict]
        .map(|before| unsafe { of.cast::<u8>().sub(before).cast::<*const Obj>().read() })
}

/// Whether a change of the class can be told by its version.
pub unsafe fn has_version(class: Obj, api: &Api) -> bool {
    unsafe { class_version(class, api.layout).read() != 0 }
}

/// The word of a class that every change of it and of its bases changes; 0 where it has none.
///
/// # Safety
/// A live class of an interpreter that `layout` describes.
pub unsafe fn class_version(class: Obj, layout: &Layout) -> *const usize {
    unsafe { class.cast::<u8>().add(layout.class_version) }.cast()
}

impl Quick {
    fn slow() -> Quick {
        Quick {
            form: Form::Slow,
            is_tensor: false,
            index: None,
            names: 0,
            of: std::ptr::null_mut(),
            class: std::ptr::null_mut(),
            seen: std::ptr::null_mut(),
            version: AtomicUsize::new(0),
            value: AtomicUsize::new(0),
        }
    }

    /// # Safety
    /// Lock held; so below. The guard outlives the value.
    pub unsafe fn of(guard: &Guard, api: &Api) -> Quick {
        unsafe {
            let quick = match &guard.check {
                Check::Item { dict, value, .. } if value.is_one_object() => Quick {
                    form: Form::Item,
                    of: dict.as_ptr(),
                    seen: value.object(),
                    is_tensor: matches!(value, Expect::Tensor { .. }),
                    ..Quick::slow()
                },
                Check::Attribute { of, class, value: Expect::Any, .. }
                    if has_version(class.as_ptr(), api) =>
                {
                    Quick { form: Form::Computed, of: of.as_ptr(), class: class.as_ptr(), ..Quick::slow() }
                }
                Check::Attribute { .. } => Quick::of_attribute(&guard.check, api).unwrap_or_else(Quick::slow),
                _ => return Quick::slow(),
            };
            quick.renew(guard, api.layout);
            quick
        }
    }

    unsafe fn of_attribute(check: &Check, api: &Api) -> Option<Quick> {
        let Check::Attribute { of, class, name, descriptor, value } = check else { return None };
        unsafe {
            let (of, class, layout) = (of.as_ptr(), class.as_ptr(), api.layout);
            let is_managed = ffi::PyType_GetFlags(class.cast()) & MANAGED_DICT != 0;
            let is_data = descriptor.as_ref().is_some_and(|d| is_data(api, d.as_ptr()));
            if !has_version(class, api) || !is_managed || is_data {
                return None;
            }
            let index = index_of(class, name.as_ptr(), layout);
            let [values, dict] = parts(of, layout);
            let own = match (values.is_null(), index) {
                (true, _) if dict.is_null() => std::ptr::null_mut(),
                (true, _) => item(dict.cast_mut().cast(), name.as_ptr()),
                (false, Some(i)) => *values.add(i as usize),
                (false, None) => std::ptr::null_mut(),
            };
            let is_tensor = matches!(value, Expect::Tensor { .. });
            // What the class has, other guards and its version tell; not what a tensor there is like.
            let is_told =
                if own.is_null() { !is_tensor } else { value.is_one_object() && value.object() == own };
            let names = count(names_of(class, layout), layout);
            let form = Form::Attribute;
            is_told.then(|| Quick { form, of, class, index, names, seen: own, is_tensor, ..Quick::slow() })
        }
    }

    /// The class whose version has to be compared beside the words.
    pub fn class(&self) -> Option<Obj> {
        (!self.class.is_null()).then_some(self.class)
    }

    /// What stands at the place, null for nothing; None where the words do not tell.
    #[inline(always)]
    unsafe fn present(&self, layout: &Layout) -> Option<Obj> {
        unsafe {
            match self.form {
                Form::Item => self.held(self.of, layout),
                Form::Attribute if x::type_of(self.of).cast() == self.class => {
                    let [values, dict] = parts(self.of, layout);
                    if values.is_null() {
                        return self.held(dict.cast_mut().cast(), layout);
                    }
                    match self.index {
                        Some(i) => Some(*values.add(i as usize)),
                        // A name that came since may be this one.
                        None => (count(names_of(self.class, layout), layout) == self.names)
                            .then_some(std::ptr::null_mut()),
                    }
                }
                _ => None,
            }
        }
    }

    #[inline(always)]
    unsafe fn held(&self, dict: Obj, layout: &Layout) -> Option<Obj> {
        let is_same = !dict.is_null()
            && unsafe { dict_version(dict, layout).read() } == self.version.load(Ordering::Relaxed);
        is_same.then(|| self.value.load(Ordering::Relaxed) as Obj)
    }

    /// Whether the guard holds; None where the words do not tell.
    #[inline(always)]
    pub unsafe fn holds(&self, guard: &Guard, api: &Api) -> Option<bool> {
        unsafe {
            if self.form == Form::Computed {
                return (x::type_of(self.of).cast() == self.class).then_some(true);
            }
            let now = self.present(api.layout)?;
            if self.is_tensor {
                return guard.check.expected().map(|expect| expect.holds(api, now));
            }
            (now == self.seen).then_some(true)
        }
    }

    /// Whether the words tell that the very object of the capture stands there.
    #[inline(always)]
    pub unsafe fn is_seen(&self, layout: &Layout) -> bool {
        unsafe { self.present(layout) == Some(self.seen) }
    }

    /// Looks at the dict anew, after the guard was found to hold.
    pub unsafe fn renew(&self, guard: &Guard, layout: &Layout) {
        unsafe {
            let (dict, key) = match &guard.check {
                Check::Item { dict, key, .. } if self.form == Form::Item => (dict.as_ptr(), key),
                Check::Attribute { of, class, name, .. }
                    if self.form == Form::Attribute && x::type_of(of.as_ptr()).cast() == class.as_ptr() =>
                {
                    (parts(of.as_ptr(), layout)[1].cast_mut().cast(), name)
                }
                _ => return,
            };
            if !dict.is_null() && ffi::PyDict_Check(dict) != 0 {
                // Read first: a change in between is then looked for again.
                let version = dict_version(dict, layout).read();
                self.value.store(item(dict, key.as_ptr()) as usize, Ordering::Relaxed);
                self.version.store(version, Ordering::Relaxed);
            }
        }
    }
}

/// Whether the words of instances and of their class lie where the layout says. The probe has the attributes `a` and `b`.
///
/// # Safety
/// A live instance of a class made by a class statement, lock held.
pub unsafe fn tells(probe: &Bound<'_, PyAny>, layout: &Layout) -> PyResult<bool> {
    let [a, b] = [probe.getattr("a")?, probe.getattr("b")?];
    let py = probe.py();
    let class = probe.get_type();
    let name = |text: &str| pyo3::types::PyString::intern(py, text);
    // SAFETY: the caller's promise; the class has its flag, so that the words in front of the instance are there.
    unsafe {
        if ffi::PyType_GetFlags(class.as_type_ptr()) & MANAGED_DICT == 0 {
            return Ok(false);
        }
        let version = || class_version(class.as_ptr(), layout).read();
        let before = version();
        let [values, dict] = parts(probe.as_ptr(), layout);
        let index = |text: &str| index_of(class.as_ptr(), name(text).as_ptr(), layout);
        let (at, other, none) = (index("a"), index("b"), index("c"));
        let is_there = at == Some(0) && other == Some(1) && none.is_none();
        let holds = is_there && !values.is_null() && *values == a.as_ptr() && *values.add(1) == b.as_ptr();
        let counts = count(names_of(class.as_ptr(), layout), layout) == 2;
        class.setattr("a", 0)?;
        let changes = version() != before && before != 0;
        let own = probe.getattr("__dict__")?;
        let [gone, now] = parts(probe.as_ptr(), layout);
        Ok(holds
            && counts
            && changes
            && dict.is_null()
            && gone.is_null()
            && now.cast_mut().cast() == own.as_ptr())
    }
}
