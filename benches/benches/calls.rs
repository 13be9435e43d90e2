//! What one call costs inside of Rust: schema parsing, dispatch, recording, backward, capture, a compiled call.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use tp_bench::{call, ones, op, setup};
use tp_dispatch::bind::Params;
use tp_dispatch::kernel::{Call, KernelObject};
use tp_dispatch::registry::KernelSpec;
use tp_dispatch::select::Slot;
use tp_dispatch::{
    Arg, Effects, FakeRule, GradSpec, HostVisitor, Kernel, OpDef, OpHandle, Provenance, Registry, Result,
    Rets, Schema, Value,
};
use tp_graph::compile::{Built, CompileOptions, CompiledFunction};
use tp_tensor::{Scalar, Tensor};

fn schema(c: &mut Criterion) {
    let text = include_str!("../../tests/data/torch-schemas.txt");
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    c.bench_function("schema/parse, 4374 lines", |b| {
        b.iter(|| lines.iter().filter(|l| Schema::parse(black_box(l)).is_ok()).count());
    });
}

fn native(c: &mut Criterion) {
    let (add, mul) = (op("tp::add"), op("tp::mul.Scalar"));
    let x = ones(8);
    c.bench_function("dispatch/native add, 8 floats", |b| {
        b.iter(|| call(add, &[Arg::Tensor(black_box(&x)), Arg::Tensor(&x)]));
    });
    c.bench_function("dispatch/native mul by a number, 8 floats", |b| {
        b.iter(|| call(mul, &[Arg::Tensor(black_box(&x)), Arg::Scalar(Scalar::Float(2.0))]));
    });
}

/// A kernel behind a pointer, as foreign ones are.
struct Twice(OpHandle);

impl KernelObject for Twice {
    fn call(&self, c: &Call<'_>, rets: &mut Rets) -> Result<()> {
        rets.push(Value::Tensor(call(self.0, &[Arg::Tensor(c.tensor(0)?), Arg::Scalar(Scalar::Float(2.0))])));
        tp_dispatch::check::check_outputs(c, rets, "the kernel")
    }
    fn trace(&self, _: &mut HostVisitor<'_>) {}
}

fn custom_op() -> OpHandle {
    let schema = Schema::parse("bench::twice(Tensor x) -> Tensor").expect("a schema");
    let def = OpDef {
        params: Params::compile(&schema).expect("parameters"),
        schema: Arc::new(schema),
        effects: Effects::PURE,
        fake: FakeRule::Missing,
        grad: GradSpec::Missing,
        pointwise: None,
        custom: true,
        tags: Vec::new(),
        provenance: Provenance::native("twice", file!(), line!()),
    };
    let defined = Registry::global().define("bench::twice", def, true).expect("defined");
    let handle = defined.op();
    defined.keep();
    let spec = KernelSpec {
        slot: Slot::Default,
        kernel: Kernel::Object(Arc::new(Twice(op("tp::mul.Scalar")))),
        provenance: Provenance::native("twice", file!(), line!()),
        when: None,
        contiguous: Box::default(),
    };
    Registry::global().register_kernel(handle, spec).expect("registered").keep();
    handle
}

fn custom(c: &mut Criterion) {
    let twice = custom_op();
    let x = ones(8);
    c.bench_function("dispatch/custom op, 8 floats", |b| {
        b.iter(|| call(twice, &[Arg::Tensor(black_box(&x))]))
    });
}

fn leaf() -> Tensor {
    let x = ones(8);
    tp_autograd::meta::set_requires_grad(&x, true).expect("a float leaf");
    x
}

fn tape(c: &mut Criterion) {
    let (mul, sum) = (op("tp::mul.Scalar"), op("tp::sum"));
    let x = leaf();
    c.bench_function("autograd/record mul by a number", |b| {
        b.iter(|| call(mul, &[Arg::Tensor(black_box(&x)), Arg::Scalar(Scalar::Float(2.0))]));
    });
    c.bench_function("autograd/(x * 2).sum().backward()", |b| {
        b.iter(|| {
            let y = call(mul, &[Arg::Tensor(&x), Arg::Scalar(Scalar::Float(2.0))]);
            let s = call(sum, &[Arg::Tensor(&y), Arg::None, Arg::None, Arg::Bool(false)]);
            tp_autograd::backward(&[s], &[], tp_autograd::GradOptions::default(), &[]).expect("backward");
        });
    });
}

fn chain(mul: OpHandle, x: &Tensor, n: usize) -> Tensor {
    (0..n).fold(x.clone(), |y, _| call(mul, &[Arg::Tensor(&y), Arg::Scalar(Scalar::Float(1.01))]))
}

fn capture(c: &mut Criterion) {
    let mul = op("tp::mul.Scalar");
    let x = ones(8);
    c.bench_function("graph/capture 200 ops", |b| {
        b.iter(|| {
            let names: [Arc<str>; 1] = ["x".into()];
            tp_graph::capture::capture_graph(&[Arg::Tensor(&x)], &names, &mut |values| {
                let Some(Value::Tensor(fake)) = values.first() else { return Ok(Vec::new()) };
                Ok(vec![Value::Tensor(chain(mul, fake, 200))])
            })
            .expect("captured")
        });
    });
}

fn compiled(c: &mut Criterion) {
    let mul = op("tp::mul.Scalar");
    let x = ones(8);
    let f = CompiledFunction::new(CompileOptions::default());
    let names: [Arc<str>; 1] = ["x".into()];
    let built = f.build(&[Arg::Tensor(&x)], &names, &[], &mut |values| {
        let Some(Value::Tensor(fake)) = values.first() else { return Ok((Vec::new(), Box::new(()))) };
        Ok((vec![Value::Tensor(chain(mul, fake, 2))], Box::new(())))
    });
    assert!(matches!(built, Ok(Built::Entry(_))), "two multiplications compile");
    c.bench_function("graph/compiled call of two ops, 8 floats", |b| {
        b.iter(|| {
            let args = [Arg::Tensor(black_box(&x))];
            let entry = f.find(&args).expect("the guards hold");
            let mut rets = Rets::new();
            assert!(entry.run(&args, &mut rets).expect("the run succeeds"));
            rets
        });
    });
}

fn all(c: &mut Criterion) {
    setup();
    schema(c);
    native(c);
    custom(c);
    tape(c);
    capture(c);
    compiled(c);
}

criterion_group!(benches, all);
criterion_main!(benches);
