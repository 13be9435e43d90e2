//! Values that cross an operator's boundary: borrowed on the way in (`Arg`, on the caller's stack), owned on the
//! way out and wherever they are kept (`Value`).

use crate::error::Result;
use crate::host::{HostRef, Replace};
use smallvec::SmallVec;
use std::fmt;
use tp_tensor::{DType, Device, Scalar, Tensor};

/// One bound argument. Copying it counts no reference.
#[derive(Clone, Copy)]
pub enum Arg<'a> {
    None,
    Tensor(&'a Tensor),
    /// A weak number: it never widens a float tensor.
    Scalar(Scalar),
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(&'a str),
    Ints(&'a [i64]),
    Floats(&'a [f64]),
    Bools(&'a [bool]),
    Scalars(&'a [Scalar]),
    Tensors(&'a [Tensor]),
    OptTensors(&'a [Option<Tensor>]),
    DType(DType),
    Device(Device),
    /// An object of the host language that the dispatcher only carries.
    Host(&'a HostRef),
}

/// One owned value.
#[derive(Clone)]
pub enum Value {
    None,
    Tensor(Tensor),
    Scalar(Scalar),
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(Box<str>),
    Ints(Box<[i64]>),
    Floats(Box<[f64]>),
    Bools(Box<[bool]>),
    Scalars(Box<[Scalar]>),
    Tensors(Box<[Tensor]>),
    OptTensors(Box<[Option<Tensor>]>),
    DType(DType),
    Device(Device),
    Host(HostRef),
}

/// What a kernel gives back, one value per declared return.
pub type Rets = SmallVec<[Value; 2]>;

/// `rets.push(Value::Tensor(t))`, written in place: a push by value copies what was just stored in parts, and the
/// processor has to wait for the parts.
#[inline(always)]
pub fn push_tensor(rets: &mut Rets, t: Tensor) {
    let n = rets.len();
    if n == rets.capacity() {
        rets.reserve(1);
    }
    // SAFETY: there is room for one more, and it is initialised before it counts.
    unsafe {
        rets.as_mut_ptr().add(n).write(Value::Tensor(t));
        rets.set_len(n + 1);
    }
}

/// The tensor of a call that returned exactly one, taken without moving the value around; None for anything else.
#[inline(always)]
pub fn pop_only_tensor(rets: &mut Rets) -> Option<Tensor> {
    if rets.len() != 1 {
        return None;
    }
    let Value::Tensor(t) = &rets[0] else { return None };
    // SAFETY: the length is set to zero, so that the tensor is not dropped with the list.
    unsafe {
        let t = std::ptr::read(t);
        rets.set_len(0);
        Some(t)
    }
}

impl<'a> Arg<'a> {
    #[inline]
    pub fn tensor(&self) -> Option<&'a Tensor> {
        if let Arg::Tensor(t) = self { Some(t) } else { None }
    }

    /// A number however it was bound.
    pub fn scalar(&self) -> Option<Scalar> {
        match *self {
            Arg::Scalar(s) => Some(s),
            Arg::Int(v) => Some(Scalar::Int(v)),
            Arg::Float(v) => Some(Scalar::Float(v)),
            Arg::Bool(v) => Some(Scalar::Bool(v)),
            _ => None,
        }
    }

    pub fn int(&self) -> Option<i64> {
        match *self {
            Arg::Int(v) | Arg::Scalar(Scalar::Int(v)) => Some(v),
            Arg::Bool(v) | Arg::Scalar(Scalar::Bool(v)) => Some(v as i64),
            _ => None,
        }
    }

    pub fn bool(&self) -> Option<bool> {
        match *self {
            Arg::Bool(v) | Arg::Scalar(Scalar::Bool(v)) => Some(v),
            _ => None,
        }
    }

    pub fn str(&self) -> Option<&'a str> {
        if let Arg::Str(s) = self { Some(s) } else { None }
    }

    pub fn ints(&self) -> Option<&'a [i64]> {
        if let Arg::Ints(v) = self { Some(v) } else { None }
    }

    pub fn dtype(&self) -> Option<DType> {
        if let Arg::DType(v) = self { Some(*v) } else { None }
    }

    pub fn device(&self) -> Option<Device> {
        if let Arg::Device(v) = self { Some(*v) } else { None }
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Arg::None)
    }

    /// Every tensor in this argument, lists and carried objects included.
    #[inline]
    pub fn for_each_tensor(&self, mut f: impl FnMut(&'a Tensor)) {
        match *self {
            Arg::Tensor(t) => f(t),
            Arg::Tensors(ts) => ts.iter().for_each(f),
            Arg::OptTensors(ts) => ts.iter().flatten().for_each(f),
            Arg::Host(h) => h.tensors().iter().for_each(f),
            _ => {}
        }
    }

    /// The argument with `other` of each tensor in its place.
    pub fn with_tensors(&self, other: Replace<'_>) -> Result<Value> {
        Ok(match *self {
            Arg::Tensor(t) => Value::Tensor(other(t)?),
            Arg::Tensors(ts) => Value::Tensors(ts.iter().map(other).collect::<Result<_>>()?),
            Arg::OptTensors(ts) => {
                let item = |t: &Option<Tensor>| t.as_ref().map(&mut *other).transpose();
                Value::OptTensors(ts.iter().map(item).collect::<Result<_>>()?)
            }
            Arg::Host(h) if !h.tensors().is_empty() => {
                Value::Host(h.with_tensors(other)?.unwrap_or_else(|| h.clone()))
            }
            rest => rest.to_value(),
        })
    }

    pub fn to_value(&self) -> Value {
        match *self {
            Arg::None => Value::None,
            Arg::Tensor(t) => Value::Tensor(t.clone()),
            Arg::Scalar(s) => Value::Scalar(s),
            Arg::Int(v) => Value::Int(v),
            Arg::Float(v) => Value::Float(v),
            Arg::Bool(v) => Value::Bool(v),
            Arg::Str(s) => Value::Str(s.into()),
            Arg::Ints(v) => Value::Ints(v.into()),
            Arg::Floats(v) => Value::Floats(v.into()),
            Arg::Bools(v) => Value::Bools(v.into()),
            Arg::Scalars(v) => Value::Scalars(v.into()),
            Arg::Tensors(v) => Value::Tensors(v.into()),
            Arg::OptTensors(v) => Value::OptTensors(v.into()),
            Arg::DType(v) => Value::DType(v),
            Arg::Device(v) => Value::Device(v),
            Arg::Host(v) => Value::Host(v.clone()),
        }
    }
}

impl Value {
    pub fn as_arg(&self) -> Arg<'_> {
        match self {
            Value::None => Arg::None,
            Value::Tensor(t) => Arg::Tensor(t),
            Value::Scalar(s) => Arg::Scalar(*s),
            Value::Int(v) => Arg::Int(*v),
            Value::Float(v) => Arg::Float(*v),
            Value::Bool(v) => Arg::Bool(*v),
            Value::Str(s) => Arg::Str(s),
            Value::Ints(v) => Arg::Ints(v),
            Value::Floats(v) => Arg::Floats(v),
            Value::Bools(v) => Arg::Bools(v),
            Value::Scalars(v) => Arg::Scalars(v),
            Value::Tensors(v) => Arg::Tensors(v),
            Value::OptTensors(v) => Arg::OptTensors(v),
            Value::DType(v) => Arg::DType(*v),
            Value::Device(v) => Arg::Device(*v),
            Value::Host(v) => Arg::Host(v),
        }
    }

    pub fn tensor(&self) -> Option<&Tensor> {
        if let Value::Tensor(t) = self { Some(t) } else { None }
    }

    pub fn into_tensor(self) -> Option<Tensor> {
        if let Value::Tensor(t) = self { Some(t) } else { None }
    }

    /// Every tensor in this value, lists included.
    pub fn for_each_tensor<'a>(&'a self, f: impl FnMut(&'a Tensor)) {
        self.as_arg().for_each_tensor(f);
    }

    /// The name people know the type by, for messages.
    pub fn type_name(&self) -> &'static str {
        self.as_arg().type_name()
    }
}

impl Arg<'_> {
    pub fn type_name(&self) -> &'static str {
        match self {
            Arg::None => "None",
            Arg::Tensor(_) => "Tensor",
            Arg::Scalar(Scalar::Bool(_)) | Arg::Bool(_) => "bool",
            Arg::Scalar(Scalar::Int(_)) | Arg::Int(_) => "int",
            Arg::Scalar(Scalar::Float(_)) | Arg::Float(_) => "float",
            Arg::Str(_) => "str",
            Arg::Ints(_) => "list[int]",
            Arg::Floats(_) => "list[float]",
            Arg::Bools(_) => "list[bool]",
            Arg::Scalars(_) => "list[number]",
            Arg::Tensors(_) => "list[Tensor]",
            Arg::OptTensors(_) => "list[Tensor | None]",
            Arg::DType(_) => "dtype",
            Arg::Device(_) => "device",
            Arg::Host(_) => "object",
        }
    }
}

impl From<Tensor> for Value {
    #[inline]
    fn from(t: Tensor) -> Value {
        Value::Tensor(t)
    }
}

impl fmt::Debug for Arg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arg::None => f.write_str("None"),
            Arg::Tensor(t) => t.fmt(f),
            Arg::Scalar(v) => write!(f, "{v}"),
            Arg::Int(v) => write!(f, "{v}"),
            Arg::Float(v) => write!(f, "{v:?}"),
            Arg::Bool(v) => f.write_str(if *v { "True" } else { "False" }),
            Arg::Str(v) => write!(f, "{v:?}"),
            Arg::Ints(v) => v.fmt(f),
            Arg::Floats(v) => v.fmt(f),
            Arg::Bools(v) => v.fmt(f),
            Arg::Scalars(v) => f.debug_list().entries(v.iter().map(|s| s.to_string())).finish(),
            Arg::Tensors(v) => v.fmt(f),
            Arg::OptTensors(v) => v.fmt(f),
            Arg::DType(v) => write!(f, "{v}"),
            Arg::Device(v) => write!(f, "{v}"),
            Arg::Host(_) => f.write_str("<object>"),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_arg().fmt(f)
    }
}
