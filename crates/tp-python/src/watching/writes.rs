//! What the function writes to objects that existed before the capture. A run's function is the graph, which writes
//! nothing of the kind: a write is accepted where the location ends as it began, which then is a guard; any other one is
//! undone and refused.

use super::addresses::AddressSet;
use super::attributes::{Class, is_changeable};
use super::code::{Code, Op};
use super::contents::{self, Kind};
use super::expect::{Expect, owned, same_value};
use super::frame::Frame;
use super::guards::{Check, Guard, attribute, item};
use super::session::{CONTENTS, Session, VALUE};
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use pyo3::ffi;
use pyo3::prelude::*;
use std::rc::Rc;
use tp_dispatch::Error;

enum Place {
    Item {
        dict: Py<PyAny>,
        key: Py<PyAny>,
        before: Option<Py<PyAny>>,
    },
    Cell {
        cell: Py<PyAny>,
        before: Option<Py<PyAny>>,
    },
    Attribute {
        of: Py<PyAny>,
        name: Py<PyAny>,
        before: Option<Py<PyAny>>,
    },
    /// A class attribute.
    Class {
        of: Py<PyAny>,
        name: Py<PyAny>,
        before: Option<Py<PyAny>>,
    },
    Contents {
        of: Py<PyAny>,
        kind: Kind,
        before: Vec<Py<PyAny>>,
    },
}

struct Write {
    place: Place,
    name: String,
    at: Option<String>,
}

#[derive(Default)]
pub struct Writes {
    list: Vec<Write>,
    /// Locations with a write that is certain: what is read there afterwards is the function's own.
    certain: AddressSet<(usize, usize)>,
    noted: AddressSet<(usize, usize)>,
}

fn location() -> Option<String> {
    tp_dispatch::host::location().map(|at| at.to_string())
}

unsafe fn optional(value: Obj) -> Option<Py<PyAny>> {
    (!value.is_null()).then(|| unsafe { owned(value) })
}

fn pointer(value: &Option<Py<PyAny>>) -> Obj {
    value.as_ref().map_or(std::ptr::null_mut(), Py::as_ptr)
}

/// Whether a location holds what it held.
unsafe fn as_before(before: &Option<Py<PyAny>>, now: Obj) -> bool {
    match (before, now.is_null()) {
        (None, absent) => absent,
        (Some(_), true) => false,
        (Some(before), false) => unsafe { same_value(before.as_ptr(), now) },
    }
}

impl Writes {
    pub fn has(&self, of: Obj, key: usize) -> bool {
        self.certain.contains(&(of as usize, key))
    }

    fn note(&mut self, of: Obj, key: usize, make: impl FnOnce() -> (Place, String)) {
        self.certain.insert((of as usize, key));
        self.note_possible(of, key, make);
    }

    fn note_possible(&mut self, of: Obj, key: usize, make: impl FnOnce() -> (Place, String)) {
        if self.noted.insert((of as usize, key)) {
            let (place, name) = make();
            self.list.push(Write { place, name, at: location() });
        }
    }
}

impl Session {
    pub(super) unsafe fn write(&mut self, py: Python<'_>, frame: Frame, code: &Rc<Code>, op: Op, arg: u32) {
        unsafe {
            match op {
                Op::StoreGlobal | Op::DeleteGlobal => {
                    let (globals, name) = (frame.globals(), code.name_at(py, arg));
                    let text = format!("global {}", x::shown(name));
                    self.write_dict_item(globals, name, text);
                }
                Op::StoreDeref | Op::DeleteDeref => {
                    let (slot, cell) = (arg as usize, frame.local(arg as usize));
                    if code.is_free(py, slot) && self.is_old(cell) && x::type_of(cell) == self.api.cell_type {
                        let name = format!("closure {}", code.variable(py, slot));
                        let api = self.api;
                        self.writes.note(cell, VALUE, || {
                            let now = (api.cell_get)(cell);
                            let before = optional(now);
                            ffi::Py_XDECREF(now);
                            (Place::Cell { cell: owned(cell), before }, name)
                        });
                    }
                }
                Op::StoreAttr => {
                    let (of, name) = (frame.peek(1), code.name_at(py, arg));
                    self.write_attribute(of, name);
                    self.give_dict(of, name, frame.peek(2));
                }
                Op::DeleteAttr => self.write_attribute(frame.peek(1), code.name_at(py, arg)),
                Op::StoreSubscript | Op::DeleteSubscript => {
                    self.operands(code, &[frame.peek(2)]);
                    self.write_contents(frame.peek(2));
                }
                _ => {}
            }
        }
    }

    unsafe fn write_dict_item(&mut self, dict: Obj, key: Obj, name: String) {
        unsafe {
            let id = self.key_id(key);
            self.writes.note(dict, id, || {
                let before = optional(item(dict, key));
                (Place::Item { dict: owned(dict), key: owned(key), before }, name)
            });
        }
    }

