//! `Prim`: the closed set of scalar primitives, with name, arity and class. What each computes is in `semantics`
//! (exact primitives) and `expand` (transcendentals).

/// How a primitive is typed; see `Program::verify` for the rule of each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `input`, `const`: no operands, an immediate.
    Source,
    /// Floats and wrapping ints; the result has the operands' dtype.
    Arith,
    /// float32 and float64 only.
    Float,
    /// Integers only.
    Int,
    /// Any numeric dtype or bool, to bool.
    Compare,
    /// Bool and ints.
    Bitwise,
    /// Integers; counts are in range.
    Shift,
    /// A bool and two values of one dtype.
    Select,
    /// From any dtype to any dtype.
    Cast,
    /// Same-width reinterpretation between an int and a float.
    Bitcast,
    /// Floats; float32 expands into the classes above, float64 stays.
    Transcendental,
    /// One instruction of native executors that nothing expands.
    Native,
}

macro_rules! primitives {
    ($($variant:ident $name:literal $arity:literal $class:ident,)*) => {
        /// A scalar primitive.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Prim {
            $($variant,)*
        }

        impl Prim {
            pub const ALL: &'static [Prim] = &[$(Prim::$variant,)*];

            /// The name in the text form.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Prim::$variant => $name,)*
                }
            }

            /// The number of operands.
            pub const fn arity(self) -> usize {
                match self {
                    $(Prim::$variant => $arity,)*
                }
            }

            pub const fn class(self) -> Class {
                match self {
                    $(Prim::$variant => Class::$class,)*
                }
            }

            pub fn from_name(name: &str) -> Option<Prim> {
                match name {
                    $($name => Some(Prim::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

primitives! {
    Input "input" 0 Source,
    Const "const" 0 Source,
    Add "add" 2 Arith,
    Sub "sub" 2 Arith,
    Mul "mul" 2 Arith,
    Neg "neg" 1 Arith,
    Abs "abs" 1 Arith,
    Max "max" 2 Arith,
    Min "min" 2 Arith,
    Div "div" 2 Float,
    Fma "fma" 3 Float,
    Sqrt "sqrt" 1 Float,
    Floor "floor" 1 Float,
    Ceil "ceil" 1 Float,
    Trunc "trunc" 1 Float,
    Rint "rint" 1 Float,
    FloorDiv "floordiv" 2 Int,
    Mod "mod" 2 Int,
    Eq "eq" 2 Compare,
    Ne "ne" 2 Compare,
    Lt "lt" 2 Compare,
    Le "le" 2 Compare,
    Gt "gt" 2 Compare,
    Ge "ge" 2 Compare,
    And "and" 2 Bitwise,
    Or "or" 2 Bitwise,
    Xor "xor" 2 Bitwise,
    Not "not" 1 Bitwise,
    Shl "shl" 2 Shift,
    Shr "shr" 2 Shift,
    Select "select" 3 Select,
    Cast "cast" 1 Cast,
    Bitcast "bitcast" 1 Bitcast,
    Exp "exp" 1 Transcendental,
    Exp2 "exp2" 1 Transcendental,
    Expm1 "expm1" 1 Transcendental,
    Log "log" 1 Transcendental,
    Log2 "log2" 1 Transcendental,
    Log10 "log10" 1 Transcendental,
    Log1p "log1p" 1 Transcendental,
    Sigmoid "sigmoid" 1 Transcendental,
    Tanh "tanh" 1 Transcendental,
    Erf "erf" 1 Transcendental,
    Sin "sin" 1 Transcendental,
    Cos "cos" 1 Transcendental,
    Tan "tan" 1 Transcendental,
    Asin "asin" 1 Transcendental,
    Acos "acos" 1 Transcendental,
    Atan "atan" 1 Transcendental,
    Sinh "sinh" 1 Transcendental,
    Cosh "cosh" 1 Transcendental,
    Asinh "asinh" 1 Transcendental,
    Acosh "acosh" 1 Transcendental,
    Atanh "atanh" 1 Transcendental,
    Atan2 "atan2" 2 Transcendental,
    Hypot "hypot" 2 Transcendental,
    Pow "pow" 2 Transcendental,
    Fmod "fmod" 2 Native,
    IntPow "intpow" 2 Native,
}

impl Prim {
    pub const fn is_transcendental(self) -> bool {
        matches!(self.class(), Class::Transcendental)
    }
}

impl std::fmt::Display for Prim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_are_distinct() {
        for &prim in Prim::ALL {
            assert_eq!(Prim::from_name(prim.name()), Some(prim));
        }
        assert_eq!(Prim::from_name("gelu"), None);
        assert_eq!(Prim::Fma.arity(), 3);
        assert!(Prim::Tanh.is_transcendental() && !Prim::Fmod.is_transcendental());
    }
}
