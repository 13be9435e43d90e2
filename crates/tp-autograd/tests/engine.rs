//! The backward pass: accumulation, options, errors, hooks, depth, threads.

mod common;

use common::*;
use parking_lot::Mutex;
use std::sync::Arc;
use tp_autograd::{GradHook, GradMode, GradOptions, backward, grad, meta};
use tp_dispatch::{Arg, Result};
use tp_tensor::{DType, Device, Scalar, Tensor};

const RETAIN: GradOptions =
    GradOptions { retain_graph: Some(true), create_graph: false, allow_unused: false };

fn one(t: &Tensor) -> &[Tensor] {
    std::slice::from_ref(t)
}

#[test]
fn third_power_three_times() {
    setup();
    let x = leaf(&[2.0], &[1]);
    let y = call("pow.Scalar", &[Arg::Tensor(&x), Arg::Scalar(Scalar::Int(3))]);
    let first = grads(&y, one(&x), true).remove(0);
    let second = grads(&first, one(&x), true).remove(0);
    let third = grads(&second, one(&x), false).remove(0);
    assert_eq!([values(&first)[0], values(&second)[0], values(&third)[0]], [12.0, 12.0, 6.0]);
}

#[test]
fn gradients_add_up_in_the_same_tensor() {
    setup();
    let x = leaf(&[1.0, 2.0], &[2]);
    backward(one(&sum(&op2("mul", &x, &x))), &[], RETAIN, &[]).unwrap();
    let first = meta::grad(&x).unwrap();
    assert_eq!(values(&first), [2.0, 4.0]);
    common::backward(&sum(&scalar("mul", &x, 10.0))).unwrap();
    assert_eq!(grad_of(&x), [12.0, 14.0]);
    assert!(first.same(&meta::grad(&x).unwrap()));
    meta::set_grad(&x, None).unwrap();
    assert!(meta::grad(&x).is_none());
}

#[test]
fn a_leaf_does_not_share_the_users_gradient() {
    setup();
    let x = leaf(&[1.0, 2.0], &[2]);
    let given = tensor(&[5.0, 6.0], &[2]);
    backward(one(&op1("alias", &x)), &[Some(given.clone())], GradOptions::default(), &[]).unwrap();
    let kept = meta::grad(&x).unwrap();
    assert!(!kept.shares_storage(&given));
    assert_eq!(values(&kept), [5.0, 6.0]);
}

#[test]
fn diamonds_sum_before_they_go_on() {
    setup();
    let x = leaf(&[3.0], &[1]);
    let mut y = scalar("mul", &x, 1.0);
    // Without ordering this would visit 2^40 paths.
    for _ in 0..40 {
        y = scalar("mul", &op2("add", &y, &y), 0.5);
    }
    common::backward(&sum(&y)).unwrap();
    assert_eq!(grad_of(&x), [1.0]);
}

#[test]
fn an_input_used_twice_in_one_call() {
    setup();
    let x = leaf(&[3.0], &[1]);
    common::backward(&op2("mul", &x, &x)).unwrap();
    assert_eq!(grad_of(&x), [6.0]);
}

#[test]
fn root_gradients_are_checked() {
    setup();
    let x = leaf(&[1.0, 2.0], &[2]);
    let y = scalar("mul", &x, 2.0);
    let give = |g: Tensor| backward(one(&y), &[Some(g)], RETAIN, &[]);
    assert_eq!(code_of(common::backward(&y)), "TP3021");
    assert_eq!(code_of(give(tensor(&[1.0, 1.0, 1.0], &[3]))), "TP3006");
    assert_eq!(code_of(backward(one(&y), &[None, None], RETAIN, &[])), "TP3009");
    assert_eq!(code_of(common::backward(&sum(&tensor(&[1.0], &[1])))), "TP3005");
    // A larger shape is not summed: nobody broadcast the output.
    assert_eq!(code_of(give(tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2]))), "TP3006");
    // Another dtype is cast.
    let half = call("astype", &[Arg::Tensor(&tensor(&[1.0, 1.0], &[2])), Arg::DType(DType::F32)]);
    give(half).unwrap();
    give(ints(&[1, 2], &[2])).unwrap();
    assert_eq!(grad_of(&x), [2.0 + 2.0, 2.0 + 4.0]);
}

