//! The reference interpreter: one element at a time, slow and obvious. It defines what a program computes; every
//! other executor is held to it.

use smallvec::SmallVec;
use tp_tensor::scalar::{Bool, Element, cast_bits};
use tp_tensor::{DType, dispatch_dtype, dispatch_int};

use crate::error::ExprError;
use crate::prim::{Class, Prim};
use crate::program::Program;
use crate::semantics::{Bits, Integer, Number, Real};

/// Evaluates one element: bit patterns of the inputs in, bit patterns of the outputs out.
pub fn eval(program: &Program, inputs: &[u64]) -> Result<SmallVec<[u64; 2]>, ExprError> {
    if inputs.len() != program.inputs().len() {
        return Err(ExprError::Arity {
            what: "program".to_owned(),
            want: program.inputs().len(),
            got: inputs.len(),
        });
    }
    let mut values: Vec<u64> = Vec::with_capacity(program.instrs().len());
    for instr in program.instrs() {
        let value = match instr.prim {
            Prim::Input => inputs[instr.imm as usize],
            Prim::Const => instr.imm,
            prim => {
                let mut args = [0; 3];
                for (slot, &id) in args.iter_mut().zip(instr.args()) {
                    *slot = values[id as usize];
                }
                apply_prim(prim, instr.dtype, program.operand_dtype(instr), args)?
            }
        };
        values.push(value);
    }
    Ok(program.outputs().iter().map(|&id| values[id as usize]).collect())
}

/// One primitive on bit patterns. `operand` is the dtype of the operands (of the last ones, for `select`).
pub fn apply_prim(prim: Prim, dtype: DType, operand: DType, args: [u64; 3]) -> Result<u64, ExprError> {
    let unsupported = ExprError::UnsupportedDType { prim: prim.name(), dtype: operand };
    let value = match (prim.class(), operand) {
        (Class::Source, _) => None,
        (Class::Cast, _) => Some(cast_bits(args[0], operand, dtype)),
        (Class::Bitcast, _) => Some(args[0]),
        (Class::Select, _) => Some(if Bool(args[0] as u8).get() { args[1] } else { args[2] }),
        (Class::Compare, _) => Some(compare(prim, operand, args) as u64),
        (_, DType::Bool) => bitwise::<Bool>(prim, args).map(Element::to_bits64),
        (_, DType::F32) => float::<f32>(prim, args).map(Element::to_bits64),
        (_, DType::F64) => float::<f64>(prim, args).map(Element::to_bits64),
        _ => dispatch_int!(operand, T => integer::<T>(prim, args)?.map(Element::to_bits64), else => None),
    };
    value.ok_or(unsupported)
}

fn compare(prim: Prim, operand: DType, args: [u64; 3]) -> bool {
    dispatch_dtype!(operand, T => {
        let (a, b) = (T::from_bits64(args[0]), T::from_bits64(args[1]));
        match prim {
            Prim::Eq => a == b,
            Prim::Ne => a != b,
            Prim::Lt => a < b,
            Prim::Le => a <= b,
            Prim::Gt => a > b,
            _ => a >= b,
        }
    })
}

fn number<T: Number>(prim: Prim, args: [u64; 3]) -> Option<T> {
    let [a, b, _] = args.map(T::from_bits64);
    Some(match prim {
        Prim::Add => a.add(b),
        Prim::Sub => a.sub(b),
        Prim::Mul => a.mul(b),
        Prim::Neg => a.neg(),
        Prim::Abs => a.abs(),
        Prim::Max => a.maximum(b),
        Prim::Min => a.minimum(b),
        _ => return None,
    })
}

fn bitwise<T: Bits>(prim: Prim, args: [u64; 3]) -> Option<T> {
    let [a, b, _] = args.map(T::from_bits64);
    Some(match prim {
        Prim::And => a.and(b),
        Prim::Or => a.or(b),
        Prim::Xor => a.xor(b),
        Prim::Not => a.not(),
        _ => return None,
    })
}

fn float<T: Real>(prim: Prim, args: [u64; 3]) -> Option<T> {
    let [a, b, c] = args.map(T::from_bits64);
    Some(match prim {
        Prim::Div => a.div(b),
        Prim::Fma => a.fma(b, c),
        Prim::Sqrt => a.sqrt(),
        Prim::Floor => a.floor(),
        Prim::Ceil => a.ceil(),
        Prim::Trunc => a.trunc(),
        Prim::Rint => a.rint(),
        Prim::Fmod => a.fmod(b),
        _ if prim.is_transcendental() => T::transcendental(prim, a, b),
        _ => return number(prim, args),
    })
}

fn integer<T: Integer>(prim: Prim, args: [u64; 3]) -> Result<Option<T>, ExprError> {
    let [a, b, _] = args.map(T::from_bits64);
    Ok(Some(match prim {
        Prim::FloorDiv => a.floordiv(b).ok_or(ExprError::DivisionByZero)?,
        Prim::Mod => a.modulo(b).ok_or(ExprError::DivisionByZero)?,
        Prim::Shl => a.shl(b),
        Prim::Shr => a.shr(b),
        Prim::IntPow => a.pow(b),
        _ => return Ok(number(prim, args).or_else(|| bitwise(prim, args))),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primitives_by_bit_pattern() {
        let f = |x: f32| x.to_bits() as u64;
        let apply = |prim, args| apply_prim(prim, DType::F32, DType::F32, args);
        assert_eq!(apply(Prim::Add, [f(1.5), f(2.0), 0]), Ok(f(3.5)));
        assert_eq!(apply(Prim::Neg, [f(0.0), 0, 0]), Ok(f(-0.0)));
        assert_eq!(apply(Prim::Rint, [f(2.5), 0, 0]), Ok(f(2.0)));
        let ne = apply_prim(Prim::Ne, DType::Bool, DType::F32, [f(f32::NAN), f(f32::NAN), 0]);
        assert_eq!(ne, Ok(1));
        let lt = apply_prim(Prim::Lt, DType::Bool, DType::I8, [0xff, 0, 0]);
        assert_eq!(lt, Ok(1));
    }

    #[test]
    fn errors_are_typed() {
        let div = apply_prim(Prim::FloorDiv, DType::I64, DType::I64, [1, 0, 0]);
        assert_eq!(div, Err(ExprError::DivisionByZero));
        for (prim, dtype) in [(Prim::Add, DType::F16), (Prim::Div, DType::I32), (Prim::Sqrt, DType::Bool)] {
            let got = apply_prim(prim, dtype, dtype, [0; 3]);
            assert_eq!(got, Err(ExprError::UnsupportedDType { prim: prim.name(), dtype }));
        }
    }
}
