//! The text of a formula to steps, in one pass. The grammar is that of scalar expressions: Python's operators and
//! precedence, calls, numbers, and `name = value;` before the result. Whether an operand is a tensor or a number is
//! known while parsing, so each operator becomes the right overload at once.

use super::Variable;
use super::run::{Formula, Source, Step};
use super::scalar;
use smallvec::{SmallVec, smallvec};
use std::sync::OnceLock;
use tp_tensor::{DType, Scalar};

type Parsed<T> = Result<T, String>;

pub(super) struct Parser<'a> {
    text: &'a str,
    at: usize,
    variables: &'a [Variable],
    lets: Vec<(&'a str, Source)>,
    steps: Vec<Step>,
    /// Which steps give tensors.
    tensors: Vec<bool>,
    uses: u64,
}

/// Binary operators with their op and binding power; longer ones first.
const BINARY: &[(&str, &str, u8)] = &[
    ("==", "eq", 1),
    ("!=", "ne", 1),
    ("<=", "le", 1),
    (">=", "ge", 1),
    ("**", "pow", 9),
    ("//", "floor_divide", 6),
    ("<", "lt", 1),
    (">", "gt", 1),
    ("|", "bitwise_or", 2),
    ("^", "bitwise_xor", 3),
    ("&", "bitwise_and", 4),
    ("+", "add", 5),
    ("-", "sub", 5),
    ("*", "mul", 6),
    ("/", "div", 6),
    ("%", "remainder", 6),
];
/// Unary operators bind tighter than products and looser than powers.
const UNARY: u8 = 7;

impl<'a> Parser<'a> {
    pub fn formula(text: &'a str, variables: &'a [Variable]) -> Parsed<Formula> {
        let mut p = Parser {
            text,
            at: 0,
            variables,
            lets: Vec::new(),
            steps: Vec::new(),
            tensors: Vec::new(),
            uses: 0,
        };
        let result = p.program()?;
        Ok(Formula::new(p.steps, result, p.uses))
    }

    fn program(&mut self) -> Parsed<Source> {
        loop {
            let start = self.at;
            if let Some(name) = self.word()
                && self.take("=")
            {
                let value = self.expression(0)?;
                self.lets.push((name, value));
                self.expect(";")?;
                continue;
            }
            self.at = start;
            let value = self.expression(0)?;
            self.space();
            return if self.at == self.text.len() { Ok(value) } else { Err(self.error("unexpected text")) };
        }
    }

    fn error(&self, what: &str) -> String {
        format!("{what} at byte {} of {:?}", self.at, self.text)
    }

    fn space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Takes a symbol; `=` does not take the first half of `==`.
    fn take(&mut self, symbol: &str) -> bool {
        self.space();
        let Some(rest) = self.text[self.at..].strip_prefix(symbol) else { return false };
        if symbol == "=" && rest.starts_with('=') {
            return false;
        }
        self.at += symbol.len();
        true
    }

    fn expect(&mut self, symbol: &str) -> Parsed<()> {
        if self.take(symbol) { Ok(()) } else { Err(self.error(&format!("expected '{symbol}'"))) }
    }

