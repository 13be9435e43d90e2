//! Python arguments to bound arguments: positions and keywords to schema slots, objects to values by the kind each
//! slot declares, defaults where nothing was given.

use super::convert;
use super::ffi::{self as x, Obj};
use super::shell;
use pyo3::ffi;
use smallvec::SmallVec;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use tp_dispatch::bind::{Param, ParamKind};
use tp_dispatch::{Arg, Error, OpDef, Result, Value};
use tp_tensor::symbols;

/// What the door keeps beside a definition: interned names and defaults as objects.
pub struct CalleeInfo {
    pub def: Arc<OpDef>,
    pub names: Box<[Obj]>,
    /// Default objects for host kernels, owned; null where an argument is required.
    pub defaults: Box<[Obj]>,
}

impl CalleeInfo {
    /// # Safety
    /// The interpreter lock is held.
    pub unsafe fn new(def: &Arc<OpDef>) -> Rc<CalleeInfo> {
        // SAFETY: lock held.
        let names = def.params.all.iter().map(|p| unsafe { x::intern(&p.name) }).collect();
        let default = |p: &Param| match &p.default {
            // SAFETY: lock held.
            Some(v) => unsafe { convert::plain_object(v) },
            None => ptr::null_mut(),
        };
        Rc::new(CalleeInfo {
            def: def.clone(),
            names,
            defaults: def.params.all.iter().map(default).collect(),
        })
    }
}

impl Drop for CalleeInfo {
    fn drop(&mut self) {
        for &d in &self.defaults {
            // SAFETY: owned references; the callee drops its info with the interpreter lock held.
            unsafe { ffi::Py_XDECREF(d) };
        }
    }
}

/// Values that arguments borrow from while a call lasts. Boxes keep their addresses when the list grows.
#[derive(Default)]
pub struct Scratch {
    #[allow(clippy::vec_box)] // addresses must not move
    kept: Vec<Box<Value>>,
    /// Some argument is not the object that was given: converted, or a list made anew.
    pub converted: bool,
    /// Some number is a symbolic size.
    pub symbolic: bool,
}

impl Scratch {
    /// # Safety
    /// The scratch outlives every use of the argument.
    pub unsafe fn keep<'a>(&mut self, v: Value) -> Arg<'a> {
        self.kept.push(Box::new(v));
        let last: *const Value = &**self.kept.last().unwrap_or_else(|| unreachable!("just pushed"));
        // SAFETY: the box does not move, see above.
        unsafe { (*last).as_arg() }
    }
}

pub type Objects = SmallVec<[Obj; 8]>;
pub type Args<'a> = SmallVec<[Arg<'a>; 8]>;

/// The call as Python made it.
#[derive(Clone, Copy)]
pub struct Given {
    pub args: *const Obj,
    pub nargs: usize,
    /// A tuple of keyword names, or null.
    pub kwnames: Obj,
}

impl Given {
    /// # Safety
    /// `i` is below `nargs` plus the number of keywords.
    #[inline(always)]
    pub unsafe fn at(&self, i: usize) -> Obj {
        // SAFETY: the caller's promise.
        unsafe { *self.args.add(i) }
    }

    fn keywords(&self) -> usize {
        if self.kwnames.is_null() {
            return 0;
        }
        // SAFETY: a tuple, by the calling convention.
        unsafe { ffi::PyTuple_Size(self.kwnames) as usize }
    }
}

/// Puts every object into its schema slot; null where nothing was given.
///
/// # Safety
/// `given` follows the vectorcall convention; the interpreter lock is held.
pub unsafe fn place(op: &str, info: &CalleeInfo, given: Given, skip_first: usize) -> Result<Objects> {
    let params = &info.def.params;
    let nargs = given.nargs - skip_first;
    if nargs > params.positional {
        return Err(too_many(op, info, nargs));
    }
    let mut slots: Objects = SmallVec::from_elem(ptr::null_mut(), params.len());
    for i in 0..nargs {
        // SAFETY: below nargs.
        slots[i] = unsafe { given.at(i + skip_first) };
    }
    for k in 0..given.keywords() {
        // SAFETY: a tuple of `str`, values follow the positional arguments.
        let (name, value) =
            unsafe { (ffi::PyTuple_GetItem(given.kwnames, k as isize), given.at(given.nargs + k)) };
        // SAFETY: live objects.
        let i = unsafe { slot_of(info, name) }.ok_or_else(|| unsafe { unknown_keyword(op, info, name) })?;
        if !slots[i].is_null() {
            return Err(Error::argument(
                "TP1004",
                format!("argument '{}' was given twice", params.all[i].name),
            )
            .with_op(op)
            .note(signature(info)));
        }
        slots[i] = value;
    }
    Ok(slots)
}

