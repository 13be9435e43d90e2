//! Writes in place: right, or refused; never silently wrong.

mod common;

use common::*;
use tp_autograd::{GradMode, meta};
use tp_dispatch::Arg;
use tp_tensor::{Scalar, Tensor};

fn mul_(t: &Tensor, s: f64) -> tp_dispatch::Result<Tensor> {
    try_call("mul_.Scalar", &[Arg::Tensor(t), Arg::Scalar(Scalar::Float(s))])
}

fn slice(t: &Tensor, start: i64, stop: i64) -> Tensor {
    call("slice", &[Arg::Tensor(t), Arg::Int(0), Arg::Int(start), Arg::Int(stop)])
}

#[test]
fn a_non_leaf_gets_a_new_history() {
    setup();
    let x = leaf(&[3.0], &[1]);
    let y = op2("mul", &x, &tensor(&[2.0], &[1]));
    let out = mul_(&y, 5.0).unwrap();
    assert!(out.same(&y));
    assert_eq!(meta::grad_fn(&y).unwrap().name(), "tp::mul_.Scalar");
    backward(&y).unwrap();
    assert_eq!(grad_of(&x), [10.0]);
}

#[test]
fn old_values_are_kept_where_the_formula_needs_them() {
    let steps: [(&str, bool); 4] = [("mul_", true), ("div_", true), ("add_", false), ("sub_", false)];
    for (name, _) in steps {
        check_twice(
            |x| {
                let y = scalar("mul", &x[0], 1.5);
                call(name, &[Arg::Tensor(&y), Arg::Tensor(&x[1])])
            },
            &[spread(&[2, 3], 0.4, 1.4), spread(&[3], 0.5, 1.5)],
        );
    }
    check(
        |x| {
            let y = scalar("mul", &x[0], 1.5);
            call("mul_", &[Arg::Tensor(&y), Arg::Tensor(&y)])
        },
        &[spread(&[3], 0.4, 1.4)],
    );
    check(
        |x| {
            let y = scalar("mul", &x[0], 1.5);
            call("pow_.Scalar", &[Arg::Tensor(&y), Arg::Scalar(Scalar::Float(3.0))])
        },
        &[spread(&[3], 0.4, 1.4)],
    );
}

#[test]
fn overwriting_cuts_the_old_history() {
    check(
        |x| {
            let y = scalar("mul", &x[0], 1.0);
            call("copy_", &[Arg::Tensor(&y), Arg::Tensor(&x[1])])
        },
        &[spread(&[2, 3], 0.0, 1.0), spread(&[3], 0.0, 1.0)],
    );
    setup();
    let x = leaf(&[1.0, 2.0], &[2]);
    let y = scalar("mul", &x, 2.0);
    call("zero_", &[Arg::Tensor(&y)]);
    backward(&sum(&y)).unwrap();
    assert_eq!(grad_of(&x), [0.0, 0.0]);
}

#[test]
fn plain_memory_may_receive_values_with_history() {
    setup();
    let w = leaf(&[1.0, 2.0], &[2]);
    let buffer = tensor(&[10.0, 10.0], &[2]);
    call("add_", &[Arg::Tensor(&buffer), Arg::Tensor(&scalar("mul", &w, 3.0))]);
    assert!(buffer.requires_grad());
    backward(&sum(&buffer)).unwrap();
    assert_eq!(grad_of(&w), [3.0, 3.0]);
}

#[test]
fn indexed_writes() {
    setup();
    let w = leaf(&[7.0], &[1]);
    let buffer = tensor(&[1.0, 2.0, 3.0], &[3]);
    let at = [Some(ints(&[1], &[1]))];
    call("index_put_", &[Arg::Tensor(&buffer), Arg::OptTensors(&at), Arg::Tensor(&w)]);
    backward(&sum(&op2("mul", &buffer, &tensor(&[2.0, 3.0, 4.0], &[3])))).unwrap();
    assert_eq!(grad_of(&w), [3.0]);
}

#[test]
fn leaves_are_refused() {
    setup();
    let x = leaf(&[1.0, 2.0], &[2]);
    let e = error_of(mul_(&x, 2.0));
    assert_eq!((e.code(), values(&x)), ("TP3010", vec![1.0, 2.0]));
    assert!(e.message().contains("leaf that requires grad"));
    let view = call("slice", &[Arg::Tensor(&x), Arg::Int(0), Arg::Int(1)]);
    let deeper = call("reshape", &[Arg::Tensor(&view), Arg::Ints(&[1, 1])]);
    assert_eq!(code_of(mul_(&view, 2.0)), "TP3010");
    assert_eq!(code_of(mul_(&deeper, 2.0)), "TP3010");
    let _mode = GradMode::no_grad();
    mul_(&x, 2.0).unwrap();
    assert_eq!(values(&x), [2.0, 4.0]);
}

#[test]
fn views_of_a_leaf_stay_good_after_an_optimizer_step() {
    setup();
    let x = leaf(&[1.0, 2.0], &[2]);
    let view = call("reshape", &[Arg::Tensor(&x), Arg::Ints(&[2, 1])]);
    let mode = GradMode::no_grad();
    mul_(&x, 2.0).unwrap();
    drop(mode);
    backward(&sum(&op2("mul", &view, &view))).unwrap();
    assert_eq!(grad_of(&x), [4.0, 8.0]);
}

