//! Loops over one contiguous row, or over columns of contiguous rows: sums that are accurate and the same whatever
//! the number of threads, and folds without an order to keep.
//!
//! # Sums
//! A row is cut into blocks of fixed size; a block is added in `LANES` independent lanes, lanes and blocks are
//! added pairwise. So the error grows with the logarithm of the length, and the order of additions depends on the
//! length alone.

use std::marker::PhantomData;
use tp_tensor::scalar::{Bool, Element};

/// Independent accumulators of one block: four vectors of the widest kind.
const LANES: usize = 64;
/// Elements that a lane takes at once: the compiler keeps lanes in memory between two steps, not within one.
const STEP: usize = 8;
/// Elements of a block.
pub const BLOCK: usize = 4096;
/// Columns that are accumulated side by side: a row of them is a page at most, all accumulators stay in the
/// first-level cache.
pub const COLUMNS: usize = 2048;
/// Rows added into one accumulator before partial results are added pairwise.
const RUN: usize = 64;

/// An associative operation with an identity, from elements to an accumulator.
pub trait Fold {
    type In: Element;
    type Acc: Copy + Send + Sync;
    const IDENTITY: Self::Acc;
    fn load(x: Self::In) -> Self::Acc;
    fn join(a: Self::Acc, b: Self::Acc) -> Self::Acc;
}

pub struct Sum<T>(PhantomData<T>);
/// The sum of int64, which leaves 64 bits long before it leaves 128.
pub struct WideSum;
pub struct Product<T>(PhantomData<T>);
pub struct Max<T>(PhantomData<T>);
/// The largest element that is a number; whatever there is of NaNs alone.
pub struct Peak<T>(PhantomData<T>);
pub struct Min<T>(PhantomData<T>);
pub struct Any;
pub struct All;

macro_rules! fold {
    ($($fold:ty, $in:ty => $acc:ty, $identity:expr, $load:expr, $join:expr;)*) => {$(
        impl Fold for $fold {
            type In = $in;
            type Acc = $acc;
            const IDENTITY: $acc = $identity;
            #[inline(always)]
            fn load(x: $in) -> $acc {
                $load(x)
            }
            #[inline(always)]
            fn join(a: $acc, b: $acc) -> $acc {
                $join(a, b)
            }
        }
    )*};
}

// Elements of the other dtypes are converted first: a loop per dtype would not pay for its code.
fold! {
    Sum<f32>, f32 => f32, 0.0, |x| x, |a: f32, b: f32| a + b;
    Sum<f64>, f64 => f64, 0.0, |x| x, |a: f64, b: f64| a + b;
    Sum<Bool>, Bool => i64, 0, Bool::to_i64, i64::wrapping_add;
    Sum<u8>, u8 => i64, 0, i64::from, i64::wrapping_add;
    Sum<i32>, i32 => i64, 0, i64::from, i64::wrapping_add;
    Sum<i64>, i64 => i64, 0, |x| x, i64::wrapping_add;
    WideSum, i64 => i128, 0, i128::from, |a, b| a + b;
    Product<f32>, f32 => f32, 1.0, |x| x, |a: f32, b: f32| a * b;
    Product<f64>, f64 => f64, 1.0, |x| x, |a: f64, b: f64| a * b;
    Product<i64>, i64 => i64, 1, |x| x, i64::wrapping_mul;
    Max<f32>, f32 => f32, f32::NEG_INFINITY, |x| x, |a: f32, b: f32| if a.is_nan() || a > b { a } else { b };
    Max<f64>, f64 => f64, f64::NEG_INFINITY, |x| x, |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
    Peak<f32>, f32 => f32, f32::NEG_INFINITY, |x| x, f32::max;
    Peak<f64>, f64 => f64, f64::NEG_INFINITY, |x| x, f64::max;
    Max<i32>, i32 => i32, i32::MIN, |x| x, |a: i32, b: i32| a.max(b);
    Max<i64>, i64 => i64, i64::MIN, |x| x, |a: i64, b: i64| a.max(b);
    Min<f32>, f32 => f32, f32::INFINITY, |x| x, |a: f32, b: f32| if a.is_nan() || a < b { a } else { b };
    Min<f64>, f64 => f64, f64::INFINITY, |x| x, |a: f64, b: f64| if a.is_nan() || a < b { a } else { b };
    Min<i32>, i32 => i32, i32::MAX, |x| x, |a: i32, b: i32| a.min(b);
    Min<i64>, i64 => i64, i64::MAX, |x| x, |a: i64, b: i64| a.min(b);
    Any, Bool => bool, false, Bool::get, |a, b| a | b;
    All, Bool => bool, true, Bool::get, |a, b| a & b;
}

/// The lanes of a block, where no vector of them crosses a cache line.
#[repr(align(64))]
struct Lanes<T>([T; LANES]);

/// Joins S elements to each lane, in order.
///
/// # Safety
/// `p` points to S * LANES elements.
#[inline(always)]
unsafe fn step<F: Fold, const S: usize>(p: *const F::In, lanes: &mut [F::Acc; LANES]) {
    for (k, lane) in lanes.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *lane =
            (0..S).fold(*lane, |a, s| F::join(a, F::load(unsafe { p.add(s * LANES + k).read_unaligned() })));
    }
}

