//! Softmax and its relatives along one axis, row by row while a row is in cache: largest element, exponentials
//! (the tile kernel of the expression, so the same polynomial as everywhere), sum, scale.

use crate::cpu::cast::{as_dtype, cast};
use crate::cpu::copy;
use crate::cpu::isa::vectorized;
use crate::cpu::pointwise::{Formula, UNLOCK};
use crate::cpu::reduce_ops::compute_dtype;
use crate::cpu::rows::{Fold, Max, Sum, row};
use crate::cpu::shared::SharedMut;
use crate::cpu::softmax_strips::softmax_strips;
use crate::fake::reduce as rule;
use std::ops::{Mul, Sub};
use tp_dispatch::host::without_lock;
use tp_dispatch::{Arg, Call, Result, Rets, Value};
use tp_expr::{ExprError, TileKernel, pool};
use tp_tensor::layout::normalize_axis;
use tp_tensor::promote::promote_types;
use tp_tensor::scalar::Element;
use tp_tensor::{DType, Device, Tensor};

/// Elements that one thread takes at least.
pub const GRAIN: usize = 1 << 14;

/// What softmax computes in.
pub trait Real: Element + Copy + Mul<Output = Self> + Sub<Output = Self> + Send + Sync {
    type Max: Fold<In = Self, Acc = Self>;
    type Sum: Fold<In = Self, Acc = Self>;
    fn inverse(self) -> Self;
    fn ln(self) -> Self;
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            type Max = Max<$t>;
            type Sum = Sum<$t>;
            fn inverse(self) -> Self {
                1.0 / self
            }
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
        }
    };
}

real!(f32);
real!(f64);

static SHIFTED_EXP: Formula = Formula::new("exp(x - m)", &["x", "m"]);
static SUBTRACT_SHARE: Formula = Formula::new("grad - exp(out) * total", &["grad", "out", "total"]);

/// One pass over rows of `n`: `body(row index, row of each operand, row of the output)`.
fn for_rows<T: Real, const N: usize>(
    operands: [&Tensor; N],
    out: &Tensor,
    n: usize,
    body: impl Fn([*const T; N], *mut T) -> std::result::Result<(), ExprError> + Sync + Send,
) -> Result<()> {
    let rows = (out.numel() as usize).checked_div(n).unwrap_or(0);
    let sources = operands.map(|t| SharedMut::new(t.data_ptr().cast::<T>()));
    let target = SharedMut::new(out.data_ptr().cast::<T>());
    let work = || {
        let failure = std::sync::Mutex::new(None);
        pool::parallel_for(rows, GRAIN.div_ceil(n.max(1)), |range| {
            for i in range {
                let from: [*const T; N] = std::array::from_fn(|k| sources[k].at(i * n).cast_const());
                if let Err(e) = body(from, target.at(i * n)) {
                    *failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(e);
                    return;
                }
            }
        });
        failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    let failure = if out.numel() >= UNLOCK { without_lock(work) } else { work() };
    failure.map_or(Ok(()), |e| Err(e.into()))
}

/// `out = f(x)` for every element of a row.
///
/// # Safety
/// Both have n elements.
#[inline(always)]
unsafe fn map_row<T: Copy>(x: *const T, out: *mut T, n: usize, f: impl Fn(T) -> T) {
    for i in 0..n {
        // SAFETY: the caller's promise; foreign memory may be unaligned.
        unsafe { out.add(i).write_unaligned(f(x.add(i).read_unaligned())) };
    }
}

/// `exp(x - m)` in one dtype.
pub fn exp_kernel(dtype: DType) -> Result<&'static TileKernel> {
    let sample = Tensor::empty(&[0], dtype, Device::CPU)?;
    Ok(&SHIFTED_EXP.function()?.compiled(&[Arg::Tensor(&sample), Arg::Tensor(&sample)])?.kernel)
}

fn softmax_rows<T: Real>(x: &Tensor, out: &Tensor, n: usize) -> Result<()> {
    let exp = exp_kernel(T::DTYPE)?;
    for_rows::<T, 1>([x], out, n, |[x], out| {
        // SAFETY: rows of n elements.
        unsafe {
            let largest = vectorized(|| row::<T::Max>(x, n));
            exp.run_flat(n, &[x.cast(), (&raw const largest).cast()], 0b10, &[out.cast()])?;
            vectorized(|| {
                let scale = row::<T::Sum>(out, n).inverse();
                map_row(out.cast_const(), out, n, |e| e * scale);
            });
        }
        Ok(())
    })
}

fn log_softmax_rows<T: Real>(x: &Tensor, out: &Tensor, n: usize) -> Result<()> {
    let exp = exp_kernel(T::DTYPE)?;
    for_rows::<T, 1>([x], out, n, |[x], out| {
        // SAFETY: rows of n elements; the output serves as scratch for the exponentials.
        unsafe {
            let largest = vectorized(|| row::<T::Max>(x, n));
            exp.run_flat(n, &[x.cast(), (&raw const largest).cast()], 0b10, &[out.cast()])?;
            vectorized(|| {
                let log_total = row::<T::Sum>(out, n).ln();
                map_row(x, out, n, |v| v - largest - log_total);
            });
        }
        Ok(())
    })
}

