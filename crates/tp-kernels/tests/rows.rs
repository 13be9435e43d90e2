//! Every group of rows against small exact references.

mod common;

use common::*;
use tp_dispatch::{Arg, ErrorKind, Registry};
use tp_tensor::{DType, Tensor};

fn ints(v: &[i64]) -> Arg<'_> {
    Arg::Ints(v)
}

#[test]
fn rows_are_registered_with_their_place() {
    setup();
    setup();
    let op = Registry::global().lookup("tp::mul.Scalar").unwrap();
    let def = op.def().unwrap();
    assert_eq!(def.schema.to_string(), "tp::mul.Scalar(Tensor x1, Scalar x2) -> Tensor");
    assert!(def.provenance.file.ends_with("ops/binary.rs"));
    let entry = &op.kernels()[0];
    assert_eq!((entry.name(), &*entry.provenance.executor), ("cpu", "native"));
    assert_eq!(entry.provenance.line, def.provenance.line);
    let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ops/binary.rs")).unwrap();
    let line = source.lines().nth(def.provenance.line as usize - 1).unwrap();
    assert!(line.contains("\"mul\""), "{line}");
    assert!(Registry::global().list(Some("tp")).len() > 200);
    for (alias, name) in tp_kernels::ALIASES {
        assert!(Registry::global().get(&format!("tp::{name}")).is_some(), "{alias} -> {name}");
        assert!(Registry::global().get(&format!("tp::{alias}")).is_none(), "{alias}");
    }
}

#[test]
fn arithmetic_and_promotion() {
    let a = f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    let b = f32s(&[3], &[10., 20., 30.]);
    assert_eq!(values(&run("add", &[t(&a), t(&b)])), [11., 22., 33., 14., 25., 36.]);
    assert_eq!(values(&run("mul.Scalar", &[t(&a), float(2.0)])), [2., 4., 6., 8., 10., 12.]);
    assert_eq!(values(&run("sub.ScalarLeft", &[int(1), t(&b)])), [-9., -19., -29.]);
    let i = i64s(&[3], &[7., -7., 5.]);
    let half = run("mul.Scalar", &[t(&i), float(0.5)]);
    assert_eq!((half.dtype(), values(&half)), (DType::F32, vec![3.5, -3.5, 2.5]));
    assert_eq!(values(&run("floor_divide.Scalar", &[t(&i), int(2)])), [3., -4., 2.]);
    assert_eq!(values(&run("remainder.Scalar", &[t(&i), int(3)])), [1., 2., 2.]);
    assert_eq!(run("div", &[t(&i), t(&i)]).dtype(), DType::F32);
    let zero = i64s(&[3], &[1., 0., 2.]);
    let e = call("floor_divide", &[t(&i), t(&zero)]).unwrap_err();
    assert_eq!((e.kind(), e.op()), (ErrorKind::DivisionByZero, Some("tp::floor_divide")));
    let e = call("add", &[t(&a), t(&f32s(&[2], &[0., 0.]))]).unwrap_err();
    assert_eq!((e.kind(), e.code(), e.op()), (ErrorKind::Shape, "TP1101", Some("tp::add")));
    let low = tensor(&[2], DType::BF16, &[1.5, 2.0]);
    assert_eq!(run("add.Scalar", &[t(&low), float(1.0)]).dtype(), DType::BF16);
    let empty = f32s(&[0, 3], &[]);
    assert_eq!(run("add", &[t(&empty), t(&b)]).sizes(), [0, 3]);
}

