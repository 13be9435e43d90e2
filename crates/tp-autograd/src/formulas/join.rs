//! Rules of ops that join a list of tensors: each gets its part of the gradient.

use super::{Named, axis_of};
use crate::ops;
use crate::rule::{BackwardCtx, Gradients};
use crate::tape::Saver;
use tp_dispatch::{Arg, Call, Result, Value};
use tp_tensor::{DType, Tensor, symbols};

pub(super) static RULES: &[Named] =
    &[Named::new("concat", 1, save_concat, concat), Named::new("stack", 1, save_stack, stack)];

fn dtype_at(codes: &[i64], k: usize, otherwise: DType) -> DType {
    codes.get(k).and_then(|&c| DType::from_code(c as u8)).unwrap_or(otherwise)
}

/// Values: the axis (None: flattened), the first and one past the last index of each part that needs a gradient,
/// the parts' dtypes, and when flattened their sizes.
fn save_concat(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let parts = call.tensors(0)?;
    let axis = match call.args[1].int() {
        Some(axis) => Some(axis_of(axis, parts.first().map_or(0, Tensor::ndim))? as usize),
        None => None,
    };
    let length = |t: &Tensor| match axis {
        Some(axis) => Ok(t.sizes().get(axis).copied().unwrap_or(0)),
        None => symbols::product(t.sizes()),
    };
    let edges = saver.edges();
    let (mut bounds, mut dtypes) = (Vec::new(), Vec::new());
    let (mut next, mut start) = (0, 0);
    for (i, t) in parts.iter().enumerate() {
        let stop = symbols::add(start, length(t)?)?;
        if edges.get(next).is_some_and(|e| e.index() == i) {
            bounds.extend([start, stop]);
            dtypes.push(t.dtype() as i64);
            next += 1;
        }
        start = stop;
    }
    saver.value(axis.map_or(Value::None, |a| Value::Int(a as i64)));
    saver.ints(&bounds);
    saver.ints(&dtypes);
    if axis.is_none() {
        edges.iter().filter_map(|e| parts.get(e.index())).for_each(|t| saver.ints(t.sizes()));
    }
    Ok(())
}

fn concat(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    let flat = matches!(ctx.value(0), Value::None);
    for (k, bounds) in ctx.ints(1).chunks_exact(2).enumerate() {
        let (start, stop) = (Arg::Int(bounds[0]), Arg::Int(bounds[1]));
        let mut part =
            ops::SLICE.call(&[Arg::Tensor(grad), Arg::Int(ctx.int(0)), start, stop, Arg::Int(1)])?;
        if flat {
            part = ops::reshape(&part, ctx.ints(3 + k))?;
        }
        out.put(k, Some(ops::astype(part, dtype_at(ctx.ints(2), k, grad.dtype()))?));
    }
    Ok(())
}

fn save_stack(call: &Call<'_>, saver: &mut Saver<'_>) -> Result<()> {
    let parts = call.tensors(0)?;
    saver.int(axis_of(call.int(1)?, parts.first().map_or(0, Tensor::ndim) + 1)?);
    let dtypes: Vec<i64> =
        saver.edges().iter().filter_map(|e| parts.get(e.index())).map(|t| t.dtype() as i64).collect();
    saver.ints(&dtypes);
    Ok(())
}

fn stack(ctx: &BackwardCtx<'_>, grad: &Tensor, out: &mut Gradients<'_>) -> Result<()> {
    for (k, edge) in ctx.edges().iter().enumerate() {
        let index = Arg::Int(edge.index() as i64);
        let part = ops::SELECT.call(&[Arg::Tensor(grad), Arg::Int(ctx.int(0)), index])?;
        out.put(k, Some(ops::astype(part, dtype_at(ctx.ints(1), k, grad.dtype()))?));
    }
    Ok(())
}
