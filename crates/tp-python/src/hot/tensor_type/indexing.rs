//! `x[key]`, `x[key] = value`, `len(x)` and iteration. Integers, slices, None and Ellipsis are views, made by the
//! view ops one axis at a time; integer arrays and boolean masks go to `index` and `index_put_`, with NumPy's rules.
//!
//! # Limitations
//! A negative step copies when read, for strides of views stay positive; assigning through one works.

use super::{is_index, slot, this};
use crate::error;
use crate::hot::ffi::{self as x, Obj};
use crate::hot::{convert, ret, shell};
use crate::tensor::{builtin as ops, create};
use crate::types;
use pyo3::ffi;
use smallvec::SmallVec;
use std::os::raw::{c_int, c_void};
use tp_dispatch::{Arg, Error, ErrorKind, Result};
use tp_tensor::{DType, Device, Dim, Scalar, Tensor, TensorError};

/// One part of a key.
enum Item {
    At(i64),
    Slice { start: isize, stop: isize, step: isize },
    NewAxis,
    Ellipsis,
    /// Integer indices.
    Array(Tensor),
    Mask(Tensor),
    /// True or False: a mask of no dimension.
    Flag(bool),
}

type Items = SmallVec<[Item; 4]>;

/// Where a key points: a view, and the arrays that index it further.
struct Place {
    view: Tensor,
    arrays: Vec<Option<Tensor>>,
    /// Axes of `view` that the key walks backwards.
    backwards: SmallVec<[i64; 2]>,
}

impl Item {
    /// Axes of the tensor that this part speaks of.
    fn axes(&self) -> usize {
        match self {
            Item::At(_) | Item::Slice { .. } | Item::Array(_) => 1,
            Item::Mask(m) => m.ndim(),
            Item::NewAxis | Item::Ellipsis | Item::Flag(_) => 0,
        }
    }

    fn is_array(&self) -> bool {
        matches!(self, Item::Array(_) | Item::Mask(_) | Item::Flag(_))
    }
}

unsafe fn parse(key: Obj) -> Result<Items> {
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
            let (mut start, mut stop, mut step) = (0, 0, 0);
            if ffi::PySlice_Unpack(obj, &mut start, &mut stop, &mut step) != 0 {
                return Err(error::fetch());
            }
            return Ok(Item::Slice { start, stop, step });
        }
        if ffi::PyFloat_Check(obj) == 0 && ffi::PyUnicode_Check(obj) == 0 {
            match convert::number(obj)? {
                Some(Scalar::Bool(v)) => return Ok(Item::Flag(v)),
                Some(Scalar::Int(v)) => return Ok(Item::At(v)),
                Some(Scalar::Float(_)) => return Err(no_index(obj)),
                None if is_index(obj) => return Err(no_index(obj)),
                None => {}
            }
            if let Some(t) = create::array_like(obj)? {
                // An empty list says nothing of its dtype.
                let empty_list = t.numel() == 0 && t.dtype().is_float();
                return array(if empty_list { ops::ASTYPE.call(&[Arg::Tensor(&t), Arg::DType(DType::I64)])? } else { t });
            }
        }
        Err(no_index(obj))
    }
}

fn array(t: Tensor) -> Result<Item> {
    match t.dtype() {
        DType::Bool => Ok(Item::Mask(t)),
        d if d.is_int() => Ok(Item::Array(t)),
        d => Err(Error::new(ErrorKind::Index, "TP1113", format!("an index tensor must be integer or bool, got {d}"))),
    }
}

#[cold]
unsafe fn no_index(obj: Obj) -> Error {
    // SAFETY: a live object.
    let got = unsafe { x::type_name(obj) };
    Error::new(ErrorKind::Index, "TP1114", format!("an index is an integer, slice, None, Ellipsis, or an integer or bool array, got {got}"))
}

fn locate(t: &Tensor, items: Items) -> Result<Place> {
    let given: usize = items.iter().map(Item::axes).sum();
    if given > t.ndim() {
        return Err(TensorError::TooManyIndices { given, ndim: t.ndim() }.into());
    }
    if items.iter().filter(|i| matches!(i, Item::Ellipsis)).count() > 1 {
        return Err(Error::new(ErrorKind::Index, "TP1115", "an index can only have one Ellipsis (...)"));
    }
    let by_arrays = items.iter().any(Item::is_array);
    let mut place = Place { view: t.clone(), arrays: Vec::new(), backwards: SmallVec::new() };
    let mut axis = 0usize;
    for item in items {
        match item {
            Item::Ellipsis => axis += t.ndim() - given,
            Item::At(i) if by_arrays => {
                // Beside arrays an integer is an array too: NumPy's rule for where the result's axes go.
                place.index_by(axis, scalar_index(i)?);
                axis += 1;
            }
            Item::At(i) => place.view = ops::SELECT.call(&[Arg::Tensor(&place.view), Arg::Int(axis as i64), Arg::Int(i)])?,
            Item::NewAxis => {
                place.view = ops::UNSQUEEZE.call(&[Arg::Tensor(&place.view), Arg::Int(axis as i64)])?;
                axis += 1;
            }
            Item::Slice { start, stop, step } => {
                place.slice(axis, start, stop, step)?;
                axis += 1;
            }
            Item::Array(t) => {
                place.index_by(axis, t);
                axis += 1;
            }
            Item::Mask(m) if m.ndim() == 0 => axis += place.flag(axis, types::item(&m)? == Scalar::Bool(true))?,
            Item::Mask(m) => axis += place.mask(axis, &m)?,
            Item::Flag(on) => axis += place.flag(axis, on)?,
        }
    }
    Ok(place)
}

