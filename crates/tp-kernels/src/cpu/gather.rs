//! Look-ups along one axis, and their adjoints, which add. Indices are checked before anything is read.

use crate::cpu::cast::{as_dtype, cast};
use crate::cpu::copy;
use crate::fake::gather as rule;
use tp_dispatch::{Call, Result, Rets, Value};
use tp_tensor::iter::LoopNest;
use tp_tensor::layout::checked_numel;
use tp_tensor::{DType, Device, Dims, Tensor, TensorError};

/// `body` with `T` an integer as wide as an element: enough for moving elements.
macro_rules! by_width {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype.itemsize() {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}
pub(super) use by_width;

/// Room for one int64 per element of a shape. Expanded indices may have any size whatever their memory.
pub fn room(sizes: &[i64]) -> Result<Vec<i64>> {
    let bytes = checked_numel(sizes, size_of::<i64>())? as usize * size_of::<i64>();
    let mut out = Vec::new();
    out.try_reserve_exact(bytes / size_of::<i64>())
        .map_err(|_| TensorError::OutOfMemory { bytes, device: Device::CPU })?;
    Ok(out)
}

/// The indices in row-major order, each within `0..size`; negative ones count from the end.
pub fn checked_indices(index: &Tensor, axis: usize, size: i64) -> Result<Vec<i64>> {
    let index = copy::as_contiguous(&as_dtype(index, DType::I64)?)?;
    let n = index.numel() as usize;
    let mut out = room(index.sizes())?;
    for i in 0..n {
        // SAFETY: contiguous int64.
        let given = unsafe { index.data_ptr().cast::<i64>().add(i).read_unaligned() };
        let at = if given < 0 { given.wrapping_add(size) } else { given };
        if at < 0 || at >= size {
            return Err(TensorError::Index { index: given, axis, size }.into());
        }
        out.push(at);
    }
    Ok(out)
}

/// Whole slabs of a contiguous `[outer, size, inner]`, picked by index.
fn slabs(x: &Tensor, axis: usize, indices: &[i64], out: &Tensor) {
    let item = x.dtype().itemsize();
    let outer = x.sizes()[..axis].iter().product::<i64>() as usize;
    let size = x.sizes()[axis] as usize;
    let bytes = x.sizes()[axis + 1..].iter().product::<i64>() as usize * item;
    for o in 0..outer {
        for (k, &at) in indices.iter().enumerate() {
            // SAFETY: checked indices into contiguous memory.
            unsafe {
                let from = x.data_ptr().add((o * size + at as usize) * bytes);
                let to = out.data_ptr().add((o * indices.len() + k) * bytes);
                std::ptr::copy_nonoverlapping(from, to, bytes);
            }
        }
    }
}

fn pick(x: &Tensor, take: &rule::Take, index: &Tensor) -> Result<Tensor> {
    let x = if take.axis.is_none() { copy::flat(x)? } else { copy::as_contiguous(x)? };
    let axis = take.axis.unwrap_or(0);
    let indices = checked_indices(index, axis, x.sizes()[axis])?;
    let out = Tensor::empty(&take.sizes, x.dtype(), Device::CPU)?;
    if out.numel() > 0 {
        slabs(&x, axis, &indices, &out);
    }
    Ok(out)
}

pub fn take(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let out = pick(call.tensor(0)?, &rule::take_shape(call)?, call.tensor(1)?)?;
    rets.push(Value::Tensor(out));
    Ok(())
}

pub fn index_select(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let out = pick(call.tensor(0)?, &rule::index_select_shape(call)?, call.tensor(2)?)?;
    rets.push(Value::Tensor(out));
    Ok(())
}

/// Visits every element of the index: `visit(offset in x, offset in other, number)`, where the position along
/// `axis` of x is the index. `x` and `other` have the index's number of dimensions.
fn visit(
    axis: usize,
    indices: &[i64],
    sizes: &[i64],
    x_strides: &[i64],
    other_strides: &[i64],
    mut at: impl FnMut(isize, isize),
) {
    let step = x_strides.get(axis).copied().unwrap_or(0);
    let mut base: Dims = x_strides.into();
    if let Some(stride) = base.get_mut(axis) {
        *stride = 0;
    }
    // Not collapsed: rows must come in the index's own order.
    let nest = LoopNest { sizes: sizes.into(), strides: [base, other_strides.into()].into_iter().collect() };
    let (inner_x, inner_other) = (nest.inner_stride(0), nest.inner_stride(1));
    let mut k = 0;
    nest.for_each_row(|offsets, n| {
        for i in 0..n {
            let x_at = offsets[0] + i * inner_x + indices[k] * step;
            at(x_at as isize, (offsets[1] + i * inner_other) as isize);
            k += 1;
        }
    });
}

fn gathered(x: &Tensor, axis: usize, index: &Tensor) -> Result<Tensor> {
    let size = x.sizes().get(axis).copied().unwrap_or(1);
    let indices = checked_indices(index, axis, size)?;
    let out = Tensor::empty(index.sizes(), x.dtype(), Device::CPU)?;
    by_width!(x.dtype(), T => {
        let (from, to) = (x.data_ptr().cast::<T>(), out.data_ptr().cast::<T>());
        // SAFETY: checked indices along the axis, and sizes within x elsewhere.
        visit(axis, &indices, index.sizes(), x.strides(), out.strides(), |a, b| unsafe {
            to.offset(b).write(from.offset(a).read_unaligned());
        });
    });
    Ok(out)
}

pub fn gather(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let axis = rule::gather_axis(call)?;
    rets.push(Value::Tensor(gathered(call.tensor(0)?, axis, call.tensor(2)?)?));
    Ok(())
}

pub fn take_along_axis(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let along = rule::along(call)?;
    let (x, indices) = (call.tensor(0)?, call.tensor(1)?);
    let x = x.view(&x.layout().expand(&along.x)?)?;
    let indices = indices.view(&indices.layout().expand(&along.indices)?)?;
    rets.push(Value::Tensor(gathered(&x, along.axis, &indices)?));
    Ok(())
}

/// The dtype in which elements of `dtype` are added: exact for integers and bool, float32 for narrower floats.
pub fn sum_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        float if float.is_float() => DType::F32,
        _ => DType::I64,
    }
}

