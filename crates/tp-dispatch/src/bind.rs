//! A schema compiled for binding: per argument its kind, whether it may be None, and its default as a value. The
//! door converts host objects by these kinds; the same table serves calls from Rust.

use crate::error::{Error, Result};
use crate::schema::{ArgType, Argument, DefaultValue, Schema};
use crate::value::{Arg, Value};
use smallvec::SmallVec;
use tp_tensor::{DType, Device, Scalar};

/// What a host object must be to fill an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParamKind {
    Tensor,
    Tensors,
    OptTensors,
    Scalar,
    Int,
    Float,
    Bool,
    Str,
    Ints,
    Floats,
    Bools,
    Scalars,
    DType,
    Device,
    /// Anything else the grammar knows: carried as an opaque object.
    Opaque,
}

#[derive(Clone, Debug)]
pub struct Param {
    pub name: Box<str>,
    pub kind: ParamKind,
    pub optional: bool,
    pub kwarg_only: bool,
    /// A single value fills a list of this size.
    pub list_size: Option<u32>,
    pub default: Option<Value>,
    /// The type as a Python annotation, for messages.
    pub type_text: Box<str>,
    /// Takes sizes that may be symbols, or lists of them.
    pub symbolic: bool,
    pub written: bool,
    /// The type of an opaque argument, for the door to check its structure by.
    pub opaque: Option<Box<ArgType>>,
}

/// Argument lists that the door binds without looking at each parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Two required positional arguments: a tensor and a number.
    TensorScalar,
    /// The same the other way round.
    ScalarTensor,
    Other,
}

#[derive(Clone, Debug)]
pub struct Params {
    pub all: Box<[Param]>,
    pub positional: usize,
    /// Arguments without a default, counted from the left.
    pub required: usize,
    /// Every argument is a plain required `Tensor`: the door's shortest path.
    pub all_tensors: bool,
    pub form: Form,
    /// Arguments the op writes to.
    pub written: SmallVec<[u8; 4]>,
}

impl Params {
    pub fn compile(schema: &Schema) -> Result<Params> {
        let all: Box<[Param]> = schema.arguments().iter().map(param).collect::<Result<_>>()?;
        if all.len() > u8::MAX as usize {
            return Err(Error::new(crate::ErrorKind::Schema, "TP1010", "a schema has at most 255 arguments"));
        }
        let required = all.iter().take_while(|p| p.default.is_none()).count();
        let written = (0u8..).zip(all.iter()).filter(|(_, p)| p.written).map(|(i, _)| i).collect();
        let plain = |p: &Param| !p.optional && !p.kwarg_only && p.default.is_none();
        let all_tensors = all.iter().all(|p| p.kind == ParamKind::Tensor && plain(p));
        let form = match &*all {
            [a, b] if plain(a) && plain(b) => match (a.kind, b.kind) {
                (ParamKind::Tensor, ParamKind::Scalar) => Form::TensorScalar,
                (ParamKind::Scalar, ParamKind::Tensor) => Form::ScalarTensor,
                _ => Form::Other,
            },
            _ => Form::Other,
        };
        Ok(Params { positional: schema.positional_count(), required, all_tensors, form, written, all })
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn name(&self, i: usize) -> Option<&str> {
        self.all.get(i).map(|p| &*p.name)
    }

    pub fn index(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|p| &*p.name == name)
    }

    /// The argument name closest to a misspelt keyword: it has some letter of it, or differs in case alone.
    pub fn closest(&self, name: &str) -> Option<&str> {
        if let Some(p) = self.all.iter().find(|p| p.name.eq_ignore_ascii_case(name)) {
            return Some(&p.name);
        }
        let best = self.all.iter().map(|p| (edit_distance(name, &p.name), &*p.name)).min()?;
        let in_common = best.0 < name.chars().count().max(best.1.len());
        (in_common && best.0 <= 1 + name.len() / 3).then_some(best.1)
    }