#[test]
fn a_graph_is_freed_once() {
    setup();
    let x = leaf(&[3.0], &[1]);
    let y = op2("mul", &x, &x);
    backward(one(&y), &[], RETAIN, &[]).unwrap();
    common::backward(&y).unwrap();
    let e = error_of(common::backward(&y));
    assert_eq!((e.code(), e.op()), ("TP3004", Some("tp::mul")));
    assert!(e.notes()[0].contains("retain_graph"));
    assert_eq!(grad_of(&x), [12.0]);
}

#[test]
fn what_was_written_to_is_noticed() {
    setup();
    let x = leaf(&[3.0], &[1]);
    let w = tensor(&[2.0], &[1]);
    let y = op2("mul", &x, &w);
    call("add_", &[Arg::Tensor(&w), Arg::Tensor(&w)]);
    let e = error_of(common::backward(&y));
    assert_eq!(e.code(), "TP3003");
    assert!(e.message().contains("is at version 1, expected version 0"), "{e}");
    // An output that a rule saved.
    let y = op1("exp", &x);
    let z = scalar("mul", &y, 2.0);
    call("zero_", &[Arg::Tensor(&op1("detach", &y))]);
    assert_eq!(code_of(common::backward(&z)), "TP3003");
}

#[test]
fn grad_leaves_leaves_alone() {
    setup();
    let (x, w) = (leaf(&[3.0], &[1]), leaf(&[5.0], &[1]));
    let middle = op2("mul", &x, &w);
    let y = op2("mul", &middle, &middle);
    let found = grads(&y, &[middle.clone(), w.clone()], false);
    assert_eq!((values(&found[0]), values(&found[1])), (vec![30.0], vec![90.0]));
    assert!(meta::grad(&x).is_none() && meta::grad(&w).is_none());
}

#[test]
fn unused_inputs() {
    setup();
    let (x, other) = (leaf(&[3.0], &[1]), leaf(&[5.0], &[1]));
    let y = scalar("mul", &x, 2.0);
    let both = [x.clone(), other];
    let e = error_of(grad(one(&y), &both, &[], RETAIN));
    assert_eq!(e.code(), "TP3020");
    assert!(e.message().contains("input 1"));
    let found = grad(one(&y), &both, &[], GradOptions { allow_unused: true, ..RETAIN }).unwrap();
    assert!(found[0].is_some() && found[1].is_none());
    assert_eq!(code_of(grad(one(&y), &[tensor(&[1.0], &[1])], &[], RETAIN)), "TP3015");
}

#[test]
fn grad_does_not_run_what_it_need_not() {
    setup();
    // The other branch has no formula: running it would be an error.
    let (x, w) = (leaf(&[3.0], &[1]), leaf(&[2.0], &[1]));
    let hidden = op2("mul", &w, &w);
    common::backward(&hidden).unwrap();
    let y = op2("add", &scalar("mul", &x, 2.0), &hidden);
    // `hidden` was freed, so only the branch of x can run.
    assert_eq!(values(&grads(&y, one(&x), false)[0]), [2.0]);
}

#[test]
fn backward_into_given_leaves_only() {
    setup();
    let (x, w) = (leaf(&[3.0], &[1]), leaf(&[5.0], &[1]));
    backward(one(&op2("mul", &x, &w)), &[], GradOptions::default(), one(&w)).unwrap();
    assert!(meta::grad(&x).is_none());
    assert_eq!(grad_of(&w), [3.0]);
}

struct Log(Mutex<Vec<f64>>, Option<f64>);

