//! Values of every pointwise formula against finite differences, first and second order, with broadcasting.

mod common;

use common::*;
use tp_dispatch::Arg;
use tp_tensor::{DType, Scalar, Tensor};

fn unary(name: &str, lo: f64, hi: f64) {
    check_twice(|x| op1(name, &x[0]), &[spread(&[2, 3], lo, hi)]);
}

#[test]
fn unary_formulas() {
    for name in
        ["positive", "neg", "square", "exp", "exp2", "expm1", "sin", "cos", "sinh", "cosh", "tanh", "clone"]
    {
        unary(name, -1.3, 1.2);
    }
    for name in ["atan", "asinh", "erf", "sigmoid", "silu", "softplus", "gelu", "gelu.tanh", "tan", "alias"] {
        unary(name, -1.1, 1.3);
    }
    for name in ["sqrt", "rsqrt", "reciprocal", "log", "log2", "log10", "log1p"] {
        unary(name, 0.3, 2.0);
    }
    for name in ["asin", "acos", "atanh"] {
        unary(name, -0.8, 0.7);
    }
    unary("acosh", 1.2, 3.0);
    for name in ["abs", "relu", "floor", "ceil", "trunc", "round", "sign"] {
        check(|x| op1(name, &x[0]), &[spread(&[7], -2.3, 2.1)]);
    }
}

#[test]
fn binary_formulas_broadcast() {
    let pairs = |lo: f64, hi: f64| [spread(&[2, 1], lo, hi), spread(&[1, 3], lo * 1.1, hi * 0.9)];
    for name in ["add", "sub", "mul", "maximum", "minimum", "logaddexp", "atan2", "hypot", "copysign"] {
        check_twice(|x| op2(name, &x[0], &x[1]), &pairs(-1.5, 1.7));
    }
    for name in ["div", "pow", "remainder"] {
        check_twice(|x| op2(name, &x[0], &x[1]), &pairs(0.4, 1.9));
    }
    check(|x| op2("floor_divide", &x[0], &x[1]), &pairs(0.4, 1.9));
    check(
        |x| op2("mul", &x[0], &x[1]),
        &[spread(&[2, 1, 4, 3], -1.0, 1.0), spread(&[2, 1, 4, 1], -1.0, 1.0)],
    );
    check(|x| op2("add", &x[0], &x[1]), &[spread(&[2, 3], -1.0, 1.0), spread(&[], -1.0, 1.0)]);
}

#[test]
fn forms_with_a_number() {
    for name in ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "hypot"] {
        check_twice(|x| scalar(name, &x[0], 1.7), &[spread(&[5], 0.3, 3.0)]);
        let left = format!("{name}.ScalarLeft");
        let s = Scalar::Float(1.7);
        check_twice(|x| call(&left, &[Arg::Scalar(s), Arg::Tensor(&x[0])]), &[spread(&[5], 0.3, 3.0)]);
    }
    check(
        |x| call("pow.Scalar", &[Arg::Tensor(&x[0]), Arg::Scalar(Scalar::Int(3))]),
        &[spread(&[4], -2.0, 2.0)],
    );
}

#[test]
fn choices() {
    let condition = op2("gt", &spread(&[2, 3], -1.0, 1.0), &spread(&[3], -0.5, 0.5));
    check(
        |x| call("where", &[Arg::Tensor(&condition), Arg::Tensor(&x[0]), Arg::Tensor(&x[1])]),
        &[spread(&[3], -1.0, 1.0), spread(&[2, 1], -1.0, 1.0)],
    );
    check(
        |x| {
            let zero = Arg::Scalar(Scalar::Float(0.5));
            call("where.Scalar", &[Arg::Tensor(&condition), Arg::Tensor(&x[0]), zero])
        },
        &[spread(&[2, 3], -1.0, 1.0)],
    );
    check(
        |x| {
            call(
                "masked_fill",
                &[Arg::Tensor(&x[0]), Arg::Tensor(&condition), Arg::Scalar(Scalar::Float(2.0))],
            )
        },
        &[spread(&[3], -1.0, 1.0)],
    );
    let (low, high) = (Arg::Scalar(Scalar::Float(-0.5)), Arg::Scalar(Scalar::Float(0.4)));
    check(|x| call("clamp", &[Arg::Tensor(&x[0]), low, high]), &[spread(&[9], -1.0, 1.0)]);
    check(|x| op1("leaky_relu", &x[0]), &[spread(&[9], -1.0, 1.0)]);
}

#[test]
fn zero_to_a_power() {
    setup();
    for (power, want) in [(0, 0.0), (1, 1.0), (2, 0.0), (3, 0.0)] {
        let x = leaf(&[0.0], &[1]);
        backward(&sum(&call("pow.Scalar", &[Arg::Tensor(&x), Arg::Scalar(Scalar::Int(power))]))).unwrap();
        assert_eq!(grad_of(&x), [want], "power {power}");
    }
}

#[test]
fn ties_share() {
    setup();
    let (a, b) = (leaf(&[1.0, 2.0], &[2]), leaf(&[1.0, 0.0], &[2]));
    backward(&sum(&op2("maximum", &a, &b))).unwrap();
    assert_eq!((grad_of(&a), grad_of(&b)), (vec![0.5, 1.0], vec![0.5, 0.0]));
}

#[test]
fn gradients_have_the_operands_dtypes() {
    setup();
    let x = call("astype", &[Arg::Tensor(&tensor(&[1.0, 2.0], &[2])), Arg::DType(DType::F16)]);
    let y = call("astype", &[Arg::Tensor(&tensor(&[3.0, 4.0], &[2])), Arg::DType(DType::F32)]);
    for t in [&x, &y] {
        tp_autograd::meta::set_requires_grad(t, true).unwrap();
    }
    backward(&sum(&op2("mul", &x, &y))).unwrap();
    let dtype = |t: &Tensor| tp_autograd::meta::grad(t).unwrap().dtype();
    assert_eq!((dtype(&x), dtype(&y)), (DType::F16, DType::F32));
    assert_eq!((grad_of(&x), grad_of(&y)), (vec![3.0, 4.0], vec![1.0, 2.0]));
}

#[test]
fn results_that_are_no_floats_need_no_grad() {
    setup();
    let x = leaf(&[1.0, -1.0], &[2]);
    for y in [scalar("gt", &x, 0.0), op1("isnan", &x), op1("argmax", &x)] {
        assert!(!y.requires_grad() && tp_autograd::meta::grad_fn(&y).is_none());
    }
    let cast = call("astype", &[Arg::Tensor(&x), Arg::DType(DType::I64)]);
    assert!(!cast.requires_grad());
    assert!(!op1("detach", &x).requires_grad());
}
