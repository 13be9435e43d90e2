//! Typing: an expression with concrete arguments becomes instructions of a `ProgramBuilder`.
//!
//! Each node has a *logical* dtype. float16 and bfloat16 are computed in float32 within one expression and rounded
//! once where the result leaves it; a value entering a low-precision operation from another dtype is rounded first.

use smallvec::SmallVec;
use tp_tensor::dtype::Category;
use tp_tensor::promote::{promote_types, promote_weak, result_type};
use tp_tensor::scalar::Bool;
use tp_tensor::{DType, Scalar};

use super::{ArgType, Func, Node, ParamRule, ScalarExpr, Stand};
use crate::error::ExprError;
use crate::prim::{Class, Prim};
use crate::program::{ProgramBuilder, ValueId};

/// An argument as the builder sees it.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    Value(ValueId),
    Const(Scalar),
}

#[derive(Clone, Copy)]
enum Typed {
    Weak(Scalar),
    /// A value of dtype `compute(logical)`.
    Strong {
        id: ValueId,
        logical: DType,
    },
}

/// The dtype that values of a logical dtype are held in inside an expression.
fn compute(logical: DType) -> DType {
    if logical.is_low_precision() { DType::F32 } else { logical }
}

impl ScalarExpr {
    pub(super) fn check_arity(&self, got: usize) -> Result<(), ExprError> {
        if got == self.params.len() {
            return Ok(());
        }
        Err(ExprError::Arity { what: format!("expression {self}"), want: self.params.len(), got })
    }

    /// The dtype the joint arguments are promoted to; `None` without any.
    pub(super) fn joint_dtype(&self, args: impl Iterator<Item = ArgType>) -> Option<DType> {
        let mut dtypes: SmallVec<[DType; 4]> = SmallVec::new();
        let mut scalars: SmallVec<[Scalar; 4]> = SmallVec::new();
        for (arg, _) in args.zip(&self.params).filter(|(_, rule)| **rule == ParamRule::Joint) {
            match arg {
                ArgType::Tensor(dtype) => dtypes.push(dtype),
                ArgType::Weak(Category::Bool) => scalars.push(Scalar::Bool(false)),
                ArgType::Weak(Category::Int) => scalars.push(Scalar::Int(0)),
                ArgType::Weak(Category::Float) => scalars.push(Scalar::Float(0.0)),
                ArgType::Const(scalar) => scalars.push(scalar),
            }
        }
        result_type(&dtypes, &scalars)
    }
}

/// Adds the expression's instructions; the result has the expression's dtype.
pub(crate) fn lower(expr: &ScalarExpr, b: &mut ProgramBuilder, args: &[Bound]) -> Result<ValueId, ExprError> {
    expr.check_arity(args.len())?;
    let widened =
        if args.iter().any(|arg| matches!(arg, Bound::Const(_))) { stand_ins(expr, b, args)? } else { None };
    let args = widened.as_deref().unwrap_or(args);
    let joint = expr.joint_dtype(args.iter().map(|arg| arg_type(b, arg)));
    let base = joint.unwrap_or(DType::Bool);
    let mut values: Vec<Typed> = Vec::with_capacity(expr.nodes.len());
    for node in &expr.nodes {
        let value = match *node {
            Node::Arg(k) => argument(b, args[k as usize], expr.params[k as usize], joint),
            Node::Literal(scalar) => Typed::Weak(scalar),
            Node::Call(func, operands) => {
                let operands = operands.map(|id| values.get(id as usize).copied());
                call(b, func, operands.map(|v| v.unwrap_or(Typed::Weak(Scalar::Int(0)))), base)?
            }
        };
        values.push(value);
    }
    match values.pop() {
        None => Err(ExprError::Invalid("an expression without a result".to_owned())),
        Some(Typed::Weak(scalar)) => {
            let dtype = promote_weak(base, scalar.category());
            Ok(b.constant(dtype, scalar.to_bits(dtype)))
        }
        Some(Typed::Strong { id, logical }) => Ok(b.emit(Prim::Cast, logical, &[id])),
    }
}

