//! What each opcode reads of objects that existed before the capture, as guards.

use super::attributes::{Class, has, is_changeable};
use super::code::{self, Code, Op};
use super::contents::{self, Kind};
use super::expect::{is_immutable, may_be_two, owned, same_value};
use super::frame::Frame;
use super::guards::{Check, Guard, item, length};
use super::natives;
use super::session::{CONTENTS, LENGTH, Session, TYPE, VALUE};
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use crate::symint;
use pyo3::ffi;
use pyo3::prelude::*;
use std::rc::Rc;
use tp_dispatch::Result;
use tp_graph::capture::watch;

/// In-place forms of BINARY_OP have numbers from here on.
const INPLACE: u32 = 13;
/// How deep native code is taken to look into what it is given.
const DEPTH: usize = 6;

impl Session {
    pub(super) unsafe fn opcode(
        &mut self,
        py: Python<'_>,
        frame: Frame,
        code: &Rc<Code>,
        op: Op,
        arg: u32,
    ) -> Result<()> {
        unsafe {
            let n = arg as usize;
            self.note_operators(frame, op);
            match op {
                Op::Other | Op::Called => {}
                Op::Keywords => self.keywords = Some(frame.id()),
                Op::Unary | Op::With => self.operands(code, &[frame.peek(1)]),
                Op::LoadGlobal | Op::LoadName => self.read_global(frame, code.name_at(py, arg)),
                Op::LoadDeref if code.is_free(py, n) => self.read_cell(frame.local(n), &code.variable(py, n)),
                Op::LoadClosure if !code.is_free(py, n) => self.mark_fresh(frame.local(n)),
                Op::LoadDeref | Op::LoadClosure => {}
                Op::LoadAttr => self.read_attribute(frame.peek(1), code.name_at(py, arg)),
                Op::Subscript => {
                    self.operands(code, &[frame.peek(2)]);
                    if natives::fills(py, frame.peek(2), frame.peek(1)) {
                        self.fills = Some(frame.id());
                    }
                    self.search(frame.peek(2), frame.peek(1))?;
                    self.read_item(frame.peek(2), frame.peek(1));
                }
                Op::Iterate | Op::Unpack => {
                    self.operands(code, &[frame.peek(1)]);
                    return self.iterate(frame.peek(1));
                }
                Op::Identity => return self.compare_identity(code, frame.peek(1), frame.peek(2)),
                Op::Contains => {
                    self.operands(code, &[frame.peek(1)]);
                    return self.read_membership(frame.peek(1), frame.peek(2));
                }
                Op::Binary if arg >= INPLACE => {
                    self.operands(code, &[frame.peek(1), frame.peek(2)]);
                    self.write_contents(frame.peek(2));
                    self.read_contents(frame.peek(1), DEPTH);
                }
                Op::Compare | Op::Binary => {
                    self.operands(code, &[frame.peek(1), frame.peek(2)]);
                    self.read_contents(frame.peek(1), DEPTH);
                    self.read_contents(frame.peek(2), DEPTH);
                }
                Op::Truth => self.read_truth(frame.peek(1)),
                Op::Format => {
                    let of = frame.peek(if arg & 4 == 0 { 1 } else { 2 });
                    self.operands(code, &[of]);
                    self.read_contents(of, DEPTH);
                }
                Op::Source => {
                    self.operands(code, &[frame.peek(1)]);
                    self.read_contents(frame.peek(1), 0);
                }
                Op::Length => self.read_length(frame.peek(1)),
                Op::MatchWhole => self.read_contents(frame.peek(1), 0),
                Op::MatchKeys => self.read_contents(frame.peek(2), 0),
                Op::MatchClass => self.read_match(frame),
                Op::ImportName => self.read_import(frame.peek(2), code.name_at(py, arg)),
                Op::Call => return self.call(py, frame, code, n),
                Op::CallEx => return self.call_ex(py, frame, code, arg),
                _ => self.write(py, frame, code, op, arg),
            }
            Ok(())
        }
    }

    /// Guards an item of a dict, and gives the value, borrowed.
    pub(super) unsafe fn read_dict(&mut self, dict: Obj, key: Obj, name: String) -> Obj {
        unsafe {
            let value = item(dict, key);
            let id = self.key_id(key);
            if !self.is_known(dict, id) && !self.writes.has(dict, CONTENTS) {
                let expect = self.value(value);
                let check = Check::Item { dict: owned(dict), key: owned(key), value: expect };
                self.guard(dict, id, |_| Guard { name, check });
            }
            value
        }
    }

    unsafe fn read_global(&mut self, frame: Frame, name: Obj) {
        unsafe {
            if name.is_null() {
                return;
            }
            let (globals, builtins) = (frame.globals(), frame.builtins());
            let text = x::shown(name);
            let mut value = self.read_dict(globals, name, format!("global {text}"));
            if value.is_null() && ffi::PyDict_Check(builtins) != 0 {
                value = self.read_dict(builtins, name, format!("builtin {text}"));
            }
            self.name_it(value, || text);
        }
    }

