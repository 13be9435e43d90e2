//! Movement on the CPU: views, and the copies of the rows that cannot be views.

use crate::cpu::copy;
use crate::fake::reduce::distinct_axes;
use crate::fake::view::{Shaped, reshape as shaped};
use tp_dispatch::{Call, Result, Rets, Value, state};
use tp_tensor::layout::{self, normalize_axis};
use tp_tensor::{Device, Layout, Tensor};

/// A view that knows what it is a view of, while gradients are recorded: a write through it may have to be told there.
pub fn of(x: &Tensor, layout: &Layout) -> Result<Tensor> {
    let view = x.view(layout)?;
    if state::is_grad_enabled() {
        view.link(x);
    }
    Ok(view)
}

pub fn reshape(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    rets.push(Value::Tensor(match shaped(call)? {
        Shaped::View(layout) => of(x, &layout)?,
        Shaped::Copy(sizes) => {
            let out = Tensor::empty(&sizes, x.dtype(), Device::CPU)?;
            copy::copy_into(&out.view(&Layout::contiguous(x.sizes()))?, x)?;
            out
        }
    }));
    Ok(())
}

pub fn contiguous(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    rets.push(Value::Tensor(copy::as_contiguous(call.tensor(0)?)?));
    Ok(())
}

/// Reads `x` backwards along some axes: into an output whose layout is walked backwards.
pub fn flip(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    let out = Tensor::empty(x.sizes(), x.dtype(), Device::CPU)?;
    let mut mirror = x.layout();
    let mut flipped = 0u64;
    for axis in 0..x.ndim() as i64 {
        flipped |= u64::from(call.opt_ints(1).is_none()) << axis;
    }
    flipped |= distinct_axes(call.opt_ints(1).unwrap_or(&[]), x.ndim())?;
    for axis in 0..x.ndim() {
        if flipped >> axis & 1 == 1 && mirror.sizes[axis] > 0 {
            mirror.offset += (mirror.sizes[axis] - 1) * mirror.strides[axis];
            mirror.strides[axis] = -mirror.strides[axis];
        }
    }
    copy::copy_into(&out, &x.view(&mirror)?)?;
    rets.push(Value::Tensor(out));
    Ok(())
}

/// Each axis in turn: the end moves to the front.
pub fn roll(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    crate::fake::join::check_roll(call)?;
    let shifts = call.ints(1)?;
    let Some(axes) = call.opt_ints(2) else {
        let out = Tensor::empty(x.sizes(), x.dtype(), Device::CPU)?;
        roll_into(&copy::flat(&out)?, &copy::flat(x)?, 0, shifts.iter().copied().fold(0, i64::wrapping_add))?;
        rets.push(Value::Tensor(out));
        return Ok(());
    };
    let mut out = copy::contiguous(x)?;
    for (k, &axis) in axes.iter().enumerate() {
        if x.ndim() > 0 {
            let next = Tensor::empty(x.sizes(), x.dtype(), Device::CPU)?;
            roll_into(&next, &out, normalize_axis(axis, x.ndim())?, shifts[k % shifts.len()])?;
            out = next;
        }
    }
    rets.push(Value::Tensor(out));
    Ok(())
}

fn roll_into(out: &Tensor, x: &Tensor, axis: usize, shift: i64) -> Result<()> {
    let size = x.sizes()[axis];
    if size == 0 {
        return Ok(());
    }
    let shift = shift.rem_euclid(size);
    for (to, from, len) in [(shift, 0, size - shift), (0, size - shift, shift)] {
        let target = out.view(&out.layout().slice(axis, Some(to), Some(to + len), 1)?)?;
        let source = x.view(&x.layout().slice(axis, Some(from), Some(from + len), 1)?)?;
        copy::copy_into(&target, &source)?;
    }
    Ok(())
}

/// Zeros of `sizes` with `grad` written where `layout` of them points.
pub fn embed(grad: &Tensor, sizes: &[i64], place: impl FnOnce(&Layout) -> Result<Layout>) -> Result<Tensor> {
    layout::checked_numel(sizes, grad.dtype().itemsize())?;
    let out = Tensor::empty(sizes, grad.dtype(), Device::CPU)?;
    super::cast::fill(&out, tp_tensor::Scalar::Bool(false))?;
    let hole = out.view(&place(&out.layout())?)?;
    let source = grad.view(&grad.layout().expand(hole.sizes())?)?;
    copy::copy_into(&hole, &source)?;
    Ok(out)
}

pub fn slice_backward(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let out = embed(call.tensor(0)?, call.ints(1)?, |layout| crate::fake::view::sliced(call, layout, 2))?;
    rets.push(Value::Tensor(out));
    Ok(())
}

pub fn select_backward(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let out = embed(call.tensor(0)?, call.ints(1)?, |layout| {
        let axis = crate::fake::view::existing_axis(call.int(2)?, layout.ndim())?;
        Ok(layout.select(axis, call.int(3)?)?)
    })?;
    rets.push(Value::Tensor(out));
    Ok(())
}

/// Keeps the part below (`tril`) or above (`triu`) a diagonal of the last two axes.
fn triangle(call: &Call<'_>, rets: &mut Rets, keep: fn(i64, i64) -> bool) -> Result<()> {
    let x = call.tensor(0)?;
    let k = call.int(1)?;
    crate::fake::view::matrix_sizes(x)?;
    let out = copy::contiguous(x)?;
    let (rows, columns) = (x.sizes()[x.ndim() - 2], x.sizes()[x.ndim() - 1]);
    let item = x.dtype().itemsize();
    if out.numel() > 0 {
        for matrix in 0..out.numel() / (rows * columns) {
            for i in 0..rows {
                for j in 0..columns {
                    if !keep(j - i, k) {
                        let at = ((matrix * rows + i) * columns + j) as usize * item;
                        // SAFETY: within the contiguous output.
                        unsafe { out.data_ptr().add(at).write_bytes(0, item) };
                    }
                }
            }
        }
    }
    rets.push(Value::Tensor(out));
    Ok(())
}

pub fn tril(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    triangle(call, rets, |above, k| above <= k)
}

pub fn triu(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    triangle(call, rets, |above, k| above >= k)
}
