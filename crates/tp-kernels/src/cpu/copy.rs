//! Copies between layouts. Rows that are contiguous on both sides are moved as bytes; a transposed copy goes
//! through small blocks, so that both sides stay in cache.

use crate::cpu::cast;
use crate::cpu::pointwise::UNLOCK;
use tp_dispatch::Result;
use tp_dispatch::host::without_lock;
use tp_expr::pool;
use tp_tensor::iter::LoopNest;
use tp_tensor::{Device, Layout, Tensor};

/// Bytes that one thread copies at least.
const GRAIN: usize = 1 << 18;
/// Edge of the square that a transposed copy works on.
const BLOCK: i64 = 32;

/// A contiguous copy.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    let out = Tensor::empty(x.sizes(), x.dtype(), Device::CPU)?;
    copy_into(&out, x)?;
    Ok(out)
}

/// `x` itself when it is contiguous already.
pub fn as_contiguous(x: &Tensor) -> Result<Tensor> {
    if x.is_contiguous() { Ok(x.clone()) } else { contiguous(x) }
}

/// The elements in row-major order in one dimension: a view where `x` is contiguous, else a copy.
pub fn flat(x: &Tensor) -> Result<Tensor> {
    let x = as_contiguous(x)?;
    Ok(x.view(&Layout { offset: x.offset(), ..Layout::contiguous(&[x.numel()]) })?)
}

/// Writes `source`, which broadcasts to `out`, into it. They must not overlap except at equal positions.
pub fn copy_into(out: &Tensor, source: &Tensor) -> Result<()> {
    if source.dtype() != out.dtype() {
        return cast::cast_into(out, source);
    }
    if out.numel() == 0 {
        return Ok(());
    }
    let nest =
        LoopNest::new(out.sizes(), &[(out.sizes(), out.strides()), (source.sizes(), source.strides())]);
    let job = Copy { nest, out: out.clone(), source: source.clone() };
    if out.numel() >= UNLOCK {
        without_lock(|| job.run())
    } else {
        job.run()
    }
    Ok(())
}

struct Copy {
    nest: LoopNest,
    out: Tensor,
    source: Tensor,
}

impl Copy {
    fn run(&self) {
        if self.nest.is_flat(0) && self.nest.is_flat(1) {
            return self.bytes();
        }
        match self.out.dtype().itemsize() {
            1 => self.elements::<u8>(),
            2 => self.elements::<u16>(),
            4 => self.elements::<u32>(),
            _ => self.elements::<u64>(),
        }
    }

    fn bytes(&self) {
        let total = self.out.nbytes();
        pool::parallel_for(total, GRAIN, |range| {
            // SAFETY: both sides have `total` bytes in a row.
            unsafe {
                let (to, from) = (self.out.data_ptr(), self.source.data_ptr());
                // Equal positions may coincide.
                std::ptr::copy(from.add(range.start), to.add(range.start), range.len());
            }
        });
    }

    fn elements<T: std::marker::Copy + Default>(&self) {
        // The outermost loop is split among threads; the rest is walked in order.
        let (&first, rest) = match self.nest.sizes.split_first() {
            Some(split) => split,
            None => return self.walk::<T>(&self.nest, 0, 0),
        };
        let inner = LoopNest {
            sizes: rest.into(),
            strides: self.nest.strides.iter().map(|s| s[1..].into()).collect(),
        };
        if rest.is_empty() {
            return self.walk::<T>(&self.nest, 0, 0);
        }
        let two = rest.len() == 1 && self.nest.strides[1][1] != 1 && self.nest.strides[1][0] == 1;
        let per_row = rest.iter().product::<i64>() as usize * size_of::<T>();
        pool::parallel_for(first as usize, GRAIN.div_ceil(per_row.max(1)).max(BLOCK as usize), |range| {
            let (start, stop) = (range.start as i64, range.end as i64);
            if two {
                return self.transposed::<T>(start, stop);
            }
            for i in start..stop {
                self.walk::<T>(&inner, i * self.nest.strides[0][0], i * self.nest.strides[1][0]);
            }
        });
    }

    fn walk<T: std::marker::Copy>(&self, nest: &LoopNest, out_at: i64, source_at: i64) {
        // SAFETY: offsets of a nest over these tensors stay inside of them.
        unsafe {
            let to = self.out.data_ptr().cast::<T>().offset(out_at as isize);
            let from = self.source.data_ptr().cast::<T>().offset(source_at as isize);
            let (step_to, step_from) = (nest.inner_stride(0) as isize, nest.inner_stride(1) as isize);
            nest.for_each_row(|offsets, n| {
                let (mut to, mut from) = (to.offset(offsets[0] as isize), from.offset(offsets[1] as isize));
                if step_to == 1 && step_from == 1 {
                    return std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), n as usize * size_of::<T>());
                }
                for _ in 0..n {
                    to.write_unaligned(from.read_unaligned());
                    to = to.wrapping_offset(step_to);
                    from = from.wrapping_offset(step_from);
                }
            });
        }
    }

    /// Two dimensions, the source contiguous along the outer one. Each block goes through a buffer, so that every
    /// cache line of the source is read once, however far apart its rows lie.
    fn transposed<T: std::marker::Copy + Default>(&self, start: i64, stop: i64) {
        let (rows, columns) = (&self.nest.strides[0], &self.nest.strides[1]);
        let width = self.nest.sizes[1];
        let (to, from) = (self.out.data_ptr().cast::<T>(), self.source.data_ptr().cast::<T>());
        let mut buffer = [T::default(); (BLOCK * BLOCK) as usize];
        for top in (start..stop).step_by(BLOCK as usize) {
            let height = BLOCK.min(stop - top);
            for left in (0..width).step_by(BLOCK as usize) {
                let across = BLOCK.min(width - left);
                // SAFETY: indices within the shape; the buffer holds a block.
                unsafe {
                    for j in 0..across {
                        let line = from.offset((top + (left + j) * columns[1]) as isize);
                        for i in 0..height {
                            buffer[(j * BLOCK + i) as usize] = line.offset(i as isize).read_unaligned();
                        }
                    }
                    for i in 0..height {
                        let line = to.offset(((top + i) * rows[0] + left * rows[1]) as isize);
                        for j in 0..across {
                            let value = buffer[(j * BLOCK + i) as usize];
                            line.offset((j * rows[1]) as isize).write_unaligned(value);
                        }
                    }
                }
            }
        }
    }
}
