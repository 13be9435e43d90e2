//! The expression grammar: `;`-separated lets before one result, Python's operators and precedences, function calls.

use tp_tensor::{DType, Scalar};

use super::lex::{Token, error, tokens};
use super::{Func, Node, NodeId, ParamRule, ScalarExpr};
use crate::error::ExprError;
use crate::prim::{Class, Prim};

/// Nesting is bounded, since the parser recurses.
const MAX_DEPTH: usize = 64;
const MAX_NODES: usize = 4096;

/// Binary operators by ascending precedence; each level is left-associative.
const LEVELS: [&[(&str, Prim)]; 7] = [
    &[
        ("==", Prim::Eq),
        ("!=", Prim::Ne),
        ("<=", Prim::Le),
        (">=", Prim::Ge),
        ("<", Prim::Lt),
        (">", Prim::Gt),
    ],
    &[("|", Prim::Or)],
    &[("^", Prim::Xor)],
    &[("&", Prim::And)],
    &[("<<", Prim::Shl), (">>", Prim::Shr)],
    &[("+", Prim::Add), ("-", Prim::Sub)],
    &[("*", Prim::Mul), ("/", Prim::Div), ("//", Prim::FloorDiv), ("%", Prim::Mod)],
];

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token<'a>, usize)>,
    position: usize,
    depth: usize,
    names: Vec<(&'a str, NodeId)>,
    nodes: Vec<Node>,
}

pub fn parse(text: &str, params: &[&str]) -> Result<ScalarExpr, ExprError> {
    let mut parser =
        Parser { text, tokens: tokens(text)?, position: 0, depth: 0, names: Vec::new(), nodes: Vec::new() };
    let mut rules = Vec::with_capacity(params.len());
    for (i, param) in params.iter().enumerate() {
        let (name, rule) = parse_param(text, param)?;
        rules.push(rule);
        let id = parser.node(Node::Arg(i as u16))?;
        parser.names.push((name, id));
    }
    let result = parser.program()?;
    let mut nodes = parser.nodes;
    // The result is the last node, whatever it names.
    if result as usize + 1 != nodes.len() {
        nodes.push(nodes[result as usize]);
    }
    Ok(ScalarExpr { nodes: nodes.into(), params: rules.into(), source: text.into() })
}