    /// Completes positional arguments from Rust with the defaults.
    pub fn fill<'a>(&'a self, op: &str, given: &[Arg<'a>]) -> Result<SmallVec<[Arg<'a>; 8]>> {
        if given.len() > self.all.len() {
            let message =
                format!("takes {}, got {}", tp_tensor::counted(self.all.len(), "argument"), given.len());
            return Err(Error::argument("TP1005", message).with_op(op));
        }
        let mut out: SmallVec<[Arg<'a>; 8]> = given.into();
        for p in self.all.iter().skip(given.len()) {
            match &p.default {
                Some(v) => out.push(v.as_arg()),
                None => {
                    return Err(
                        Error::argument("TP1003", format!("missing argument '{}'", p.name)).with_op(op)
                    );
                }
            }
        }
        Ok(out)
    }
}

fn param(a: &Argument) -> Result<Param> {
    let optional = a.ty().is_optional();
    let kind = kind_of(a.ty());
    let list_size = a.ty().as_list().and_then(|(_, n)| n);
    let default = match a.call_default() {
        Some(d) => Some(default_value(&d, kind).ok_or_else(|| bad_default(a))?),
        None => None,
    };
    Ok(Param {
        name: a.name().into(),
        kind,
        // `Tensor x=None` is how old schemas write an optional tensor.
        optional: optional || matches!(default, Some(Value::None)) || *a.ty() == ArgType::NoneType,
        kwarg_only: a.is_kwarg_only(),
        list_size,
        opaque: (kind == ParamKind::Opaque).then(|| Box::new(a.ty().clone())),
        default,
        symbolic: *element_of(a.ty()) == ArgType::SymInt,
        type_text: a.ty().annotation().into(),
        written: a.is_write(),
    })
}

/// The type of the items of a list, or the type itself, without `?`.
fn element_of(ty: &ArgType) -> &ArgType {
    ty.as_list().map_or(ty, |(element, _)| element).without_optional()
}

fn kind_of(ty: &ArgType) -> ParamKind {
    use ArgType as T;
    if let Some((element, _)) = ty.as_list() {
        return match element {
            T::Tensor => ParamKind::Tensors,
            T::Optional(inner) if **inner == T::Tensor => ParamKind::OptTensors,
            T::Int | T::SymInt => ParamKind::Ints,
            T::Float => ParamKind::Floats,
            T::Bool => ParamKind::Bools,
            T::Scalar | T::Number => ParamKind::Scalars,
            _ => ParamKind::Opaque,
        };
    }
    match ty.without_optional() {
        T::Tensor => ParamKind::Tensor,
        T::Int | T::SymInt => ParamKind::Int,
        T::Float => ParamKind::Float,
        T::Bool | T::SymBool => ParamKind::Bool,
        T::Str => ParamKind::Str,
        T::Scalar | T::Number => ParamKind::Scalar,
        T::ScalarType => ParamKind::DType,
        T::Device => ParamKind::Device,
        _ => ParamKind::Opaque,
    }
}

#[cold]
fn bad_default(a: &Argument) -> Error {
    let message = format!("the default of '{a}' names a value that this runtime does not have");
    Error::new(crate::ErrorKind::Schema, "TP1011", message)
        .note("complex numbers, quantised dtypes and devices other than cpu, cuda and meta are not there")
}

/// None for a value that the grammar knows and the runtime does not.
fn default_value(d: &DefaultValue, kind: ParamKind) -> Option<Value> {
    use DefaultValue as D;
    use ParamKind as K;
    Some(match (d, kind) {
        (D::None, _) => Value::None,
        (D::Bool(v), K::Scalar) => Value::Scalar(Scalar::Bool(*v)),
        (D::Int(v), K::Scalar) => Value::Scalar(Scalar::Int(*v)),
        (D::Float(v), K::Scalar) => Value::Scalar(Scalar::Float(*v)),
        (D::Int(_) | D::Word(_), K::DType) => Value::DType(dtype_of_code(d.as_int().unwrap_or(-1))?),
        (D::Bool(v), _) => Value::Bool(*v),
        (D::Int(v), K::Float) => Value::Float(*v as f64),
        (D::Int(_) | D::Word(_), _) => Value::Int(d.as_int()?),
        (D::Float(v), _) => Value::Float(*v),
        (D::Str(s), K::Device) | (D::Device(s), _) => Value::Device(s.parse::<Device>().ok()?),
        (D::Str(s), _) => Value::Str(s.clone()),
        (D::Complex(..), _) => return None,
        (D::List(items), _) => list_default(items, kind)?,
    })
}

fn list_default(items: &[DefaultValue], kind: ParamKind) -> Option<Value> {
    use DefaultValue as D;
    let float = |d: &D| match d {
        D::Float(v) => Some(*v),
        other => other.as_int().map(|v| v as f64),
    };
    let truth = |d: &D| if let D::Bool(v) = d { Some(*v) } else { None };
    let number = |d: &D| match d {
        D::Bool(v) => Some(Scalar::Bool(*v)),
        D::Float(v) => Some(Scalar::Float(*v)),
        other => other.as_int().map(Scalar::Int),
    };
    Some(match kind {
        ParamKind::Ints => Value::Ints(items.iter().map(D::as_int).collect::<Option<_>>()?),
        ParamKind::Floats => Value::Floats(items.iter().map(float).collect::<Option<_>>()?),
        ParamKind::Bools => Value::Bools(items.iter().map(truth).collect::<Option<_>>()?),
        ParamKind::Scalars => Value::Scalars(items.iter().map(number).collect::<Option<_>>()?),
        ParamKind::Tensors if items.is_empty() => Value::Tensors(Box::default()),
        ParamKind::OptTensors if items.is_empty() => Value::OptTensors(Box::default()),
        _ => return None,
    })
}

/// The element types by the codes that schemas print.
pub fn dtype_of_code(code: i64) -> Option<DType> {
    Some(match code {
        0 => DType::U8,
        1 => DType::I8,
        2 => DType::I16,
        3 => DType::I32,
        4 => DType::I64,
        5 => DType::F16,
        6 => DType::F32,
        7 => DType::F64,
        11 => DType::Bool,
        15 => DType::BF16,
        _ => return None,
    })
}

/// Levenshtein distance over bytes; names are short.
pub(crate) fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiles_kinds_and_defaults() {
        let s = Schema::parse("m::f(Tensor x, Tensor(a!)[] out, int[2] k=1, *, Scalar? s=None, float e=1, Device d=\"cpu\") -> Tensor").unwrap();
        let p = Params::compile(&s).unwrap();
        assert_eq!(p.positional, 3);
        assert_eq!(p.required, 2);
        assert_eq!(p.written.as_slice(), &[1]);
        assert_eq!(p.all[1].kind, ParamKind::Tensors);
        assert!(matches!(&p.all[2].default, Some(Value::Ints(v)) if **v == [1, 1]));
        assert!(p.all[3].optional && matches!(p.all[3].default, Some(Value::None)));
        assert!(matches!(p.all[4].default, Some(Value::Float(v)) if v == 1.0));
        assert!(matches!(p.all[5].default, Some(Value::Device(d)) if d == Device::CPU));
        assert_eq!(p.closest("ouT"), Some("out"));
        assert_eq!(p.closest("zzzzzz"), None);
        assert_eq!(
            (p.closest("D"), p.closest("K"), p.closest("q"), p.closest("")),
            (Some("d"), Some("k"), None, None)
        );
        assert!(!p.all_tensors);
    }
}
