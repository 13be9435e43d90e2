//! One capture under watch: what it met, what it guards, what it wrote; and the trace function that the interpreter calls
//! at each frame and, in frames of the user, before each opcode.

use super::addresses::{AddressSet, Addresses};
use super::api::{Api, CALL, OPCODE, RETURN, ask_for_opcodes};
use super::assumed::Assumed;
use super::attributes::Classes;
use super::code::{self, Code, Kind, Op};
use super::expect::{Expect, is_immutable, owned};
use super::frame::Frame;
use super::guards::{Check, Guard, item};
use super::lazy::{Lazy, is_keeper};
use super::natives::Nature;
use super::writes::Writes;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use pyo3::ffi;
use pyo3::prelude::*;
use std::cell::Cell;
use std::os::raw::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use tp_dispatch::{Error, Result};

thread_local! {
    /// The innermost session of the thread. It is used by one event at a time: the interpreter gives none during one.
    pub(super) static CURRENT: Cell<*mut Session> = const { Cell::new(std::ptr::null_mut()) };
}

pub struct Session {
    pub(super) api: &'static Api,
    /// Addresses of objects made during the capture. What is made where one of them was is as fresh.
    pub(super) fresh: AddressSet,
    /// Objects made during the capture that share what existed before.
    shared: Vec<Py<PyAny>>,
    pub(super) guards: Vec<Guard>,
    /// Tensors that were met by other ways than by reading one place, or of which it mattered which one they are.
    pinned: AddressSet,
    /// The frame whose last opcode was a call.
    called: Option<usize>,
    /// Reads that have their guard.
    seen: AddressSet<(usize, usize)>,
    /// Keys and names by value, each standing for all that are equal to it.
    keys: Py<pyo3::types::PyDict>,
    /// By which path an object was reached.
    names: Addresses<String>,
    pub(super) writes: Writes,
    pub(super) lazy: Vec<Lazy>,
    pub(super) classes: Classes,
    pub(super) natures: Addresses<Nature>,
    pub(super) assumed: Assumed,
    /// A refusal by what the opcode reads, raised in front of it.
    pub(super) pending: Option<Error>,
    /// Something ran since the last call of an op that may write to arrays.
    pub(super) may_have_written: bool,
    /// The frame whose next call has keywords.
    pub(super) keywords: Option<usize>,
    /// The frame whose opcode makes an item of a default dict.
    pub(super) fills: Option<usize>,
    /// The frame whose last call makes a class.
    pub(super) makes: Option<usize>,
    /// Frames that are calling a class, and the class: whose `__init__` comes next gets a fresh object.
    constructing: Vec<(usize, usize)>,
    /// Frames under way, and the code of those that are watched.
    frames: Vec<(usize, Option<Rc<Code>>)>,
    /// The frame under which nothing is watched until it is left: an import, or a rule of an op.
    outside: Option<usize>,
    /// The frame whose opcode calls an op: a function that begins under it is part of the op's contract.
    calling_op: Option<usize>,
    /// Special methods under way that such an opcode asks, and its frame.
    asked: Vec<(usize, usize)>,
    /// The function whose arguments are the call's own.
    root: usize,
}

/// What one read is of, so that it gets one guard.
pub(super) const LENGTH: usize = 1;
pub(super) const CONTENTS: usize = 2;
pub(super) const TYPE: usize = 3;
pub(super) const FUNCTION: usize = 4;
pub(super) const VALUE: usize = 5;

impl Session {
    pub fn new(api: &'static Api, root: Obj) -> Session {
        Session {
            api,
            fresh: AddressSet::default(),
            shared: Vec::new(),
            guards: Vec::new(),
            pinned: AddressSet::default(),
            called: None,
            seen: AddressSet::default(),
            keys: crate::error::attached(|py| pyo3::types::PyDict::new(py).unbind()),
            names: Addresses::default(),
            writes: Writes::default(),
            lazy: Vec::new(),
            classes: Classes::default(),
            natures: Addresses::default(),
            assumed: Assumed::default(),
            pending: None,
            may_have_written: false,
            keywords: None,
            makes: None,
            fills: None,
            constructing: Vec::new(),
            frames: Vec::new(),
            outside: None,
            calling_op: None,
            asked: Vec::new(),
            root: root as usize,
        }
    }

    pub(super) fn is_old(&self, obj: Obj) -> bool {
        !obj.is_null() && !self.fresh.contains(&(obj as usize))
    }

    pub(super) fn mark_fresh(&mut self, obj: Obj) {
        self.fresh.insert(obj as usize);
    }

