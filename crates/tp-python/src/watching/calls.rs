//! What calls of native code read and write: a table for what is known by name, and for the rest what the arguments hold.
//! Functions in Python are watched in their own frames.

use super::attributes::{Class, has, is_changeable, is_compiled};
use super::code::{Code, Kind};
use super::contents::{self, Kind as Container};
use super::expect::is_immutable;
use super::frame::Frame;
use super::natives::{self, is_descriptor, is_wrapper, type_text};
use super::session::Session;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tp_dispatch::Result;
use tp_graph::capture::watch;

/// How deep native code is taken to look into what it is given.
const DEPTH: usize = 6;

/// Methods of the built-in containers that change them.
const CHANGING: &[&str] = &[
    "append",
    "extend",
    "insert",
    "pop",
    "remove",
    "clear",
    "sort",
    "reverse",
    "update",
    "setdefault",
    "popitem",
    "add",
    "discard",
    "difference_update",
    "intersection_update",
    "symmetric_difference_update",
    "appendleft",
    "extendleft",
    "popleft",
    "rotate",
    "move_to_end",
    "__setitem__",
    "__delitem__",
    "__iadd__",
    "__imul__",
    "__ior__",
    "__iand__",
    "__isub__",
    "__ixor__",
];

/// One call, as it lies on the stack.
struct Called {
    callee: Obj,
    /// What a method is called on, or null.
    on: Obj,
    args: Vec<Obj>,
}

impl Session {
    /// PRECALL: `n` arguments, below them a method and its object, or NULL and a callable.
    pub(super) unsafe fn call(&mut self, py: Python<'_>, frame: Frame, code: &Code, n: usize) -> Result<()> {
        unsafe {
            let args = (1..=n).rev().map(|i| frame.peek(i)).collect();
            let (first, method) = (frame.peek(n + 1), frame.peek(n + 2));
            let called = match method.is_null() {
                true => Called { callee: first, on: std::ptr::null_mut(), args },
                false => Called { callee: method, on: first, args },
            };
            self.called(py, frame, code, called)
        }
    }

    pub(super) unsafe fn call_ex(
        &mut self,
        py: Python<'_>,
        frame: Frame,
        code: &Code,
        flags: u32,
    ) -> Result<()> {
        unsafe {
            let shift = (flags & 1) as usize;
            let (given, callee) = (frame.peek(1 + shift), frame.peek(2 + shift));
            if shift == 1 {
                self.read_contents(frame.peek(1), 0);
            }
            let mut args = Vec::new();
            if !given.is_null() && ffi::PyTuple_Check(given) != 0 {
                args.extend((0..ffi::PyTuple_Size(given)).map(|i| ffi::PyTuple_GetItem(given, i)));
            } else {
                self.iterate(given)?;
            }
            self.called(py, frame, code, Called { callee, on: std::ptr::null_mut(), args })
        }
    }

    unsafe fn called(&mut self, py: Python<'_>, frame: Frame, code: &Code, called: Called) -> Result<()> {
        unsafe {
            let Called { mut callee, mut on, args } = called;
            if callee.is_null() {
                return Ok(());
            }
            if x::type_of(callee) == self.api.method_type {
                (on, callee) = ((self.api.method_self)(callee), (self.api.method_function)(callee));
            }
            let ty = x::type_of(callee);
            if ty == self.api.function_type {
                return Ok(());
            }
            if ffi::PyType_Check(callee) != 0 {
                return self.construct_with(py, frame, code, callee, &args);
            }
            if ffi::PyCFunction_Check(callee) != 0 && on.is_null() {
                on = ffi::PyCFunction_GetSelf(callee);
            }
            if !on.is_null() && ffi::PyModule_Check(on) != 0 {
                on = std::ptr::null_mut();
            }
            if is_exactly(py, ty, "partial") {
                return self.partial(py, frame, code, callee, args);
            }
            if is_exactly(py, ty, "attrgetter") || is_exactly(py, ty, "methodcaller") {
                self.get_attributes(py, callee, &args);
            }
            let (module, name) = (text(py, callee, "__module__"), text(py, callee, "__name__"));
            if is_compiled(ty) {
                return Ok(());
            }
            if self.assumed.contains(callee) || self.assumed.has_call(on, &module, &name) {
                return Ok(());
            }
            let is_seeded = name == "default_rng" && !args.is_empty();
            let is_ours = module.starts_with("tensorplay") || self.class(ty) == Class::Ours;
            if is_seeded || is_ours || !on.is_null() && shell::is_tensor(on) {
                // Functions of Python that it calls are part of it.
                self.note_op(frame);
                self.op_begins();
                args.iter().for_each(|arg| self.read_contents(*arg, DEPTH));
                return Ok(());
            }
            self.may_have_written = true;
            if module == "_operator" && matches!(&*name, "is_" | "is_not") && args.len() == 2 {
                return self.compare_identity(code, args[0], args[1]);
            }
            if module == "builtins" && self.builtin(&name, &args)? {
                return Ok(());
            }
            self.known(py, code, Called { callee, on, args }, &module, &name)
        }
    }

