//! Calls for every row: tensors of many shapes and layouts, with good and bad further arguments.

use crate::Args;
use crate::common::*;
use tp_dispatch::bind::ParamKind;
use tp_dispatch::{OpHandle, Value};
use tp_tensor::{DType, Scalar, Tensor};

fn shapes() -> Vec<Vec<i64>> {
    vec![
        vec![],
        vec![1],
        vec![4],
        vec![0],
        vec![2, 3],
        vec![3, 1],
        vec![2, 0, 3],
        vec![2, 3, 4],
        vec![2, 1, 2, 1, 3],
    ]
}

/// Tensors of every shape in every layout.
fn samples(dtype: DType) -> Vec<Tensor> {
    shapes().iter().flat_map(|s| layouts(&iota(s, dtype))).map(|(_, x)| x).collect()
}

fn ints(v: &[i64]) -> Value {
    Value::Ints(v.into())
}

fn index(sizes: &[i64], values: &[f64]) -> Value {
    Value::Tensor(i64s(sizes, values))
}

fn axes() -> Vec<Value> {
    vec![Value::None, ints(&[0]), ints(&[-1]), ints(&[0, 1]), ints(&[1, 1]), ints(&[7]), ints(&[])]
}

/// For each sample, the given further arguments.
fn with(dtypes: &[DType], rest: &[Args]) -> Vec<Args> {
    let mut out = Vec::new();
    for &dtype in dtypes {
        for x in samples(dtype) {
            for r in rest {
                out.push(std::iter::once(Value::Tensor(x.clone())).chain(r.iter().cloned()).collect());
            }
        }
    }
    out
}

fn pointwise(op: OpHandle) -> Vec<Args> {
    let params = op.def().unwrap().params.clone();
    let mut out = Vec::new();
    for (a, b) in [
        (DType::F32, DType::F32),
        (DType::I8, DType::U8),
        (DType::Bool, DType::F16),
        (DType::I64, DType::Bool),
    ] {
        for x in samples(a) {
            for other in [x.sizes().to_vec(), vec![], vec![3], vec![2, 1]] {
                let y = iota(&other, b);
                let mut first = true;
                out.push(
                    params
                        .all
                        .iter()
                        .map(|p| match p.kind {
                            ParamKind::Tensor if std::mem::take(&mut first) => Value::Tensor(x.clone()),
                            ParamKind::Tensor => Value::Tensor(y.clone()),
                            _ => Value::Scalar(Scalar::Int(2)),
                        })
                        .collect(),
                );
            }
        }
    }
    out
}

const SOME: [DType; 5] = [DType::F32, DType::BF16, DType::I16, DType::Bool, DType::F64];

fn reduction(name: &str) -> Vec<Args> {
    let keep = [Value::Bool(false), Value::Bool(true)];
    let mut rest = Vec::new();
    for axis in axes() {
        for k in &keep {
            match name {
                "sum" | "prod" => {
                    for d in [Value::None, Value::DType(DType::F32), Value::DType(DType::I8)] {
                        rest.push(vec![axis.clone(), d, k.clone()]);
                    }
                }
                "var" | "std" => rest.push(vec![axis.clone(), Value::Scalar(Scalar::Float(1.0)), k.clone()]),
                _ => rest.push(vec![axis.clone(), k.clone()]),
            }
        }
    }
    with(&SOME, &rest)
}

fn axis_rest() -> Vec<Args> {
    [0, 1, -1, 5].into_iter().map(|a| vec![Value::Int(a)]).collect()
}

