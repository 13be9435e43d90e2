//! `repr(tensor)`: values in NumPy's layout, then dtype, device and gradient where they are not the usual ones.

use super::format::Style;
use super::values;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use crate::settle;
use crate::types;
use pyo3::ffi;
use std::fmt::Write;
use tp_dispatch::{Arg, Result};
use tp_tensor::promote::{DEFAULT_FLOAT, DEFAULT_INT};
use tp_tensor::{DType, Device, Dim, Scalar, Tensor};

/// More elements than this are summarised.
const THRESHOLD: i64 = 1000;
/// Items shown at each end of a summarised axis.
const EDGE: usize = 3;
const LINE_WIDTH: usize = 75;
const PREFIX: &str = "tensor(";

/// # Safety
/// A live tensor object, lock held.
pub unsafe fn text(op: Obj) -> Result<String> {
    // SAFETY: the caller's promise.
    let t = unsafe { shell::tensor_of(op) };
    settle::read(t, "TP4003", || "the values of a tensor were read by repr(x) or str(x)".to_string())?;
    if tp_graph::capture::active() {
        types::readable(t, "TP4003", "the values of a tensor were", "repr(x) or str(x)", types::KEEP)?;
    }
    let mut out = String::from(PREFIX);
    let hidden = t.is_fake() || t.device().is_meta() || !(t.device().is_cpu() || values_are_near(t));
    if hidden {
        out.push_str("...");
    } else {
        out.push_str(&body(t)?);
    }
    let mut facts = Vec::new();
    if hidden || t.numel() == 0 && t.ndim() != 1 {
        facts.push(format!("shape={}", shape(t)));
    }
    let usual = [DEFAULT_FLOAT, DEFAULT_INT, DType::Bool].contains(&t.dtype())
        && (t.numel() > 0 || t.dtype() == DEFAULT_FLOAT);
    if hidden || !usual {
        facts.push(format!("dtype={}", t.dtype()));
    }
    if t.device() != Device::CPU {
        facts.push(format!("device='{}'", t.device()));
    }
    // SAFETY: as above.
    facts.extend(unsafe { gradient(op, t) });
    if t.is_fake() {
        facts.push("fake".to_string());
    }
    append(&mut out, &facts);
    Ok(out)
}

/// The facts go to a line of their own where they do not fit.
fn append(out: &mut String, facts: &[String]) {
    let tail: String = facts.iter().fold(String::new(), |mut text, fact| {
        let _ = write!(text, ", {fact}");
        text
    });
    let last = out.len() - out.rfind('\n').map_or(0, |i| i + 1);
    if !facts.is_empty() && last + tail.len() + 1 > LINE_WIDTH && out.contains('\n') {
        let _ = write!(out, ",\n{}{}", " ".repeat(PREFIX.len()), tail.trim_start_matches(", "));
    } else {
        out.push_str(&tail);
    }
    out.push(')');
}

fn values_are_near(t: &Tensor) -> bool {
    tp_tensor::runtime::runtime(t.device()).is_ok()
}

fn shape(t: &Tensor) -> String {
    let sizes: Vec<String> = t.sizes().iter().map(|&s| Dim::from_raw(s).to_string()).collect();
    if sizes.len() == 1 { format!("({},)", sizes[0]) } else { format!("({})", sizes.join(", ")) }
}

/// `grad_fn=<...>` of a recorded result, `requires_grad=True` of a leaf.
unsafe fn gradient(op: Obj, t: &Tensor) -> Option<String> {
    if !t.requires_grad() {
        return None;
    }
    // SAFETY: attribute look-up on a live object; a missing attribute only means there is nothing to tell.
    unsafe {
        let grad_fn = ffi::PyObject_GetAttrString(op, c"grad_fn".as_ptr());
        if grad_fn.is_null() {
            ffi::PyErr_Clear();
            return Some("requires_grad=True".to_string());
        }
        let text = if grad_fn == ffi::Py_None() { None } else { text_of(grad_fn) };
        ffi::Py_DECREF(grad_fn);
        Some(text.map_or_else(|| "requires_grad=True".to_string(), |text| format!("grad_fn={text}")))
    }
}

