//! Rules of indexing: reading scatters the gradient back by addition, writing reads it at the written places.

use super::{Named, axis_of, dtype_bits, dtype_of_bits, save_sizes};
use crate::ops;
use crate::rule::{BackwardCtx, Gradients};
use crate::tape::Saver;
use smallvec::SmallVec;
use tp_dispatch::{Arg, Call, Result, Value};
use tp_tensor::{Dims, Tensor, symbols};

pub(super) static RULES: &[Named] = &[
    Named::new("take", 1, save_take, take),
    Named::new("index_select", 1, save_axis_index, index_select),
    Named::new("gather", 1, save_axis_index, gather),
    Named::new("take_along_axis", 1, save_take_along, take_along),
    Named::new("scatter_add", 0b1001, save_add, scatter_add),
    Named::new("index_add", 0b1001, save_add, index_add),
    Named::new("index", 1, save_index, index),
    Named::new("index_put", 0b101, save_index_put, index_put),
];

/// Zeros of the saved sizes (value 0), to add a gradient into.
fn blank(ctx: &BackwardCtx<'_>, grad: &Tensor) -> Result<Tensor> {
    ops::new_zeros(grad, ctx.ints(0))
}

fn add_at(base: &Tensor, axis: i64, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    ops::INDEX_ADD.call(&[Arg::Tensor(base), Arg::Int(axis), Arg::Tensor(index), Arg::Tensor(source)])
}

fn scatter_at(base: &Tensor, axis: i64, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    ops::SCATTER_ADD.call(&[Arg::Tensor(base), Arg::Int(axis), Arg::Tensor(index), Arg::Tensor(source)])
}

fn save_take(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let x = call.tensor(0)?;
    save_sizes(call, saver)?;
    match call.args[2].int() {
        Some(axis) => saver.int(axis_of(axis, x.ndim())?),
        None => saver.value(Value::None),
    }
    saver.input(call.tensor(1)?);
    Ok(())
}

fn take(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let index = ops::reshape(&ctx.saved(0)?, &[-1])?;
    let sizes = ctx.ints(0);
    let g = match ctx.value(1) {
        Value::Int(axis) => {
            // The index axes stand where the axis was: as one axis again.
            let mut merged: Dims = sizes.into();
            merged[*axis as usize] = index.sizes()[0];
            add_at(&blank(ctx, grad)?, *axis, &index, &ops::reshape(grad, &merged)?)?
        }
        _ => {
            let flat = ops::new_zeros(grad, &[symbols::product(sizes)?])?;
            let flat = add_at(&flat, 0, &index, &ops::reshape(grad, &[-1])?)?;
            ops::reshape(&flat, sizes)?
        }
    };
    out.set(0, g);
    Ok(())
}

fn save_axis_index(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    save_sizes(call, saver)?;
    saver.int(axis_of(call.int(1)?, call.tensor(0)?.ndim())?);
    saver.input(call.tensor(2)?);
    Ok(())
}

fn index_select(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    out.set(0, add_at(&blank(ctx, grad)?, ctx.int(1), &ctx.saved(0)?, grad)?);
    Ok(())
}

fn gather(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    out.set(0, scatter_at(&blank(ctx, grad)?, ctx.int(1), &ctx.saved(0)?, grad)?);
    Ok(())
}

fn save_take_along(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    save_sizes(call, saver)?;
    saver.int(axis_of(call.int(2)?, call.tensor(0)?.ndim())?);
    saver.input(call.tensor(1)?);
    Ok(())
}

fn take_along(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let axis = ctx.int(1);
    let index = ops::expand(&ctx.saved(0)?, grad.sizes())?;
    let mut sizes: Dims = grad.sizes().into();
    sizes[axis as usize] = ctx.ints(0)[axis as usize];
    let full = scatter_at(&ops::new_zeros(grad, &sizes)?, axis, &index, grad)?;
    out.set(0, ops::sum_to_size(full, ctx.ints(0))?);
    Ok(())
}

