//! `ArgType`: the types that arguments and returns may have.
//!
//! The names of the basic types are here; reading and printing the compound ones is the parser's
//! and the printer's work.

/// A type of the schema language.
///
/// Values from the parser keep these invariants: an `Optional` holds no `Optional`; only the type
/// of an argument or a return itself has a list size; a `Union` is flat, sorted, without
/// duplicates and has at least two members; nesting is at most
/// [`MAX_NESTING`](super::MAX_NESTING) deep.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ArgType {
    Tensor,
    Int,
    Float,
    Bool,
    Str,
    Complex,
    /// `Scalar`: a Python number of any kind.
    Scalar,
    /// `number`: the same as `Scalar` under its script name.
    Number,
    SymInt,
    SymBool,
    ScalarType,
    Layout,
    MemoryFormat,
    Device,
    Generator,
    Stream,
    Storage,
    QScheme,
    Quantizer,
    Any,
    AnyEnumType,
    AnyClassType,
    NoneType,
    Capsule,
    Optional(Box<ArgType>),
    /// A list, with its size when the schema gives one: `int[2]`.
    List(Box<ArgType>, Option<u32>),
    Tuple(Box<[ArgType]>),
    /// Key and value.
    Dict(Box<(ArgType, ArgType)>),
    Future(Box<ArgType>),
    RRef(Box<ArgType>),
    Await(Box<ArgType>),
    Union(Box<[ArgType]>),
    /// A type variable: `t`, `tVal`.
    Var(Box<str>),
    /// A script class, by its whole path: `__torch__.torch.classes.c10d.ProcessGroup`.
    Class(Box<str>),
}

impl ArgType {
    /// `T?`; a type that is optional already stays as it is.
    pub fn optional(self) -> ArgType {
        match self {
            ArgType::Optional(_) => self,
            other => ArgType::Optional(Box::new(other)),
        }
    }

    /// `T[]`.
    pub fn list(self) -> ArgType {
        ArgType::List(Box::new(self), None)
    }

    /// `T` for `T?`, the type itself for any other.
    pub fn without_optional(&self) -> &ArgType {
        match self {
            ArgType::Optional(inner) => inner,
            other => other,
        }
    }

    pub fn is_optional(&self) -> bool {
        matches!(self, ArgType::Optional(_))
    }

    /// Element type and size of `T[]`, `T[N]`, `T[]?` and `T[N]?`.
    pub fn as_list(&self) -> Option<(&ArgType, Option<u32>)> {
        match self.without_optional() {
            ArgType::List(element, size) => Some((element, *size)),
            _ => None,
        }
    }

    /// `Tensor`, `Tensor?`, `Tensor[]`, `Tensor?[]`, `Tensor[]?` and `Tensor?[]?`.
    pub fn is_tensor_like(&self) -> bool {
        let element = self.as_list().map_or(self, |(element, _)| element);
        *element.without_optional() == ArgType::Tensor
    }

    /// The types a dict may have as keys.
    pub(super) fn is_dict_key(&self) -> bool {
        use ArgType::*;
        matches!(self, Int | Float | Complex | Str | Tensor | Device | Bool)
    }

    /// The basic type of that name.
    #[inline]
    pub(super) fn basic(name: &[u8]) -> Option<ArgType> {
        Some(match name {
            b"Tensor" => ArgType::Tensor,
            b"int" | b"DeviceIndex" | b"ConstQuantizerPtr" => ArgType::Int,
            b"float" => ArgType::Float,
            b"bool" => ArgType::Bool,
            b"str" => ArgType::Str,
            b"complex" => ArgType::Complex,
            b"Scalar" => ArgType::Scalar,
            b"number" => ArgType::Number,
            b"SymInt" => ArgType::SymInt,
            b"SymBool" => ArgType::SymBool,
            b"ScalarType" => ArgType::ScalarType,
            b"Layout" => ArgType::Layout,
            b"MemoryFormat" => ArgType::MemoryFormat,
            b"Device" => ArgType::Device,
            b"Generator" => ArgType::Generator,
            b"Stream" => ArgType::Stream,
            b"Storage" => ArgType::Storage,
            b"QScheme" => ArgType::QScheme,
            b"Quantizer" => ArgType::Quantizer,
            b"Any" => ArgType::Any,
            b"AnyEnumType" => ArgType::AnyEnumType,
            b"AnyClassType" => ArgType::AnyClassType,
            b"NoneType" => ArgType::NoneType,
            b"Capsule" => ArgType::Capsule,
            _ => return None,
        })
    }

