//! Shapes, strides and offset as pure data: every view operation is a function from layout to layout, and
//! counts elements, never bytes. Nothing here touches memory.

use crate::dim::{Dim, Dims};
use crate::error::TensorError;
use crate::symbols::{self, Relation};
use smallvec::smallvec;

pub const MAX_DIMS: usize = 64;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    pub sizes: Dims,
    pub strides: Dims,
    pub offset: i64,
}

type Result<T> = std::result::Result<T, TensorError>;

/// Row-major strides; a dimension of size 0 counts as 1, so that strides stay positive.
pub fn contiguous_strides(sizes: &[i64]) -> Dims {
    let mut strides: Dims = smallvec![0; sizes.len()];
    let mut step = 1i64;
    for (stride, &size) in strides.iter_mut().zip(sizes).rev() {
        *stride = step;
        step = match size {
            ..0 if Dim::from_raw(size).is_symbol() => symbolic_step(step, size),
            _ => step.wrapping_mul(size.max(1)),
        };
    }
    strides
}

/// Equality of shapes. They have few dimensions, for which a call to compare memory costs more than the comparison.
#[inline]
pub fn same_dims(a: &[i64], b: &[i64]) -> bool {
    a.len() == b.len() && (0..a.len()).all(|i| a[i] == b[i])
}

/// What lies behind a symbolic size is as far away as the size says. A size of 0 makes an empty tensor, whose strides mean
/// nothing. Without a table of symbols the factor is left out.
#[cold]
fn symbolic_step(step: i64, size: i64) -> i64 {
    symbols::mul(step, size).unwrap_or(step)
}

/// Number of elements; an error when the count (or its bytes at `itemsize`) leaves 63 bits.
pub fn checked_numel(sizes: &[i64], itemsize: usize) -> Result<i64> {
    if sizes.len() > MAX_DIMS {
        return Err(TensorError::TooManyDims(sizes.len()));
    }
    let mut numel = 1i64;
    let mut reach = itemsize as i64;
    for &size in sizes {
        if size < 0 {
            return Err(negative(sizes, size));
        }
        // `reach` treats zero as one: strides of an empty tensor must not overflow either.
        reach = reach.checked_mul(size.max(1)).ok_or_else(|| TensorError::TooLarge(sizes.into()))?;
        numel = numel.wrapping_mul(size);
    }
    Ok(numel)
}

#[cold]
fn negative(sizes: &[i64], size: i64) -> TensorError {
    if symbols::given(&[size]) {
        TensorError::Symbolic(size)
    } else {
        TensorError::NegativeSize(sizes.into())
    }
}

/// A layout with symbolic sizes is contiguous where it is so whatever they are.
#[inline]
pub fn is_contiguous(sizes: &[i64], strides: &[i64]) -> bool {
    let mut step = 1i64;
    for (&size, &stride) in sizes.iter().zip(strides).rev() {
        if size <= 0 {
            return size == 0 || symbolic_contiguous(sizes, strides);
        }
        if size != 1 {
            if stride != step {
                return false;
            }
            step = step.wrapping_mul(size);
        }
    }
    true
}

/// True when two indices may reach one element. Exact for everything that view operations make: dimensions in
/// order of stride must each step over all that the smaller ones reach.
pub fn overlaps(sizes: &[i64], strides: &[i64]) -> bool {
    if sizes.contains(&0) {
        return false;
    }
    let axes = sizes.iter().zip(strides).filter(|(size, _)| **size > 1);
    let mut axes: smallvec::SmallVec<[(i64, i64); 8]> = axes.map(|(&n, &stride)| (stride.abs(), n)).collect();
    axes.sort_unstable();
    let mut reach = 0i64;
    for (stride, size) in axes {
        if stride <= reach {
            return true;
        }
        reach = reach.saturating_add(stride.saturating_mul(size - 1));
    }
    false
}

