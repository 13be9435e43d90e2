//! Values of the named rules against finite differences, first and second order.

mod common;

use common::*;
use tp_dispatch::Arg;
use tp_tensor::Tensor;

fn x23() -> Tensor {
    spread(&[2, 3], -1.4, 1.6)
}

fn with(name: &'static str, rest: &'static [Arg<'static>]) -> impl Fn(&[Tensor]) -> Tensor {
    move |x| {
        let args: Vec<Arg<'_>> = std::iter::once(Arg::Tensor(&x[0])).chain(rest.iter().copied()).collect();
        call(name, &args)
    }
}

const NONE: Arg<'static> = Arg::None;

#[test]
fn reductions() {
    static AXES: [Arg<'static>; 3] = [NONE, Arg::Ints(&[0]), Arg::Ints(&[-1])];
    for axis in &AXES {
        for name in ["sum", "mean", "max", "min", "prod", "var", "std", "logsumexp"] {
            let rest: &'static [Arg<'static>] = std::slice::from_ref(axis);
            check_twice(with(name, rest), &[x23()]);
        }
    }
    check(with("sum", &[Arg::Ints(&[0, 2]), NONE, Arg::Bool(false)]), &[spread(&[2, 3, 2], -1.0, 1.0)]);
    check(with("sum", &[Arg::Ints(&[1]), NONE, Arg::Bool(true)]), &[x23()]);
    check(with("mean", &[Arg::Ints(&[0, -1]), Arg::Bool(true)]), &[x23()]);
    check(with("max", &[Arg::Ints(&[1]), Arg::Bool(true)]), &[x23()]);
    check_twice(with("var", &[Arg::Ints(&[1]), Arg::Float(1.0), Arg::Bool(true)]), &[x23()]);
    check(with("sum_to_size", &[Arg::Ints(&[1, 3])]), &[x23()]);
}

#[test]
fn products_with_zeros() {
    for values in [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]] {
        check_twice(with("prod", &[]), &[tensor(&values, &[3])]);
    }
    check_twice(with("prod", &[Arg::Ints(&[1])]), &[tensor(&[0.0, 2.0, 3.0, 4.0, 0.5, 0.0], &[2, 3])]);
}

#[test]
fn extrema_share_ties() {
    setup();
    let x = leaf(&[1.0, 3.0, 3.0, 0.0], &[4]);
    backward(&op1("max", &x)).unwrap();
    assert_eq!(grad_of(&x), [0.0, 0.5, 0.5, 0.0]);
}

#[test]
fn scans_and_triangles() {
    check_twice(with("cumsum", &[Arg::Int(-1)]), &[x23()]);
    check(with("cumsum", &[Arg::Int(0)]), &[x23()]);
    check(with("tril", &[Arg::Int(0)]), &[x23()]);
    check(with("triu", &[Arg::Int(1)]), &[x23()]);
}

#[test]
fn softmaxes() {
    for name in ["softmax", "log_softmax"] {
        check_twice(with(name, &[Arg::Int(-1)]), &[x23()]);
        check_twice(with(name, &[Arg::Int(0)]), &[x23()]);
    }
    for name in ["softmax_backward", "log_softmax_backward"] {
        let f = |x: &[Tensor]| call(name, &[Arg::Tensor(&x[0]), Arg::Tensor(&x[1]), Arg::Int(1)]);
        check_twice(f, &[x23(), spread(&[2, 3], 0.1, 0.9)]);
    }
}

#[test]
fn matrix_products() {
    let shapes: [(&[i64], &[i64]); 9] = [
        (&[2, 3], &[3, 4]),
        (&[3], &[3]),
        (&[3], &[3, 2]),
        (&[2, 3], &[3]),
        (&[2, 2, 3], &[3, 2]),
        (&[2, 3], &[2, 3, 2]),
        (&[1, 2, 3], &[2, 3, 2]),
        (&[2, 2, 3], &[3]),
        (&[3], &[2, 3, 2]),
    ];
    for (a, b) in shapes {
        check_twice(|x| op2("matmul", &x[0], &x[1]), &[spread(a, -1.0, 1.0), spread(b, -1.0, 1.0)]);
    }
}