fn arg_type(b: &ProgramBuilder, arg: &Bound) -> ArgType {
    match *arg {
        Bound::Value(id) => ArgType::Tensor(b.dtype_of(id)),
        Bound::Const(scalar) => ArgType::Const(scalar),
    }
}

/// The arguments with what numbers that do not fit stand for; None where all fit.
fn stand_ins(
    expr: &ScalarExpr,
    b: &mut ProgramBuilder,
    args: &[Bound],
) -> Result<Option<SmallVec<[Bound; 4]>>, ExprError> {
    let types: SmallVec<[ArgType; 4]> = args.iter().map(|arg| arg_type(b, arg)).collect();
    let misfits = expr.misfits(&types)?;
    if misfits.is_empty() {
        return Ok(None);
    }
    let mut args: SmallVec<[Bound; 4]> = args.into();
    for (k, stand) in misfits {
        args[k] = match stand {
            Stand::Wide(v) => Bound::Value(b.constant(DType::I64, v as u64)),
            Stand::Bound(v) => Bound::Const(Scalar::Int(v)),
        };
    }
    Ok(Some(args))
}

fn argument(b: &mut ProgramBuilder, arg: Bound, rule: ParamRule, joint: Option<DType>) -> Typed {
    let target = match rule {
        ParamRule::Joint => joint,
        ParamRule::Fixed(dtype) => Some(dtype),
        ParamRule::Any => None,
    };
    match arg {
        Bound::Value(id) => {
            let logical = b.dtype_of(id);
            let value = Typed::Strong { id: b.emit(Prim::Cast, compute(logical), &[id]), logical };
            convert(b, value, target.unwrap_or(logical))
        }
        Bound::Const(scalar) => {
            let logical = target.unwrap_or(promote_weak(DType::Bool, scalar.category()));
            let id = b.constant(logical, scalar.to_bits(logical));
            Typed::Strong { id: b.emit(Prim::Cast, compute(logical), &[id]), logical }
        }
    }
}

/// The value as one of `logical`, rounded to it where it was not before.
fn convert(b: &mut ProgramBuilder, value: Typed, logical: DType) -> Typed {
    Typed::Strong { id: coerce(b, value, logical), logical }
}

fn coerce(b: &mut ProgramBuilder, value: Typed, target: DType) -> ValueId {
    match value {
        Typed::Weak(scalar) => b.constant(compute(target), scalar.to_bits(compute(target))),
        Typed::Strong { id, logical } if logical == target => id,
        Typed::Strong { id, .. } => {
            let rounded = b.emit(Prim::Cast, target, &[id]);
            b.emit(Prim::Cast, compute(target), &[rounded])
        }
    }
}

/// The dtype the operands meet in: tensors promoted, weak ones joined.
fn join(operands: &[Typed]) -> Option<DType> {
    let strong = operands.iter().filter_map(|v| match v {
        Typed::Strong { logical, .. } => Some(*logical),
        Typed::Weak(_) => None,
    });
    let kind = operands.iter().filter_map(|v| match v {
        Typed::Weak(scalar) => Some(scalar.category()),
        Typed::Strong { .. } => None,
    });
    let dtype = strong.reduce(promote_types)?;
    Some(kind.max().map_or(dtype, |kind| promote_weak(dtype, kind)))
}

fn call(b: &mut ProgramBuilder, func: Func, operands: [Typed; 3], joint: DType) -> Result<Typed, ExprError> {
    let (prim, arity) = match func {
        Func::Cast(dtype) => return Ok(convert_any(b, operands[0], dtype)),
        Func::Float => return Ok(to_float(b, operands[0])),
        Func::Copysign => (Prim::Or, 2),
        Func::Signbit => (Prim::Lt, 1),
        Func::Prim(prim) => (prim, prim.arity()),
    };
    let operands = &operands[..arity];
    match join(operands) {
        None => fold_weak(b, func, prim, operands),
        Some(_) if func == Func::Prim(Prim::Select) => Ok(select(b, operands, joint)),
        Some(dtype) => call_typed(b, func, operands, dtype),
    }
}

