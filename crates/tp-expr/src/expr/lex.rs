//! Tokens of the expression text.

use tp_tensor::Scalar;

use crate::error::ExprError;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    Name(&'a str),
    Number(Scalar),
    /// An operator or a bracket.
    Symbol(&'static str),
    End,
}

/// Longest first, so that `<<` is not read as two `<`.
const SYMBOLS: [&str; 25] = [
    "**", "//", "<<", ">>", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "&", "|", "^", "<", ">",
    "(", ")", ",", ";", "=", ":",
];

/// The tokens with their byte offsets, an `End` last.
pub fn tokens(text: &str) -> Result<Vec<(Token<'_>, usize)>, ExprError> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        let rest = &text[at..];
        let (token, len) =
            if c.is_ascii_digit() || (c == '.' && rest[1..].starts_with(|d: char| d.is_ascii_digit())) {
                number(text, at)?
            } else if c.is_alphabetic() || c == '_' {
                let len = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                (Token::Name(&rest[..len]), len)
            } else if let Some(symbol) = SYMBOLS.into_iter().find(|s| rest.starts_with(s)) {
                (Token::Symbol(symbol), symbol.len())
            } else {
                return Err(error(text, at, format!("unexpected character {c:?}")));
            };
        out.push((token, at));
        at += len;
    }
    out.push((Token::End, text.len()));
    Ok(out)
}

pub fn error(text: &str, at: usize, message: String) -> ExprError {
    ExprError::Parse { text: text.to_owned(), at, message }
}

/// A number at byte `at`: an int64, or a float when it has a point or an exponent.
fn number(text: &str, at: usize) -> Result<(Token<'_>, usize), ExprError> {
    let bytes = &text.as_bytes()[at..];
    let digits = |from: usize| from + bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut len = digits(0);
    let mut is_float = false;
    if bytes.get(len) == Some(&b'.') {
        is_float = true;
        len = digits(len + 1);
    }
    if matches!(bytes.get(len), Some(b'e' | b'E')) {
        let signed = len + 1 + usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
        let end = digits(signed);
        if end > signed {
            is_float = true;
            len = end;
        }
    }
    let literal = &text[at..at + len];
    let scalar = if is_float {
        literal.parse().map(Scalar::Float).ok()
    } else {
        literal.parse().map(Scalar::Int).ok()
    };
    let scalar = scalar.ok_or_else(|| error(text, at, format!("{literal} does not fit int64")))?;
    Ok((Token::Number(scalar), len))
}