#[test]
fn a_write_through_a_view_is_a_history_of_its_base() {
    setup();
    let x = leaf(&[1.0, 2.0], &[2]);
    let base = scalar("mul", &x, 3.0);
    let view = slice(&base, 1, 2);
    mul_(&view, 5.0).unwrap();
    assert_eq!(
        (values(&base), meta::grad_fn(&base).unwrap().name()),
        (vec![3.0, 30.0], "write_through_view")
    );
    backward(&sum(&op2("mul", &base, &tensor(&[1.0, 10.0], &[2])))).unwrap();
    assert_eq!(grad_of(&x), [3.0, 150.0]);
    meta::set_grad(&x, None).unwrap();
    backward(&sum(&view)).unwrap();
    assert_eq!(grad_of(&x), [0.0, 15.0]);
}

#[test]
fn an_older_view_follows_a_write_to_its_base() {
    setup();
    let x = leaf(&[1.0, 2.0], &[2]);
    let base = scalar("mul", &x, 3.0);
    let view = slice(&base, 1, 2);
    mul_(&base, 5.0).unwrap();
    assert_eq!(meta::grad_fn(&view).unwrap().name(), "view_of_base");
    backward(&sum(&view)).unwrap();
    assert_eq!(grad_of(&x), [0.0, 15.0]);
}

#[test]
fn a_view_of_a_dead_base_and_its_siblings_follow() {
    let program = |x: &[Tensor]| {
        let rows = call("reshape", &[Arg::Tensor(&scalar("mul", &x[0], 1.5)), Arg::Ints(&[2, 3])]);
        let (turned, last) =
            (call("transpose", &[Arg::Tensor(&rows), Arg::Int(0), Arg::Int(1)]), slice(&rows, 1, 2));
        call("mul_", &[Arg::Tensor(&slice(&turned, 1, 3)), Arg::Tensor(&x[1])]);
        call("div_", &[Arg::Tensor(&last), Arg::Tensor(&slice(&rows, 0, 1))]);
        op2("mul", &turned, &call("transpose", &[Arg::Tensor(&rows), Arg::Int(0), Arg::Int(1)]))
    };
    check_twice(program, &[spread(&[6], 0.5, 1.5), spread(&[2, 2], 0.7, 1.3)]);
}

#[test]
fn plain_memory_gets_a_history_through_its_only_view() {
    setup();
    let w = leaf(&[7.0], &[1]);
    let buffer = tensor(&[1.0, 2.0, 3.0], &[3]);
    call("copy_", &[Arg::Tensor(&slice(&buffer, 1, 2)), Arg::Tensor(&w)]);
    assert!(buffer.requires_grad());
    call("mul_", &[Arg::Tensor(&slice(&buffer, 0, 2)), Arg::Tensor(&w)]);
    assert_eq!(values(&buffer), [7.0, 49.0, 3.0]);
    backward(&sum(&buffer)).unwrap();
    assert_eq!(grad_of(&w), [1.0 + 14.0]);
}

#[test]
fn history_into_shared_memory_is_refused() {
    setup();
    let w = leaf(&[7.0], &[1]);
    let buffer = tensor(&[1.0, 2.0, 3.0], &[3]);
    let (view, _other) = (slice(&buffer, 1, 2), slice(&buffer, 1, 3));
    let e = error_of(try_call("copy_", &[Arg::Tensor(&view), Arg::Tensor(&w)]));
    assert_eq!((e.code(), values(&buffer)), ("TP3019", vec![1.0, 2.0, 3.0]));
}

#[test]
fn silent_writes_are_noticed() {
    setup();
    let x = leaf(&[1.0, 2.0], &[2]);
    let y = scalar("mul", &x, 3.0);
    let mode = GradMode::no_grad();
    mul_(&y, 5.0).unwrap();
    drop(mode);
    let e = error_of(try_call("sum", &[Arg::Tensor(&y)]));
    assert_eq!((e.code(), e.op()), ("TP3011", Some("tp::mul.Scalar")));
}

#[test]
fn long_chains_of_writes() {
    setup();
    let x = leaf(&[1.0], &[1]);
    let y = scalar("mul", &x, 1.0);
    for _ in 0..100_000 {
        mul_(&y, 1.0).unwrap();
    }
    backward(&y).unwrap();
    assert_eq!(grad_of(&x), [1.0]);
}
#[test]
fn long_chains_of_writes_through_views() {
    setup();
    let x = leaf(&[1.0; 64], &[64]);
    let y = scalar("mul", &x, 1.0);
    for i in 0..50_000 {
        mul_(&slice(&y, i % 64, i % 64 + 1), 1.0).unwrap();
    }
    backward(&sum(&y)).unwrap();
    assert_eq!(grad_of(&x), [1.0; 64]);
}

#[test]
fn views_made_under_no_grad_are_not_written_to() {
    setup();
    let x = leaf(&[1.0, 2.0], &[2]);
    let y = scalar("mul", &x, 3.0);
    let mode = GradMode::no_grad();
    let view = slice(&y, 0, 1);
    drop(mode);
    let e = error_of(try_call("copy_", &[Arg::Tensor(&view), Arg::Tensor(&slice(&x, 1, 2))]));
    assert_eq!((e.code(), values(&y)), ("TP3019", vec![3.0, 6.0]));
}