fn softmax_backward_rows<T: Real>(grad: &Tensor, y: &Tensor, out: &Tensor, n: usize) -> Result<()> {
    for_rows::<T, 2>([grad, y], out, n, |[grad, y], out| {
        // SAFETY: rows of n elements; the output holds grad * y on the way.
        unsafe {
            vectorized(|| {
                for i in 0..n {
                    out.add(i).write(grad.add(i).read_unaligned() * y.add(i).read_unaligned());
                }
                let total = row::<T::Sum>(out, n);
                for i in 0..n {
                    out.add(i).write(out.add(i).read() - y.add(i).read_unaligned() * total);
                }
            });
        }
        Ok(())
    })
}

fn log_softmax_backward_rows<T: Real>(grad: &Tensor, y: &Tensor, out: &Tensor, n: usize) -> Result<()> {
    let sample = Tensor::empty(&[0], T::DTYPE, Device::CPU)?;
    let s = Arg::Tensor(&sample);
    let share = &SUBTRACT_SHARE.function()?.compiled(&[s, s, s])?.kernel;
    for_rows::<T, 2>([grad, y], out, n, |[grad, y], out| {
        // SAFETY: rows of n elements.
        unsafe {
            let total = vectorized(|| row::<T::Sum>(grad, n));
            share.run_flat(n, &[grad.cast(), y.cast(), (&raw const total).cast()], 0b100, &[out.cast()])
        }
    })
}

/// The operands with `axis` last and contiguous, in the dtype to compute in.
fn axis_last(x: &Tensor, axis: usize, dtype: DType) -> Result<Tensor> {
    let last = x.ndim().saturating_sub(1);
    let turned = x.view(&x.layout().transpose(axis as i64, last as i64)?)?;
    copy::as_contiguous(&as_dtype(&turned, dtype)?)
}

/// Allocates, runs `rows` with the axis last, and turns the result back.
fn along<const N: usize>(
    operands: [&Tensor; N],
    axis: i64,
    dtype: DType,
    rows: impl FnOnce([&Tensor; N], &Tensor, usize) -> Result<()>,
) -> Result<Tensor> {
    let axis = normalize_axis(axis, operands[0].ndim())?;
    let compute = compute_dtype(dtype);
    let mut turned = Vec::with_capacity(N);
    for x in operands {
        turned.push(axis_last(x, axis, compute)?);
    }
    let out = Tensor::empty(turned[0].sizes(), compute, Device::CPU)?;
    let n = out.sizes().last().copied().unwrap_or(1) as usize;
    rows(std::array::from_fn(|k| &turned[k]), &out, n)?;
    let last = out.ndim().saturating_sub(1);
    if axis == last {
        return as_dtype(&out, dtype);
    }
    cast(&out.view(&out.layout().transpose(axis as i64, last as i64)?)?, dtype)
}

/// Columns that lie side by side are not worth turning around.
fn in_strips(x: &Tensor, axis: i64, dtype: DType, log: bool) -> Result<Option<Tensor>> {
    let axis = normalize_axis(axis, x.ndim())?;
    let inner: i64 = x.sizes().iter().skip(axis + 1).product();
    if inner < 8 {
        return Ok(None);
    }
    let x = copy::as_contiguous(&as_dtype(x, compute_dtype(dtype))?)?;
    let out = Tensor::empty(x.sizes(), x.dtype(), Device::CPU)?;
    match x.dtype() {
        DType::F64 => softmax_strips::<f64>(&x, &out, axis, log)?,
        _ => softmax_strips::<f32>(&x, &out, axis, log)?,
    }
    Ok(Some(as_dtype(&out, dtype)?))
}

pub fn softmax(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    forward(call, rets, false)
}

pub fn log_softmax(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    forward(call, rets, true)
}

fn forward(call: &Call<'_>, rets: &mut Rets, log: bool) -> Result<()> {
    let (x, axis) = (call.tensor(0)?, call.int(1)?);
    let dtype = rule::mean_dtype(x.dtype());
    let out = match in_strips(x, axis, dtype, log)? {
        Some(out) => out,
        None => along([x], axis, dtype, |[x], out, n| match (out.dtype(), log) {
            (DType::F64, false) => softmax_rows::<f64>(x, out, n),
            (DType::F64, true) => log_softmax_rows::<f64>(x, out, n),
            (_, false) => softmax_rows::<f32>(x, out, n),
            (_, true) => log_softmax_rows::<f32>(x, out, n),
        })?,
    };
    rets.push(Value::Tensor(out));
    Ok(())
}

pub fn softmax_backward(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    backward(call, rets, false)
}

pub fn log_softmax_backward(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    backward(call, rets, true)
}

fn backward(call: &Call<'_>, rets: &mut Rets, log: bool) -> Result<()> {
    rule::softmax_backward(call)?;
    let operands = [call.tensor(0)?, call.tensor(1)?];
    let dtype = rule::mean_dtype(promote_types(operands[0].dtype(), operands[1].dtype()));
    let out = along(operands, call.int(2)?, dtype, |[grad, y], out, n| match (out.dtype(), log) {
        (DType::F64, false) => softmax_backward_rows::<f64>(grad, y, out, n),
        (DType::F64, true) => log_softmax_backward_rows::<f64>(grad, y, out, n),
        (_, false) => softmax_backward_rows::<f32>(grad, y, out, n),
        (_, true) => log_softmax_backward_rows::<f32>(grad, y, out, n),
    })?;
    rets.push(Value::Tensor(out));
    Ok(())
}
