//! Every pointwise op, in every combination of dtypes and in awkward layouts, against the definition: the
//! expression evaluated one element at a time.

mod common;

use common::*;
use smallvec::SmallVec;
use tp_dispatch::bind::ParamKind;
use tp_dispatch::{Arg, ErrorKind, OpHandle, Registry, call_one_giving};
use tp_expr::{ArgType, ExprError, eval};
use tp_tensor::{DType, Scalar, Tensor};

/// Includes what rounding, casts and comparisons get wrong.
const VALUES: [f64; 24] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    3.0,
    7.0,
    -7.0,
    100.25,
    1e30,
    -1e30,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    1e-40,
    127.0,
    128.0,
    255.0,
    -129.0,
    65504.0,
    2147483648.0,
    0.3333,
    20.0,
];

fn operand(dtype: DType, shift: usize) -> Tensor {
    let at = |i: usize| VALUES[(i * (2 * shift + 1) + shift) % VALUES.len()];
    tensor(&[2, 3, 4], dtype, &(0..24).map(at).collect::<Vec<_>>())
}

fn pointwise_ops() -> Vec<OpHandle> {
    setup();
    let all = Registry::global().list(Some("tp"));
    all.into_iter().filter(|op| op.def().is_some_and(|d| d.pointwise.is_some())).collect()
}

