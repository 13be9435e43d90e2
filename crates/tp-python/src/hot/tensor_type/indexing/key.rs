//! What an index means: the parts of a key, and the right-hand side of an assignment.

use super::super::this;
use crate::error;
use crate::hot::convert;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::shell;
use crate::hot::sizes;
use crate::tensor::{builtin as ops, create};
use pyo3::ffi;
use smallvec::SmallVec;
use tp_dispatch::{Arg, Error, ErrorKind, Result};
use tp_tensor::{DType, Scalar, Tensor, symbols};

/// One part of a key.
pub enum Item {
    At(i64),
    Slice {
        start: isize,
        stop: isize,
        step: isize,
    },
    /// A slice forwards with a symbolic size among its bounds.
    Bounds {
        start: i64,
        stop: Option<i64>,
        step: i64,
    },
    NewAxis,
    Ellipsis,
    /// Integer indices.
    Array(Tensor),
    Mask(Tensor),
    /// True or False: a mask of no dimension.
    Flag(bool),
}

pub type Items = SmallVec<[Item; 4]>;

impl Item {
    /// Axes of the tensor that this part speaks of.
    pub fn axes(&self) -> usize {
        match self {
            Item::At(_) | Item::Slice { .. } | Item::Bounds { .. } | Item::Array(_) => 1,
            Item::Mask(m) => m.ndim(),
            Item::NewAxis | Item::Ellipsis | Item::Flag(_) => 0,
        }
    }

    pub fn is_array(&self) -> bool {
        matches!(self, Item::Array(_) | Item::Mask(_) | Item::Flag(_))
    }
}

/// # Safety
/// Live object, lock held.
pub unsafe fn parse(key: Obj) -> Result<Items> {
    // SAFETY: live objects; items of a tuple live as long as it does.
    unsafe {
        if ffi::PyTuple_Check(key) != 0 {
            return (0..ffi::PyTuple_Size(key)).map(|i| item(ffi::PyTuple_GetItem(key, i))).collect();
        }
        Ok(SmallVec::from_iter([item(key)?]))
    }
}

unsafe fn item(obj: Obj) -> Result<Item> {
    // SAFETY: a live object.
    unsafe {
        if obj == ffi::Py_None() {
            return Ok(Item::NewAxis);
        }
        if obj == ffi::Py_Ellipsis() {
            return Ok(Item::Ellipsis);
        }
        if shell::is_tensor(obj) {
            return array(this(obj).clone());
        }
        if ffi::PySlice_Check(obj) != 0 {
            // Unpacking asks for numbers, which would settle symbols of inputs.
            if symbols::are_in_force()
                && let Some(bounds) = symbolic_slice(obj)?
            {
                return Ok(bounds);
            }
            let (mut start, mut stop, mut step) = (0, 0, 0);
            if ffi::PySlice_Unpack(obj, &mut start, &mut stop, &mut step) != 0 {
                return Err(error::fetch());
            }
            return Ok(Item::Slice { start, stop, step });
        }
        if ffi::PyFloat_Check(obj) == 0 && ffi::PyUnicode_Check(obj) == 0 {
            if x::type_of(obj) != &raw mut ffi::PyLong_Type
                && let Some(size) = sizes::raw_size(obj)?
            {
                return Ok(Item::At(size));
            }
            match convert::number(obj)? {
                Some(Scalar::Bool(v)) => return Ok(Item::Flag(v)),
                Some(Scalar::Int(v)) => return Ok(Item::At(symbols::plain(v))),
                Some(Scalar::Float(_)) => return Err(no_index(obj)),
                None => {}
            }
            if let Some(t) = create::array_like(obj)? {
                // An empty list says nothing of its dtype.
                let empty_list = t.numel() == 0 && t.dtype().is_float();
                return array(if empty_list {
                    ops::ASTYPE.call(&[Arg::Tensor(&t), Arg::DType(DType::I64)])?
                } else {
                    t
                });
            }
        }
        Err(no_index(obj))
    }
}

/// A slice whose bounds are numbers and symbolic sizes, one of these at least.
#[cold]
unsafe fn symbolic_slice(obj: Obj) -> Result<Option<Item>> {
    // SAFETY: a live slice object; attributes are owned references.
    unsafe {
        let mut bounds = [None; 3];
        let mut symbolic = false;
        for (bound, name) in bounds.iter_mut().zip([c"start", c"stop", c"step"]) {
            let value = ffi::PyObject_GetAttrString(obj, name.as_ptr());
            if value.is_null() {
                return Err(error::fetch());
            }
            let size = sizes::raw_size(value);
            symbolic |= matches!(size, Ok(Some(_)));
            let number = match size {
                Ok(None) if value != ffi::Py_None() => convert::int(value).map(|v| v.map(symbols::plain)),
                other => other,
            };
            ffi::Py_DECREF(value);
            *bound = number?;
        }
        let [start, stop, step] = bounds;
        let item = Item::Bounds { start: start.unwrap_or(0), stop, step: step.unwrap_or(1) };
        Ok(symbolic.then_some(item))
    }
}

fn array(t: Tensor) -> Result<Item> {
    match t.dtype() {
        DType::Bool => Ok(Item::Mask(t)),
        d if d.is_int() => Ok(Item::Array(t)),
        d => Err(Error::new(
            ErrorKind::Index,
            "TP1113",
            format!("an index tensor must be integer or bool, got {d}"),
        )),
    }
}

#[cold]
unsafe fn no_index(obj: Obj) -> Error {
    // SAFETY: a live object.
    let got = unsafe { x::type_name(obj) };
    Error::new(
        ErrorKind::Index,
        "TP1114",
        format!("an index is an integer, slice, None, Ellipsis, or an integer or bool array, got {got}"),
    )
}

/// The right-hand side of an assignment.
pub enum Given {
    Number(Scalar),
    Tensor(Tensor),
}

impl Given {
    /// The value as a tensor; a number takes the dtype of `target`.
    pub fn tensor_like(&self, target: &Tensor) -> Result<Tensor> {
        match self {
            Given::Tensor(t) if t.shares_storage(target) => ops::CLONE.call(&[Arg::Tensor(t)]),
            Given::Tensor(t) => Ok(t.clone()),
            Given::Number(s) => {
                let like = [Arg::DType(target.dtype()), Arg::Device(target.device())];
                let s = create::fitting(*s, target.dtype())?;
                ops::FULL.call(&[Arg::Ints(&[]), Arg::Scalar(s), like[0], like[1]])
            }
        }
    }
}

/// # Safety
/// Live object, lock held.
pub unsafe fn given(obj: Obj) -> Result<Given> {
    // SAFETY: a live object.
    unsafe {
        if shell::is_tensor(obj) {
            return Ok(Given::Tensor(this(obj).clone()));
        }
        if let Some(s) = convert::number(obj)? {
            return Ok(Given::Number(s));
        }
        create::array_like(obj)?.map(Given::Tensor).ok_or_else(|| {
            Error::argument("TP1015", format!("a {} cannot be stored in a tensor", x::type_name(obj)))
        })
    }
}