/// `body` with `T` and its addition, for the dtypes that `sum_dtype` gives.
macro_rules! by_sum {
    ($dtype:expr, $t:ident, $add:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $t = f64;
                let $add = |a: f64, b: f64| a + b;
                $body
            }
            DType::F32 => {
                type $t = f32;
                let $add = |a: f32, b: f32| a + b;
                $body
            }
            _ => {
                type $t = i64;
                let $add = i64::wrapping_add;
                $body
            }
        }
    };
}
pub(super) use by_sum;

/// Adds in the order of the index.
fn scattered(x: &Tensor, axis: usize, indices: &[i64], sizes: &[i64], source: &Tensor) -> Result<Tensor> {
    let compute = sum_dtype(x.dtype());
    let (out, source) = (cast(x, compute)?, as_dtype(source, compute)?);
    by_sum!(compute, T, add => {
        let (from, to) = (source.data_ptr().cast::<T>(), out.data_ptr().cast::<T>());
        // SAFETY: checked indices along the axis, and sizes within both elsewhere.
        visit(axis, indices, sizes, out.strides(), source.strides(), |a, b| unsafe {
            let slot = to.offset(a);
            slot.write(add(slot.read(), from.offset(b).read_unaligned()));
        });
    });
    as_dtype(&out, x.dtype())
}

pub fn scatter_add(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let axis = rule::gather_like_x(call)?;
    let (x, index) = (call.tensor(0)?, call.tensor(2)?);
    let size = x.sizes().get(axis).copied().unwrap_or(1);
    let indices = checked_indices(index, axis, size)?;
    rets.push(Value::Tensor(scattered(x, axis, &indices, index.sizes(), call.tensor(3)?)?));
    Ok(())
}

pub fn index_add(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let axis = rule::index_add_axis(call)?;
    let (x, index, source) = (call.tensor(0)?, call.tensor(2)?, call.tensor(3)?);
    let picked = checked_indices(index, axis, x.sizes()[axis])?;
    // One index per element of the source: the slab's number, seen through the source's shape.
    let inner = source.sizes()[axis + 1..].iter().product::<i64>() as usize;
    let n = source.numel() as usize;
    let mut indices = room(source.sizes())?;
    indices.extend((0..n).map(|i| picked[i / inner.max(1) % picked.len()]));
    rets.push(Value::Tensor(scattered(x, axis, &indices, source.sizes(), source)?));
    Ok(())
}
