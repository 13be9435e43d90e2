//! Order: the permutation that sorts, and places in what is sorted. A NaN counts as larger than every number.

use crate::cpu::cast::as_dtype;
use crate::cpu::copy;
use crate::cpu::pointwise::UNLOCK;
use crate::cpu::shared::SharedMut;
use crate::fake::sort as rule;
use std::cmp::Ordering;
use tp_dispatch::host::without_lock;
use tp_dispatch::{Call, Result, Rets, Value};
use tp_expr::pool;
use tp_tensor::scalar::Element;
use tp_tensor::{DType, Device, Tensor};

/// The dtype whose order is that of `dtype`.
fn key_dtype(dtype: DType) -> DType {
    if dtype.is_float() { DType::F64 } else { DType::I64 }
}

fn compare_floats(a: &f64, b: &f64) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

pub fn argsort(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    let axis = rule::axis(call)?;
    let (descending, last) = (call.bool(2)?, x.ndim().saturating_sub(1));
    let keys = as_dtype(&x.view(&x.layout().transpose(axis as i64, last as i64)?)?, key_dtype(x.dtype()))?;
    let keys = copy::as_contiguous(&keys)?;
    let out = Tensor::empty(keys.sizes(), DType::I64, Device::CPU)?;
    let work = || match keys.dtype() {
        DType::F64 => sort_rows::<f64>(&keys, &out, descending, compare_floats),
        _ => sort_rows::<i64>(&keys, &out, descending, i64::cmp),
    };
    if x.numel() >= UNLOCK {
        without_lock(work)
    } else {
        work()
    }
    let out = if axis == last {
        out
    } else {
        copy::contiguous(&out.view(&out.layout().transpose(axis as i64, last as i64)?)?)?
    };
    rets.push(Value::Tensor(out));
    Ok(())
}

/// Equal elements keep their order, also when it is descending.
fn sort_rows<T: Element>(keys: &Tensor, out: &Tensor, descending: bool, compare: fn(&T, &T) -> Ordering) {
    let n = keys.sizes().last().copied().unwrap_or(1) as usize;
    let rows = (keys.numel() as usize).checked_div(n).unwrap_or(0);
    let target = SharedMut::new(out.data_ptr().cast::<i64>());
    pool::parallel_for(rows, (1usize << 12).div_ceil(n.max(1)), |range| {
        for i in range {
            // SAFETY: row i of the contiguous keys.
            let key =
                |k: i64| unsafe { keys.data_ptr().cast::<T>().add(i * n + k as usize).read_unaligned() };
            let mut order: Vec<i64> = (0..n as i64).collect();
            order.sort_by(|&a, &b| {
                let order = compare(&key(a), &key(b));
                if descending { order.reverse() } else { order }
            });
            for (k, index) in order.into_iter().enumerate() {
                // SAFETY: row i of the output, which belongs to one thread.
                unsafe { target.at(i * n + k).write(index) };
            }
        }
    });
}

/// For each value the place in the sorted row where it would go: before its equals, or behind them.
pub fn searchsorted(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let dtype = rule::common_key(call, key_dtype)?;
    let line = copy::as_contiguous(&as_dtype(call.tensor(0)?, dtype)?)?;
    let values = copy::as_contiguous(&as_dtype(call.tensor(1)?, dtype)?)?;
    let out = Tensor::empty(values.sizes(), DType::I64, Device::CPU)?;
    let right = call.bool(2)?;
    match dtype {
        DType::F64 => search::<f64>(&line, &values, &out, right, compare_floats),
        _ => search::<i64>(&line, &values, &out, right, i64::cmp),
    }
    rets.push(Value::Tensor(out));
    Ok(())
}

fn search<T: Element>(
    line: &Tensor,
    values: &Tensor,
    out: &Tensor,
    right: bool,
    compare: fn(&T, &T) -> Ordering,
) {
    // SAFETY: contiguous; indices below the number of elements.
    let at = |x: &Tensor, i: usize| unsafe { x.data_ptr().cast::<T>().add(i).read_unaligned() };
    for i in 0..values.numel() as usize {
        let value = at(values, i);
        let (mut low, mut high) = (0, line.numel() as usize);
        while low < high {
            let middle = low + (high - low) / 2;
            let order = compare(&at(line, middle), &value);
            if order == Ordering::Less || (right && order == Ordering::Equal) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        // SAFETY: i is an index of the output.
        unsafe { out.data_ptr().cast::<i64>().add(i).write(low as i64) };
    }
}