    unsafe fn read_cell(&mut self, cell: Obj, variable: &str) {
        unsafe {
            if !self.is_old(cell) || x::type_of(cell) != self.api.cell_type {
                return;
            }
            let value = (self.api.cell_get)(cell);
            if !self.is_known(cell, VALUE) {
                let check = Check::Cell { cell: owned(cell), value: self.value(value) };
                self.guard(cell, VALUE, |_| Guard { name: format!("closure {variable}"), check });
            }
            self.name_it(value, || variable.to_string());
            ffi::Py_XDECREF(value);
        }
    }

    unsafe fn read_item(&mut self, of: Obj, key: Obj) {
        unsafe {
            self.pin(key);
            if !self.is_old(of) || key.is_null() {
                return;
            }
            let Some(kind) = contents::kind(of) else { return };
            let path = || format!("{}[{}]", self.name(of), key_text(key));
            match kind {
                Kind::Dict | Kind::OrderedDict => {
                    if item(of, key).is_null() && has(self.api, x::type_of(of), "__missing__") {
                        return self.write_contents(of);
                    }
                    let path = path();
                    let value = self.read_dict(of, key, path.clone());
                    self.name_it(value, || path);
                }
                Kind::List if x::type_of(key) == &raw mut ffi::PyLong_Type => {
                    let index = ffi::PyLong_AsSsize_t(key);
                    if index == -1 && !ffi::PyErr_Occurred().is_null() {
                        return ffi::PyErr_Clear();
                    }
                    let at = if index < 0 { index + ffi::PyList_Size(of) } else { index };
                    let inside = (0..ffi::PyList_Size(of)).contains(&at);
                    let value = if inside { ffi::PyList_GetItem(of, at) } else { std::ptr::null_mut() };
                    let path = path();
                    let id = self.key_id(key);
                    if !self.is_known(of, id) && !self.writes.has(of, CONTENTS) {
                        let check = Check::ListItem { list: owned(of), index, value: self.value(value) };
                        let name = path.clone();
                        self.guard(of, id, |_| Guard { name, check });
                    }
                    self.name_it(value, || path);
                }
                _ => self.read_contents(of, 0),
            }
        }
    }

    /// Whether two objects are one. Of None and other objects a tensor differs whichever it is; equal numbers and strings,
    /// which are guarded by value, may be one or two.
    pub(super) unsafe fn compare_identity(&mut self, code: &Code, a: Obj, b: Obj) -> Result<()> {
        unsafe {
            if a.is_null() || b.is_null() {
                return Ok(());
            }
            if shell::is_tensor(a) && shell::is_tensor(b) {
                self.pin(a);
                self.pin(b);
                return if a == b {
                    Ok(())
                } else {
                    watch::tell_two(shell::tensor_of(a), shell::tensor_of(b))
                };
            }
            if a != b && symint::is_whole(a) && symint::is_whole(b) {
                symint::unmask(a);
                symint::unmask(b);
            }
            if code.kind == code::Kind::User && may_be_two(a) && same_value(a, b) {
                let shown = key_text(a);
                let message = format!(
                    "the captured function asks whether two values {shown} are one object, which depends on how they were made"
                );
                return Err(watch::refusal("TP4036", message).note("compare them by =="));
            }
            Ok(())
        }
    }

    unsafe fn read_membership(&mut self, of: Obj, key: Obj) -> Result<()> {
        unsafe {
            self.pin(key);
            if !self.is_old(of) {
                return Ok(());
            }
            self.search(of, key)?;
            match contents::kind(of) {
                Some(Kind::Dict | Kind::OrderedDict) => self.read_key(of, key),
                Some(_) => self.read_contents(of, DEPTH),
                None => {}
            }
            Ok(())
        }
    }

    /// A tensor is looked for among the keys that a dict or set had before: by its hash, and so by which tensor it is.
    pub(super) unsafe fn search(&mut self, of: Obj, key: Obj) -> Result<()> {
        unsafe {
            let Some(kind @ (Kind::Dict | Kind::OrderedDict | Kind::Set)) = contents::kind(of) else {
                return Ok(());
            };
            if key.is_null() || !shell::is_tensor(key) {
                return Ok(());
            }
            let step = if kind == Kind::Set { 1 } else { 2 };
            let keys = contents::contents(of, kind);
            let mut tensors = keys.iter().step_by(step).filter(|one| shell::is_tensor(one.as_ptr()));
            tensors.try_for_each(|one| watch::hashed(shell::tensor_of(one.as_ptr())))
        }
    }

    pub(super) unsafe fn read_key(&mut self, of: Obj, key: Obj) {
        unsafe {
            let id = self.key_id(key) + 1;
            if self.is_known(of, id) || self.writes.has(of, CONTENTS) {
                return;
            }
            let check = Check::HasKey { dict: owned(of), key: owned(key), there: !item(of, key).is_null() };
            let name = format!("{}[{}]", self.name(of), key_text(key));
            self.guard(of, id, |_| Guard { name, check });
        }
    }

