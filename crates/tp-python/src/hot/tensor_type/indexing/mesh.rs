//! A key of integers, slices, None and Ellipsis as index arrays, one per axis, that broadcast to the same elements.

use super::key::{Item, Items};
use super::place::scalar_index;
use pyo3::ffi;
use tp_dispatch::{Error, ErrorKind, Result};
use tp_tensor::{DType, Device, Dims, Tensor, TensorError, symbols};

/// A walk along one axis.
struct Walk {
    start: isize,
    step: isize,
    len: isize,
}

/// What one part of the key gives: a fixed index, a walk, or only a new axis of the result.
enum Part {
    At(i64),
    Walk(Walk),
    NewAxis,
}

pub fn arrays(t: &Tensor, items: &Items) -> Result<Vec<Option<Tensor>>> {
    let parts = parts(t, items)?;
    let rank = parts.iter().filter(|p| !matches!(p, Part::At(_))).count();
    let mut out = Vec::with_capacity(t.ndim());
    let mut place = 0;
    for part in parts {
        match part {
            Part::At(i) => out.push(Some(scalar_index(i)?)),
            Part::Walk(walk) => {
                out.push(Some(walk.array(rank - place)?));
                place += 1;
            }
            Part::NewAxis => place += 1,
        }
    }
    Ok(out)
}

fn parts(t: &Tensor, items: &Items) -> Result<Vec<Part>> {
    let given: usize = items.iter().map(Item::axes).sum();
    if given > t.ndim() {
        return Err(TensorError::TooManyIndices { given, ndim: t.ndim() }.into());
    }
    let rest = t.ndim() - given;
    let mut out = Vec::new();
    let mut axis = 0;
    let whole = |axis: &mut usize, n: usize, out: &mut Vec<Part>| -> Result<()> {
        for _ in 0..n {
            out.push(Part::Walk(walk(t, *axis, 0, isize::MAX, 1)?));
            *axis += 1;
        }
        Ok(())
    };
    let mut ellipsis = false;
    for item in items {
        match *item {
            Item::Bounds { start, stop, step } => {
                // The positions are made as an array, which needs them.
                let numbers = [start, stop.unwrap_or(0), step];
                let symbol = numbers.into_iter().find(|v| symbols::given(&[*v]));
                return Err(TensorError::Symbolic(symbol.unwrap_or(0)).into());
            }
            Item::At(i) => {
                out.push(Part::At(
                    symbols::number(i).or_else(|| symbols::settled(i)).ok_or(TensorError::Symbolic(i))?,
                ));
                axis += 1;
            }
            Item::Slice { start, stop, step } => {
                out.push(Part::Walk(walk(t, axis, start, stop, step)?));
                axis += 1;
            }
            Item::NewAxis => out.push(Part::NewAxis),
            Item::Ellipsis if ellipsis => {
                return Err(Error::new(
                    ErrorKind::Index,
                    "TP1115",
                    "an index can only have one Ellipsis (...)",
                ));
            }
            Item::Ellipsis => {
                ellipsis = true;
                whole(&mut axis, rest, &mut out)?;
            }
            Item::Array(_) | Item::Mask(_) | Item::Flag(_) => {
                return Err(Error::internal("TP9022", "an index array where none can be"));
            }
        }
    }
    if !ellipsis {
        whole(&mut axis, rest, &mut out)?;
    }
    Ok(out)
}

fn walk(t: &Tensor, axis: usize, start: isize, stop: isize, step: isize) -> Result<Walk> {
    let size = t.sizes()[axis];
    let size = symbols::settled(size).ok_or(TensorError::Symbolic(size))?;
    let (mut start, mut stop) = (start, stop);
    // SAFETY: pure arithmetic on the three numbers.
    let len = unsafe { ffi::PySlice_AdjustIndices(size as isize, &mut start, &mut stop, step) };
    Ok(Walk { start, step, len })
}

impl Walk {
    /// The positions, on the first of `rank` axes.
    fn array(&self, rank: usize) -> Result<Tensor> {
        let mut sizes: Dims = Dims::from_elem(1, rank);
        sizes[0] = self.len as i64;
        let t = Tensor::empty(&sizes, DType::I64, Device::CPU)?;
        for i in 0..self.len {
            // SAFETY: fresh, contiguous, `len` elements.
            unsafe { t.data_ptr().cast::<i64>().offset(i).write((self.start + i * self.step) as i64) };
        }
        Ok(t)
    }
}