fn convert_any(b: &mut ProgramBuilder, value: Typed, dtype: DType) -> Typed {
    match value {
        // Rounded to the dtype, and from then on a value of it.
        Typed::Weak(scalar) => {
            let id = b.constant(dtype, scalar.to_bits(dtype));
            Typed::Strong { id: b.emit(Prim::Cast, compute(dtype), &[id]), logical: dtype }
        }
        strong => convert(b, strong, dtype),
    }
}

fn to_float(b: &mut ProgramBuilder, value: Typed) -> Typed {
    match value {
        Typed::Strong { logical, .. } => convert(b, value, float_dtype(logical)),
        Typed::Weak(scalar) => Typed::Weak(Scalar::Float(scalar.to::<f64>())),
    }
}

/// Literals among themselves stay weak: computed in float64, int64 or bool.
fn fold_weak(b: &mut ProgramBuilder, func: Func, prim: Prim, operands: &[Typed]) -> Result<Typed, ExprError> {
    let as_float = matches!(prim.class(), Class::Float | Class::Transcendental) || func == Func::Copysign;
    let kinds = operands.iter().filter_map(|v| match v {
        Typed::Weak(scalar) => Some(scalar.category()),
        Typed::Strong { .. } => None,
    });
    let dtype = match kinds.max() {
        Some(Category::Bool) if !as_float => DType::Bool,
        Some(Category::Int) if !as_float => DType::I64,
        _ => DType::F64,
    };
    if func == Func::Prim(Prim::Select) {
        let Typed::Weak(condition) = operands[0] else {
            return Ok(operands[1]);
        };
        return Ok(if condition.to::<Bool>().get() { operands[1] } else { operands[2] });
    }
    let strong: SmallVec<[Typed; 3]> = operands.iter().map(|&v| convert(b, v, dtype)).collect();
    match call_typed(b, func, &strong, dtype)? {
        Typed::Strong { id, logical } => match b.constant_bits(id) {
            Some(bits) => Ok(Typed::Weak(Scalar::from_bits(bits, logical))),
            None => Err(ExprError::DivisionByZero),
        },
        weak => Ok(weak),
    }
}

/// A call whose operands meet in `dtype`.
fn call_typed(
    b: &mut ProgramBuilder,
    func: Func,
    operands: &[Typed],
    dtype: DType,
) -> Result<Typed, ExprError> {
    let prim = match func {
        Func::Cast(dtype) => return Ok(convert_any(b, operands[0], dtype)),
        Func::Float => return Ok(to_float(b, operands[0])),
        Func::Copysign => {
            let logical = float_dtype(dtype);
            let (magnitude, sign) = (coerce(b, operands[0], logical), coerce(b, operands[1], logical));
            return Ok(Typed::Strong { id: copysign(b, compute(logical), magnitude, sign), logical });
        }
        Func::Signbit => return Ok(signbit(b, operands[0], dtype)),
        Func::Prim(prim) => prim,
    };
    let undefined = Err(ExprError::Type { op: prim.name(), dtype });
    let category = dtype.category();
    match (prim, category) {
        (Prim::Add | Prim::Max, Category::Bool) => return Ok(plain(b, Prim::Or, operands, dtype)),
        (Prim::Mul | Prim::Min, Category::Bool) => return Ok(plain(b, Prim::And, operands, dtype)),
        (Prim::Abs | Prim::Floor | Prim::Ceil | Prim::Trunc | Prim::Rint, Category::Bool | Category::Int)
            if prim != Prim::Abs || category == Category::Bool =>
        {
            return Ok(operands[0]);
        }
        (Prim::Fma, Category::Int) => {
            let product = plain(b, Prim::Mul, &operands[..2], dtype);
            return Ok(plain(b, Prim::Add, &[product, operands[2]], dtype));
        }
        (Prim::Pow, Category::Int) => return Ok(plain(b, Prim::IntPow, operands, dtype)),
        (Prim::FloorDiv, Category::Float) => return Ok(float_divmod(b, operands, dtype).0),
        (Prim::Mod, Category::Float) => return Ok(float_divmod(b, operands, dtype).1),
        (Prim::Shl | Prim::Shr, Category::Int) => return Ok(shift(b, prim, operands, dtype)),
        _ => {}
    }
    match prim.class() {
        Class::Compare => {
            let ids: SmallVec<[ValueId; 3]> = operands.iter().map(|&v| coerce(b, v, dtype)).collect();
            Ok(Typed::Strong { id: b.emit(prim, DType::Bool, &ids), logical: DType::Bool })
        }
        Class::Float | Class::Transcendental => Ok(plain(b, prim, operands, float_dtype(dtype))),
        Class::Native if prim == Prim::Fmod => Ok(plain(b, prim, operands, float_dtype(dtype))),
        Class::Arith if category != Category::Bool => Ok(plain(b, prim, operands, dtype)),
        Class::Int if category == Category::Int => Ok(plain(b, prim, operands, dtype)),
        Class::Bitwise if category != Category::Float => Ok(plain(b, prim, operands, dtype)),
        _ => undefined,
    }
}

