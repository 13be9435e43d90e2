//! Where a key points: a view made one axis at a time, and the arrays that index it further.

use super::key::{Given, Item, Items};
use crate::tensor::{builtin as ops, create};
use crate::types;
use pyo3::ffi;
use smallvec::SmallVec;
use tp_dispatch::{Arg, Error, ErrorKind, Result};
use tp_tensor::{DType, Device, Dim, Scalar, Tensor, TensorError, symbols};

/// Where a key points: a view, and the arrays that index it further.
pub struct Place {
    view: Tensor,
    arrays: Vec<Option<Tensor>>,
    /// Axes of `view` that the key walks backwards.
    backwards: SmallVec<[i64; 2]>,
    /// An axis of size one that stands for an Ellipsis of no axes: beside arrays it parts them, as a slice would.
    gap: Option<usize>,
}

pub fn locate(t: &Tensor, items: Items) -> Result<Place> {
    let given: usize = items.iter().map(Item::axes).sum();
    if given > t.ndim() {
        return Err(TensorError::TooManyIndices { given, ndim: t.ndim() }.into());
    }
    if items.iter().filter(|i| matches!(i, Item::Ellipsis)).count() > 1 {
        return Err(Error::new(ErrorKind::Index, "TP1115", "an index can only have one Ellipsis (...)"));
    }
    let by_arrays = items.iter().any(Item::is_array);
    let parted = by_arrays && t.ndim() == given && parts_arrays(&items);
    let mut place = Place { view: t.clone(), arrays: Vec::new(), backwards: SmallVec::new(), gap: None };
    let mut axis = 0usize;
    for item in items {
        match item {
            Item::Ellipsis if parted => {
                place.view = ops::UNSQUEEZE.call(&[Arg::Tensor(&place.view), Arg::Int(axis as i64)])?;
                place.gap = Some(axis);
                axis += 1;
            }
            Item::Ellipsis => axis += t.ndim() - given,
            Item::At(i) if by_arrays => {
                // Beside arrays an integer is an array too: NumPy's rule for where the result's axes go.
                place.index_by(axis, scalar_index(i)?)?;
                axis += 1;
            }
            Item::At(i) => {
                place.view =
                    ops::SELECT.call(&[Arg::Tensor(&place.view), Arg::Int(axis as i64), Arg::Int(i)])?
            }
            Item::NewAxis => {
                place.view = ops::UNSQUEEZE.call(&[Arg::Tensor(&place.view), Arg::Int(axis as i64)])?;
                axis += 1;
            }
            Item::Slice { start, stop, step } => {
                place.slice(axis, start, stop, step)?;
                axis += 1;
            }
            Item::Bounds { start, stop, step } => {
                let stop = stop.map_or(Arg::None, Arg::Int);
                let at = Arg::Int(axis as i64);
                let args = [Arg::Tensor(&place.view), at, Arg::Int(start), stop, Arg::Int(step)];
                place.view = ops::SLICE.call(&args)?;
                axis += 1;
            }
            Item::Array(t) => {
                place.index_by(axis, t)?;
                axis += 1;
            }
            Item::Mask(m) if m.ndim() == 0 => {
                axis += place.flag(axis, types::item(&m)? == Scalar::Bool(true))?
            }
            Item::Mask(m) => axis += place.mask(axis, &m)?,
            Item::Flag(on) => axis += place.flag(axis, on)?,
        }
    }
    Ok(place)
}

/// Whether an Ellipsis has indices on both sides.
fn parts_arrays(items: &Items) -> bool {
    let at = items.iter().position(|i| matches!(i, Item::Ellipsis));
    let indexes = |i: &Item| i.is_array() || matches!(i, Item::At(_));
    at.is_some_and(|at| items[..at].iter().any(indexes) && items[at..].iter().any(indexes))
}

pub fn scalar_index(i: i64) -> Result<Tensor> {
    let i = symbols::number(i).or_else(|| symbols::settled(i)).ok_or(TensorError::Symbolic(i))?;
    let t = Tensor::empty(&[], DType::I64, Device::CPU)?;
    // SAFETY: one fresh int64.
    unsafe { t.data_ptr().cast::<i64>().write(i) };
    Ok(t)
}

impl Place {
    fn index_by(&mut self, axis: usize, indices: Tensor) -> Result<()> {
        // Of indices into a tensor without data only the shape counts, wherever they lie.
        let of_shape = self.view.device().is_meta() && indices.device().is_cpu() && !indices.is_fake();
        self.arrays.resize(axis, None);
        self.arrays.push(Some(if of_shape {
            Tensor::empty(indices.sizes(), indices.dtype(), Device::META)?
        } else {
            indices
        }));
        Ok(())
    }

    fn slice(&mut self, axis: usize, start: isize, stop: isize, step: isize) -> Result<()> {
        let at = axis as i64;
        // Bounds before every size there can be mean the same; further down numbers stand for symbols.
        let bound = |v: isize| v.max(isize::MIN / 2);
        let (start, stop) = (bound(start), bound(stop));
        if step > 0 {
            if (start, stop, step) == (0, isize::MAX, 1) {
                return Ok(());
            }
            let stop = if stop == isize::MAX { Arg::None } else { Arg::Int(stop as i64) };
            let args =
                [Arg::Tensor(&self.view), Arg::Int(at), Arg::Int(start as i64), stop, Arg::Int(step as i64)];
            self.view = ops::SLICE.call(&args)?;
            return Ok(());
        }
        let size = self.view.sizes()[axis];
        let size = symbols::settled(size).ok_or(TensorError::Symbolic(size))?;
        let (mut start, mut stop) = (start, stop);
        // SAFETY: pure arithmetic on the three numbers.
        let len = unsafe { ffi::PySlice_AdjustIndices(size as isize, &mut start, &mut stop, step) };
        // The same elements from the low end; an empty walk is an empty slice.
        let (low, end) = if len == 0 { (0, 0) } else { (start + (len - 1) * step, start + 1) };
        let bounds = [low, end, step.checked_neg().unwrap_or(isize::MAX)].map(|v| Arg::Int(v as i64));
        self.view =
            ops::SLICE.call(&[Arg::Tensor(&self.view), Arg::Int(at), bounds[0], bounds[1], bounds[2]])?;
        self.backwards.push(at);
        Ok(())
    }

