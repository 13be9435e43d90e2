//! The kernels of the reduction rows: choose the fold for a dtype. float16 and bfloat16 compute in float32.

use crate::cpu::cast::{as_dtype, cast};
use crate::cpu::pointwise::Formula;
use crate::cpu::reduce::{arg_reduce, reduce};
use crate::cpu::rows::{All, Any, Max, Min, Product, Sum, WideSum};
use crate::fake::reduce::{self as rule, Reduction};
use tp_dispatch::{Arg, Call, Result, Rets, Value};
use tp_tensor::scalar::{Bool, Element};
use tp_tensor::{DType, Layout, Tensor};

fn give(out: Tensor, rets: &mut Rets) -> Result<()> {
    rets.push(Value::Tensor(out));
    Ok(())
}

/// The dtype in which floats of `dtype` are computed.
pub fn compute_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// A sum or product whose elements and result are of `dtype`.
fn accumulate<const PRODUCT: bool>(x: &Tensor, r: &Reduction, dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::F64 => {
            let x = as_dtype(x, DType::F64)?;
            if PRODUCT {
                reduce::<Product<f64>, _>(&x, r, |a| a)
            } else {
                reduce::<Sum<f64>, _>(&x, r, |a| a)
            }
        }
        float if float.is_float() => {
            let x = as_dtype(x, DType::F32)?;
            let out = if PRODUCT {
                reduce::<Product<f32>, _>(&x, r, |a| a)
            } else {
                reduce::<Sum<f32>, _>(&x, r, |a| a)
            };
            as_dtype(&out?, float)
        }
        int => {
            let x = if x.dtype().is_float() { cast(x, DType::I64)? } else { x.clone() };
            let out = if PRODUCT {
                reduce::<Product<i64>, _>(&as_dtype(&x, DType::I64)?, r, |a| a)
            } else {
                sum_integers(&x, r, |a| a)
            };
            as_dtype(&out?, int)
        }
    }
}

/// Sums of bool and integers, exact in int64.
fn sum_integers<O: Element>(
    x: &Tensor,
    r: &Reduction,
    finish: impl Fn(i64) -> O + Sync + Send,
) -> Result<Tensor> {
    match x.dtype() {
        DType::Bool => reduce::<Sum<Bool>, O>(x, r, finish),
        DType::U8 => reduce::<Sum<u8>, O>(x, r, finish),
        DType::I64 => reduce::<Sum<i64>, O>(x, r, finish),
        _ => reduce::<Sum<i32>, O>(&as_dtype(x, DType::I32)?, r, finish),
    }
}

pub fn sum(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    let r = Reduction::of_call(call, 3)?;
    give(accumulate::<false>(x, &r, rule::sum_dtype(x.dtype(), call.opt_dtype(2)))?, rets)
}

pub fn prod(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    let r = Reduction::of_call(call, 3)?;
    give(accumulate::<true>(x, &r, rule::sum_dtype(x.dtype(), call.opt_dtype(2)))?, rets)
}

pub fn sum_to_size(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    let r = rule::to_size(x, call.ints(1)?)?;
    give(accumulate::<false>(x, &r, x.dtype())?, rets)
}

fn mean_of(x: &Tensor, r: &Reduction) -> Result<Tensor> {
    let n = r.count(x) as f64;
    match x.dtype() {
        DType::F64 => reduce::<Sum<f64>, f64>(x, r, |a| a / n),
        DType::F32 => reduce::<Sum<f32>, f32>(x, r, |a| a / n as f32),
        DType::F16 | DType::BF16 => cast(&mean_of(&cast(x, DType::F32)?, r)?, x.dtype()),
        DType::I64 => reduce::<WideSum, f32>(x, r, |a| (a as f64 / n) as f32),
        _ => sum_integers(x, r, |a| (a as f64 / n) as f32),
    }
}

pub fn mean(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    give(mean_of(call.tensor(0)?, &Reduction::of_call(call, 2)?)?, rets)
}

static SQUARED_DISTANCE: Formula = Formula::new("t = x1 - x2; t * t", &["x1", "x2"]);

/// Two passes: the mean, then the mean of squared distances from it.
fn variance(call: &Call<'_>, root: bool) -> Result<Tensor> {
    let given = call.tensor(0)?;
    let r = Reduction::of_call(call, 3)?;
    // Squares of integers leave float32 where the integers do not.
    let x = as_dtype(given, if given.dtype().is_int() { DType::F64 } else { compute_dtype(given.dtype()) })?;
    let kept: Vec<i64> = (0..x.ndim()).filter(|&k| r.has(k)).map(|k| k as i64).collect();
    let mean = mean_of(&x, &Reduction::over(&x, Some(&kept), true)?)?;
    let squares = SQUARED_DISTANCE.apply(&[Arg::Tensor(&x), Arg::Tensor(&mean)])?;
    let n = (r.count(&x) as f64 - call.scalar(2)?.to::<f64>()).max(0.0);
    let finish = move |a: f64| if root { (a / n).sqrt() } else { a / n };
    let out = match x.dtype() {
        DType::F64 => reduce::<Sum<f64>, f64>(&squares, &r, finish),
        _ => reduce::<Sum<f32>, f32>(&squares, &r, |a| finish(f64::from(a)) as f32),
    }?;
    as_dtype(&out, rule::mean_dtype(given.dtype()))
}

