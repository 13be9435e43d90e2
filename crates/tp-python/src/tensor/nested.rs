//! Nested Python sequences of numbers as one flat list with a shape. Ragged data is an error that names the place.
//! Python's own numbers are weak; NumPy scalars, tensors and the items of arrays bring a dtype.

use super::buffers;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::{convert, shell};
use crate::{error, types};
use pyo3::Bound;
use pyo3::ffi;
use pyo3::types::PyAnyMethods;
use std::fmt::Write;
use tp_dispatch::{Error, Result};
use tp_tensor::dtype::Category;
use tp_tensor::layout::MAX_DIMS;
use tp_tensor::promote::{default_dtype, promote_types, promote_weak};
use tp_tensor::{DType, Dims, Scalar};

/// Numbers in row-major order.
pub struct Nested {
    pub sizes: Dims,
    pub values: Vec<Scalar>,
    /// What the numbers with a dtype of their own promote to.
    typed: Option<DType>,
    /// The widest kind among the others.
    weak: Option<Category>,
    /// The dtype object that was met last, and what it stands for: an array has one for all of its items.
    last: Option<(Held, Option<DType>)>,
    /// Whether dtypes are asked for: nobody said what the numbers are stored as.
    ask: bool,
}

impl Nested {
    /// The dtype of the numbers together, by the rules of tensors beside Python numbers; None for no numbers.
    pub fn dtype(&self) -> Option<DType> {
        match (self.typed, self.weak) {
            (Some(typed), Some(kind)) => Some(promote_weak(typed, kind)),
            (typed, weak) => typed.or_else(|| weak.map(default_dtype)),
        }
    }

    fn push(&mut self, s: Scalar, own: Option<DType>) {
        match own {
            Some(dtype) => self.typed = Some(self.typed.map_or(dtype, |d| promote_types(d, dtype))),
            None => self.weak = self.weak.max(Some(s.category())),
        }
        self.values.push(s);
    }

    /// The dtype that a number or a row brings; None for a Python number, and for an integer of a width that has no dtype
    /// here.
    ///
    /// # Safety
    /// Live object, lock held.
    unsafe fn own_dtype(&mut self, obj: Obj) -> Result<Option<DType>> {
        // SAFETY: a live object, lock held; a tensor is asked for what it is.
        unsafe {
            if shell::is_tensor(obj) {
                return Ok(Some(shell::tensor_of(obj).dtype()));
            }
            let described = ffi::PyObject_GetAttrString(obj, c"dtype".as_ptr());
            if described.is_null() {
                ffi::PyErr_Clear();
                return Ok(None);
            }
            let described = Held(described);
            match &self.last {
                Some((seen, dtype)) if seen.0 == described.0 => Ok(*dtype),
                _ => {
                    let dtype = error::attached(|py| {
                        buffers::dtype_named(&Bound::from_borrowed_ptr(py, described.0))
                    })?;
                    self.last = Some((described, dtype));
                    Ok(dtype)
                }
            }
        }
    }
}

/// One list on the way down: an owned fast sequence and the position in it.
struct Level {
    list: Obj,
    len: isize,
    next: isize,
}

impl Drop for Level {
    fn drop(&mut self) {
        // SAFETY: an owned reference, lock held.
        unsafe { ffi::Py_DECREF(self.list) };
    }
}

/// A reference of ours to one item.
struct Held(Obj);

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: an owned reference, lock held.
        unsafe { ffi::Py_DECREF(self.0) };
    }
}

/// The numbers of `data`; with `ask` their dtypes too.
///
/// # Safety
/// Live object, lock held.
pub unsafe fn read(data: Obj, ask: bool) -> Result<Nested> {
    let mut out = Nested { sizes: Dims::new(), values: Vec::new(), typed: None, weak: None, last: None, ask };
    let mut levels: Vec<Level> = Vec::new();
    // The rank is settled by the first number or the first empty list.
    let mut rank = None;
    // SAFETY: live objects; items are borrowed from lists that `levels` owns.
    unsafe {
        enter_or_push(data, &mut out, &mut levels, &mut rank)?;
        while let Some(level) = levels.last_mut() {
            if level.next == level.len {
                levels.pop();
                continue;
            }
            let item = ffi::PyList_GetItem(level.list, level.next);
            level.next += 1;
            if item.is_null() {
                return Err(error::fetch());
            }
            // Held: reading it may run code that takes it out of its list.
            let item = Held(ffi::Py_NewRef(item));
            enter_or_push(item.0, &mut out, &mut levels, &mut rank)?;
        }
    }
    Ok(out)
}

/// A number. That of a tensor is copied, whatever history the tensor has.
unsafe fn number(obj: Obj) -> Result<Option<Scalar>> {
    // SAFETY: a live object.
    unsafe {
        if shell::is_tensor(obj) && shell::tensor_of(obj).ndim() == 0 {
            return types::item(shell::tensor_of(obj)).map(Some);
        }
        convert::number(obj)
    }
}