    unsafe fn read_truth(&mut self, of: Obj) {
        unsafe {
            if of.is_null() {
                return;
            }
            let ty = x::type_of(of);
            self.read_native(of, 1);
            if self.is_old(of) && contents::kind(of).is_some() {
                return self.read_length(of);
            }
            if self.class(ty) == Class::Generic {
                for name in ["__bool__", "__len__"] {
                    let name = x::intern(name);
                    self.read_lookup(ty, name);
                    ffi::Py_XDECREF(name);
                }
            }
        }
    }

    pub(super) unsafe fn read_length(&mut self, of: Obj) {
        unsafe {
            if !self.is_old(of) || contents::kind(of).is_none() || self.writes.has(of, CONTENTS) {
                return self.read_native(of, 1);
            }
            let check = Check::Length { of: owned(of), length: length(of) };
            self.guard(of, LENGTH, |session| Guard { name: session.name(of), check });
        }
    }

    pub(super) unsafe fn read_type(&mut self, of: Obj) {
        unsafe {
            let ty = x::type_of(of);
            if self.is_old(of) && is_changeable(ty) {
                let check = Check::Type { of: owned(of), class: owned(ty.cast()) };
                self.guard(of, TYPE, |session| Guard { name: session.name(of), check });
            }
        }
    }

    /// Guards what a container holds, and what containers in it hold.
    pub(super) unsafe fn read_contents(&mut self, of: Obj, depth: usize) {
        unsafe {
            if of.is_null() || is_immutable(of, 0) {
                return;
            }
            if x::type_of(of) == &raw mut ffi::PyTuple_Type && depth > 0 {
                for i in 0..ffi::PyTuple_Size(of) {
                    self.read_contents(ffi::PyTuple_GetItem(of, i), depth - 1);
                }
                return;
            }
            let Some(kind) = contents::kind(of) else { return self.read_native(of, depth.saturating_sub(1)) };
            let seen = contents::contents(of, kind);
            if self.is_old(of) {
                seen.iter().for_each(|one| self.pin(one.as_ptr()));
            }
            if self.is_old(of) && !self.is_known(of, CONTENTS) {
                let path = self.name(of);
                self.name_parts(kind, &seen, &path);
                let kept = seen.iter().map(|one| owned(one.as_ptr())).collect();
                let check = Check::Contents { of: owned(of), kind, seen: kept };
                self.guard(of, CONTENTS, |_| Guard { name: path, check });
            }
            if depth > 0 {
                seen.iter().for_each(|one| self.read_contents(one.as_ptr(), depth - 1));
            }
        }
    }

    unsafe fn name_parts(&mut self, kind: Kind, seen: &[Py<PyAny>], path: &str) {
        unsafe {
            match kind {
                Kind::Dict | Kind::OrderedDict => {
                    for pair in seen.chunks_exact(2) {
                        let (key, value) = (pair[0].as_ptr(), pair[1].as_ptr());
                        self.name_it(value, || format!("{path}[{}]", key_text(key)));
                    }
                }
                _ => {
                    for (i, one) in seen.iter().enumerate() {
                        self.name_it(one.as_ptr(), || format!("{path}[{i}]"));
                    }
                }
            }
        }
    }

    /// `case Class(a, b=...)` asks for attributes without an opcode for each.
    unsafe fn read_match(&mut self, frame: Frame) {
        unsafe {
            let (names, class, subject) = (frame.peek(1), frame.peek(2), frame.peek(3));
            let own = x::intern("__match_args__");
            self.read_lookup(class.cast(), own);
            let positional = (self.api.type_lookup)(class.cast(), own);
            ffi::Py_XDECREF(own);
            for names in [names, positional] {
                if names.is_null() || ffi::PyTuple_Check(names) == 0 {
                    continue;
                }
                for i in 0..ffi::PyTuple_Size(names) {
                    self.read_attribute(subject, ffi::PyTuple_GetItem(names, i));
                }
            }
        }
    }

    unsafe fn read_import(&mut self, level: Obj, name: Obj) {
        unsafe {
            if !name.is_null() && !level.is_null() && ffi::PyLong_AsLong(level) == 0 {
                self.read_module(name);
            }
        }
    }

    /// Which module has a name.
    pub(super) unsafe fn read_module(&mut self, name: Obj) {
        unsafe {
            let modules = ffi::PyImport_GetModuleDict();
            let text = x::shown(name);
            if item(modules, name).is_null() {
                return;
            }
            let value = self.read_dict(modules, name, format!("sys.modules[{text:?}]"));
            self.name_it(value, || text);
        }
    }
}

pub(super) unsafe fn key_text(key: Obj) -> String {
    unsafe {
        if !is_immutable(key, 0) {
            return format!("<{}>", x::type_name(key));
        }
        crate::error::attached(|py| {
            let key: Bound<'_, PyAny> = Bound::from_borrowed_ptr(py, key);
            key.repr().map_or_else(|_| "?".to_string(), |r| r.to_string_lossy().into_owned())
        })
    }
}
