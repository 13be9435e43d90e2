//! What the tests of this crate share: tensors from values in several layouts, calls by name, values back.
#![allow(dead_code)] // every test file uses its own part

use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, Registry, Result, Rets, Value};
use tp_tensor::scalar::Element;
use tp_tensor::{DType, Device, Layout, Scalar, Tensor, dispatch_dtype};

pub fn setup() {
    tp_kernels::register_all().expect("every row registers");
}

/// Calls `tp::name` with positional arguments; defaults are filled in.
pub fn call_all(name: &str, args: &[Arg<'_>]) -> Result<Rets> {
    setup();
    let op = Registry::global().lookup(&format!("tp::{name}"))?;
    let def = op.def().expect("defined");
    let args = def.params.fill(op.name(), args)?;
    let mut rets = Rets::new();
    tp_dispatch::call(op, &args, HostArgs::NONE, &mut rets)?;
    Ok(rets)
}

pub fn call(name: &str, args: &[Arg<'_>]) -> Result<Tensor> {
    Ok(call_all(name, args)?.remove(0).into_tensor().expect("one tensor"))
}

pub fn run(name: &str, args: &[Arg<'_>]) -> Tensor {
    call(name, args).unwrap_or_else(|e| panic!("{name}: {e:?}"))
}

pub fn t(x: &Tensor) -> Arg<'_> {
    Arg::Tensor(x)
}

pub fn int(v: i64) -> Arg<'static> {
    Arg::Scalar(Scalar::Int(v))
}

pub fn float(v: f64) -> Arg<'static> {
    Arg::Scalar(Scalar::Float(v))
}

/// A contiguous tensor of these values.
pub fn tensor(sizes: &[i64], dtype: DType, values: &[f64]) -> Tensor {
    let out = Tensor::empty(sizes, dtype, Device::CPU).unwrap();
    assert_eq!(values.len() as i64, out.numel());
    dispatch_dtype!(dtype, T => for (i, &v) in values.iter().enumerate() {
        unsafe { out.data_ptr().cast::<T>().add(i).write(T::from_f64(v)) };
    });
    out
}

pub fn f32s(sizes: &[i64], values: &[f64]) -> Tensor {
    tensor(sizes, DType::F32, values)
}

pub fn i64s(sizes: &[i64], values: &[f64]) -> Tensor {
    tensor(sizes, DType::I64, values)
}

/// 0, 1, 2, ...
pub fn iota(sizes: &[i64], dtype: DType) -> Tensor {
    let n: i64 = sizes.iter().product();
    tensor(sizes, dtype, &(0..n).map(|v| v as f64).collect::<Vec<_>>())
}

/// The bit patterns in row-major order.
pub fn bits(x: &Tensor) -> Vec<u64> {
    let mut out = Vec::new();
    let layout = x.layout();
    let n = layout.numel();
    dispatch_dtype!(x.dtype(), T => for flat in 0..n {
        let (mut rest, mut at) = (flat, 0i64);
        for axis in (0..x.ndim()).rev() {
            at += rest % x.sizes()[axis] * x.strides()[axis];
            rest /= x.sizes()[axis];
        }
        out.push(unsafe { x.data_ptr().cast::<T>().offset(at as isize).read_unaligned() }.to_bits64());
    });
    out
}

pub fn values(x: &Tensor) -> Vec<f64> {
    bits(x).iter().map(|&b| dispatch_dtype!(x.dtype(), T => T::from_bits64(b).to_f64())).collect()
}

/// NaN equals NaN, whatever its payload.
pub fn same_bits(a: &Tensor, b: &Tensor) -> bool {
    let (va, vb) = (values(a), values(b));
    a.dtype() == b.dtype()
        && a.sizes() == b.sizes()
        && bits(a)
            .iter()
            .zip(bits(b))
            .zip(va.iter().zip(vb))
            .all(|((x, y), (u, v))| *x == y || (u.is_nan() && v.is_nan()))
}

pub fn assert_close(got: &Tensor, want: &[f64], tolerance: f64) {
    let got = values(got);
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let fine = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance * w.abs().max(1.0);
        assert!(fine, "element {i}: {g} != {w}");
    }
}

pub fn view(x: &Tensor, layout: Result<Layout>) -> Tensor {
    x.view(&layout.unwrap()).unwrap()
}

/// The same values of `x` in other layouts: contiguous, at an offset, transposed memory, a slice of a larger tensor,
/// backwards.
pub fn layouts(x: &Tensor) -> Vec<(&'static str, Tensor)> {
    let mut out = vec![("contiguous", x.clone())];
    let n = x.ndim();
    let mut twice: Vec<i64> = x.sizes().to_vec();
    twice.insert(0, 2);
    let memory = Tensor::empty(&twice, x.dtype(), Device::CPU).unwrap();
    let seen = memory.view(&memory.layout().select(0, 1).unwrap()).unwrap();
    fill_from(&seen, x);
    out.push(("offset", seen));
    if n >= 2 {
        // Memory in the reverse order of axes.
        let axes: Vec<i64> = (0..n as i64).rev().collect();
        let reversed: Vec<i64> = x.sizes().iter().rev().copied().collect();
        let memory = Tensor::empty(&reversed, x.dtype(), Device::CPU).unwrap();
        let seen = memory.view(&memory.layout().permute(&axes).unwrap()).unwrap();
        fill_from(&seen, x);
        out.push(("transposed", seen));
    }
    if n >= 1 {
        // Every second element of a tensor twice as wide, from the second on.
        let mut wide: Vec<i64> = x.sizes().to_vec();
        wide[n - 1] = wide[n - 1] * 2 + 1;
        let memory = Tensor::empty(&wide, x.dtype(), Device::CPU).unwrap();
        let seen = memory.view(&memory.layout().slice(n - 1, Some(1), None, 2).unwrap()).unwrap();
        fill_from(&seen, x);
        out.push(("sliced", seen));
        // The last axis runs backwards in memory.
        let memory = Tensor::empty(x.sizes(), x.dtype(), Device::CPU).unwrap();
        let mut layout = memory.layout();
        if x.numel() > 0 {
            layout.offset = (layout.sizes[n - 1] - 1) * layout.strides[n - 1];
            layout.strides[n - 1] *= -1;
        }
        let seen = memory.view(&layout).unwrap();
        fill_from(&seen, x);
        out.push(("backwards", seen));
    }
    out
}

fn fill_from(to: &Tensor, x: &Tensor) {
    let source = bits(x);
    dispatch_dtype!(x.dtype(), T => for (flat, &b) in source.iter().enumerate() {
        let (mut rest, mut at) = (flat as i64, 0i64);
        for axis in (0..to.ndim()).rev() {
            at += rest % to.sizes()[axis] * to.strides()[axis];
            rest /= to.sizes()[axis];
        }
        unsafe { to.data_ptr().cast::<T>().offset(at as isize).write(T::from_bits64(b)) };
    });
}

pub fn first(rets: Rets) -> Value {
    rets.into_iter().next().expect("a result")
}
