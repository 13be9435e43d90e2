//! What the tests share: making and reading tensors, calling ops by name, and a numeric check of gradients.

#![allow(dead_code)] // each test binary uses a part

use std::sync::Once;
use tp_autograd::{GradMode, GradOptions, meta};
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, Error, Registry, Result, Rets, Value, dispatcher};
use tp_tensor::{DType, Device, Scalar, Tensor};

pub fn setup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tp_kernels::register_all().unwrap();
        tp_autograd::install();
    });
}

pub fn tensor(values: &[f64], sizes: &[i64]) -> Tensor {
    let t = Tensor::empty(sizes, DType::F64, Device::CPU).unwrap();
    assert_eq!(t.numel() as usize, values.len());
    for (i, &v) in values.iter().enumerate() {
        // SAFETY: in bounds of fresh memory.
        unsafe { t.data_ptr().cast::<f64>().add(i).write(v) };
    }
    t
}

pub fn ints(values: &[i64], sizes: &[i64]) -> Tensor {
    let t = Tensor::empty(sizes, DType::I64, Device::CPU).unwrap();
    for (i, &v) in values.iter().enumerate() {
        // SAFETY: in bounds of fresh memory.
        unsafe { t.data_ptr().cast::<i64>().add(i).write(v) };
    }
    t
}

/// A leaf that requires grad.
pub fn leaf(values: &[f64], sizes: &[i64]) -> Tensor {
    let t = tensor(values, sizes);
    meta::set_requires_grad(&t, true).unwrap();
    t
}

/// Distinct values in (lo, hi), in no order.
pub fn spread(sizes: &[i64], lo: f64, hi: f64) -> Tensor {
    let n: i64 = sizes.iter().product();
    let values: Vec<f64> = (0..n)
        .map(|i| lo + (hi - lo) * ((i as f64 + 1.0) * 0.618_033_988_749_894_9 + 0.11).fract())
        .collect();
    tensor(&values, sizes)
}

pub fn try_all(name: &str, args: &[Arg<'_>]) -> Result<Rets> {
    setup();
    let op = Registry::global().lookup(name)?;
    let def = op.def().unwrap();
    let full = def.params.fill(name, args)?;
    let mut rets = Rets::new();
    dispatcher::call(op, &full, HostArgs::NONE, &mut rets)?;
    Ok(rets)
}

pub fn try_call(name: &str, args: &[Arg<'_>]) -> Result<Tensor> {
    let name = format!("tp::{name}");
    Ok(try_all(&name, args)?.pop().and_then(Value::into_tensor).unwrap())
}

pub fn call(name: &str, args: &[Arg<'_>]) -> Tensor {
    try_call(name, args).unwrap_or_else(|e| panic!("{name}: {e:?}"))
}

pub fn op1(name: &str, x: &Tensor) -> Tensor {
    call(name, &[Arg::Tensor(x)])
}

pub fn op2(name: &str, a: &Tensor, b: &Tensor) -> Tensor {
    call(name, &[Arg::Tensor(a), Arg::Tensor(b)])
}

pub fn scalar(name: &str, a: &Tensor, s: f64) -> Tensor {
    call(&format!("{name}.Scalar"), &[Arg::Tensor(a), Arg::Scalar(Scalar::Float(s))])
}

pub fn sum(x: &Tensor) -> Tensor {
    op1("sum", x)
}

pub fn values(t: &Tensor) -> Vec<f64> {
    let _mode = GradMode::no_grad();
    let t = call("astype", &[Arg::Tensor(&op1("contiguous", t)), Arg::DType(DType::F64)]);
    // SAFETY: contiguous f64 data.
    unsafe { std::slice::from_raw_parts(t.data_ptr().cast::<f64>(), t.numel() as usize).to_vec() }
}

pub fn backward(t: &Tensor) -> Result<()> {
    tp_autograd::backward(std::slice::from_ref(t), &[], GradOptions::default(), &[])
}

pub fn grads(y: &Tensor, inputs: &[Tensor], create_graph: bool) -> Vec<Tensor> {
    let options = GradOptions { create_graph, ..GradOptions::default() };
    let found = tp_autograd::grad(std::slice::from_ref(y), inputs, &[], options).unwrap();
    found.into_iter().map(Option::unwrap).collect()
}

pub fn grad_of(x: &Tensor) -> Vec<f64> {
    values(&meta::grad(x).expect("a gradient"))
}

#[track_caller]
pub fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{got:?} vs {want:?}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g == w || (g - w).abs() <= 2e-5 * (1.0 + w.abs());
        assert!(same, "element {i}: got {g}, want {w}\n got {got:?}\nwant {want:?}");
    }
}

#[track_caller]
pub fn code_of<T>(r: Result<T>) -> &'static str {
    match r {
        Ok(_) => panic!("expected an error"),
        Err(e) => e.code(),
    }
}

pub fn error_of<T>(r: Result<T>) -> Error {
    r.err().expect("an error")
}

/// A scalar of `y` that weighs every element differently, and not linearly.
fn weighed(y: &Tensor) -> Tensor {
    let w = spread(y.sizes(), 0.5, 1.5);
    let bent = op2("mul", &scalar("add", &scalar("mul", y, 0.5), 1.0), y);
    sum(&op2("mul", &bent, &w))
}

/// Compares the gradients of `f` with central differences at `inputs` (float64 values).
#[track_caller]
pub fn check(f: impl Fn(&[Tensor]) -> Tensor, inputs: &[Tensor]) {
    setup();
    let leaves: Vec<Tensor> = inputs.iter().map(|t| leaf(&values(t), t.sizes())).collect();
    let found = grads(&weighed(&f(&leaves)), &leaves, false);
    let _mode = GradMode::no_grad();
    for (i, input) in inputs.iter().enumerate() {
        let start = values(input);
        let at = |k: usize, d: f64| {
            let mut moved = start.clone();
            moved[k] += d;
            let mut args = inputs.to_vec();
            args[i] = tensor(&moved, input.sizes());
            values(&weighed(&f(&args)))[0]
        };
        let eps = 1e-6;
        let numeric: Vec<f64> = (0..start.len()).map(|k| (at(k, eps) - at(k, -eps)) / (2.0 * eps)).collect();
        assert_eq!(found[i].sizes(), input.sizes(), "shape of gradient {i}");
        close(&values(&found[i]), &numeric);
    }
}

/// The same for `f` and for its first derivative.
#[track_caller]
pub fn check_twice(f: impl Fn(&[Tensor]) -> Tensor, inputs: &[Tensor]) {
    check(&f, inputs);
    let derivative = |args: &[Tensor]| {
        let _mode = GradMode::enable();
        let owned: Vec<Tensor> = args
            .iter()
            .map(|t| if t.requires_grad() { op1("alias", t) } else { leaf(&values(t), t.sizes()) })
            .collect();
        let found = grads(&weighed(&f(&owned)), &owned, true);
        let parts: Vec<Tensor> = found.iter().map(weighed).collect();
        parts.iter().skip(1).fold(parts[0].clone(), |a, b| op2("add", &a, b))
    };
    check(derivative, inputs);
}
