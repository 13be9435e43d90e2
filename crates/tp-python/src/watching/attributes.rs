//! How attributes are read: of instances, classes, modules and `super()`, each in the way that a check can repeat without
//! running any code of the user.

use super::addresses::Addresses;
use super::expect::{Expect, owned};
use super::guards::{Check, Guard, attribute, item};
use super::lazy::is_lazy;
use super::natives::Nature;
use super::session::Session;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use pyo3::ffi;
use pyo3::prelude::*;
use std::os::raw::c_void;

/// How attributes of a type's instances are looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Values and built-in containers: their types never change, and they have no attributes of their own.
    Core,
    /// Tensors and other things of ours.
    Ours,
    Module,
    Type,
    Super,
    /// `object.__getattribute__`, perhaps with a `__getattr__` behind it, which is Python.
    Generic,
    /// Native code of its own, or a `__getattribute__` in Python, which is watched itself.
    Opaque,
}

#[derive(Default)]
pub(super) struct Classes(Addresses<Class>);

impl Session {
    pub(super) unsafe fn class(&mut self, ty: *mut ffi::PyTypeObject) -> Class {
        if let Some(known) = self.classes.0.get(&(ty as usize)) {
            return *known;
        }
        let found = unsafe { self.classify(ty) };
        self.classes.0.insert(ty as usize, found);
        found
    }

    unsafe fn classify(&self, ty: *mut ffi::PyTypeObject) -> Class {
        unsafe {
            let is = |base: *mut ffi::PyTypeObject| ffi::PyType_IsSubtype(ty, base) != 0;
            let core = [
                &raw mut ffi::PyLong_Type,
                &raw mut ffi::PyFloat_Type,
                &raw mut ffi::PyBool_Type,
                &raw mut ffi::PyComplex_Type,
                &raw mut ffi::PyUnicode_Type,
                &raw mut ffi::PyBytes_Type,
                &raw mut ffi::PyTuple_Type,
                &raw mut ffi::PyList_Type,
                &raw mut ffi::PyDict_Type,
                &raw mut ffi::PySet_Type,
                &raw mut ffi::PyFrozenSet_Type,
                &raw mut ffi::PySlice_Type,
                &raw mut ffi::PyRange_Type,
                x::type_of(ffi::Py_None()),
                self.api.cell_type,
            ];
            if core.contains(&ty) {
                return Class::Core;
            }
            if is_our_type(ty) {
                return Class::Ours;
            }
            if is(&raw mut ffi::PyModule_Type) {
                return Class::Module;
            }
            if is(&raw mut ffi::PyType_Type) {
                return Class::Type;
            }
            if is(&raw mut ffi::PySuper_Type) {
                return Class::Super;
            }
            if ffi::PyType_GetSlot(ty, ffi::Py_tp_getattro) == ffi::PyObject_GenericGetAttr as *mut c_void {
                return Class::Generic;
            }
            let own = x::intern("__getattribute__");
            let found = (self.api.type_lookup)(ty, own);
            let is_plain = found == (self.api.type_lookup)(&raw mut ffi::PyBaseObject_Type, own);
            ffi::Py_XDECREF(own);
            if is_plain { Class::Generic } else { Class::Opaque }
        }
    }

    pub(super) unsafe fn read_attribute(&mut self, of: Obj, name: Obj) {
        unsafe {
            if of.is_null() || name.is_null() || shell::is_tensor(of) {
                return;
            }
            let ty = x::type_of(of);
            match self.class(ty) {
                Class::Core | Class::Ours => {}
                Class::Opaque => self.read_opaque(of, ty),
                Class::Module => {
                    let dict = ffi::PyModule_GetDict(of);
                    load(of, dict, name);
                    let text = format!("{}.{}", self.name(of), x::shown(name));
                    let value = self.read_dict(dict, name, text.clone());
                    self.name_it(value, || text);
                }
                Class::Type => self.read_class(of, ty, name),
                Class::Super => self.read_super(of, name),
                Class::Generic => self.read_instance(of, ty, name),
            }
        }
    }

    /// What `object.__getattribute__` reads, whatever the class has in its place.
    pub(super) unsafe fn read_own_attribute(&mut self, of: Obj, name: Obj) {
        unsafe {
            match self.class(x::type_of(of)) {
                Class::Opaque => self.read_instance(of, x::type_of(of), name),
                _ => self.read_attribute(of, name),
            }
        }
    }