    /// What was made during the capture is no longer the function's own: it shares state that existed before.
    pub(super) unsafe fn make_old(&mut self, obj: Obj) {
        self.fresh.remove(&(obj as usize));
        // Kept, it is never held by the stack alone, which would make it fresh again.
        self.shared.push(unsafe { owned(obj) });
    }

    /// The path of an object, for messages.
    pub(super) unsafe fn name(&self, obj: Obj) -> String {
        match self.names.get(&(obj as usize)) {
            Some(name) => name.clone(),
            None => format!("<{}>", unsafe { x::type_name(obj) }),
        }
    }

    pub(super) unsafe fn name_it(&mut self, obj: Obj, name: impl FnOnce() -> String) {
        if !obj.is_null() && !unsafe { is_immutable(obj, 0) } {
            self.names.entry(obj as usize).or_insert_with(name);
        }
    }

    /// Adds a guard unless this read of this object has one.
    pub(super) fn guard(&mut self, of: Obj, key: usize, make: impl FnOnce(&Session) -> Guard) {
        if self.seen.insert((of as usize, key)) {
            let made = make(self);
            self.guards.push(made);
        }
    }

    /// A number that tells keys apart, and is the same for equal ones: the address of one that is kept.
    pub(super) unsafe fn key_id(&self, key: Obj) -> usize {
        unsafe {
            if !is_immutable(key, 0) {
                return key as usize;
            }
            let known = item(self.keys.as_ptr(), key);
            if !known.is_null() {
                return known as usize;
            }
            if ffi::PyDict_SetItem(self.keys.as_ptr(), key, key) != 0 {
                ffi::PyErr_Clear();
            }
            key as usize
        }
    }

    /// Whether the read of this object has its guard, or is of what the function wrote itself.
    pub(super) fn is_known(&self, of: Obj, key: usize) -> bool {
        self.seen.contains(&(of as usize, key)) || self.writes.has(of, key)
    }

    unsafe fn event(&mut self, py: Python<'_>, frame_object: Obj, what: c_int) -> Result<()> {
        unsafe {
            let frame = Frame::of(frame_object, self.api.layout);
            match what {
                CALL => {
                    let watched = self.begin_frame(py, frame, frame_object);
                    if watched.is_some() {
                        ask_for_opcodes(frame_object);
                    }
                    self.frames.push((frame.id(), watched));
                    Ok(())
                }
                RETURN => {
                    self.frames.pop_if(|(id, _)| *id == frame.id());
                    if self.outside == Some(frame.id()) {
                        self.outside = None;
                    }
                    if let Some((_, op)) = self.asked.pop_if(|(id, _)| *id == frame.id()) {
                        self.calling_op = Some(op);
                    }
                    Ok(())
                }
                OPCODE if self.outside.is_none() && tp_graph::capture::active() => {
                    let code = match self.frames.last() {
                        Some((id, Some(code))) if *id == frame.id() => code.clone(),
                        _ => match code::known(py, frame.code()) {
                            Some(code) => code,
                            None => return Ok(()),
                        },
                    };
                    let lasti = (self.api.frame_lasti)(frame_object);
                    self.before(py, frame, &code, usize::try_from(lasti).unwrap_or(0) / 2)
                }
                _ => Ok(()),
            }
        }
    }

    /// The code of a frame that begins, if it is to be watched. Inside of kernels and fake rules nothing is captured: what they read
    /// is theirs.
    unsafe fn begin_frame(&mut self, py: Python<'_>, frame: Frame, frame_object: Obj) -> Option<Rc<Code>> {
        unsafe {
            if self.outside.is_some() || super::PAUSES.get() > 0 || !tp_graph::capture::active() {
                return None;
            }
            let code = code::known(py, frame.code())?;
            if self.interrupts(frame, frame_object, &code) {
                self.outside = Some(frame.id());
                return None;
            }
            if let Some(op) = self.calling_op.filter(|op| self.frames.last().is_some_and(|(id, _)| id == op))
            {
                // Special methods of other operands, and of what stands for a number, belong to their objects.
                if code.kind != Kind::User || !is_of_operand(&code.name) {
                    self.outside = Some(frame.id());
                    return None;
                }
                self.asked.push((frame.id(), op));
            }
            if self.assumed.contains(frame.function()) {
                self.outside = Some(frame.id());
                return None;
            }
            let is_watched = match code.kind {
                Kind::Ours => false,
                Kind::Outside => {
                    self.outside = Some(frame.id());
                    false
                }
                Kind::Standard => {
                    self.frames.last().is_none_or(|(_, caller)| caller.is_some())
                        && !is_keeper(py, frame.code())
                }
                Kind::User => true,
            };
            if is_watched {
                self.enter(frame, &code);
            }
            is_watched.then_some(code)
        }
    }

