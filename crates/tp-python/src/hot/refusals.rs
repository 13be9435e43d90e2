//! What is said of arguments that do not fit: in the words of the caller's language, with the way out. All of it is
//! cold. Not here: what fits, which is `convert`'s and `bind`'s to know.

use super::bind::CalleeInfo;
use super::ffi::{self as x, Obj};
use super::nested;
use super::{convert, keywords, shell};
use crate::{error, types};
use pyo3::ffi;
use pyo3::prelude::*;
use tp_dispatch::bind::{Param, ParamKind};
use tp_dispatch::{Error, ErrorKind};

/// Names op and argument in an error of one object's conversion.
#[cold]
pub fn about(op: &str, p: &Param, e: Error) -> Error {
    if e.kind() != ErrorKind::Argument || e.op().is_some() {
        return e.with_op(op);
    }
    let message = format!("argument '{}' ({}): {}", p.name, p.type_text, e.message());
    let named = Error::argument(e.code(), message).with_op(op);
    e.notes().iter().fold(named, |named, note| named.note(note.as_str()))
}

/// An object that is not of the kind the parameter takes.
///
/// # Safety
/// Live object, lock held.
#[cold]
pub unsafe fn wrong(op: &str, p: &Param, obj: Obj) -> Error {
    // SAFETY: live object throughout.
    unsafe {
        let got = x::type_name(obj);
        let message = format!("argument '{}' must be {}, got {got}", p.name, p.type_text);
        let e = Error::argument("TP1002", message).with_op(op);
        match way_out(op, p, obj, &got) {
            Some(way) => e.note(way),
            None => e,
        }
    }
}

unsafe fn way_out(op: &str, p: &Param, obj: Obj, got: &str) -> Option<String> {
    // SAFETY: live object throughout.
    unsafe {
        let is_list = matches!(p.kind, ParamKind::Tensors | ParamKind::OptTensors);
        if got == "generator" && p.type_text.starts_with("list[") {
            return Some("a generator is consumed by reading it: pass list(...)".into());
        }
        if is_list && shell::is_tensor(obj) {
            return Some("pass a list: [x]".into());
        }
        match p.kind {
            ParamKind::Tensor => foreign_array(obj).or_else(|| no_tensor(op, p, got)),
            _ if is_list => foreign_array(obj),
            ParamKind::DType => Some(types::dtype_hint(obj)),
            ParamKind::Str if convert::is_str(obj) => {
                Some("it holds a lone surrogate, which is no character".into())
            }
            _ => nested::stand_in(p),
        }
    }
}

/// How to turn a known foreign array into a tensor.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn foreign_array(obj: Obj) -> Option<String> {
    // SAFETY: attribute look-ups on a live object.
    unsafe {
        if ffi::PyObject_HasAttrString(obj, c"__dlpack__".as_ptr()) == 0 {
            return None;
        }
        let got = x::type_name(obj);
        let by = if got == "ndarray" { "from_numpy" } else { "from_dlpack" };
        Some(format!("a foreign array ({got}) converts with tensorplay.{by}(x)"))
    }
}

/// The way out for a number or a text where a Tensor was declared. Where the author of an op left the annotation out, it
/// is the annotation.
fn no_tensor(op: &str, p: &Param, got: &str) -> Option<String> {
    if !matches!(got, "int" | "float" | "bool" | "str") {
        return None;
    }
    let name = &p.name;
    if lacks_annotation(op, name) {
        return Some(format!(
            "a parameter without annotation is a Tensor: write `{name}: {got}` in the function of {op} to pass numbers or text"
        ));
    }
    (got != "str").then(|| format!("'{name}' takes tensors only: wrap the value with tensorplay.tensor(...)"))
}

/// Whether the author's function has the parameter, without an annotation.
fn lacks_annotation(op: &str, parameter: &str) -> bool {
    error::attached(|py| {
        let asked = py
            .import("tensorplay._record")
            .and_then(|m| m.call_method1("lacks_annotation", (op, parameter)))
            .and_then(|found| found.extract::<bool>());
        // A function that cannot be looked at explains nothing.
        asked.unwrap_or(false)
    })
}

/// Item `index` of a list that is not of the element type.
///
/// # Safety
/// Live object, lock held.
#[cold]
pub unsafe fn wrong_element(op: &str, p: &Param, index: usize, obj: Obj) -> Error {
    // SAFETY: live object throughout.
    unsafe {
        let got = x::type_name(obj);
        let article = if got.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
        let message =
            format!("argument '{}' must be {}, but its item {index} is {article} {got}", p.name, p.type_text);
        let e = Error::argument("TP1009", message).with_op(op);
        match (p.kind, foreign_array(obj)) {
            (ParamKind::Tensors | ParamKind::OptTensors, Some(way)) if !shell::is_tensor(obj) => e.note(way),
            _ => e,
        }
    }
}

/// A list of another length than declared.
#[cold]
pub fn wrong_length(op: &str, p: &Param, size: u32, n: usize) -> Error {
    let message = format!("argument '{}' must be {}: a list of {size}, got {n} items", p.name, p.type_text);
    Error::argument("TP1033", message).with_op(op)
}

/// More positional arguments than there are places.
///
/// # Safety
/// Live objects, lock held.
#[cold]
pub unsafe fn too_many(op: &str, info: &CalleeInfo, given: &[Obj]) -> Error {
    let params = &info.def.params;
    let (n, got) = (params.positional, given.len());
    let most = tp_tensor::counted(n, "positional argument");
    let e = Error::argument("TP1005", format!("takes at most {most}, got {got}")).with_op(op);
    // SAFETY: live objects.
    let numbers = || given.iter().all(|o| unsafe { matches!(convert::int(*o), Ok(Some(_))) });
    let sizes = params.all.first().is_some_and(|p| p.kind == ParamKind::Ints) && numbers();
    let e = match sizes {
        true => e.note("sizes go in one tuple, as in ones((2, 3))"),
        false => e,
    };
    e.note(signature(info))
}

/// A keyword that is no parameter.
#[cold]
pub fn unknown_keyword(op: &str, info: &CalleeInfo, text: &str) -> Error {
    let (near, note) = keywords::instead(op, &info.def.params, text);
    let near = near.map(|near| format!("; did you mean '{near}'?")).unwrap_or_default();
    let e = Error::argument("TP1006", format!("unknown keyword argument '{text}'{near}")).with_op(op);
    let e = match note {
        Some(note) => e.note(note),
        None => e,
    };
    e.note(signature(info))
}

/// The op as people call it.
pub fn signature(info: &CalleeInfo) -> String {
    format!("declared as {}{}", info.def.schema.name(), info.def.schema.python_signature())
}