    fn word(&mut self) -> Option<&'a str> {
        self.space();
        let rest = &self.text[self.at..];
        if !rest.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            return None;
        }
        let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        self.at += len;
        Some(&rest[..len])
    }

    fn expression(&mut self, min: u8) -> Parsed<Source> {
        let mut left = self.prefix()?;
        loop {
            self.space();
            let rest = &self.text[self.at..];
            let Some(&(symbol, op, power)) = BINARY.iter().find(|(s, ..)| rest.starts_with(s)) else {
                return Ok(left);
            };
            if power < min {
                return Ok(left);
            }
            self.at += symbol.len();
            // Powers associate to the right, and their exponent may start with a sign.
            let right = self.expression(if op == "pow" { UNARY } else { power + 1 })?;
            left = self.call(op, smallvec![left, right])?;
        }
    }

    fn prefix(&mut self) -> Parsed<Source> {
        if self.take("-") {
            let x = self.expression(UNARY)?;
            return self.call("neg", smallvec![x]);
        }
        if self.take("~") {
            let x = self.expression(UNARY)?;
            return self.call("bitwise_invert", smallvec![x]);
        }
        if self.take("(") {
            let x = self.expression(0)?;
            self.expect(")")?;
            return Ok(x);
        }
        match self.word() {
            None => self.number(),
            Some(name) if self.take("(") => self.function(name),
            Some(name) => self.name(name),
        }
    }

    fn number(&mut self) -> Parsed<Source> {
        let rest = &self.text[self.at..];
        let mut end = 0;
        let mut exponent = false;
        for (i, c) in rest.char_indices() {
            let sign_of_exponent = exponent && matches!(c, '+' | '-') && matches!(&rest[i - 1..i], "e" | "E");
            if !(c.is_ascii_digit() || c == '.' || matches!(c, 'e' | 'E') || sign_of_exponent) {
                break;
            }
            exponent |= matches!(c, 'e' | 'E');
            end = i + 1;
        }
        let literal = &rest[..end];
        let number = match literal.parse::<i64>() {
            Ok(v) => Scalar::Int(v),
            Err(_) => Scalar::Float(literal.parse().map_err(|_| self.error("expected a value"))?),
        };
        self.at += end;
        Ok(Source::Number(number))
    }

    fn name(&mut self, name: &str) -> Parsed<Source> {
        if let Some((_, source)) = self.lets.iter().rev().find(|(n, _)| *n == name) {
            return Ok(*source);
        }
        if name == "grad" {
            return Ok(Source::Grad);
        }
        if let Some(i) = self.variables.iter().position(|v| &*v.name == name) {
            self.uses |= 1 << i;
            return Ok(Source::Variable(i));
        }
        Ok(match name {
            "true" => Source::Number(Scalar::Bool(true)),
            "false" => Source::Number(Scalar::Bool(false)),
            "inf" => Source::Number(Scalar::Float(f64::INFINITY)),
            "nan" => Source::Number(Scalar::Float(f64::NAN)),
            "pi" => Source::Number(Scalar::Float(std::f64::consts::PI)),
            "e" => Source::Number(Scalar::Float(std::f64::consts::E)),
            _ => Source::DType(
                name.parse::<DType>().map_err(|_| self.error(&format!("unknown name '{name}'")))?,
            ),
        })
    }

    fn function(&mut self, name: &str) -> Parsed<Source> {
        let mut args: SmallVec<[Source; 3]> = SmallVec::new();
        if !self.take(")") {
            loop {
                args.push(self.expression(0)?);
                if self.take(")") {
                    break;
                }
                self.expect(",")?;
            }
        }
        let op = match name {
            "select" | "where" => return self.select(&args),
            "cast_bool" => {
                args.push(Source::DType(DType::Bool));
                "astype"
            }
            "cast" => "astype",
            "max" => "maximum",
            "min" => "minimum",
            "rint" => "round",
            "mod" => "remainder",
            "floordiv" => "floor_divide",
            other => other,
        };
        self.call(op, args)
    }

    fn is_tensor(&self, source: Source) -> bool {
        match source {
            Source::Grad => true,
            Source::Variable(i) => self.variables[i].is_tensor,
            Source::Step(i) => self.tensors[i],
            Source::Number(_) | Source::DType(_) => false,
        }
    }

    fn push(&mut self, step: Step, is_tensor: bool) -> Source {
        self.steps.push(step);
        self.tensors.push(is_tensor);
        Source::Step(self.steps.len() - 1)
    }

    fn push_op(&mut self, name: String, args: SmallVec<[Source; 3]>) -> Source {
        self.push(Step::Op { name: name.into(), op: OnceLock::new(), args }, true)
    }

    /// An operator or function of one or two operands.
    fn call(&mut self, op: &str, args: SmallVec<[Source; 3]>) -> Parsed<Source> {
        let kinds: SmallVec<[bool; 3]> = args.iter().map(|&a| self.is_tensor(a)).collect();
        let overload = match (kinds.as_slice(), args.last()) {
            ([true], _) | ([true, true], _) | ([true, false], Some(Source::DType(_))) => "",
            ([true, false], _) => ".Scalar",
            ([false, true], _) => ".ScalarLeft",
            ([false] | [false, false], _) => return self.numbers(op, &args),
            _ => return Err(self.error(&format!("'{op}' takes one or two operands"))),
        };
        Ok(self.push_op(format!("tp::{op}{overload}"), args))
    }

    /// An operation on numbers: at once for literals, else a step.
    fn numbers(&mut self, op: &str, args: &[Source]) -> Parsed<Source> {
        let f =
            scalar::by_name(op).ok_or_else(|| self.error(&format!("'{op}' is not defined for numbers")))?;
        let b = args.get(1).copied().unwrap_or(Source::Number(Scalar::Int(0)));
        Ok(match (args[0], b) {
            (Source::Number(x), Source::Number(y)) => Source::Number(scalar::apply(f, x, y)),
            (a, b) => self.push(Step::Number { f, args: [a, b] }, false),
        })
    }

    fn select(&mut self, args: &[Source]) -> Parsed<Source> {
        let &[condition, a, b] = args else { return Err(self.error("select takes three operands")) };
        if let Source::Number(s) = condition {
            return Ok(if scalar::truth(s) { a } else { b });
        }
        let (x, y) = (self.is_tensor(a), self.is_tensor(b));
        if !self.is_tensor(condition) {
            let is_tensor = x || y;
            return Ok(self.push(Step::Choose { args: [condition, a, b], is_tensor }, is_tensor));
        }
        let overload = match (x, y) {
            (true, true) => "",
            (true, false) => ".Scalar",
            (false, true) => ".ScalarLeft",
            (false, false) => ".ScalarBoth",
        };
        Ok(self.push_op(format!("tp::where{overload}"), smallvec![condition, a, b]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> Vec<Variable> {
        let v = |name: &str, arg, is_tensor| Variable { name: name.into(), arg, is_tensor };
        vec![v("x", Some(0), true), v("n", Some(1), false), v("out", None, true)]
    }

    fn ops(text: &str) -> Vec<String> {
        let f = Parser::formula(text, &variables()).unwrap();
        let name = |s: &Step| match s {
            Step::Op { name, .. } => name.trim_start_matches("tp::").to_string(),
            Step::Number { f, .. } => format!("{f:?}"),
            Step::Choose { .. } => "choose".to_string(),
        };
        f.steps.iter().map(name).collect()
    }

    #[test]
    fn picks_overloads_and_folds_numbers() {
        assert_eq!(ops("grad * x"), ["mul"]);
        assert_eq!(ops("-0.5 * grad * out"), ["mul.ScalarLeft", "mul"]);
        assert_eq!(ops("grad / (2 * out)"), ["mul.ScalarLeft", "div"]);
        assert_eq!(ops("select(out > 0, grad, 0)"), ["gt.Scalar", "where.Scalar"]);
        assert_eq!(
            ops("select(n == 0, 0, grad * n * x ** (n - 1))"),
            ["Eq", "mul.Scalar", "Sub", "pow.Scalar", "mul", "choose"]
        );
        assert_eq!(ops("t = tanh(x); grad * (1 - t * t)"), ["tanh", "mul", "sub.ScalarLeft", "mul"]);
        assert_eq!(ops("-x ** 2"), ["pow.Scalar", "neg"]);
        assert_eq!(ops("x ** -1"), ["pow.Scalar"]);
        assert_eq!(ops("x ** x ** x"), ["pow", "pow"]);
        assert_eq!(ops("select(false, grad, 0)"), [""; 0]);
    }

    #[test]
    fn knows_what_it_reads() {
        let uses = |t| Parser::formula(t, &variables()).unwrap().uses;
        assert_eq!(uses("grad"), 0);
        assert_eq!(uses("grad * x + out"), 0b101);
        assert_eq!(uses("1e-3 * grad * n"), 0b010);
    }

    #[test]
    fn refuses_nonsense() {
        for text in ["grad *", "grad * y", "(grad", "grad grad", "select(grad, x)", "tan(2) * grad"] {
            assert!(Parser::formula(text, &variables()).is_err(), "{text}");
        }
    }
}