    /// Whether a frame is none that the function calls: a finaliser, or a callback of the collector, of a weak reference or
    /// of a signal, which may come at any opcode.
    unsafe fn interrupts(&self, frame: Frame, frame_object: Obj, code: &Code) -> bool {
        unsafe {
            if code.name == "__del__" {
                return true;
            }
            let argument = |i: usize| if i < code.arguments { frame.local(i) } else { std::ptr::null_mut() };
            let (first, second, third) = (argument(0), argument(1), argument(2));
            if !first.is_null() && is_dead_reference(first) {
                return true;
            }
            if !second.is_null() && x::type_of(second) == x::type_of(frame_object) {
                return true;
            }
            let is_collection = |phase: Obj, info: Obj| {
                !phase.is_null()
                    && !info.is_null()
                    && ffi::PyUnicode_Check(phase) != 0
                    && matches!(x::str_of(phase), Some("start" | "stop"))
                    && ffi::PyDict_Check(info) != 0
                    && !ffi::PyDict_GetItemString(info, c"generation".as_ptr()).is_null()
            };
            is_collection(first, second) || is_collection(second, third)
        }
    }

    /// A frame of the user's begins.
    unsafe fn enter(&mut self, frame: Frame, code: &Rc<Code>) {
        unsafe {
            let function = frame.function();
            for slot in code.made_by_call() {
                self.mark_fresh(frame.local(slot));
            }
            if function as usize == self.root {
                self.root = 0;
                for slot in 0..code.arguments {
                    let local = frame.local(slot);
                    self.name_it(local, || code.locals[slot].clone());
                }
            }
            if code.arguments > 0 {
                self.enter_method(frame, code);
            }
            if self.is_old(function) && x::type_of(function) == self.api.function_type {
                self.read_function(function);
            }
        }
    }

    /// What follows from the first argument: whether it was just made, and how a special method was found.
    unsafe fn enter_method(&mut self, frame: Frame, code: &Code) {
        unsafe {
            let is_special = code.name.starts_with("__") && code.name.ends_with("__");
            let first = frame.local(0);
            if !is_special || first.is_null() {
                return;
            }
            let class = x::type_of(first);
            if code.name == "__init__"
                && let Some((_, made)) = self.constructing.last()
                && ffi::PyType_IsSubtype(class, *made as *mut ffi::PyTypeObject) != 0
            {
                self.constructing.pop();
                self.mark_fresh(first);
            }
            let name = x::intern(&code.name);
            if name.is_null() {
                return ffi::PyErr_Clear();
            }
            if (self.api.type_lookup)(class, name) == frame.function() {
                self.read_lookup(class, name);
            }
            ffi::Py_DECREF(name);
        }
    }

    unsafe fn read_function(&mut self, function: Obj) {
        let api = self.api;
        self.guard(function, FUNCTION, |session| unsafe {
            let optional = |obj: Obj| (!obj.is_null()).then(|| owned(obj));
            let check = Check::Function {
                of: owned(function),
                code: owned((api.function_code)(function)),
                defaults: optional((api.function_defaults)(function)),
                keywords: optional((api.function_kwdefaults)(function)),
            };
            Guard { name: session.function_name(function), check }
        });
        unsafe {
            self.pin((api.function_defaults)(function));
            let keywords = (api.function_kwdefaults)(function);
            if !keywords.is_null() {
                self.name_it(keywords, || "the keyword defaults".to_string());
                self.read_contents(keywords, 0);
            }
        }
    }

