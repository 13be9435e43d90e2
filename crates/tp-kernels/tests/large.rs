//! What only shows at size: accuracy of long sums, the ways by which work is shared out, and that none of it
//! depends on the number of threads or on the layout.

mod common;

use common::*;
use tp_dispatch::Arg;
use tp_expr::pool;
use tp_tensor::{DType, Tensor};

/// Numbers without a pattern, in [-1, 1).
fn noise(sizes: &[i64], dtype: DType) -> Tensor {
    let n: i64 = sizes.iter().product();
    let value = |i: i64| {
        let word = tp_kernels::random::philox([i as u32, 1, 2, 3], [4, 5])[0];
        f64::from(word) / f64::from(1u32 << 31) - 1.0
    };
    tensor(sizes, dtype, &(0..n).map(value).collect::<Vec<_>>())
}

/// Sums over `axes` in float64, by the definition.
fn sums(x: &Tensor, axes: &[usize]) -> Vec<f64> {
    let v = values(x);
    let kept: Vec<usize> = (0..x.ndim()).filter(|k| !axes.contains(k)).collect();
    let n: i64 = kept.iter().map(|&k| x.sizes()[k]).product();
    let mut out = vec![0.0; n as usize];
    for (flat, value) in v.iter().enumerate() {
        let (mut rest, mut index) = (flat as i64, vec![0i64; x.ndim()]);
        for k in (0..x.ndim()).rev() {
            index[k] = rest % x.sizes()[k];
            rest /= x.sizes()[k];
        }
        let at = kept.iter().fold(0, |at, &k| at * x.sizes()[k] + index[k]);
        out[at as usize] += value;
    }
    out
}

#[test]
fn sums_over_any_axes_in_any_layout() {
    for sizes in [&[5, 7, 9][..], &[3, 130, 70], &[1, 257, 1], &[2, 3, 4, 5, 6], &[65], &[4, 1, 300]] {
        let n = sizes.len();
        for subset in 0..1usize << n {
            let axes: Vec<usize> = (0..n).filter(|k| subset >> k & 1 == 1).collect();
            let given: Vec<i64> = axes.iter().map(|&k| k as i64).collect();
            for dtype in [DType::F32, DType::F64, DType::I16, DType::F16] {
                let x = noise(sizes, dtype);
                let x = if dtype == DType::I16 {
                    run("astype", &[t(&iota(sizes, DType::F32)), Arg::DType(dtype)])
                } else {
                    x
                };
                let want = sums(&x, &axes);
                let tolerance = match dtype {
                    DType::F16 => 1e-3,
                    DType::F32 => 1e-5,
                    _ => 1e-12,
                };
                for (_, x) in layouts(&x) {
                    assert_close(&run("sum", &[t(&x), Arg::Ints(&given)]), &want, tolerance);
                }
            }
        }
    }
}

#[test]
fn extremes_over_any_axes() {
    let x = noise(&[6, 70, 5], DType::F32);
    for axis in 0..3i64 {
        let want = |better: fn(f64, f64) -> bool| -> (Vec<f64>, Vec<f64>) {
            let v = values(&x);
            let size = |k: i64| x.sizes()[k as usize];
            let inner: i64 = (axis + 1..3).map(size).product();
            let outer: i64 = (0..axis).map(size).product();
            let mut best = (Vec::new(), Vec::new());
            for o in 0..outer {
                for i in 0..inner {
                    let at = |k: i64| v[((o * size(axis) + k) * inner + i) as usize];
                    let index =
                        (0..size(axis)).reduce(|a, b| if better(at(b), at(a)) { b } else { a }).unwrap();
                    best.0.push(at(index));
                    best.1.push(index as f64);
                }
            }
            best
        };
        for (_, x) in layouts(&x) {
            let (values_max, index_max) = want(|a, b| a > b);
            assert_eq!(values(&run("max", &[t(&x), Arg::Ints(&[axis])])), values_max);
            assert_eq!(values(&run("argmax", &[t(&x), int(axis)])), index_max);
            let (values_min, index_min) = want(|a, b| a < b);
            assert_eq!(values(&run("min", &[t(&x), Arg::Ints(&[axis])])), values_min);
            assert_eq!(values(&run("argmin", &[t(&x), int(axis)])), index_min);
        }
    }
}

#[test]
fn many_columns_and_many_slabs() {
    assert_eq!(run("sum", &[t(&f32s(&[5000, 0], &[])), Arg::Ints(&[0])]).sizes(), [0]);
    assert_eq!(values(&run("sum", &[t(&f32s(&[0, 5000], &[])), Arg::Ints(&[0])])), [0.0; 5000]);
    for sizes in [&[3, 9000, 2][..], &[2, 5000, 600], &[4000, 3, 5], &[3, 40, 2500]] {
        let x = noise(sizes, DType::F32);
        assert_close(&run("sum", &[t(&x), Arg::Ints(&[1])]), &sums(&x, &[1]), 1e-4);
        let total = run("sum", &[t(&run("astype", &[t(&x), Arg::DType(DType::Bool)])), Arg::Ints(&[1])]);
        assert!(values(&total).iter().all(|&v| v == sizes[1] as f64));
    }
}

#[test]
fn large_operands_in_the_wrong_order() {
    let x = iota(&[300, 400], DType::F32);
    let turned = view(&x, Ok(x.layout().transpose(0, 1).unwrap()));
    let y = iota(&[400, 300], DType::I32);
    let sum = run("add", &[t(&turned), t(&y)]);
    let want: Vec<f64> = values(&turned).iter().zip(values(&y)).map(|(a, b)| a + b).collect();
    assert_eq!((sum.is_contiguous(), values(&sum)), (true, want));
}