#[cold]
fn symbolic_contiguous(sizes: &[i64], strides: &[i64]) -> bool {
    let own = contiguous_strides(sizes);
    sizes.contains(&0) || sizes.iter().zip(strides).zip(&own).all(|((n, x), y)| *n == 1 || x == y)
}

/// The common shape of two operands under NumPy's rules.
pub fn broadcast(a: &[i64], b: &[i64]) -> Result<Dims> {
    let n = a.len().max(b.len());
    let mut out: Dims = smallvec![1; n];
    for (i, slot) in out.iter_mut().enumerate() {
        let at = |s: &[i64]| if i + s.len() >= n { s[i + s.len() - n] } else { 1 };
        let (x, y) = (at(a), at(b));
        *slot = match (x, y) {
            _ if x == y => x,
            (1, _) => y,
            (_, 1) => x,
            _ => match symbols::any(&[x, y]).then(|| symbols::broadcast(x, y)).transpose()?.flatten() {
                Some(common) => common,
                None => {
                    return Err(TensorError::Broadcast {
                        a: a.into(),
                        b: b.into(),
                        axis: i,
                        at_a: x,
                        at_b: y,
                    });
                }
            },
        };
    }
    Ok(out)
}

/// Python-style axis (negative counts from the end) to an index.
pub fn normalize_axis(axis: i64, ndim: usize) -> Result<usize> {
    let n = ndim as i64;
    let bound = n.max(1);
    if axis < -bound || axis >= bound {
        return Err(TensorError::Axis { axis, ndim });
    }
    Ok(if axis < 0 { axis + bound } else { axis } as usize)
}

impl Layout {
    pub fn contiguous(sizes: &[i64]) -> Layout {
        Layout { sizes: Dims::from_slice(sizes), strides: contiguous_strides(sizes), offset: 0 }
    }

    pub fn ndim(&self) -> usize {
        self.sizes.len()
    }

    pub fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    pub fn is_contiguous(&self) -> bool {
        is_contiguous(&self.sizes, &self.strides)
    }

    pub fn permute(&self, axes: &[i64]) -> Result<Layout> {
        let bad = || TensorError::Permutation { axes: axes.into(), ndim: self.ndim() };
        if axes.len() != self.ndim() {
            return Err(bad());
        }
        let mut seen = [false; MAX_DIMS];
        let mut out = Layout { sizes: Dims::new(), strides: Dims::new(), offset: self.offset };
        for &axis in axes {
            let axis = normalize_axis(axis, self.ndim()).map_err(|_| bad())?;
            if std::mem::replace(&mut seen[axis], true) {
                return Err(bad());
            }
            out.sizes.push(self.sizes[axis]);
            out.strides.push(self.strides[axis]);
        }
        Ok(out)
    }

    pub fn transpose(&self, a: i64, b: i64) -> Result<Layout> {
        let (a, b) = (normalize_axis(a, self.ndim())?, normalize_axis(b, self.ndim())?);
        let mut out = self.clone();
        if self.ndim() > 0 {
            out.sizes.swap(a, b);
            out.strides.swap(a, b);
        }
        Ok(out)
    }

    /// Broadcast view: new leading dimensions and dimensions of size 1 get stride 0; -1 keeps a size.
    pub fn expand(&self, to: &[i64]) -> Result<Layout> {
        let lead = to.len().checked_sub(self.ndim()).ok_or_else(|| self.no_expand(to, 0, 0, 0))?;
        let mut out =
            Layout { sizes: Dims::from_slice(to), strides: smallvec![0; to.len()], offset: self.offset };
        for axis in 0..to.len() {
            if axis < lead {
                if to[axis] < 0 {
                    return Err(self.no_expand(to, axis, 1, to[axis]));
                }
                continue;
            }
            let (size, stride) = (self.sizes[axis - lead], self.strides[axis - lead]);
            if to[axis] == -1 || to[axis] == size {
                out.sizes[axis] = size;
                out.strides[axis] = stride;
            } else if size != 1 || to[axis] < 0 {
                return Err(self.no_expand(to, axis, size, to[axis]));
            }
        }
        checked_numel(&out.sizes, 1)?;
        Ok(out)
    }