fn movement(name: &str) -> Vec<Args> {
    let rest: Vec<Args> = match name {
        "reshape" | "view" => [&[-1][..], &[2, -1], &[3, 2], &[0, 3], &[1, 6, 1], &[4, -1, -1], &[24]]
            .map(|s| vec![ints(s)])
            .into(),
        "expand" => [&[2, 3][..], &[5, 2, 3, 4], &[-1], &[3, -1, 4], &[2, 0, 3], &[7, 1]]
            .map(|s| vec![ints(s)])
            .into(),
        "squeeze" | "flip" => axes().into_iter().map(|a| vec![a]).collect(),
        "unsqueeze" => axis_rest(),
        "permute_dims" => [&[][..], &[0], &[1, 0], &[2, 0, 1], &[0, 0]].map(|s| vec![ints(s)]).into(),
        "transpose" => vec![vec![Value::Int(0), Value::Int(-1)], vec![Value::Int(1), Value::Int(2)]],
        "slice" => [
            (None, None, 1),
            (Some(1), None, 1),
            (Some(-2), Some(9), 2),
            (Some(3), Some(1), 1),
            (None, None, 0),
        ]
        .into_iter()
        .flat_map(|(a, b, s)| {
            let bound = |v: Option<i64>| v.map_or(Value::None, Value::Int);
            [0, -1].map(|axis| vec![Value::Int(axis), bound(a), bound(b), Value::Int(s)])
        })
        .collect(),
        "select" => [(0, 0), (-1, -1), (0, 9)].map(|(a, i)| vec![Value::Int(a), Value::Int(i)]).into(),
        "roll" => vec![
            vec![ints(&[1]), Value::None],
            vec![ints(&[2]), ints(&[-1])],
            vec![ints(&[1, -1]), ints(&[0, 1])],
            vec![ints(&[1, 2, 3]), ints(&[0, 1])],
        ],
        "tril" | "triu" => [0, 1, -2].map(|k| vec![Value::Int(k)]).into(),
        _ => vec![vec![]],
    };
    with(&[DType::F32, DType::I64], &rest)
}

fn joins(name: &str) -> Vec<Args> {
    let mut out = Vec::new();
    for x in samples(DType::F32) {
        for other in [x.clone(), iota(x.sizes(), DType::F64), iota(&[2, 3], DType::I8)] {
            for axis in [Value::Int(0), Value::Int(-1), Value::Int(1), Value::None] {
                if name == "concat" || !matches!(axis, Value::None) {
                    out.push(vec![Value::Tensors([x.clone(), other.clone()].into()), axis]);
                }
            }
        }
    }
    out.push(vec![Value::Tensors(Box::default()), Value::Int(0)]);
    out
}

fn products() -> Vec<Args> {
    let mut out = Vec::new();
    for (a, b) in [
        (DType::F32, DType::F32),
        (DType::I8, DType::U8),
        (DType::F16, DType::BF16),
        (DType::Bool, DType::Bool),
    ] {
        for x in samples(a) {
            for y in [vec![3], vec![3, 2], vec![4, 4], vec![2, 4, 3], vec![0], vec![1, 3, 1]] {
                for (_, y) in layouts(&iota(&y, b)) {
                    out.push(vec![Value::Tensor(x.clone()), Value::Tensor(y)]);
                }
            }
        }
    }
    out
}