#[test]
fn choice_and_casts() {
    let x = f32s(&[4], &[f64::NAN, -1.5, 0.0, 300.7]);
    let as_u8 = run("astype", &[t(&x), Arg::DType(DType::U8)]);
    assert_eq!(values(&as_u8), [0., 0., 0., 255.]);
    assert_eq!(values(&run("astype", &[t(&x), Arg::DType(DType::Bool)])), [1., 1., 0., 1.]);
    let c = tensor(&[4], DType::Bool, &[1., 0., 1., 0.]);
    assert_eq!(values(&run("where.Scalar", &[t(&c), t(&as_u8), int(9)])), [0., 9., 0., 9.]);
    let y = f32s(&[4], &[1., 2., 3., 4.]);
    let m = values(&run("maximum", &[t(&x), t(&y)]));
    assert!(m[0].is_nan());
    assert_eq!(&m[1..], [2., 3., f64::from(300.7f32)]);
    assert_eq!(values(&run("clamp", &[t(&y), float(1.5), float(3.5)])), [1.5, 2., 3., 3.5]);
    assert_eq!(values(&run("masked_fill", &[t(&y), t(&c), float(0.0)])), [0., 2., 0., 4.]);
    assert_eq!(values(&run("round", &[t(&f32s(&[3], &[0.5, 1.5, -2.5]))])), [0., 2., -2.]);
}

#[test]
fn reductions() {
    let x = f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    assert_eq!(values(&run("sum", &[t(&x)])), [21.]);
    assert_eq!(values(&run("sum", &[t(&x), ints(&[0])])), [5., 7., 9.]);
    assert_eq!(values(&run("sum", &[t(&x), ints(&[-1])])), [6., 15.]);
    let kept = run("sum", &[t(&x), ints(&[0, 1]), Arg::None, Arg::Bool(true)]);
    assert_eq!((kept.sizes(), values(&kept)), (&[1, 1][..], vec![21.]));
    let b = tensor(&[3], DType::Bool, &[1., 0., 1.]);
    let n = run("sum", &[t(&b)]);
    assert_eq!((n.dtype(), values(&n)), (DType::I64, vec![2.]));
    let small = tensor(&[2], DType::U8, &[200., 100.]);
    assert_eq!(values(&run("sum", &[t(&small)])), [300.]);
    assert_eq!(values(&run("prod", &[t(&x)])), [720.]);
    assert_eq!(values(&run("mean", &[t(&x), ints(&[1])])), [2., 5.]);
    assert_eq!(values(&run("var", &[t(&x), ints(&[1]), float(1.0)])), [1., 1.]);
    assert_close(&run("std", &[t(&x)]), &[(35.0f64 / 12.0).sqrt()], 1e-6);
    assert_eq!(values(&run("max", &[t(&x), ints(&[0])])), [4., 5., 6.]);
    assert_eq!(values(&run("argmax", &[t(&x), int(1)])), [2., 2.]);
    assert_eq!(values(&run("argmin", &[t(&x)])), [0.]);
    assert_eq!(values(&run("cumsum", &[t(&x), int(1)])), [1., 3., 6., 4., 9., 15.]);
    assert_eq!(values(&run("any", &[t(&b)])), [1.]);
    assert_eq!(values(&run("all", &[t(&b)])), [0.]);
    assert_close(&run("logsumexp", &[t(&f32s(&[2], &[1000., 1000.]))]), &[1000.0 + 2.0f64.ln()], 1e-6);
    let n = f32s(&[3], &[1., f64::NAN, 3.]);
    assert!(values(&run("max", &[t(&n)]))[0].is_nan());
    assert_eq!(values(&run("argmin", &[t(&n)])), [1.]);
    let none = f32s(&[0, 3], &[]);
    assert_eq!(values(&run("sum", &[t(&none), ints(&[0])])), [0., 0., 0.]);
    let e = call("max", &[t(&none), ints(&[0])]).unwrap_err();
    assert_eq!((e.kind(), e.op()), (ErrorKind::Value, Some("tp::max")));
    assert_eq!(run("max", &[t(&none), ints(&[1])]).sizes(), [0]);
    assert!(values(&run("mean", &[t(&f32s(&[0], &[]))]))[0].is_nan());
    let e = call("sum", &[t(&x), ints(&[2])]).unwrap_err();
    assert_eq!((e.kind(), e.op()), (ErrorKind::Index, Some("tp::sum")));
    assert_eq!(call("sum", &[t(&x), ints(&[0, -2])]).unwrap_err().kind(), ErrorKind::Value);
    assert_eq!(values(&run("sum_to_size", &[t(&x), ints(&[3])])), [5., 7., 9.]);
    assert_eq!(values(&run("sum_to_size", &[t(&x), ints(&[2, 1])])), [6., 15.]);
}

