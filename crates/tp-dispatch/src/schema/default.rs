//! `DefaultValue`: what a schema may give an argument as its default, and which default fits which
//! type. Reading and printing defaults is not here.

use std::hash::{Hash, Hasher};

use super::types::ArgType;
use super::word::{EnumWord, code_count};

/// Longest list that a single value is repeated into (`int[3] x=1`).
const MAX_REPEAT: u32 = 1024;

/// Device types that a `Device` default may name.
const DEVICE_TYPES: [&str; 20] = [
    "cpu",
    "cuda",
    "ipu",
    "xpu",
    "mkldnn",
    "opengl",
    "opencl",
    "ideep",
    "hip",
    "ve",
    "fpga",
    "maia",
    "xla",
    "lazy",
    "vulkan",
    "mps",
    "meta",
    "hpu",
    "mtia",
    "privateuseone",
];

/// The default of an argument.
///
/// Equality and hashing see values: a word equals its code (`float` and `6`), NaN equals NaN,
/// and `0.0` differs from `-0.0`.
#[derive(Debug, Clone)]
pub enum DefaultValue {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
    Str(Box<str>),
    /// A checked device: type, and perhaps index.
    Device(Box<str>),
    /// An enumeration code that the schema writes as a word.
    Word(EnumWord),
    List(Box<[DefaultValue]>),
}

impl DefaultValue {
    /// The integer of an `Int`, the code of a `Word`.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            DefaultValue::Int(value) => Some(*value),
            DefaultValue::Word(word) => Some(word.code()),
            _ => None,
        }
    }

    /// The default as an argument of type `ty` has it: an integer becomes a float where a float is
    /// asked for, one value becomes a list where the list has a size. The error says what would
    /// have fitted. A default that was returned is returned unchanged the next time.
    ///
    /// Under `T?` a value stays as written (`float? x=1`, `int[3]? x=1`), because that is how such
    /// defaults print; [`Argument::call_default`](super::Argument::call_default) converts them.
    pub fn fit(self, ty: &ArgType) -> Result<DefaultValue, String> {
        use DefaultValue as D;
        if let ArgType::Optional(inner) = ty {
            return self.fit_optional(ty, inner);
        }
        if let ArgType::List(element, size) = ty {
            return self.fit_list(ty, element, *size);
        }
        let fits = match (&self, ty) {
            (D::None, ArgType::Tensor | ArgType::Generator | ArgType::Quantizer) => true,
            (D::Bool(_), ArgType::Bool | ArgType::SymBool | ArgType::Scalar | ArgType::Number) => true,
            (D::Int(_), ArgType::Int | ArgType::SymInt | ArgType::Scalar | ArgType::Number) => true,
            (D::Int(value), ArgType::Float) => return Ok(D::Float(*value as f64)),
            (D::Int(value), ArgType::Complex) => return Ok(D::Complex(*value as f64, 0.0)),
            (D::Int(code), _) => code_count(ty).is_some_and(|count| (0..count).contains(code)),
            (D::Word(word), _) => word.fits(ty),
            (D::Float(_), ArgType::Float | ArgType::Scalar | ArgType::Number) => true,
            (D::Float(value), ArgType::Complex) => return Ok(D::Complex(*value, 0.0)),
            (D::Complex(..), ArgType::Complex | ArgType::Scalar | ArgType::Number) => true,
            (D::Str(_), ArgType::Str) => true,
            (D::Str(text) | D::Device(text), ArgType::Device) if is_device(text) => {
                return Ok(D::Device(text.clone()));
            }
            _ => false,
        };
        if fits { Ok(self) } else { Err(wanted(ty)) }
    }

    fn fit_optional(self, ty: &ArgType, inner: &ArgType) -> Result<DefaultValue, String> {
        let is_list = matches!(self, DefaultValue::List(_));
        match self {
            DefaultValue::None => Ok(self),
            // The grammar knows no list as the default of an optional list.
            _ if is_list => Err(wanted(ty)),
            DefaultValue::Str(_) => self.fit(inner).map_err(|_| wanted(ty)),
            _ => self.clone().fit(inner).map(|_| self).map_err(|_| wanted(ty)),
        }
    }

    fn fit_list(self, ty: &ArgType, element: &ArgType, size: Option<u32>) -> Result<DefaultValue, String> {
        if !has_list_defaults(element) {
            return Err(wanted(ty));
        }
        let items = match (self, size) {
            (DefaultValue::List(items), _) => items.into_vec(),
            (item, Some(size)) if size <= MAX_REPEAT => {
                vec![item.fit(element).map_err(|_| wanted(ty))?; size as usize]
            }
            _ => return Err(wanted(ty)),
        };
        // A list of size 1 takes any length: the size then only says that one value will do.
        let length_fits = match size {
            None | Some(1) => true,
            Some(size) => items.is_empty() || items.len() == size as usize,
        };
        if !length_fits {
            return Err(wanted(ty));
        }
        let fitted: Result<Box<[_]>, _> = items.into_iter().map(|item| item.fit(element)).collect();
        fitted.map(DefaultValue::List).map_err(|_| wanted(ty))
    }
}

