//! Rules of softmax, log_softmax and of their gradients.

use super::{Named, axis_of};
use crate::ops::{self, Builtin};
use crate::rule::{BackwardCtx, Gradients};
use crate::tape::Saver;
use tp_dispatch::{Arg, Call, Result};
use tp_tensor::Tensor;

pub(super) static RULES: &[Named] = &[
    Named::new("softmax", 1, |c, s| save_axis(c, s, 1), softmax).with_output(),
    Named::new("log_softmax", 1, |c, s| save_axis(c, s, 1), log_softmax).with_output(),
    Named::new("softmax_backward", 3, save_both, softmax_backward),
    Named::new("log_softmax_backward", 3, save_both, log_softmax_backward),
];

fn save_axis(call: &Call<'_>, saver: &mut Saver<'_>, arg: usize) -> Result<()> {
    saver.int(axis_of(call.int(arg)?, call.tensor(0)?.ndim())?);
    Ok(())
}

fn along(op: &Builtin, grad: &Tensor, out: &Tensor, axis: i64) -> Result<Tensor> {
    op.call(&[Arg::Tensor(grad), Arg::Tensor(out), Arg::Int(axis)])
}

fn softmax(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    out.set(0, along(&ops::SOFTMAX_BACKWARD, grad, &ctx.saved(0)?, ctx.int(0))?);
    Ok(())
}

fn log_softmax(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    out.set(0, along(&ops::LOG_SOFTMAX_BACKWARD, grad, &ctx.saved(0)?, ctx.int(0))?);
    Ok(())
}

fn save_both(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    save_axis(call, saver, 2)?;
    saver.input(call.tensor(0)?);
    saver.input(call.tensor(1)?);
    Ok(())
}

/// Sum along the axis, which stays with size 1; a 0-d tensor is its own sum.
fn total(t: &Tensor, axis: i64) -> Result<Tensor> {
    if t.ndim() == 0 { Ok(t.clone()) } else { ops::sum(t, &[axis], true) }
}

/// Of out * (g - sum(g * out)), with respect to g and to out.
fn softmax_backward(ctx: &BackwardCtx<'_>, v: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let (g, y, axis) = (ctx.saved(0)?, ctx.saved(1)?, ctx.int(0));
    if ctx.needs(0) {
        out.set(0, along(&ops::SOFTMAX_BACKWARD, v, &y, axis)?);
    }
    if ctx.needs(1) {
        let mean_g = total(&ops::mul(&g, &y)?, axis)?;
        let mean_v = total(&ops::mul(v, &y)?, axis)?;
        out.set(1, ops::sub(&ops::mul(v, &ops::sub(&g, &mean_g)?)?, &ops::mul(&g, &mean_v)?)?);
    }
    Ok(())
}

/// Of g - exp(out) * sum(g), with respect to g and to out.
fn log_softmax_backward(ctx: &BackwardCtx<'_>, v: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let (g, y, axis) = (ctx.saved(0)?, ctx.saved(1)?, ctx.int(0));
    let weighted = ops::mul(v, &ops::EXP.call(&[Arg::Tensor(&y)])?)?;
    if ctx.needs(0) {
        out.set(0, ops::sub(v, &total(&weighted, axis)?)?);
    }
    if ctx.needs(1) {
        let minus = ops::NEG.call(&[Arg::Tensor(&weighted)])?;
        out.set(1, ops::mul(&minus, &total(&g, axis)?)?);
    }
    Ok(())
}
