//! `ScalarExpr`: one scalar function of scalars, written as text, with its dtype rule. Parsing is in `parse`, the
//! typing of an expression for concrete arguments in `lower`.

mod lex;
mod lower;
mod numbers;
mod parse;

use std::fmt;

pub(crate) use lower::{Bound, lower};
pub use numbers::Stand;
use tp_tensor::dtype::Category;
use tp_tensor::{DType, Scalar};

use crate::error::ExprError;
use crate::prim::Prim;
use crate::program::{Program, ProgramBuilder};

pub(crate) type NodeId = u16;

/// What a node computes from the nodes before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Func {
    Prim(Prim),
    Cast(DType),
    /// Ints and bools to the default float dtype; a float stays what it is.
    Float,
    Copysign,
    Signbit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Node {
    Arg(u16),
    /// Weak: it joins the dtype of what it meets.
    Literal(Scalar),
    Call(Func, [NodeId; 3]),
}

/// How an argument enters the expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParamRule {
    /// Promoted together with the other joint arguments.
    Joint,
    /// Cast to this dtype.
    Fixed(DType),
    /// Keeps its own dtype.
    Any,
}

/// A parsed expression. Nodes are in topological order; the last one is the result.
#[derive(Clone, Debug)]
pub struct ScalarExpr {
    nodes: Box<[Node]>,
    params: Box<[ParamRule]>,
    source: Box<str>,
}

/// An argument's type, as far as it is known before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgType {
    Tensor(DType),
    /// A weak Python scalar known only at run time: an input of the program, of the dtype the scalar joins.
    Weak(Category),
    /// A weak Python scalar baked in: no input of the program.
    Const(Scalar),
}

impl ScalarExpr {
    /// Parses `text` over named parameters. A parameter is `"x"` (all such are promoted together), `"c: bool"` (cast
    /// to a dtype, not promoted) or `"y: any"` (keeps its dtype).
    pub fn parse(text: &str, params: &[&str]) -> Result<ScalarExpr, ExprError> {
        parse::parse(text, params)
    }

    /// The number of parameters.
    pub fn params(&self) -> usize {
        self.params.len()
    }

    /// The dtype of the result.
    pub fn output_dtype(&self, args: &[ArgType]) -> Result<DType, ExprError> {
        let mut builder = ProgramBuilder::new();
        let id = self.lower_into(&mut builder, args)?;
        Ok(builder.dtype_of(id))
    }

    /// The expression as a program of its own; the inputs are the arguments that are not `Const`, in order.
    pub fn program(&self, args: &[ArgType]) -> Result<Program, ExprError> {
        let mut builder = ProgramBuilder::new();
        let id = self.lower_into(&mut builder, args)?;
        builder.finish(&[id])
    }

    fn lower_into(&self, builder: &mut ProgramBuilder, args: &[ArgType]) -> Result<u32, ExprError> {
        self.check_arity(args.len())?;
        let joint = self.joint_dtype(args.iter().copied());
        let mut bound = Vec::with_capacity(args.len());
        for (&arg, &rule) in args.iter().zip(&self.params) {
            bound.push(match arg {
                ArgType::Tensor(dtype) => Bound::Value(builder.input(dtype)),
                ArgType::Weak(kind) => Bound::Value(builder.input(weak_dtype(rule, joint, kind))),
                ArgType::Const(scalar) => Bound::Const(scalar),
            });
        }
        lower(self, builder, &bound)
    }
}

/// The dtype that a weak scalar of kind `kind` has as an argument.
fn weak_dtype(rule: ParamRule, joint: Option<DType>, kind: Category) -> DType {
    match (rule, joint) {
        (ParamRule::Fixed(dtype), _) => dtype,
        (ParamRule::Joint, Some(dtype)) => dtype,
        _ => tp_tensor::promote::default_dtype(kind),
    }
}

