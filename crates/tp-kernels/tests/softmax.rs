//! Softmax and its relatives over rows of every length: beside the definition in float64, and each row by itself.

mod common;

use common::*;
use tp_dispatch::Arg;
use tp_tensor::{DType, Device, Layout, Tensor};

const OPS: [&str; 2] = ["softmax", "log_softmax"];

/// Numbers without a pattern, in [-8, 8).
fn noise(sizes: &[i64], dtype: DType, seed: u32) -> Tensor {
    let n: i64 = sizes.iter().product();
    let word = |i: i64| tp_kernels::random::philox([i as u32, seed, 2, 3], [4, 5])[0];
    tensor(
        sizes,
        dtype,
        &(0..n).map(|i| f64::from(word(i)) / f64::from(1u32 << 28) - 8.0).collect::<Vec<_>>(),
    )
}

fn defined(op: &str, row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = row.iter().map(|v| (v - largest).exp()).sum();
    let value = |v: &f64| match op {
        "softmax" => (v - largest).exp() / total,
        _ => v - largest - total.ln(),
    };
    row.iter().map(value).collect()
}

/// The gradient where the forward gave `y`.
fn defined_backward(op: &str, grad: &[f64], y: &[f64]) -> Vec<f64> {
    let total: f64 = match op {
        "softmax" => grad.iter().zip(y).map(|(g, y)| g * y).sum(),
        _ => grad.iter().sum(),
    };
    let value = |(g, y): (&f64, &f64)| match op {
        "softmax" => y * (g - total),
        _ => g - y.exp() * total,
    };
    grad.iter().zip(y).map(value).collect()
}

fn row_of(x: &Tensor, i: i64) -> Tensor {
    let n = x.sizes()[1];
    let layout =
        Layout { sizes: [1, n].into_iter().collect(), strides: [n, 1].into_iter().collect(), offset: i * n };
    x.view(&layout).unwrap()
}

#[test]
fn rows_of_any_length_and_number_have_the_values_of_the_definition() {
    for dtype in [DType::F32, DType::F64] {
        let tolerance = if dtype == DType::F32 { 2e-6 } else { 1e-13 };
        for n in [1, 2, 3, 7, 8, 10, 31, 63, 64, 65, 130, 4097] {
            for rows in [1, 3, 4, 15, 16, 17, 37] {
                let (x, grad) = (noise(&[rows, n], dtype, 0), noise(&[rows, n], dtype, 1));
                for op in OPS {
                    let y = run(op, &[t(&x)]);
                    let want: Vec<f64> =
                        values(&x).chunks(n as usize).flat_map(|row| defined(op, row)).collect();
                    assert_close(&y, &want, tolerance * 2.0);
                    let back = run(&format!("{op}_backward"), &[t(&grad), t(&y), int(1)]);
                    let (g, y) = (values(&grad), values(&y));
                    let pairs = g.chunks(n as usize).zip(y.chunks(n as usize));
                    let want: Vec<f64> = pairs.flat_map(|(g, y)| defined_backward(op, g, y)).collect();
                    assert_close(&back, &want, tolerance * 64.0);
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    for dtype in [DType::F32, DType::F64] {
        for n in [1, 2, 9, 10, 33, 64, 65] {
            let (x, grad) = (noise(&[37, n], dtype, 2), noise(&[37, n], dtype, 3));
            for op in OPS {
                let y = run(op, &[t(&x)]);
                let backward = format!("{op}_backward");
                let back = run(&backward, &[t(&grad), t(&y), int(1)]);
                for i in 0..37 {
                    assert!(same_bits(&run(op, &[t(&row_of(&x, i))]), &row_of(&y, i)), "{op} {n} {i}");
                    let alone = run(&backward, &[t(&row_of(&grad, i)), t(&row_of(&y, i)), int(1)]);
                    assert!(same_bits(&alone, &row_of(&back, i)), "{backward} {n} {i}");
                }
            }
        }
    }
}

#[test]
fn nan_and_infinities_stay_in_their_row() {
    for (n, rows) in [(3i64, 20i64), (10, 2), (64, 33), (200, 5)] {
        let plain = noise(&[rows, n], DType::F32, 4);
        for (special, all) in [(f64::NAN, false), (f64::INFINITY, false), (f64::NEG_INFINITY, true)] {
            let mut v = values(&plain);
            let row = &mut v[n as usize..2 * n as usize];
            if all {
                row.fill(special)
            } else {
                row[n as usize / 2] = special
            };
            let x = f32s(&[rows, n], &v);
            for op in OPS {
                let (y, clean) = (run(op, &[t(&x)]), run(op, &[t(&plain)]));
                // The definition has a NaN everywhere but, for the logarithm, below an infinity.
                let got = values(&row_of(&y, 1));
                let below = op == "log_softmax" && special == f64::INFINITY;
                assert!(got.iter().all(|v| v.is_nan() || below && *v == f64::NEG_INFINITY), "{op} {got:?}");
                for i in (0..rows).filter(|&i| i != 1) {
                    assert!(same_bits(&row_of(&y, i), &row_of(&clean, i)), "{op} {special} {i}");
                }
            }
        }
        let mut v = values(&plain);
        v[0] = f64::NEG_INFINITY;
        let y = values(&run("softmax", &[t(&f32s(&[rows, n], &v))]));
        assert!(y[0] == 0.0 && (y[..n as usize].iter().sum::<f64>() - 1.0).abs() < 1e-5);
    }
    for sizes in [[0, 10], [10, 0], [0, 0]] {
        let x = f32s(&sizes, &[]);
        for op in OPS {
            assert_eq!(run(op, &[t(&x)]).sizes(), sizes);
        }
    }
}

#[test]
fn what_is_larger_than_the_caches_has_the_bits_of_its_parts() {
    let (rows, n) = (2050, 4100);
    let word = noise(&[1, n], DType::F32, 5);
    let x = run("mul", &[t(&iota(&[rows, 1], DType::F32)), t(&word)]);
    assert!(x.numel() as usize * 4 >= tp_expr::stream::STREAM_BYTES);
    for op in OPS {
        let y = run(op, &[t(&x)]);
        for i in [0, 1, 1023, 1024, rows - 1] {
            assert!(same_bits(&run(op, &[t(&row_of(&x, i))]), &row_of(&y, i)), "{op} {i}");
        }
    }
    let twice = run("mul", &[t(&x), Arg::Scalar(tp_tensor::Scalar::Float(2.0))]);
    for i in [0, 7, rows - 1] {
        let alone = run("add", &[t(&row_of(&x, i)), t(&row_of(&x, i))]);
        assert!(same_bits(&alone, &row_of(&twice, i)));
    }
    assert_eq!(twice.device(), Device::CPU);
}