/// What the expression gives, element by element, or why it gives nothing.
fn defined(op: OpHandle, args: &[Arg<'_>]) -> Result<(DType, Vec<u64>), ExprError> {
    let expr = op.def().unwrap().pointwise.clone().unwrap();
    let types: Vec<ArgType> = args
        .iter()
        .map(|a| match a {
            Arg::Tensor(t) => ArgType::Tensor(t.dtype()),
            other => ArgType::Weak(other.scalar().unwrap().category()),
        })
        .collect();
    let program = expr.program(&types)?;
    let dtype = program.output_dtypes().next().unwrap();
    assert_eq!(dtype, expr.output_dtype(&types)?, "{op}");
    let columns: Vec<Vec<u64>> = args
        .iter()
        .zip(program.inputs())
        .map(|(a, &dtype)| match a {
            Arg::Tensor(t) => bits(t),
            other => vec![other.scalar().unwrap().to_bits(dtype)],
        })
        .collect();
    let n = columns.iter().map(Vec::len).max().unwrap();
    let mut out = Vec::new();
    for i in 0..n {
        let inputs: SmallVec<[u64; 4]> = columns.iter().map(|c| c[i % c.len()]).collect();
        out.push(eval::eval(&program, &inputs)?[0]);
    }
    Ok((dtype, out))
}

fn check(op: OpHandle, args: &[Arg<'_>], note: &str) {
    let got = call(op.name().trim_start_matches("tp::"), args);
    match (defined(op, args), got) {
        (Ok((dtype, want)), Ok(got)) => {
            assert_eq!(got.dtype(), dtype, "{op} {args:?}");
            assert!(got.is_contiguous(), "{op} {args:?}");
            let wanted = tensor_of_bits(got.sizes(), dtype, &want);
            assert!(
                same_bits(&got, &wanted),
                "{op} {note} {args:?}: {:?} != {:?}",
                values(&got),
                values(&wanted)
            );
        }
        (Err(ExprError::DivisionByZero), Err(e)) => {
            assert_eq!((e.kind(), e.op()), (ErrorKind::DivisionByZero, Some(op.name())));
        }
        (Err(_), Err(e)) => assert_eq!((e.kind(), e.op()), (ErrorKind::DType, Some(op.name())), "{e:?}"),
        (want, got) => panic!("{op} {note} {args:?}: {want:?} but {got:?}"),
    }
}

fn tensor_of_bits(sizes: &[i64], dtype: DType, bits: &[u64]) -> Tensor {
    let out = Tensor::empty(sizes, dtype, tp_tensor::Device::CPU).unwrap();
    assert_eq!(out.numel() as usize, bits.len());
    tp_tensor::dispatch_dtype!(dtype, T => for (i, &b) in bits.iter().enumerate() {
        unsafe { out.data_ptr().cast::<T>().add(i).write(<T as tp_tensor::scalar::Element>::from_bits64(b)) };
    });
    out
}

const NUMBERS: [Scalar; 5] =
    [Scalar::Bool(true), Scalar::Int(3), Scalar::Int(-2), Scalar::Float(2.5), Scalar::Float(f64::NAN)];

#[test]
fn every_op_and_dtype_is_its_expression() {
    for op in pointwise_ops() {
        let def = op.def().unwrap();
        let kinds: Vec<ParamKind> = def.params.all.iter().map(|p| p.kind).collect();
        let tensors: Vec<usize> = (0..kinds.len()).filter(|&i| kinds[i] == ParamKind::Tensor).collect();
        let combinations = DType::COUNT.pow(tensors.len().min(2) as u32);
        for combination in 0..combinations {
            // A third tensor takes the dtype of the second.
            let dtype = |k: usize| DType::ALL[combination / DType::COUNT.pow(k.min(1) as u32) % DType::COUNT];
            let made: Vec<Tensor> = (0..tensors.len()).map(|k| operand(dtype(k), k)).collect();
            let unsigned = made.iter().any(|t| t.dtype() == DType::U8);
            for number in NUMBERS {
                // Numbers that a dtype cannot hold are refused or compared exactly before an expression sees them.
                let number = if unsigned && number == Scalar::Int(-2) { Scalar::Int(2) } else { number };
                let mut next = made.iter();
                let args: Vec<Arg<'_>> = kinds
                    .iter()
                    .map(|k| {
                        if *k == ParamKind::Tensor {
                            Arg::Tensor(next.next().unwrap())
                        } else {
                            Arg::Scalar(number)
                        }
                    })
                    .collect();
                check(op, &args, "contiguous");
                if tensors.len() == kinds.len() {
                    break;
                }
            }
        }
    }
}

#[test]
fn layouts_do_not_matter() {
    for name in ["add", "mul", "div", "neg", "where", "clamp.Tensor", "gelu", "eq", "exp"] {
        setup();
        let op = Registry::global().lookup(&format!("tp::{name}")).unwrap();
        let n = op.def().unwrap().params.len();
        for dtype in [DType::F32, DType::F16, DType::I16, DType::F64] {
            let made: Vec<Tensor> = (0..n).map(|k| operand(dtype, k)).collect();
            let variants: Vec<_> = made.iter().map(layouts).collect();
            for turn in 0..variants[0].len() {
                let picked: Vec<&(&str, Tensor)> =
                    variants.iter().enumerate().map(|(k, v)| &v[(turn + k) % v.len()]).collect();
                let args: Vec<Arg<'_>> = picked.iter().map(|(_, x)| Arg::Tensor(x)).collect();
                check(op, &args, picked[0].0);
            }
        }
    }
}

#[test]
fn broadcasting_zero_sizes_and_many_dimensions() {
    let x = f32s(&[3, 1], &[1., 2., 3.]);
    let y = f32s(&[1, 4], &[10., 20., 30., 40.]);
    let out = run("add", &[t(&x), t(&y)]);
    assert_eq!((out.sizes(), out.strides()), (&[3, 4][..], &[4, 1][..]));
    assert_eq!(values(&out), [11., 21., 31., 41., 12., 22., 32., 42., 13., 23., 33., 43.]);
    let wide = view(&x, Ok(x.layout().expand(&[2, 3, 4]).unwrap()));
    assert_eq!(values(&run("neg", &[t(&wide)]))[..5], [-1., -1., -1., -1., -2.]);
    let none = f32s(&[2, 0, 3], &[]);
    for name in ["add", "mul", "eq"] {
        assert_eq!(run(name, &[t(&none), t(&none)]).sizes(), [2, 0, 3]);
    }
    let number = f32s(&[], &[2.]);
    let out = run("mul", &[t(&number), t(&number)]);
    assert_eq!((out.ndim(), values(&out)), (0, vec![4.]));
    let deep = iota(&[2, 1, 3, 1, 2], DType::F32);
    let turned = view(&deep, Ok(deep.layout().permute(&[4, 3, 2, 1, 0]).unwrap()));
    let out = run("add", &[t(&turned), t(&iota(&[2, 3, 1, 2], DType::F32))]);
    assert_eq!(out.sizes(), [2, 2, 3, 1, 2]);
    assert_eq!(values(&out)[..6], [0., 7., 4., 11., 8., 15.]);
}

#[test]
fn small_and_large_calls_give_the_same_bits() {
    // 1024 elements go the short way, 1025 and a million do not.
    for name in ["add", "sub", "mul", "div"] {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::I64] {
            let of = |n: i64, scale: f64| {
                let v: Vec<f64> = (0..n).map(|i| (i % 1021) as f64 * scale + 1.0).collect();
                tensor(&[n], dtype, &v)
            };
            let (small, large) = ((of(1024, 0.37), of(1024, 1.7)), (of(200_000, 0.37), of(200_000, 1.7)));
            let a = run(name, &[t(&small.0), t(&small.1)]);
            let b = run(name, &[t(&large.0), t(&large.1)]);
            assert_eq!(bits(&a)[..1021], bits(&b)[..1021], "{name} {dtype}");
            let a = run(&format!("{name}.Scalar"), &[t(&small.0), int(3)]);
            let b = run(&format!("{name}.Scalar"), &[t(&large.0), int(3)]);
            assert_eq!(bits(&a)[..1021], bits(&b)[..1021], "{name} {dtype}");
            let a = run(&format!("{name}.ScalarLeft"), &[int(3), t(&small.0)]);
            let b = run(&format!("{name}.ScalarLeft"), &[int(3), t(&large.0)]);
            assert_eq!(bits(&a)[..1021], bits(&b)[..1021], "{name} {dtype}");
        }
    }
}

#[test]
fn a_result_in_place_of_its_operand_has_the_same_bits() {
    setup();
    let mut in_place = 0;
    for (name, second) in
        [("add", None), ("sub", None), ("mul", None), ("div", None), ("mul.Scalar", Some(3.5))]
    {
        for dtype in [DType::F32, DType::F64, DType::I32] {
            for n in [0, 1, 8, 1024, 1025] {
                let v: Vec<f64> = (0..n).map(|i| f64::from(i) * 0.37 + 1.0).collect();
                let made = || tensor(&[i64::from(n)], dtype, &v);
                let (other, op) = (made(), Registry::global().lookup(&format!("tp::{name}")).unwrap());
                let second = second.map_or(t(&other), |s| Arg::Scalar(Scalar::Float(s)));
                let want = bits(&run(name, &[t(&made()), second]));
                let mut given = Some(made());
                let address = given.as_ref().map(Tensor::data_ptr);
                let out = call_one_giving(op, &mut given, second).unwrap();
                assert_eq!(bits(&out), want, "{name} {dtype} {n}");
                assert_eq!(given.is_none(), Some(out.data_ptr()) == address, "{name} {dtype} {n}");
                in_place += u32::from(given.is_none());
                // A second handle sees the memory, and so does another header over it.
                let mut shared = Some(made());
                let (handle, before) = (shared.clone().unwrap(), bits(&made()));
                assert_eq!(bits(&call_one_giving(op, &mut shared, second).unwrap()), want);
                assert_eq!(bits(&handle), before);
                let mut viewed = Some(made());
                let view = viewed.as_ref().unwrap().detach();
                assert_eq!(bits(&call_one_giving(op, &mut viewed, second).unwrap()), want);
                assert_eq!(bits(&view), before);
            }
        }
    }
    // All sizes but the largest, in both floats; integers but for division and the float number.
    assert_eq!(in_place, 4 * (5 + 5 + 3));
}
