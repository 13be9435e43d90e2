//! Rules of reductions. The gradient of a reduced value is spread over what was reduced: as a view, so the sum of a
//! large tensor costs nothing here, or as a small tensor of its own.

use super::{Named, axes_of, dtype_bits, dtype_of_bits, reduced_count};
use crate::ops;
use crate::rule::{BackwardCtx, Gradients};
use crate::tape::{Node, Saver};
use tp_dispatch::{Arg, Call, Result, Value, state};
use tp_tensor::{DType, Dims, Scalar, Tensor, symbols};

pub(super) static RULES: &[Named] = &[
    Named::new("sum", 1, save_sum, sum).with_specs().saving_nothing(is_over_all, sum_of_all),
    Named::new("mean", 1, save_mean, mean).with_specs(),
    Named::new("max", 1, save_extremum, extremum).with_specs().with_output(),
    Named::new("min", 1, save_extremum, extremum).with_specs().with_output(),
    Named::new("prod", 1, save_prod, prod).with_specs().with_output(),
    Named::new("var", 1, save_var, var).with_specs(),
    Named::new("std", 1, save_var, std).with_specs().with_output(),
    Named::new("logsumexp", 1, save_extremum, logsumexp).with_specs().with_output(),
    Named::new("sum_to_size", 1, super::save_sizes, sum_to_size),
];

/// Value 0: the axes that went away (none when the reduced axes were kept as 1, or when all went). The sizes before
/// are in the spec of the input.
fn save_axes(call: &Call<'_>, saver: &mut Saver<'_>, keepdims: usize) -> Result<Option<Dims>> {
    let axes = axes_of(call, 1, call.tensor(0)?.ndim())?;
    match &axes {
        Some(axes) if !call.bool(keepdims)? => {
            let mut gone = axes.clone();
            gone.sort_unstable();
            saver.ints(&gone);
        }
        _ => saver.value(Value::None),
    }
    Ok(axes)
}

/// A reduced tensor with its lost axes back, of size 1 (or 0-d, which broadcasts as well).
fn with_axes(ctx: &BackwardCtx<'_>, reduced: &Tensor) -> Result<Tensor> {
    let mut t = reduced.clone();
    for &axis in ctx.ints(0) {
        t = ops::UNSQUEEZE.call(&[Arg::Tensor(&t), Arg::Int(axis)])?;
    }
    Ok(t)
}

fn spread(ctx: &BackwardCtx<'_>, reduced: &Tensor) -> Result<Tensor> {
    if ctx.ints(0).is_empty() {
        return ops::repeat(reduced, ctx.input_sizes(0));
    }
    ops::expand(&with_axes(ctx, reduced)?, ctx.input_sizes(0))
}

/// Over all axes: the sizes in the spec say enough.
fn is_over_all(call: &Call<'_>) -> bool {
    matches!(call.args.get(1), Some(Arg::None))
}

fn save_sum(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    if !is_over_all(call) {
        save_axes(call, saver, 3)?;
    }
    Ok(())
}

fn sum(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let spread = match ctx.input_spec(0) {
        Some(x) if x.dtype != grad.dtype() => spread(ctx, &ops::astype(grad.clone(), x.dtype)?)?,
        _ => spread(ctx, grad)?,
    };
    out.put(0, Some(spread));
    Ok(())
}

/// The gradient of a sum over all axes.
fn sum_of_all(node: &Node, grad: &Tensor) -> Option<Result<Tensor>> {
    let [x] = node.specs() else { return None };
    (x.dtype == grad.dtype()).then(|| ops::repeat(grad, &x.sizes))
}

fn save_mean(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let axes = save_axes(call, saver, 2)?;
    saver.value(reduced_count(call.tensor(0)?.sizes(), axes.as_deref())?);
    Ok(())
}

fn float_value(ctx: &BackwardCtx<'_>, k: usize) -> f64 {
    if let Value::Float(v) = ctx.value(k) { *v } else { 1.0 }
}

fn mean(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let share = match *ctx.value(1) {
        // The type that a number takes part with.
        Value::Int(count) => {
            let wide = if grad.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            ops::astype(ops::div(grad, &size_of(count, wide, grad)?)?, grad.dtype())?
        }
        _ => {
            let count = Scalar::Float(float_value(ctx, 1));
            ops::DIV_SCALAR.call(&[Arg::Tensor(grad), Arg::Scalar(count)])?
        }
    };
    out.set(0, spread(ctx, &share)?);
    Ok(())
}

/// A symbolic size as a 0-d tensor beside `like`.
fn size_of(count: i64, dtype: DType, like: &Tensor) -> Result<Tensor> {
    ops::COUNT.call(&[Arg::Int(count), Arg::DType(dtype), Arg::Device(like.device())])
}

