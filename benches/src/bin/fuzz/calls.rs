//! Random calls of the built-in ops: arguments by the kinds of the schema, with sizes up to 2^62, every dtype, odd
//! strides and wrong values. All choices come from one source of numbers. Calls whose honest work would take for ever, or all of the memory, are not made.

use smallvec::SmallVec;
use tp_dispatch::bind::{Param, ParamKind};
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, Error, OpHandle, Registry, Rets, Value, dispatcher};
use tp_tensor::{DType, Device, Layout, Scalar, Tensor};

/// Where choices come from.
pub trait Choices {
    /// A number below `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize;
}

/// Elements that an operand on the CPU may have: loops over them end soon.
const FEW: i64 = 1 << 10;
const SIZES: [i64; 16] = [0, 1, 2, 3, 1, 2, 4, 7, 16, 31, 64, 1 << 20, 1 << 44, 1 << 50, 1 << 61, 1 << 62];
/// Numbers at the far end below zero stand for symbols here; the door refuses them.
const NUMBERS: [i64; 15] = [0, 1, -1, 2, -2, 3, 4, 5, 7, 8, -9, 1 << 52, 1 << 62, i64::MAX, i64::MIN / 2];
const FLOATS: [f64; 8] = [0.0, -0.0, 1.5, -1.0, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// The ops of the table, in order.
pub fn ops() -> Vec<OpHandle> {
    let mut ops = Registry::global().list(Some("tp"));
    ops.sort_by(|a, b| a.name().cmp(b.name()));
    ops
}

/// One call of one op: its name, and what came of it.
pub fn one_call(c: &mut dyn Choices, ops: &[OpHandle]) -> (OpHandle, Result<Rets, Error>) {
    let op = ops[c.below(ops.len())];
    let Some(def) = op.def() else { return (op, Ok(Rets::new())) };
    let makes = !def.params.all.iter().any(|p| matches!(p.kind, ParamKind::Tensor | ParamKind::Tensors));
    let meta = c.below(4) == 0;
    let mut values: Vec<Value> = Vec::new();
    for p in &def.params.all {
        values.push(value(c, p, meta, makes));
    }
    let args: SmallVec<[Arg<'_>; 8]> = values.iter().map(Value::as_arg).collect();
    let mut rets = Rets::new();
    (op, dispatcher::call(op, &args, HostArgs::NONE, &mut rets).map(|()| rets))
}

fn value(c: &mut dyn Choices, p: &Param, meta: bool, makes: bool) -> Value {
    if p.optional && c.below(2) == 0 {
        return Value::None;
    }
    if let Some(default) = &p.default
        && c.below(3) == 0
    {
        return default.clone();
    }
    match p.kind {
        ParamKind::Tensor => Value::Tensor(tensor(c, meta)),
        ParamKind::Tensors => Value::Tensors((0..c.below(4)).map(|_| tensor(c, meta)).collect()),
        ParamKind::OptTensors => {
            Value::OptTensors((0..c.below(4)).map(|_| (c.below(3) > 0).then(|| tensor(c, meta))).collect())
        }
        ParamKind::Scalar => Value::Scalar(scalar(c)),
        ParamKind::Int => Value::Int(if makes { small(c) } else { number(c) }),
        ParamKind::Float => Value::Float(FLOATS[c.below(FLOATS.len())]),
        ParamKind::Bool => Value::Bool(c.below(2) == 1),
        ParamKind::Str => Value::Str(["", "none", "tanh", "\0"][c.below(4)].into()),
        ParamKind::Ints if makes => Value::Ints(shape(c, 5).into_boxed_slice()),
        ParamKind::Ints if c.below(2) == 0 => Value::Ints((0..c.below(5)).map(|_| number(c)).collect()),
        ParamKind::Ints => Value::Ints(few(c).into_boxed_slice()),
        ParamKind::Floats => Value::Floats((0..c.below(4)).map(|_| FLOATS[c.below(8)]).collect()),
        ParamKind::Bools => Value::Bools((0..c.below(4)).map(|_| c.below(2) == 1).collect()),
        ParamKind::Scalars => Value::Scalars((0..c.below(4)).map(|_| scalar(c)).collect()),
        ParamKind::DType => Value::DType(dtype(c)),
        ParamKind::Device => Value::Device(if c.below(3) == 0 { Device::META } else { Device::CPU }),
        ParamKind::Opaque => Value::None,
    }
}

fn dtype(c: &mut dyn Choices) -> DType {
    DType::ALL[c.below(DType::ALL.len())]
}

fn number(c: &mut dyn Choices) -> i64 {
    NUMBERS[c.below(NUMBERS.len())]
}

/// Counts that are honest work: few elements, or none at all.
fn small(c: &mut dyn Choices) -> i64 {
    [0, 1, 2, 5, 17, -1, -3, i64::MIN / 2][c.below(8)]
}

fn scalar(c: &mut dyn Choices) -> Scalar {
    match c.below(3) {
        0 => Scalar::Bool(c.below(2) == 1),
        1 => Scalar::Int(small(c)),
        _ => Scalar::Float(FLOATS[c.below(4)]),
    }
}

/// Sizes whose product is small or zero, or so large that no memory could be had.
fn shape(c: &mut dyn Choices, dims: usize) -> Vec<i64> {
    let n = if c.below(64) == 0 { 60 + c.below(8) } else { c.below(dims + 1) };
    let mut sizes: Vec<i64> = (0..n).map(|_| if n > 8 { 1 } else { SIZES[c.below(SIZES.len())] }).collect();
    let count = sizes.iter().try_fold(1i64, |a, b| a.checked_mul(*b));
    if count.is_some_and(|n| n > FEW && n < 1 << 50) {
        sizes.iter_mut().for_each(|s| *s = (*s).min(3));
        sizes.truncate(5);
    }
    sizes
}

/// Sizes of few elements.
fn few(c: &mut dyn Choices) -> Vec<i64> {
    let mut sizes = shape(c, 4);
    if sizes.iter().try_fold(1i64, |a, b| a.checked_mul(*b)).is_none_or(|n| n > FEW) {
        sizes.iter_mut().for_each(|s| *s = (*s).min(3));
        sizes.truncate(5);
    }
    sizes
}

/// A tensor of few elements with strides of every kind; on 'meta' one of any size.
fn tensor(c: &mut dyn Choices, meta: bool) -> Tensor {
    let dtype = dtype(c);
    // Now and then on the other device than the rest.
    if meta != (c.below(16) == 0) {
        let sizes = shape(c, 4);
        return Tensor::empty(&sizes, dtype, Device::META).unwrap_or_else(|_| plain(&[], dtype));
    }
    let t = plain(&few(c), dtype);
    let sizes = t.sizes().to_vec();
    let layout = t.layout();
    let other = match c.below(5) {
        0 => layout.permute(&(0..sizes.len() as i64).rev().collect::<Vec<_>>()).ok(),
        1 if !sizes.is_empty() => layout.slice(c.below(sizes.len()), Some(1), None, 2).ok(),
        2 => {
            let ones = vec![1; sizes.len()];
            return plain(&ones, dtype)
                .layout()
                .expand(&sizes)
                .ok()
                .map_or(t, |wide| plain(&ones, dtype).view(&wide).unwrap_or_else(|_| plain(&[], dtype)));
        }
        _ => None,
    };
    other.and_then(|l: Layout| t.view(&l).ok()).unwrap_or(t)
}

/// Zeros on the CPU.
fn plain(sizes: &[i64], dtype: DType) -> Tensor {
    let Ok(t) = Tensor::empty(sizes, dtype, Device::CPU) else { return plain(&[], dtype) };
    // SAFETY: fresh memory of that many bytes.
    unsafe { std::ptr::write_bytes(t.data_ptr(), 0, t.nbytes()) };
    t
}