#[test]
fn movement() {
    check_twice(with("reshape", &[Arg::Ints(&[3, -1])]), &[x23()]);
    check(with("permute_dims", &[Arg::Ints(&[2, 0, 1])]), &[spread(&[2, 3, 4], -1.0, 1.0)]);
    check(with("transpose", &[Arg::Int(0), Arg::Int(-1)]), &[spread(&[2, 3, 4], -1.0, 1.0)]);
    check(with("expand", &[Arg::Ints(&[2, 3, 4])]), &[spread(&[3, 1], -1.0, 1.0)]);
    check(with("squeeze", &[]), &[spread(&[1, 3, 1], -1.0, 1.0)]);
    check(with("squeeze", &[Arg::Ints(&[-1])]), &[spread(&[1, 3, 1], -1.0, 1.0)]);
    check(with("unsqueeze", &[Arg::Int(-1)]), &[x23()]);
    check_twice(with("slice", &[Arg::Int(1), Arg::Int(-2), NONE, Arg::Int(1)]), &[x23()]);
    check_twice(with("slice", &[Arg::Int(1), NONE, NONE, Arg::Int(2)]), &[x23()]);
    check_twice(with("select", &[Arg::Int(-1), Arg::Int(-1)]), &[x23()]);
    check(with("flip", &[Arg::Ints(&[1])]), &[x23()]);
    check(with("flip", &[]), &[x23()]);
    check(with("roll", &[Arg::Ints(&[1]), Arg::Ints(&[1])]), &[x23()]);
    check(with("roll", &[Arg::Ints(&[2]), NONE]), &[x23()]);
    check(with("contiguous", &[]), &[x23()]);
}

#[test]
fn joins() {
    let parts = [x23(), spread(&[1, 3], -1.0, 1.0)];
    check_twice(|x| call("concat", &[Arg::Tensors(x), Arg::Int(0)]), &parts);
    check(|x| call("concat", &[Arg::Tensors(x), Arg::None]), &parts);
    check_twice(|x| call("stack", &[Arg::Tensors(x), Arg::Int(-1)]), &[x23(), spread(&[2, 3], 0.0, 1.0)]);
    // Only some of the parts need a gradient.
    setup();
    let (a, b) = (tensor(&[1.0], &[1]), leaf(&[2.0, 3.0], &[2]));
    let y = call("concat", &[Arg::Tensors(&[a, b.clone()]), Arg::Int(0)]);
    backward(&sum(&op2("mul", &y, &tensor(&[5.0, 6.0, 7.0], &[3])))).unwrap();
    assert_eq!(grad_of(&b), [6.0, 7.0]);
}

#[test]
fn indexing() {
    let i = ints(&[2, 0, 2, -1], &[4]);
    let grid = ints(&[0, 2, 1, 1, 0, 2], &[2, 3]);
    check_twice(|x| call("take", &[Arg::Tensor(&x[0]), Arg::Tensor(&i), Arg::Int(1)]), &[x23()]);
    check(|x| call("take", &[Arg::Tensor(&x[0]), Arg::Tensor(&grid), Arg::Int(1)]), &[x23()]);
    check(|x| call("take", &[Arg::Tensor(&x[0]), Arg::Tensor(&grid), Arg::None]), &[x23()]);
    check_twice(|x| call("index_select", &[Arg::Tensor(&x[0]), Arg::Int(-1), Arg::Tensor(&i)]), &[x23()]);
    check_twice(|x| call("gather", &[Arg::Tensor(&x[0]), Arg::Int(1), Arg::Tensor(&grid)]), &[x23()]);
    check(|x| call("take_along_axis", &[Arg::Tensor(&x[0]), Arg::Tensor(&grid), Arg::Int(-1)]), &[x23()]);
    check_twice(
        |x| call("scatter_add", &[Arg::Tensor(&x[0]), Arg::Int(1), Arg::Tensor(&grid), Arg::Tensor(&x[1])]),
        &[x23(), spread(&[2, 3], 0.0, 1.0)],
    );
    check_twice(
        |x| call("index_add", &[Arg::Tensor(&x[0]), Arg::Int(1), Arg::Tensor(&i), Arg::Tensor(&x[1])]),
        &[x23(), spread(&[2, 4], 0.0, 1.0)],
    );
}

#[test]
fn advanced_indexing() {
    let (rows, columns) = (ints(&[0, 1, 1], &[3]), ints(&[2, 0, 0], &[3]));
    let both = [Some(rows.clone()), Some(columns.clone())];
    let second = [None, Some(columns)];
    check_twice(|x| call("index", &[Arg::Tensor(&x[0]), Arg::OptTensors(&both)]), &[x23()]);
    check(|x| call("index", &[Arg::Tensor(&x[0]), Arg::OptTensors(&second)]), &[x23()]);
    let distinct = [Some(ints(&[0, 1], &[2])), Some(ints(&[2, 0], &[2]))];
    check_twice(
        |x| call("index_put", &[Arg::Tensor(&x[0]), Arg::OptTensors(&distinct), Arg::Tensor(&x[1])]),
        &[x23(), spread(&[2], 0.0, 1.0)],
    );
    check(
        |x| {
            let args = [Arg::Tensor(&x[0]), Arg::OptTensors(&both), Arg::Tensor(&x[1]), Arg::Bool(true)];
            call("index_put", &args)
        },
        &[x23(), spread(&[1], 0.0, 1.0)],
    );
}
