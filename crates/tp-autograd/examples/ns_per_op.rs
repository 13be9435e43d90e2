//! Nanoseconds per recorded operation, forward and backward, on tensors of eight floats.
//! `cargo run --release -p tp-autograd --example ns_per_op [-- part of a case's name]`

use std::hint::black_box;
use std::time::Instant;
use tp_autograd::{GradMode, GradOptions, meta};
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::{Arg, OpHandle, Registry, Rets, Value, dispatcher};
use tp_tensor::{DType, Device, Scalar, Tensor};

fn run(op: OpHandle, args: &[Arg<'_>]) -> Tensor {
    let mut rets = Rets::new();
    dispatcher::call(op, args, HostArgs::NONE, &mut rets).expect("the call works");
    rets.pop().and_then(Value::into_tensor).expect("one tensor")
}

/// Median of several rounds, in nanoseconds per unit.
fn time(what: &str, units: usize, mut f: impl FnMut()) {
    if std::env::args().nth(1).is_some_and(|part| !what.contains(&part)) {
        return;
    }
    let mut rounds: Vec<f64> = (0..41)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64() * 1e9 / units as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:<48} {:8.1} ns (best {:.1})", rounds[rounds.len() / 2], rounds[0]);
}

#[allow(clippy::print_stdout)]
fn main() {
    tp_kernels::register_all().expect("ops register");
    tp_autograd::install();
    let find = |name: &str| Registry::global().lookup(name).expect("a built-in op");
    let (scale, mul, sum) = (find("tp::mul.Scalar"), find("tp::mul"), find("tp::sum"));
    let two = Arg::Scalar(Scalar::Float(2.0));
    let x = Tensor::empty(&[8], DType::F32, Device::CPU).expect("memory");
    // SAFETY: eight floats.
    (0..8).for_each(|i| unsafe { x.data_ptr().cast::<f32>().add(i).write(1.0) });
    meta::set_requires_grad(&x, true).expect("a float tensor");
    let n = 2000;

    time("x * 2, no grad", n, || {
        let _mode = GradMode::no_grad();
        (0..n).for_each(|_| drop(black_box(run(scale, &[Arg::Tensor(&x), two]))));
    });
    time("x * 2, recorded (and the node dropped)", n, || {
        (0..n).for_each(|_| drop(black_box(run(scale, &[Arg::Tensor(&x), two]))));
    });
    time("x * x, no grad", n, || {
        let _mode = GradMode::no_grad();
        (0..n).for_each(|_| drop(black_box(run(mul, &[Arg::Tensor(&x), Arg::Tensor(&x)]))));
    });
    time("x * x, recorded", n, || {
        (0..n).for_each(|_| drop(black_box(run(mul, &[Arg::Tensor(&x), Arg::Tensor(&x)]))));
    });
    let all = [Arg::Tensor(&x), Arg::None, Arg::None, Arg::Bool(false)];
    time("sum, no grad", n, || {
        let _mode = GradMode::no_grad();
        (0..n).for_each(|_| drop(black_box(run(sum, &all))));
    });
    time("sum, recorded", n, || (0..n).for_each(|_| drop(black_box(run(sum, &all)))));
    time("(x * 2).sum().backward()", n, || {
        for _ in 0..n {
            let y = run(scale, &[Arg::Tensor(&x), two]);
            let z = run(sum, &[Arg::Tensor(&y), Arg::None, Arg::None, Arg::Bool(false)]);
            tp_autograd::backward(&[z], &[], GradOptions::default(), &[]).expect("backward");
        }
    });
    for (name, depth) in
        [("chain of 1000 multiplications, forward+backward", 1000), ("chain of 100000", 100_000)]
    {
        let ones = [Some(x.detach())];
        time(name, depth, || {
            let mut y = run(scale, &[Arg::Tensor(&x), two]);
            for _ in 1..depth {
                y = run(scale, &[Arg::Tensor(&y), Arg::Scalar(Scalar::Float(1.0))]);
            }
            tp_autograd::backward(&[y], &ones, GradOptions::default(), &[]).expect("backward");
        });
    }
}