fn scalar_index(i: i64) -> Result<Tensor> {
    let t = Tensor::empty(&[], DType::I64, Device::CPU)?;
    // SAFETY: one fresh int64.
    unsafe { t.data_ptr().cast::<i64>().write(i) };
    Ok(t)
}

impl Place {
    fn index_by(&mut self, axis: usize, indices: Tensor) {
        self.arrays.resize(axis, None);
        self.arrays.push(Some(indices));
    }

    fn slice(&mut self, axis: usize, start: isize, stop: isize, step: isize) -> Result<()> {
        let at = axis as i64;
        if step > 0 {
            if (start, stop, step) == (0, isize::MAX, 1) {
                return Ok(());
            }
            let stop = if stop == isize::MAX { Arg::None } else { Arg::Int(stop as i64) };
            let args = [Arg::Tensor(&self.view), Arg::Int(at), Arg::Int(start as i64), stop, Arg::Int(step as i64)];
            self.view = ops::SLICE.call(&args)?;
            return Ok(());
        }
        let size = Dim::from_raw(self.view.sizes()[axis]).as_known().ok_or(TensorError::Symbolic)?;
        let (mut start, mut stop) = (start, stop);
        // SAFETY: pure arithmetic on the three numbers.
        let len = unsafe { ffi::PySlice_AdjustIndices(size as isize, &mut start, &mut stop, step) };
        // The same elements from the low end; an empty walk is an empty slice.
        let (low, end) = if len == 0 { (0, 0) } else { (start + (len - 1) * step, start + 1) };
        let bounds = [low, end, step.checked_neg().unwrap_or(isize::MAX)].map(|v| Arg::Int(v as i64));
        self.view = ops::SLICE.call(&[Arg::Tensor(&self.view), Arg::Int(at), bounds[0], bounds[1], bounds[2]])?;
        self.backwards.push(at);
        Ok(())
    }

    /// Returns how many axes of the view it spoke of.
    fn mask(&mut self, axis: usize, m: &Tensor) -> Result<usize> {
        let here = &self.view.sizes()[axis..axis + m.ndim()];
        if here != m.sizes() {
            let message = format!("a mask of shape {:?} does not fit the axes of sizes {here:?} at {axis}", m.sizes());
            return Err(Error::new(ErrorKind::Index, "TP1116", message));
        }
        let found = ops::NONZERO.call(&[Arg::Tensor(m)])?;
        for k in 0..m.ndim() {
            let column = ops::SELECT.call(&[Arg::Tensor(&found), Arg::Int(1), Arg::Int(k as i64)])?;
            self.index_by(axis + k, column);
        }
        Ok(m.ndim())
    }

    /// A new axis of size one or none.
    fn flag(&mut self, axis: usize, on: bool) -> Result<usize> {
        self.view = ops::UNSQUEEZE.call(&[Arg::Tensor(&self.view), Arg::Int(axis as i64)])?;
        let indices = Tensor::empty(&[on.into()], DType::I64, Device::CPU)?;
        if on {
            // SAFETY: one fresh int64.
            unsafe { indices.data_ptr().cast::<i64>().write(0) };
        }
        self.index_by(axis, indices);
        Ok(1)
    }

    fn arrays(&mut self) -> &[Option<Tensor>] {
        self.arrays.resize(self.view.ndim(), None);
        &self.arrays
    }

    fn read(mut self, of: &Tensor) -> Result<Tensor> {
        for axis in std::mem::take(&mut self.backwards) {
            self.view = ops::FLIP.call(&[Arg::Tensor(&self.view), Arg::Ints(&[axis])])?;
        }
        if !self.arrays.is_empty() {
            let view = self.view.clone();
            return ops::INDEX.call(&[Arg::Tensor(&view), Arg::OptTensors(self.arrays())]);
        }
        // The whole tensor is a view as well, and never the tensor itself.
        if self.view.same(of) { ops::ALIAS.call(&[Arg::Tensor(of)]) } else { Ok(self.view) }
    }