    /// A write by the opcode or native function that stores attributes, unless the class has one in Python.
    pub(super) unsafe fn write_attribute(&mut self, of: Obj, name: Obj) {
        unsafe {
            if of.is_null() || !self.is_old(of) || shell::is_tensor(of) {
                return;
            }
            let ty = x::type_of(of);
            let path = format!("{}.{}", self.name(of), x::shown(name));
            let id = self.key_id(name);
            let api = self.api;
            match self.class(ty) {
                Class::Core | Class::Ours => {}
                Class::Module => self.write_dict_item(ffi::PyModule_GetDict(of), name, path),
                Class::Type => self.writes.note(of, id, || {
                    let before = optional((api.type_lookup)(of.cast(), name));
                    (Place::Class { of: owned(of), name: owned(name), before }, path)
                }),
                Class::Generic | Class::Opaque | Class::Super => {
                    let descriptor = (api.type_lookup)(ty, name);
                    if !descriptor.is_null() && is_computed(api, descriptor) {
                        return;
                    }
                    self.writes.note(of, id, || {
                        let now = own_attribute(api, of, name, descriptor);
                        let before = optional(now);
                        ffi::Py_XDECREF(now);
                        (Place::Attribute { of: owned(of), name: owned(name), before }, path)
                    });
                }
            }
        }
    }

    /// The function changes what a container holds.
    pub(super) unsafe fn write_contents(&mut self, of: Obj) {
        unsafe { self.note_contents(of, true) }
    }

    /// Native code that nothing is known of gets the container.
    pub(super) unsafe fn may_write_contents(&mut self, of: Obj) {
        unsafe { self.note_contents(of, false) }
    }

    /// So may be what the container holds.
    pub(super) unsafe fn may_write_deep(&mut self, of: Obj, depth: usize) {
        unsafe {
            self.may_write_contents(of);
            if let (Some(kind), true) = (contents::kind(of), depth > 0) {
                contents::contents(of, kind)
                    .iter()
                    .for_each(|one| self.may_write_deep(one.as_ptr(), depth - 1));
            }
        }
    }

    unsafe fn note_contents(&mut self, of: Obj, certain: bool) {
        unsafe {
            if !self.is_old(of) {
                return;
            }
            let Some(kind) = contents::kind(of) else { return };
            if kind == Kind::View {
                return;
            }
            let name = self.name(of);
            let make = || {
                let before = contents::contents(of, kind);
                (Place::Contents { of: owned(of), kind, before }, name)
            };
            match certain {
                true => self.writes.note(of, CONTENTS, make),
                false => self.writes.note_possible(of, CONTENTS, make),
            }
        }
    }

    /// Guards for the locations that end as they began; the others are put back, and the first of them refused.
    pub(super) unsafe fn settle_writes(&mut self) -> Result<(), Error> {
        let mut refused = unsafe { self.settle_buffers() };
        let writes = std::mem::take(&mut self.writes);
        for write in writes.list.into_iter().rev() {
            unsafe {
                if write.place.holds(self.api) {
                    // What a call of native code may have written is no read.
                    if writes.certain.contains(&write.place.key(self)) {
                        let check = write.place.into_check(self.api);
                        self.guards.extend(check.map(|check| Guard { name: write.name, check }));
                    }
                    continue;
                }
                write.place.undo(self.api);
                refused = Some((write.name, write.at));
            }
        }
        let Some((name, at)) = refused else { return Ok(()) };
        let e = Error::capture(
            "TP4031",
            format!("writing to {name} in a captured function would take effect in the capture alone"),
        );
        let e = match at {
            Some(at) => e.note(format!("captured at {at}")),
            None => e,
        };
        Err(tp_graph::capture::watch::refused(
            e.note("a run would not do it: return the new value, and write it where the function is called"),
        ))
    }
}

impl Session {
    /// Arrays that the function wrote to are put back; the name of the first.
    unsafe fn settle_buffers(&self) -> Option<(String, Option<String>)> {
        let mut refused = None;
        for Guard { name, check } in &self.guards {
            if let Check::Buffer { of, seen } = check
                && !unsafe { seen.holds(of.as_ptr()) }
            {
                unsafe { seen.restore(of.as_ptr()) };
                refused.get_or_insert((name.clone(), None));
            }
        }
        refused
    }
}

