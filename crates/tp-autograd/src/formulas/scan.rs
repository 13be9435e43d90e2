//! Rules of scans and of triangles: the gradient runs the same way backwards.

use super::{Named, axis_of, dtype_bits, dtype_of_bits};
use crate::ops;
use crate::rule::{BackwardCtx, Gradients};
use crate::tape::Saver;
use tp_dispatch::{Arg, Call, Result};
use tp_tensor::Tensor;

pub(super) static RULES: &[Named] = &[
    Named::new("cumsum", 1, save_cumsum, cumsum),
    Named::new("tril", 1, save_k, tril),
    Named::new("triu", 1, save_k, triu),
];

fn save_cumsum(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let x = call.tensor(0)?;
    saver.set_bits(dtype_bits(x.dtype()));
    saver.int(axis_of(call.int(1)?, x.ndim())?);
    Ok(())
}

fn cumsum(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let axis = ctx.int(0);
    let flip = |t: &Tensor| ops::FLIP.call(&[Arg::Tensor(t), Arg::Ints(&[axis])]);
    let summed = match grad.ndim() {
        0 => grad.clone(),
        _ => flip(&ops::CUMSUM.call(&[Arg::Tensor(&flip(grad)?), Arg::Int(axis), Arg::None])?)?,
    };
    let dtype = dtype_of_bits(ctx.bits()).unwrap_or(grad.dtype());
    out.set(0, ops::astype(summed, dtype)?);
    Ok(())
}

fn save_k(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    saver.int(call.int(1)?);
    Ok(())
}

fn tril(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    out.set(0, ops::TRIL.call(&[Arg::Tensor(grad), Arg::Int(ctx.int(0))])?);
    Ok(())
}

fn triu(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    out.set(0, ops::TRIU.call(&[Arg::Tensor(grad), Arg::Int(ctx.int(0))])?);
    Ok(())
}
