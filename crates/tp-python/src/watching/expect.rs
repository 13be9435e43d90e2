//! What a location held when it was read: immutable values by type and bits, everything else by identity.

use super::api::Api;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use pyo3::ffi;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use tp_graph::guard::TensorGuard;

pub enum Expect {
    /// Nothing was there.
    Absent,
    /// This very object.
    Is(Py<PyAny>),
    /// A value of the same type and bits.
    Equal(Py<PyAny>),
    /// This very tensor; or one like it, once the entry fetches what stands there.
    Tensor { seen: Py<PyAny>, like: Box<TensorGuard>, moves: AtomicBool },
    /// A bound method, made anew by each read, of this function and object.
    Method { function: Py<PyAny>, of: Py<PyAny> },
    /// Whatever is computed from what other guards cover.
    Any,
}

/// # Safety
/// A live object, lock held.
pub unsafe fn owned(obj: Obj) -> Py<PyAny> {
    crate::error::attached(|py| unsafe { Bound::from_borrowed_ptr(py, obj).unbind() })
}

impl Expect {
    /// # Safety
    /// A live object or null, lock held; so below.
    pub unsafe fn of(api: &Api, value: Obj) -> Expect {
        unsafe {
            if value.is_null() {
                return Expect::Absent;
            }
            if is_immutable(value, 0) {
                return Expect::Equal(owned(value));
            }
            if x::type_of(value) == api.method_type {
                let (function, of) = ((api.method_function)(value), (api.method_self)(value));
                return Expect::Method { function: owned(function), of: owned(of) };
            }
            if shell::is_tensor(value) && !shell::tensor_of(value).is_fake() {
                let like = Box::new(TensorGuard::of(shell::tensor_of(value)));
                return Expect::Tensor { seen: owned(value), like, moves: AtomicBool::new(false) };
            }
            Expect::Is(owned(value))
        }
    }

    /// Whether it is told by one object, or none, standing at the place. That an object is the same is not all of a tensor.
    pub fn is_one_object(&self) -> bool {
        !matches!(self, Expect::Method { .. } | Expect::Any)
    }

    /// The object of the capture; null where nothing was there, or no one object tells.
    pub fn object(&self) -> Obj {
        match self {
            Expect::Is(seen) | Expect::Equal(seen) | Expect::Tensor { seen, .. } => seen.as_ptr(),
            Expect::Absent | Expect::Method { .. } | Expect::Any => std::ptr::null_mut(),
        }
    }

    #[inline]
    pub unsafe fn holds(&self, api: &Api, value: Obj) -> bool {
        unsafe {
            match self {
                Expect::Absent => value.is_null(),
                Expect::Is(seen) => seen.as_ptr() == value,
                Expect::Equal(seen) => {
                    seen.as_ptr() == value || !value.is_null() && same_bits(seen.as_ptr(), value)
                }
                Expect::Method { function, of } => {
                    !value.is_null()
                        && x::type_of(value) == api.method_type
                        && (api.method_function)(value) == function.as_ptr()
                        && (api.method_self)(value) == of.as_ptr()
                }
                Expect::Tensor { seen, like, moves } => {
                    if moves.load(Ordering::Relaxed) {
                        !value.is_null() && shell::is_tensor(value) && like.holds(shell::tensor_of(value))
                    } else {
                        seen.as_ptr() == value
                    }
                }
                Expect::Any => !value.is_null(),
            }
        }
    }

    pub fn each(&self, f: &mut dyn FnMut(Obj)) {
        match self {
            Expect::Absent | Expect::Any => {}
            Expect::Is(seen) | Expect::Equal(seen) | Expect::Tensor { seen, .. } => f(seen.as_ptr()),
            Expect::Method { function, of } => {
                f(function.as_ptr());
                f(of.as_ptr());
            }
        }
    }

    pub unsafe fn text(&self, name: &str) -> String {
        match self {
            Expect::Absent => format!("{name} does not exist"),
            Expect::Any => format!("{name} exists"),
            Expect::Method { .. } => format!("{name} is the method of the capture"),
            Expect::Equal(seen) => {
                let is = if is_singleton(seen.as_ptr()) { "is" } else { "==" };
                format!("{name} {is} {}", unsafe { shown(seen.as_ptr()) })
            }
            Expect::Tensor { moves, .. } if moves.load(Ordering::Relaxed) => {
                format!("{name} is a tensor like that of the capture")
            }
            Expect::Tensor { .. } => format!("{name} is the tensor of the capture"),
            Expect::Is(seen) => format!("{name} is the {} of the capture", unsafe { kind(seen.as_ptr()) }),
        }
    }
}