/// Element types whose lists may have a list as their default.
fn has_list_defaults(element: &ArgType) -> bool {
    use ArgType::*;
    matches!(element, Int | SymInt | Float | Bool | Complex | ScalarType | Layout | MemoryFormat)
}

/// What would have been a default of type `ty`.
fn wanted(ty: &ArgType) -> String {
    let examples = match ty.without_optional() {
        _ if ty.is_optional() && ty.as_list().is_some_and(|(_, size)| size.is_none()) => "`None`",
        ArgType::Tensor | ArgType::Generator | ArgType::Quantizer => "`None`",
        ArgType::Int | ArgType::SymInt => "an integer",
        ArgType::Float => "a number",
        ArgType::Bool | ArgType::SymBool => "`True` or `False`",
        ArgType::Str => "a quoted string",
        ArgType::Complex => "a number such as `1.5` or `2j`",
        ArgType::Scalar | ArgType::Number => "a number, `True` or `False`",
        ArgType::ScalarType => "a dtype such as `float` or its code",
        ArgType::Layout => "`strided` or a layout's code",
        ArgType::MemoryFormat => "`contiguous_format` or a memory format's code",
        ArgType::Device => "a quoted device such as \"cuda:0\"",
        ArgType::List(element, size) if has_list_defaults(element) => match size {
            _ if ty.is_optional() => "one value to repeat",
            None => "a list such as `[]` with elements of that type",
            Some(1) => "one value, or a list with elements of that type",
            Some(_) => "one value to repeat, or a list of that size",
        },
        _ if ty.is_optional() => "`None`",
        _ => return format!("no default, for the type `{ty}` has none"),
    };
    if ty.is_optional() && examples != "`None`" {
        format!("a default of type `{ty}` (`None`, or {examples})")
    } else {
        format!("a default of type `{ty}` ({examples})")
    }
}

fn is_device(text: &str) -> bool {
    let (kind, index) = match text.split_once(':') {
        Some((kind, index)) => (kind, Some(index)),
        None => (text, None),
    };
    let index_fits = index.is_none_or(|index| {
        let canonical = index == "0" || !index.starts_with(['0', '+']);
        canonical && index.parse::<u8>().is_ok_and(|index| index < 128)
    });
    DEVICE_TYPES.contains(&kind) && index_fits
}

/// The bits that tell floats apart, the same for every NaN.
fn float_key(value: f64) -> u64 {
    if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }
}

impl PartialEq for DefaultValue {
    fn eq(&self, other: &DefaultValue) -> bool {
        use DefaultValue as D;
        match (self, other) {
            (D::None, D::None) => true,
            (D::Bool(a), D::Bool(b)) => a == b,
            (D::Float(a), D::Float(b)) => float_key(*a) == float_key(*b),
            (D::Complex(a, i), D::Complex(b, j)) => {
                float_key(*a) == float_key(*b) && float_key(*i) == float_key(*j)
            }
            (D::Str(a), D::Str(b)) | (D::Device(a), D::Device(b)) => a == b,
            (D::List(a), D::List(b)) => a == b,
            _ => self.as_int().is_some() && self.as_int() == other.as_int(),
        }
    }
}

impl Eq for DefaultValue {}

impl Hash for DefaultValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            DefaultValue::None => 0u8.hash(state),
            DefaultValue::Bool(value) => value.hash(state),
            DefaultValue::Int(_) | DefaultValue::Word(_) => self.as_int().hash(state),
            DefaultValue::Float(value) => float_key(*value).hash(state),
            DefaultValue::Complex(real, imaginary) => {
                (float_key(*real), float_key(*imaginary)).hash(state);
            }
            DefaultValue::Str(text) | DefaultValue::Device(text) => text.hash(state),
            DefaultValue::List(items) => items.hash(state),
        }
    }
}
