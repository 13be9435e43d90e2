//! `ProgramBuilder`: programs with common subexpressions shared, constants folded and dead values removed, from one
//! expression or from a chain of them.

use std::collections::HashMap;

use tp_tensor::{DType, Scalar};

use super::{Instr, Program, ValueId};
use crate::error::ExprError;
use crate::eval::apply_prim;
use crate::expand::{algebra::Algebra, expand_wide, expand_with};
use crate::expr::{Bound, ScalarExpr, lower};
use crate::prim::Prim;

/// An argument of [`ProgramBuilder::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A value of this builder, standing for a tensor of its dtype.
    Value(ValueId),
    /// A weak Python scalar, baked in.
    Scalar(Scalar),
}

#[derive(Clone, Debug, Default)]
pub struct ProgramBuilder {
    instrs: Vec<Instr>,
    inputs: Vec<DType>,
    interned: HashMap<Instr, ValueId>,
}

impl ProgramBuilder {
    pub fn new() -> ProgramBuilder {
        ProgramBuilder::default()
    }

    /// Adds the next input.
    pub fn input(&mut self, dtype: DType) -> ValueId {
        let imm = self.inputs.len() as u64;
        self.inputs.push(dtype);
        self.intern(Instr { prim: Prim::Input, dtype, operands: [0; 3], imm })
    }

    /// A constant by its bit pattern; bits beyond the dtype's width are dropped.
    pub fn constant(&mut self, dtype: DType, bits: u64) -> ValueId {
        let imm = Scalar::from_bits(bits, dtype);
        // Through the scalar only for bools, whose pattern is 0 or 1; a NaN's payload would not survive it.
        let imm = match imm {
            Scalar::Bool(value) => value as u64,
            _ => bits & (u64::MAX >> (64 - 8 * dtype.itemsize() as u32)),
        };
        self.intern(Instr { prim: Prim::Const, dtype, operands: [0; 3], imm })
    }

    /// The dtype of a value.
    pub fn dtype(&self, id: ValueId) -> Option<DType> {
        self.instrs.get(id as usize).map(|i| i.dtype)
    }

    /// How many instructions so far divide integers.
    pub fn divisions(&self) -> usize {
        self.instrs.iter().filter(|i| matches!(i.prim, Prim::FloorDiv | Prim::Mod)).count()
    }

    /// Applies one operator's expression. The result has the operator's dtype, so a low-precision chain is rounded
    /// after each operator, as running the operators one by one rounds it.
    pub fn apply(&mut self, expr: &ScalarExpr, args: &[Operand]) -> Result<ValueId, ExprError> {
        let mut bound = Vec::with_capacity(args.len());
        for &arg in args {
            bound.push(match arg {
                Operand::Value(id) => {
                    self.check(id)?;
                    Bound::Value(id)
                }
                Operand::Scalar(scalar) => Bound::Const(scalar),
            });
        }
        lower(expr, self, &bound)
    }

    /// Casts a value by the cast rules.
    pub fn cast(&mut self, id: ValueId, dtype: DType) -> Result<ValueId, ExprError> {
        self.check(id)?;
        Ok(self.emit(Prim::Cast, dtype, &[id]))
    }

    /// The program that computes `outputs` and nothing else. Every input stays in the signature.
    pub fn finish(self, outputs: &[ValueId]) -> Result<Program, ExprError> {
        for &id in outputs {
            self.check(id)?;
        }
        Ok(self.retain(outputs))
    }

    /// `finish` for outputs known to be values of this builder.
    fn retain(self, outputs: &[ValueId]) -> Program {
        let mut live = vec![false; self.instrs.len()];
        for &id in outputs {
            live[id as usize] = true;
        }
        for (k, instr) in self.instrs.iter().enumerate().rev() {
            if live[k] {
                instr.args().iter().for_each(|&id| live[id as usize] = true);
            }
        }
        let mut renamed = vec![0; self.instrs.len()];
        let mut instrs = Vec::new();
        for (k, instr) in self.instrs.into_iter().enumerate().filter(|&(k, _)| live[k]) {
            let operands = instr.operands.map(|id| renamed[id as usize]);
            renamed[k] = instrs.len() as ValueId;
            instrs.push(Instr { operands, ..instr });
        }
        let outputs = outputs.iter().map(|&id| renamed[id as usize]).collect();
        Program { instrs: instrs.into(), inputs: self.inputs.into(), outputs }
    }

    fn check(&self, id: ValueId) -> Result<(), ExprError> {
        if (id as usize) < self.instrs.len() {
            return Ok(());
        }
        Err(ExprError::Invalid(format!("%{id} is no value of this builder")))
    }

