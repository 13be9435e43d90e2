//! Compiled functions: values as in eager code, guards in the names of arguments, reports of what ran.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use support::*;
use tp_dispatch::{Arg, Effects, ErrorKind, FakeOut, FakeRule, FallbackReason, Result, Rets, Value};
use tp_graph::backend::{self, Backend, Capability, Executor, Lowered, Region};
use tp_graph::sizing::Dynamic;
use tp_graph::{Built, CompileOptions, CompiledFunction, FallbackPolicy};
use tp_tensor::{Scalar, Tensor, TensorSpec};

type Body = dyn Fn(&[Value]) -> Result<Vec<Value>>;

/// Calls as the door does: an entry if one fits, else a capture.
fn call(f: &CompiledFunction, names_: &[&str], args: &[Arg<'_>], body: &Body) -> Result<Rets> {
    let mut rets = Rets::new();
    if f.call(args, &mut rets)?.is_some() {
        return Ok(rets);
    }
    match f.build(args, &names(names_), &[], &mut |inputs| Ok((body(inputs)?, Box::new(()))))? {
        Built::Entry(entry) => assert!(entry.run(args, &mut rets)?),
        Built::Eager(reason) => {
            let inputs: Vec<Value> = args.iter().map(Arg::to_value).collect();
            rets = body(&inputs)?.into();
            f.note_eager(&reason);
        }
    }
    Ok(rets)
}

fn tensor_of(v: &Value) -> &Tensor {
    v.tensor().expect("a tensor")
}

fn first(rets: &Rets) -> Vec<f32> {
    values(tensor_of(&rets[0]))
}

fn double_plus_one(inputs: &[Value]) -> Result<Vec<Value>> {
    let y = try_op("tp::mul.Scalar", &[t(tensor_of(&inputs[0])), num(2.0)])?;
    Ok(vec![Value::Tensor(try_op("tp::add.Scalar", &[t(&y), num(1.0)])?)])
}

#[test]
fn a_chain_is_one_native_region() {
    install();
    let f = CompiledFunction::new(CompileOptions::default());
    let x = tensor(&[1.0, -2.0, 0.5], &[3]);
    for _ in 0..3 {
        let rets = call(&f, &["x"], &[t(&x)], &double_plus_one).unwrap();
        assert_eq!(first(&rets), [3.0, -3.0, 2.0]);
    }
    assert_eq!(f.entries().len(), 1);
    let run = f.last_run().unwrap();
    assert_eq!(run.forward.len(), 1);
    assert_eq!(&*run.forward[0].marker.executor, "native");
    assert!(run.forward[0].marker.proof.as_ref().unwrap().starts_with("tile:"));
    assert_eq!(&*run.forward[0].ops, ["tp::mul.Scalar".to_string(), "tp::add.Scalar".to_string()]);
    assert_eq!(run.forward[0].reason, None);
    assert!(run.backward.is_empty());
}

#[test]
fn guards_name_the_argument_and_recompiles_their_reason() {
    install();
    let f = CompiledFunction::new(CompileOptions::default());
    let x = tensor(&[1.0, 2.0, 3.0], &[3]);
    let wide = tensor(&[1.0, 2.0, 3.0, 4.0], &[4]);
    call(&f, &["x"], &[t(&x)], &double_plus_one).unwrap();
    let guards = f.entries()[0].guards();
    for guard in
        ["x.dtype == float32", "x.shape[0] == 3", "x.requires_grad == False", "x.is_contiguous() == True"]
    {
        assert!(guards.iter().any(|g| g == guard), "{guard} in {guards:?}");
    }
    assert_eq!(first(&call(&f, &["x"], &[t(&wide)], &double_plus_one).unwrap()), [3.0, 5.0, 7.0, 9.0]);
    let explanation = f.explanation();
    assert_eq!(explanation.recompiles[0].guard, "x.shape[0] == 3, got 4");
    assert_eq!(f.last_run().unwrap().graph, 1);
    assert!(explanation.to_string().contains("graph 1: x.shape[0] == 3, got 4"));
}

#[test]
fn literals_are_guarded_by_type_and_value() {
    install();
    let f = CompiledFunction::new(CompileOptions::default());
    let x = tensor(&[1.0, 2.0], &[2]);
    let body = |inputs: &[Value]| {
        let n = inputs[1].as_arg().scalar().unwrap();
        Ok(vec![
            Value::Tensor(try_op("tp::mul.Scalar", &[t(tensor_of(&inputs[0])), Arg::Scalar(n)])?),
            inputs[1].clone(),
        ])
    };
    let rets = call(&f, &["x", "n"], &[t(&x), Arg::Int(3)], &body).unwrap();
    assert_eq!(first(&rets), [3.0, 6.0]);
    assert!(matches!(rets[1], Value::Int(3)));
    call(&f, &["x", "n"], &[t(&x), Arg::Float(3.0)], &body).unwrap();
    call(&f, &["x", "n"], &[t(&x), Arg::Bool(true)], &body).unwrap();
    call(&f, &["x", "n"], &[t(&x), Arg::Int(3)], &body).unwrap();
    assert_eq!(f.entries().len(), 3);
    assert_eq!(f.explanation().recompiles[0].guard, "n == 3, got 3.0");
    assert!(f.entries()[0].guards().contains(&"n == 3".to_string()));
}

#[test]
fn after_the_limit_the_function_itself_runs() {
    install();
    let f = CompiledFunction::new(CompileOptions {
        limit: 2,
        dynamic: Dynamic::Never,
        ..CompileOptions::default()
    });
    for n in 1..=4i64 {
        let x = tensor(&vec![1.0; n as usize], &[n]);
        assert_eq!(first(&call(&f, &["x"], &[t(&x)], &double_plus_one).unwrap()), vec![3.0; n as usize]);
    }
    assert_eq!(f.entries().len(), 2);
    let run = f.last_run().unwrap();
    assert_eq!(&*run.forward[0].marker.executor, "eager");
    match run.forward[0].reason.as_ref().unwrap() {
        FallbackReason::RecompileLimit { limit: 2, guard } => assert_eq!(guard, "x.shape[0] == 2, got 4"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn broadcasting_views_and_reductions_equal_eager() {
    install();
    let x = tensor(&[1.0, -2.0, 3.0, 4.0, -5.0, 6.0], &[2, 3]);
    let w = tensor(&[0.5, 2.0], &[2]);
    let body = |inputs: &[Value]| {
        let xt = op("tp::transpose", &[t(tensor_of(&inputs[0])), Arg::Int(0), Arg::Int(1)]);
        let y = op("tp::mul", &[t(&xt), t(tensor_of(&inputs[1]))]);
        let z = op("tp::tanh", &[t(&y)]);
        let s = op("tp::sum", &[t(&z)]);
        let q = op("tp::sub", &[t(&z), t(&s)]);
        Ok(vec![Value::Tensor(q), Value::Tensor(s), Value::Tensor(xt)])
    };
    let eager = body(&[Value::Tensor(x.clone()), Value::Tensor(w.clone())]).unwrap();
    let f = CompiledFunction::new(CompileOptions::default());
    for _ in 0..2 {
        let rets = call(&f, &["x", "w"], &[t(&x), t(&w)], &body).unwrap();
        for (got, want) in rets.iter().zip(&eager) {
            assert_eq!(values(tensor_of(got)), values(tensor_of(want)));
            assert_eq!(TensorSpec::of(tensor_of(got)), TensorSpec::of(tensor_of(want)));
        }
        assert!(tensor_of(&rets[2]).shares_storage(&x));
    }
    let regions: Vec<String> = f.last_run().unwrap().forward.iter().map(|r| r.ops.join("+")).collect();
    assert_eq!(
        regions,
        ["tp::transpose.default", "tp::mul.default+tp::tanh.default", "tp::sum.default", "tp::sub.default"]
    );
}

#[test]
fn a_custom_op_is_one_opaque_node_and_its_body_does_not_run_in_capture() {
    install();
    opaque_triple("g::triple", Effects::PURE);
    let x = tensor(&[1.0, 2.0], &[2]);
    let body = |inputs: &[Value]| {
        let before = RUNS.load(Ordering::SeqCst);
        let y = op("g::triple", &[t(tensor_of(&inputs[0]))]);
        assert!(!y.is_fake() || before == RUNS.load(Ordering::SeqCst));
        Ok(vec![Value::Tensor(op("tp::mul.Scalar", &[t(&y), num(2.0)]))])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    assert_eq!(first(&call(&f, &["x"], &[t(&x)], &body).unwrap()), [6.0, 12.0]);
    assert_eq!(f.entries()[0].graph().targets(), ["g::triple.default", "tp::mul.Scalar"]);
    let run = f.last_run().unwrap();
    assert_eq!(&*run.forward[0].marker.executor, "python");
    assert_eq!(run.forward[0].marker.proof.as_deref(), Some("test.py:7"));
    assert_eq!(&*run.forward[1].marker.executor, "native");
}

#[test]
fn a_broken_fake_promise_is_an_error_that_names_both_sides() {
    install();
    fn liar(call: &tp_dispatch::Call<'_>) -> Result<tp_dispatch::FakeOuts> {
        let x = call.tensor(0)?;
        Ok([FakeOut::Spec(TensorSpec::contiguous(&[2, 2], x.dtype(), x.device()))].into())
    }
    define("g::liar(Tensor x) -> Tensor", Effects::PURE, FakeRule::Fn(liar), triple);
    let x = tensor(&[1.0, 2.0, 3.0, 4.0], &[4]);
    let body = |inputs: &[Value]| Ok(vec![Value::Tensor(try_op("g::liar", &[t(tensor_of(&inputs[0]))])?)]);
    let f = CompiledFunction::new(CompileOptions::default());
    let e = call(&f, &["x"], &[t(&x)], &body).unwrap_err();
    assert_eq!((e.kind(), e.code()), (ErrorKind::Contract, "TP3205"));
    assert_eq!(
        e.to_string(),
        "g::liar: output 0 of the kernel has shape (4,), the fake rule promised (2, 2)"
    );
}

#[test]
fn writes_to_an_argument_reach_the_caller_and_later_reads() {
    install();
    let body = |inputs: &[Value]| {
        let x = tensor_of(&inputs[0]);
        let before = op("tp::mul.Scalar", &[t(x), num(10.0)]);
        op("tp::add_.Scalar", &[t(x), num(1.0)]);
        let after = op("tp::mul.Scalar", &[t(x), num(10.0)]);
        Ok(vec![Value::Tensor(before), Value::Tensor(after)])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    let x = tensor(&[1.0, 2.0], &[2]);
    for round in 0..3 {
        let version = x.storage().version();
        let rets = call(&f, &["x"], &[t(&x)], &body).unwrap();
        let base = round as f32;
        assert_eq!(first(&rets), [10.0 + 10.0 * base, 20.0 + 10.0 * base]);
        assert_eq!(values(tensor_of(&rets[1])), [20.0 + 10.0 * base, 30.0 + 10.0 * base]);
        assert_eq!(values(&x), [2.0 + base, 3.0 + base]);
        assert_eq!(x.storage().version(), version + 1);
    }
    assert!(f.entries()[0].graph().text().contains("# mutates; %2 is %0"));
}

#[test]
fn shared_memory_is_guarded_where_the_graph_writes() {
    install();
    let body = |inputs: &[Value]| {
        let (x, y) = (tensor_of(&inputs[0]), tensor_of(&inputs[1]));
        let a = op("tp::mul.Scalar", &[t(y), num(10.0)]);
        op("tp::add_.Scalar", &[t(x), num(1.0)]);
        let b = op("tp::mul.Scalar", &[t(y), num(10.0)]);
        Ok(vec![Value::Tensor(op("tp::sub", &[t(&b), t(&a)]))])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    let (x, y) = (tensor(&[1.0, 2.0], &[2]), tensor(&[3.0, 4.0], &[2]));
    assert_eq!(first(&call(&f, &["x", "y"], &[t(&x), t(&y)], &body).unwrap()), [0.0, 0.0]);
    let same = x.detach();
    assert_eq!(first(&call(&f, &["x", "y"], &[t(&x), t(&same)], &body).unwrap()), [10.0, 10.0]);
    assert_eq!(f.explanation().recompiles[0].guard, "x and y do not share memory, which changed");
    assert_eq!(first(&call(&f, &["x", "y"], &[t(&x), t(&x)], &body).unwrap()), [10.0, 10.0]);
}

#[test]
fn tensors_reached_through_closures_are_lifted_once_and_read_at_each_run() {
    install();
    let w = tensor(&[2.0, 3.0], &[2]);
    let held = w.clone();
    let body = move |inputs: &[Value]| {
        let y = op("tp::mul", &[t(tensor_of(&inputs[0])), t(&held)]);
        Ok(vec![Value::Tensor(op("tp::add", &[t(&y), t(&held)])), Value::Tensor(held.clone())])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    let x = tensor(&[1.0, 1.0], &[2]);
    assert_eq!(first(&call(&f, &["x"], &[t(&x)], &body).unwrap()), [4.0, 6.0]);
    op("tp::mul_.Scalar", &[t(&w), num(10.0)]);
    let rets = call(&f, &["x"], &[t(&x)], &body).unwrap();
    assert_eq!(first(&rets), [40.0, 60.0]);
    assert!(tensor_of(&rets[1]).same(&w));
    assert_eq!(f.entries().len(), 1);
    assert_eq!(f.entries()[0].graph().inputs.len(), 2);
}

/// A backend that takes `mul` and `add` chains and computes them with the reference interpreter.
struct Picky;

struct PickyKernel(Region);

impl Backend for Picky {
    fn name(&self) -> &str {
        "picky"
    }
    fn probe(&self) -> Capability {
        Capability::available("picky")
    }
    fn supports(&self, region: &Region) -> std::result::Result<(), FallbackReason> {
        match region.ops.iter().find(|op| !op.starts_with("tp::mul") && !op.starts_with("tp::add")) {
            None => Ok(()),
            Some(op) => Err(FallbackReason::UnsupportedOp { op: op.clone(), why: "not in the table".into() }),
        }
    }
    fn lower(&self, region: &Region) -> std::result::Result<Lowered, FallbackReason> {
        Ok(Lowered::Region(Arc::new(PickyKernel(region.clone()))))
    }
}

impl Executor for PickyKernel {
    fn run(&self, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<Arc<tp_dispatch::CodegenMarker>> {
        let reads: Vec<Vec<f32>> = inputs.iter().map(|t| values(t)).collect();
        for (i, want) in (0..outputs[0].numel() as usize).map(|i| (i, &outputs[0])) {
            let bits: Vec<u64> = reads.iter().map(|r| u64::from(r[i % r.len()].to_bits())).collect();
            let got = tp_expr::eval::eval(&self.0.program, &bits)?;
            // SAFETY: in range.
            unsafe { *want.data_ptr().cast::<f32>().add(i) = f32::from_bits(got[0] as u32) };
        }
        let marker = tp_dispatch::CodegenMarker {
            executor: "picky".into(),
            kernel: "eval".into(),
            proof: Some("hash".into()),
            device: tp_tensor::Device::CPU,
        };
        Ok(Arc::new(marker))
    }
}

#[test]
fn a_backend_takes_what_it_supports_and_the_rest_has_reasons() {
    install();
    let options = CompileOptions { backends: vec![Arc::new(Picky)], ..CompileOptions::default() };
    let f = CompiledFunction::new(options);
    let x = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let body = |inputs: &[Value]| {
        let a = op("tp::mul.Scalar", &[t(tensor_of(&inputs[0])), num(2.0)]);
        let b = op("tp::matmul", &[t(&a), t(&a)]);
        let c = op("tp::add.Scalar", &[t(&b), num(1.0)]);
        let d = op("tp::sum", &[t(&c)]);
        Ok(vec![Value::Tensor(c), Value::Tensor(op("tp::exp", &[t(&d)]))])
    };
    let rets = call(&f, &["x"], &[t(&x)], &body).unwrap();
    assert_eq!(first(&rets), [29.0, 41.0, 61.0, 89.0]);
    let run = f.last_run().unwrap();
    let executors: Vec<&str> = run.forward.iter().map(|r| &*r.marker.executor).collect();
    assert_eq!(executors, ["picky", "native", "picky", "native", "native"]);
    let reason = |i: usize| run.forward[i].reason.as_ref();
    assert_eq!(reason(0), None);
    assert_eq!(
        reason(1),
        Some(&FallbackReason::UnsupportedOp { op: "tp::matmul.default".into(), why: "not pointwise".into() })
    );
    assert_eq!(
        reason(4),
        Some(&FallbackReason::UnsupportedOp { op: "tp::exp.default".into(), why: "not in the table".into() })
    );
    assert_eq!(f.builds().len(), 2);
}

#[test]
fn a_policy_of_error_refuses_with_the_reason() {
    install();
    let options = CompileOptions {
        backends: vec![Arc::new(Picky)],
        policy: FallbackPolicy::Error,
        ..CompileOptions::default()
    };
    let f = CompiledFunction::new(options);
    let x = tensor(&[1.0], &[1]);
    let body = |inputs: &[Value]| Ok(vec![Value::Tensor(op("tp::exp", &[t(tensor_of(&inputs[0]))]))]);
    let e = call(&f, &["x"], &[t(&x)], &body).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Fallback);
    assert_eq!(e.reason().unwrap().kind(), "UnsupportedOp");
    assert!(f.entries().is_empty());
}

#[test]
fn backends_are_found_by_name() {
    backend::register(Arc::new(Picky));
    assert!(backend::get("picky").is_some());
    assert!(backend::get("nobody").is_none());
    assert!(backend::names().contains(&"native".to_string()));
}

#[test]
fn events_of_a_compiled_call_are_traced() {
    install();
    let f = CompiledFunction::new(CompileOptions::default());
    let x = tensor(&[1.0, 2.0], &[2]);
    call(&f, &["x"], &[t(&x)], &double_plus_one).unwrap();
    let sink: tp_dispatch::state::Sink = Arc::default();
    tp_dispatch::state::push_sink(sink.clone());
    let rets = call(&f, &["x"], &[t(&x)], &double_plus_one);
    tp_dispatch::state::pop_sink(&sink);
    assert_eq!(first(&rets.unwrap()), [3.0, 5.0]);
    let events = sink.lock();
    assert_eq!(events.len(), 1);
    assert_eq!(&*events[0].op, "tp::mul.Scalar tp::add.Scalar");
    assert_eq!(&*events[0].marker.executor, "native");
}

#[test]
fn outputs_that_are_inputs_or_constants_pass_through() {
    install();
    let f = CompiledFunction::new(CompileOptions::default());
    let x = tensor(&[1.0], &[1]);
    let body = |inputs: &[Value]| Ok(vec![inputs[0].clone(), Value::Scalar(Scalar::Float(2.5)), Value::None]);
    let rets = call(&f, &["x"], &[t(&x)], &body).unwrap();
    assert!(tensor_of(&rets[0]).same(&x));
    assert!(matches!(rets[1], Value::Float(v) if v == 2.5));
    assert!(matches!(rets[2], Value::None));
}