unsafe fn text_of(object: Obj) -> Option<String> {
    // SAFETY: as above.
    unsafe {
        let text = ffi::PyObject_Repr(object);
        if text.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        let out = x::str_of(text).map(str::to_string);
        ffi::Py_DECREF(text);
        out
    }
}

/// Nested brackets of formatted elements.
struct Layout<'a> {
    sizes: &'a [i64],
    values: &'a [Scalar],
    style: Style,
    summarise: bool,
}

fn body(t: &Tensor) -> Result<String> {
    if t.numel() == 0 {
        return Ok("[]".to_string());
    }
    let summarise = t.numel() > THRESHOLD;
    let (sizes, values) = if summarise { corner(t)? } else { (t.sizes().to_vec(), values::elements(t)?) };
    let style = Style::of(t.dtype(), &values);
    let layout = Layout { sizes: t.sizes(), values: &values, style, summarise };
    if sizes.is_empty() {
        return Ok(layout.style.element(values[0]).trim().to_string());
    }
    let mut out = String::new();
    layout.write(&mut out, 0, 0, &sizes);
    Ok(out)
}

/// The elements that a summary shows: the edges of every long axis.
fn corner(t: &Tensor) -> Result<(Vec<i64>, Vec<Scalar>)> {
    let mut shown = t.detach();
    for axis in 0..t.ndim() {
        let n = shown.sizes()[axis];
        if n > 2 * EDGE as i64 {
            let edge = EDGE as i64;
            shown = edges(&shown, axis, edge, n)?;
        }
    }
    Ok((shown.sizes().to_vec(), values::elements(&shown)?))
}

/// First and last items of one axis.
fn edges(t: &Tensor, axis: usize, edge: i64, n: i64) -> Result<Tensor> {
    let places = Tensor::empty(&[2 * edge], DType::I64, Device::CPU)?;
    for (k, place) in (0..edge).chain(n - edge..n).enumerate() {
        // SAFETY: a fresh tensor of that many int64.
        unsafe { places.data_ptr().cast::<i64>().add(k).write(place) };
    }
    let mut indices = vec![None; axis];
    indices.push(Some(places));
    super::builtin::INDEX.run(&[Arg::Tensor(t), Arg::OptTensors(&indices)])
}

impl Layout<'_> {
    /// Depth is bounded by the rank of a tensor. `first` is the position of the first element in `values`.
    fn write(&self, out: &mut String, axis: usize, first: usize, shown: &[i64]) {
        let each = shown[axis + 1..].iter().product::<i64>() as usize;
        let n = shown[axis] as usize;
        let cut = self.summarise && self.sizes[axis] > 2 * EDGE as i64;
        let indent = PREFIX.len() + axis + 1;
        out.push('[');
        if axis + 1 == shown.len() {
            self.write_row(out, first, n, cut, indent, shown.len());
        } else {
            let blank = shown.len() - axis - 1;
            for i in 0..n {
                if i > 0 {
                    let _ = write!(out, ",{}{}", "\n".repeat(blank), " ".repeat(indent));
                }
                if cut && i == EDGE {
                    let _ = write!(out, "...,{}{}", "\n".repeat(blank), " ".repeat(indent));
                }
                self.write(out, axis + 1, first + i * each, shown);
            }
        }
        out.push(']');
    }

    fn write_row(&self, out: &mut String, first: usize, n: usize, cut: bool, indent: usize, closing: usize) {
        let mut column = indent;
        for i in 0..n {
            let mut items = vec![self.style.element(self.values[first + i])];
            if cut && i == EDGE {
                items.insert(0, "...".to_string());
            }
            for (k, item) in items.into_iter().enumerate() {
                if i + k > 0 {
                    let last = if i + 1 == n { closing } else { 1 };
                    if column + 2 + item.len() + last > LINE_WIDTH {
                        let _ = write!(out, ",\n{}", " ".repeat(indent));
                        column = indent;
                    } else {
                        out.push_str(", ");
                        column += 2;
                    }
                }
                column += item.len();
                out.push_str(&item);
            }
        }
    }
}