impl GradHook for Log {
    fn call(&self, grad: &Tensor) -> Result<Option<Tensor>> {
        self.0.lock().push(values(grad)[0]);
        Ok(self.1.map(|factor| scalar("mul", grad, factor)))
    }
}

#[test]
fn hooks_see_and_replace_whole_gradients() {
    setup();
    let x = leaf(&[3.0], &[1]);
    let y = scalar("mul", &x, 2.0);
    let log = Arc::new(Log(Mutex::new(Vec::new()), Some(10.0)));
    meta::register_hook(&y, log.clone()).unwrap();
    let on_leaf = Arc::new(Log(Mutex::new(Vec::new()), None));
    let (node, id) = meta::register_hook(&x, on_leaf.clone()).unwrap();
    meta::retain_grad(&y).unwrap();
    let z = op2("add", &y, &op2("add", &y, &x));
    backward(one(&z), &[], RETAIN, &[]).unwrap();
    assert_eq!(*log.0.lock(), [2.0]);
    assert_eq!(*on_leaf.0.lock(), [41.0]);
    assert_eq!((grad_of(&y), grad_of(&x)), (vec![20.0], vec![41.0]));
    assert!(node.extra().unwrap().remove_hook(id));
    common::backward(&z).unwrap();
    assert_eq!(on_leaf.0.lock().len(), 1);
    assert_eq!(grad_of(&y), [40.0]);
    assert_eq!(code_of(meta::register_hook(&tensor(&[1.0], &[1]), log)), "TP3015");
}

#[test]
fn leaves_and_modes() {
    setup();
    let x = leaf(&[3.0], &[1]);
    let y = scalar("mul", &x, 2.0);
    assert!(meta::is_leaf(&x) && !meta::is_leaf(&y));
    assert_eq!(meta::grad_fn(&y).unwrap().name(), "tp::mul.Scalar");
    assert_eq!(code_of(meta::set_requires_grad(&y, false)), "TP3013");
    assert_eq!(code_of(meta::set_requires_grad(&ints(&[1], &[1]), true)), "TP3012");
    assert_eq!(code_of(meta::set_grad(&x, Some(tensor(&[1.0, 2.0], &[2])))), "TP3014");
    let mode = GradMode::no_grad();
    assert!(!scalar("mul", &x, 2.0).requires_grad());
    drop(mode);
    assert!(scalar("mul", &x, 2.0).requires_grad());
    meta::set_requires_grad(&x, false).unwrap();
    assert!(!scalar("mul", &x, 2.0).requires_grad());
}

fn chain(x: &Tensor, n: usize) -> Tensor {
    let mut y = x.clone();
    for _ in 0..n {
        y = scalar("mul", &y, 1.0);
    }
    y
}

