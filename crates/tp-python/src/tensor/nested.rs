//! Nested Python sequences of numbers as one flat list with a shape. Ragged data is an error that names the place.

use crate::hot::ffi::{self as x, Obj};
use crate::hot::{convert, shell};
use crate::{error, types};
use pyo3::ffi;
use std::fmt::Write;
use tp_dispatch::{Error, Result};
use tp_tensor::dtype::Category;
use tp_tensor::layout::MAX_DIMS;
use tp_tensor::{Dims, Scalar};

/// Numbers in row-major order.
pub struct Nested {
    pub sizes: Dims,
    pub values: Vec<Scalar>,
}

impl Nested {
    /// The widest kind among the numbers; None for no numbers.
    pub fn category(&self) -> Option<Category> {
        self.values.iter().map(|s| s.category()).max()
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

/// # Safety
/// Live object, lock held.
pub unsafe fn read(data: Obj) -> Result<Nested> {
    let mut out = Nested { sizes: Dims::new(), values: Vec::new() };
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
        if let Some(s) = number(obj)? {
            if *rank.get_or_insert(depth) != depth {
                return Err(ragged(
                    levels,
                    "is a number",
                    &format!("a sequence of length {}", out.sizes[depth]),
                ));
            }
            out.values.push(s);
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