    fn no_expand(&self, to: &[i64], axis: usize, at_from: i64, at_to: i64) -> TensorError {
        TensorError::Expand { from: self.sizes.clone(), to: to.into(), axis, at_from, at_to }
    }

    /// `x[start:stop:step]` along one axis, with Python's clamping of bounds.
    pub fn slice(&self, axis: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Result<Layout> {
        let size = self.sizes[axis];
        let (from, to) = (start.unwrap_or(0), stop.unwrap_or(size));
        if symbols::any(&[size, self.offset, self.strides[axis]]) || symbols::given(&[from, to, step]) {
            return self.symbolic_slice(axis, from, to, step);
        }
        if step <= 0 {
            return Err(TensorError::Step(step));
        }
        let clamp = |v: i64| if v < 0 { v.saturating_add(size).max(0) } else { v.min(size) };
        let start = clamp(start.unwrap_or(0));
        let stop = clamp(stop.unwrap_or(size));
        let len = if stop > start { (stop - start - 1) / step + 1 } else { 0 };
        let mut out = self.clone();
        out.sizes[axis] = len;
        if len > 0 {
            out.offset = self.offset_of(axis, start);
        }
        out.strides[axis] = if len > 1 { self.strides[axis].wrapping_mul(step) } else { self.strides[axis] };
        Ok(out)
    }

    /// `x[index]` along one axis: drops the axis.
    pub fn select(&self, axis: usize, index: i64) -> Result<Layout> {
        let size = self.sizes[axis];
        if symbols::any(&[size, self.offset, self.strides[axis]]) || symbols::given(&[index]) {
            return self.symbolic_select(axis, index);
        }
        let at = if index < 0 { index.saturating_add(size) } else { index };
        if at < 0 || at >= size {
            return Err(TensorError::Index { index, axis, size });
        }
        let mut out = self.clone();
        out.offset = self.offset_of(axis, at);
        out.sizes.remove(axis);
        out.strides.remove(axis);
        Ok(out)
    }

    /// As `slice`, where a symbol is among the numbers: the bounds must be decided.
    #[cold]
    fn symbolic_slice(&self, axis: usize, start: i64, stop: i64, step: i64) -> Result<Layout> {
        if symbols::require(step, Relation::Le, 0)? {
            return Err(TensorError::Step(step));
        }
        let size = self.sizes[axis];
        let clamp = |v: i64| -> Result<i64> {
            if v == size {
                return Ok(size);
            }
            if symbols::require(v, Relation::Ge, 0)? {
                return Ok(if symbols::require(v, Relation::Le, size)? { v } else { size });
            }
            let from_end = symbols::add(size, v)?;
            Ok(if symbols::require(from_end, Relation::Ge, 0)? { from_end } else { 0 })
        };
        let (start, stop) = (clamp(start)?, clamp(stop)?);
        let mut out = self.clone();
        if !symbols::require(stop, Relation::Ge, start)? {
            out.sizes[axis] = 0;
            return Ok(out);
        }
        let span = if start == 0 { stop } else { symbols::sub(stop, start)? };
        out.sizes[axis] = if step == 1 { span } else { symbols::floor(symbols::add(span, step - 1)?, step)? };
        if start != 0 {
            out.offset = symbols::add(self.offset, symbols::mul(start, self.strides[axis])?)?;
        }
        out.strides[axis] = symbols::mul(self.strides[axis], step)?;
        Ok(out)
    }

    /// As `select`, where a symbol is among the numbers: the index must be known to be inside.
    #[cold]
    fn symbolic_select(&self, axis: usize, index: i64) -> Result<Layout> {
        let size = self.sizes[axis];
        let from_end = symbols::require(index, Relation::Lt, 0)?;
        let at = if from_end { symbols::add(size, index)? } else { index };
        if !symbols::require(at, Relation::Ge, 0)? || !symbols::require(at, Relation::Lt, size)? {
            return Err(TensorError::Index { index, axis, size });
        }
        let mut out = self.clone();
        out.offset = symbols::add(self.offset, symbols::mul(at, self.strides[axis])?)?;
        out.sizes.remove(axis);
        out.strides.remove(axis);
        Ok(out)
    }

    /// Where index `at` of one axis begins. Strides of an empty tensor may be anything: nothing is reached there, so
    /// that the sum may wrap.
    fn offset_of(&self, axis: usize, at: i64) -> i64 {
        self.offset.wrapping_add(at.wrapping_mul(self.strides[axis]))
    }

    pub fn unsqueeze(&self, axis: usize) -> Layout {
        let mut out = self.clone();
        let stride = match axis < self.ndim() {
            true if symbols::any(&[self.sizes[axis], self.strides[axis]]) => {
                symbols::mul(self.sizes[axis], self.strides[axis]).unwrap_or(1)
            }
            true => self.sizes[axis].max(1).wrapping_mul(self.strides[axis]),
            false => 1,
        };
        out.sizes.insert(axis, 1);
        out.strides.insert(axis, stride);
        out
    }

    /// Target sizes with one -1 filled in.
    pub fn infer_sizes(&self, to: &[i64]) -> Result<Dims> {
        let numel = self.numel();
        let bad = || TensorError::Reshape { from: self.sizes.clone(), to: to.into(), numel };
        let mut sizes: Dims = to.into();
        let holes: SmallHoles = to.iter().enumerate().filter(|(_, s)| **s == -1).map(|(i, _)| i).collect();
        if holes.len() > 1 || to.iter().any(|&s| s < -1) {
            return Err(bad());
        }
        if let Some(&hole) = holes.first() {
            sizes[hole] = 1;
            let rest = checked_numel(&sizes, 1).map_err(|_| bad())?;
            if rest == 0 || numel % rest != 0 {
                return Err(bad());
            }
            sizes[hole] = numel / rest;
        }
        if checked_numel(&sizes, 1)? != numel {
            return Err(bad());
        }
        Ok(sizes)
    }

    /// The same elements in the same order under other sizes, without a copy; None when that needs one.
    pub fn view(&self, sizes: &[i64]) -> Option<Layout> {
        if self.numel() == 0 || self.is_contiguous() {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(sizes) });
        }
        let mut strides: Dims = smallvec![0; sizes.len()];
        let mut new = sizes.len();
        let mut old = self.ndim();
        while old > 0 {
            // One maximal chunk of old dimensions that are contiguous with each other.
            let inner = self.strides[old - 1];
            let mut count = self.sizes[old - 1];
            while old > 1 && (self.sizes[old - 2] == 1 || self.strides[old - 2] == count * inner) {
                old -= 1;
                count *= self.sizes[old - 1];
            }
            old -= 1;
            let mut taken = 1;
            while new > 0 && (taken < count || sizes[new - 1] == 1) {
                new -= 1;
                strides[new] = taken * inner;
                taken *= sizes[new];
            }
            if taken != count {
                return None;
            }
        }
        Some(Layout { sizes: Dims::from_slice(sizes), strides, offset: self.offset })
    }

    /// As `view`, where a symbol is among the numbers: what it depends on must be decided.
    pub fn symbolic_view(&self, sizes: &[i64]) -> Result<Option<Layout>> {
        let is = |a: i64, b: i64| symbols::require(a, Relation::Eq, b);
        let contiguous = Layout { offset: self.offset, ..Layout::contiguous(sizes) };
        if self.is_contiguous() || is(symbols::product(&self.sizes)?, 0)? {
            return Ok(Some(contiguous));
        }
        let mut strides: Dims = smallvec![0; sizes.len()];
        let (mut new, mut old) = (sizes.len(), self.ndim());
        while old > 0 {
            let inner = self.strides[old - 1];
            let mut count = self.sizes[old - 1];
            while old > 1
                && (is(self.sizes[old - 2], 1)? || is(self.strides[old - 2], symbols::mul(count, inner)?)?)
            {
                old -= 1;
                count = symbols::mul(count, self.sizes[old - 1])?;
            }
            old -= 1;
            let mut taken = 1;
            while new > 0 && (symbols::require(taken, Relation::Lt, count)? || is(sizes[new - 1], 1)?) {
                new -= 1;
                strides[new] = symbols::mul(taken, inner)?;
                taken = symbols::mul(taken, sizes[new])?;
            }
            if !is(taken, count)? {
                return Ok(None);
            }
        }
        Ok(Some(Layout { sizes: Dims::from_slice(sizes), strides, offset: self.offset }))
    }

    /// Smallest and one past the largest element index reached; (offset, offset) for empty tensors.
    pub fn extent(&self) -> Option<(i64, i64)> {
        let (mut low, mut high) = (self.offset, self.offset);
        if self.sizes.contains(&0) {
            return Some((low, high));
        }
        for (&size, &stride) in self.sizes.iter().zip(&self.strides) {
            let reach = (size - 1).checked_mul(stride)?;
            if reach >= 0 {
                high = high.checked_add(reach)?;
            } else {
                low = low.checked_add(reach)?;
            }
        }
        Some((low, high.checked_add(1)?))
    }
}

