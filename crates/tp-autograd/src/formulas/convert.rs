//! Rules of dtype conversion.

use super::{Named, dtype_bits, dtype_of_bits};
use crate::ops;
use crate::rule::{BackwardCtx, Gradients};
use crate::tape::Saver;
use tp_dispatch::{Call, Result};
use tp_tensor::Tensor;

pub(super) static RULES: &[Named] = &[Named::new("astype", 1, save, astype)];

fn save(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    saver.set_bits(dtype_bits(call.tensor(0)?.dtype()));
    Ok(())
}

fn astype(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let dtype = dtype_of_bits(ctx.bits()).unwrap_or(grad.dtype());
    out.set(0, ops::astype(grad.clone(), dtype)?);
    Ok(())
}
