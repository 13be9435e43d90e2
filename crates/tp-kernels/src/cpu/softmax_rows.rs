//! Softmax and its relatives over contiguous rows. A long row is computed by itself: largest element, exponentials and
//! their sum, scale, all while it is in the first-level cache. Short rows are computed side by side, some of them turned
//! so that an instruction serves one element of each. A row's bits are the same either way: exponentials are those of the
//! tile kernels, sums those of `rows::row`.

use crate::cpu::isa::{Work, vectorized_work};
use crate::cpu::pointwise::UNLOCK;
use crate::cpu::rows::row;
use crate::cpu::shared::SharedMut;
use crate::cpu::softmax::{GRAIN, Real};
use std::mem::MaybeUninit;
use std::ops::Range;
use tp_dispatch::host::without_lock;
use tp_expr::pool;
use tp_tensor::Tensor;

/// Rows that are computed side by side.
const SIDE: usize = 16;
/// Fewer are not worth turning.
const FEW: usize = 4;
/// The longest row that is turned. Up to so many elements `rows::row` adds in order.
const SHORT: usize = 64;

/// Room for short rows, turned: element j of each.
struct Room<T>([MaybeUninit<[T; SIDE]>; SHORT]);

impl<T: Real> Room<T> {
    fn new() -> Room<T> {
        Room([const { MaybeUninit::uninit() }; SHORT])
    }

    /// Columns of zeros for rows of `n`; none for rows too long to be turned.
    fn columns(&mut self, n: usize) -> &mut [[T; SIDE]] {
        let columns = &mut self.0[..if n <= SHORT { n } else { 0 }];
        columns.iter_mut().for_each(|column| {
            column.write([T::ZERO; SIDE]);
        });
        // SAFETY: all of them were written just now.
        unsafe { &mut *(std::ptr::from_mut(columns) as *mut [[T; SIDE]]) }
    }
}

/// One pass over rows of `n`: `body(rows, first row of each operand, of the output)`.
fn for_rows<T: Real, const N: usize>(
    operands: [&Tensor; N],
    out: &Tensor,
    n: usize,
    body: impl Fn(usize, [*const T; N], *mut T) + Sync + Send,
) {
    let rows = (out.numel() as usize).checked_div(n).unwrap_or(0);
    let sources = operands.map(|t| SharedMut::new(t.data_ptr().cast::<T>()));
    let target = SharedMut::new(out.data_ptr().cast::<T>());
    let work = || {
        pool::parallel_for(rows, GRAIN.div_ceil(n.max(1)), |range: Range<usize>| {
            let first = range.start * n;
            body(range.len(), std::array::from_fn(|k| sources[k].at(first).cast_const()), target.at(first));
        });
    };
    if out.numel() >= UNLOCK { without_lock(work) } else { work() }
}

/// How many of `left` rows are computed at once.
fn group(left: usize, n: usize) -> usize {
    let count = SIDE.min(left);
    if n <= SHORT && count >= FEW { count } else { 1 }
}

/// # Safety
/// `from` points to rows of n elements, as many as there are columns, and rows at most `SIDE`.
#[inline(always)]
unsafe fn turn<T: Copy>(from: *const T, rows: usize, to: &mut [[T; SIDE]]) {
    let n = to.len();
    for r in 0..rows.min(SIDE) {
        for (j, column) in to.iter_mut().enumerate() {
            // SAFETY: the caller's promise; foreign memory may be unaligned.
            column[r] = unsafe { from.add(r * n + j).read_unaligned() };
        }
    }
}

/// # Safety
/// As for `turn`.
#[inline(always)]
unsafe fn turn_back<T: Copy>(from: &[[T; SIDE]], rows: usize, to: *mut T) {
    let n = from.len();
    for r in 0..rows.min(SIDE) {
        for (j, column) in from.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { to.add(r * n + j).write(column[r]) };
        }
    }
}

/// Softmax, or its logarithm, of rows of `n`; both tensors are contiguous, of T and of one shape. Results go through the
/// caches whatever their size: lines are written back while the next row's exponentials are computed, and a burst past
/// the caches would be waited for.
pub fn forward<T: Real, const LOG: bool>(x: &Tensor, out: &Tensor, n: usize) {
    for_rows::<T, 1>([x], out, n, |rows, [x], out| {
        let mut room = Room::new();
        let turned = room.columns(n);
        let mut at = 0;
        while at < rows {
            let count = group(rows - at, n);
            let (x, out) = (x.wrapping_add(at * n), out.wrapping_add(at * n));
            vectorized_work(Forward::<T, LOG> { x, out, count, n, turned: &mut *turned });
            at += count;
        }
    });
}

/// A group of rows.
struct Forward<'a, T, const LOG: bool> {
    /// Readable for `count` rows of `n`.
    x: *const T,
    /// Writable for as many.
    out: *mut T,
    count: usize,
    n: usize,
    turned: &'a mut [[T; SIDE]],
}

impl<T: Real, const LOG: bool> Work for Forward<'_, T, LOG> {
    #[inline(always)]
    fn run(self) {
        // SAFETY: what the fields say.
        unsafe {
            match self.count {
                1 => forward_row::<T, LOG>(self.x, self.out, self.n),
                count => {
                    turn(self.x, count, self.turned);
                    forward_side::<T, LOG>(self.turned);
                    turn_back(self.turned, count, self.out);
                }
            }
        }
    }
}