unsafe fn enter_or_push(
    obj: Obj,
    out: &mut Nested,
    levels: &mut Vec<Level>,
    rank: &mut Option<usize>,
) -> Result<()> {
    // SAFETY: a live object.
    unsafe {
        let depth = levels.len();
        let own = if out.ask && !is_plain(obj) { out.own_dtype(obj)? } else { None };
        let number = match number(obj)? {
            None => number_of_array(obj, levels)?,
            some => some,
        };
        if let Some(s) = number {
            if *rank.get_or_insert(depth) != depth {
                return Err(ragged(
                    levels,
                    "is a number",
                    &format!("a sequence of length {}", out.sizes[depth]),
                ));
            }
            out.push(s, own);
            return Ok(());
        }
        let level = enter(obj, levels)?;
        if rank.is_some_and(|r| depth >= r) {
            return Err(ragged(levels, "is a sequence", "a number"));
        }
        match out.sizes.get(depth) {
            Some(&size) if size as isize != level.len => {
                let got = format!("has length {}", level.len);
                return Err(ragged(levels, &got, &format!("length {size}")));
            }
            Some(_) => {}
            None => out.sizes.push(level.len as i64),
        }
        if level.len == 0 {
            rank.get_or_insert(depth + 1);
        }
        levels.push(level);
        Ok(())
    }
}

/// Whether it is one of Python's own numbers or lists, which bring no dtype.
unsafe fn is_plain(obj: Obj) -> bool {
    // SAFETY: a live object.
    let ty = unsafe { x::type_of(obj) };
    ty == &raw mut ffi::PyFloat_Type
        || ty == &raw mut ffi::PyLong_Type
        || ty == &raw mut ffi::PyBool_Type
        || ty == &raw mut ffi::PyList_Type
        || ty == &raw mut ffi::PyTuple_Type
}

/// The one number of an array of no dimensions, which calls itself a sequence and has no length.
unsafe fn number_of_array(obj: Obj, levels: &[Level]) -> Result<Option<Scalar>> {
    // SAFETY: a live object, lock held; `item` is owned.
    unsafe {
        if ffi::PyObject_HasAttrString(obj, c"__array__".as_ptr()) == 0 || shell::is_tensor(obj) {
            return Ok(None);
        }
        if ffi::PyObject_Size(obj) >= 0 {
            return Ok(None);
        }
        ffi::PyErr_Clear();
        error::attached(|py| {
            let dtype = Bound::from_borrowed_ptr(py, obj).getattr("dtype").map_err(error::from_py)?;
            let kind = dtype.getattr("kind").and_then(|k| k.extract::<String>()).map_err(error::from_py)?;
            if ["b", "i", "u", "f"].contains(&&*kind) {
                return Ok(());
            }
            let message = format!("data{} is no number: got one of dtype {dtype}", path(levels));
            Err(Error::argument("TP1019", message))
        })?;
        let item = ffi::PyObject_CallMethod(obj, c"item".as_ptr(), std::ptr::null());
        if item.is_null() {
            return Err(error::fetch());
        }
        let item = Held(item);
        convert::number(item.0)
    }
}

unsafe fn enter(obj: Obj, levels: &[Level]) -> Result<Level> {
    // SAFETY: a live object.
    unsafe {
        let is_text = ffi::PyUnicode_Check(obj) != 0 || ffi::PyDict_Check(obj) != 0;
        if is_text || ffi::PySequence_Check(obj) == 0 {
            let got = x::type_name(obj);
            let mut e = Error::argument("TP1019", format!("data{} is no number: got {got}", path(levels)));
            if got == "generator" {
                e = e.note("a generator is consumed by reading it: pass list(...)");
            }
            return Err(e);
        }
        if levels.len() == MAX_DIMS {
            return Err(Error::argument("TP1020", format!("data is nested deeper than {MAX_DIMS} levels")));
        }
        let is_list = ffi::PyList_Check(obj) != 0;
        let list = if is_list { ffi::Py_NewRef(obj) } else { ffi::PySequence_List(obj) };
        if list.is_null() {
            return Err(error::fetch());
        }
        Ok(Level { list, len: ffi::PyList_Size(list), next: 0 })
    }
}

/// `[1][0]`: where the walk is now.
fn path(levels: &[Level]) -> String {
    levels.iter().fold(String::new(), |mut text, level| {
        let _ = write!(text, "[{}]", level.next - 1);
        text
    })
}

#[cold]
fn ragged(levels: &[Level], got: &str, wanted: &str) -> Error {
    Error::value(
        "TP1120",
        format!("data is ragged: data{} {got}, expected {wanted} as in the first row", path(levels)),
    )
    .note("every row must have the same length: pad them, or make one tensor each")
}
