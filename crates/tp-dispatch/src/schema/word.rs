//! `EnumWord`: the words that stand for enumeration codes in defaults (`float`, `strided`, `Mean`).

use std::fmt;

use super::types::ArgType;

/// A word for the code of a dtype, a layout, a memory format or a reduction.
#[derive(Clone, Copy)]
pub struct EnumWord(u8);

struct Entry {
    text: &'static str,
    code: i64,
    of: Of,
}

#[derive(PartialEq, Eq)]
enum Of {
    Dtype,
    Layout,
    MemoryFormat,
    Reduction,
}

impl EnumWord {
    pub fn new(text: &str) -> Option<EnumWord> {
        WORDS.iter().position(|entry| entry.text == text).map(|index| EnumWord(index as u8))
    }

    fn entry(self) -> &'static Entry {
        &WORDS[self.0 as usize]
    }

    /// The word itself.
    pub fn text(self) -> &'static str {
        self.entry().text
    }

    /// The code that the word stands for.
    pub fn code(self) -> i64 {
        self.entry().code
    }

    /// Whether the word stands for a value of `ty`.
    pub(super) fn fits(self, ty: &ArgType) -> bool {
        match self.entry().of {
            Of::Dtype => *ty == ArgType::ScalarType,
            Of::Layout => *ty == ArgType::Layout,
            Of::MemoryFormat => *ty == ArgType::MemoryFormat,
            Of::Reduction => *ty == ArgType::Int,
        }
    }
}

impl fmt::Debug for EnumWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.text(), self.code())
    }
}

/// The number of codes that the enumeration `ty` has; `None` when it is none.
pub(super) fn code_count(ty: &ArgType) -> Option<i64> {
    match ty {
        ArgType::ScalarType => Some(46),
        ArgType::Layout => Some(8),
        ArgType::MemoryFormat => Some(4),
        _ => None,
    }
}

const fn dtype(text: &'static str, code: i64) -> Entry {
    Entry { text, code, of: Of::Dtype }
}

const WORDS: &[Entry] = &[
    dtype("float", 6),
    dtype("long", 4),
    dtype("double", 7),
    dtype("half", 5),
    dtype("int", 3),
    dtype("short", 2),
    dtype("bool", 11),
    dtype("uint8", 0),
    dtype("int8", 1),
    dtype("int16", 2),
    dtype("int32", 3),
    dtype("int64", 4),
    dtype("float16", 5),
    dtype("float32", 6),
    dtype("float64", 7),
    dtype("bfloat16", 15),
    dtype("complex", 9),
    dtype("chalf", 8),
    dtype("cfloat", 9),
    dtype("cdouble", 10),
    dtype("complex32", 8),
    dtype("complex64", 9),
    dtype("complex128", 10),
    dtype("qint8", 12),
    dtype("quint8", 13),
    dtype("qint32", 14),
    dtype("quint4x2", 16),
    dtype("quint2x4", 17),
    dtype("bits1x8", 18),
    dtype("bits2x4", 19),
    dtype("bits4x2", 20),
    dtype("bits8", 21),
    dtype("bits16", 22),
    dtype("float8_e5m2", 23),
    dtype("float8_e4m3fn", 24),
    dtype("float8_e5m2fnuz", 25),
    dtype("float8_e4m3fnuz", 26),
    dtype("uint16", 27),
    dtype("uint32", 28),
    dtype("uint64", 29),
    dtype("uint1", 30),
    dtype("uint2", 31),
    dtype("uint3", 32),
    dtype("uint4", 33),
    dtype("uint5", 34),
    dtype("uint6", 35),
    dtype("uint7", 36),
    dtype("int1", 37),
    dtype("int2", 38),
    dtype("int3", 39),
    dtype("int4", 40),
    dtype("int5", 41),
    dtype("int6", 42),
    dtype("int7", 43),
    dtype("float8_e8m0fnu", 44),
    dtype("float4_e2m1fn_x2", 45),
    Entry { text: "strided", code: 0, of: Of::Layout },
    Entry { text: "contiguous_format", code: 0, of: Of::MemoryFormat },
    Entry { text: "Mean", code: 1, of: Of::Reduction },
];
