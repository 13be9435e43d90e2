//! Softmax along an axis that is not the last: strips of neighbouring columns, row by row, without turning the
//! tensor around.

use crate::cpu::isa::vectorized;
use crate::cpu::pointwise::UNLOCK;
use crate::cpu::rows::{Fold, columns};
use crate::cpu::shared::SharedMut;
use crate::cpu::softmax::{GRAIN, Real, exp_kernel};
use std::sync::{Mutex, PoisonError};
use tp_dispatch::Result;
use tp_dispatch::host::without_lock;
use tp_expr::{ExprError, TileKernel, pool};
use tp_tensor::Tensor;

/// Columns of a strip.
const STRIP: usize = 512;
/// Rows whose exponentials are added while they are in cache.
const ROWS: usize = 64;

/// A contiguous [outer, n, inner] to be normalised along the middle.
struct Job<'a, T> {
    x: SharedMut<T>,
    out: SharedMut<T>,
    n: usize,
    inner: usize,
    exp: &'a TileKernel,
    log: bool,
}

/// `out` has the shape and dtype of `x`; both are contiguous and `axis` is not the last.
pub fn softmax_strips<T: Real>(x: &Tensor, out: &Tensor, axis: usize, log: bool) -> Result<()> {
    // The other sizes may be of any magnitude beside a zero.
    if x.numel() == 0 {
        return Ok(());
    }
    let inner = x.sizes()[axis + 1..].iter().product::<i64>() as usize;
    let outer = x.sizes()[..axis].iter().product::<i64>() as usize;
    let n = x.sizes()[axis] as usize;
    let job = Job {
        x: SharedMut::new(x.data_ptr().cast::<T>()),
        out: SharedMut::new(out.data_ptr().cast::<T>()),
        n,
        inner,
        exp: exp_kernel(T::DTYPE)?,
        log,
    };
    let strips = inner.div_ceil(STRIP);
    let work = || {
        let failure = Mutex::new(None);
        pool::parallel_for(outer * strips, GRAIN.div_ceil((n * STRIP).max(1)), |range| {
            for task in range {
                let (slab, left) = (task / strips, task % strips * STRIP);
                // SAFETY: a strip within both tensors, which belongs to one thread.
                if let Err(e) = unsafe { job.strip(slab * n * inner + left, STRIP.min(inner - left)) } {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                    return;
                }
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner)
    };
    let failure = if x.numel() >= UNLOCK { without_lock(work) } else { work() };
    failure.map_or(Ok(()), |e| Err(e.into()))
}

impl<T: Real> Job<'_, T> {
    /// # Safety
    /// `width` columns from `start` on lie within both tensors.
    unsafe fn strip(&self, start: usize, width: usize) -> std::result::Result<(), ExprError> {
        let (x, out, step) = (self.x.at(start), self.out.at(start), self.inner);
        let mut largest = [T::Max::IDENTITY; STRIP];
        let mut total = [T::Sum::IDENTITY; STRIP];
        let (largest, total) = (&mut largest[..width], &mut total[..width]);
        // SAFETY: the caller's promise.
        unsafe {
            vectorized(|| columns::<T::Max>(x, self.n, step as isize, largest));
            for top in (0..self.n).step_by(ROWS) {
                let rows = ROWS.min(self.n - top);
                for i in top..top + rows {
                    let from = [x.add(i * step).cast_const().cast(), largest.as_ptr().cast()];
                    self.exp.run_flat(width, &from, 0, &[out.add(i * step).cast()])?;
                }
                vectorized(|| columns::<T::Sum>(out.add(top * step), rows, step as isize, total));
            }
            for t in total.iter_mut() {
                *t = if self.log { t.ln() } else { t.inverse() };
            }
            vectorized(|| {
                for i in 0..self.n {
                    let (from, to) = (x.add(i * step), out.add(i * step));
                    for k in 0..width {
                        let value = if self.log {
                            from.add(k).read_unaligned() - largest[k] - total[k]
                        } else {
                            to.add(k).read() * total[k]
                        };
                        to.add(k).write(value);
                    }
                }
            });
        }
        Ok(())
    }
}
