//! From operands to arguments: which literal fills which kind of parameter. The graph holds literals without their
//! kind (`2` may be an int or a weak number); the schema of the op decides, here and nowhere else.

use crate::entity::ValueId;
use crate::ir::{Const, Operand};
use tp_dispatch::Value;
use tp_dispatch::bind::{Param, ParamKind};
use tp_tensor::{Scalar, symbols};

/// What an argument is taken from when the node runs.
#[derive(Clone, Debug)]
pub enum ArgSource {
    Value(ValueId),
    Values(Box<[ValueId]>),
    Optional(Box<[Option<ValueId>]>),
    Literal(Value),
}

/// Fits an operand to its parameter, or says what was expected.
pub fn source(operand: &Operand, param: &Param) -> Result<ArgSource, String> {
    let literal = |v: Option<Value>| v.map(ArgSource::Literal).ok_or_else(|| mismatch(operand, param));
    match (operand, param.kind) {
        (Operand::Const(Const::None), _) if param.optional => literal(Some(Value::None)),
        (Operand::Value(v), ParamKind::Tensor | ParamKind::Opaque) => Ok(ArgSource::Value(*v)),
        (Operand::List(items), ParamKind::Tensors) => {
            let values = items.iter().map(Operand::value).collect::<Option<_>>();
            values.map(ArgSource::Values).ok_or_else(|| mismatch(operand, param))
        }
        (Operand::List(items), ParamKind::OptTensors) => {
            let item = |o: &Operand| match o {
                Operand::Value(v) => Some(Some(*v)),
                Operand::Const(Const::None) => Some(None),
                _ => None,
            };
            let values = items.iter().map(item).collect::<Option<_>>();
            values.map(ArgSource::Optional).ok_or_else(|| mismatch(operand, param))
        }
        // One number fills a list of a declared size.
        (Operand::Const(c @ (Const::Int(_) | Const::Size(_))), ParamKind::Ints) => {
            let all = |n: u32| Some(Value::Ints(vec![int(c)?; n as usize].into()));
            literal(param.list_size.and_then(all))
        }
        (Operand::Const(c), kind) => literal(constant(c, kind)),
        (Operand::List(items), kind) => literal(list(items, kind)),
        (Operand::Value(_), _) => Err(mismatch(operand, param)),
    }
}

fn mismatch(operand: &Operand, param: &Param) -> String {
    format!("argument '{}' must be {}, got {operand}", param.name, param.type_text)
}

fn constant(c: &Const, kind: ParamKind) -> Option<Value> {
    use ParamKind as K;
    Some(match (c, kind) {
        (_, K::Scalar) => Value::Scalar(c.scalar()?),
        (Const::Int(_) | Const::Size(_), K::Int) => Value::Int(int(c)?),
        (Const::Bool(v), K::Int) => Value::Int(i64::from(*v)),
        (Const::Float(v), K::Float) => Value::Float(*v),
        (Const::Int(v), K::Float) => Value::Float(*v as f64),
        (Const::Bool(v), K::Bool) => Value::Bool(*v),
        (Const::Str(s), K::Str) => Value::Str((&**s).into()),
        (Const::DType(d), K::DType) => Value::DType(*d),
        (Const::Device(d), K::Device) => Value::Device(*d),
        (_, K::Opaque) => int(c).map_or_else(|| c.value(), Value::Int),
        _ => return None,
    })
}

impl Const {
    /// The literal as a value of its own, for who knows of no declared kind.
    pub fn value(&self) -> Value {
        match self {
            Const::None => Value::None,
            Const::Bool(v) => Value::Bool(*v),
            Const::Int(v) => Value::Int(*v),
            Const::Size(v) => Value::Int(v.raw()),
            Const::Float(v) => Value::Float(*v),
            Const::Str(s) => Value::Str((&**s).into()),
            Const::DType(d) => Value::DType(*d),
            Const::Device(d) => Value::Device(*d),
        }
    }
}

/// An int as arguments hold it while the table of the graph is in force.
fn int(c: &Const) -> Option<i64> {
    match c {
        Const::Int(v) => Some(symbols::plain(*v)),
        Const::Size(v) => Some(v.raw()),
        _ => None,
    }
}

fn list(items: &[Operand], kind: ParamKind) -> Option<Value> {
    let scalars = items.iter().map(|o| if let Operand::Const(c) = o { c.scalar() } else { None });
    match kind {
        ParamKind::Ints => {
            let one = |o: &Operand| if let Operand::Const(c) = o { int(c) } else { None };
            Some(Value::Ints(items.iter().map(one).collect::<Option<_>>()?))
        }
        ParamKind::Floats => {
            Some(Value::Floats(scalars.map(|s| s.map(|s| s.to::<f64>())).collect::<Option<_>>()?))
        }
        ParamKind::Bools => {
            let truth = |s: Option<Scalar>| if let Some(Scalar::Bool(v)) = s { Some(v) } else { None };
            Some(Value::Bools(scalars.map(truth).collect::<Option<_>>()?))
        }
        ParamKind::Scalars => Some(Value::Scalars(scalars.collect::<Option<_>>()?)),
        _ => None,
    }
}