/// What was found instead, for a report.
///
/// # Safety
/// A live object or null, lock held.
pub unsafe fn found(value: Obj) -> String {
    unsafe {
        if value.is_null() {
            return "nothing".to_string();
        }
        if is_immutable(value, 0) { shown(value) } else { format!("another {}", kind(value)) }
    }
}

/// The type's name, tensors in lower case: as a noun.
unsafe fn kind(obj: Obj) -> String {
    unsafe { if shell::is_tensor(obj) { "tensor".to_string() } else { x::type_name(obj) } }
}

const MOST_SHOWN: usize = 60;

unsafe fn shown(obj: Obj) -> String {
    // Of immutable values of Python's own: no code of the user runs.
    let text = crate::error::attached(|py| {
        let obj: Bound<'_, PyAny> = unsafe { Bound::from_borrowed_ptr(py, obj) };
        obj.repr().map_or_else(|_| "?".to_string(), |r| r.to_string_lossy().into_owned())
    });
    match text.char_indices().nth(MOST_SHOWN) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}

fn is_singleton(obj: Obj) -> bool {
    // SAFETY: addresses alone are compared.
    unsafe { obj == ffi::Py_None() || obj == ffi::Py_True() || obj == ffi::Py_False() }
}

const DEPTH: usize = 8;

/// Whether an object is a value of a built-in type that nothing can change, through and through.
pub unsafe fn is_immutable(obj: Obj, depth: usize) -> bool {
    unsafe {
        let ty = x::type_of(obj);
        if is_singleton(obj)
            || ty == &raw mut ffi::PyLong_Type
            || ty == &raw mut ffi::PyFloat_Type
            || ty == &raw mut ffi::PyComplex_Type
            || ty == &raw mut ffi::PyUnicode_Type
            || ty == &raw mut ffi::PyBytes_Type
        {
            return true;
        }
        if ty != &raw mut ffi::PyTuple_Type || depth > DEPTH {
            return false;
        }
        (0..ffi::PyTuple_Size(obj)).all(|i| is_immutable(ffi::PyTuple_GetItem(obj, i), depth + 1))
    }
}

/// Whether there may be several objects of an immutable value: none of singletons, small integers, and text and bytes of
/// one character, which the interpreter keeps.
///
/// # Safety
/// A live object, lock held.
pub unsafe fn may_be_two(obj: Obj) -> bool {
    unsafe {
        let ty = x::type_of(obj);
        if is_singleton(obj) || !is_immutable(obj, 0) {
            return false;
        }
        if ty == &raw mut ffi::PyLong_Type {
            let (mut overflow, kept) = (0, -5..=256);
            let value = ffi::PyLong_AsLongAndOverflow(obj, &raw mut overflow);
            return overflow != 0 || !kept.contains(&value);
        }
        let is_sized = ty == &raw mut ffi::PyUnicode_Type || ty == &raw mut ffi::PyBytes_Type;
        if is_sized && ffi::PyObject_Size(obj) == 1 {
            return ty == &raw mut ffi::PyUnicode_Type
                && x::str_of(obj).is_none_or(|s| s.chars().any(|c| c > '\u{ff}'));
        }
        let is_holder = is_sized || ty == &raw mut ffi::PyTuple_Type;
        !is_holder || ffi::PyObject_Size(obj) > 0
    }
}

/// Of two values for which `is_immutable` holds of the first.
unsafe fn same_bits(a: Obj, b: Obj) -> bool {
    unsafe {
        let ty = x::type_of(a);
        if a == b {
            return true;
        }
        if ty != x::type_of(b) || is_singleton(a) || is_singleton(b) {
            return false;
        }
        if ty == &raw mut ffi::PyFloat_Type {
            return ffi::PyFloat_AsDouble(a).to_bits() == ffi::PyFloat_AsDouble(b).to_bits();
        }
        if ty == &raw mut ffi::PyComplex_Type {
            return ffi::PyComplex_RealAsDouble(a).to_bits() == ffi::PyComplex_RealAsDouble(b).to_bits()
                && ffi::PyComplex_ImagAsDouble(a).to_bits() == ffi::PyComplex_ImagAsDouble(b).to_bits();
        }
        if ty == &raw mut ffi::PyTuple_Type {
            let n = ffi::PyTuple_Size(a);
            return n == ffi::PyTuple_Size(b)
                && (0..n).all(|i| same_bits(ffi::PyTuple_GetItem(a, i), ffi::PyTuple_GetItem(b, i)));
        }
        // Integers, text and bytes: no code of the user.
        ffi::PyObject_RichCompareBool(a, b, ffi::Py_EQ) == 1
    }
}

/// Whether two objects are one, or immutable values of the same type and bits.
///
/// # Safety
/// Live objects, lock held.
pub unsafe fn same_value(a: Obj, b: Obj) -> bool {
    unsafe { a == b || is_immutable(a, 0) && is_immutable(b, 0) && same_bits(a, b) }
}