    fn function_name(&self, function: Obj) -> String {
        if let Some(name) = self.names.get(&(function as usize)) {
            return name.clone();
        }
        crate::error::attached(|py| {
            let function: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, function) };
            function.getattr("__qualname__").map_or_else(|_| "a function".to_string(), |n| n.to_string())
        })
    }

    unsafe fn before(&mut self, py: Python<'_>, frame: Frame, code: &Rc<Code>, unit: usize) -> Result<()> {
        unsafe {
            if frame.top() > code.slots {
                let top = frame.peek(1);
                // Only the stack owns it: it was made by the opcode before, or taken from where it was.
                let is_filled = self.fills.take_if(|id| *id == frame.id()).is_some();
                if !top.is_null() && (is_filled || ffi::Py_REFCNT(top) == 1) {
                    self.mark_fresh(top);
                }
                // What a call gives may have come from anywhere.
                if self.called == Some(frame.id()) {
                    self.pin(top);
                    if self.makes == Some(frame.id()) && !top.is_null() && ffi::PyType_Check(top) != 0 {
                        self.mark_fresh(top);
                    }
                    self.makes = None;
                }
            }
            let (op, arg) = code.instruction(unit);
            self.called = matches!(op, Op::Called | Op::CallEx)
                .then_some(frame.id())
                .or(self.called.filter(|id| *id != frame.id()));
            while op != Op::Called
                && self.constructing.last().is_some_and(|(caller, _)| *caller == frame.id())
            {
                self.constructing.pop();
            }
            let done = self.opcode(py, frame, code, op, arg);
            if op != Op::Keywords {
                self.keywords = None;
            }
            self.pending.take().map_or(done, Err)
        }
    }

    /// Whether the opcode is an operator on a tensor.
    pub(super) unsafe fn note_operators(&mut self, frame: Frame, op: Op) {
        unsafe {
            let is_tensor = |n: usize| {
                let operand = frame.peek(n);
                !operand.is_null() && shell::is_tensor(operand)
            };
            let operates = matches!(
                op,
                Op::Binary
                    | Op::Compare
                    | Op::Subscript
                    | Op::StoreSubscript
                    | Op::Contains
                    | Op::Truth
                    | Op::Iterate
            );
            // Of a CALL its PRECALL has told.
            if op != Op::Called {
                // What lies under a single operand is no part of it.
                let has_two = !matches!(op, Op::Truth | Op::Iterate);
                let on_tensor = operates && (is_tensor(1) || has_two && is_tensor(2));
                self.calling_op = on_tensor.then_some(frame.id());
                match on_tensor {
                    true => self.op_begins(),
                    false => self.may_have_written |= matches!(op, Op::Binary | Op::StoreSubscript),
                }
            }
        }
    }

    pub(super) fn note_op(&mut self, frame: Frame) {
        self.calling_op = Some(frame.id());
    }

    /// A tensor, or tensors in a tuple, that stay what they are.
    pub(super) unsafe fn pin(&mut self, obj: Obj) {
        unsafe {
            if obj.is_null() {
                return;
            }
            if shell::is_tensor(obj) {
                self.pinned.insert(obj as usize);
            } else if ffi::PyTuple_Check(obj) != 0 {
                (0..ffi::PyTuple_Size(obj)).for_each(|i| self.pin(ffi::PyTuple_GetItem(obj, i)));
            }
        }
    }

    pub(super) fn is_pinned(&self, obj: Obj) -> bool {
        self.pinned.contains(&(obj as usize))
    }

    pub(super) fn construct(&mut self, frame: Frame, class: Obj) {
        self.constructing.push((frame.id(), class as usize));
    }

    /// A guard on a value of a location, once.
    pub(super) unsafe fn value(&mut self, value: Obj) -> Expect {
        unsafe {
            if !value.is_null() && ffi::PyTuple_Check(value) != 0 {
                self.pin(value);
            }
            Expect::of(self.api, value)
        }
    }
}

/// Whether a function of that name is a special method that native code asks of an object it is given.
fn is_of_operand(name: &str) -> bool {
    name.starts_with("__") && name.ends_with("__") && !matches!(name, "__call__" | "__init__" | "__new__")
}

/// Whether an object is a weak reference to what is gone, as its callback gets it.
unsafe fn is_dead_reference(obj: Obj) -> bool {
    crate::error::attached(|py| {
        let obj: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, obj) };
        obj.cast::<pyo3::types::PyWeakrefReference>().is_ok_and(|r| r.upgrade().is_none())
    })
}

/// What the interpreter calls.
pub(super) unsafe extern "C" fn trace(_marker: Obj, frame: Obj, what: c_int, _arg: Obj) -> c_int {
    let session = CURRENT.get();
    if session.is_null() || !matches!(what, CALL | RETURN | OPCODE) {
        return 0;
    }
    // SAFETY: the session lives until the trace function is taken off; no other event of this thread comes meanwhile.
    let done = catch_unwind(AssertUnwindSafe(|| unsafe {
        crate::error::attached(|py| (*session).event(py, frame, what))
    }));
    let error = match done {
        Ok(Ok(())) => return 0,
        Ok(Err(e)) => e,
        Err(panic) => crate::hot::ret::panic_error(&*panic),
    };
    crate::error::set(error);
    -1
}
