//! Reductions over any axes: brings the tensor into the form [outer, n, inner], contiguous, and shares the work
//! out. Results depend on shape and strides alone, never on the number of threads.

use crate::cpu::copy;
use crate::cpu::isa::vectorized;
use crate::cpu::pointwise::UNLOCK;
use crate::cpu::rows::{BLOCK, COLUMNS, Fold, Pairwise, columns, row};
use crate::cpu::shared::SharedMut;
use crate::fake::reduce::Reduction;
use tp_dispatch::Result;
use tp_dispatch::host::without_lock;
use tp_expr::pool;
use tp_tensor::scalar::Element;
use tp_tensor::{Device, Dims, Layout, Tensor};

/// Elements that one thread takes at least.
const GRAIN: usize = 1 << 15;
/// A row this long is shared by threads, block by block.
const LONG: usize = 1 << 18;
/// Rows of a column reduction that are one piece of work.
const TALL: usize = 1 << 10;

/// A contiguous tensor whose reduced axes are the middle one of three.
pub struct Middle {
    pub data: Tensor,
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

impl Middle {
    pub fn new(x: &Tensor, r: &Reduction) -> Result<Middle> {
        match Middle::as_it_is(x, r) {
            Some(middle) => Ok(middle),
            None => Middle::rearranged(x, r),
        }
    }

    /// Where the reduced axes stand side by side in contiguous memory; axes of size 1 may stand anywhere.
    fn as_it_is(x: &Tensor, r: &Reduction) -> Option<Middle> {
        if !x.is_contiguous() {
            return None;
        }
        let mut m = Middle { data: x.clone(), outer: 1, n: 1, inner: 1 };
        let (mut begun, mut ended) = (false, false);
        for (k, &size) in x.sizes().iter().enumerate().filter(|(_, size)| **size != 1) {
            match (r.has(k), begun) {
                (true, _) if ended => return None,
                (true, _) => m.n *= size as usize,
                (false, false) => m.outer *= size as usize,
                (false, true) => m.inner *= size as usize,
            }
            ended |= begun && !r.has(k);
            begun |= r.has(k);
        }
        Some(m)
    }

    fn rearranged(x: &Tensor, r: &Reduction) -> Result<Middle> {
        let product = |axes: &[usize]| axes.iter().map(|&k| x.sizes()[k]).product::<i64>() as usize;
        let (mut reduced, kept): (Vec<usize>, Vec<usize>) = (0..x.ndim()).partition(|&k| r.has(k));
        // Another order of axes may be contiguous as it is. The order within the reduced axes is free.
        reduced.sort_by_key(|&k| std::cmp::Reverse(x.strides()[k]));
        let ordered = |axes: [&[usize]; 2]| -> Result<Tensor> {
            let pick = |dims: &[i64]| axes.iter().flat_map(|a| a.iter().map(|&k| dims[k])).collect::<Dims>();
            Ok(x.view(&Layout { sizes: pick(x.sizes()), strides: pick(x.strides()), offset: x.offset() })?)
        };
        let (n, rest) = (product(&reduced), product(&kept));
        let last = ordered([&kept, &reduced])?;
        if !last.is_contiguous() {
            let first = ordered([&reduced, &kept])?;
            if first.is_contiguous() {
                return Ok(Middle { data: first, outer: 1, n, inner: rest });
            }
        }
        Ok(Middle { data: copy::as_contiguous(&last)?, outer: rest, n, inner: 1 })
    }
}

/// Folds the reduced axes; `finish` turns an accumulator into an element of the result.
pub fn reduce<F: Fold, O: Element>(
    x: &Tensor,
    r: &Reduction,
    finish: impl Fn(F::Acc) -> O + Sync + Send,
) -> Result<Tensor> {
    let middle = Middle::new(x, r)?;
    let out = Tensor::empty(&r.sizes, O::DTYPE, Device::CPU)?;
    if out.numel() == 0 {
        return Ok(out);
    }
    let job = Job { middle: &middle, out: &out };
    let work = || match (middle.inner, middle.n) {
        (1, n) if n < LONG => job.rows::<F, O>(&finish),
        (1, _) => job.long_rows::<F, O>(&finish),
        _ => job.columns::<F, O>(&finish),
    };
    if x.numel() >= UNLOCK {
        without_lock(work)
    } else {
        work()
    }
    Ok(out)
}

struct Job<'a> {
    middle: &'a Middle,
    out: &'a Tensor,
}