    /// A native function of which the tables say what it reads.
    unsafe fn known(
        &mut self,
        py: Python<'_>,
        code: &Code,
        called: Called,
        module: &str,
        name: &str,
    ) -> Result<()> {
        unsafe {
            let Called { callee, mut on, args } = called;
            let is_again = type_text(py, on) == "_contextvars.ContextVar" && name == "get";
            if is_again || type_text(py, callee) == "functools._lru_cache_wrapper" {
                return self.call_again(py, code, callee, on, args);
            }
            if on.is_null() && is_wrapper(callee) {
                let bound: Bound<'_, PyAny> = Bound::from_borrowed_ptr(py, callee);
                on = bound.getattr("__self__").map_or(std::ptr::null_mut(), |of| of.as_ptr());
            }
            let (on, args) = match args.split_first() {
                // A method taken from its class: the first argument is what it is called on.
                Some((first, rest)) if on.is_null() && is_descriptor(callee) => (*first, rest.to_vec()),
                _ => (on, args),
            };
            // Tensors say themselves that they cannot be stored in a capture.
            if module == "_pickle" && args.first().is_some_and(|arg| shell::is_tensor(*arg)) {
                return Ok(());
            }
            if self.draws(py, on, name) || !self.is_known_function(code, callee, on, module, name) {
                return Err(natives::unknown(py, callee, on));
            }
            args.iter().try_for_each(|arg| self.native_callback(py, code, *arg))?;
            if !on.is_null() {
                self.native_method(on, name, &args)?;
                let looks = contents::kind(on).is_none() && ffi::PyType_Check(on) == 0;
                return self.native_arguments(code, &args, looks);
            }
            self.native_arguments(code, &args, true)
        }
    }