    /// Returns how many axes of the view it spoke of.
    fn mask(&mut self, axis: usize, m: &Tensor) -> Result<usize> {
        let here = &self.view.sizes()[axis..axis + m.ndim()];
        if !symbols::same_shape(here, m.sizes())? {
            let (shape, here) = (m.dims(), Dim::slice(here));
            let message =
                format!("a mask of shape {shape:?} does not fit the axes of sizes {here:?} at {axis}");
            return Err(Error::new(ErrorKind::Index, "TP1116", message));
        }
        let found = ops::NONZERO.call(&[Arg::Tensor(m)])?;
        for k in 0..m.ndim() {
            let column = ops::SELECT.call(&[Arg::Tensor(&found), Arg::Int(1), Arg::Int(k as i64)])?;
            self.index_by(axis + k, column)?;
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
        self.index_by(axis, indices)?;
        Ok(1)
    }

    fn arrays(&mut self) -> &[Option<Tensor>] {
        self.arrays.resize(self.view.ndim(), None);
        &self.arrays
    }

    pub fn read(mut self, of: &Tensor) -> Result<Tensor> {
        for axis in std::mem::take(&mut self.backwards) {
            self.view = ops::FLIP.call(&[Arg::Tensor(&self.view), Arg::Ints(&[axis])])?;
        }
        if !self.arrays.is_empty() {
            let view = self.view.clone();
            let found = ops::INDEX.call(&[Arg::Tensor(&view), Arg::OptTensors(self.arrays())])?;
            let Some(behind) = self.behind_gap() else { return Ok(found) };
            return ops::SELECT.call(&[Arg::Tensor(&found), Arg::Int(-1 - behind as i64), Arg::Int(0)]);
        }
        // The whole tensor is a view as well, and never the tensor itself.
        if self.view.same(of) { ops::ALIAS.call(&[Arg::Tensor(of)]) } else { Ok(self.view) }
    }

    pub fn write(mut self, value: &Given) -> Result<()> {
        let view = self.view.clone();
        if self.arrays.is_empty() {
            return match value {
                Given::Number(s) => {
                    let s = create::fitting(*s, view.dtype())?;
                    ops::FILL_.call(&[Arg::Tensor(&view), Arg::Scalar(s)]).map(drop)
                }
                Given::Tensor(t) => self.copy_from(t),
            };
        }
        if !self.backwards.is_empty() {
            return Err(Error::value(
                "TP1117",
                "a slice with a negative step cannot be assigned to beside index arrays",
            ));
        }
        let mut values = fitted(value.tensor_like(&view)?, self.rank())?;
        if let Some(behind) = self.behind_gap()
            && values.ndim() >= behind
        {
            let at = Arg::Int((values.ndim() - behind) as i64);
            values = ops::UNSQUEEZE.call(&[Arg::Tensor(&values), at])?;
        }
        ops::INDEX_PUT_
            .call(&[Arg::Tensor(&view), Arg::OptTensors(self.arrays()), Arg::Tensor(&values)])
            .map(drop)
    }

    /// Dimensions of what the key reads, where arrays index.
    fn rank(&self) -> usize {
        let given = self.arrays.iter().flatten().count();
        rank_of(&self.arrays) + self.view.ndim() - given - usize::from(self.gap.is_some())
    }

    /// How many axes of the result stand behind the gap: arrays that are parted have theirs in front.
    fn behind_gap(&self) -> Option<usize> {
        let open = |k: &usize| self.arrays.get(*k).is_none_or(Option::is_none);
        self.gap.map(|gap| (gap + 1..self.view.ndim()).filter(open).count())
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
        let mut value = fitted(apart(value, view)?, view.ndim())?;
        if !self.backwards.is_empty() {
            value = ops::EXPAND.call(&[Arg::Tensor(&value), Arg::Ints(view.sizes())])?;
            value = ops::FLIP.call(&[Arg::Tensor(&value), Arg::Ints(&self.backwards)])?;
        }
        ops::COPY_.call(&[Arg::Tensor(view), Arg::Tensor(&value)]).map(drop)
    }
}

/// Dimensions of what index arrays broadcast to.
pub fn rank_of(arrays: &[Option<Tensor>]) -> usize {
    arrays.iter().flatten().map(Tensor::ndim).max().unwrap_or(0)
}

/// `value` without what it has beyond `rank` dimensions, if these are of size one: NumPy's rule for assignment.
pub fn fitted(value: Tensor, rank: usize) -> Result<Tensor> {
    let surplus = value.ndim().saturating_sub(rank);
    if surplus == 0 || value.sizes()[..surplus].iter().any(|&s| s != 1) {
        return Ok(value);
    }
    ops::RESHAPE.call(&[Arg::Tensor(&value), Arg::Ints(&value.sizes()[surplus..])])
}

/// `value`, copied if a write to `target` would change it half-way.
fn apart(value: &Tensor, target: &Tensor) -> Result<Tensor> {
    if value.shares_storage(target) { ops::CLONE.call(&[Arg::Tensor(value)]) } else { Ok(value.clone()) }
}