fn indexing(name: &str) -> Vec<Args> {
    let at = [
        index(&[2], &[0., -1.]),
        index(&[], &[0.]),
        index(&[1, 2], &[0., 0.]),
        Value::Tensor(f32s(&[1], &[0.])),
    ];
    let axis = [Value::Int(0), Value::Int(-1), Value::Int(4)];
    let source = Value::Tensor(iota(&[2, 2], DType::F32));
    let mut rest = Vec::new();
    for i in &at {
        for a in &axis {
            rest.push(match name {
                "take" | "take_along_axis" => vec![i.clone(), a.clone()],
                "index_select" | "gather" => vec![a.clone(), i.clone()],
                _ => vec![a.clone(), i.clone(), source.clone()],
            });
        }
    }
    if name == "take" {
        rest.push(vec![index(&[2], &[0., 0.]), Value::None]);
    }
    if name == "take_along_axis" {
        // Also of the right rank.
        rest.push(vec![index(&[2, 1], &[0., 0.]), Value::Int(1)]);
        rest.push(vec![index(&[2, 1, 1], &[0., 0.]), Value::Int(0)]);
    }
    if matches!(name, "gather" | "scatter_add") {
        let wide = index(&[2, 2], &[0.; 4]);
        rest.push(if name == "gather" {
            vec![Value::Int(1), wide]
        } else {
            vec![Value::Int(1), wide, source]
        });
    }
    if name.starts_with("index") && (name == "index" || name.starts_with("index_put")) {
        let list = |v: Vec<Option<Value>>| {
            Value::OptTensors(v.into_iter().map(|o| o.and_then(Value::into_tensor)).collect())
        };
        let two = || Some(index(&[2], &[0., 0.]));
        let lists = [
            list(vec![two()]),
            list(vec![None, two()]),
            list(vec![two(), two()]),
            list(vec![two(), None, Some(index(&[2, 1], &[0., 0.]))]),
            list(vec![]),
        ];
        let values = Value::Tensor(f32s(&[], &[1.]));
        rest = lists
            .iter()
            .map(|l| if name == "index" { vec![l.clone()] } else { vec![l.clone(), values.clone()] })
            .collect();
    }
    // An empty axis refuses every index when the kernel runs, which only the data tells.
    let full = |args: &Args| args[0].tensor().is_some_and(|x| x.numel() > 0);
    with(&[DType::F32], &rest).into_iter().filter(full).collect()
}

fn creations(name: &str) -> Vec<Args> {
    let dtypes = || [Value::None, Value::DType(DType::F16), Value::DType(DType::I32)];
    let mut out: Vec<Args> = Vec::new();
    let (number, float) = (Value::Scalar(Scalar::Int(3)), Value::Scalar(Scalar::Float(0.5)));
    for d in dtypes() {
        for s in [&[][..], &[2, 3], &[0, 2], &[-1]] {
            let s = ints(s);
            out.extend(match name {
                "empty" | "zeros" | "ones" => vec![vec![s, d.clone()]],
                "full" => vec![vec![s.clone(), number.clone(), d.clone()], vec![s, float.clone(), d.clone()]],
                "normal" | "uniform" => vec![vec![s, Value::Float(0.0), Value::Float(1.0), d.clone()]],
                "randint" => vec![vec![Value::Int(0), Value::Int(5), s, d.clone()]],
                _ => vec![],
            });
        }
        match name {
            "empty_strided" => {
                out.push(vec![ints(&[2, 3]), ints(&[1, 2]), d.clone()]);
                out.push(vec![ints(&[2, 3]), ints(&[-1, 2]), d.clone()]);
                out.push(vec![ints(&[2]), ints(&[1, 2]), d.clone()]);
            }
            "arange" => {
                out.push(vec![number.clone(), Value::None, Value::Scalar(Scalar::Int(1)), d.clone()]);
                out.push(vec![
                    number.clone(),
                    Value::Scalar(Scalar::Int(-4)),
                    Value::Scalar(Scalar::Int(-2)),
                    d.clone(),
                ]);
                out.push(vec![float.clone(), number.clone(), float.clone(), d.clone()]);
                out.push(vec![float.clone(), number.clone(), Value::Scalar(Scalar::Int(0)), d]);
            }
            "linspace" => out.push(vec![number.clone(), float.clone(), Value::Int(5), d]),
            "eye" => out.push(vec![Value::Int(2), Value::None, Value::Int(1), d]),
            "empty_like" | "zeros_like" | "ones_like" => out.extend(with(&[DType::I8], &[vec![d]])),
            "full_like" => out.extend(with(&[DType::I8], &[vec![float.clone(), d]])),
            "new_empty" | "new_zeros" => out.extend(with(&[DType::I8], &[vec![ints(&[2, 2]), d]])),
            _ => {}
        }
    }
    out
}

