//! Which operand a pointwise call always equals, read off its scalar program. Exact means every bit of every result, NaN
//! and -0 included (a signalling NaN, which any arithmetic would have made quiet, may stay one): what is not in the list
//! below is not the same. `x + 0`, `x * 0`, `x - x`, `x / x` and `(x + a) + b` are not among it.

use tp_expr::{Instr, Prim, Program};
use tp_tensor::dtype::Category;
use tp_tensor::{DType, Scalar};

/// The value of the program that its first output always equals, which is an input or its second output, if there is one.
pub(super) fn of(program: &Program) -> Option<u32> {
    let p = Rules { program };
    let out = *program.outputs().first()?;
    let equal = if p.at(out).prim == Prim::Input { out } else { p.simpler(out)? };
    let is_named = p.at(equal).prim == Prim::Input || program.outputs().get(1) == Some(&equal);
    is_named.then_some(equal)
}

struct Rules<'a> {
    program: &'a Program,
}

impl Rules<'_> {
    fn at(&self, id: u32) -> &Instr {
        &self.program.instrs()[id as usize]
    }

    fn is(&self, id: u32, number: Scalar) -> bool {
        let instr = self.at(id);
        instr.prim == Prim::Const && instr.imm == number.to_bits(instr.dtype)
    }

    /// An earlier value that is this one.
    fn simpler(&self, id: u32) -> Option<u32> {
        let instr = self.at(id);
        match *instr.args() {
            [a] => self.unary(instr, a),
            [a, b] => self.binary(instr, a, b).or_else(|| self.repeated(instr, a, b)),
            // select(c, x, x)
            [_, a, b] if instr.prim == Prim::Select && a == b => Some(a),
            _ => None,
        }
    }

    fn unary(&self, instr: &Instr, a: u32) -> Option<u32> {
        let inner = self.at(a);
        let below = inner.args().first().copied();
        match instr.prim {
            Prim::Neg | Prim::Not if inner.prim == instr.prim => below,
            Prim::Abs | Prim::Floor | Prim::Ceil | Prim::Trunc | Prim::Rint if inner.prim == instr.prim => {
                Some(a)
            }
            Prim::Abs if inner.dtype == DType::U8 => Some(a),
            // There and back without a loss.
            Prim::Cast if inner.prim == Prim::Cast => {
                let from = self.at(below?).dtype;
                (from == instr.dtype && holds(inner.dtype, from)).then_some(below?)
            }
            _ => None,
        }
    }

    fn binary(&self, instr: &Instr, a: u32, b: u32) -> Option<u32> {
        if matches!(instr.prim, Prim::Max | Prim::Min | Prim::And | Prim::Or) && a == b {
            return Some(a);
        }
        let float = instr.dtype.is_float();
        let (zero, one, ones) = match instr.dtype.category() {
            Category::Float => (Scalar::Float(0.0), Scalar::Float(1.0), None),
            Category::Int => (Scalar::Int(0), Scalar::Int(1), Some(Scalar::Int(-1))),
            Category::Bool => (Scalar::Bool(false), Scalar::Bool(true), Some(Scalar::Bool(true))),
        };
        let either = |number: Scalar| match () {
            () if self.is(b, number) => Some(a),
            () if self.is(a, number) => Some(b),
            () => None,
        };
        match instr.prim {
            Prim::Mul => either(one),
            Prim::Div if self.is(b, one) => Some(a),
            // x - (+0) keeps -0 and NaN; x + (+0) does not keep -0.
            Prim::Sub if self.is(b, zero) => Some(a),
            Prim::Add if float => either(Scalar::Float(-0.0)),
            Prim::Add => either(zero),
            Prim::Or | Prim::Xor => either(zero),
            Prim::And => ones.and_then(either),
            Prim::Shl | Prim::Shr if self.is(b, zero) => Some(a),
            _ => None,
        }
    }

    /// max(max(x, c), c), and x ^ c ^ c.
    fn repeated(&self, instr: &Instr, a: u32, b: u32) -> Option<u32> {
        let with = |inner: u32, other: u32| match *self.at(inner).args() {
            [x, c] if self.at(inner).prim == instr.prim && c == other => Some((inner, x)),
            [c, x] if self.at(inner).prim == instr.prim && c == other => Some((inner, x)),
            _ => None,
        };
        let (inner, x) = with(a, b).or_else(|| with(b, a))?;
        match instr.prim {
            Prim::Max | Prim::Min | Prim::And | Prim::Or => Some(inner),
            Prim::Xor => Some(x),
            _ => None,
        }
    }
}

/// Whether `wide` has every value of `narrow`, so that a cast there and back changes nothing.
fn holds(wide: DType, narrow: DType) -> bool {
    use DType as D;
    match narrow {
        D::Bool => true,
        // bfloat16 has eight bits of precision, enough for a byte.
        D::U8 => !matches!(wide, D::Bool | D::I8),
        D::I8 => !matches!(wide, D::Bool | D::U8),
        D::I16 => matches!(wide, D::I16 | D::I32 | D::I64 | D::F32 | D::F64),
        D::I32 => matches!(wide, D::I32 | D::I64 | D::F64),
        D::I64 => wide == D::I64,
        D::F16 | D::BF16 => matches!(wide, D::F32 | D::F64) || wide == narrow,
        D::F32 => matches!(wide, D::F32 | D::F64),
        D::F64 => wide == D::F64,
    }
}