/// The instance's own value: a class attribute of the name is none, unless it is a slot.
unsafe fn own_attribute(api: &super::api::Api, of: Obj, name: Obj, descriptor: Obj) -> Obj {
    unsafe {
        if descriptor.is_null() || x::type_of(descriptor) == &raw mut ffi::PyMemberDescr_Type {
            return attribute(api, of, name);
        }
        let dict = ffi::PyObject_GenericGetDict(of, std::ptr::null_mut());
        if dict.is_null() {
            ffi::PyErr_Clear();
            return std::ptr::null_mut();
        }
        let value = item(dict, name);
        ffi::Py_XINCREF(value);
        ffi::Py_DECREF(dict);
        value
    }
}

/// A property or another descriptor with a setter: its code does the writing, and is watched where it is Python.
unsafe fn is_computed(api: &super::api::Api, descriptor: Obj) -> bool {
    unsafe {
        let class = x::type_of(descriptor);
        class != &raw mut ffi::PyMemberDescr_Type
            && (super::attributes::has(api, class, "__set__")
                || super::attributes::has(api, class, "__delete__"))
    }
}

impl Place {
    fn key(&self, session: &Session) -> (usize, usize) {
        match self {
            Place::Cell { cell, .. } => (cell.as_ptr() as usize, VALUE),
            Place::Contents { of, .. } => (of.as_ptr() as usize, CONTENTS),
            Place::Item { dict: of, key: name, .. }
            | Place::Attribute { of, name, .. }
            | Place::Class { of, name, .. } => {
                // SAFETY: live objects, lock held.
                (of.as_ptr() as usize, unsafe { session.key_id(name.as_ptr()) })
            }
        }
    }

    unsafe fn holds(&self, api: &super::api::Api) -> bool {
        unsafe {
            match self {
                Place::Item { dict, key, before } => as_before(before, item(dict.as_ptr(), key.as_ptr())),
                Place::Cell { cell, before } => {
                    let now = (api.cell_get)(cell.as_ptr());
                    let same = as_before(before, now);
                    ffi::Py_XDECREF(now);
                    same
                }
                Place::Class { of, name, before } => {
                    as_before(before, (api.type_lookup)(of.as_ptr().cast(), name.as_ptr()))
                }
                Place::Attribute { of, name, before } => {
                    let (of, name) = (of.as_ptr(), name.as_ptr());
                    let now = own_attribute(api, of, name, (api.type_lookup)(x::type_of(of), name));
                    let same = as_before(before, now);
                    ffi::Py_XDECREF(now);
                    same
                }
                Place::Contents { of, kind, before } => contents::same(of.as_ptr(), *kind, before),
            }
        }
    }

    /// The location still holds what it held: that is what the capture relied on.
    unsafe fn into_check(self, api: &super::api::Api) -> Option<Check> {
        unsafe {
            Some(match self {
                Place::Item { dict, key, before } => {
                    Check::Item { dict, key, value: Expect::of(api, pointer(&before)) }
                }
                Place::Cell { cell, before } => {
                    Check::Cell { cell, value: Expect::of(api, pointer(&before)) }
                }
                Place::Class { of, name, before } => {
                    if !is_changeable(of.as_ptr().cast()) {
                        return None;
                    }
                    Check::Lookup { class: of, name, value: before }
                }
                Place::Attribute { of, name, before } => {
                    let ty = x::type_of(of.as_ptr());
                    let descriptor = (api.type_lookup)(ty, name.as_ptr());
                    let value = match before {
                        Some(before) => Expect::of(api, before.as_ptr()),
                        // Behind a class attribute the instance's own cannot be told from it.
                        None if descriptor.is_null() => Expect::Absent,
                        None => Expect::Any,
                    };
                    let descriptor = optional(descriptor);
                    Check::Attribute { of, class: owned(ty.cast()), name, descriptor, value }
                }
                Place::Contents { of, kind, before } => Check::Contents { of, kind, seen: before },
            })
        }
    }

    unsafe fn undo(&self, api: &super::api::Api) {
        unsafe {
            let failed = match self {
                Place::Item { dict, key, before: Some(before) } => {
                    ffi::PyDict_SetItem(dict.as_ptr(), key.as_ptr(), before.as_ptr())
                }
                Place::Item { dict, key, before: None } => ffi::PyDict_DelItem(dict.as_ptr(), key.as_ptr()),
                Place::Cell { cell, before } => (api.cell_set)(cell.as_ptr(), pointer(before)),
                Place::Attribute { of, name, before } => {
                    ffi::PyObject_GenericSetAttr(of.as_ptr(), name.as_ptr(), pointer(before))
                }
                Place::Class { of, name, before } => {
                    ffi::PyObject_SetAttr(of.as_ptr(), name.as_ptr(), pointer(before))
                }
                Place::Contents { of, kind, before } => {
                    i32::from(contents::restore(of.as_ptr(), *kind, before).is_err())
                }
            };
            if failed != 0 {
                // What cannot be put back is refused all the same.
                ffi::PyErr_Clear();
            }
        }
    }
}
