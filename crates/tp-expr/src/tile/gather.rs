//! Strided operands: the collapsed iteration shape, its blocks, and the copies between strided memory and a tile.

use smallvec::SmallVec;

use super::Strided;

/// An iteration shape with size-1 dimensions dropped, the others in the order of the first output's strides, and
/// merged where every operand allows it.
pub(super) struct Collapsed {
    pub shape: SmallVec<[usize; 6]>,
    /// Per operand, the strides of the collapsed dimensions.
    pub strides: SmallVec<[SmallVec<[isize; 6]>; 6]>,
}

impl Collapsed {
    /// `main` is the operand whose memory order is followed.
    pub fn new(shape: &[usize], operands: &[Strided<'_>], main: usize) -> Collapsed {
        let mut order: SmallVec<[usize; 6]> = (0..shape.len()).filter(|&dim| shape[dim] != 1).collect();
        order.sort_by_key(|&dim| std::cmp::Reverse(operands[main].strides[dim].unsigned_abs()));
        let mut out =
            Collapsed { shape: SmallVec::new(), strides: operands.iter().map(|_| SmallVec::new()).collect() };
        for dim in order {
            let size = shape[dim];
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

/// Elements of a block's side: a block is a tile.
const SIDE: usize = 32;

/// The iteration space in square blocks of its inner dimension and another one, for operands whose memory runs along
/// that other one: each of their cache lines is then used up while it is there.
pub(super) struct Blocks {
    dim: usize,
    rows: usize,
    columns: usize,
    count: usize,
}

impl Blocks {
    /// Elements of a full block.
    pub const TILE: usize = SIDE * SIDE;

    /// The blocks, if an operand asks for them.
    pub fn new(c: &Collapsed) -> Option<Blocks> {
        let inner = c.shape.len().checked_sub(1)?;
        let across = |strides: &SmallVec<[isize; 6]>| {
            let far = strides[inner].unsigned_abs() > 1;
            (0..inner).find(|&dim| far && strides[dim].unsigned_abs() == 1 && c.shape[dim] >= 8)
        };
        let dim = c.strides.iter().find_map(across).filter(|_| c.shape[inner] >= 8)?;
        let (rows, columns) = (c.shape[dim].div_ceil(SIDE), c.shape[inner].div_ceil(SIDE));
        let others = c.shape.iter().enumerate().filter(|&(d, _)| d != dim && d != inner);
        let count = rows * columns * others.map(|(_, &size)| size).product::<usize>();
        Some(Blocks { dim, rows, columns, count })
    }

    /// As many positions as full blocks have.
    pub fn positions(&self) -> usize {
        self.count * Blocks::TILE
    }

    fn row_and_column(&self, block: usize) -> (usize, usize) {
        (block / self.columns % self.rows * SIDE, block % self.columns * SIDE)
    }

    /// The two sizes of a block.
    pub fn shape(&self, c: &Collapsed, block: usize) -> [usize; 2] {
        let (row, column) = self.row_and_column(block);
        let inner = c.shape.len() - 1;
        [SIDE.min(c.shape[self.dim] - row), SIDE.min(c.shape[inner] - column)]
    }

    /// The offset of a block's first element in an operand, and the operand's two strides.
    pub fn locate(&self, c: &Collapsed, strides: &[isize], block: usize) -> (isize, [isize; 2]) {
        let (row, column) = self.row_and_column(block);
        let inner = c.shape.len() - 1;
        let mut offset = row as isize * strides[self.dim] + column as isize * strides[inner];
        let mut outer = block / (self.rows * self.columns);
        for dim in (0..inner).rev().filter(|&dim| dim != self.dim) {
            offset += (outer % c.shape[dim]) as isize * strides[dim];
            outer /= c.shape[dim];
        }
        (offset, [strides[self.dim], strides[inner]])
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
        unsafe { copy_element(direction, memory.offset(i as isize * stride), tile.add(i)) };
    }
}

#[inline(always)]
unsafe fn copy_element<T: Copy>(direction: Direction, element: *mut T, tile: *mut T) {
    unsafe {
        match direction {
            Direction::Gather => tile.write_unaligned(element.read_unaligned()),
            Direction::Scatter => element.write_unaligned(tile.read_unaligned()),
        }
    }
}

/// Copies a block of `shape` between memory and a row-major tile, along the memory's lines.
///
/// # Safety
/// As for [`copy_tile`].
pub(super) unsafe fn copy_block(
    direction: Direction,
    shape: [usize; 2],
    strides: [isize; 2],
    memory: *mut u8,
    tile: *mut u8,
    width: usize,
) {
    unsafe {
        if strides[1].unsigned_abs() <= strides[0].unsigned_abs() {
            return copy_tile(direction, &shape, &strides, memory, tile, width, 0, shape[0] * shape[1]);
        }
        match width {
            1 => copy_transposed::<u8>(direction, shape, strides, memory, tile),
            2 => copy_transposed::<u16>(direction, shape, strides, memory, tile),
            4 => copy_transposed::<u32>(direction, shape, strides, memory, tile),
            _ => copy_transposed::<u64>(direction, shape, strides, memory, tile),
        }
    }
}

unsafe fn copy_transposed<T: Copy>(
    direction: Direction,
    [rows, columns]: [usize; 2],
    [down, across]: [isize; 2],
    memory: *mut u8,
    tile: *mut u8,
) {
    let (memory, tile) = (memory as *mut T, tile as *mut T);
    for column in 0..columns {
        for row in 0..rows {
            unsafe {
                let element = memory.offset(column as isize * across + row as isize * down);
                copy_element(direction, element, tile.add(row * columns + column));
            }
        }
    }
}