#[test]
fn softmax_family() {
    let x = f32s(&[2, 3], &[1., 2., 3., -1000., 0., 1000.]);
    let e = [1f64, 2., 3.].map(f64::exp);
    let total: f64 = e.iter().sum();
    let y = run("softmax", &[t(&x)]);
    assert_close(&y, &[e[0] / total, e[1] / total, e[2] / total, 0., 0., 1.], 1e-6);
    assert_close(
        &run("log_softmax", &[t(&x)]),
        &[1. - total.ln(), 2. - total.ln(), 3. - total.ln(), -2000., -1000., 0.],
        1e-6,
    );
    let columns = run("softmax", &[t(&x), int(0)]);
    assert_close(&columns, &[1., 0.880797, 0., 0., 0.119203, 1.], 1e-5);
    let g = f32s(&[2, 3], &[1., 0., 0., 0., 0., 1.]);
    let p: Vec<f64> = e.iter().map(|v| v / total).collect();
    let want = [p[0] * (1. - p[0]), -p[0] * p[1], -p[0] * p[2], 0., 0., 0.];
    assert_close(&run("softmax_backward", &[t(&g), t(&y), int(1)]), &want, 1e-6);
    let log = run("log_softmax", &[t(&x)]);
    let want = [1. - p[0], -p[1], -p[2], 0., 0., 0.];
    assert_close(&run("log_softmax_backward", &[t(&g), t(&log), int(1)]), &want, 1e-6);
}

#[test]
fn products() {
    let a = f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    let b = f32s(&[3, 2], &[1., 0., 0., 1., 1., 1.]);
    assert_eq!(values(&run("matmul", &[t(&a), t(&b)])), [4., 5., 10., 11.]);
    let v = f32s(&[3], &[1., 1., 1.]);
    let av = run("matmul", &[t(&a), t(&v)]);
    assert_eq!((av.sizes(), values(&av)), (&[2][..], vec![6., 15.]));
    assert_eq!(values(&run("matmul", &[t(&v), t(&b)])), [2., 2.]);
    let vv = run("matmul", &[t(&v), t(&v)]);
    assert_eq!((vv.ndim(), values(&vv)), (0, vec![3.]));
    let batch = iota(&[4, 1, 2, 3], DType::I32);
    let wide = iota(&[5, 3, 1], DType::I64);
    let out = run("matmul", &[t(&batch), t(&wide)]);
    assert_eq!((out.sizes(), out.dtype()), (&[4, 5, 2, 1][..], DType::I64));
    assert_eq!(values(&out)[..4], [5., 14., 14., 50.]);
    let low = run(
        "matmul",
        &[t(&tensor(&[1, 2], DType::F16, &[1., 2.])), t(&tensor(&[2, 1], DType::F16, &[3., 4.]))],
    );
    assert_eq!((low.dtype(), values(&low)), (DType::F16, vec![11.]));
    let none = run("matmul", &[t(&f32s(&[2, 0], &[])), t(&f32s(&[0, 2], &[]))]);
    assert_eq!(values(&none), [0.; 4]);
    let e = call("matmul", &[t(&a), t(&a)]).unwrap_err();
    assert_eq!((e.kind(), e.op()), (ErrorKind::Shape, Some("tp::matmul")));
    assert!(e.message().contains("[2, 3]"), "{e}");
}