/// Float functions take ints and bools to the default float dtype.
fn float_dtype(dtype: DType) -> DType {
    promote_weak(dtype, Category::Float)
}

fn plain(b: &mut ProgramBuilder, prim: Prim, operands: &[Typed], dtype: DType) -> Typed {
    let ids: SmallVec<[ValueId; 3]> = operands.iter().map(|&v| coerce(b, v, dtype)).collect();
    Typed::Strong { id: b.emit(prim, compute(dtype), &ids), logical: dtype }
}

/// Alternatives that are both literals join the expression's arguments, so that masks do not widen float16.
fn select(b: &mut ProgramBuilder, operands: &[Typed], joint: DType) -> Typed {
    let condition = coerce(b, operands[0], DType::Bool);
    let dtype = match join(&operands[1..]) {
        Some(dtype) => dtype,
        None => operands[1..].iter().fold(joint, |dtype, v| match v {
            Typed::Weak(scalar) => promote_weak(dtype, scalar.category()),
            Typed::Strong { .. } => dtype,
        }),
    };
    let (x, y) = (coerce(b, operands[1], dtype), coerce(b, operands[2], dtype));
    Typed::Strong { id: b.emit(Prim::Select, compute(dtype), &[condition, x, y]), logical: dtype }
}

/// Counts outside the width give what shifting bit by bit would: 0, or the sign.
fn shift(b: &mut ProgramBuilder, prim: Prim, operands: &[Typed], dtype: DType) -> Typed {
    let (x, count) = (coerce(b, operands[0], dtype), coerce(b, operands[1], dtype));
    let width = 8 * dtype.itemsize() as i64;
    let constant = |b: &mut ProgramBuilder, v: i64| b.constant(dtype, Scalar::Int(v).to_bits(dtype));
    let in_width = b.constant_bits(count).is_some_and(|bits| bits < width as u64);
    if in_width {
        return Typed::Strong { id: b.emit(prim, dtype, &[x, count]), logical: dtype };
    }
    let last = constant(b, width - 1);
    let masked = b.emit(Prim::And, dtype, &[count, last]);
    let shifted = b.emit(prim, dtype, &[x, masked]);
    let beyond = match prim {
        Prim::Shr if dtype.is_signed() => b.emit(Prim::Shr, dtype, &[x, last]),
        _ => constant(b, 0),
    };
    let in_range = b.emit(Prim::Eq, DType::Bool, &[masked, count]);
    Typed::Strong { id: b.emit(Prim::Select, dtype, &[in_range, shifted, beyond]), logical: dtype }
}

/// The int dtype of a float's width.
fn bits_dtype(float: DType) -> (DType, u64) {
    match float {
        DType::F64 => (DType::I64, 1 << 63),
        _ => (DType::I32, 1 << 31),
    }
}

