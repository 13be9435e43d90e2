//! From a primitive, its dtypes and an instruction set to the function that serves them.

use tp_tensor::scalar::{Bool, Element};
use tp_tensor::{DType, dispatch_dtype, dispatch_int};

use super::*;
use crate::prim::Class;

/// The kernel of `prim` with a result of `dtype` from operands of `operand`; `None` where the primitive is not
/// defined.
pub fn kernel(isa: Isa, prim: Prim, dtype: DType, operand: DType) -> Option<KernelFn> {
    match prim.class() {
        Class::Source => None,
        Class::Select => Some(select(isa, dtype.itemsize())),
        Class::Bitcast => Some(copy_kernel(isa, dtype.itemsize())),
        Class::Compare => compare(isa, prim, operand),
        Class::Cast => {
            Some(dispatch_dtype!(operand, S => dispatch_dtype!(dtype, D => pick::<Cast<S, D>>(isa))))
        }
        _ => match operand {
            DType::Bool => bitwise::<Bool>(isa, prim),
            DType::F32 => real::<f32>(isa, prim),
            DType::F64 => real::<f64>(isa, prim),
            _ => dispatch_int!(operand, T => integer::<T>(isa, prim), else => None),
        },
    }
}

/// Moves elements of `width` bytes.
pub fn copy_kernel(isa: Isa, width: usize) -> KernelFn {
    match width {
        1 => pick::<Move<u8>>(isa),
        2 => pick::<Move<i16>>(isa),
        4 => pick::<Move<i32>>(isa),
        _ => pick::<Move<i64>>(isa),
    }
}

fn select(isa: Isa, width: usize) -> KernelFn {
    match width {
        1 => pick::<Select<u8>>(isa),
        2 => pick::<Select<i16>>(isa),
        4 => pick::<Select<i32>>(isa),
        _ => pick::<Select<i64>>(isa),
    }
}

fn compare(isa: Isa, prim: Prim, operand: DType) -> Option<KernelFn> {
    if operand.is_low_precision() {
        return None;
    }
    fn of<T: Element>(isa: Isa, prim: Prim) -> Option<KernelFn> {
        Some(match prim {
            Prim::Eq => pick::<Eq<T>>(isa),
            Prim::Ne => pick::<Ne<T>>(isa),
            Prim::Lt => pick::<Lt<T>>(isa),
            Prim::Le => pick::<Le<T>>(isa),
            Prim::Gt => pick::<Gt<T>>(isa),
            Prim::Ge => pick::<Ge<T>>(isa),
            _ => return None,
        })
    }
    match operand {
        DType::Bool => of::<Bool>(isa, prim),
        DType::F32 => of::<f32>(isa, prim),
        DType::F64 => of::<f64>(isa, prim),
        _ => dispatch_int!(operand, T => of::<T>(isa, prim), else => None),
    }
}

fn number<T: Number>(isa: Isa, prim: Prim) -> Option<KernelFn> {
    Some(match prim {
        Prim::Add => pick::<Add<T>>(isa),
        Prim::Sub => pick::<Sub<T>>(isa),
        Prim::Mul => pick::<Mul<T>>(isa),
        Prim::Neg => pick::<Neg<T>>(isa),
        Prim::Abs => pick::<Abs<T>>(isa),
        Prim::Max => pick::<Max<T>>(isa),
        Prim::Min => pick::<Min<T>>(isa),
        _ => return None,
    })
}

fn bitwise<T: Bits>(isa: Isa, prim: Prim) -> Option<KernelFn> {
    Some(match prim {
        Prim::And => pick::<And<T>>(isa),
        Prim::Or => pick::<Or<T>>(isa),
        Prim::Xor => pick::<Xor<T>>(isa),
        Prim::Not => pick::<Not<T>>(isa),
        _ => return None,
    })
}

fn integer<T: Integer>(isa: Isa, prim: Prim) -> Option<KernelFn> {
    Some(match prim {
        Prim::FloorDiv => pick::<FloorDiv<T>>(isa),
        Prim::Mod => pick::<Mod<T>>(isa),
        Prim::Shl => pick::<Shl<T>>(isa),
        Prim::Shr => pick::<Shr<T>>(isa),
        Prim::IntPow => pick::<IntPow<T>>(isa),
        _ => return number::<T>(isa, prim).or_else(|| bitwise::<T>(isa, prim)),
    })
}

fn real<T: Real>(isa: Isa, prim: Prim) -> Option<KernelFn> {
    Some(match prim {
        Prim::Div => pick::<Div<T>>(isa),
        Prim::Fma => pick::<Fma<T>>(isa),
        Prim::Sqrt => pick::<Sqrt<T>>(isa),
        Prim::Floor => pick::<Floor<T>>(isa),
        Prim::Ceil => pick::<Ceil<T>>(isa),
        Prim::Trunc => pick::<Trunc<T>>(isa),
        Prim::Rint => pick::<Rint<T>>(isa),
        Prim::Fmod => pick::<Fmod<T>>(isa),
        _ => return transcendental::<T>(isa, prim).or_else(|| number::<T>(isa, prim)),
    })
}

fn transcendental<T: Real>(isa: Isa, prim: Prim) -> Option<KernelFn> {
    macro_rules! functions {
        ($($shape:ident: $($prim:ident)*;)*) => {
            match prim {
                $($(Prim::$prim => pick::<$shape<T, { Prim::$prim as usize }>>(isa),)*)*
                _ => return None,
            }
        };
    }
    Some(functions! {
        Function1: Exp Exp2 Expm1 Log Log2 Log10 Log1p Sigmoid Tanh Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh
            Acosh Atanh;
        Function2: Atan2 Hypot Pow;
    })
}

/// The kernel of `(a inner b) outer c` on float32, or of `c outer (a inner b)`; `None` for other primitives.
pub fn chain_kernel(isa: Isa, inner: Prim, outer: Prim, swapped: bool) -> Option<KernelFn> {
    // Only a subtraction cares on which side its operands are.
    let swapped = swapped && outer == Prim::Sub;
    macro_rules! chains {
        ($($inner:ident $outer:ident $swapped:literal,)*) => {
            match (inner, outer, swapped) {
                $((Prim::$inner, Prim::$outer, $swapped) => Some(pick::<
                    Chain<f32, { Prim::$inner as usize }, { Prim::$outer as usize }, $swapped>,
                >(isa)),)*
                _ => None,
            }
        };
    }
    chains! {
        Add Add false, Add Sub false, Add Sub true, Add Mul false,
        Sub Add false, Sub Sub false, Sub Sub true, Sub Mul false,
        Mul Add false, Mul Sub false, Mul Sub true, Mul Mul false,
    }
}