#[test]
fn long_sums_stay_accurate() {
    let n = 3_000_001;
    let x = run("full", &[Arg::Ints(&[n]), float(0.1)]);
    let exact = f64::from(0.1f32) * n as f64;
    assert_close(&run("sum", &[t(&x)]), &[exact], 1e-6);
    assert_close(&run("mean", &[t(&x)]), &[f64::from(0.1f32)], 1e-6);
    let tall = run("full", &[Arg::Ints(&[100_000, 3]), float(0.1)]);
    assert_close(&run("sum", &[t(&tall), Arg::Ints(&[0])]), &[f64::from(0.1f32) * 1e5; 3], 1e-6);
}

#[test]
fn threads_change_no_bit() {
    let x = noise(&[700, 1100], DType::F32);
    let y = noise(&[1100, 300], DType::F32);
    let long = noise(&[1_000_003], DType::F32);
    // Rows of these go to kernels that add in another order where there are few of them.
    let (tall, vector) = (noise(&[1000, 4096], DType::F32), noise(&[4096], DType::F32));
    let pair = noise(&[2, 4096], DType::F32);
    let columns = view(&pair, Ok(pair.layout().transpose(0, 1).unwrap()));
    let all = |threads: usize| -> Vec<Tensor> {
        pool::set_num_threads(threads);
        vec![
            run("sum", &[t(&x)]),
            run("sum", &[t(&x), Arg::Ints(&[0])]),
            run("sum", &[t(&x), Arg::Ints(&[1])]),
            run("sum", &[t(&long)]),
            run("softmax", &[t(&x)]),
            run("softmax", &[t(&x), int(0)]),
            run("matmul", &[t(&x), t(&y)]),
            run("matmul", &[t(&tall), t(&vector)]),
            run("matmul", &[t(&tall), t(&columns)]),
            run("cumsum", &[t(&x), int(0)]),
            run("exp", &[t(&long)]),
        ]
    };
    let (one, two, three) = (all(1), all(2), all(3));
    for ((a, b), c) in one.iter().zip(&two).zip(&three) {
        assert!(same_bits(a, b) && same_bits(a, c));
    }
}

#[test]
fn softmax_by_definition() {
    for (sizes, axis) in [
        (&[4, 1000][..], 1i64),
        (&[3, 5, 7], 1),
        (&[3, 90, 70], 1),
        (&[700, 65], 0),
        (&[1, 70_000], 1),
        (&[2, 3], 0),
        (&[5], 0),
    ] {
        let x = noise(sizes, DType::F64);
        let powers = run("exp", &[t(&x)]);
        let totals = run("sum", &[t(&powers), Arg::Ints(&[axis]), Arg::None, Arg::Bool(true)]);
        let want = values(&run("div", &[t(&powers), t(&totals)]));
        let logs: Vec<f64> = want.iter().map(|v| v.ln()).collect();
        for (dtype, tolerance) in
            [(DType::F64, 1e-12), (DType::F32, 1e-6), (DType::F16, 2e-3), (DType::BF16, 1e-2)]
        {
            let x = run("astype", &[t(&x), Arg::DType(dtype)]);
            for (_, x) in layouts(&x) {
                let y = run("softmax", &[t(&x), int(axis)]);
                assert_eq!((y.dtype(), y.is_contiguous()), (dtype, true));
                assert_close(&y, &want, tolerance);
                assert_close(&run("log_softmax", &[t(&x), int(axis)]), &logs, tolerance * 2.0);
            }
        }
    }
}

#[test]
fn products_by_definition() {
    let want = |a: &Tensor, b: &Tensor, m: usize, k: usize, n: usize| -> Vec<f64> {
        let (a, b) = (values(a), values(b));
        let at = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
        (0..m * n).map(|x| at(x / n, x % n)).collect()
    };
    for [m, k, n] in [[1, 1, 1], [3, 5, 7], [129, 33, 2], [1, 200, 300], [257, 1, 130], [64, 64, 64]] {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::BF16] {
            let a = noise(&[m, k], DType::F32);
            let scale =
                |x: &Tensor| run("astype", &[t(&run("mul.Scalar", &[t(x), int(9)])), Arg::DType(dtype)]);
            let (a, b) = (scale(&a), scale(&noise(&[k, n], DType::F32)));
            let want = want(&a, &b, m as usize, k as usize, n as usize);
            let tolerance = match dtype {
                // Of numbers up to 81, which cancel.
                DType::F32 => 5e-4,
                DType::BF16 => 1e-2,
                _ => 1e-12,
            };
            for (_, a) in layouts(&a) {
                for (_, b) in layouts(&b) {
                    assert_close(&run("matmul", &[t(&a), t(&b)]), &want, tolerance);
                }
            }
        }
    }
}

#[test]
fn copies_of_every_layout() {
    for dtype in [DType::U8, DType::F16, DType::F32, DType::I64] {
        let x = iota(&[37, 3, 70], dtype);
        for axes in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
            let seen = view(&x, Ok(x.layout().permute(&axes).unwrap()));
            let copy = run("contiguous", &[t(&seen)]);
            assert!(copy.is_contiguous() && same_bits(&copy, &seen), "{dtype} {axes:?}");
        }
    }
    let big = iota(&[600, 500], DType::F32);
    let turned = view(&big, Ok(big.layout().permute(&[1, 0]).unwrap()));
    assert!(same_bits(&run("contiguous", &[t(&turned)]), &turned));
}
