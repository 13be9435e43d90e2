//! The rules of the form: SSA order, operand counts, and the dtype rule of each class of primitive.

use tp_tensor::DType;

use super::{Instr, Program};
use crate::error::ExprError;
use crate::prim::{Class, Prim};

impl Program {
    /// Checks every rule; a program that passes runs on every native executor.
    pub fn verify(&self) -> Result<(), ExprError> {
        for (k, instr) in self.instrs.iter().enumerate() {
            let fail = |message: &str| {
                Err(ExprError::Invalid(format!("%{k}:{} = {}: {message}", instr.dtype, instr.prim)))
            };
            if instr.args().iter().any(|&id| id as usize >= k) {
                return fail("an operand is not defined before it");
            }
            if let Err(message) = self.verify_instr(instr) {
                return fail(message);
            }
        }
        if self.outputs.iter().any(|&id| id as usize >= self.instrs.len()) {
            return Err(ExprError::Invalid("an output is not a value".to_owned()));
        }
        Ok(())
    }

    fn verify_instr(&self, instr: &Instr) -> Result<(), &'static str> {
        let dtype = instr.dtype;
        let arg = |i: usize| self.instrs[instr.operands[i] as usize].dtype;
        let operands_are =
            |want: DType| instr.args().iter().all(|&id| self.instrs[id as usize].dtype == want);
        let computes = !dtype.is_low_precision();
        let ok = match instr.prim.class() {
            Class::Source => return self.verify_source(instr),
            Class::Arith => computes && !dtype.is_bool() && operands_are(dtype),
            Class::Float | Class::Transcendental => computes && dtype.is_float() && operands_are(dtype),
            Class::Int | Class::Shift => dtype.is_int() && operands_are(dtype),
            Class::Native if instr.prim == Prim::IntPow => dtype.is_int() && operands_are(dtype),
            Class::Native => computes && dtype.is_float() && operands_are(dtype),
            Class::Compare => dtype.is_bool() && !arg(0).is_low_precision() && operands_are(arg(0)),
            Class::Bitwise => !dtype.is_float() && operands_are(dtype),
            Class::Select => arg(0).is_bool() && arg(1) == dtype && arg(2) == dtype,
            Class::Cast => true,
            Class::Bitcast => {
                let from = arg(0);
                from.itemsize() == dtype.itemsize() && !from.is_bool() && !dtype.is_bool()
            }
        };
        if ok { Ok(()) } else { Err("operand or result dtype breaks the rule of the primitive") }
    }

    fn verify_source(&self, instr: &Instr) -> Result<(), &'static str> {
        if instr.prim == Prim::Input {
            return match self.inputs.get(instr.imm as usize) {
                Some(&dtype) if dtype == instr.dtype => Ok(()),
                Some(_) => Err("the input has another dtype"),
                None => Err("no such input"),
            };
        }
        let bits = 8 * instr.dtype.itemsize() as u32;
        let in_range =
            if instr.dtype.is_bool() { instr.imm <= 1 } else { bits == 64 || instr.imm >> bits == 0 };
        if in_range { Ok(()) } else { Err("the constant does not fit its dtype") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(instrs: &[(Prim, DType, [u32; 3], u64)], inputs: &[DType]) -> Program {
        let instrs: Vec<Instr> =
            instrs.iter().map(|&(prim, dtype, operands, imm)| Instr { prim, dtype, operands, imm }).collect();
        let last = instrs.len() as u32 - 1;
        Program { instrs: instrs.into(), inputs: inputs.into(), outputs: Box::new([last]) }
    }

    #[test]
    fn accepts_the_form() {
        let p = program(
            &[
                (Prim::Input, DType::F32, [0; 3], 0),
                (Prim::Const, DType::F32, [0; 3], 0x4000_0000),
                (Prim::Mul, DType::F32, [0, 1, 0], 0),
            ],
            &[DType::F32],
        );
        assert_eq!(p.verify(), Ok(()));
        assert_eq!(
            p.to_string(),
            "program(float32) -> (float32)\n%0:float32 = input 0\n%1:float32 = const 0x40000000\n\
             %2:float32 = mul %0 %1\nreturn %2\n"
        );
        // A literal: the fingerprint must never drift between versions or machines.
        assert_eq!(p.fingerprint(), p.clone().fingerprint());
        assert_eq!(format!("{:032x}", p.fingerprint()), "224a9549543b6c700088a0638941aced");
    }

    #[test]
    fn refuses_what_breaks_it() {
        let x = (Prim::Input, DType::F32, [0; 3], 0);
        for (bad, message) in [
            ((Prim::Neg, DType::F32, [1, 0, 0], 0), "not defined before"),
            ((Prim::Neg, DType::F64, [0, 0, 0], 0), "breaks the rule"),
            ((Prim::Mod, DType::F32, [0, 0, 0], 0), "breaks the rule"),
            ((Prim::Lt, DType::F32, [0, 0, 0], 0), "breaks the rule"),
            ((Prim::Select, DType::F32, [0, 0, 0], 0), "breaks the rule"),
            ((Prim::Bitcast, DType::I64, [0, 0, 0], 0), "breaks the rule"),
            ((Prim::Input, DType::F32, [0; 3], 1), "no such input"),
            ((Prim::Const, DType::U8, [0; 3], 256), "does not fit"),
            ((Prim::Const, DType::Bool, [0; 3], 2), "does not fit"),
        ] {
            let error = program(&[x, bad], &[DType::F32]).verify().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