type SmallHoles = smallvec::SmallVec<[usize; 4]>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views() {
        let l = Layout::contiguous(&[2, 3, 4]);
        assert_eq!(l.strides.as_slice(), &[12, 4, 1]);
        let t = l.permute(&[2, 0, -2]).unwrap();
        assert_eq!((t.sizes.as_slice(), t.strides.as_slice()), (&[4, 2, 3][..], &[1, 12, 4][..]));
        assert!(t.view(&[24]).is_none());
        assert_eq!(t.view(&[4, 6]).unwrap().strides.as_slice(), &[1, 4]);
        assert_eq!(l.view(&[6, 4, 1]).unwrap().strides.as_slice(), &[4, 1, 1]);
        let s = l.slice(2, Some(-3), None, 2).unwrap();
        assert_eq!((s.sizes[2], s.strides[2], s.offset), (2, 2, 1));
        assert_eq!(l.select(1, -1).unwrap().offset, 8);
        assert!(l.select(1, 3).is_err());
        let e = Layout::contiguous(&[3, 1]).expand(&[2, -1, 5]).unwrap();
        assert_eq!((e.sizes.as_slice(), e.strides.as_slice()), (&[2, 3, 5][..], &[0, 1, 0][..]));
        assert_eq!(l.infer_sizes(&[-1, 6]).unwrap().as_slice(), &[4, 6]);
        assert!(l.infer_sizes(&[-1, 0]).is_err());
    }

    #[test]
    fn broadcasting_and_limits() {
        assert_eq!(broadcast(&[2, 1], &[1, 3]).unwrap().as_slice(), &[2, 3]);
        assert_eq!(broadcast(&[0], &[1]).unwrap().as_slice(), &[0]);
        assert!(matches!(
            broadcast(&[3], &[4]),
            Err(TensorError::Broadcast { axis: 0, at_a: 3, at_b: 4, .. })
        ));
        assert!(checked_numel(&[1 << 31, 1 << 31, 2], 4).is_err());
        assert!(checked_numel(&[0, 1 << 62, 1 << 62], 1).is_err());
        assert!(checked_numel(&[-1], 1).is_err());
        assert_eq!(normalize_axis(-1, 0).unwrap(), 0);
        assert!(normalize_axis(2, 2).is_err());
    }
}