    /// The name of a basic type; `None` for the compound ones, `Var` and `Class`.
    pub(super) fn basic_name(&self) -> Option<&'static str> {
        Some(match self {
            ArgType::Tensor => "Tensor",
            ArgType::Int => "int",
            ArgType::Float => "float",
            ArgType::Bool => "bool",
            ArgType::Str => "str",
            ArgType::Complex => "complex",
            ArgType::Scalar => "Scalar",
            ArgType::Number => "number",
            ArgType::SymInt => "SymInt",
            ArgType::SymBool => "SymBool",
            ArgType::ScalarType => "ScalarType",
            ArgType::Layout => "Layout",
            ArgType::MemoryFormat => "MemoryFormat",
            ArgType::Device => "Device",
            ArgType::Generator => "Generator",
            ArgType::Stream => "Stream",
            ArgType::Storage => "Storage",
            ArgType::QScheme => "QScheme",
            ArgType::Quantizer => "Quantizer",
            ArgType::Any => "Any",
            ArgType::AnyEnumType => "AnyEnumType",
            ArgType::AnyClassType => "AnyClassType",
            ArgType::NoneType => "NoneType",
            ArgType::Capsule => "Capsule",
            _ => return None,
        })
    }

    /// Place in a printed union: by kind, then by text.
    pub(super) fn union_rank(&self) -> u8 {
        use ArgType::*;
        match self {
            Any => 0,
            AnyEnumType => 1,
            Tensor => 2,
            Storage => 3,
            Tuple(_) => 4,
            List(..) => 5,
            Dict(_) => 6,
            Scalar | Number => 7,
            Float => 8,
            Complex => 9,
            Future(_) => 10,
            Await(_) => 11,
            RRef(_) => 12,
            Int => 13,
            NoneType => 14,
            Str => 15,
            Generator => 16,
            Quantizer => 17,
            Bool => 18,
            Optional(_) => 19,
            Var(_) => 20,
            Device => 21,
            Stream => 22,
            Class(_) => 23,
            Capsule => 24,
            QScheme => 25,
            ScalarType => 26,
            Layout => 27,
            MemoryFormat => 28,
            AnyClassType => 29,
            SymInt => 30,
            SymBool => 31,
            Union(_) => 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ArgType;

    #[test]
    fn basic_names_read_back() {
        let names = [
            "Tensor",
            "int",
            "float",
            "bool",
            "str",
            "complex",
            "Scalar",
            "number",
            "SymInt",
            "SymBool",
            "ScalarType",
            "Layout",
            "MemoryFormat",
            "Device",
            "Generator",
            "Stream",
            "Storage",
            "QScheme",
            "Quantizer",
            "Any",
            "AnyEnumType",
            "AnyClassType",
            "NoneType",
            "Capsule",
        ];
        for name in names {
            let ty = ArgType::basic(name.as_bytes()).unwrap();
            assert_eq!(ty.basic_name(), Some(name));
        }
        assert_eq!(ArgType::basic(b"DeviceIndex"), Some(ArgType::Int));
        assert_eq!(ArgType::basic(b"ConstQuantizerPtr"), Some(ArgType::Int));
        assert_eq!(ArgType::basic(b"Dimname"), None);
    }

    #[test]
    fn tensor_like_types_are_tensors_and_lists_of_them() {
        let tensor = || ArgType::Tensor;
        for ty in [
            tensor(),
            tensor().optional(),
            tensor().list(),
            tensor().optional().list(),
            tensor().list().optional(),
            tensor().optional().list().optional(),
        ] {
            assert!(ty.is_tensor_like(), "{ty}");
        }
        for ty in [ArgType::Int, ArgType::Any, ArgType::Int.list(), tensor().list().list()] {
            assert!(!ty.is_tensor_like(), "{ty}");
        }
        assert_eq!(tensor().optional().optional(), tensor().optional());
    }
}