fn writes(op: OpHandle, name: &str) -> Vec<Args> {
    match name {
        "fill_" => with(&[DType::F32], &[vec![Value::Scalar(Scalar::Int(2))]]),
        "zero_" => with(&SOME, &[vec![]]),
        "copy_" => with(
            &SOME,
            &[vec![Value::Tensor(f32s(&[], &[1.]))], vec![Value::Tensor(iota(&[2, 3], DType::I8))]],
        ),
        _ if op.name().ends_with(".Scalar") => {
            with(&[DType::F32, DType::I16], &[vec![Value::Scalar(Scalar::Int(2))]])
        }
        _ => with(
            &[DType::F32, DType::I16],
            &[
                vec![Value::Tensor(i64s(&[1], &[1.]))],
                vec![Value::Tensor(tensor(&[2, 3], DType::I8, &[1.; 6]))],
            ],
        ),
    }
}

/// Argument lists for an op: good ones and bad ones.
pub fn cases(op: OpHandle) -> Vec<Args> {
    let def = op.def().unwrap();
    let full = op.name().trim_start_matches("tp::");
    let name = full.split('.').next().unwrap();
    if def.pointwise.is_some() {
        return pointwise(op);
    }
    if name.ends_with('_') && !name.starts_with("index_put") {
        return writes(op, name);
    }
    match name {
        "astype" => with(&SOME, &[vec![Value::DType(DType::I8)], vec![Value::DType(DType::F32)]]),
        "sum" | "prod" | "mean" | "max" | "min" | "any" | "all" | "var" | "std" | "logsumexp" => {
            reduction(name)
        }
        "argmax" | "argmin" => {
            let axis = [Value::None, Value::Int(0), Value::Int(-1), Value::Int(5)];
            with(&SOME, &axis.map(|a| vec![a, Value::Bool(true)]))
        }
        "cumsum" | "softmax" | "log_softmax" => with(&SOME, &axis_rest()),
        "softmax_backward" | "log_softmax_backward" => {
            let both = |x: Tensor| vec![Value::Tensor(x.clone()), Value::Tensor(x), Value::Int(-1)];
            samples(DType::F16).into_iter().map(both).collect()
        }
        "sum_to_size" => with(
            &SOME,
            &[vec![ints(&[])], vec![ints(&[3])], vec![ints(&[2, 1])], vec![ints(&[1, 1, 1, 1, 1, 1])]],
        ),
        "argsort" => with(&SOME, &axis_rest()),
        "searchsorted" => with(&SOME, &[vec![Value::Tensor(f32s(&[2, 1], &[0.5, 2.0]))]]),
        "matmul" => products(),
        "concat" | "stack" => joins(name),
        "count_backward" => vec![vec![Value::Int(3), Value::None, Value::None]],
        "slice_backward" => vec![vec![
            Value::Tensor(iota(&[2, 1], DType::F32)),
            ints(&[2, 3]),
            Value::Int(1),
            Value::Int(1),
            Value::Int(2),
            Value::Int(1),
        ]],
        "select_backward" => {
            vec![vec![Value::Tensor(iota(&[3], DType::F32)), ints(&[2, 3]), Value::Int(0), Value::Int(1)]]
        }
        "view_inside_backward" | "view_outside_backward" => [(vec![3, 1], 1), (vec![1, 2], 0)]
            .into_iter()
            .map(|(base, offset)| {
                let shape = ints(&[2]);
                vec![
                    Value::Tensor(iota(&[2, 3], DType::F32)),
                    ints(&base),
                    shape,
                    ints(&[2]),
                    Value::Int(offset),
                ]
            })
            .collect(),
        "view_backward" => vec![vec![
            Value::Tensor(iota(&[2], DType::F32)),
            ints(&[2, 3]),
            ints(&[1, 2]),
            ints(&[2]),
            Value::Int(1),
        ]],
        "take" | "index_select" | "gather" | "take_along_axis" | "scatter_add" | "index_add" | "index"
        | "index_put" | "index_put_" => indexing(name),
        _ if def.params.all.first().is_some_and(|p| p.kind != ParamKind::Tensor) => creations(name),
        "empty_like" | "zeros_like" | "ones_like" | "full_like" | "new_empty" | "new_zeros" => {
            creations(name)
        }
        _ => movement(name),
    }
}
