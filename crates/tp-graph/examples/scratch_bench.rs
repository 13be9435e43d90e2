#[path = "../tests/support/mod.rs"]
mod support;
use std::time::Instant;
use support::*;
use tp_dispatch::{Rets, Value};
use tp_graph::{Built, CompileOptions, CompiledFunction, Graph, capture_graph, passes};
fn best(n: usize, mut f: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..30 {
        let s = Instant::now();
        for _ in 0..n {
            f();
        }
        best = best.min(s.elapsed().as_nanos() as f64 / n as f64);
    }
    best
}
fn main() {
    install();
    let f = CompiledFunction::new(CompileOptions::default());
    let x = tensor(&[1.0; 8], &[8]);
    let args = [t(&x)];
    let n = names(&["x"]);
    let b = f.build(&args, &n, &mut |i| {
        let y = op("tp::mul.Scalar", &[t(i[0].tensor().unwrap()), num(2.0)]);
        Ok((vec![Value::Tensor(op("tp::add.Scalar", &[t(&y), num(1.0)]))], Box::new(())))
    });
    let Ok(Built::Entry(e)) = b else { panic!() };
    println!(
        "guard {:.1} ns",
        best(100000, || {
            std::hint::black_box(f.find(std::hint::black_box(&args)));
        })
    );
    println!(
        "compiled call {:.1} ns",
        best(100000, || {
            let mut r = Rets::new();
            f.call(std::hint::black_box(&args), &mut r).unwrap();
            std::hint::black_box(&r);
        })
    );
    println!(
        "entry.run {:.1} ns",
        best(100000, || {
            let mut r = Rets::new();
            e.run(std::hint::black_box(&args), &mut r).unwrap();
            std::hint::black_box(&r);
        })
    );
    println!(
        "empty tensor {:.1} ns",
        best(100000, || {
            std::hint::black_box(
                tp_tensor::Tensor::empty(&[8], tp_tensor::DType::F32, tp_tensor::Device::CPU).unwrap(),
            );
        })
    );
    println!(
        "eager mul {:.1} ns",
        best(100000, || {
            std::hint::black_box(op("tp::mul.Scalar", &[t(&x), num(2.0)]));
        })
    );
    let h = handle("tp::mul.Scalar");
    let cap = |k: usize| {
        let s = Instant::now();
        let c = capture_graph(&args, &n, &mut |i| {
            let mut y = i[0].tensor().unwrap().clone();
            for _ in 0..k {
                let mut r = Rets::new();
                tp_dispatch::dispatcher::call(
                    h,
                    &[t(&y), num(1.01)],
                    tp_dispatch::kernel::HostArgs::NONE,
                    &mut r,
                )?;
                y = r.pop().unwrap().into_tensor().unwrap();
            }
            Ok(vec![Value::Tensor(y)])
        })
        .unwrap();
        let d = s.elapsed().as_nanos() as f64 / k as f64;
        (d, c.graph)
    };
    let mut m = f64::MAX;
    for _ in 0..200 {
        m = m.min(cap(200).0);
    }
    println!("capture per op {m:.0} ns");
    let g = cap(200).1;
    let s = Instant::now();
    let v = g.verify();
    println!("verify 200 {:?} {}", s.elapsed(), v.len());
    let s = Instant::now();
    let (g2, _) = passes::simplify(&g);
    println!("simplify 200 {:?}", s.elapsed());
    let s = Instant::now();
    let p = passes::partition::run(&g2);
    println!("partition 200 {:?} {}", s.elapsed(), p.parts.len());
    let big = cap(10000).1;
    let s = Instant::now();
    let p = passes::partition::run(&big);
    println!("partition 10000 {:?} {}", s.elapsed(), p.parts.len());
    let s = Instant::now();
    let txt = big.text();
    println!("text 10000 {:?}", s.elapsed());
    let s = Instant::now();
    let _ = Graph::parse(&txt).unwrap();
    println!("parse 10000 {:?}", s.elapsed());
}
