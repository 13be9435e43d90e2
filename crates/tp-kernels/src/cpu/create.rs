//! Fresh tensors: constant, sequences, random. Sizes and dtypes are those of the row's fake rule.

use crate::cpu::cast;
use crate::cpu::copy;
use crate::cpu::pointwise::UNLOCK;
use crate::cpu::shared::SharedMut;
use crate::fake::create::{self as rule, Plan};
use crate::random;
use tp_dispatch::host::without_lock;
use tp_dispatch::{Call, Result, Rets, Value};
use tp_expr::pool;
use tp_tensor::scalar::{Bool, Element};
use tp_tensor::{DType, Device, Scalar, Tensor};

/// Uninitialised memory.
fn promised(plan: Plan) -> Result<Tensor> {
    Ok(Tensor::empty(&plan.sizes, plan.dtype, plan.device)?)
}

fn filled(plan: Plan, value: Scalar, rets: &mut Rets) -> Result<()> {
    let out = promised(plan)?;
    // Like a tensor of the CPU, but on 'meta': there is no memory to fill.
    if !out.device().is_meta() {
        cast::fill(&out, value)?;
    }
    rets.push(Value::Tensor(out));
    Ok(())
}

pub fn empty(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    rets.push(Value::Tensor(promised(rule::sized(call)?)?));
    Ok(())
}

pub fn empty_strided(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let spec = rule::strided(call)?;
    rets.push(Value::Tensor(Tensor::empty_strided(&spec.sizes, &spec.strides, spec.dtype, spec.device)?));
    Ok(())
}

pub fn empty_like(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    rets.push(Value::Tensor(promised(rule::like(call)?)?));
    Ok(())
}

pub fn new_empty(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    rets.push(Value::Tensor(promised(rule::new_sized(call)?)?));
    Ok(())
}

pub fn zeros(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    filled(rule::sized(call)?, Scalar::Bool(false), rets)
}

pub fn ones(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    filled(rule::sized(call)?, Scalar::Bool(true), rets)
}

pub fn full(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    filled(rule::full(call)?, call.scalar(1)?, rets)
}

pub fn zeros_like(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    filled(rule::like(call)?, Scalar::Bool(false), rets)
}

pub fn ones_like(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    filled(rule::like(call)?, Scalar::Bool(true), rets)
}

pub fn full_like(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    filled(rule::full_like(call)?, call.scalar(1)?, rets)
}

pub fn new_zeros(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    filled(rule::new_sized(call)?, Scalar::Bool(false), rets)
}

/// Writes `f(i)` to every element of a fresh contiguous tensor.
fn generate<T: Element>(out: &Tensor, f: impl Fn(usize) -> T + Sync) {
    let target = SharedMut::new(out.data_ptr().cast::<T>());
    pool::parallel_for(out.numel() as usize, 1 << 14, |range| {
        for i in range {
            // SAFETY: within the output; every thread has its own range.
            unsafe { target.at(i).write(f(i)) };
        }
    });
}

/// Gives the elements of `out`, made in another dtype, converted.
fn converted(made: &Tensor, out: Tensor, rets: &mut Rets) -> Result<()> {
    copy::copy_into(&out, made)?;
    rets.push(Value::Tensor(out));
    Ok(())
}

fn scratch(out: &Tensor, dtype: DType) -> Result<Tensor> {
    Ok(Tensor::empty(out.sizes(), dtype, Device::CPU)?)
}

pub fn arange(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let out = promised(rule::arange(call)?)?;
    let range = rule::range(call)?;
    let made = match (range.start, range.step) {
        (Scalar::Float(_), _) | (_, Scalar::Float(_)) => {
            let (start, step): (f64, f64) = (range.start.to(), range.step.to());
            let made = scratch(&out, DType::F64)?;
            generate::<f64>(&made, |i| start + i as f64 * step);
            made
        }
        _ => {
            let (start, step): (i64, i64) = (range.start.to(), range.step.to());
            let made = scratch(&out, DType::I64)?;
            generate::<i64>(&made, |i| start.wrapping_add((i as i64).wrapping_mul(step)));
            made
        }
    };
    converted(&made, out, rets)
}

pub fn linspace(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let out = promised(rule::linspace(call)?)?;
    let (start, stop): (f64, f64) = (call.scalar(0)?.to(), call.scalar(1)?.to());
    let endpoint = call.bool(5)?;
    let n = out.numel();
    let steps = if endpoint { (n - 1).max(1) } else { n.max(1) } as f64;
    let last = n as usize - usize::from(n > 0);
    let made = scratch(&out, DType::F64)?;
    generate::<f64>(&made, |i| {
        // The end is met exactly.
        if endpoint && i == last && i > 0 { stop } else { start + (stop - start) * (i as f64 / steps) }
    });
    converted(&made, out, rets)
}

pub fn count(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    filled(rule::count(call)?, Scalar::Int(call.int(0)?), rets)
}

