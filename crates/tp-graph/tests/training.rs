//! Training regions: gradients equal those of the eager tape, one node on it, and the rules of the tape hold.

mod support;

use std::sync::Arc;
use support::*;
use tp_autograd::{GradOptions, backward, grad, meta};
use tp_dispatch::{Arg, ErrorKind, Result, Rets, Value, state};
use tp_graph::{Built, CompileOptions, CompiledFunction};
use tp_tensor::Tensor;

type Body = dyn Fn(&[Value]) -> Vec<Value>;

fn call(f: &CompiledFunction, args: &[Arg<'_>], body: &Body) -> Result<Rets> {
    let mut rets = Rets::new();
    if f.call(args, &mut rets)?.is_none() {
        let names: Vec<Arc<str>> = (0..args.len()).map(|i| format!("x{i}").into()).collect();
        match f.build(args, &names, &[], &mut |inputs| Ok((body(inputs), Box::new(()))))? {
            Built::Entry(entry) => assert!(entry.run(args, &mut rets)?),
            Built::Eager(reason) => panic!("{reason}"),
        }
    }
    Ok(rets)
}

fn of(v: &Value) -> &Tensor {
    v.tensor().unwrap()
}

fn leaf(values: &[f32], sizes: &[i64]) -> Tensor {
    let t = tensor(values, sizes);
    meta::set_requires_grad(&t, true).unwrap();
    t
}

fn layer(inputs: &[Value]) -> Vec<Value> {
    let (x, w, b) = (of(&inputs[0]), of(&inputs[1]), of(&inputs[2]));
    let z = op("tp::add", &[t(&op("tp::matmul", &[t(x), t(w)])), t(b)]);
    let a = op("tp::mul", &[t(&op("tp::tanh", &[t(&z)])), t(&z)]);
    vec![Value::Tensor(op("tp::sum", &[t(&a)])), Value::Tensor(a)]
}

fn parameters() -> [Tensor; 3] {
    install();
    [
        leaf(&[0.5, -1.0, 2.0, 0.25, 1.5, -0.75], &[2, 3]),
        leaf(&[1.0, 0.5, -0.5, 2.0, 0.25, -1.0], &[3, 2]),
        leaf(&[0.1, -0.2], &[2]),
    ]
}

#[test]
fn gradients_equal_the_eager_tape() {
    let eager = parameters();
    let inputs: Vec<Value> = eager.iter().cloned().map(Value::Tensor).collect();
    let outputs = layer(&inputs);
    backward(&[of(&outputs[0]).clone()], &[], GradOptions::default(), &[]).unwrap();

    let f = CompiledFunction::new(CompileOptions::default());
    for round in 0..3 {
        let p = parameters();
        let args = [t(&p[0]), t(&p[1]), t(&p[2])];
        let rets = call(&f, &args, &layer).unwrap();
        assert_eq!(rets.len(), 2);
        for (got, want) in rets.iter().zip(&outputs) {
            assert_eq!(values(of(got)), values(of(want)));
            assert!(of(got).requires_grad());
        }
        let run = f.last_run().unwrap();
        assert!(!run.forward.is_empty() && run.backward.is_empty());
        backward(&[of(&rets[0]).clone()], &[], GradOptions::default(), &[]).unwrap();
        for (got, want) in p.iter().zip(&eager) {
            assert_eq!(
                values(&meta::grad(got).unwrap()),
                values(&meta::grad(want).unwrap()),
                "round {round}"
            );
        }
        let run = f.last_run().unwrap();
        assert!(run.backward.iter().all(|r| &*r.marker.executor == "native"), "{run:?}");
        assert!(!run.backward.is_empty());
    }
    assert_eq!(f.entries().len(), 1);
    let entry = &f.entries()[0];
    let backward = entry.backward_graph().unwrap();
    assert_eq!(entry.graph().verify(), []);
    assert_eq!(backward.verify(), []);
    assert_eq!(
        meta::grad_fn(of(&call(
            &f,
            &[t(&parameters()[0]), t(&parameters()[1]), t(&parameters()[2])],
            &layer
        )
        .unwrap()[0]))
        .unwrap()
        .name(),
        "compiled"
    );
}

#[test]
fn a_second_output_and_expanded_gradients_work() {
    let p = parameters();
    let inputs: Vec<Value> = p.iter().cloned().map(Value::Tensor).collect();
    let eager = layer(&inputs);
    let weights = tensor(&[2.0], &[1, 1]);
    let weights = op("tp::expand", &[t(&weights), Arg::Ints(&[2, 2])]);
    let want = grad(&[of(&eager[1]).clone()], &p, &[Some(weights.clone())], GradOptions::default()).unwrap();
    let f = CompiledFunction::new(CompileOptions::default());
    let rets = call(&f, &[t(&p[0]), t(&p[1]), t(&p[2])], &layer).unwrap();
    let got = grad(&[of(&rets[1]).clone()], &p, &[Some(weights)], GradOptions::default()).unwrap();
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(values(got.as_ref().unwrap()), values(want.as_ref().unwrap()));
    }
}