pub fn var(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    give(variance(call, false)?, rets)
}

pub fn std(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    give(variance(call, true)?, rets)
}

static SHIFTED_EXP: Formula = Formula::new("exp(x1 - select(isfinite(x2), x2, 0))", &["x1", "x2"]);
static LOG_SHIFTED: Formula = Formula::new("log(x1) + select(isfinite(x2), x2, 0)", &["x1", "x2"]);

pub fn logsumexp(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let given = call.tensor(0)?;
    let r = Reduction::of_call(call, 2)?;
    let x = as_dtype(given, compute_dtype(given.dtype()))?;
    let kept: Vec<i64> = (0..x.ndim()).filter(|&k| r.has(k)).map(|k| k as i64).collect();
    let largest = extremum::<true>(&x, &Reduction::over(&x, Some(&kept), true)?)?;
    let powers = SHIFTED_EXP.apply(&[Arg::Tensor(&x), Arg::Tensor(&largest)])?;
    let total = accumulate::<false>(&powers, &r, x.dtype())?;
    // The same numbers without the reduced axes.
    let largest = largest.view(&Layout::contiguous(&r.sizes))?;
    let out = LOG_SHIFTED.apply(&[Arg::Tensor(&total), Arg::Tensor(&largest)])?;
    give(as_dtype(&out, rule::mean_dtype(given.dtype()))?, rets)
}

/// The largest (or smallest) element; the fold's identity where there is none.
fn extremum<const LARGEST: bool>(x: &Tensor, r: &Reduction) -> Result<Tensor> {
    macro_rules! fold {
        ($t:ty) => {
            if LARGEST { reduce::<Max<$t>, $t>(x, r, |a| a) } else { reduce::<Min<$t>, $t>(x, r, |a| a) }
        };
    }
    match x.dtype() {
        DType::Bool => truth::<LARGEST>(x, r),
        DType::I32 => fold!(i32),
        DType::I64 => fold!(i64),
        DType::F32 => fold!(f32),
        DType::F64 => fold!(f64),
        narrow => {
            let wide = if narrow.is_float() { DType::F32 } else { DType::I32 };
            cast(&extremum::<LARGEST>(&cast(x, wide)?, r)?, narrow)
        }
    }
}

pub fn max(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    let r = Reduction::of_call(call, 2)?;
    r.check_not_empty(x)?;
    give(extremum::<true>(x, &r)?, rets)
}

pub fn min(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    let r = Reduction::of_call(call, 2)?;
    r.check_not_empty(x)?;
    give(extremum::<false>(x, &r)?, rets)
}

fn truth<const ANY: bool>(x: &Tensor, r: &Reduction) -> Result<Tensor> {
    let x = as_dtype(x, DType::Bool)?;
    if ANY { reduce::<Any, _>(&x, r, Bool::new) } else { reduce::<All, _>(&x, r, Bool::new) }
}

pub fn any(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    give(truth::<true>(call.tensor(0)?, &Reduction::of_call(call, 2)?)?, rets)
}

pub fn all(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    give(truth::<false>(call.tensor(0)?, &Reduction::of_call(call, 2)?)?, rets)
}

/// A NaN is preferred to every number, the first one to later ones.
fn arg_extremum<const LARGEST: bool>(x: &Tensor, r: &Reduction) -> Result<Tensor> {
    macro_rules! float {
        ($x:expr, $t:ty) => {
            arg_reduce::<$t>($x, r, |a, b| !b.is_nan() && (a.is_nan() || if LARGEST { a > b } else { a < b }))
        };
    }
    match x.dtype() {
        DType::F64 => float!(x, f64),
        dtype if dtype.is_float() => float!(&as_dtype(x, DType::F32)?, f32),
        _ => arg_reduce::<i64>(&as_dtype(x, DType::I64)?, r, |a, b| if LARGEST { a > b } else { a < b }),
    }
}

pub fn argmax(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    give(arg_extremum::<true>(call.tensor(0)?, &rule::index_reduction(call)?)?, rets)
}

pub fn argmin(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    give(arg_extremum::<false>(call.tensor(0)?, &rule::index_reduction(call)?)?, rets)
}
