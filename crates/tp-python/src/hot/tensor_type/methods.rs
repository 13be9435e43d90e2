//! Methods called often, as method descriptors: ops with the tensor as their first argument, and a few facts of its
//! memory. All others are Python functions installed by `tensorplay._tensor`.

use super::{memory, scalar};
use crate::hot::bind::{Given, Objects};
use crate::hot::ffi::{self as x, Obj};
use crate::hot::packet::{self, Packet};
use crate::hot::{convert, ret, shell};
use pyo3::ffi;
use smallvec::SmallVec;
use std::ffi::CString;
use std::sync::{Arc, OnceLock};
use tp_dispatch::bind::{ParamKind, Params};
use tp_dispatch::dispatcher::{ArgKeys, Session};
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, Error, OpDef, OpHandle, Registry, Result, Value};
use tp_tensor::Dim;

/// How positional arguments are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    /// `x.reshape(2, 3)` is `x.reshape((2, 3))`.
    Shape,
}

struct Row {
    name: &'static str,
    op: &'static str,
    style: Style,
    function: unsafe extern "C" fn(Obj, *const Obj, isize, Obj) -> Obj,
}

macro_rules! methods {
    ($($style:ident: $($name:ident $(= $op:literal)?),* ;)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[derive(Clone, Copy)]
        enum At { $($($name),*),* }
        $($(unsafe extern "C" fn $name(op: Obj, args: *const Obj, nargs: isize, kwnames: Obj) -> Obj {
            // SAFETY: called by CPython on a tensor by the fastcall convention.
            unsafe { invoke(At::$name as usize, op, args, nargs as usize, kwnames) }
        })*)*
        static ROWS: &[Row] = &[$($(Row {
            name: stringify!($name),
            op: methods!(@op $name $($op)?),
            style: Style::$style,
            function: $name,
        }),*),*];
    };
    (@op $name:ident) => { stringify!($name) };
    (@op $name:ident $op:literal) => { $op };
}

methods! {
    Plain:
        sum, mean, max, min, argmax, argmin, any, all, prod, var, std, logsumexp, cumsum, softmax, log_softmax,
        exp, exp2, expm1, log, log1p, log2, log10, sqrt, rsqrt, reciprocal, square, abs, neg, sign, sin, cos, tan,
        asin, acos, atan, sinh, cosh, tanh, asinh, acosh, atanh, erf, sigmoid, relu, silu, floor, ceil, trunc, round,
        isnan, isinf, isfinite, logical_not, add, sub, mul, div, pow, floor_divide, remainder, maximum, minimum,
        atan2, matmul, eq, ne, lt, le, gt, ge, logical_and, logical_or, logical_xor, bitwise_and, bitwise_or,
        bitwise_xor, add_, sub_, mul_, div_, pow_, floor_divide_, remainder_, copy_, fill_, zero_, index_put_,
        astype, clone, contiguous, detach, transpose, unsqueeze, take, index_select, gather, scatter_add, index_add,
        masked_fill, tril, triu, nonzero;
    Shape:
        reshape, view, permute = "permute_dims", expand, squeeze, flip, new_empty, new_zeros;
}