    fn write(mut self, value: &Given) -> Result<()> {
        let view = self.view.clone();
        if self.arrays.is_empty() {
            return match value {
                Given::Number(s) => ops::FILL_.call(&[Arg::Tensor(&view), Arg::Scalar(*s)]).map(drop),
                Given::Tensor(t) => self.copy_from(t),
            };
        }
        if !self.backwards.is_empty() {
            return Err(Error::value("TP1117", "a slice with a negative step cannot be assigned to beside index arrays"));
        }
        let values = match value {
            Given::Tensor(t) => apart(t, &view)?,
            Given::Number(s) => ops::FULL.call(&[
                Arg::Ints(&[]),
                Arg::Scalar(*s),
                Arg::DType(view.dtype()),
                Arg::Device(view.device()),
            ])?,
        };
        ops::INDEX_PUT_.call(&[Arg::Tensor(&view), Arg::OptTensors(self.arrays()), Arg::Tensor(&values)]).map(drop)
    }

    fn copy_from(&self, value: &Tensor) -> Result<()> {
        let view = &self.view;
        let identical = value.shares_storage(view)
            && value.dtype() == view.dtype()
            && value.layout() == view.layout()
            && self.backwards.is_empty();
        if identical {
            // `x[i] += y` ends by storing the view that was just changed.
            return Ok(());
        }
        let mut value = apart(value, view)?;
        let surplus = value.ndim().saturating_sub(view.ndim());
        if surplus > 0 && value.sizes()[..surplus].iter().all(|&s| s == 1) {
            value = ops::RESHAPE.call(&[Arg::Tensor(&value), Arg::Ints(&value.sizes()[surplus..])])?;
        }
        if !self.backwards.is_empty() {
            value = ops::EXPAND.call(&[Arg::Tensor(&value), Arg::Ints(view.sizes())])?;
            value = ops::FLIP.call(&[Arg::Tensor(&value), Arg::Ints(&self.backwards)])?;
        }
        ops::COPY_.call(&[Arg::Tensor(view), Arg::Tensor(&value)]).map(drop)
    }
}

/// `value`, copied if a write to `target` would change it half-way.
fn apart(value: &Tensor, target: &Tensor) -> Result<Tensor> {
    if value.shares_storage(target) { ops::CLONE.call(&[Arg::Tensor(value)]) } else { Ok(value.clone()) }
}

/// The right-hand side of an assignment.
enum Given {
    Number(Scalar),
    Tensor(Tensor),
}

unsafe fn given(obj: Obj) -> Result<Given> {
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

unsafe extern "C" fn subscript(op: Obj, key: Obj) -> Obj {
    // SAFETY: a live tensor and key, lock held.
    ret::guard(|| unsafe {
        let t = this(op);
        Ok(shell::wrap(locate(t, parse(key)?)?.read(t)?))
    })
}

unsafe extern "C" fn assign(op: Obj, key: Obj, value: Obj) -> c_int {
    // SAFETY: as above; a null value means deletion.
    ret::guard_int(|| unsafe {
        if value.is_null() {
            return Err(Error::argument("TP1016", "elements of a tensor cannot be deleted"));
        }
        locate(this(op), parse(key)?)?.write(&given(value)?)?;
        Ok(0)
    })
}

unsafe extern "C" fn length(op: Obj) -> ffi::Py_ssize_t {
    let mut out = -1;
    // SAFETY: a live tensor, lock held.
    ret::guard_int(|| unsafe {
        let Some(&first) = this(op).sizes().first() else {
            return Err(Error::argument("TP1017", "a 0-d tensor has no len()"));
        };
        out = Dim::from_raw(first).as_known().ok_or(TensorError::Symbolic)? as ffi::Py_ssize_t;
        Ok(0)
    });
    out
}

/// Item `i` of the first axis; what iteration calls, so that it ends by a plain IndexError.
unsafe extern "C" fn at(op: Obj, i: ffi::Py_ssize_t) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        let t = this(op);
        if t.sizes().first().is_some_and(|&n| i as i64 >= n && !Dim::from_raw(n).is_symbol()) {
            ffi::PyErr_SetString(ffi::PyExc_IndexError, c"index out of range".as_ptr());
            return Ok(std::ptr::null_mut());
        }
        Ok(shell::wrap(ops::SELECT.call(&[Arg::Tensor(t), Arg::Int(0), Arg::Int(i as i64)])?))
    })
}

unsafe extern "C" fn iterate(op: Obj) -> Obj {
    // SAFETY: as above.
    ret::guard(|| unsafe {
        if this(op).ndim() == 0 {
            return Err(Error::argument("TP1018", "a 0-d tensor cannot be iterated over; use .item() for its value"));
        }
        Ok(ffi::PySeqIter_New(op))
    })
}

pub fn slots() -> Vec<ffi::PyType_Slot> {
    vec![
        slot(ffi::Py_mp_subscript, subscript as *mut c_void),
        slot(ffi::Py_mp_ass_subscript, assign as *mut c_void),
        slot(ffi::Py_mp_length, length as *mut c_void),
        slot(ffi::Py_sq_item, at as *mut c_void),
        slot(ffi::Py_tp_iter, iterate as *mut c_void),
    ]
}
