//! Cumulative sums along one axis. Each line is added in order, in the accumulator's dtype.

use crate::cpu::cast::as_dtype;
use crate::cpu::copy;
use crate::cpu::shared::SharedMut;
use crate::fake::reduce::sum_dtype;
use tp_dispatch::{Call, Result, Rets, Value};
use tp_expr::pool;
use tp_tensor::layout::normalize_axis;
use tp_tensor::scalar::Element;
use tp_tensor::{DType, Tensor};

pub fn cumsum(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    let axis = normalize_axis(call.int(1)?, x.ndim())?;
    let dtype = sum_dtype(x.dtype(), call.opt_dtype(2));
    let compute = match dtype {
        DType::F64 => DType::F64,
        d if d.is_float() => DType::F32,
        _ => DType::I64,
    };
    let mut out = as_dtype(x, compute)?;
    if out.same(x) {
        out = copy::contiguous(x)?;
    }
    match compute {
        DType::F64 => scan::<f64>(&out, axis, |a, b| a + b),
        DType::F32 => scan::<f32>(&out, axis, |a, b| a + b),
        _ => scan::<i64>(&out, axis, i64::wrapping_add),
    }
    rets.push(Value::Tensor(as_dtype(&out, dtype)?));
    Ok(())
}

/// In place, over a contiguous tensor of our own.
fn scan<T: Element>(x: &Tensor, axis: usize, add: impl Fn(T, T) -> T + Sync) {
    if x.ndim() == 0 || x.numel() == 0 {
        return;
    }
    let n = x.sizes()[axis] as usize;
    let inner = x.sizes()[axis + 1..].iter().product::<i64>() as usize;
    let data = SharedMut::new(x.data_ptr().cast::<T>());
    pool::parallel_for(x.numel() as usize / n, (1usize << 15).div_ceil(n), |lines| {
        for line in lines {
            let start = line / inner * n * inner + line % inner;
            let mut total = T::ZERO;
            for k in 0..n {
                // SAFETY: within the tensor; every line belongs to one thread.
                unsafe {
                    let p = data.at(start + k * inner);
                    total = if k == 0 { p.read() } else { add(total, p.read()) };
                    p.write(total);
                }
            }
        }
    });
}