/// A method's op, and its definition at import with the arguments that it has defaults for.
struct Method {
    packet: Packet,
    def: Arc<OpDef>,
    /// None where a default has to be looked up at every call.
    defaults: Option<[Arg<'static>; FEW]>,
    /// How many parameters it has; bit k of `fits`: k arguments may be given.
    len: usize,
    fits: u32,
}

/// Packets are touched with the interpreter lock held only.
struct Packets(Vec<Method>);

// SAFETY: see above.
unsafe impl Send for Packets {}
// SAFETY: see above.
unsafe impl Sync for Packets {}

static PACKETS: OnceLock<Packets> = OnceLock::new();

/// Looks the ops up, once, at import.
pub fn resolve() -> Result<()> {
    let mut known = Registry::global().list(Some("tp"));
    known.sort_by_key(|op| op.id());
    let packets = ROWS.iter().map(|row| method_of(row, &known)).collect::<Result<_>>()?;
    PACKETS.get_or_init(|| Packets(packets));
    Ok(())
}

fn method_of(row: &Row, known: &[OpHandle]) -> Result<Method> {
    let name = format!("tp::{}", row.op);
    let overload = format!("{name}.");
    let ops: Vec<OpHandle> =
        known.iter().copied().filter(|op| op.name() == name || op.name().starts_with(&overload)).collect();
    let first = match ops.first() {
        Some(op) => *op,
        None => Registry::global().lookup(&name)?,
    };
    let packet = Packet::new(&name, &ops);
    let def =
        first.def().ok_or_else(|| Error::internal("TP9005", "a method without an op").with_op(&name))?;
    let defaults = simple_defaults(&def);
    let params = &def.params;
    let fits = (0..=params.len().min(FEW)).filter(|&k| may_give(params, k)).fold(0, |bits, k| bits | 1 << k);
    let len = params.len().min(FEW);
    Ok(Method { packet, defaults, len, fits, def })
}

/// Whether the first `given` arguments may be a tensor and, behind it, sizes.
fn may_give(params: &Params, given: usize) -> bool {
    let counts = params.required <= given && given <= params.len() && params.len() <= FEW;
    counts && (given <= 1 || params.all[1].kind == ParamKind::Ints)
}

/// One argument per parameter: its default, where every default is a plain value.
fn simple_defaults(def: &OpDef) -> Option<[Arg<'static>; FEW]> {
    let mut args = [Arg::None; FEW];
    if def.params.len() > FEW {
        return None;
    }
    for (slot, p) in args.iter_mut().zip(&def.params.all) {
        *slot = match p.default.as_ref() {
            None | Some(Value::None) => Arg::None,
            Some(Value::Bool(v)) => Arg::Bool(*v),
            Some(Value::Int(v)) => Arg::Int(*v),
            Some(Value::Float(v)) => Arg::Float(*v),
            Some(Value::Scalar(v)) => Arg::Scalar(*v),
            Some(_) => return None,
        };
    }
    Some(args)
}

#[inline(always)]
unsafe fn invoke(i: usize, op: Obj, args: *const Obj, nargs: usize, kwnames: Obj) -> Obj {
    // SAFETY: the fastcall convention.
    ret::guard(|| unsafe {
        let method = &PACKETS.get().unwrap_or_else(|| unreachable!("resolved before the type was made")).0[i];
        let packet = &method.packet;
        let style = ROWS[i].style;
        if kwnames.is_null() {
            let tensor = Arg::Tensor(shell::tensor_of(op));
            let done = match (style, nargs) {
                (_, 0) => defaulted(method, &[tensor]),
                (Style::Shape, _) => {
                    ints(args, nargs).and_then(|v| defaulted(method, &[tensor, Arg::Ints(&v)]))
                }
                _ => None,
            };
            if let Some(done) = done {
                return done;
            }
        }
        with_arguments(packet, style, op, args, nargs, kwnames)
    })
}

/// The most arguments that are filled in without an allocation.
const FEW: usize = 8;

/// `x.sum()`, `x.reshape(2, 3)`: every argument not given is its default. None where that is not the whole call.
#[inline(always)]
unsafe fn defaulted(method: &Method, given: &[Arg<'_>]) -> Option<Result<Obj>> {
    let op = method.packet.first();
    let session = match Session::open(op) {
        Ok(session) => session,
        Err(e) => return Some(Err(e)),
    };
    let mut args = [Arg::None; FEW];
    let len = match &method.defaults {
        Some(known) if Arc::ptr_eq(&method.def, session.def()) => {
            if method.fits >> given.len() & 1 == 0 {
                return None;
            }
            // Copied in pieces of a fixed size: a copy of all would be a call.
            args[..FEW / 2].copy_from_slice(&known[..FEW / 2]);
            if method.len > FEW / 2 {
                args[FEW / 2..].copy_from_slice(&known[FEW / 2..]);
            }
            method.len
        }
        _ => {
            let params = &session.def().params;
            if !may_give(params, given.len()) {
                return None;
            }
            args = looked_up(params, given.len())?;
            params.len()
        }
    };
    args[..given.len()].copy_from_slice(given);
    // SAFETY: lock held; no default is a tensor.
    Some(unsafe { packet::run_keyed(&session, op, ArgKeys::of(given), &args[..len], HostArgs::NONE) })
}

/// The defaults of the parameters that were not given.
fn looked_up(params: &Params, given: usize) -> Option<[Arg<'_>; FEW]> {
    let mut args = [Arg::None; FEW];
    for (slot, p) in args.iter_mut().zip(&params.all).skip(given) {
        *slot = p.default.as_ref()?.as_arg();
    }
    Some(args)
}

/// Ints given one by one, or as one tuple or list; None for anything else.
unsafe fn ints(args: *const Obj, nargs: usize) -> Option<SmallVec<[i64; FEW]>> {
    let int = |o: Obj| {
        // SAFETY: a live object; only real ints are read here.
        unsafe {
            (x::type_of(o) == &raw mut ffi::PyLong_Type)
                .then(|| convert::int(o).ok().flatten())
                .flatten()
                // Others are errors that name the argument.
                .filter(|v| !Dim::from_raw(*v).is_symbol())
        }
    };
    // SAFETY: the fastcall convention; items are borrowed from the live argument.
    unsafe {
        let first = *args;
        if nargs == 1 && ffi::PyTuple_Check(first) != 0 {
            return (0..ffi::PyTuple_Size(first)).map(|i| int(ffi::PyTuple_GetItem(first, i))).collect();
        }
        std::slice::from_raw_parts(args, nargs).iter().map(|&o| int(o)).collect()
    }
}

unsafe fn with_arguments(
    packet: &Packet,
    style: Style,
    object: Obj,
    args: *const Obj,
    nargs: usize,
    kwnames: Obj,
) -> Result<Obj> {
    // SAFETY: the fastcall convention: keyword values follow the positional ones.
    unsafe {
        let keywords = if kwnames.is_null() { 0 } else { ffi::PyTuple_Size(kwnames) as usize };
        let given =
            std::slice::from_raw_parts(if args.is_null() { [].as_ptr() } else { args }, nargs + keywords);
        let mut all = Objects::new();
        all.push(object);
        if style == Style::Plain || nargs == 0 || is_sequence(given[0]) {
            all.extend_from_slice(given);
            return packet::call(packet, Given { args: all.as_ptr(), nargs: nargs + 1, kwnames });
        }
        let shape = ffi::PyTuple_New(nargs as isize);
        for (i, &size) in given[..nargs].iter().enumerate() {
            ffi::PyTuple_SetItem(shape, i as isize, ffi::Py_NewRef(size));
        }
        all.push(shape);
        all.extend_from_slice(&given[nargs..]);
        let out = packet::call(packet, Given { args: all.as_ptr(), nargs: 2, kwnames });
        ffi::Py_DECREF(shape);
        out
    }
}

unsafe fn is_sequence(obj: Obj) -> bool {
    // SAFETY: a live object.
    unsafe { obj == ffi::Py_None() || ffi::PyTuple_Check(obj) != 0 || ffi::PyList_Check(obj) != 0 }
}

type NoArgs = unsafe extern "C" fn(Obj, Obj) -> Obj;
type FastCall = unsafe extern "C" fn(Obj, *const Obj, isize, Obj) -> Obj;

fn no_args(name: &str, function: NoArgs, doc: &str) -> ffi::PyMethodDef {
    entry(
        name,
        ffi::PyMethodDefPointer { PyCFunction: function },
        ffi::METH_NOARGS,
        &format!("{name}($self, /)\n--\n\n{doc}"),
    )
}

fn fast(name: &str, function: FastCall, doc: &str) -> ffi::PyMethodDef {
    let flags = ffi::METH_FASTCALL | ffi::METH_KEYWORDS;
    entry(name, ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: function }, flags, doc)
}

/// Names and texts of methods live as long as the type: for ever.
fn entry(name: &str, ml_meth: ffi::PyMethodDefPointer, ml_flags: i32, doc: &str) -> ffi::PyMethodDef {
    let leak = |text: &str| CString::new(text.replace('\0', "")).unwrap_or_default().into_raw().cast_const();
    ffi::PyMethodDef { ml_name: leak(name), ml_meth, ml_flags, ml_doc: leak(doc) }
}

/// `sum($self, /, axis=None, *, keepdims=False)`, then the function that says the rest, and the schema.
fn doc(name: &str, def: &OpDef) -> String {
    let params = &def.params;
    let mut parts = vec!["$self".to_string(), "/".to_string()];
    for (i, p) in params.all.iter().enumerate().skip(1) {
        if i == params.positional {
            parts.push("*".to_string());
        }
        parts.push(match &p.default {
            Some(v) => format!("{}={v:?}", p.name),
            None => p.name.to_string(),
        });
    }
    let schema = def.schema.to_string();
    let op = schema.split(['.', '(']).next().unwrap_or(name).replace("::", ".");
    format!("{name}({})\n--\n\n`{op}` with this tensor as its first operand.\n\n{schema}", parts.join(", "))
}

/// The table of the type, ended by an empty entry.
pub fn table() -> *mut ffi::PyMethodDef {
    let methods = PACKETS.get().map_or(&[][..], |p| &p.0);
    let mut all: Vec<ffi::PyMethodDef> = ROWS
        .iter()
        .zip(methods)
        .map(|(row, method)| fast(row.name, row.function, &doc(row.name, &method.def)))
        .collect();
    all.extend([
        no_args("item", scalar::item, "The value of a one-element tensor as a Python number."),
        no_args("__complex__", scalar::complex, "The value of a one-element tensor as a complex number."),
    ]);
    all.extend(memory::methods(no_args, fast));
    all.extend(super::tape::methods());
    // SAFETY: the terminator is all zeros.
    all.push(unsafe { std::mem::zeroed() });
    Box::leak(all.into_boxed_slice()).as_mut_ptr()
}