impl Job<'_> {
    /// # Safety
    /// i is an index of the contiguous output.
    #[inline(always)]
    unsafe fn write<O: Element>(&self, i: usize, value: O) {
        // SAFETY: the caller's promise; every result is written by one thread.
        unsafe { self.out.data_ptr().cast::<O>().add(i).write(value) };
    }

    fn source<T>(&self, at: usize) -> *const T {
        self.middle.data.data_ptr().cast_const().cast::<T>().wrapping_add(at)
    }

    fn rows<F: Fold, O: Element>(&self, finish: &(impl Fn(F::Acc) -> O + Sync)) {
        let n = self.middle.n;
        pool::parallel_for(self.middle.outer, GRAIN.div_ceil(n.max(1)), |range| {
            vectorized(|| {
                for i in range {
                    // SAFETY: row i of the contiguous data; i is an index of the output.
                    unsafe { self.write(i, finish(row::<F>(self.source(i * n), n))) };
                }
            });
        });
    }

    /// The same additions as `rows`, with the blocks of each row shared among threads.
    fn long_rows<F: Fold, O: Element>(&self, finish: &(impl Fn(F::Acc) -> O + Sync)) {
        let n = self.middle.n;
        let blocks = n.div_ceil(BLOCK);
        let mut partial: Vec<F::Acc> = vec![F::IDENTITY; blocks];
        for i in 0..self.middle.outer {
            let slots = SharedMut::new(partial.as_mut_ptr());
            pool::parallel_for(blocks, GRAIN.div_ceil(BLOCK), |range| {
                vectorized(|| {
                    for b in range {
                        let len = BLOCK.min(n - b * BLOCK);
                        // SAFETY: block b of row i; every slot is written by one thread.
                        unsafe { slots.at(b).write(row::<F>(self.source(i * n + b * BLOCK), len)) };
                    }
                });
            });
            let mut pairs = Pairwise::<F>::default();
            partial.iter().for_each(|&p| pairs.push(p));
            // SAFETY: i is an index of the output.
            unsafe { self.write(i, finish(pairs.finish())) };
        }
    }

    /// Strips of columns; where rows are many, pieces of them, which are joined pairwise.
    fn columns<F: Fold, O: Element>(&self, finish: &(impl Fn(F::Acc) -> O + Sync)) {
        let Middle { outer, n, inner, .. } = *self.middle;
        let (strips, pieces) = (inner.div_ceil(COLUMNS), n.div_ceil(TALL).max(1));
        let strip = |task: usize| {
            let (slab, left) = (task / strips, task % strips * COLUMNS);
            (slab, left, COLUMNS.min(inner - left))
        };
        let fold = |task: usize, piece: usize, out: &mut [F::Acc]| {
            let (slab, left, _) = strip(task);
            let top = piece * TALL;
            let source = self.source(slab * n * inner + top * inner + left);
            // SAFETY: a rectangle of the contiguous data.
            unsafe { columns::<F>(source, TALL.min(n - top), inner as isize, out) };
        };
        let give = |task: usize, sums: &[F::Acc]| {
            let (slab, left, _) = strip(task);
            for (k, &sum) in sums.iter().enumerate() {
                // SAFETY: an index of the output, which belongs to this task.
                unsafe { self.write(slab * inner + left + k, finish(sum)) };
            }
        };
        let (tasks, cost) = (outer * strips, n.min(TALL) * COLUMNS.min(inner));
        if pieces == 1 {
            pool::parallel_for(tasks, GRAIN.div_ceil(cost.max(1)), |range| {
                let mut sums = vec![F::IDENTITY; COLUMNS.min(inner)];
                vectorized(|| {
                    for task in range {
                        let sums = &mut sums[..strip(task).2];
                        sums.fill(F::IDENTITY);
                        fold(task, 0, sums);
                        give(task, sums);
                    }
                });
            });
            return;
        }
        let wide = COLUMNS.min(inner);
        let mut partial = vec![F::IDENTITY; tasks * pieces * wide];
        let slots = SharedMut::new(partial.as_mut_ptr());
        pool::parallel_for(tasks * pieces, GRAIN.div_ceil(cost.max(1)), |range| {
            vectorized(|| {
                for i in range {
                    let width = strip(i / pieces).2;
                    // SAFETY: part i of the partial results, which belongs to this thread.
                    let out = unsafe { std::slice::from_raw_parts_mut(slots.at(i * wide), width) };
                    fold(i / pieces, i % pieces, out);
                }
            });
        });
        for (task, parts) in partial.chunks_exact_mut(pieces * wide).enumerate() {
            join_pairwise::<F>(parts, wide);
            give(task, &parts[..strip(task).2]);
        }
    }
}

/// Joins parts of `wide` accumulators each into the first one: neighbours, then neighbouring pairs, and so on.
fn join_pairwise<F: Fold>(parts: &mut [F::Acc], wide: usize) {
    let mut step = wide;
    while step < parts.len() {
        for pair in parts.chunks_mut(2 * step).filter(|pair| pair.len() > step) {
            let (earlier, later) = pair.split_at_mut(step);
            for (a, b) in earlier[..wide].iter_mut().zip(&later[..wide]) {
                *a = F::join(*a, *b);
            }
        }
        step *= 2;
    }
}

/// The index along the reduced axes of the element that `better` prefers to all others; the first of equals.
pub fn arg_reduce<T: Element>(
    x: &Tensor,
    r: &Reduction,
    better: impl Fn(T, T) -> bool + Sync + Send,
) -> Result<Tensor> {
    let middle = in_order(x, r)?;
    let out = Tensor::empty(&r.sizes, i64::DTYPE, Device::CPU)?;
    let job = Job { middle: &middle, out: &out };
    let (n, inner) = (middle.n, middle.inner);
    let work = || {
        pool::parallel_for(middle.outer * inner, GRAIN.div_ceil(n.max(1)), |range| {
            for i in range {
                let start = i / inner * n * inner + i % inner;
                // SAFETY: n elements, `inner` apart, of the contiguous data.
                let at = |k: usize| unsafe { job.source::<T>(start + k * inner).read_unaligned() };
                let (mut best, mut index) = (at(0), 0i64);
                for k in 1..n {
                    let value = at(k);
                    if better(value, best) {
                        (best, index) = (value, k as i64);
                    }
                }
                // SAFETY: i is an index of the output.
                unsafe { job.write(i, index) };
            }
        });
    };
    if x.numel() >= UNLOCK {
        without_lock(work)
    } else {
        work()
    }
    Ok(out)
}

/// As `Middle::new`, but elements keep the row-major order in which indices are counted.
fn in_order(x: &Tensor, r: &Reduction) -> Result<Middle> {
    Middle::new(&copy::as_contiguous(x)?, r)
}