    /// A type with a way of its own to find attributes: in Python it is watched.
    unsafe fn read_opaque(&mut self, of: Obj, ty: *mut ffi::PyTypeObject) {
        unsafe {
            let own = x::intern("__getattribute__");
            let found = (self.api.type_lookup)(ty, own);
            ffi::Py_XDECREF(own);
            let is_python = !found.is_null() && x::type_of(found) == self.api.function_type;
            if !is_python && !has(self.api, ty, "__getattr__") {
                self.refuse_unknown(of);
            }
        }
    }

    /// An attribute of an array may be a view of its memory.
    unsafe fn read_native_attributes(&mut self, of: Obj, ty: *mut ffi::PyTypeObject) {
        unsafe {
            if self.nature(ty) == Nature::Buffer {
                self.read_native(of, 1);
            }
        }
    }

    unsafe fn read_class(&mut self, of: Obj, meta: *mut ffi::PyTypeObject, name: Obj) {
        unsafe {
            let found = (self.api.type_lookup)(meta, name);
            if !found.is_null() && is_data(self.api, found) {
                return;
            }
            self.read_lookup(of.cast(), name);
            let value = (self.api.type_lookup)(of.cast(), name);
            let path = format!("{}.{}", self.name(of), x::shown(name));
            self.name_it(value, || path);
        }
    }

    /// Guards what a class has under a name.
    pub(super) unsafe fn read_lookup(&mut self, class: *mut ffi::PyTypeObject, name: Obj) {
        unsafe {
            let id = self.key_id(name);
            if !is_changeable(class) || self.is_known(class.cast(), id) {
                return;
            }
            let value = (self.api.type_lookup)(class, name);
            let check = Check::Lookup {
                class: owned(class.cast()),
                name: owned(name),
                value: (!value.is_null()).then(|| owned(value)),
            };
            let text = format!("{}.{}", self.class_name(class), x::shown(name));
            self.guard(class.cast(), id, |_| Guard { name: text, check });
        }
    }

    unsafe fn class_name(&self, class: *mut ffi::PyTypeObject) -> String {
        crate::error::attached(|py| {
            let class: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, class.cast()) };
            class.getattr("__qualname__").map_or_else(|_| "?".to_string(), |n| n.to_string())
        })
    }

    /// `super().name`: what the classes behind the present one have.
    unsafe fn read_super(&mut self, of: Obj, name: Obj) {
        crate::error::attached(|py| {
            let proxy: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, of) };
            let base = py.get_type::<PyAny>();
            let get = |field: &str| base.call_method1("__getattribute__", (&proxy, field));
            let (Ok(this), Ok(class)) = (get("__thisclass__"), get("__self_class__")) else { return };
            let Ok(order) = class.getattr("__mro__").and_then(|m| m.extract::<Vec<Bound<'_, PyAny>>>())
            else {
                return;
            };
            let behind = order.iter().skip_while(|c| !c.is(&this)).skip(1);
            for class in behind {
                let class: *mut ffi::PyTypeObject = class.as_ptr().cast();
                // SAFETY: a live class of the list.
                unsafe {
                    self.read_lookup(class, name);
                    if !(self.api.type_lookup)(class, name).is_null() {
                        return;
                    }
                }
            }
        });
    }

    unsafe fn read_instance(&mut self, of: Obj, ty: *mut ffi::PyTypeObject, name: Obj) {
        unsafe {
            if !self.is_old(of) {
                if x::shown(name) == "__dict__" {
                    self.mark_own_dict(of);
                }
                return self.read_lookup(ty, name);
            }
            self.read_native_attributes(of, ty);
            let id = self.key_id(name);
            if self.is_known(of, id) {
                return;
            }
            let descriptor = (self.api.type_lookup)(ty, name);
            let path = format!("{}.{}", self.name(of), x::shown(name));
            let value = match self.how(descriptor) {
                How::Computed => Expect::Any,
                How::Hidden => {
                    let dict = ffi::PyObject_GenericGetDict(of, std::ptr::null_mut());
                    if dict.is_null() {
                        ffi::PyErr_Clear();
                    } else {
                        if !is_lazy(descriptor) || !self.note_lazy(dict, name, &path) {
                            let value = self.read_dict(dict, name, path.clone());
                            self.name_it(value, || path.clone());
                        }
                        ffi::Py_DECREF(dict);
                    }
                    Expect::Any
                }
                How::Plain => {
                    let value = attribute(self.api, of, name);
                    self.name_it(value, || path.clone());
                    let expect = self.stable(of, name, value);
                    ffi::Py_XDECREF(value);
                    expect
                }
            };
            let check = Check::Attribute {
                of: owned(of),
                class: owned(ty.cast()),
                name: owned(name),
                descriptor: (!descriptor.is_null()).then(|| owned(descriptor)),
                value,
            };
            self.guard(of, id, |_| Guard { name: path, check });
        }
    }

    /// The dict of a fresh object is as fresh, unless it was put there.
    pub(super) unsafe fn mark_own_dict(&mut self, of: Obj) {
        unsafe {
            if self.is_old(of) {
                return;
            }
            let dict = ffi::PyObject_GenericGetDict(of, std::ptr::null_mut());
            if dict.is_null() {
                return ffi::PyErr_Clear();
            }
            self.mark_fresh(dict);
            ffi::Py_DECREF(dict);
        }
    }

    /// An object that is given a dict that existed before is as old: its attributes are seen elsewhere too.
    pub(super) unsafe fn give_dict(&mut self, of: Obj, name: Obj, value: Obj) {
        unsafe {
            if !of.is_null() && !name.is_null() && x::shown(name) == "__dict__" && self.is_old(value) {
                self.make_old(of);
            }
        }
    }

    /// The value as a guard; anything, where each read makes a new object.
    unsafe fn stable(&mut self, of: Obj, name: Obj, value: Obj) -> Expect {
        unsafe {
            let expect = self.value(value);
            let again = attribute(self.api, of, name);
            let holds = expect.holds(self.api, again);
            ffi::Py_XDECREF(again);
            if holds { expect } else { Expect::Any }
        }
    }

    /// How a value comes about, given what the class has under its name.
    unsafe fn how(&self, descriptor: Obj) -> How {
        unsafe {
            if descriptor.is_null() {
                return How::Plain;
            }
            let kind = x::type_of(descriptor);
            let is_python =
                kind != &raw mut ffi::PyMemberDescr_Type && kind != &raw mut ffi::PyGetSetDescr_Type;
            let is_user = is_changeable(kind) && has(self.api, kind, "__get__");
            match is_data(self.api, descriptor) {
                true if is_python => How::Computed,
                true if kind == &raw mut ffi::PyGetSetDescr_Type => How::Plain,
                false if is_user => How::Hidden,
                _ => How::Plain,
            }
        }
    }
}