fn save_extremum(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    save_axes(call, saver, 2)?;
    saver.input(call.tensor(0)?);
    Ok(())
}

/// Elements that tie share the gradient evenly. A NaN has no derivative: where the result is one, all gradients are.
fn extremum(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let (x, best) = (ctx.saved(0)?, with_axes(ctx, &ctx.saved(1)?)?);
    let hit = ops::EQ.call(&[Arg::Tensor(&x), Arg::Tensor(&best)])?;
    let grad = with_axes(ctx, grad)?;
    let hits = ops::sum_to_size(ops::astype(hit.clone(), grad.dtype())?, grad.sizes())?;
    let share = ops::expand(&ops::div(&grad, &hits)?, ctx.input_sizes(0))?;
    let nan = Arg::Scalar(Scalar::Float(f64::NAN));
    let nowhere = ops::LOGICAL_NOT.call(&[Arg::Tensor(&hits)])?;
    let zeros = ops::mul_scalar(&hits, 0.0)?;
    let rest = ops::MASKED_FILL.call(&[Arg::Tensor(&zeros), Arg::Tensor(&nowhere), nan])?;
    out.set(0, ops::WHERE.call(&[Arg::Tensor(&hit), Arg::Tensor(&share), Arg::Tensor(&rest)])?);
    Ok(())
}

fn logsumexp(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let (x, lse) = (ctx.saved(0)?, with_axes(ctx, &ctx.saved(1)?)?);
    let weights = match x.dtype().is_low_precision() {
        true => half_weights(&x, &lse)?,
        false => ops::EXP.call(&[Arg::Tensor(&ops::sub(&x, &lse)?)])?,
    };
    out.set(0, ops::mul(&with_axes(ctx, grad)?, &weights)?);
    Ok(())
}

/// exp(x - lse) in halves, of which a large `lse` is off by more than what is asked of the exponential: that is a factor
/// for all, which goes where they are made to add up to one.
fn half_weights(x: &Tensor, lse: &Tensor) -> Result<Tensor> {
    let wide = |t: &Tensor| ops::astype(t.clone(), DType::F32);
    let weights = ops::EXP.call(&[Arg::Tensor(&ops::sub(&wide(x)?, &wide(lse)?)?)])?;
    let total = ops::sum_to_size(weights.clone(), lse.sizes())?;
    ops::astype(ops::div(&weights, &total)?, x.dtype())
}

fn save_var(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let x = call.tensor(0)?;
    let axes = save_axes(call, saver, 3)?;
    let correction = call.scalar(2)?.to::<f64>();
    saver.value(match reduced_count(x.sizes(), axes.as_deref())? {
        Value::Float(count) => Value::Float((count - correction).max(0.0)),
        symbolic => symbolic,
    });
    match axes {
        Some(axes) => saver.ints(&axes),
        None => saver.value(Value::None),
    }
    saver.value(Value::Float(correction));
    saver.input(x);
    Ok(())
}

fn var(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let x = ctx.saved(0)?;
    let mean = ops::MEAN.call(&[Arg::Tensor(&x), ctx.value(2).as_arg(), Arg::Bool(true)])?;
    let grad = with_axes(ctx, grad)?;
    let scaled = match *ctx.value(1) {
        Value::Int(count) => {
            let count = size_of(count, DType::F64, &grad)?;
            let correction = Arg::Scalar(Scalar::Float(-float_value(ctx, 3)));
            let degrees = ops::ADD_SCALAR.call(&[Arg::Tensor(&count), correction])?;
            let degrees =
                ops::MAXIMUM_SCALAR.call(&[Arg::Tensor(&degrees), Arg::Scalar(Scalar::Float(0.0))])?;
            let one = ops::ONES_LIKE.call(&[Arg::Tensor(&degrees), Arg::None, Arg::None])?;
            let factor = ops::mul_scalar(&ops::div(&one, &degrees)?, 2.0)?;
            ops::mul(&grad, &ops::astype(factor, grad.dtype())?)?
        }
        _ => ops::mul_scalar(&grad, 2.0 / float_value(ctx, 1))?,
    };
    out.set(0, ops::mul(&scaled, &ops::sub(&x, &mean)?)?);
    Ok(())
}

