//! Arithmetic of weak numbers inside formulas, with Python's rules: ints stay ints but for `/` and negative powers.

use tp_tensor::Scalar;

/// An operation on numbers only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ScalarFn {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    FloorDiv,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
    Max,
    Min,
    Neg,
    Abs,
    Sign,
    Sqrt,
    Exp,
    Log,
    Signbit,
}

/// The operation that a tensor op of that name is on numbers.
pub(super) fn by_name(name: &str) -> Option<ScalarFn> {
    use ScalarFn as F;
    Some(match name {
        "add" => F::Add,
        "sub" => F::Sub,
        "mul" => F::Mul,
        "div" => F::Div,
        "pow" => F::Pow,
        "floor_divide" => F::FloorDiv,
        "eq" => F::Eq,
        "ne" => F::Ne,
        "lt" => F::Lt,
        "le" => F::Le,
        "gt" => F::Gt,
        "ge" => F::Ge,
        "bitwise_and" => F::And,
        "bitwise_or" => F::Or,
        "maximum" => F::Max,
        "minimum" => F::Min,
        "neg" => F::Neg,
        "abs" => F::Abs,
        "sign" => F::Sign,
        "sqrt" => F::Sqrt,
        "exp" => F::Exp,
        "log" => F::Log,
        "signbit" => F::Signbit,
        _ => return None,
    })
}

pub(super) fn truth(s: Scalar) -> bool {
    match s {
        Scalar::Bool(b) => b,
        Scalar::Int(v) => v != 0,
        Scalar::Float(v) => v != 0.0,
    }
}

fn float(s: Scalar) -> f64 {
    match s {
        Scalar::Bool(b) => f64::from(u8::from(b)),
        Scalar::Int(v) => v as f64,
        Scalar::Float(v) => v,
    }
}

fn int(s: Scalar) -> Option<i64> {
    match s {
        Scalar::Bool(b) => Some(i64::from(b)),
        Scalar::Int(v) => Some(v),
        Scalar::Float(_) => None,
    }
}

/// Applies `f`; a function of one number ignores `b`.
pub(super) fn apply(f: ScalarFn, a: Scalar, b: Scalar) -> Scalar {
    if let (Some(x), Some(y)) = (int(a), int(b))
        && let Some(v) = on_ints(f, x, y)
    {
        return Scalar::Int(v);
    }
    on_floats(f, a, b)
}

/// None where the result is no int.
fn on_ints(f: ScalarFn, x: i64, y: i64) -> Option<i64> {
    use ScalarFn as F;
    Some(match f {
        F::Add => x.wrapping_add(y),
        F::Sub => x.wrapping_sub(y),
        F::Mul => x.wrapping_mul(y),
        F::Pow if (0..64).contains(&y) => x.checked_pow(y as u32)?,
        F::FloorDiv if y != 0 => x.wrapping_div_euclid(y) - i64::from(y < 0 && x.wrapping_rem_euclid(y) != 0),
        F::Max => x.max(y),
        F::Min => x.min(y),
        F::Neg => x.wrapping_neg(),
        F::Abs => x.wrapping_abs(),
        F::Sign => x.signum(),
        _ => return None,
    })
}

fn on_floats(f: ScalarFn, a: Scalar, b: Scalar) -> Scalar {
    use ScalarFn as F;
    let (x, y) = (float(a), float(b));
    Scalar::Float(match f {
        F::Add => x + y,
        F::Sub => x - y,
        F::Mul => x * y,
        F::Div => x / y,
        F::Pow => x.powf(y),
        F::FloorDiv => (x / y).floor(),
        F::Max if x.is_nan() || x > y => x,
        F::Min if x.is_nan() || x < y => x,
        F::Max | F::Min => y,
        F::Neg => -x,
        F::Abs => x.abs(),
        F::Sign if x == 0.0 || x.is_nan() => x,
        F::Sign => x.signum(),
        F::Sqrt => x.sqrt(),
        F::Exp => x.exp(),
        F::Log => x.ln(),
        F::Eq => return Scalar::Bool(x == y),
        F::Ne => return Scalar::Bool(x != y),
        F::Lt => return Scalar::Bool(x < y),
        F::Le => return Scalar::Bool(x <= y),
        F::Gt => return Scalar::Bool(x > y),
        F::Ge => return Scalar::Bool(x >= y),
        F::And => return Scalar::Bool(truth(a) && truth(b)),
        F::Or => return Scalar::Bool(truth(a) || truth(b)),
        F::Signbit => return Scalar::Bool(x.is_sign_negative()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Scalar::{Bool, Float, Int};

    #[test]
    fn follows_python() {
        assert_eq!(apply(ScalarFn::Sub, Int(3), Int(1)), Int(2));
        assert_eq!(apply(ScalarFn::Div, Int(1), Int(2)), Float(0.5));
        assert_eq!(apply(ScalarFn::Pow, Int(2), Int(-1)), Float(0.5));
        assert_eq!(apply(ScalarFn::Pow, Int(2), Int(10)), Int(1024));
        assert_eq!(apply(ScalarFn::FloorDiv, Int(-7), Int(2)), Int(-4));
        assert_eq!(apply(ScalarFn::FloorDiv, Int(7), Int(-2)), Int(-4));
        assert_eq!(apply(ScalarFn::FloorDiv, Int(-7), Int(-2)), Int(3));
        assert_eq!(apply(ScalarFn::Ge, Int(2), Float(2.0)), Bool(true));
        assert_eq!(apply(ScalarFn::And, Bool(true), Bool(false)), Bool(false));
        assert_eq!(apply(ScalarFn::Signbit, Float(-0.0), Int(0)), Bool(true));
    }
}