#[test]
fn movement() {
    let x = iota(&[2, 3], DType::I32);
    let turned = run("permute_dims", &[t(&x), ints(&[1, 0])]);
    assert!(turned.shares_storage(&x) && turned.is_view());
    assert_eq!(values(&turned), [0., 3., 1., 4., 2., 5.]);
    assert!(run("reshape", &[t(&x), ints(&[3, -1])]).shares_storage(&x));
    let copied = run("reshape", &[t(&turned), ints(&[6])]);
    assert!(!copied.shares_storage(&x));
    assert_eq!(values(&copied), [0., 3., 1., 4., 2., 5.]);
    assert_eq!(call("view", &[t(&turned), ints(&[6])]).unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(run("expand", &[t(&x), ints(&[4, -1, 3])]).strides(), [0, 3, 1]);
    assert_eq!(run("unsqueeze", &[t(&x), int(-1)]).sizes(), [2, 3, 1]);
    let ones = iota(&[1, 3, 1], DType::I32);
    assert_eq!(run("squeeze", &[t(&ones)]).sizes(), [3]);
    assert_eq!(run("squeeze", &[t(&ones), ints(&[0])]).sizes(), [3, 1]);
    assert_eq!(call("squeeze", &[t(&ones), ints(&[1])]).unwrap_err().kind(), ErrorKind::Value);
    assert_eq!(values(&run("slice", &[t(&x), int(1), int(1)])), [1., 2., 4., 5.]);
    assert_eq!(values(&run("select", &[t(&x), int(0), int(-1)])), [3., 4., 5.]);
    assert_eq!(call("select", &[t(&x), int(0), int(2)]).unwrap_err().kind(), ErrorKind::Index);
    assert!(run("contiguous", &[t(&x)]).same(&x));
    assert_eq!(values(&run("contiguous", &[t(&turned)])), values(&turned));
    assert_eq!(values(&run("flip", &[t(&x)])), [5., 4., 3., 2., 1., 0.]);
    assert_eq!(values(&run("flip", &[t(&x), ints(&[1])])), [2., 1., 0., 5., 4., 3.]);
    assert_eq!(values(&run("roll", &[t(&x), ints(&[1]), ints(&[1])])), [2., 0., 1., 5., 3., 4.]);
    assert_eq!(values(&run("roll", &[t(&x), ints(&[-1])])), [1., 2., 3., 4., 5., 0.]);
    let square = iota(&[2, 2], DType::I32);
    assert_eq!(values(&run("tril", &[t(&square)])), [0., 0., 2., 3.]);
    assert_eq!(values(&run("triu", &[t(&square), int(1)])), [0., 1., 0., 0.]);
    let list = [x.clone(), iota(&[1, 3], DType::F32)];
    let joined = run("concat", &[Arg::Tensors(&list)]);
    assert_eq!((joined.dtype(), values(&joined)), (DType::F32, vec![0., 1., 2., 3., 4., 5., 0., 1., 2.]));
    assert_eq!(run("concat", &[Arg::Tensors(&list), Arg::None]).sizes(), [9]);
    let pair = [x.clone(), x.clone()];
    let stacked = run("stack", &[Arg::Tensors(&pair), int(1)]);
    assert_eq!((stacked.sizes(), values(&stacked)[3]), (&[2, 2, 3][..], 0.));
    let g = iota(&[2, 1], DType::F32);
    let back = run("slice_backward", &[t(&g), ints(&[2, 3]), int(1), int(1), int(2), int(1)]);
    assert_eq!(values(&back), [0., 0., 0., 0., 1., 0.]);
    let back = run("select_backward", &[t(&iota(&[3], DType::F32)), ints(&[2, 3]), int(0), int(1)]);
    assert_eq!(values(&back), [0., 0., 0., 0., 1., 2.]);
}

#[test]
fn indexing() {
    let x = iota(&[3, 4], DType::F32);
    let at = i64s(&[2], &[2., -3.]);
    assert_eq!(values(&run("take", &[t(&x), t(&at), int(0)])), [8., 9., 10., 11., 0., 1., 2., 3.]);
    assert_eq!(values(&run("take", &[t(&x), t(&at)])), [2., 9.]);
    assert_eq!(values(&run("index_select", &[t(&x), int(1), t(&at)])), [2., 1., 6., 5., 10., 9.]);
    let e = call("take", &[t(&x), t(&i64s(&[1], &[3.])), int(0)]).unwrap_err();
    assert_eq!((e.kind(), e.op()), (ErrorKind::Index, Some("tp::take")));
    assert_eq!(call("take", &[t(&x), t(&x), int(0)]).unwrap_err().kind(), ErrorKind::DType);
    let per_row = i64s(&[3, 1], &[0., 1., 2.]);
    assert_eq!(values(&run("gather", &[t(&x), int(1), t(&per_row)])), [0., 5., 10.]);
    assert_eq!(values(&run("take_along_axis", &[t(&x), t(&per_row), int(1)])), [0., 5., 10.]);
    let zeros = f32s(&[3, 4], &[0.; 12]);
    let ones = f32s(&[3, 1], &[1., 2., 3.]);
    let back = run("scatter_add", &[t(&zeros), int(1), t(&per_row), t(&ones)]);
    assert_eq!(values(&back), [1., 0., 0., 0., 0., 2., 0., 0., 0., 0., 3., 0.]);
    let twice = i64s(&[2], &[1., 1.]);
    let rows = iota(&[2, 4], DType::F32);
    let added = run("index_add", &[t(&zeros), int(0), t(&twice), t(&rows)]);
    assert_eq!(values(&added), [0., 0., 0., 0., 4., 6., 8., 10., 0., 0., 0., 0.]);
    let list = [Some(i64s(&[2], &[0., 2.])), Some(i64s(&[2], &[1., 3.]))];
    assert_eq!(values(&run("index", &[t(&x), Arg::OptTensors(&list)])), [1., 11.]);
    let second = [None, Some(i64s(&[2], &[1., 0.]))];
    let picked = run("index", &[t(&x), Arg::OptTensors(&second)]);
    assert_eq!((picked.sizes(), values(&picked)), (&[3, 2][..], vec![1., 0., 5., 4., 9., 8.]));
    let put = run("index_put", &[t(&x), Arg::OptTensors(&list), t(&f32s(&[], &[-1.]))]);
    assert_eq!((values(&put)[1], values(&put)[11], values(&x)[1]), (-1., -1., 1.));
    let same = [Some(i64s(&[2], &[0., 0.])), Some(i64s(&[2], &[0., 0.]))];
    let args = [t(&x), Arg::OptTensors(&same), t(&ones), Arg::Bool(true)];
    assert_eq!(call("index_put", &args).unwrap_err().kind(), ErrorKind::Shape);
    let pair = f32s(&[2], &[1., 2.]);
    let out = run("index_put_", &[t(&x), Arg::OptTensors(&same), t(&pair), Arg::Bool(true)]);
    assert!(out.same(&x));
    assert_eq!((values(&x)[0], x.storage().version()), (3., 1));
    let positions = run("nonzero", &[t(&f32s(&[2, 2], &[0., 1., 2., 0.]))]);
    assert_eq!((positions.sizes(), values(&positions)), (&[2, 2][..], vec![0., 1., 1., 0.]));
}

#[test]
fn order() {
    let x = f32s(&[2, 4], &[3., f64::NAN, 1., 3., 0., -1., 2., -1.]);
    assert_eq!(values(&run("argsort", &[t(&x)])), [2., 0., 3., 1., 1., 3., 0., 2.]);
    let down = [t(&x), int(1), Arg::Bool(true)];
    assert_eq!(values(&run("argsort", &down)), [1., 0., 3., 2., 2., 0., 1., 3.]);
    assert_eq!(values(&run("argsort", &[t(&x), int(0)])), [1., 1., 0., 1., 0., 0., 1., 0.]);
    let line = i64s(&[4], &[1., 3., 3., 9.]);
    let at = f32s(&[2, 2], &[3., 0.5, 10., f64::NAN]);
    assert_eq!(values(&run("searchsorted", &[t(&line), t(&at)])), [1., 0., 4., 4.]);
    assert_eq!(values(&run("searchsorted", &[t(&line), t(&at), Arg::Bool(true)])), [3., 0., 4., 4.]);
    assert_eq!(call("searchsorted", &[t(&x), t(&at)]).unwrap_err().kind(), ErrorKind::Shape);
}

#[test]
fn creation() {
    let size: &[i64] = &[2, 2];
    assert_eq!(values(&run("zeros", &[ints(size)])), [0.; 4]);
    let ones = run("ones", &[ints(size), Arg::DType(DType::I8)]);
    assert_eq!((ones.dtype(), values(&ones)), (DType::I8, vec![1.; 4]));
    assert_eq!(run("full", &[ints(size), int(7)]).dtype(), DType::I64);
    assert_eq!(values(&run("full", &[ints(size), float(0.5)])), [0.5; 4]);
    assert_eq!(values(&run("arange", &[int(4)])), [0., 1., 2., 3.]);
    assert_eq!(values(&run("arange", &[int(5), int(0), int(-2)])), [5., 3., 1.]);
    let f = run("arange", &[float(0.0), float(1.0), float(0.25)]);
    assert_eq!((f.dtype(), values(&f)), (DType::F32, vec![0., 0.25, 0.5, 0.75]));
    assert_eq!(values(&run("linspace", &[int(0), int(1), int(5)])), [0., 0.25, 0.5, 0.75, 1.]);
    assert_eq!(values(&run("eye", &[int(2), int(3), int(1)])), [0., 1., 0., 0., 0., 1.]);
    let x = tensor(&[3], DType::F16, &[1., 2., 3.]);
    let like = run("full_like", &[t(&x), int(4)]);
    assert_eq!((like.dtype(), values(&like)), (DType::F16, vec![4.; 3]));
    assert_eq!(run("new_zeros", &[t(&x), ints(size)]).dtype(), DType::F16);
    assert_eq!(run("empty_strided", &[ints(size), ints(&[1, 2])]).strides(), [1, 2]);
    assert_eq!(call("zeros", &[ints(&[-1])]).unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(call("arange", &[int(1), int(2), int(0)]).unwrap_err().kind(), ErrorKind::Value);
}

#[test]
fn random_numbers_follow_the_seed() {
    let draw = |threads: usize| -> (Tensor, Tensor, Tensor) {
        tp_expr::pool::set_num_threads(threads);
        tp_kernels::random::manual_seed(7);
        let size: &[i64] = &[100_003];
        (
            run("normal", &[ints(size), float(1.0), float(2.0)]),
            run("uniform", &[ints(size), float(-1.0), float(1.0), Arg::DType(DType::F64)]),
            run("randint", &[int(-3), int(4), ints(size)]),
        )
    };
    let (a, b) = (draw(1), draw(2));
    assert!(same_bits(&a.0, &b.0) && same_bits(&a.1, &b.1) && same_bits(&a.2, &b.2));
    let n = values(&a.0);
    let mean = n.iter().sum::<f64>() / n.len() as f64;
    let var = n.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n.len() as f64;
    assert!((mean - 1.0).abs() < 0.03 && (var - 4.0).abs() < 0.1, "{mean} {var}");
    let u = values(&a.1);
    assert!(u.iter().all(|v| (-1.0..1.0).contains(v)));
    assert!((u.iter().sum::<f64>() / u.len() as f64).abs() < 0.01);
    let r = values(&a.2);
    assert!((-3..4).all(|k| r.contains(&f64::from(k))) && r.iter().all(|v| (-3.0..4.0).contains(v)));
    assert!(!same_bits(&a.0, &run("normal", &[ints(&[100_003]), float(1.0), float(2.0)])));
    assert_eq!(
        call("normal", &[ints(&[1]), float(0.), float(1.), Arg::DType(DType::I32)]).unwrap_err().kind(),
        ErrorKind::DType
    );
}
