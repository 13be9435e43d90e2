//! The rule of the matrix product, with vectors and broadcast batches.

use super::{Named, dtype_bits, dtype_of_bits};
use crate::ops;
use crate::rule::{BackwardCtx, Gradients};
use crate::tape::Saver;
use tp_dispatch::{Arg, Call, Result};
use tp_tensor::{Dims, Tensor};

pub(super) static RULES: &[Named] = &[Named::new("matmul", 3, save, matmul)];

fn save(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    saver.ints(a.sizes());
    saver.ints(b.sizes());
    saver.set_bits(dtype_bits(a.dtype()) | dtype_bits(b.dtype()) << 4);
    // Each operand's gradient needs the other operand alone.
    if saver.needs(1) {
        saver.input(a)
    } else {
        saver.none()
    }
    if saver.needs(0) {
        saver.input(b)
    } else {
        saver.none()
    }
    Ok(())
}

fn unsqueeze(t: &Tensor, axis: i64) -> Result<Tensor> {
    ops::UNSQUEEZE.call(&[Arg::Tensor(t), Arg::Int(axis)])
}

/// The gradient as that of a product of matrices: a vector on the left lost its row, one on the right its column.
fn as_matrix(ctx: &BackwardCtx<'_>, grad: &Tensor) -> Result<Tensor> {
    let mut g = grad.clone();
    if ctx.ints(1).len() == 1 {
        g = unsqueeze(&g, -1)?;
    }
    if ctx.ints(0).len() == 1 {
        g = unsqueeze(&g, -2)?;
    }
    Ok(g)
}

fn matmul(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let g = as_matrix(ctx, grad)?;
    if ctx.needs(0) {
        let b = ctx.saved(1)?;
        let b = if b.ndim() == 1 { unsqueeze(&b, -1)? } else { b };
        let full = product(&g, &ops::transpose(&b, -1, -2)?)?;
        out.set(0, restore(ctx, full, 0, -2)?);
    }
    if ctx.needs(1) {
        let a = ctx.saved(0)?;
        let a = if a.ndim() == 1 { unsqueeze(&a, 0)? } else { a };
        let full = product(&ops::transpose(&a, -1, -2)?, &g)?;
        out.set(1, restore(ctx, full, 1, -1)?);
    }
    Ok(())
}

fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ops::MATMUL.call(&[Arg::Tensor(a), Arg::Tensor(b)])
}

/// Sums over broadcast batches, and takes away the axis that a vector was given.
fn restore(ctx: &BackwardCtx<'_>, full: Tensor, operand: usize, lent: i64) -> Result<Tensor> {
    let sizes = ctx.ints(operand);
    let mut matrix = Dims::from_slice(sizes);
    if sizes.len() == 1 {
        matrix.insert(if lent == -2 { 0 } else { 1 }, 1);
    }
    let mut g = ops::sum_to_size(full, &matrix)?;
    if sizes.len() == 1 {
        g = ops::SQUEEZE.call(&[Arg::Tensor(&g), Arg::Ints(&[lent])])?;
    }
    let dtype = dtype_of_bits(ctx.bits() >> (4 * operand)).unwrap_or(g.dtype());
    ops::astype(g, dtype)
}