enum How {
    Plain,
    /// By code of Python's own, which is watched.
    Computed,
    /// In the instance's dict, in front of code that must not run in a check.
    Hidden,
}

/// Whether names of the class can be set anew.
pub(super) unsafe fn is_changeable(class: *mut ffi::PyTypeObject) -> bool {
    unsafe {
        let flags = ffi::PyType_GetFlags(class);
        flags & ffi::Py_TPFLAGS_HEAPTYPE != 0 && flags & IMMUTABLE == 0
    }
}

/// `Py_TPFLAGS_IMMUTABLETYPE`.
const IMMUTABLE: std::os::raw::c_ulong = 1 << 8;

pub(super) unsafe fn has(api: &super::api::Api, class: *mut ffi::PyTypeObject, name: &str) -> bool {
    unsafe {
        let name = x::intern(name);
        let found = !(api.type_lookup)(class, name).is_null();
        ffi::Py_XDECREF(name);
        found
    }
}

pub(super) unsafe fn is_data(api: &super::api::Api, descriptor: Obj) -> bool {
    unsafe {
        let class = x::type_of(descriptor);
        has(api, class, "__set__") || has(api, class, "__delete__")
    }
}

/// Whether a type is of this package, whose state no user sees.
unsafe fn is_our_type(ty: *mut ffi::PyTypeObject) -> bool {
    crate::error::attached(|py| {
        let class: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, ty.cast()) };
        let module = class.getattr("__module__").and_then(|m| m.extract::<String>());
        module.is_ok_and(|m| m == "tensorplay" || m.starts_with("tensorplay."))
    })
}

/// Whether a type is that of compiled functions: a call of one is inlined into a capture.
pub(super) fn is_compiled(ty: *mut ffi::PyTypeObject) -> bool {
    crate::compile::is_type(ty)
}

/// Modules of this package load parts of themselves when those are first read.
unsafe fn load(module: Obj, dict: Obj, name: Obj) {
    unsafe {
        if !item(dict, name).is_null() {
            return;
        }
        let own = ffi::PyModule_GetName(module);
        if own.is_null() {
            return ffi::PyErr_Clear();
        }
        if std::ffi::CStr::from_ptr(own).to_bytes().starts_with(b"tensorplay") {
            let found = ffi::PyObject_GetAttr(module, name);
            if found.is_null() {
                ffi::PyErr_Clear();
            }
            ffi::Py_XDECREF(found);
        }
    }
}