unsafe fn slot_of(info: &CalleeInfo, name: Obj) -> Option<usize> {
    if let Some(i) = info.names.iter().position(|n| *n == name) {
        return Some(i);
    }
    // A keyword built at run time need not be interned.
    // SAFETY: a live `str`.
    let text = unsafe { x::str_of(name) }?;
    info.def.params.index(text)
}

/// A default that a capture would take for a symbolic size.
#[inline]
fn looks_symbolic(default: &Value) -> bool {
    match default {
        Value::Int(v) => symbols::any(&[*v]),
        Value::Ints(v) => symbols::any(v),
        _ => false,
    }
}

/// Converts placed objects to arguments. Slots left empty are filled with defaults, objects included.
///
/// # Safety
/// The interpreter lock is held; `scratch` and the objects outlive the arguments.
pub unsafe fn convert<'a>(
    op: &str,
    info: &CalleeInfo,
    slots: &mut Objects,
    scratch: &mut Scratch,
) -> Result<Args<'a>> {
    let mut out = Args::new();
    for (i, p) in info.def.params.all.iter().enumerate() {
        let obj = slots[i];
        if obj.is_null() {
            let Some(default) = &p.default else { return Err(missing(op, info, slots)) };
            slots[i] = info.defaults[i];
            // A kernel may change the list that it gets; the default has to stay.
            scratch.converted |= is_list(default);
            if looks_symbolic(default) {
                // SAFETY: a live object, as any that was given.
                out.push(unsafe { convert::object_to_arg(op, p, slots[i], scratch)? });
                continue;
            }
            // SAFETY: `info` outlives the call.
            out.push(unsafe { std::mem::transmute::<Arg<'_>, Arg<'a>>(default.as_arg()) });
            continue;
        }
        // SAFETY: a live object; see above.
        unsafe {
            if p.kind == ParamKind::Tensor && shell::is_tensor(obj) {
                out.push(Arg::Tensor(shell::tensor_of(obj)));
            } else {
                out.push(convert::object_to_arg(op, p, obj, scratch)?);
            }
        }
    }
    Ok(out)
}

fn is_list(v: &Value) -> bool {
    matches!(v, Value::Ints(_) | Value::Floats(_) | Value::Bools(_) | Value::Scalars(_) | Value::Tensors(_))
        || matches!(v, Value::OptTensors(_))
}

#[cold]
fn too_many(op: &str, info: &CalleeInfo, given: usize) -> Error {
    let n = info.def.params.positional;
    Error::argument("TP1005", format!("takes at most {n} positional arguments, got {given}"))
        .with_op(op)
        .note(signature(info))
}

#[cold]
fn missing(op: &str, info: &CalleeInfo, slots: &Objects) -> Error {
    let names: Vec<String> = info
        .def
        .params
        .all
        .iter()
        .zip(slots)
        .filter(|(p, s)| p.default.is_none() && s.is_null())
        .map(|(p, _)| format!("'{}'", p.name))
        .collect();
    let plural = if names.len() == 1 { "" } else { "s" };
    Error::argument("TP1003", format!("missing argument{plural} {}", names.join(", ")))
        .with_op(op)
        .note(signature(info))
}

#[cold]
unsafe fn unknown_keyword(op: &str, info: &CalleeInfo, name: Obj) -> Error {
    // SAFETY: a live `str`.
    let text = unsafe { x::str_of(name) }.unwrap_or("?");
    let mut message = format!("unknown keyword argument '{text}'");
    if let Some(near) = info.def.params.closest(text) {
        message.push_str(&format!("; did you mean '{near}'?"));
    }
    Error::argument("TP1006", message).with_op(op).note(signature(info))
}

fn signature(info: &CalleeInfo) -> String {
    format!("declared as {}", info.def.schema)
}