#[test]
fn without_grad_mode_it_is_another_entry_without_a_backward() {
    let p = parameters();
    let f = CompiledFunction::new(CompileOptions::default());
    call(&f, &[t(&p[0]), t(&p[1]), t(&p[2])], &layer).unwrap();
    let before = state::set_grad_enabled(false);
    let rets = call(&f, &[t(&p[0]), t(&p[1]), t(&p[2])], &layer);
    state::set_grad_enabled(before);
    assert!(!of(&rets.unwrap()[0]).requires_grad());
    assert_eq!(f.entries().len(), 2);
    assert!(f.entries()[1].backward_graph().is_none());
    assert_eq!(f.explanation().recompiles[0].guard, "is_grad_enabled() == True, got False");
}

#[test]
fn the_node_is_freed_versioned_and_refuses_double_backward() {
    let p = parameters();
    let f = CompiledFunction::new(CompileOptions::default());
    let args = [t(&p[0]), t(&p[1]), t(&p[2])];
    let loss = |rets: &Rets| of(&rets[0]).clone();

    let once = loss(&call(&f, &args, &layer).unwrap());
    backward(std::slice::from_ref(&once), &[], GradOptions::default(), &[]).unwrap();
    let e = backward(&[once], &[], GradOptions::default(), &[]).unwrap_err();
    assert_eq!((e.kind(), e.code()), (ErrorKind::Autograd, "TP3004"));

    let kept = loss(&call(&f, &args, &layer).unwrap());
    let retain = GradOptions { retain_graph: Some(true), ..GradOptions::default() };
    let first = grad(std::slice::from_ref(&kept), &p, &[], retain).unwrap();
    let retain = GradOptions { retain_graph: Some(true), ..GradOptions::default() };
    let second = grad(&[kept], &p, &[], retain).unwrap();
    assert_eq!(values(first[1].as_ref().unwrap()), values(second[1].as_ref().unwrap()));

    let twice = loss(&call(&f, &args, &layer).unwrap());
    let e =
        grad(&[twice], &p, &[], GradOptions { create_graph: true, ..GradOptions::default() }).unwrap_err();
    assert_eq!((e.kind(), e.code()), (ErrorKind::Autograd, "TP3022"));

    let stale = loss(&call(&f, &args, &layer).unwrap());
    let before = state::set_grad_enabled(false);
    op("tp::mul_.Scalar", &[t(&p[1]), num(2.0)]);
    state::set_grad_enabled(before);
    let e = backward(&[stale], &[], GradOptions::default(), &[]).unwrap_err();
    assert_eq!((e.kind(), e.code()), (ErrorKind::Autograd, "TP3003"));
}

#[test]
fn closures_that_require_a_gradient_get_theirs() {
    let [x, w, b] = parameters();
    let (held_w, held_b) = (w.clone(), b.clone());
    let body = move |inputs: &[Value]| {
        layer(&[inputs[0].clone(), Value::Tensor(held_w.clone()), Value::Tensor(held_b.clone())])
    };
    let f = CompiledFunction::new(CompileOptions::default());
    let rets = call(&f, &[t(&x)], &body).unwrap();
    backward(&[of(&rets[0]).clone()], &[], GradOptions::default(), &[]).unwrap();
    let fresh = parameters();
    let eager = layer(&fresh.iter().cloned().map(Value::Tensor).collect::<Vec<_>>());
    backward(&[of(&eager[0]).clone()], &[], GradOptions::default(), &[]).unwrap();
    for (got, want) in [&x, &w, &b].into_iter().zip(&fresh) {
        assert_eq!(values(&meta::grad(got).unwrap()), values(&meta::grad(want).unwrap()));
    }
}

#[test]
fn one_tensor_passed_twice_gets_its_gradient_once() {
    install();
    let body = |inputs: &[Value]| vec![Value::Tensor(op("tp::mul", &[t(of(&inputs[0])), t(of(&inputs[1]))]))];
    let f = CompiledFunction::new(CompileOptions::default());
    let x = leaf(&[3.0], &[1]);
    let rets = call(&f, &[t(&x), t(&x)], &body).unwrap();
    backward(&[of(&rets[0]).clone()], &[], GradOptions::default(), &[]).unwrap();
    assert_eq!(values(&meta::grad(&x).unwrap()), [6.0]);
    let y = leaf(&[5.0], &[1]);
    let rets = call(&f, &[t(&x), t(&y)], &body).unwrap();
    assert_eq!(values(of(&rets[0])), [15.0]);
    assert_eq!(f.explanation().recompiles[0].guard, "x1 is x0, got two tensors");
}

#[test]
fn unused_inputs_and_detached_outputs_have_no_gradient() {
    install();
    let body = |inputs: &[Value]| {
        let y = op("tp::exp", &[t(of(&inputs[0]))]);
        vec![Value::Tensor(op("tp::detach", &[t(&y)])), Value::Tensor(y)]
    };
    let f = CompiledFunction::new(CompileOptions::default());
    let (x, unused) = (leaf(&[0.0], &[1]), leaf(&[1.0], &[1]));
    let rets = call(&f, &[t(&x), t(&unused)], &body).unwrap();
    assert!(!of(&rets[0]).requires_grad() && of(&rets[1]).requires_grad());
    backward(&[of(&rets[1]).clone()], &[], GradOptions::default(), &[]).unwrap();
    assert_eq!(values(&meta::grad(&x).unwrap()), [1.0]);
    assert!(meta::grad(&unused).is_none());
}