/// Prints the source text.
impl fmt::Display for ScalarExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::eval;
    use DType::*;

    fn run(text: &str, params: &[&str], args: &[(DType, Scalar)]) -> Scalar {
        let types: Vec<ArgType> = args.iter().map(|&(d, _)| ArgType::Tensor(d)).collect();
        let program = ScalarExpr::parse(text, params).unwrap().program(&types).unwrap();
        program.verify().unwrap();
        let bits: Vec<u64> = args.iter().map(|&(d, s)| s.to_bits(d)).collect();
        let out = eval(&program, &bits).unwrap();
        let dtype = program.output_dtypes().next().unwrap();
        Scalar::from_bits(out[0], dtype)
    }

    fn f32_of(text: &str, x: f64) -> f64 {
        match run(text, &["x"], &[(F32, Scalar::Float(x))]) {
            Scalar::Float(v) => v,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn precedence_is_pythons() {
        assert_eq!(f32_of("1 + 2 * x ** 2", 3.0), 19.0);
        assert_eq!(f32_of("-x ** 2", 3.0), -9.0);
        assert_eq!(f32_of("2 ** -x", 1.0), 0.5);
        assert_eq!(f32_of("x - 1 - 1", 3.0), 1.0);
        assert_eq!(f32_of("(x - 1) / 4 * 2", 3.0), 1.0);
        assert_eq!(f32_of("t = x * x; t = t + 1; t * t", 2.0), 25.0);
        assert_eq!(f32_of("select(x > 1 , x, 0*x)", 3.0), 3.0);
        let bits = run("a | b & 1 << 2 ^ 1", &["a", "b"], &[(I32, Scalar::Int(8)), (I32, Scalar::Int(6))]);
        assert_eq!(bits, Scalar::Int(8 | ((6 & (1 << 2)) ^ 1)));
    }

    #[test]
    fn dtype_rules() {
        let dtype = |text: &str, params: &[&str], args: &[ArgType]| {
            ScalarExpr::parse(text, params).unwrap().output_dtype(args).unwrap()
        };
        use ArgType::{Const, Tensor, Weak};
        let xy = ["x", "y"];
        assert_eq!(dtype("x + y", &xy, &[Tensor(U8), Tensor(I8)]), I16);
        assert_eq!(dtype("x + y", &xy, &[Tensor(F16), Tensor(BF16)]), F32);
        assert_eq!(dtype("x + y", &xy, &[Tensor(I32), Weak(Category::Float)]), F32);
        assert_eq!(dtype("x + y", &xy, &[Tensor(F16), Const(Scalar::Float(0.1))]), F16);
        assert_eq!(dtype("x / y", &xy, &[Tensor(I32), Tensor(I64)]), F32);
        assert_eq!(dtype("x // y", &xy, &[Tensor(I32), Tensor(I64)]), I64);
        assert_eq!(dtype("exp(x)", &["x"], &[Tensor(Bool)]), F32);
        assert_eq!(dtype("exp(x)", &["x"], &[Tensor(BF16)]), BF16);
        assert_eq!(dtype("x < y", &xy, &[Tensor(I32), Tensor(F64)]), Bool);
        assert_eq!(dtype("x + y", &xy, &[Tensor(Bool), Tensor(Bool)]), Bool);
        assert_eq!(
            dtype("select(c, x, y)", &["c: bool", "x", "y"], &[Tensor(I64), Tensor(F16), Tensor(I8)]),
            F16
        );
        assert_eq!(dtype("select(x > 0, 1.0, 0.0) * x", &["x"], &[Tensor(F16)]), F16);
        assert_eq!(dtype("cast(x, int8)", &["x"], &[Tensor(F64)]), I8);
        assert_eq!(dtype("1.0", &["x"], &[Tensor(F64)]), F64);
        assert_eq!(dtype("floor(x)", &["x"], &[Tensor(I16)]), I16);
        assert_eq!(dtype("x", &["x: any", "y"], &[Tensor(U8), Tensor(F64)]), U8);
    }

    #[test]
    fn low_precision_computes_in_float32_and_rounds_once() {
        let args = [ArgType::Tensor(F16), ArgType::Const(Scalar::Float(0.1))];
        let program = ScalarExpr::parse("x * y * 0.1", &["x", "y"]).unwrap().program(&args).unwrap();
        // The argument 0.1 is rounded to float16 (0x2e66), the literal to float32 only.
        assert_eq!(
            program.to_string(),
            "program(float16) -> (float16)\n%0:float16 = input 0\n%1:float32 = cast %0\n\
             %2:float32 = const 0x3dccc000\n%3:float32 = mul %1 %2\n%4:float32 = const 0x3dcccccd\n\
             %5:float32 = mul %3 %4\n%6:float16 = cast %5\nreturn %6\n"
        );
        let passes = ScalarExpr::parse("x", &["x"]).unwrap().program(&args[..1]).unwrap();
        assert_eq!(passes.instrs().len(), 1);
    }

    #[test]
    fn python_signs_of_float_division() {
        for (x, y, q, r) in [
            (7.0, 2.0, 3.0, 1.0),
            (-7.0, 2.0, -4.0, 1.0),
            (7.0, -2.0, -4.0, -1.0),
            (-7.5, -2.0, 3.0, -1.5),
            (1.0, f64::INFINITY, 0.0, 1.0),
            (-1.0, f64::INFINITY, -1.0, f64::INFINITY),
            (-0.0, 3.0, -0.0, 0.0),
            (6.0, 0.1, 59.0, 6.0 % 0.1),
        ] {
            let args = [(F64, Scalar::Float(x)), (F64, Scalar::Float(y))];
            assert_eq!(run("x // y", &["x", "y"], &args), Scalar::Float(q), "{x} // {y}");
            assert_eq!(run("x % y", &["x", "y"], &args), Scalar::Float(r), "{x} % {y}");
        }
        let zero = [(F32, Scalar::Float(-1.0)), (F32, Scalar::Float(0.0))];
        assert_eq!(run("x // y", &["x", "y"], &zero), Scalar::Float(f64::NEG_INFINITY));
        assert_eq!(run("isnan(x % y)", &["x", "y"], &zero), Scalar::Bool(true));
    }

    #[test]
    fn composite_functions() {
        let at = |text: &str, dtype: DType, x: Scalar| run(text, &["x"], &[(dtype, x)]);
        let f = Scalar::Float;
        assert_eq!(at("sign(x)", F32, f(-0.0)), f(-0.0));
        assert_eq!(at("sign(x)", F32, f(-7.0)), f(-1.0));
        assert_eq!(at("isnan(sign(x))", F32, f(f64::NAN)), Scalar::Bool(true));
        assert_eq!(at("relu(x)", F32, f(-3.0)), f(0.0));
        assert_eq!(at("isnan(relu(x))", BF16, f(f64::NAN)), Scalar::Bool(true));
        assert_eq!(at("clamp(x, -1, 1)", F16, f(5.0)), f(1.0));
        assert_eq!(at("isfinite(x)", I32, Scalar::Int(5)), Scalar::Bool(true));
        assert_eq!(at("signbit(x)", F16, f(-0.0)), Scalar::Bool(true));
        assert_eq!(at("copysign(3, x)", F64, f(-0.0)), f(-3.0));
        assert_eq!(at("x << 40", I32, Scalar::Int(1)), Scalar::Int(0));
        assert_eq!(at("-8 >> x", I32, Scalar::Int(-1)), Scalar::Int(-1));
        assert_eq!(at("x >> 1", I8, Scalar::Int(-8)), Scalar::Int(-4));
        assert_eq!(at("x ** 3", I32, Scalar::Int(-2)), Scalar::Int(-8));
        assert_eq!(at("rsqrt(x)", F32, f(4.0)), f(0.5));
        assert_eq!(at("x * (1 / 3)", F64, f(3.0)), f(1.0));
        assert_eq!(at("x * sqrt(2 / pi)", F64, f(1.0)), f((2.0 / std::f64::consts::PI).sqrt()));
    }

    #[test]
    fn bad_texts_name_the_place() {
        for (text, at) in [
            ("x +", 3),
            ("x + z", 4),
            ("foo(x)", 0),
            ("tanh(x, x)", 0),
            ("(x", 2),
            ("x x", 2),
            ("x $ 1", 2),
            ("cast(x, f33)", 8),
            ("99999999999999999999", 0),
        ] {
            match ScalarExpr::parse(text, &["x"]) {
                Err(ExprError::Parse { at: got, .. }) => assert_eq!(got, at, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        let deep = format!("{}x{}", "(".repeat(10_000), ")".repeat(10_000));
        assert!(matches!(ScalarExpr::parse(&deep, &["x"]), Err(ExprError::Parse { .. })));
        assert!(ScalarExpr::parse("x", &["x: int33"]).is_err());
    }

    #[test]
    fn undefined_operations_are_type_errors() {
        for (text, dtype, op) in
            [("-x", Bool, "neg"), ("x & 1.5", I32, "and"), ("x - x", Bool, "sub"), ("~x", F32, "not")]
        {
            let got = ScalarExpr::parse(text, &["x"]).unwrap().program(&[ArgType::Tensor(dtype)]);
            assert!(matches!(got, Err(ExprError::Type { op: o, .. }) if o == op), "{text}: {got:?}");
        }
        let x = ScalarExpr::parse("x", &["x"]).unwrap();
        assert!(matches!(x.program(&[]), Err(ExprError::Arity { want: 1, got: 0, .. })));
        let zero = ScalarExpr::parse("x + 1 // 0", &["x"]).unwrap();
        assert_eq!(zero.program(&[ArgType::Tensor(I32)]), Err(ExprError::DivisionByZero));
    }
}
