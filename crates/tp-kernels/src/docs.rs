//! What a built-in op says about itself: its row's words, or those that follow from the row's scalar expression.

use crate::ops;
use crate::register::{NAMESPACE, scalar_expr};
use crate::row::{Cpu, Row, Scalars};
use tp_dispatch::bind::{ParamKind, Params};
use tp_dispatch::{Result, Schema};
use tp_expr::ArgType;
use tp_tensor::DType;
use tp_tensor::dtype::Category;

const NUMBERS: &str =
    "A Python number counts by its kind alone: 2.5 leaves float16 as it is and makes int64 float32.";

/// What the op of this name (no namespace) computes, how its operands go together, and what comes out; None for a
/// name that no row has.
pub fn describe(name: &str) -> Option<String> {
    let row = ops::rows().find(|row| row.names().any(|n| n == name))?;
    let (scalars, in_place) = match row.cpu {
        Cpu::Pointwise(scalars) => (scalars, false),
        Cpu::InPlace(scalars) => (scalars, true),
        Cpu::Fn(_) | Cpu::Short(..) => return Some(row.doc.to_string()),
    };
    pointwise(row, &scalars, in_place).ok()
}

fn pointwise(row: &Row, scalars: &Scalars, in_place: bool) -> Result<String> {
    let schema = Schema::parse_definition(&format!("{NAMESPACE}::{}", row.schemas[0]))?;
    let params = Params::compile(&schema)?;
    let tensors: Vec<_> = params.all.iter().filter(|p| matches!(p.kind, ParamKind::Tensor)).collect();
    let first = &tensors[0].name;
    let mut said = vec![if in_place {
        format!("For each element: {}, written to {first}, which is returned.", scalars.expr)
    } else {
        format!("For each element: {}.", scalars.expr)
    }];
    if !row.doc.is_empty() {
        said.push(row.doc.into());
    }
    if tensors.len() > 1 {
        let how = if in_place {
            format!("The other operand broadcasts to {first}")
        } else {
            "The operands broadcast together".into()
        };
        said.push(format!("{how}; their dtypes promote."));
    }
    if row.schemas.iter().any(|s| s.contains("Scalar ")) {
        said.push(NUMBERS.into());
    }
    if in_place {
        said.push(format!("Shape and dtype: those of {first}; a result that does not fit is an error."));
    } else {
        let alone = tensors.len() == 1 && !row.schemas.iter().any(|s| s.contains("Scalar "));
        let shape = if tensors.len() == 1 { format!("that of {first}") } else { "the broadcast one".into() };
        let dtype = if alone { format!("that of {first}") } else { "the promoted one".into() };
        said.push(format!("Shape: {shape}. dtype: {}.", outcome(scalars, &params, &dtype)?));
    }
    Ok(said.join(" "))
}

/// The dtype of the result in words; `own` are those for an op that keeps it.
fn outcome(scalars: &Scalars, params: &Params, own: &str) -> Result<String> {
    let expr = scalar_expr(scalars, params)?;
    let of = |dtype: DType, category: Category| {
        let kinds = params.all.iter().filter_map(|p| match p.kind {
            ParamKind::Tensor => Some(ArgType::Tensor(dtype)),
            ParamKind::Scalar => Some(ArgType::Weak(category)),
            _ => None,
        });
        expr.output_dtype(&kinds.collect::<Vec<_>>()).ok()
    };
    Ok(match (of(DType::I64, Category::Int), of(DType::F16, Category::Float)) {
        (_, Some(DType::Bool)) => "bool".into(),
        (Some(_), None) => format!("{own}; ints and bool only"),
        (Some(DType::F32), Some(_)) => format!("{own}; float32 for ints and bool"),
        _ => own.into(),
    })
}