    fn intern(&mut self, instr: Instr) -> ValueId {
        *self.interned.entry(instr).or_insert_with(|| {
            self.instrs.push(instr);
            self.instrs.len() as ValueId - 1
        })
    }

    /// The bits of a value that is a constant.
    pub(crate) fn constant_bits(&self, id: ValueId) -> Option<u64> {
        let instr = &self.instrs[id as usize];
        (instr.prim == Prim::Const).then_some(instr.imm)
    }

    pub(crate) fn dtype_of(&self, id: ValueId) -> DType {
        self.instrs[id as usize].dtype
    }

    /// Adds an instruction whose operands the caller has typed, unless it simplifies to a value already there.
    pub(crate) fn emit(&mut self, prim: Prim, dtype: DType, args: &[ValueId]) -> ValueId {
        if let Some(id) = self.simplify(prim, dtype, args) {
            return id;
        }
        let mut operands = [0; 3];
        operands[..args.len()].copy_from_slice(args);
        self.intern(Instr { prim, dtype, operands, imm: 0 })
    }

    /// Rewrites that change no bit: constant operands, casts that cancel, selects without a choice.
    fn simplify(&mut self, prim: Prim, dtype: DType, args: &[ValueId]) -> Option<ValueId> {
        match (prim, args) {
            (Prim::Cast, &[x]) if self.dtype_of(x) == dtype => return Some(x),
            (Prim::Cast, &[x]) => {
                let inner = self.instrs[x as usize];
                let exact = inner.prim == Prim::Cast
                    && inner.dtype == DType::F32
                    && dtype.is_low_precision()
                    && self.dtype_of(inner.operands[0]) == dtype;
                if exact {
                    return Some(inner.operands[0]);
                }
            }
            (Prim::Select, &[_, a, b]) if a == b => return Some(a),
            (Prim::Select, &[c, a, b]) => {
                if let Some(bits) = self.constant_bits(c) {
                    return Some(if bits != 0 { a } else { b });
                }
            }
            _ => {}
        }
        let mut bits = [0; 3];
        for (slot, &id) in bits.iter_mut().zip(args) {
            *slot = self.constant_bits(id)?;
        }
        // Operand 0 of a select is its bool; a folded one was taken above.
        let operand = self.dtype_of(*args.first()?);
        let value = apply_prim(prim, dtype, operand, bits).ok()?;
        Some(self.constant(dtype, value))
    }
}

/// Copies `program` with each transcendental that is written out and each integer power replaced by its expansion.
pub(super) fn expand(program: &Program) -> Program {
    let mut b = ProgramBuilder { inputs: program.inputs.to_vec(), ..ProgramBuilder::default() };
    let mut renamed: Vec<ValueId> = Vec::with_capacity(program.instrs.len());
    for instr in &program.instrs {
        let operands = instr.operands.map(|id| renamed.get(id as usize).copied().unwrap_or(0));
        let args = &operands[..instr.prim.arity()];
        let id = match instr.prim {
            Prim::Input | Prim::Const => b.intern(*instr),
            prim if prim.is_transcendental() && instr.dtype == DType::F32 => {
                let (x, y) = (args[0], *args.last().unwrap_or(&args[0]));
                match expand_with(&mut b, prim, x, y) {
                    Some(id) => id,
                    None => b.emit(prim, instr.dtype, args),
                }
            }
            prim if prim.is_transcendental() && instr.dtype == DType::F64 => {
                match expand_wide(&mut b, prim, args[0]) {
                    Some(id) => id,
                    None => b.emit(prim, instr.dtype, args),
                }
            }
            Prim::IntPow => integer_power(&mut b, instr.dtype, args[0], args[1]),
            prim => b.emit(prim, instr.dtype, args),
        };
        renamed.push(id);
    }
    let outputs: Vec<ValueId> = program.outputs.iter().map(|&id| renamed[id as usize]).collect();
    b.retain(&outputs)
}

