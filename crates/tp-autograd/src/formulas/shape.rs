//! Rules of movement ops: the gradient moves back.

use super::{Named, axes_of, axis_of, save_sizes};
use crate::ops::{self, Builtin};
use crate::rule::{BackwardCtx, Gradients};
use crate::tape::Saver;
use tp_dispatch::{Arg, Call, Result, Value};
use tp_tensor::symbols::{self, Relation};
use tp_tensor::{Dims, Tensor};

pub(super) static RULES: &[Named] = &[
    Named::new("reshape", 1, save_sizes, |ctx, g, out| {
        out.set(0, ops::reshape(g, ctx.ints(0))?);
        Ok(())
    }),
    Named::new("expand", 1, save_sizes, |ctx, g, out| {
        out.set(0, ops::sum_to_size(g.clone(), ctx.ints(0))?);
        Ok(())
    }),
    Named::new("permute_dims", 1, save_inverse, |ctx, g, out| {
        out.set(0, ops::permute(g, ctx.ints(0))?);
        Ok(())
    }),
    Named::new("transpose", 1, save_two_axes, |ctx, g, out| {
        out.set(0, ops::transpose(g, ctx.int(0), ctx.int(1))?);
        Ok(())
    }),
    Named::new("squeeze", 1, save_squeezed, squeeze),
    Named::new("unsqueeze", 1, save_new_axis, |ctx, g, out| {
        out.set(0, ops::SQUEEZE.call(&[Arg::Tensor(g), ctx.value(0).as_arg()])?);
        Ok(())
    }),
    Named::new("slice", 1, save_slice, |ctx, g, out| at_place(&ops::SLICE_BACKWARD, ctx, g, out)),
    Named::new("select", 1, save_slice, |ctx, g, out| at_place(&ops::SELECT_BACKWARD, ctx, g, out)),
    Named::new("slice_backward", 1, save_place, |ctx, g, out| from_place(&ops::SLICE, ctx, g, out)),
    Named::new("select_backward", 1, save_place, |ctx, g, out| from_place(&ops::SELECT, ctx, g, out)),
    Named::new("view_inside_backward", 1, save_part, |ctx, g, out| {
        at_place(&ops::VIEW_BACKWARD, ctx, g, out)
    }),
    Named::new("view_backward", 1, save_embed, |ctx, g, out| at_place(&ops::VIEW_INSIDE, ctx, g, out)),
    Named::new("view_outside_backward", 1, save_arguments, |ctx, g, out| {
        at_place(&ops::VIEW_OUTSIDE, ctx, g, out)
    }),
    Named::new("flip", 1, save_arguments, |ctx, g, out| {
        out.set(0, ops::FLIP.call(&[Arg::Tensor(g), ctx.value(0).as_arg()])?);
        Ok(())
    }),
    Named::new("roll", 1, save_arguments, roll),
];

/// Saves every argument behind the first as a value.
fn save_arguments(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    call.args.iter().skip(1).for_each(|a| saver.value(a.to_value()));
    Ok(())
}

fn save_inverse(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let ndim = call.tensor(0)?.ndim();
    let axes = call.ints(1)?;
    let mut inverse: Dims = axes.into();
    for (to, &from) in axes.iter().enumerate() {
        if let Some(slot) = inverse.get_mut(axis_of(from, ndim)? as usize) {
            *slot = to as i64;
        }
    }
    saver.ints(&inverse);
    Ok(())
}

fn save_two_axes(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    saver.int(call.int(1)?);
    saver.int(call.int(2)?);
    Ok(())
}

fn is_one(size: i64) -> bool {
    symbols::decide(size, Relation::Eq, 1) == Some(true)
}

/// Saves the axes that go away, in ascending order.
fn save_squeezed(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let x = call.tensor(0)?;
    let asked = axes_of(call, 1, x.ndim())?;
    let gone: Dims = (0..x.ndim() as i64)
        .filter(|a| is_one(x.sizes()[*a as usize]) && asked.as_ref().is_none_or(|axes| axes.contains(a)))
        .collect();
    saver.ints(&gone);
    Ok(())
}

fn squeeze(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let mut g = grad.clone();
    for &axis in ctx.ints(0) {
        g = ops::UNSQUEEZE.call(&[Arg::Tensor(&g), Arg::Int(axis)])?;
    }
    out.set(0, g);
    Ok(())
}

fn save_new_axis(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    saver.ints(&[axis_of(call.int(1)?, call.tensor(0)?.ndim() + 1)?]);
    Ok(())
}

/// The sizes, then the arguments behind the tensor: what the op that puts a part back at its place takes.
fn save_slice(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    save_sizes(call, saver)?;
    save_arguments(call, saver)
}

fn at_place(op: &Builtin, ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let mut args: smallvec::SmallVec<[Arg<'_>; 6]> = smallvec::smallvec![Arg::Tensor(grad)];
    args.extend(ctx.values().iter().map(Value::as_arg));
    out.set(0, op.call(&args)?);
    Ok(())
}

/// The arguments behind tensor and sizes: what the op that takes the part out needs.
fn save_place(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    call.args.iter().skip(2).for_each(|a| saver.value(a.to_value()));
    Ok(())
}

fn from_place(op: &Builtin, ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    at_place(op, ctx, grad, out)
}

/// What `view_backward` takes behind the part: base sizes and strides, the view's strides and offset.
fn save_part(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    save_sizes(call, saver)?;
    [1, 3, 4].into_iter().for_each(|i| saver.value(call.args[i].to_value()));
    Ok(())
}

/// What `view_inside_backward` takes behind the tensor: base strides, the view's shape, strides and offset.
fn save_embed(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    saver.value(call.args[2].to_value());
    save_sizes(call, saver)?;
    [3, 4].into_iter().for_each(|i| saver.value(call.args[i].to_value()));
    Ok(())
}

fn roll(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let back: Dims = ctx.ints(0).iter().map(|s| s.wrapping_neg()).collect();
    out.set(0, ops::ROLL.call(&[Arg::Tensor(grad), Arg::Ints(&back), ctx.value(1).as_arg()])?);
    Ok(())
}
