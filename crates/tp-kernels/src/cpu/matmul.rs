//! Matrix products over strided operands: floats by the gemm crate behind `gemm_into`, integers by a plain loop,
//! float16 and bfloat16 by way of float32. Work is cut by shape alone, so results do not depend on the threads.

use crate::cpu::cast::{as_dtype, fill};
use crate::cpu::pointwise::UNLOCK;
use crate::cpu::reduce_ops::compute_dtype;
use crate::cpu::shared::SharedMut;
use crate::fake::matmul::{Product, product};
use gemm::Parallelism;
use tp_dispatch::host::without_lock;
use tp_dispatch::{Call, Error, Result, Rets, Value};
use tp_expr::pool;
use tp_tensor::iter::{LoopNest, broadcast_strides};
use tp_tensor::scalar::Element;
use tp_tensor::{DType, Device, Dims, Scalar, Tensor};

/// Multiplications that one thread takes at least.
const GRAIN: i64 = 1 << 18;
/// Rows of one matrix that are one piece of work at most.
const STRIP: i64 = 128;
/// Products of at most so many rows and columns, or so many elements, are added up by the gemm crate in an order of their
/// own.
const SMALL_SIDE: i64 = 64;
const SMALL: i64 = 256;

pub fn matmul(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let p = product(call)?;
    let compute = if p.dtype.is_float() { compute_dtype(p.dtype) } else { p.dtype };
    let (a, b) = (as_dtype(call.tensor(0)?, compute)?, as_dtype(call.tensor(1)?, compute)?);
    let out = Tensor::empty(&p.sizes, compute, Device::CPU)?;
    if p.k == 0 {
        fill(&out, Scalar::Bool(false))?;
    } else if out.numel() > 0 {
        multiply(&p, &a, &b, &out)?;
    }
    rets.push(Value::Tensor(as_dtype(&out, p.dtype)?));
    Ok(())
}

fn multiply(p: &Product, a: &Tensor, b: &Tensor, out: &Tensor) -> Result<()> {
    let job = Job::new(p, a, b, out);
    let work: fn(&Job<'_>) = match out.dtype() {
        DType::F32 => Job::run::<f32>,
        DType::F64 => Job::run::<f64>,
        DType::U8 => Job::run::<u8>,
        DType::I8 => Job::run::<i8>,
        DType::I16 => Job::run::<i16>,
        DType::I32 => Job::run::<i32>,
        DType::I64 => Job::run::<i64>,
        other => return Err(Error::internal("TP9003", format!("a matrix product of {other}"))),
    };
    if p.m * p.k * p.n >= UNLOCK {
        without_lock(|| work(&job))
    } else {
        work(&job)
    }
    Ok(())
}

/// One matrix of a stack: where it starts, and its strides.
#[derive(Clone, Copy)]
struct Matrix {
    offset: i64,
    row: i64,
    column: i64,
}

struct Job<'a> {
    m: i64,
    k: i64,
    n: i64,
    a: &'a Tensor,
    b: &'a Tensor,
    out: &'a Tensor,
    /// Matrices of a, b and out for every place in the batch.
    batch: Vec<[Matrix; 3]>,
}