#[test]
fn a_million_nodes_on_a_small_stack() {
    setup();
    let work = || {
        let x = leaf(&[3.0], &[1]);
        let y = chain(&x, 1_000_000);
        common::backward(&y).unwrap();
        assert_eq!(grad_of(&x), [1.0]);
        // Saved tensors in between: each product keeps its input alive.
        let mut z = x.clone();
        for _ in 0..300_000 {
            z = op2("mul", &z, &z);
        }
        drop(z);
        let z = chain(&x, 200_000);
        assert_eq!(values(&grads(&z, one(&x), false)[0]), [1.0]);
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap().join().unwrap();
}

#[test]
fn two_threads_over_one_graph() {
    setup();
    let x = leaf(&[1.0], &[1]);
    let trunk = chain(&x, 3000);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let trunk = trunk.clone();
            std::thread::spawn(move || {
                for _ in 0..8 {
                    backward(one(&scalar("mul", &trunk, 2.0)), &[], RETAIN, &[]).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(grad_of(&x), [64.0]);
}

/// Runs another backward pass over the same graph from inside a hook.
struct Nested(Tensor);

impl GradHook for Nested {
    fn call(&self, _: &Tensor) -> Result<Option<Tensor>> {
        backward(one(&self.0), &[], RETAIN, &[]).map(|()| None)
    }
}

#[test]
fn a_pass_inside_a_pass() {
    setup();
    let x = leaf(&[3.0], &[1]);
    let inner = op2("mul", &x, &x);
    let a = scalar("mul", &inner, 2.0);
    let b = scalar("mul", &inner, 3.0);
    let y = op2("add", &a, &b);
    // While the inner pass runs, the outer one already holds a gradient for `inner`.
    meta::register_hook(&a, Arc::new(Nested(scalar("mul", &inner, 10.0)))).unwrap();
    backward(one(&y), &[], RETAIN, &[]).unwrap();
    assert_eq!(grad_of(&x), [5.0 * 6.0 + 10.0 * 6.0]);
}

struct Fails;

impl GradHook for Fails {
    fn call(&self, _: &Tensor) -> Result<Option<Tensor>> {
        Err(tp_dispatch::Error::value("TP0000", "a hook that fails"))
    }
}

#[test]
fn an_error_leaves_nothing_behind() {
    setup();
    let x = leaf(&[3.0], &[1]);
    let y = op2("mul", &x, &x);
    let (node, id) = meta::register_hook(&scalar("mul", &y, 1.0), Arc::new(Fails)).unwrap();
    let z = op2("add", &y, &scalar("mul", &y, 2.0));
    let (other, hook) = meta::register_hook(&y, Arc::new(Fails)).unwrap();
    assert_eq!(code_of(common::backward(&z)), "TP0000");
    assert!(meta::grad(&x).is_none());
    assert!(node.extra().unwrap().remove_hook(id) && other.extra().unwrap().remove_hook(hook));
    common::backward(&z).unwrap();
    assert_eq!(grad_of(&x), [18.0]);
}

#[test]
fn anomalies_are_named() {
    setup();
    let x = leaf(&[0.0], &[1]);
    let y = op1("sqrt", &x);
    let z = op2("mul", &y, &tensor(&[0.0], &[1]));
    let looking = tp_autograd::anomaly::DetectAnomaly::enter(true);
    let e = error_of(backward(one(&z), &[], RETAIN, &[]));
    assert_eq!((e.code(), e.op()), ("TP3016", Some("tp::sqrt")));
    drop(looking);
    common::backward(&z).unwrap();
    assert!(grad_of(&x)[0].is_nan());
}

#[test]
fn backward_calls_are_marked() {
    setup();
    let x = leaf(&[3.0], &[1]);
    let y = scalar("mul", &x, 2.0);
    let sink = tp_dispatch::state::Sink::default();
    tp_dispatch::state::push_sink(sink.clone());
    common::backward(&y).unwrap();
    tp_dispatch::state::pop_sink(&sink);
    let events = sink.lock();
    let seen: Vec<_> = events.iter().map(|e| (&*e.op, e.phase)).collect();
    assert_eq!(seen, [("tp::mul.Scalar", tp_dispatch::Phase::Backward)]);
}

#[test]
fn fakes_go_through_the_tape() {
    setup();
    let x = Tensor::empty(&[2, 3], DType::F32, Device::META).unwrap();
    meta::set_requires_grad(&x, true).unwrap();
    let y = sum(&scalar("mul", &x, 2.0));
    common::backward(&y).unwrap();
    let g = meta::grad(&x).unwrap();
    assert_eq!((g.sizes(), g.device()), (&[2, 3][..], Device::META));
}

#[test]
fn leaves_never_share_a_gradient_that_is_written_to() {
    setup();
    let (x, y) = (leaf(&[1.0], &[1]), leaf(&[1.0], &[1]));
    let record = GradOptions { create_graph: true, ..GradOptions::default() };
    backward(one(&op2("add", &x, &y)), &[], record, &[]).unwrap();
    common::backward(&scalar("mul", &x, 5.0)).unwrap();
    assert_eq!((grad_of(&x), grad_of(&y)), (vec![6.0], vec![1.0]));
}