    /// What `operator.attrgetter("a.b")` and `operator.methodcaller("a")` read of their argument.
    unsafe fn get_attributes(&mut self, py: Python<'_>, getter: Obj, args: &[Obj]) {
        let Some(&of) = args.first() else { return };
        // SAFETY: a live object, lock held.
        let getter: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, getter) };
        let made_of = getter.call_method0("__reduce__").and_then(|r| r.get_item(1));
        let paths = made_of.and_then(|all| all.extract::<Vec<Bound<'_, PyAny>>>()).unwrap_or_default();
        for path in paths.iter().filter_map(|p| p.extract::<String>().ok()) {
            let mut at: Option<Bound<'_, PyAny>> = Some(unsafe { Bound::from_borrowed_ptr(py, of) });
            let mut parts = path.split('.').peekable();
            while let (Some(object), Some(name)) = (at.take(), parts.next()) {
                let name = pyo3::types::PyString::intern(py, name);
                unsafe { self.read_attribute(object.as_ptr(), name.as_ptr()) };
                if parts.peek().is_none() {
                    break;
                }
                let value = unsafe { super::guards::attribute(self.api, object.as_ptr(), name.as_ptr()) };
                at = unsafe { Bound::from_owned_ptr_or_opt(py, value) };
            }
        }
    }

    /// A `functools.partial` calls another function with what it holds.
    unsafe fn partial(
        &mut self,
        py: Python<'_>,
        frame: Frame,
        code: &Code,
        callee: Obj,
        args: Vec<Obj>,
    ) -> Result<()> {
        // SAFETY: a live object, lock held; what it holds lives as long as it does.
        unsafe {
            let held = |name: &str| {
                let partial: Bound<'_, PyAny> = Bound::from_borrowed_ptr(py, callee);
                partial.getattr(name).ok()
            };
            let (Some(function), Some(first), Some(keywords)) =
                (held("func"), held("args"), held("keywords"))
            else {
                return Ok(());
            };
            let name = self.name(callee);
            self.name_it(keywords.as_ptr(), || format!("{name}.keywords"));
            self.read_contents(keywords.as_ptr(), 0);
            let mut all: Vec<Obj> = (0..ffi::PyTuple_Size(first.as_ptr()))
                .map(|i| ffi::PyTuple_GetItem(first.as_ptr(), i))
                .collect();
            all.extend(args);
            let called = Called { callee: function.as_ptr(), on: std::ptr::null_mut(), args: all };
            self.called(py, frame, code, called)
        }
    }

    unsafe fn construct_with(
        &mut self,
        py: Python<'_>,
        frame: Frame,
        code: &Code,
        class: Obj,
        args: &[Obj],
    ) -> Result<()> {
        unsafe {
            let (module, name) = (text(py, class, "__module__"), text(py, class, "__name__"));
            let draws = module == "random" || module.starts_with("numpy.random");
            if self.assumed.contains(class) {
                return Ok(());
            }
            if draws && args.is_empty() {
                return Err(natives::unknown(py, class, std::ptr::null_mut()));
            }
            if draws {
                self.note_op(frame);
                return Ok(());
            }
            if class == (&raw mut ffi::PyType_Type).cast() && args.len() == 1 {
                self.read_type(args[0]);
                crate::symint::unmask(args[0]);
                return Ok(());
            }
            if !self.may_make(py, code, class) {
                return Err(natives::unknown(py, class, std::ptr::null_mut()));
            }
            if class == (&raw mut ffi::PyType_Type).cast() && args.len() == 3 {
                self.makes = Some(frame.id());
            }
            self.construct(frame, class);
            for name in ["__init__", "__new__"] {
                let name = x::intern(name);
                self.read_lookup(class.cast(), name);
                ffi::Py_XDECREF(name);
            }
            if is_changeable(class.cast()) {
                args.iter().for_each(|arg| self.read_contents(*arg, 0));
                return Ok(());
            }
            args.iter().try_for_each(|arg| self.native_callback(py, code, *arg))?;
            self.native_arguments(code, args, !natives::keeps(&name))
        }
    }

    /// Clocks, streams and generators of random numbers, whose types are known otherwise.
    unsafe fn draws(&mut self, py: Python<'_>, on: Obj, name: &str) -> bool {
        unsafe {
            if on.is_null() {
                return false;
            }
            let class = if ffi::PyType_Check(on) != 0 { on } else { x::type_of(on).cast() };
            let (owner, class_name) = (text(py, class, "__module__"), text(py, class, "__name__"));
            let is_clock = owner == "datetime"
                && matches!(name, "now" | "utcnow" | "today" | "fromtimestamp" | "timestamp" | "astimezone");
            let is_stream = owner == "_io" && class_name != "StringIO" && class_name != "BytesIO";
            let draws = owner == "random" || owner == "_random" || owner.starts_with("numpy.random");
            is_clock || is_stream || draws && self.is_old(on)
        }
    }

    /// Built-in functions that read less, or something else, than what their arguments hold.
    unsafe fn builtin(&mut self, name: &str, args: &[Obj]) -> Result<bool> {
        unsafe {
            let Some(&of) = args.first() else { return Ok(false) };
            let is_name = |i: usize| args.get(i).is_some_and(|a| ffi::PyUnicode_Check(*a) != 0);
            match name {
                "len" => self.read_length(of),
                "isinstance" => self.read_type(of),
                "getattr" | "hasattr" if is_name(1) => self.read_attribute(of, args[1]),
                "setattr" | "delattr" if is_name(1) => {
                    self.write_attribute(of, args[1]);
                    args.get(2).into_iter().for_each(|value| self.give_dict(of, args[1], *value));
                }
                "vars" => {
                    self.mark_own_dict(of);
                    return Ok(false);
                }
                "next" => {
                    self.refuse_iterator(of)?;
                    return Ok(true);
                }
                "iter" => self.iterate(of)?,
                "__import__" => self.read_module(of),
                "callable" | "issubclass" | "super" => {}
                _ => return Ok(false),
            }
            Ok(true)
        }
    }

    pub(super) unsafe fn native_method(&mut self, on: Obj, name: &str, args: &[Obj]) -> Result<()> {
        unsafe {
            if matches!(name, "__setattr__" | "__delattr__") {
                if let Some(&attribute) = args.first() {
                    self.write_attribute(on, attribute);
                    args.get(1).into_iter().for_each(|value| self.give_dict(on, attribute, *value));
                }
                return Ok(());
            }
            if name == "__getattribute__" {
                if let Some(&attribute) = args.first() {
                    self.read_own_attribute(on, attribute);
                }
                return Ok(());
            }
            if !self.is_old(on) {
                return Ok(());
            }
            args.iter().try_for_each(|&arg| self.search(on, arg))?;
            match contents::kind(on) {
                Some(_) if CHANGING.contains(&name) => self.write_contents(on),
                Some(Container::Dict | Container::OrderedDict) if name == "get" && !args.is_empty() => {
                    let path = format!("{}[{}]", self.name(on), super::reads::key_text(args[0]));
                    let value = self.read_dict(on, args[0], path.clone());
                    self.name_it(value, || path);
                }
                Some(Container::Dict | Container::OrderedDict)
                    if name == "__contains__" && !args.is_empty() =>
                {
                    self.read_key(on, args[0]);
                }
                Some(_) => self.read_contents(on, DEPTH),
                None if name == "__next__" || name == "send" => self.refuse_iterator(on)?,
                None => self.read_native(on, DEPTH),
            }
            Ok(())
        }
    }

    /// `looks`: whether the function looks into all that it is given.
    unsafe fn native_arguments(&mut self, code: &Code, args: &[Obj], looks: bool) -> Result<()> {
        unsafe {
            for &arg in args {
                self.pin(arg);
                if arg.is_null() || is_immutable(arg, 0) {
                    continue;
                }
                if contents::kind(arg).is_some() {
                    self.read_contents(arg, DEPTH);
                    self.may_write_deep(arg, DEPTH);
                } else if ffi::PyTuple_Check(arg) != 0 {
                    self.read_contents(arg, DEPTH);
                } else {
                    self.read_native(arg, DEPTH);
                    if looks && code.kind == Kind::User {
                        self.refuse_unknown(arg);
                    }
                    self.refuse_iterator(arg)?;
                }
            }
            Ok(())
        }
    }

    /// Iterating over a container reads it; over an iterator that existed before, it uses the iterator up.
    pub(super) unsafe fn iterate(&mut self, of: Obj) -> Result<()> {
        unsafe {
            if of.is_null() || !self.is_old(of) {
                return Ok(());
            }
            if contents::kind(of).is_some() {
                self.read_contents(of, 0);
                return Ok(());
            }
            self.refuse_iterator(of)
        }
    }

    unsafe fn refuse_iterator(&mut self, of: Obj) -> Result<()> {
        unsafe {
            let class = x::type_of(of);
            // One with a `__next__` in Python is watched there.
            let is_native = !self.classes_next_is_python(class);
            if self.is_old(of) && has(self.api, class, "__next__") && is_native {
                let what = format!("advancing {}, which existed before,", self.name(of));
                return Err(watch::refusal(
                    "TP4036",
                    format!("{what} in a captured function would take effect in the capture alone"),
                )
                .note("make the iterator in the function, or pass in what it gives"));
            }
            Ok(())
        }
    }

    unsafe fn classes_next_is_python(&self, class: *mut ffi::PyTypeObject) -> bool {
        unsafe {
            let name = x::intern("__next__");
            let found = (self.api.type_lookup)(class, name);
            ffi::Py_XDECREF(name);
            !found.is_null() && x::type_of(found) == self.api.function_type
        }
    }
}

/// A text attribute of a native object; empty where there is none.
pub(super) fn text(py: Python<'_>, of: Obj, name: &str) -> String {
    // SAFETY: a live object, lock held.
    let of: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, of) };
    of.getattr(name).and_then(|v| v.extract()).unwrap_or_default()
}

/// Whether a type is one of these of the standard library.
fn is_exactly(py: Python<'_>, ty: *mut ffi::PyTypeObject, name: &'static str) -> bool {
    static TYPES: [PyOnceLock<Py<PyType>>; 3] = [const { PyOnceLock::new() }; 3];
    let (place, module) = match name {
        "partial" => (&TYPES[0], "functools"),
        "attrgetter" => (&TYPES[1], "operator"),
        _ => (&TYPES[2], "operator"),
    };
    place.import(py, module, name).is_ok_and(|found| found.as_ptr() == ty.cast())
}
