//! Softmax and its relatives along one axis: brings the axis to the end and hands rows to `softmax_rows`, or columns that
//! lie side by side to `softmax_strips`.

use crate::cpu::cast::{as_dtype, cast};
use crate::cpu::copy;
use crate::cpu::pointwise::Formula;
use crate::cpu::reduce_ops::compute_dtype;
use crate::cpu::rows::{Fold, Peak, Sum};
use crate::cpu::softmax_rows;
use crate::cpu::softmax_strips::softmax_strips;
use crate::fake::reduce as rule;
use std::ops::{Add, Mul, Sub};
use tp_dispatch::{Arg, Call, Result, Rets, Value};
use tp_expr::expand::algebra::Native;
use tp_expr::expand::{expand_wide, expand_with};
use tp_expr::{Prim, TileKernel};
use tp_tensor::layout::normalize_axis;
use tp_tensor::promote::promote_types;
use tp_tensor::scalar::Element;
use tp_tensor::{DType, Device, Tensor};

/// Elements that one thread takes at least.
pub const GRAIN: usize = 1 << 14;

/// What softmax computes in.
pub trait Real:
    Element + Copy + PartialOrd + Add<Output = Self> + Mul<Output = Self> + Sub<Output = Self> + Send + Sync
{
    /// Need not carry a NaN, which comes back with its exponential.
    type Max: Fold<In = Self, Acc = Self>;
    type Sum: Fold<In = Self, Acc = Self>;
    const LOWEST: Self;
    fn inverse(self) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
}

impl Real for f32 {
    type Max = Peak<f32>;
    type Sum = Sum<f32>;
    const LOWEST: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn inverse(self) -> f32 {
        1.0 / self
    }
    #[inline(always)]
    fn exp(self) -> f32 {
        expand_with(&mut Native, Prim::Exp, self, self).unwrap_or(self)
    }
    #[inline(always)]
    fn ln(self) -> f32 {
        expand_with(&mut Native, Prim::Log, self, self).unwrap_or(self)
    }
}

impl Real for f64 {
    type Max = Peak<f64>;
    type Sum = Sum<f64>;
    const LOWEST: f64 = f64::NEG_INFINITY;
    #[inline(always)]
    fn inverse(self) -> f64 {
        1.0 / self
    }
    #[inline(always)]
    fn exp(self) -> f64 {
        expand_wide(&mut Native, Prim::Exp, self).unwrap_or(self)
    }
    #[inline(always)]
    fn ln(self) -> f64 {
        expand_wide(&mut Native, Prim::Log, self).unwrap_or(self)
    }
}

static SHIFTED_EXP: Formula = Formula::new("exp(x - m)", &["x", "m"]);

/// `exp(x - m)` in one dtype.
pub fn exp_kernel(dtype: DType) -> Result<&'static TileKernel> {
    let sample = Tensor::empty(&[0], dtype, Device::CPU)?;
    Ok(&SHIFTED_EXP.function()?.compiled(&[Arg::Tensor(&sample), Arg::Tensor(&sample)])?.kernel)
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
    rows: impl FnOnce([&Tensor; N], &Tensor, usize),
) -> Result<Tensor> {
    let axis = normalize_axis(axis, operands[0].ndim())?;
    let compute = compute_dtype(dtype);
    let mut turned = Vec::with_capacity(N);
    for x in operands {
        turned.push(axis_last(x, axis, compute)?);
    }
    let out = Tensor::empty(turned[0].sizes(), compute, Device::CPU)?;
    let n = out.sizes().last().copied().unwrap_or(1) as usize;
    rows(std::array::from_fn(|k| &turned[k]), &out, n);
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
            (DType::F64, false) => softmax_rows::forward::<f64, false>(x, out, n),
            (DType::F64, true) => softmax_rows::forward::<f64, true>(x, out, n),
            (_, false) => softmax_rows::forward::<f32, false>(x, out, n),
            (_, true) => softmax_rows::forward::<f32, true>(x, out, n),
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
        (DType::F64, false) => softmax_rows::backward::<f64, false>(grad, y, out, n),
        (DType::F64, true) => softmax_rows::backward::<f64, true>(grad, y, out, n),
        (_, false) => softmax_rows::backward::<f32, false>(grad, y, out, n),
        (_, true) => softmax_rows::backward::<f32, true>(grad, y, out, n),
    })?;
    rets.push(Value::Tensor(out));
    Ok(())
}
