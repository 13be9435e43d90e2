//! Strided operands: the collapsed iteration shape, and the copies between strided memory and a tile.

use smallvec::SmallVec;

use super::Strided;

/// An iteration shape with size-1 dimensions dropped and dimensions merged where every operand allows it.
pub(super) struct Collapsed {
    pub shape: SmallVec<[usize; 6]>,
    /// Per operand, the strides of the collapsed dimensions.
    pub strides: SmallVec<[SmallVec<[isize; 6]>; 6]>,
}

impl Collapsed {
    pub fn new(shape: &[usize], operands: &[Strided<'_>]) -> Collapsed {
        let mut out =
            Collapsed { shape: SmallVec::new(), strides: operands.iter().map(|_| SmallVec::new()).collect() };
        for (dim, &size) in shape.iter().enumerate() {
            if size == 1 {
                continue;
            }
            let merges = !out.shape.is_empty()
                && operands.iter().zip(&out.strides).all(|(operand, strides)| {
                    strides.last().is_some_and(|&outer| outer == operand.strides[dim] * size as isize)
                });
            if merges {
                let last = out.shape.len() - 1;
                out.shape[last] *= size;
                for (strides, operand) in out.strides.iter_mut().zip(operands) {
                    strides[last] = operand.strides[dim];
                }
            } else {
                out.shape.push(size);
                for (strides, operand) in out.strides.iter_mut().zip(operands) {
                    strides.push(operand.strides[dim]);
                }
            }
        }
        out
    }

    /// Whether operand `k` visits its memory in order, one element after another.
    pub fn is_contiguous(&self, k: usize) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.shape.iter().zip(&self.strides[k]).rev() {
            if stride != expected {
                return false;
            }
            expected *= size as isize;
        }
        true
    }

    /// Whether operand `k` is one element for all.
    pub fn is_uniform(&self, k: usize) -> bool {
        self.strides[k].iter().all(|&stride| stride == 0)
    }
}

/// The direction of a copy between an operand's memory and a tile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Gather,
    Scatter,
}

/// Copies the elements `start .. start + n` of the row-major iteration space between `memory` and `tile`.
///
/// # Safety
/// `memory` must be valid at every offset the shape and strides reach, `tile` for `n` elements of `width` bytes.
pub(super) unsafe fn copy_tile(
    direction: Direction,
    shape: &[usize],
    strides: &[isize],
    memory: *mut u8,
    tile: *mut u8,
    width: usize,
    start: usize,
    n: usize,
) {
    let Some((&inner, outer)) = shape.split_last() else {
        unsafe { copy_row(direction, memory, 0, tile, width, n) };
        return;
    };
    let inner_stride = strides[outer.len()];
    let mut index: SmallVec<[usize; 6]> = SmallVec::from_elem(0, outer.len());
    let (mut row, mut column) = (start / inner, start % inner);
    let mut offset = 0_isize;
    for dim in (0..outer.len()).rev() {
        index[dim] = row % outer[dim];
        row /= outer[dim];
        offset += index[dim] as isize * strides[dim];
    }
    let mut done = 0;
    while done < n {
        let run = (inner - column).min(n - done);
        let first = offset + column as isize * inner_stride;
        unsafe {
            let memory = memory.offset(first * width as isize);
            copy_row(direction, memory, inner_stride, tile.add(done * width), width, run);
        }
        done += run;
        column = 0;
        for dim in (0..outer.len()).rev() {
            index[dim] += 1;
            offset += strides[dim];
            if index[dim] < outer[dim] {
                break;
            }
            offset -= outer[dim] as isize * strides[dim];
            index[dim] = 0;
        }
    }
}

unsafe fn copy_row(
    direction: Direction,
    memory: *mut u8,
    stride: isize,
    tile: *mut u8,
    width: usize,
    n: usize,
) {
    unsafe {
        match (stride, direction) {
            (1, Direction::Gather) => std::ptr::copy_nonoverlapping(memory, tile, n * width),
            (1, Direction::Scatter) => std::ptr::copy_nonoverlapping(tile, memory, n * width),
            _ => match width {
                1 => copy_strided::<u8>(direction, memory, stride, tile, n),
                2 => copy_strided::<u16>(direction, memory, stride, tile, n),
                4 => copy_strided::<u32>(direction, memory, stride, tile, n),
                _ => copy_strided::<u64>(direction, memory, stride, tile, n),
            },
        }
    }
}

unsafe fn copy_strided<T: Copy>(
    direction: Direction,
    memory: *mut u8,
    stride: isize,
    tile: *mut u8,
    n: usize,
) {
    let (memory, tile) = (memory as *mut T, tile as *mut T);
    for i in 0..n {
        unsafe {
            let element = memory.offset(i as isize * stride);
            match direction {
                Direction::Gather => tile.add(i).write_unaligned(element.read_unaligned()),
                Direction::Scatter => element.write_unaligned(tile.add(i).read_unaligned()),
            }
        }
    }
}