/// The gradient of what was written: the shape is that of value 0, the dtype that of the bits from `at` on. What is
/// written is converted to the dtype of the tensor it is written to, so its gradient is converted back.
fn of_written(ctx: &BackwardCtx<'_>, g: Tensor, at: u32) -> Result<Tensor> {
    let dtype = dtype_of_bits(ctx.bits() >> at).unwrap_or(g.dtype());
    ops::astype(ops::sum_to_size(g, ctx.ints(0))?, dtype)
}

/// Value 0: sizes of the source; value 1: the axis; bits: its dtype.
fn save_add(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    if saver.needs(3) {
        let source = call.tensor(3)?;
        saver.ints(source.sizes());
        saver.set_bits(dtype_bits(source.dtype()));
        saver.int(axis_of(call.int(1)?, call.tensor(0)?.ndim())?);
        saver.input(call.tensor(2)?);
    }
    Ok(())
}

fn scatter_add(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    out.set(0, grad.clone());
    if ctx.needs(3) {
        let index = ctx.saved(0)?;
        let mut g = ops::GATHER.call(&[Arg::Tensor(grad), Arg::Int(ctx.int(1)), Arg::Tensor(&index)])?;
        // The source may be larger than the index: the rest of it was not used.
        for (axis, &size) in ctx.ints(0).iter().enumerate() {
            if g.sizes()[axis] != size {
                let mut to: Dims = g.sizes().into();
                let end = std::mem::replace(&mut to[axis], size);
                let (start, stop) = (Arg::Int(0), Arg::Int(end));
                let place =
                    [Arg::Tensor(&g), Arg::Ints(&to), Arg::Int(axis as i64), start, stop, Arg::Int(1)];
                g = ops::SLICE_BACKWARD.call(&place)?;
            }
        }
        out.set(3, of_written(ctx, g, 0)?);
    }
    Ok(())
}

fn index_add(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    out.set(0, grad.clone());
    if ctx.needs(3) {
        let index = ctx.saved(0)?;
        let g = ops::INDEX_SELECT.call(&[Arg::Tensor(grad), Arg::Int(ctx.int(1)), Arg::Tensor(&index)])?;
        out.set(3, of_written(ctx, g, 0)?);
    }
    Ok(())
}

fn save_indices(call: &Call<'_>, saver: &mut Saver<'_>) {
    if let Arg::OptTensors(indices) = call.args[1] {
        for index in indices {
            match index {
                Some(t) => saver.input(t),
                None => saver.none(),
            }
        }
    }
}

fn indices(ctx: &BackwardCtx<'_>) -> Result<SmallVec<[Option<Tensor>; 4]>> {
    (0..ctx.saved_count()).map(|k| ctx.saved_opt(k)).collect()
}

fn save_index(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    save_sizes(call, saver)?;
    save_indices(call, saver);
    Ok(())
}

fn put(base: &Tensor, indices: &[Option<Tensor>], values: &Tensor, accumulate: bool) -> Result<Tensor> {
    let accumulate = Arg::Bool(accumulate);
    ops::INDEX_PUT.call(&[Arg::Tensor(base), Arg::OptTensors(indices), Arg::Tensor(values), accumulate])
}

fn index(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    out.set(0, put(&blank(ctx, grad)?, &indices(ctx)?, grad, true)?);
    Ok(())
}

/// Value 0: sizes of the values; bit 0: accumulate; from bit 1 on their dtype.
fn save_index_put(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let values = call.tensor(2)?;
    saver.ints(values.sizes());
    saver.set_bits(u64::from(call.bool(3)?) | dtype_bits(values.dtype()) << 1);
    save_indices(call, saver);
    Ok(())
}

fn index_put(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let at = indices(ctx)?;
    if ctx.needs(0) {
        let g = match ctx.bits() & 1 {
            1 => grad.clone(),
            _ => put(grad, &at, &ops::new_zeros(grad, ctx.ints(0))?, false)?,
        };
        out.set(0, g);
    }
    if ctx.needs(2) {
        let g = ops::INDEX.call(&[Arg::Tensor(grad), Arg::OptTensors(&at)])?;
        out.set(2, of_written(ctx, g, 1)?);
    }
    Ok(())
}