fn parse_param<'a>(text: &str, param: &'a str) -> Result<(&'a str, ParamRule), ExprError> {
    let Some((name, rule)) = param.split_once(':') else {
        return Ok((param.trim(), ParamRule::Joint));
    };
    let rule = match rule.trim() {
        "any" => ParamRule::Any,
        dtype => {
            ParamRule::Fixed(dtype.parse().map_err(|e| error(text, 0, format!("parameter {name}: {e}")))?)
        }
    };
    Ok((name.trim(), rule))
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens[self.position].0
    }

    fn fail<T>(&self, message: String) -> Result<T, ExprError> {
        Err(error(self.text, self.tokens[self.position].1, message))
    }

    /// Takes the next token; `End` stays, so the position is always valid.
    fn advance(&mut self) -> Token<'a> {
        let token = self.peek();
        self.position += usize::from(token != Token::End);
        token
    }

    fn accept(&mut self, symbol: &'static str) -> bool {
        let found = self.peek() == Token::Symbol(symbol);
        self.position += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &'static str) -> Result<(), ExprError> {
        if self.accept(symbol) { Ok(()) } else { self.fail(format!("expected {symbol:?}")) }
    }

    /// Adds a node, or finds the equal one.
    fn node(&mut self, node: Node) -> Result<NodeId, ExprError> {
        if let Some(id) = self.nodes.iter().position(|n| *n == node) {
            return Ok(id as NodeId);
        }
        if self.nodes.len() == MAX_NODES {
            return self.fail(format!("more than {MAX_NODES} operations"));
        }
        self.nodes.push(node);
        Ok(self.nodes.len() as NodeId - 1)
    }

    fn call(&mut self, func: Func, args: &[NodeId]) -> Result<NodeId, ExprError> {
        let mut operands = [0; 3];
        operands[..args.len()].copy_from_slice(args);
        self.node(Node::Call(func, operands))
    }

    fn prim(&mut self, prim: Prim, args: &[NodeId]) -> Result<NodeId, ExprError> {
        self.call(Func::Prim(prim), args)
    }

    fn literal(&mut self, value: impl Into<Scalar>) -> Result<NodeId, ExprError> {
        self.node(Node::Literal(value.into()))
    }

    /// `name = expr ; ... ; expr`
    fn program(&mut self) -> Result<NodeId, ExprError> {
        loop {
            let next = self.tokens.get(self.position + 1).map(|t| t.0);
            if let (Token::Name(name), Some(Token::Symbol("="))) = (self.peek(), next) {
                self.position += 2;
                let id = self.expression()?;
                self.expect(";")?;
                // A later let shadows an earlier one.
                self.names.push((name, id));
                continue;
            }
            let result = self.expression()?;
            return match self.peek() {
                Token::End => Ok(result),
                _ => self.fail("expected an operator or the end".to_owned()),
            };
        }
    }

    fn expression(&mut self) -> Result<NodeId, ExprError> {
        self.binary(0)
    }

    fn binary(&mut self, level: usize) -> Result<NodeId, ExprError> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        while let Token::Symbol(symbol) = self.peek() {
            let Some(&(_, prim)) = operators.iter().find(|(s, _)| *s == symbol) else {
                break;
            };
            self.position += 1;
            let right = self.binary(level + 1)?;
            left = self.prim(prim, &[left, right])?;
        }
        Ok(left)
    }

    /// Prefix operators bind weaker than `**`, as in Python: `-x ** 2` is `-(x ** 2)`.
    fn unary(&mut self) -> Result<NodeId, ExprError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail(format!("nested deeper than {MAX_DEPTH}"));
        }
        let result = if self.accept("-") {
            let x = self.unary()?;
            self.prim(Prim::Neg, &[x])
        } else if self.accept("+") {
            self.unary()
        } else if self.accept("~") {
            let x = self.unary()?;
            self.prim(Prim::Not, &[x])
        } else {
            let base = self.atom()?;
            if self.accept("**") {
                let exponent = self.unary()?;
                self.prim(Prim::Pow, &[base, exponent])
            } else {
                Ok(base)
            }
        };
        self.depth -= 1;
        result
    }

    fn atom(&mut self) -> Result<NodeId, ExprError> {
        let start = self.position;
        match self.advance() {
            Token::Number(scalar) => self.literal(scalar),
            Token::Symbol("(") => {
                let id = self.expression()?;
                self.expect(")")?;
                Ok(id)
            }
            Token::Name(name) if self.peek() == Token::Symbol("(") => self.function(name),
            Token::Name(name) => self.name(name),
            _ => {
                self.position = start;
                self.fail("expected a value".to_owned())
            }
        }
    }

    fn name(&mut self, name: &str) -> Result<NodeId, ExprError> {
        if let Some(&(_, id)) = self.names.iter().rev().find(|(n, _)| *n == name) {
            return Ok(id);
        }
        match name {
            "inf" => self.literal(f64::INFINITY),
            "nan" => self.literal(f64::NAN),
            "pi" => self.literal(std::f64::consts::PI),
            "e" => self.literal(std::f64::consts::E),
            "true" => self.literal(true),
            "false" => self.literal(false),
            _ => {
                self.position -= 1;
                self.fail(format!("unknown name {name}"))
            }
        }
    }

    fn function(&mut self, name: &'a str) -> Result<NodeId, ExprError> {
        let start = self.position - 1;
        self.expect("(")?;
        let mut args = Vec::new();
        if name == "cast" {
            args.push(self.expression()?);
            self.expect(",")?;
            let Token::Name(dtype) = self.peek() else {
                return self.fail("expected a dtype".to_owned());
            };
            let Ok(dtype) = dtype.parse::<DType>() else {
                return self.fail(format!("unknown dtype {dtype}"));
            };
            self.advance();
            self.expect(")")?;
            return self.call(Func::Cast(dtype), &args);
        }
        if !self.accept(")") {
            loop {
                args.push(self.expression()?);
                if self.accept(")") {
                    break;
                }
                self.expect(",")?;
            }
        }
        match self.named_function(name, &args)? {
            Some(id) => Ok(id),
            None => {
                self.position = start;
                self.fail(format!("no function {name} of {}", tp_tensor::counted(args.len(), "argument")))
            }
        }
    }

    /// The function `name` of these arguments: one of the composite ones, or a primitive.
    fn named_function(&mut self, name: &str, args: &[NodeId]) -> Result<Option<NodeId>, ExprError> {
        let id = match (name, args) {
            ("where", _) if args.len() == 3 => self.prim(Prim::Select, args)?,
            ("maximum", _) if args.len() == 2 => self.prim(Prim::Max, args)?,
            ("minimum", _) if args.len() == 2 => self.prim(Prim::Min, args)?,
            ("round", _) if args.len() == 1 => self.prim(Prim::Rint, args)?,
            ("cast_bool", _) if args.len() == 1 => self.call(Func::Cast(DType::Bool), args)?,
            ("cast_float", _) if args.len() == 1 => self.call(Func::Float, args)?,
            ("copysign", _) if args.len() == 2 => self.call(Func::Copysign, args)?,
            ("signbit", _) if args.len() == 1 => self.call(Func::Signbit, args)?,
            ("square", &[x]) => self.prim(Prim::Mul, &[x, x])?,
            ("reciprocal", &[x]) => {
                let one = self.literal(1)?;
                self.prim(Prim::Div, &[one, x])?
            }
            ("rsqrt", &[x]) => {
                let (one, root) = (self.literal(1)?, self.prim(Prim::Sqrt, &[x])?);
                self.prim(Prim::Div, &[one, root])?
            }
            ("relu", &[x]) => {
                let zero = self.literal(0)?;
                self.prim(Prim::Max, &[x, zero])?
            }
            ("clamp", &[x, low, high]) => {
                let x = self.prim(Prim::Max, &[x, low])?;
                self.prim(Prim::Min, &[x, high])?
            }
            ("isnan", &[x]) => self.prim(Prim::Ne, &[x, x])?,
            ("isinf", &[x]) => self.compare_magnitude(Prim::Eq, x)?,
            ("isfinite", &[x]) => self.compare_magnitude(Prim::Lt, x)?,
            ("sign", &[x]) => self.sign(x)?,
            _ => match Prim::from_name(name) {
                Some(prim) if prim.arity() == args.len() && is_callable(prim) => self.prim(prim, args)?,
                _ => return Ok(None),
            },
        };
        Ok(Some(id))
    }

    fn compare_magnitude(&mut self, prim: Prim, x: NodeId) -> Result<NodeId, ExprError> {
        let (magnitude, inf) = (self.prim(Prim::Abs, &[x])?, self.literal(f64::INFINITY)?);
        self.prim(prim, &[magnitude, inf])
    }

    /// 1, -1, or `x` itself: a zero keeps its sign, NaN stays NaN.
    fn sign(&mut self, x: NodeId) -> Result<NodeId, ExprError> {
        let (zero, one, minus) = (self.literal(0)?, self.literal(1)?, self.literal(-1)?);
        let (positive, negative) = (self.prim(Prim::Gt, &[x, zero])?, self.prim(Prim::Lt, &[x, zero])?);
        let below = self.prim(Prim::Select, &[negative, minus, x])?;
        self.prim(Prim::Select, &[positive, one, below])
    }
}

fn is_callable(prim: Prim) -> bool {
    !matches!(prim.class(), Class::Source | Class::Cast | Class::Bitcast) && prim != Prim::IntPow
}
