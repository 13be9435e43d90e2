//! Reading and writing through several index arrays, and the positions of what is true.

use crate::cpu::cast::{as_dtype, cast};
use crate::cpu::copy;
use crate::cpu::gather::{by_sum, by_width, checked_indices, room, sum_dtype};
use crate::cpu::inplace::may_overlap;
use crate::fake::index::{Placement, check_put, placement};
use crate::fake::inplace::check_writable;
use tp_dispatch::{Call, Result, Rets, Value};
use tp_tensor::iter::LoopNest;
use tp_tensor::scalar::Bool;
use tp_tensor::{DType, Device, Dims, Layout, Tensor};

/// For every place of the broadcast indices, the offset into x.
fn offsets(x: &Tensor, p: &Placement<'_>) -> Result<Vec<i64>> {
    let mut out = room(&p.broadcast)?;
    out.resize(p.broadcast.iter().product::<i64>() as usize, 0);
    for (axis, index) in &p.indexed {
        if out.is_empty() {
            // Broadcast with an empty one it has no place; what it says is checked all the same.
            checked_indices(index, *axis, x.sizes()[*axis])?;
            continue;
        }
        let index = index.view(&index.layout().expand(&p.broadcast)?)?;
        let stride = x.strides()[*axis];
        for (slot, at) in out.iter_mut().zip(checked_indices(&index, *axis, x.sizes()[*axis])?) {
            *slot += at * stride;
        }
    }
    Ok(out)
}

/// Visits every indexed element: offsets into x and into `other`, which has (or broadcasts to) the shape of the
/// result.
fn visit(x: &Tensor, p: &Placement<'_>, other: &Tensor, mut at: impl FnMut(isize, isize)) -> Result<()> {
    let places = offsets(x, p)?;
    let other = other.layout().expand(&p.sizes)?;
    let middle = p.before..p.before + p.broadcast.len();
    let pick = |range: std::ops::Range<usize>| -> Dims { other.strides[range].into() };
    let mut rest_strides = pick(0..p.before);
    rest_strides.extend(pick(middle.end..other.ndim()));
    let of_x = |values: &[i64]| -> Dims { p.rest.iter().map(|&k| values[k]).collect() };
    let slab =
        LoopNest { sizes: of_x(x.sizes()), strides: [of_x(x.strides()), rest_strides].into_iter().collect() };
    let places_nest = LoopNest { sizes: p.broadcast.clone(), strides: [pick(middle)].into_iter().collect() };
    let (step_x, step_other, step_place) =
        (slab.inner_stride(0), slab.inner_stride(1), places_nest.inner_stride(0));
    let mut k = 0;
    places_nest.for_each_row(|place, n| {
        for i in 0..n {
            let (x_base, other_base) = (places[k], place[0] + i * step_place);
            slab.for_each_row(|o, len| {
                for j in 0..len {
                    let a = x_base + o[0] + j * step_x;
                    at(a as isize, (other_base + o[1] + j * step_other) as isize);
                }
            });
            k += 1;
        }
    });
    Ok(())
}

pub fn index(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    let p = placement(call)?;
    let out = Tensor::empty(&p.sizes, x.dtype(), Device::CPU)?;
    by_width!(x.dtype(), T => {
        let (from, to) = (x.data_ptr().cast::<T>(), out.data_ptr().cast::<T>());
        // SAFETY: checked indices into x; the output has the shape of the result.
        visit(x, &p, &out, |a, b| unsafe { to.offset(b).write(from.offset(a).read_unaligned()) })?;
    });
    rets.push(Value::Tensor(out));
    Ok(())
}

/// Writes the values into `x`; where an index comes twice, the last one stays, or all are added.
fn put(call: &Call<'_>, x: &Tensor) -> Result<()> {
    let p = placement(call)?;
    let given = call.tensor(2)?;
    if call.bool(3)? {
        return add_into(x, &p, given);
    }
    let mut values = as_dtype(given, x.dtype())?;
    if may_overlap(&values, x) {
        values = copy::contiguous(&values)?;
    }
    by_width!(x.dtype(), T => {
        let (to, from) = (x.data_ptr().cast::<T>(), values.data_ptr().cast::<T>());
        // SAFETY: checked indices into x; the values broadcast to the result.
        visit(x, &p, &values, |a, b| unsafe { to.offset(a).write_unaligned(from.offset(b).read_unaligned()) })?;
    });
    Ok(())
}

fn add_into(x: &Tensor, p: &Placement<'_>, values: &Tensor) -> Result<()> {
    let compute = sum_dtype(x.dtype());
    let (total, values) = (cast(x, compute)?, cast(values, compute)?);
    by_sum!(compute, T, add => {
        let (to, from) = (total.data_ptr().cast::<T>(), values.data_ptr().cast::<T>());
        // SAFETY: checked indices into the total; the values broadcast to the result.
        visit(&total, p, &values, |a, b| unsafe {
            let slot = to.offset(a);
            slot.write(add(slot.read(), from.offset(b).read()));
        })?;
    });
    copy::copy_into(x, &total)
}

pub fn index_put(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    check_put(call)?;
    let out = copy::contiguous(call.tensor(0)?)?;
    put(call, &out)?;
    rets.push(Value::Tensor(out));
    Ok(())
}

pub fn index_put_(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    check_writable(x)?;
    check_put(call)?;
    put(call, x)?;
    rets.push(Value::Tensor(x.clone()));
    Ok(())
}

/// Positions of the elements that are not zero, in row-major order: int64 of shape [count, ndim].
pub fn nonzero(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = copy::as_contiguous(&as_dtype(call.tensor(0)?, DType::Bool)?)?;
    let n = x.numel() as usize;
    let mut found: Vec<i64> = Vec::new();
    let data = x.data_ptr().cast::<Bool>();
    // SAFETY: contiguous.
    found.extend((0..n).filter(|&i| unsafe { data.add(i).read() }.get()).map(|i| i as i64));
    let strides = Layout::contiguous(x.sizes()).strides;
    let out = Tensor::empty(&[found.len() as i64, x.ndim() as i64], DType::I64, Device::CPU)?;
    let target = out.data_ptr().cast::<i64>();
    for (row, &flat) in found.iter().enumerate() {
        for (k, (&stride, &size)) in strides.iter().zip(x.sizes()).enumerate() {
            // SAFETY: within the output.
            unsafe { target.add(row * x.ndim() + k).write(flat / stride % size.max(1)) };
        }
    }
    rets.push(Value::Tensor(out));
    Ok(())
}
