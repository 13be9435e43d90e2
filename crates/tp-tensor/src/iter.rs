//! Iteration over several operands of one shape: broadcast their strides, drop and merge dimensions, and hand
//! kernels the few loops that are left. Counts elements.

use crate::dim::Dims;
use smallvec::SmallVec;

/// A collapsed iteration space. `strides[k]` belongs to operand k (outputs and inputs in the caller's order).
#[derive(Clone, Debug, PartialEq)]
pub struct LoopNest {
    pub sizes: Dims,
    pub strides: SmallVec<[Dims; 4]>,
}

/// Strides of an operand of `sizes`/`strides` seen through the broadcast shape `to`.
pub fn broadcast_strides(sizes: &[i64], strides: &[i64], to: &[i64]) -> Dims {
    let lead = to.len() - sizes.len();
    let mut out: Dims = SmallVec::from_elem(0, to.len());
    for axis in 0..sizes.len() {
        if sizes[axis] != 1 {
            out[lead + axis] = strides[axis];
        }
    }
    out
}

impl LoopNest {
    /// Operands given by (sizes, strides), all broadcastable to `shape`.
    pub fn new(shape: &[i64], operands: &[(&[i64], &[i64])]) -> LoopNest {
        let strides: SmallVec<[Dims; 4]> =
            operands.iter().map(|(sizes, strides)| broadcast_strides(sizes, strides, shape)).collect();
        let mut nest = LoopNest { sizes: Dims::from_slice(shape), strides };
        nest.collapse();
        nest
    }

    /// Drops dimensions of size 1 and merges neighbours that are contiguous with each other for every operand.
    /// An empty nest (no dimension left) is one element; a nest with a zero size has none.
    fn collapse(&mut self) {
        let mut kept = 0usize;
        for axis in 0..self.sizes.len() {
            let size = self.sizes[axis];
            if size == 1 {
                continue;
            }
            let merges = kept > 0 && self.strides.iter().all(|s| s[kept - 1] == s[axis].wrapping_mul(size));
            let target = if merges { kept - 1 } else { kept };
            self.sizes[target] = if merges { self.sizes[target] * size } else { size };
            for strides in &mut self.strides {
                strides[target] = strides[axis];
            }
            kept = target + 1;
        }
        self.sizes.truncate(kept);
        for strides in &mut self.strides {
            strides.truncate(kept);
        }
    }

    pub fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// True when operand `k` walks memory one element at a time through the whole nest.
    pub fn is_flat(&self, k: usize) -> bool {
        self.sizes.is_empty() || (self.sizes.len() == 1 && self.strides[k][0] == 1)
    }

    /// True when operand `k` is one element for the whole nest.
    pub fn is_scalar(&self, k: usize) -> bool {
        self.strides[k].iter().all(|&s| s == 0)
    }

    /// Calls `row(offsets, inner_size)` for every innermost row; offsets are element offsets per operand and
    /// the innermost strides are `self.inner_stride(k)`.
    pub fn for_each_row(&self, mut row: impl FnMut(&[i64], i64)) {
        if self.sizes.contains(&0) {
            return;
        }
        let mut offsets: SmallVec<[i64; 4]> = SmallVec::from_elem(0, self.strides.len());
        let Some((&inner, outer)) = self.sizes.split_last() else {
            row(&offsets, 1);
            return;
        };
        let mut index: Dims = SmallVec::from_elem(0, outer.len());
        loop {
            row(&offsets, inner);
            let mut axis = outer.len();
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
                    *offset += strides[axis];
                }
                if index[axis] < outer[axis] {
                    break;
                }
                for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
                    *offset -= strides[axis] * index[axis];
                }
                index[axis] = 0;
            }
        }
    }

    /// Innermost stride of operand `k`.
    pub fn inner_stride(&self, k: usize) -> i64 {
        self.strides[k].last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collapses_and_walks() {
        let nest = LoopNest::new(&[2, 3, 4], &[(&[2, 3, 4], &[12, 4, 1]), (&[4], &[1])]);
        assert_eq!(nest.sizes.as_slice(), &[6, 4]);
        assert_eq!(nest.strides[1].as_slice(), &[0, 1]);
        let flat = LoopNest::new(&[2, 3, 4], &[(&[2, 3, 4], &[12, 4, 1])]);
        assert!(flat.is_flat(0));
        let t = LoopNest::new(&[3, 2], &[(&[3, 2], &[1, 3])]);
        let mut seen = Vec::new();
        t.for_each_row(|o, n| (0..n).for_each(|i| seen.push(o[0] + i * t.inner_stride(0))));
        assert_eq!(seen, [0, 3, 1, 4, 2, 5]);
        let scalar = LoopNest::new(&[], &[(&[], &[])]);
        let mut calls = 0;
        scalar.for_each_row(|_, n| calls += n);
        assert_eq!(calls, 1);
        let empty = LoopNest::new(&[2, 0], &[(&[2, 0], &[1, 1])]);
        empty.for_each_row(|_, _| panic!("an empty nest has no row"));
    }
}