/// As `Integer::pow` computes it: by squaring, bit for bit of the exponent. Of a known exponent the steps that change
/// nothing fold away.
fn integer_power(b: &mut ProgramBuilder, dtype: DType, x: ValueId, y: ValueId) -> ValueId {
    let constant = |b: &mut ProgramBuilder, v: i64| b.constant(dtype, Scalar::Int(v).to_bits(dtype));
    let (zero, one) = (constant(b, 0), constant(b, 1));
    let bits = 8 * dtype.itemsize() as i64 - i64::from(dtype.is_signed());
    let odd = |b: &mut ProgramBuilder, bit: i64| {
        let shift = constant(b, bit);
        let shifted = if bit == 0 { y } else { b.emit(Prim::Shr, dtype, &[y, shift]) };
        let low = b.emit(Prim::And, dtype, &[shifted, one]);
        b.emit(Prim::Ne, DType::Bool, &[low, zero])
    };
    let (mut base, mut result) = (x, one);
    for bit in 0..bits {
        let product = if result == one { base } else { b.emit(Prim::Mul, dtype, &[result, base]) };
        let is_odd = odd(b, bit);
        result = b.emit(Prim::Select, dtype, &[is_odd, product, result]);
        base = b.emit(Prim::Mul, dtype, &[base, base]);
    }
    if !dtype.is_signed() {
        return result;
    }
    // The reciprocal, truncated.
    let minus_one = constant(b, -1);
    let is_odd = odd(b, 0);
    let sign = b.emit(Prim::Select, dtype, &[is_odd, minus_one, one]);
    let is_minus_one = b.emit(Prim::Eq, DType::Bool, &[x, minus_one]);
    let inverse = b.emit(Prim::Select, dtype, &[is_minus_one, sign, zero]);
    let is_one = b.emit(Prim::Eq, DType::Bool, &[x, one]);
    let inverse = b.emit(Prim::Select, dtype, &[is_one, one, inverse]);
    let negative = b.emit(Prim::Lt, DType::Bool, &[y, zero]);
    b.emit(Prim::Select, dtype, &[negative, inverse, result])
}

macro_rules! recorded {
    ($($name:ident($($arg:ident),*) = $prim:ident $dtype:ident;)*) => {$(
        fn $name(&mut self, $($arg: ValueId),*) -> ValueId {
            self.emit(Prim::$prim, DType::$dtype, &[$($arg),*])
        }
    )*};
}

impl Algebra for ProgramBuilder {
    type F = ValueId;
    type D = ValueId;
    type I = ValueId;
    type L = ValueId;
    type B = ValueId;

    fn f32(&mut self, value: f32) -> ValueId {
        self.constant(DType::F32, value.to_bits() as u64)
    }
    fn f64(&mut self, value: f64) -> ValueId {
        self.constant(DType::F64, value.to_bits())
    }
    fn i32(&mut self, value: i32) -> ValueId {
        self.constant(DType::I32, value as u32 as u64)
    }
    fn i64(&mut self, value: i64) -> ValueId {
        self.constant(DType::I64, value as u64)
    }

