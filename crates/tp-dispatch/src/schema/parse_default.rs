//! The parser's rules for defaults: literals first, then whether they fit the argument's type.

use super::default::DefaultValue;
use super::error::Result;
use super::lex::{Kind, Token};
use super::parse::Parser;
use super::types::ArgType;
use super::word::EnumWord;

impl<'a> Parser<'a> {
    /// The default of an argument of type `ty`, after its `=`.
    #[inline]
    pub fn default_of(&mut self, ty: &ArgType) -> Result<DefaultValue> {
        let start = self.current.start();
        let value = if self.eat(Kind::LBracket) { self.list()? } else { self.literal()? };
        // The two commonest defaults need no conversion.
        match (&value, ty) {
            (DefaultValue::None, ArgType::Optional(_)) | (DefaultValue::Bool(_), ArgType::Bool) => Ok(value),
            _ => value.fit(ty).map_err(|wanted| self.error_since(start, wanted)),
        }
    }

    fn list(&mut self) -> Result<DefaultValue> {
        let mut items = Vec::new();
        if !self.current.is(Kind::RBracket) {
            items.push(self.literal()?);
            while self.eat(Kind::Comma) {
                items.push(self.literal()?);
            }
        }
        self.expect(Kind::RBracket, "`,` or `]`")?;
        Ok(DefaultValue::List(items.into()))
    }

    fn literal(&mut self) -> Result<DefaultValue> {
        let value = match self.current.kind() {
            Kind::None => DefaultValue::None,
            Kind::True => DefaultValue::Bool(true),
            Kind::False => DefaultValue::Bool(false),
            Kind::Str => DefaultValue::Str(self.string()?),
            Kind::Ident => match EnumWord::new(self.slice(self.current)) {
                Some(word) => DefaultValue::Word(word),
                None => return self.number(),
            },
            _ => return self.number(),
        };
        self.advance();
        Ok(value)
    }

    /// A number with its sign; `1.+2.j` is one complex number.
    fn number(&mut self) -> Result<DefaultValue> {
        let negative = self.eat(Kind::Minus);
        let token = self.current;
        let (text, is_imaginary) = self.number_text()?;
        if is_imaginary {
            let imaginary = signed(negative, self.float(token, text)?);
            return Ok(DefaultValue::Complex(0.0, imaginary));
        }
        if matches!(self.current.kind(), Kind::Plus | Kind::Minus) {
            let real = signed(negative, self.float(token, text)?);
            let negative = self.advance().is(Kind::Minus);
            let token = self.current;
            let (text, is_imaginary) = self.number_text()?;
            if !is_imaginary {
                return Err(self.error_at(token, "an imaginary number such as `2j`"));
            }
            return Ok(DefaultValue::Complex(real, signed(negative, self.float(token, text)?)));
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return match integer(negative, text) {
                Some(value) => Ok(DefaultValue::Int(value)),
                None => Err(self.error_at(token, "an integer of 64 bits")),
            };
        }
        Ok(DefaultValue::Float(signed(negative, self.float(token, text)?)))
    }

    /// A number's digits, `inf` or `nan`, without a final `j`, and whether there was one.
    fn number_text(&mut self) -> Result<(&'a str, bool)> {
        let text = self.slice(self.current);
        let is_number = match self.current.kind() {
            Kind::Number => true,
            Kind::Ident => matches!(text, "inf" | "nan" | "infj" | "nanj"),
            _ => false,
        };
        if !is_number {
            return Err(self.unexpected("a default value"));
        }
        self.advance();
        Ok(text.strip_suffix('j').map_or((text, false), |digits| (digits, true)))
    }

    fn float(&self, token: Token, text: &str) -> Result<f64> {
        if matches!(text, "inf" | "nan") {
            return Ok(if text == "inf" { f64::INFINITY } else { f64::NAN });
        }
        let digits = text.split(['e', 'E']).next().unwrap_or(text);
        let is_zero = digits.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() && (value != 0.0 || is_zero) => Ok(value),
            _ => Err(self.error_at(token, "a number within the range of a double")),
        }
    }

    /// The current token, a quoted string, without quotes and escapes.
    fn string(&self) -> Result<Box<str>> {
        let token = self.current;
        let literal = self.slice(token);
        let quoted = &literal[1..literal.len() - 1];
        if !quoted.contains('\\') {
            return Ok(quoted.into());
        }
        match unescape(quoted) {
            Some(text) => Ok(text.into()),
            None => {
                Err(self.error_at(token, r#"a string with the escapes \\ \' \" \a \b \f \n \r \t \v \ooo"#))
            }
        }
    }
}

fn signed(negative: bool, magnitude: f64) -> f64 {
    if negative { -magnitude } else { magnitude }
}

/// Accumulates below zero, where the range is one larger.
fn integer(negative: bool, digits: &str) -> Option<i64> {
    let mut value = 0i64;
    for digit in digits.bytes() {
        value = value.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// Resolves escapes. Three octal digits give a byte, so the result has to be checked for UTF-8.
fn unescape(quoted: &str) -> Option<String> {
    let mut bytes = quoted.bytes();
    let mut plain = Vec::with_capacity(quoted.len());
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        plain.push(match bytes.next()? {
            same @ (b'\\' | b'\'' | b'"' | b'\n') => same,
            b'a' => 0x07,
            b'b' => 0x08,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 0x0b,
            b'f' => 0x0c,
            b'r' => b'\r',
            digit @ b'0'..=b'7' => {
                let mut code = u32::from(digit - b'0');
                for _ in 0..2 {
                    code = code * 8 + char::from(bytes.next()?).to_digit(8)?;
                }
                u8::try_from(code).ok()?
            }
            _ => return None,
        });
    }
    String::from_utf8(plain).ok()
}