pub fn eye(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let out = promised(rule::eye(call)?)?;
    let k = call.int(2)?;
    let columns = out.sizes()[1].max(1) as usize;
    let made = scratch(&out, DType::Bool)?;
    generate::<Bool>(&made, |i| Bool::new((i % columns) as i64 - (i / columns) as i64 == k));
    converted(&made, out, rets)
}

// ---- random ----

/// Fills blocks of `N` elements, each from one block of the generator.
fn draw<T: Element, const N: usize>(out: &Tensor, f: impl Fn([u32; 4]) -> [T; N] + Sync + Send) {
    let n = out.numel() as usize;
    let blocks = n.div_ceil(N);
    let stream = random::reserve(blocks as u64);
    let target = SharedMut::new(out.data_ptr().cast::<T>());
    let work = || {
        pool::parallel_for(blocks, 1 << 12, |range| {
            for b in range {
                let values = f(stream.block(b as u64));
                for (k, &value) in values.iter().enumerate().take(n - (b * N).min(n)) {
                    // SAFETY: within the output; every thread has its own blocks.
                    unsafe { target.at(b * N + k).write(value) };
                }
            }
        });
    };
    if n as i64 >= UNLOCK { without_lock(work) } else { work() }
}

/// A float in [0, 1) with 24 bits.
fn unit32(word: u32) -> f64 {
    f64::from(word >> 8) * (1.0 / 16_777_216.0)
}

/// A float in [0, 1) with 53 bits.
fn unit64(high: u32, low: u32) -> f64 {
    ((u64::from(high) << 32 | u64::from(low)) >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
}

/// Box and Muller: two independent normal numbers from two uniform ones.
fn normal_pair([u, v]: [f64; 2]) -> [f64; 2] {
    // 1 - u lies in (0, 1], so the logarithm is finite.
    let radius = (-2.0 * (1.0 - u).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * v).sin_cos();
    [radius * cos, radius * sin]
}

/// Floats in float64, or in float32 for all narrower dtypes.
fn floats(out: Tensor, rets: &mut Rets, wide: impl Fn([f64; 2]) -> [f64; 2] + Sync + Send) -> Result<()> {
    if out.dtype() == DType::F64 {
        draw::<f64, 2>(&out, |w| wide([unit64(w[0], w[1]), unit64(w[2], w[3])]));
        rets.push(Value::Tensor(out));
        return Ok(());
    }
    let made = if out.dtype() == DType::F32 { out.clone() } else { scratch(&out, DType::F32)? };
    draw::<f32, 4>(&made, |w| {
        let [a, b, c, d] = w.map(unit32);
        let ([a, b], [c, d]) = (wide([a, b]), wide([c, d]));
        [a as f32, b as f32, c as f32, d as f32]
    });
    if made.same(&out) {
        rets.push(Value::Tensor(out));
        return Ok(());
    }
    converted(&made, out, rets)
}

pub fn normal(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let (mean, std) = (call.scalar(1)?.to::<f64>(), call.scalar(2)?.to::<f64>());
    floats(promised(rule::normal(call)?)?, rets, move |u| normal_pair(u).map(|v| mean + std * v))
}

pub fn uniform(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let (low, high) = (call.scalar(1)?.to::<f64>(), call.scalar(2)?.to::<f64>());
    let out = promised(rule::uniform(call)?)?;
    // What lies closest to `high` would be rounded to it, which is outside.
    let last = if low < high { below(high, out.dtype()) } else { high };
    floats(out, rets, move |u| u.map(|v| (low + (high - low) * v).min(last)))
}

/// The largest element of a float dtype that is less than `v`.
fn below(v: f64, dtype: DType) -> f64 {
    let bits = Scalar::Float(v).to_bits(dtype);
    let value = |bits: u64| match Scalar::from_bits(bits, dtype) {
        Scalar::Float(v) => v,
        other => other.to(),
    };
    let sign = 1u64 << (8 * dtype.itemsize() - 1);
    match value(bits) {
        rounded if rounded < v => rounded,
        0.0 => value(sign | 1),
        rounded if rounded < 0.0 => value(bits + 1),
        _ => value(bits - 1),
    }
}

pub fn randint(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let out = promised(rule::randint(call)?)?;
    let (low, high) = (call.int(0)?, call.int(1)?);
    // The bias of taking the high half of a product is below 2^-32 for spans of 32 bits.
    let span = high.wrapping_sub(low) as u64;
    let pick = move |high: u32, low_word: u32| {
        let word = u64::from(high) << 32 | u64::from(low_word);
        low.wrapping_add(((u128::from(word) * u128::from(span)) >> 64) as i64)
    };
    let made = scratch(&out, DType::I64)?;
    draw::<i64, 2>(&made, |w| [pick(w[0], w[1]), pick(w[2], w[3])]);
    converted(&made, out, rets)
}