/// One block of at most `BLOCK` elements.
///
/// # Safety
/// `p` points to n elements.
#[inline(always)]
unsafe fn block<F: Fold>(p: *const F::In, n: usize) -> F::Acc {
    if n <= LANES {
        // A plain loop, in order.
        // SAFETY: the caller's promise.
        return (0..n).fold(F::IDENTITY, |a, i| F::join(a, F::load(unsafe { p.add(i).read_unaligned() })));
    }
    let mut lanes = Lanes([F::IDENTITY; LANES]);
    let lanes = &mut lanes.0;
    let whole = n / LANES * LANES;
    let mut at = 0;
    while at + STEP * LANES <= whole {
        // SAFETY: at + STEP * LANES <= n.
        unsafe { step::<F, STEP>(p.add(at), lanes) };
        at += STEP * LANES;
    }
    while at < whole {
        // SAFETY: at + LANES <= n.
        unsafe { step::<F, 1>(p.add(at), lanes) };
        at += LANES;
    }
    for (k, lane) in lanes.iter_mut().enumerate().take(n - whole) {
        // SAFETY: whole + k < n.
        *lane = F::join(*lane, F::load(unsafe { p.add(whole + k).read_unaligned() }));
    }
    let mut width = LANES / 2;
    while width > 0 {
        for k in 0..width {
            lanes[k] = F::join(lanes[k], lanes[k + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// A row of n elements.
///
/// # Safety
/// `p` points to n elements.
#[inline(always)]
pub unsafe fn row<F: Fold>(p: *const F::In, n: usize) -> F::Acc {
    if n <= BLOCK {
        // SAFETY: the caller's promise.
        return unsafe { block::<F>(p, n) };
    }
    let mut pairs = Pairwise::<F>::default();
    let mut at = 0;
    while at < n {
        // SAFETY: within the row.
        pairs.push(unsafe { block::<F>(p.add(at), BLOCK.min(n - at)) });
        at += BLOCK;
    }
    pairs.finish()
}

/// Adds a sequence pairwise as it comes: partial results of equal weight are joined, like carries.
pub struct Pairwise<F: Fold> {
    partial: [F::Acc; 64],
    count: u64,
}

impl<F: Fold> Default for Pairwise<F> {
    #[inline(always)]
    fn default() -> Self {
        Pairwise { partial: [F::IDENTITY; 64], count: 0 }
    }
}

impl<F: Fold> Pairwise<F> {
    #[inline(always)]
    pub fn push(&mut self, mut value: F::Acc) {
        let mut level = 0;
        while self.count >> level & 1 == 1 {
            value = F::join(self.partial[level], value);
            level += 1;
        }
        self.partial[level] = value;
        self.count += 1;
    }

    #[inline(always)]
    pub fn finish(self) -> F::Acc {
        let mut out: Option<F::Acc> = None;
        for level in 0..64 {
            if self.count >> level & 1 == 1 {
                out = Some(out.map_or(self.partial[level], |o| F::join(self.partial[level], o)));
            }
        }
        out.unwrap_or(F::IDENTITY)
    }
}

/// Joins rows to `out`, in order.
///
/// # Safety
/// `p` points to `count` rows, `stride` elements apart, as wide as `out`.
#[inline(always)]
unsafe fn run<F: Fold>(p: *const F::In, count: usize, stride: isize, out: &mut [F::Acc]) {
    for i in 0..count {
        // SAFETY: row i.
        let source = unsafe { p.offset(i as isize * stride) };
        for (k, lane) in out.iter_mut().enumerate() {
            // SAFETY: k is below the width.
            *lane = F::join(*lane, F::load(unsafe { source.add(k).read_unaligned() }));
        }
    }
}

/// Neighbouring columns of n rows, `stride` elements apart, joined to `out`, whose length is their number. Rows are
/// added in runs, runs pairwise.
///
/// # Safety
/// `p` points to n rows as wide as `out`.
#[inline(always)]
pub unsafe fn columns<F: Fold>(p: *const F::In, n: usize, stride: isize, out: &mut [F::Acc]) {
    if n <= RUN {
        // SAFETY: the caller's promise.
        return unsafe { run::<F>(p, n, stride, out) };
    }
    let width = out.len();
    let mut part = vec![F::IDENTITY; width];
    // Level k holds the sum of 2^k runs where bit k of the count is set.
    let mut levels: Vec<F::Acc> = Vec::new();
    let mut count = 0u64;
    for start in (0..n).step_by(RUN) {
        part.fill(F::IDENTITY);
        // SAFETY: rows from `start` on.
        unsafe { run::<F>(p.offset(start as isize * stride), RUN.min(n - start), stride, &mut part) };
        let level = count.trailing_ones() as usize;
        for lower in levels.chunks_exact(width).take(level) {
            add_to::<F>(&mut part, lower);
        }
        if levels.len() == level * width {
            levels.extend_from_slice(&part);
        } else {
            levels[level * width..(level + 1) * width].copy_from_slice(&part);
        }
        count += 1;
    }
    for (_, partial) in levels.chunks_exact(width).enumerate().filter(|(level, _)| count >> level & 1 == 1) {
        add_to::<F>(out, partial);
    }
}

/// Joins what came earlier to what came later.
#[inline(always)]
pub fn add_to<F: Fold>(later: &mut [F::Acc], earlier: &[F::Acc]) {
    for (a, b) in later.iter_mut().zip(earlier) {
        *a = F::join(*b, *a);
    }
}