/// # Safety
/// Both are rows of n elements; the result serves as scratch for the exponentials.
#[inline(always)]
unsafe fn forward_row<T: Real, const LOG: bool>(x: *const T, out: *mut T, n: usize) {
    // SAFETY: the caller's promise; foreign memory may be unaligned.
    unsafe {
        let largest = row::<T::Max>(x, n);
        for i in 0..n {
            out.add(i).write((x.add(i).read_unaligned() - largest).exp());
        }
        let total = row::<T::Sum>(out, n);
        let factor = if LOG { total.ln() } else { total.inverse() };
        for i in 0..n {
            let value =
                if LOG { x.add(i).read_unaligned() - largest - factor } else { out.add(i).read() * factor };
            out.add(i).write(value);
        }
    }
}

/// Of turned rows, in place.
#[inline(always)]
fn forward_side<T: Real, const LOG: bool>(columns: &mut [[T; SIDE]]) {
    let mut largest = [T::LOWEST; SIDE];
    for column in columns.iter() {
        for (m, &v) in largest.iter_mut().zip(column) {
            *m = if *m > v { *m } else { v };
        }
    }
    let mut total = [T::ZERO; SIDE];
    for column in columns.iter_mut() {
        for ((v, &m), t) in column.iter_mut().zip(&largest).zip(&mut total) {
            let e = (*v - m).exp();
            *t = *t + e;
            if !LOG {
                *v = e;
            }
        }
    }
    for t in &mut total {
        *t = if LOG { t.ln() } else { t.inverse() };
    }
    for column in columns.iter_mut() {
        for ((v, &m), &t) in column.iter_mut().zip(&largest).zip(&total) {
            *v = if LOG { *v - m - t } else { *v * t };
        }
    }
}

/// The gradient through softmax, or through its logarithm, of rows of `n`; `y` is what the forward gave.
pub fn backward<T: Real, const LOG: bool>(grad: &Tensor, y: &Tensor, out: &Tensor, n: usize) {
    for_rows::<T, 2>([grad, y], out, n, |rows, [grad, y], out| {
        let mut rooms = [Room::new(), Room::new()];
        let [g, h] = rooms.each_mut().map(|room| room.columns(n));
        let mut at = 0;
        while at < rows {
            let count = group(rows - at, n);
            let (grad, y) = (grad.wrapping_add(at * n), y.wrapping_add(at * n));
            let out = out.wrapping_add(at * n);
            vectorized_work(Backward::<T, LOG> { grad, y, out, count, n, turned: [&mut *g, &mut *h] });
            at += count;
        }
    });
}

/// A group of rows.
struct Backward<'a, T, const LOG: bool> {
    /// Readable for `count` rows of `n`, as is `y`.
    grad: *const T,
    y: *const T,
    /// Writable for as many.
    out: *mut T,
    count: usize,
    n: usize,
    turned: [&'a mut [[T; SIDE]]; 2],
}

impl<T: Real, const LOG: bool> Work for Backward<'_, T, LOG> {
    #[inline(always)]
    fn run(self) {
        let (count, n) = (self.count, self.n);
        // SAFETY: what the fields say.
        unsafe {
            if count == 1 {
                return backward_row::<T, LOG>(self.grad, self.y, self.out, n);
            }
            let [g, y] = self.turned;
            turn(self.grad, count, g);
            turn(self.y, count, y);
            backward_side::<T, LOG>(g, y);
            turn_back(y, count, self.out);
        }
    }
}

/// # Safety
/// All are rows of n elements; the result holds grad * y on the way.
#[inline(always)]
unsafe fn backward_row<T: Real, const LOG: bool>(grad: *const T, y: *const T, out: *mut T, n: usize) {
    // SAFETY: the caller's promise; foreign memory may be unaligned.
    unsafe {
        if LOG {
            let total = row::<T::Sum>(grad, n);
            for i in 0..n {
                let share = y.add(i).read_unaligned().exp() * total;
                out.add(i).write(grad.add(i).read_unaligned() - share);
            }
            return;
        }
        for i in 0..n {
            out.add(i).write(grad.add(i).read_unaligned() * y.add(i).read_unaligned());
        }
        let total = row::<T::Sum>(out, n);
        for i in 0..n {
            out.add(i).write(out.add(i).read() - y.add(i).read_unaligned() * total);
        }
    }
}

/// Of turned rows; the result is where the forward's was.
#[inline(always)]
fn backward_side<T: Real, const LOG: bool>(grad: &[[T; SIDE]], y: &mut [[T; SIDE]]) {
    let mut total = [T::ZERO; SIDE];
    for (g, y) in grad.iter().zip(y.iter()) {
        for ((&g, &y), t) in g.iter().zip(y).zip(&mut total) {
            *t = *t + if LOG { g } else { g * y };
        }
    }
    for (g, y) in grad.iter().zip(y.iter_mut()) {
        for ((&g, y), &t) in g.iter().zip(y).zip(&total) {
            *y = if LOG { g - y.exp() * t } else { g * *y - *y * t };
        }
    }
}