fn copysign(b: &mut ProgramBuilder, held: DType, magnitude: ValueId, sign: ValueId) -> ValueId {
    let (bits, sign_bit) = bits_dtype(held);
    let magnitude = b.emit(Prim::Abs, held, &[magnitude]);
    let (magnitude, sign) = (b.emit(Prim::Bitcast, bits, &[magnitude]), b.emit(Prim::Bitcast, bits, &[sign]));
    let mask = b.constant(bits, sign_bit);
    let sign = b.emit(Prim::And, bits, &[sign, mask]);
    let joined = b.emit(Prim::Or, bits, &[magnitude, sign]);
    b.emit(Prim::Bitcast, held, &[joined])
}

fn signbit(b: &mut ProgramBuilder, x: Typed, dtype: DType) -> Typed {
    let mut id = coerce(b, x, dtype);
    let mut bits = dtype;
    if dtype.is_float() {
        bits = bits_dtype(compute(dtype)).0;
        id = b.emit(Prim::Bitcast, bits, &[id]);
    }
    if dtype.is_bool() {
        return Typed::Strong { id: b.constant(DType::Bool, 0), logical: DType::Bool };
    }
    let zero = b.constant(bits, 0);
    Typed::Strong { id: b.emit(Prim::Lt, DType::Bool, &[id, zero]), logical: DType::Bool }
}

/// Python's floor division and remainder of floats, by way of the exact `fmod`. Division by zero follows IEEE:
/// the quotient is `x / y`, the remainder NaN.
fn float_divmod(b: &mut ProgramBuilder, operands: &[Typed], dtype: DType) -> (Typed, Typed) {
    let held = compute(dtype);
    let strong = |id| Typed::Strong { id, logical: dtype };
    let (x, y) = (coerce(b, operands[0], dtype), coerce(b, operands[1], dtype));
    let constant = |b: &mut ProgramBuilder, v: f64| b.constant(held, Scalar::Float(v).to_bits(held));
    let (zero, half, one) = (constant(b, 0.0), constant(b, 0.5), constant(b, 1.0));

    let r = b.emit(Prim::Fmod, held, &[x, y]);
    let nonzero = b.emit(Prim::Ne, DType::Bool, &[r, zero]);
    let (r_negative, y_negative) =
        (b.emit(Prim::Lt, DType::Bool, &[r, zero]), b.emit(Prim::Lt, DType::Bool, &[y, zero]));
    let differ = b.emit(Prim::Xor, DType::Bool, &[r_negative, y_negative]);
    let adjust = b.emit(Prim::And, DType::Bool, &[nonzero, differ]);
    let moved = b.emit(Prim::Add, held, &[r, y]);
    let modulo = b.emit(Prim::Select, held, &[adjust, moved, r]);
    let signed_zero = copysign(b, held, zero, y);
    let modulo = b.emit(Prim::Select, held, &[nonzero, modulo, signed_zero]);

    // (x - r) / y is an integer but for rounding; rint would round a half the wrong way after a borrow.
    let exact = b.emit(Prim::Sub, held, &[x, r]);
    let quotient = b.emit(Prim::Div, held, &[exact, y]);
    let borrowed = b.emit(Prim::Sub, held, &[quotient, one]);
    let quotient = b.emit(Prim::Select, held, &[adjust, borrowed, quotient]);
    let floor = b.emit(Prim::Floor, held, &[quotient]);
    let rest = b.emit(Prim::Sub, held, &[quotient, floor]);
    let round_up = b.emit(Prim::Gt, DType::Bool, &[rest, half]);
    let raised = b.emit(Prim::Add, held, &[floor, one]);
    let floor = b.emit(Prim::Select, held, &[round_up, raised, floor]);
    let ratio = b.emit(Prim::Div, held, &[x, y]);
    let is_zero = b.emit(Prim::Eq, DType::Bool, &[floor, zero]);
    let zero_quotient = copysign(b, held, zero, ratio);
    let floor = b.emit(Prim::Select, held, &[is_zero, zero_quotient, floor]);
    let by_zero = b.emit(Prim::Eq, DType::Bool, &[y, zero]);
    (strong(b.emit(Prim::Select, held, &[by_zero, ratio, floor])), strong(modulo))
}
