//! A cursor over the text: words, numbers, strings, and errors that point at a line and column.

use crate::entity::ValueId;
use crate::ir::Const;
use std::iter::Peekable;
use std::str::Chars;
use tp_dispatch::{Error, Result};
use tp_tensor::{DType, Device};

pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str) -> Cursor<'a> {
        Cursor { text, at: 0 }
    }

    pub fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    #[cold]
    pub fn error(&self, wanted: &str) -> Error {
        let before = &self.text[..self.at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        let found: String = self.rest().chars().take_while(|c| *c != '\n').take(24).collect();
        let found = if found.is_empty() { "the end of the line".to_string() } else { format!("{found:?}") };
        Error::graph(
            "TP5001",
            format!("graph text, line {line}, column {column}: expected {wanted}, found {found}"),
        )
    }

    pub fn skip_blank(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    pub fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    /// Takes `token` if it comes next, after blanks and newlines.
    pub fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    pub fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.error(&format!("{token:?}"))) }
    }

    pub fn peek(&mut self) -> Option<char> {
        self.skip_space();
        self.rest().chars().next()
    }

    /// A run of characters of names: letters, digits and `_ : .`.
    pub fn word(&mut self) -> Result<&'a str> {
        match self.peek_word() {
            "" => Err(self.error("a word")),
            word => {
                self.at += word.len();
                Ok(word)
            }
        }
    }

    /// The word that comes next; empty if none does.
    fn peek_word(&mut self) -> &'a str {
        self.skip_space();
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_:.".contains(c)));
        &rest[..end.unwrap_or(rest.len())]
    }

    /// A word, if it is `word`.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == word;
        if found {
            self.at += word.len();
        }
        found
    }

    pub fn value(&mut self) -> Result<ValueId> {
        if !self.eat("%") {
            return Err(self.error("a value such as %0"));
        }
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let id = rest[..end].parse().map_err(|_| self.error("a value number"))?;
        self.at += end;
        Ok(ValueId(id))
    }

    /// Goes past `n` bytes that were read otherwise.
    pub fn advance(&mut self, n: usize) {
        self.at += n;
    }

    pub fn int(&mut self) -> Result<i64> {
        self.skip_space();
        let rest = self.rest();
        let digits = rest.strip_prefix('-').unwrap_or(rest);
        let sign = rest.len() - digits.len();
        let end = sign + digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let value = rest[..end].parse().map_err(|_| self.error("an integer"))?;
        self.at += end;
        Ok(value)
    }

    /// The rest of the line, without the newline.
    pub fn line(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find('\n').unwrap_or(rest.len());
        self.at += end;
        rest[..end].trim_end_matches('\r')
    }

    pub fn string(&mut self) -> Result<String> {
        if !self.eat("\"") {
            return Err(self.error("a string"));
        }
        let rest = self.rest();
        let mut escaped = false;
        let end = rest.find(|c: char| {
            let closes = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        });
        let Some(end) = end else { return Err(self.error("a closing quote")) };
        let text = unescape(&rest[..end]).ok_or_else(|| self.error("a string with known escapes"))?;
        self.at += end + 1;
        Ok(text)
    }

    /// A literal in Python's spelling, a dtype or a device.
    pub fn literal(&mut self) -> Result<Const> {
        let start = self.at;
        match self.peek() {
            Some('"') => Ok(Const::Str(self.string()?.into())),
            Some(c) if c.is_ascii_digit() || c == '-' => self.number(),
            Some(_) => {
                let word = self.word()?;
                self.named(word).ok_or_else(|| {
                    self.at = start;
                    self.error("a value, a literal or a list")
                })
            }
            None => Err(self.error("a value, a literal or a list")),
        }
    }

    fn named(&mut self, word: &str) -> Option<Const> {
        Some(match word {
            "None" => Const::None,
            "True" => Const::Bool(true),
            "False" => Const::Bool(false),
            "inf" => Const::Float(f64::INFINITY),
            "nan" => Const::Float(self.nan_bits().map_or(f64::NAN, f64::from_bits)),
            other => match other.parse::<DType>() {
                Ok(dtype) => Const::DType(dtype),
                Err(_) => Const::Device(other.parse::<Device>().ok()?),
            },
        })
    }

    fn nan_bits(&mut self) -> Option<u64> {
        let inner = self.rest().strip_prefix("(0x")?;
        let end = inner.find(')')?;
        let bits = u64::from_str_radix(&inner[..end], 16).ok()?;
        self.at += "(0x".len() + end + 1;
        Some(bits)
    }

    fn number(&mut self) -> Result<Const> {
        let rest = self.rest();
        if rest.starts_with("-inf") {
            self.at += "-inf".len();
            return Ok(Const::Float(f64::NEG_INFINITY));
        }
        let mut before = ' ';
        let end = rest.find(|c: char| {
            let sign = (c == '-' || c == '+') && matches!(before, ' ' | 'e');
            before = c;
            !(c.is_ascii_digit() || c == '.' || c == 'e' || sign)
        });
        let digits = &rest[..end.unwrap_or(rest.len())];
        let parsed = if digits.contains(['.', 'e']) {
            digits.parse().ok().map(Const::Float)
        } else {
            digits.parse().ok().map(Const::Int)
        };
        let number = parsed.ok_or_else(|| self.error("a number"))?;
        self.at += digits.len();
        Ok(number)
    }
}

/// Undoes the printer's escapes.
pub(super) fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => match chars.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => code_point(&mut chars)?,
                c @ ('\\' | '"') => c,
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

fn code_point(chars: &mut Peekable<Chars<'_>>) -> Option<char> {
    chars.next_if_eq(&'{')?;
    let mut digits = String::new();
    loop {
        match chars.next()? {
            '}' => return char::from_u32(u32::from_str_radix(&digits, 16).ok()?),
            c => digits.push(c),
        }
    }
}
