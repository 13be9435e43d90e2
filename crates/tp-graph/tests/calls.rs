//! Calls of every form through capture and plan: lists, optional writes, random draws, several results, redefinition,
//! threads.

mod support;

use std::sync::Arc;
use support::*;
use tp_dispatch::{Arg, Call, Effects, ErrorKind, FakeOut, FakeOuts, FakeRule, Result, Rets, Value};
use tp_graph::{Built, CompileOptions, CompiledFunction, Entry, Graph, capture, capture_graph};
use tp_tensor::{Tensor, TensorSpec};

type Body = dyn Fn(&[Value]) -> Result<Vec<Value>>;

fn call(f: &CompiledFunction, args: &[Arg<'_>], body: &Body) -> Result<Rets> {
    let mut rets = Rets::new();
    if f.call(args, &mut rets)?.is_none() {
        let names: Vec<Arc<str>> = (0..args.len()).map(|i| format!("x{i}").into()).collect();
        match f.build(args, &names, &[], &mut |inputs| Ok((body(inputs)?, Box::new(()))))? {
            Built::Entry(entry) => assert!(entry.run(args, &mut rets)?),
            Built::Eager(reason) => panic!("{reason}"),
        }
    }
    Ok(rets)
}

fn of(v: &Value) -> &Tensor {
    v.tensor().unwrap()
}

#[test]
fn lists_of_tensors_are_operands() {
    install();
    let (x, held) = (tensor(&[1.0, 2.0], &[2]), tensor(&[9.0], &[1]));
    let constant = held.clone();
    let body = move |inputs: &[Value]| {
        let parts = [of(&inputs[0]).clone(), constant.clone(), op("tp::neg", &[t(of(&inputs[0]))])];
        Ok(vec![Value::Tensor(try_op("tp::concat", &[Arg::Tensors(&parts), Arg::Int(0)])?)])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    for _ in 0..2 {
        let rets = call(&f, &[t(&x)], &body).unwrap();
        assert_eq!(values(of(&rets[0])), [1.0, 2.0, 9.0, -1.0, -2.0]);
    }
    let text = f.entries()[0].graph().text();
    assert!(text.contains("tp::concat.default([%0, %1, %2], 0)"), "{text}");
    assert_eq!(Graph::parse(&text).unwrap(), *f.entries()[0].graph());
}

fn split_fake(call: &Call<'_>) -> Result<FakeOuts> {
    let x = call.tensor(0)?;
    let half = TensorSpec::contiguous(&[x.sizes()[0] / 2], x.dtype(), x.device());
    Ok([FakeOut::List(vec![half.clone(), half]), FakeOut::Value(Value::Int(2))].into_iter().collect())
}

fn split(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
    let x = call.tensor(0)?;
    let n = x.sizes()[0];
    let part = |a, b| op("tp::clone", &[t(&op("tp::slice", &[t(x), Arg::Int(0), Arg::Int(a), Arg::Int(b)]))]);
    rets.push(Value::Tensors(Box::new([part(0, n / 2), part(n / 2, n)])));
    rets.push(Value::Int(2));
    Ok(())
}

#[test]
fn several_results_and_returned_lists() {
    install();
    define("c::halves(Tensor x) -> (Tensor[], int)", Effects::PURE, FakeRule::Fn(split_fake), split);
    let body = |inputs: &[Value]| {
        let mut rets = Rets::new();
        let args = [t(of(&inputs[0]))];
        tp_dispatch::dispatcher::call(
            handle("c::halves"),
            &args,
            tp_dispatch::kernel::HostArgs::NONE,
            &mut rets,
        )?;
        let Value::Tensors(parts) = &rets[0] else { panic!("a list") };
        Ok(vec![Value::Tensor(op("tp::sub", &[t(&parts[1]), t(&parts[0])])), rets[1].clone()])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    let x = tensor(&[1.0, 2.0, 30.0, 40.0], &[4]);
    let rets = call(&f, &[t(&x)], &body).unwrap();
    assert_eq!(values(of(&rets[0])), [29.0, 38.0]);
    assert!(matches!(rets[1], Value::Int(2)));
    let text = f.entries()[0].graph().text();
    assert!(
        text.contains("([%1: float32[2], %2: float32[2]], %3: int is 2) = c::halves.default(%0)"),
        "{text}"
    );
}

fn bump(call: &Call<'_>, _: &mut Rets) -> Result<()> {
    if let Some(out) = call.opt_tensor(1) {
        op("tp::add_.Scalar", &[t(out), num(1.0)]);
    }
    Ok(())
}

#[test]
fn an_optional_written_argument_may_be_left_out() {
    install();
    define("c::bump(Tensor x, Tensor(a!)? out=None) -> ()", Effects::PURE, FakeRule::Nothing, bump);
    let x = tensor(&[1.0], &[1]);
    let without = |inputs: &[Value]| {
        try_op("c::bump", &[t(of(&inputs[0]))])?;
        Ok(vec![inputs[0].clone()])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    call(&f, &[t(&x)], &without).unwrap();
    assert_eq!(f.entries()[0].graph().nodes.len(), 1);
    let with = |inputs: &[Value]| {
        try_op("c::bump", &[t(of(&inputs[0])), t(of(&inputs[1]))])?;
        Ok(vec![Value::Tensor(op("tp::neg", &[t(of(&inputs[1]))]))])
    };
    let g = CompiledFunction::new(CompileOptions::default());
    let out = tensor(&[5.0], &[1]);
    let version = out.storage().version();
    assert_eq!(values(of(&call(&g, &[t(&x), t(&out)], &with).unwrap()[0])), [-6.0]);
    assert_eq!(values(of(&call(&g, &[t(&x), t(&out)], &with).unwrap()[0])), [-7.0]);
    assert!(out.storage().version() >= version + 2);
    assert_eq!(values(&x), [1.0]);
}

#[test]
fn random_draws_are_new_at_each_run() {
    install();
    let body = |_: &[Value]| {
        let shape = [64i64];
        let a = try_op("tp::normal", &[Arg::Ints(&shape)])?;
        let b = try_op("tp::normal", &[Arg::Ints(&shape)])?;
        Ok(vec![Value::Tensor(a), Value::Tensor(b)])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    let first = call(&f, &[], &body).unwrap();
    let second = call(&f, &[], &body).unwrap();
    let draws: Vec<Vec<f32>> = first.iter().chain(&second).map(|v| values(of(v))).collect();
    for i in 0..4 {
        for j in 0..i {
            assert_ne!(draws[i], draws[j], "{i} {j}");
        }
    }
}

#[test]
fn a_redefined_op_is_captured_again() {
    install();
    opaque_triple("c::changes", Effects::PURE);
    let x = tensor(&[1.0], &[1]);
    let body = |inputs: &[Value]| Ok(vec![Value::Tensor(try_op("c::changes", &[t(of(&inputs[0]))])?)]);
    let f = CompiledFunction::new(CompileOptions::default());
    assert_eq!(values(of(&call(&f, &[t(&x)], &body).unwrap()[0])), [3.0]);
    fn negate(call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        rets.push(Value::Tensor(op("tp::neg", &[t(call.tensor(0)?)])));
        Ok(())
    }
    define("c::changes(Tensor x) -> Tensor", Effects::PURE, FakeRule::Fn(like_first), negate);
    assert_eq!(values(of(&call(&f, &[t(&x)], &body).unwrap()[0])), [-1.0]);
    assert_eq!(f.entries().len(), 2);
    assert!(f.explanation().recompiles[0].guard.contains("c::changes"));
}

#[test]
fn what_cannot_be_captured_says_so() {
    install();
    define("c::no_fake(Tensor x) -> Tensor", Effects::PURE, FakeRule::Missing, triple);
    let x = tensor(&[1.0], &[1]);
    let mut kept: Option<Tensor> = None;
    let captured = capture_graph(&[t(&x)], &names(&["x"]), &mut |inputs| {
        assert!(capture::active());
        kept = inputs[0].tensor().cloned();
        Ok(vec![Value::Tensor(try_op("c::no_fake", &[t(of(&inputs[0]))])?)])
    });
    let e = captured.err().unwrap();
    assert_eq!((e.kind(), e.code(), e.op()), (ErrorKind::Capture, "TP4001", Some("c::no_fake")));
    assert!(!capture::active());
    let escaped = kept.unwrap();
    let e = try_op("tp::neg", &[t(&escaped)]).unwrap_err();
    assert_eq!(e.code(), "TP4012");
    let other = capture_graph(&[t(&x)], &names(&["x"]), &mut |_| {
        Ok(vec![Value::Tensor(try_op("tp::neg", &[t(&escaped)])?)])
    });
    assert_eq!(other.err().unwrap().code(), "TP4004");
}

#[test]
fn threads_capture_and_run_at_once() {
    install();
    fn shared<T: Send + Sync>() {}
    shared::<CompiledFunction>();
    shared::<Entry>();
    let f = Arc::new(CompiledFunction::new(CompileOptions::default()));
    let body = |inputs: &[Value]| {
        let y = op("tp::mul.Scalar", &[t(of(&inputs[0])), num(2.0)]);
        Ok(vec![Value::Tensor(op("tp::tanh", &[t(&y)]))])
    };
    let want = values(of(&body(&[Value::Tensor(tensor(&[0.5; 16], &[16]))]).unwrap()[0]));
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let x = tensor(&[0.5; 16], &[16]);
                for _ in 0..50 {
                    assert_eq!(values(of(&call(&f, &[t(&x)], &body).unwrap()[0])), want);
                }
                assert_eq!(f.last_run().unwrap().forward.len(), 1);
            });
        }
    });
    assert_eq!(f.entries().len(), 1);
    assert_eq!(f.last_run(), None);
}