/// Where the deviation is zero its gradient is taken as zero. Nothing is divided by zero on the way: a second derivative
/// goes through the quotient whether or not it was hidden.
fn std(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let deviation = ctx.saved(1)?;
    let flat = ops::LOGICAL_NOT.call(&[Arg::Tensor(&deviation)])?;
    let hide = |x: &Tensor, by: f64| {
        ops::MASKED_FILL.call(&[Arg::Tensor(x), Arg::Tensor(&flat), Arg::Scalar(Scalar::Float(by))])
    };
    let half = ops::mul_scalar(&ops::div(grad, &hide(&deviation, 1.0)?)?, 0.5)?;
    let of_var = hide(&half, 0.0)?;
    var(ctx, &of_var, out)
}

fn sum_to_size(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    out.set(0, ops::expand(grad, ctx.ints(0))?);
    Ok(())
}

fn save_prod(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let x = call.tensor(0)?;
    saver.set_bits(dtype_bits(x.dtype()));
    let axes = save_axes(call, saver, 3)?;
    saver.ints(&axes.unwrap_or_else(|| (0..x.ndim() as i64).collect()));
    saver.input(x);
    Ok(())
}

/// Each factor gets the product of the others. Without zeros that is the whole product over the factor; with one
/// zero only the zero gets any; with more nobody does. That shortcut has no right derivative at a zero, so while
/// gradients are recorded the products are formed without it.
fn prod(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let x = ctx.saved(0)?;
    let (grad, product) = (with_axes(ctx, grad)?, with_axes(ctx, &ctx.saved(1)?)?);
    let others = match state::is_grad_enabled() {
        true => products_of_others(&x, ctx.ints(1))?,
        false => shortcut(&x, &product, ctx.ints(1))?,
    };
    let g = ops::mul(&grad, &others)?;
    let dtype = dtype_of_bits(ctx.bits()).unwrap_or(g.dtype());
    out.set(0, ops::astype(ops::expand(&g, ctx.input_sizes(0))?, dtype)?);
    Ok(())
}

fn keepdims_prod(x: &Tensor, axes: &[i64]) -> Result<Tensor> {
    ops::PROD.call(&[Arg::Tensor(x), Arg::Ints(axes), Arg::None, Arg::Bool(true)])
}

fn shortcut(x: &Tensor, product: &Tensor, axes: &[i64]) -> Result<Tensor> {
    let one = Arg::Scalar(Scalar::Float(1.0));
    let zero = Arg::Scalar(Scalar::Float(0.0));
    let is_zero = ops::LOGICAL_NOT.call(&[Arg::Tensor(x)])?;
    let zeros = ops::sum(&ops::astype(is_zero.clone(), DType::I64)?, axes, true)?;
    let filled = ops::MASKED_FILL.call(&[Arg::Tensor(x), Arg::Tensor(&is_zero), one])?;
    let rest = keepdims_prod(&filled, axes)?;
    let lone = ops::EQ_SCALAR.call(&[Arg::Tensor(&zeros), Arg::Scalar(Scalar::Int(1))])?;
    let for_zero = ops::WHERE_SCALAR.call(&[Arg::Tensor(&lone), Arg::Tensor(&rest), zero])?;
    let for_others = ops::div(product, &filled)?;
    ops::WHERE.call(&[Arg::Tensor(&is_zero), Arg::Tensor(&for_zero), Arg::Tensor(&for_others)])
}

/// The reduced axes as one last axis of n factors, n copies of it with the own factor replaced by 1, multiplied.
fn products_of_others(x: &Tensor, axes: &[i64]) -> Result<Tensor> {
    let kept: Dims = (0..x.ndim() as i64).filter(|a| !axes.contains(a)).collect();
    let order: Dims = kept.iter().chain(axes).copied().collect();
    let moved = ops::permute(x, &order)?;
    let reduced: Dims = axes.iter().map(|&a| x.sizes()[a as usize]).collect();
    let n = symbols::product(&reduced)?;
    let mut flat: Dims = kept.iter().map(|&a| x.sizes()[a as usize]).collect();
    flat.extend([1, n]);
    let rows = ops::reshape(&moved, &flat)?;
    let at = flat.len() - 2;
    flat[at] = n;
    let own = ops::EYE.call(&[Arg::Int(n), Arg::None, Arg::Int(0), Arg::DType(DType::Bool), Arg::None])?;
    let one = Arg::Scalar(Scalar::Float(1.0));
    let without =
        ops::MASKED_FILL.call(&[Arg::Tensor(&ops::expand(&rows, &flat)?), Arg::Tensor(&own), one])?;
    let products = ops::PROD.call(&[Arg::Tensor(&without), Arg::Ints(&[-1]), Arg::None, Arg::Bool(false)])?;
    let mut back: Dims = order.clone();
    order.iter().enumerate().for_each(|(to, &from)| back[from as usize] = to as i64);
    ops::permute(&ops::reshape(&products, moved.sizes())?, &back)
}