impl<'a> Job<'a> {
    fn new(p: &Product, a: &'a Tensor, b: &'a Tensor, out: &'a Tensor) -> Job<'a> {
        let lead = |t: &Tensor| {
            let lead = t.ndim().saturating_sub(2);
            broadcast_strides(&t.sizes()[..lead], &t.strides()[..lead], &p.batch)
        };
        let contiguous = tp_tensor::layout::contiguous_strides(&p.batch);
        let strides: [Dims; 3] = [lead(a), lead(b), contiguous.iter().map(|s| s * p.m * p.n).collect()];
        let nest = LoopNest { sizes: p.batch.clone(), strides: strides.into_iter().collect() };
        let last_two = |t: &Tensor, row: bool| match *t.strides() {
            [.., r, c] => (r, c),
            [s] if row => (0, s),
            [s] => (s, 0),
            [] => (0, 0),
        };
        let ((a_row, a_column), (b_row, b_column)) = (last_two(a, true), last_two(b, false));
        let steps = [nest.inner_stride(0), nest.inner_stride(1), nest.inner_stride(2)];
        let mut batch = Vec::new();
        nest.for_each_row(|offsets, count| {
            for i in 0..count {
                let at = |k: usize| offsets[k] + i * steps[k];
                batch.push([
                    Matrix { offset: at(0), row: a_row, column: a_column },
                    Matrix { offset: at(1), row: b_row, column: b_column },
                    Matrix { offset: at(2), row: p.n, column: 1 },
                ]);
            }
        });
        Job { m: p.m, k: p.k, n: p.n, a, b, out, batch }
    }

    /// Cuts every matrix of the batch into strips along its longer side.
    fn run<T: Multiply>(job: &Job<'_>) {
        let (tall, long) = (job.m >= job.n, job.m.max(job.n));
        // Strips of even height: no thin rest that would be computed in another way.
        let (strips, narrow) = (ceil_div(long, STRIP), job.m.min(job.n));
        let height = long / strips;
        // A strip that is small goes alone, for with a neighbour, which the threads decide, it is not. Elements count
        // where both operands are contiguous along k.
        let dots = job.batch.first().is_some_and(|[a, b, _]| (a.column, b.row) == (1, 1));
        let alone = height <= SMALL_SIDE || (dots && height * narrow <= SMALL);
        let cost = job.k * narrow * height;
        let tasks = job.batch.len() * strips as usize;
        let out = SharedMut::new(job.out.data_ptr().cast::<T>());
        pool::parallel_for(tasks, (GRAIN as usize).div_ceil(cost.max(1) as usize), |range| {
            // Neighbouring strips of one matrix go together, so that packing is shared.
            let mut task = range.start;
            while task < range.end {
                let (index, strip) = (task / strips as usize, (task % strips as usize) as i64);
                let last = if alone { 1 } else { (strips - strip).min((range.end - task) as i64) };
                let (start, stop) = (strip * long / strips, (strip + last) * long / strips);
                let [mut a, mut b, mut c] = job.batch[index];
                let (mut m, mut n) = (job.m, job.n);
                if tall {
                    m = stop - start;
                    a.offset += start * a.row;
                    c.offset += start * c.row;
                } else {
                    n = stop - start;
                    b.offset += start * b.column;
                    c.offset += start * c.column;
                }
                // SAFETY: parts of the operands; every part of the output belongs to one thread.
                unsafe {
                    let (x, y) = (job.a.data_ptr().cast::<T>(), job.b.data_ptr().cast::<T>());
                    let (x, y) = (x.offset(a.offset as isize), y.offset(b.offset as isize));
                    T::multiply(out.at(c.offset as usize), c, x, a, y, b, [m, job.k, n]);
                }
                task += last as usize;
            }
        });
    }
}

fn ceil_div(a: i64, b: i64) -> i64 {
    (a + b - 1) / b
}

/// One product of plain matrices, `out` being overwritten.
trait Multiply: Element {
    /// # Safety
    /// All three matrices have the sizes `[m, k, n]` say, and `out` overlaps no other.
    unsafe fn multiply(
        out: *mut Self,
        to: Matrix,
        a: *const Self,
        left: Matrix,
        b: *const Self,
        right: Matrix,
        sizes: [i64; 3],
    );
}

/// The one place where the gemm crate is called.
///
/// # Safety
/// As `Multiply::multiply`.
unsafe fn gemm_into<T: 'static + Element>(
    (out, to): (*mut T, Matrix),
    (a, left): (*const T, Matrix),
    (b, right): (*const T, Matrix),
    [m, k, n]: [i64; 3],
) {
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            m as usize,
            n as usize,
            k as usize,
            out,
            to.column as isize,
            to.row as isize,
            false,
            a,
            left.column as isize,
            left.row as isize,
            b,
            right.column as isize,
            right.row as isize,
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Multiply for $t {
            unsafe fn multiply(
                out: *mut $t,
                to: Matrix,
                a: *const $t,
                left: Matrix,
                b: *const $t,
                right: Matrix,
                sizes: [i64; 3],
            ) {
                // SAFETY: the caller's promise.
                unsafe { gemm_into((out, to), (a, left), (b, right), sizes) };
            }
        }
    )*};
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Multiply for $t {
            unsafe fn multiply(
                out: *mut $t,
                to: Matrix,
                a: *const $t,
                left: Matrix,
                b: *const $t,
                right: Matrix,
                [m, k, n]: [i64; 3],
            ) {
                for i in 0..m {
                    for j in 0..n {
                        let mut total: $t = 0;
                        for l in 0..k {
                            // SAFETY: indices within the matrices.
                            let (x, y) = unsafe {
                                (
                                    a.offset((i * left.row + l * left.column) as isize).read_unaligned(),
                                    b.offset((l * right.row + j * right.column) as isize).read_unaligned(),
                                )
                            };
                            total = total.wrapping_add(x.wrapping_mul(y));
                        }
                        // SAFETY: within the output.
                        unsafe { out.offset((i * to.row + j * to.column) as isize).write(total) };
                    }
                }
            }
        }
    )*};
}

floats!(f32, f64);
integers!(u8, i8, i16, i32, i64);