#[test]
fn a_wide_chain_stays_one_region() {
    install();
    let xs: Vec<Tensor> = (0..24).map(|i| tensor(&[i as f32, 1.0], &[2])).collect();
    let args: Vec<Arg<'_>> = xs.iter().map(t).collect();
    let body = |inputs: &[Value]| {
        let sum =
            inputs.iter().skip(1).fold(of(&inputs[0]).clone(), |acc, v| op("tp::add", &[t(&acc), t(of(v))]));
        Ok(vec![Value::Tensor(sum)])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    assert_eq!(values(of(&call(&f, &args, &body).unwrap()[0])), [276.0, 24.0]);
    assert_eq!(f.last_run().unwrap().forward.len(), 1);
}

#[test]
fn inputs_that_are_parts_of_larger_tensors_can_be_viewed() {
    install();
    let base = tensor(&(0..12).map(|i| i as f32).collect::<Vec<_>>(), &[3, 4]);
    let columns = op("tp::slice", &[t(&base), Arg::Int(1), Arg::Int(1), Arg::Int(4), Arg::Int(2)]);
    let wide = op("tp::expand", &[t(&tensor(&[7.0], &[1])), Arg::Ints(&[3])]);
    let body = |inputs: &[Value]| {
        let turned = op("tp::transpose", &[t(of(&inputs[0])), Arg::Int(0), Arg::Int(1)]);
        let row = op("tp::select", &[t(&turned), Arg::Int(0), Arg::Int(1)]);
        let tail = op("tp::slice", &[t(of(&inputs[1])), Arg::Int(0), Arg::Int(1)]);
        Ok(vec![
            Value::Tensor(op("tp::add", &[t(&row), t(of(&inputs[1]))])),
            Value::Tensor(row),
            Value::Tensor(tail),
        ])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    for _ in 0..2 {
        let rets = call(&f, &[t(&columns), t(&wide)], &body).unwrap();
        assert_eq!(values(of(&rets[0])), [10.0, 14.0, 18.0]);
        assert_eq!(values(of(&rets[1])), [3.0, 7.0, 11.0]);
        assert_eq!(values(of(&rets[2])), [7.0, 7.0]);
        assert!(of(&rets[1]).shares_storage(&base));
    }
    assert!(f.entries()[0].guards().contains(&"x0.stride() == (4, 2)".to_string()));
}