    recorded! {
        add(a, b) = Add F32;
        sub(a, b) = Sub F32;
        mul(a, b) = Mul F32;
        div(a, b) = Div F32;
        fma(a, b, c) = Fma F32;
        neg(a) = Neg F32;
        abs(a) = Abs F32;
        floor(a) = Floor F32;
        lt(a, b) = Lt Bool;
        eq(a, b) = Eq Bool;
        select(c, a, b) = Select F32;

        iadd(a, b) = Add I32;
        isub(a, b) = Sub I32;
        iand(a, b) = And I32;
        ior(a, b) = Or I32;
        ishl(a, count) = Shl I32;
        ishr(a, count) = Shr I32;

        dadd(a, b) = Add F64;
        dsub(a, b) = Sub F64;
        dmul(a, b) = Mul F64;
        ddiv(a, b) = Div F64;
        dfma(a, b, c) = Fma F64;
        dneg(a) = Neg F64;
        dabs(a) = Abs F64;
        dsqrt(a) = Sqrt F64;
        drint(a) = Rint F64;
        dlt(a, b) = Lt Bool;
        deq(a, b) = Eq Bool;
        dselect(c, a, b) = Select F64;

        ladd(a, b) = Add I64;
        lsub(a, b) = Sub I64;
        lor(a, b) = Or I64;
        lshl(a, count) = Shl I64;
        lshr(a, count) = Shr I64;

        and(a, b) = And Bool;
        or(a, b) = Or Bool;
        not(a) = Not Bool;

        bits(a) = Bitcast I32;
        float_of(a) = Bitcast F32;
        dbits(a) = Bitcast I64;
        double_of(a) = Bitcast F64;
        widen(a) = Cast F64;
        narrow(a) = Cast F32;
        int_to_float(a) = Cast F32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Hazard;

    fn expr(text: &str, params: &[&str]) -> ScalarExpr {
        ScalarExpr::parse(text, params).unwrap()
    }

    #[test]
    fn a_chain_shares_folds_and_drops() {
        let mut b = ProgramBuilder::new();
        let (x, y) = (b.input(DType::F32), b.input(DType::F32));
        let add = expr("x + y", &["x", "y"]);
        let s = b.apply(&add, &[Operand::Value(x), Operand::Value(y)]).unwrap();
        let again = b.apply(&add, &[Operand::Value(x), Operand::Value(y)]).unwrap();
        assert_eq!(s, again);
        b.apply(&expr("tanh(x)", &["x"]), &[Operand::Value(s)]).unwrap();
        let out = b
            .apply(&expr("x * (y + 1)", &["x", "y"]), &[Operand::Value(s), Operand::Scalar(Scalar::Int(1))])
            .unwrap();
        let program = b.finish(&[out]).unwrap();
        assert_eq!(program.verify(), Ok(()));
        assert_eq!(
            program.to_string(),
            "program(float32, float32) -> (float32)\n%0:float32 = input 0\n%1:float32 = input 1\n\
             %2:float32 = add %0 %1\n%3:float32 = const 0x40000000\n%4:float32 = mul %2 %3\nreturn %4\n"
        );
    }

    #[test]
    fn low_precision_is_rounded_between_operators() {
        let mut b = ProgramBuilder::new();
        let x = b.input(DType::BF16);
        let double = expr("x + x", &["x"]);
        let once = b.apply(&double, &[Operand::Value(x)]).unwrap();
        let twice = b.apply(&double, &[Operand::Value(once)]).unwrap();
        let program = b.finish(&[twice]).unwrap();
        let prims: Vec<_> = program.instrs().iter().map(|i| (i.prim.name(), i.dtype.name())).collect();
        let want = [
            ("input", "bfloat16"),
            ("cast", "float32"),
            ("add", "float32"),
            ("cast", "bfloat16"),
            ("cast", "float32"),
            ("add", "float32"),
            ("cast", "bfloat16"),
        ];
        assert_eq!(prims, want);
    }

    #[test]
    fn expansion_closes_float32_and_what_is_written_out_of_float64() {
        use crate::expr::ArgType::Tensor;
        let tanh = expr("tanh(x)", &["x"]);
        let single = tanh.program(&[Tensor(DType::F32)]).unwrap();
        assert_eq!(single.unsupported(), Some((Prim::Tanh, DType::F32)));
        let closed = single.expand();
        assert_eq!((closed.verify(), closed.is_closed()), (Ok(()), true));
        assert!(tanh.program(&[Tensor(DType::F64)]).unwrap().expand().is_closed());
        let library = expr("sin(tanh(x))", &["x"]).program(&[Tensor(DType::F64)]).unwrap().expand();
        assert_eq!(library.unsupported(), Some((Prim::Sin, DType::F64)));
    }

    #[test]
    fn integer_powers_expand_to_the_same_values() {
        use crate::eval::eval;
        use crate::expr::ArgType::{Const, Tensor};
        let power = expr("x ** y", &["x", "y"]);
        let values = [0, 1, 2, 3, 5, 7, 13, 100, 127, -1, -2, -3, -7, -128, i64::MAX, i64::MIN, 1 << 31];
        for dtype in [DType::U8, DType::I8, DType::I16, DType::I32, DType::I64] {
            let bits = |v: i64| Scalar::Int(v).to_bits(dtype) & (u64::MAX >> (64 - 8 * dtype.itemsize()));
            let plain = power.program(&[Tensor(dtype), Tensor(dtype)]).unwrap();
            let expanded = plain.expand();
            assert_eq!((expanded.verify(), expanded.is_closed()), (Ok(()), true));
            for x in values.map(bits) {
                for y in values.map(bits) {
                    assert_eq!(eval(&plain, &[x, y]), eval(&expanded, &[x, y]), "{dtype} {x} ** {y}");
                }
            }
            let cube = power.program(&[Tensor(dtype), Const(Scalar::Int(3))]).unwrap().expand();
            assert!(cube.instrs().len() < 8, "{cube}");
        }
    }

    #[test]
    fn hazards_name_division_by_an_unknown_integer() {
        use crate::expr::ArgType::Tensor;
        let ints = [Tensor(DType::I32), Tensor(DType::I32)];
        let by_y = expr("x // y", &["x", "y"]).program(&ints).unwrap();
        assert_eq!(by_y.hazards(), [Hazard::IntegerDivisionByZero]);
        let by_two = expr("x // 2", &["x"]).program(&ints[..1]).unwrap();
        assert_eq!(by_two.hazards(), []);
        let floats = [Tensor(DType::F32), Tensor(DType::F32)];
        assert_eq!(expr("x // y", &["x", "y"]).program(&floats).unwrap().hazards(), []);
    }

    #[test]
    fn foreign_values_are_errors() {
        let mut b = ProgramBuilder::new();
        let x = b.input(DType::F32);
        assert!(b.apply(&expr("x", &["x"]), &[Operand::Value(7)]).is_err());
        assert!(b.cast(7, DType::F32).is_err());
        assert_eq!((b.dtype(x), b.dtype(7)), (Some(DType::F32), None));
        assert!(b.finish(&[9]).is_err());
    }
}
