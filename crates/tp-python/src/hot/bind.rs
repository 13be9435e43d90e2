//! Python arguments to bound arguments: positions and keywords to schema slots, objects to values by the kind each
//! slot declares, defaults where nothing was given.

use super::convert;
use super::ffi::{self as x, Obj};
use super::{refusals, shell};
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
    /// Defaults as arguments, which borrow from `def`; None where an argument is required.
    values: Box<[Arg<'static>]>,
    /// From this argument on every one has a default.
    needed: usize,
    /// From this argument on no default is a list, and none is a device.
    lists: usize,
    devices: usize,
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
        let value = |p: &Param| {
            let value = p.default.as_ref().map_or(Arg::None, Value::as_arg);
            // SAFETY: the definition does not change, and the info keeps it for as long as this.
            unsafe { std::mem::transmute::<Arg<'_>, Arg<'static>>(value) }
        };
        let params = &def.params.all;
        let behind = |found: &dyn Fn(&Param) -> bool| params.iter().rposition(found).map_or(0, |i| i + 1);
        Rc::new(CalleeInfo {
            names,
            defaults: params.iter().map(default).collect(),
            values: params.iter().map(value).collect(),
            needed: behind(&|p| p.default.as_ref().is_none_or(looks_symbolic)),
            lists: behind(&|p| p.default.as_ref().is_some_and(is_list)),
            devices: behind(&|p| matches!(p.default, Some(Value::Device(_)))),
            def: def.clone(),
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

/// Room on the stack for the arguments of any usual op. It is not moved: whoever calls owns it.
const ROOM: usize = 32;
pub type Objects = SmallVec<[Obj; ROOM]>;
pub type Args<'a> = SmallVec<[Arg<'a>; ROOM]>;

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

    /// The positional arguments.
    ///
    /// # Safety
    /// The call lasts as long as the slice.
    unsafe fn positional(&self) -> &[Obj] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.args, self.nargs) }
    }

    fn keywords(&self) -> usize {
        if self.kwnames.is_null() {
            return 0;
        }
        // SAFETY: a tuple, by the calling convention.
        unsafe { ffi::PyTuple_Size(self.kwnames) as usize }
    }
}

/// Binds a call: an object and an argument per schema argument, defaults filled in. Returns how many arguments, from
/// the left, may say something about the call's keys; the others are defaults without a device.
///
/// # Safety
/// `given` follows the vectorcall convention; the interpreter lock is held; `scratch`, `info` and the objects outlive
/// the arguments.
#[inline]
pub unsafe fn bind<'a>(
    op: &str,
    info: &CalleeInfo,
    given: Given,
    objects: &mut Objects,
    args: &mut Args<'a>,
    scratch: &mut Scratch,
) -> Result<usize> {
    let (params, n) = (&info.def.params, given.nargs);
    // SAFETY: the caller's promise.
    unsafe {
        if given.keywords() > 0 || n < info.needed || n > params.positional {
            place(op, info, given, objects)?;
            convert(op, info, objects, args, scratch)?;
            return Ok(args.len());
        }
        // What was left out lies behind what was given, and is copied as it stands.
        objects.reserve_exact(params.len());
        args.reserve_exact(params.len());
        objects.extend_from_slice(std::slice::from_raw_parts(given.args, n));
        objects.extend_from_slice(&info.defaults[n..]);
        // Written in place: a push looks for room once per argument.
        let room = args.as_mut_ptr();
        for (i, p) in params.all[..n].iter().enumerate() {
            room.add(i).write(argument(op, p, given.at(i), scratch)?);
        }
        args.set_len(n);
        // A kernel may change the list that it gets; the default has to stay.
        scratch.converted |= n < info.lists;
        args.extend_from_slice(&info.values[n..]);
    }
    Ok(n.max(info.devices))
}

/// Puts every object into its schema slot; null where nothing was given.
///
/// # Safety
/// `given` follows the vectorcall convention; the interpreter lock is held.
pub unsafe fn place(op: &str, info: &CalleeInfo, given: Given, slots: &mut Objects) -> Result<()> {
    let params = &info.def.params;
    if given.nargs > params.positional {
        // SAFETY: the positional arguments, which the caller holds.
        return Err(unsafe { refusals::too_many(op, info, given.positional()) });
    }
    slots.resize(params.len(), ptr::null_mut());
    for (i, slot) in slots[..given.nargs].iter_mut().enumerate() {
        // SAFETY: below nargs.
        *slot = unsafe { given.at(i) };
    }
    for k in 0..given.keywords() {
        // SAFETY: a tuple of `str`, values follow the positional arguments.
        let (name, value) =
            unsafe { (ffi::PyTuple_GetItem(given.kwnames, k as isize), given.at(given.nargs + k)) };
        // SAFETY: live objects.
        let Some(i) = (unsafe { slot_of(info, name) }) else {
            // SAFETY: a live `str`.
            let text = unsafe { x::shown(name) };
            return Err(refusals::unknown_keyword(op, info, &text));
        };
        if !slots[i].is_null() {
            return Err(Error::argument(
                "TP1004",
                format!("argument '{}' was given twice", params.all[i].name),
            )
            .with_op(op)
            .note(refusals::signature(info)));
        }
        slots[i] = value;
    }
    Ok(())
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
/// The interpreter lock is held; `scratch`, `info` and the objects outlive the arguments.
unsafe fn convert<'a>(
    op: &str,
    info: &CalleeInfo,
    slots: &mut Objects,
    out: &mut Args<'a>,
    scratch: &mut Scratch,
) -> Result<()> {
    out.reserve_exact(slots.len());
    for (i, p) in info.def.params.all.iter().enumerate() {
        let obj = slots[i];
        if !obj.is_null() {
            // SAFETY: a live object; see above.
            out.push(unsafe { argument(op, p, obj, scratch)? });
            continue;
        }
        if p.default.is_none() {
            return Err(missing(op, info, slots));
        }
        slots[i] = info.defaults[i];
        // As in `bind`.
        scratch.converted |= p.default.as_ref().is_some_and(is_list);
        if p.default.as_ref().is_some_and(looks_symbolic) {
            // SAFETY: a live object, as any that was given.
            out.push(unsafe { convert::object_to_arg(op, p, slots[i], scratch)? });
            continue;
        }
        out.push(info.values[i]);
    }
    Ok(())
}

/// # Safety
/// As `convert::object_to_arg`.
#[inline(always)]
unsafe fn argument<'a>(op: &str, p: &Param, obj: Obj, scratch: &mut Scratch) -> Result<Arg<'a>> {
    // SAFETY: the caller's promise.
    unsafe {
        if p.kind == ParamKind::Tensor && shell::is_tensor(obj) {
            return Ok(Arg::Tensor(shell::tensor_of(obj)));
        }
        if p.kind == ParamKind::Float && x::type_of(obj) == &raw mut ffi::PyFloat_Type {
            return Ok(Arg::Float(ffi::PyFloat_AsDouble(obj)));
        }
        convert::object_to_arg(op, p, obj, scratch)
    }
}

fn is_list(v: &Value) -> bool {
    matches!(v, Value::Ints(_) | Value::Floats(_) | Value::Bools(_) | Value::Scalars(_) | Value::Tensors(_))
        || matches!(v, Value::OptTensors(_))
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
        .note(refusals::signature(info))
}
