//! `SchemaError`: what is wrong with a schema text, and where.
//!
//! Errors are built on the failure path only, so they may allocate freely. The wording of the
//! individual complaints lives with the code that raises them.

use std::borrow::Cow;
use std::fmt::{self, Write};

use super::lex::{Kind, Token};

pub(super) type Result<T> = std::result::Result<T, SchemaError>;

/// Longest stretch of a line shown on each side of the mark.
const CONTEXT: usize = 60;

/// A text that is not a schema: where it stops being one, what was expected there and what was
/// found instead. `Display` shows all of it, with a caret under the offending token.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}\n{}", .0.headline(), .0.caret)]
pub struct SchemaError(Box<Details>);

#[derive(Clone, PartialEq, Eq)]
struct Details {
    expected: Cow<'static, str>,
    found: String,
    offset: usize,
    line: usize,
    column: usize,
    caret: String,
}

impl Details {
    fn headline(&self) -> String {
        let Details { expected, found, line, column, .. } = self;
        format!("expected {expected} but found {found} (line {line}, column {column})")
    }
}

impl SchemaError {
    /// An error at `token` of `text`.
    #[cold]
    pub(super) fn at(text: &str, token: Token, expected: impl Into<Cow<'static, str>>) -> SchemaError {
        let (mut expected, mut found) = (expected.into(), describe(text, token));
        match token.kind() {
            Kind::UnclosedString => {
                expected = "a closing quote".into();
                found = "the end of the line".to_string();
            }
            Kind::BadNumber => expected = "a decimal number".into(),
            _ => {}
        }
        SchemaError::build(text, token.start(), token.end(), expected, found)
    }

    /// An error over the bytes `start..end` of `text`, with its own description of what is there.
    #[cold]
    pub(super) fn build(
        text: &str,
        start: usize,
        end: usize,
        expected: impl Into<Cow<'static, str>>,
        found: String,
    ) -> SchemaError {
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |length| start + length);
        let before = &text[line_start..start];
        let caret = draw_caret(before, &text[start..line_end], &text[start..end.min(line_end)]);
        SchemaError(Box::new(Details {
            expected: expected.into(),
            found,
            offset: start,
            line: text[..start].matches('\n').count() + 1,
            column: before.chars().count() + 1,
            caret,
        }))
    }

    /// Byte offset of the offending token in the text.
    pub fn offset(&self) -> usize {
        self.0.offset
    }

    /// Line of the offending token, from 1.
    pub fn line(&self) -> usize {
        self.0.line
    }

    /// Column of the offending token in characters, from 1.
    pub fn column(&self) -> usize {
        self.0.column
    }

    /// What the grammar allows at that place.
    pub fn expected(&self) -> &str {
        &self.0.expected
    }

    /// What is there instead.
    pub fn found(&self) -> &str {
        &self.0.found
    }

    /// The line of the text and, below it, a caret under the offending token.
    pub fn caret(&self) -> &str {
        &self.0.caret
    }
}

/// As readable as `Display`: a failed `unwrap` in a test shows the caret.
impl fmt::Debug for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn describe(text: &str, token: Token) -> String {
    match token.kind() {
        Kind::Eof => "the end of the text".to_string(),
        Kind::Newline => "a line break".to_string(),
        _ => quote(&text[token.start()..token.end()]),
    }
}

/// A piece of the text between back quotes, clipped, with unprintable characters escaped.
pub(super) fn quote(piece: &str) -> String {
    let mut quoted = String::from("`");
    for (count, character) in piece.chars().enumerate() {
        if count == CONTEXT {
            quoted.push_str("...");
            break;
        }
        match character {
            '"' | '\'' | '\\' => quoted.push(character),
            _ => quoted.extend(character.escape_debug()),
        }
    }
    quoted.push('`');
    quoted
}

fn draw_caret(before: &str, after: &str, token: &str) -> String {
    let skipped = before.chars().count().saturating_sub(CONTEXT);
    let shown_before = before.chars().skip(skipped).map(printable);
    let mut drawn = String::from("  ");
    let mut pad = String::from("  ");
    if skipped > 0 {
        drawn.push_str("...");
        pad.push_str("   ");
    }
    for character in shown_before {
        drawn.push(character);
        pad.push(if character == '\t' { '\t' } else { ' ' });
    }
    drawn.extend(after.chars().take(CONTEXT).map(printable));
    if after.chars().nth(CONTEXT).is_some() {
        drawn.push_str("...");
    }
    let width = token.chars().count().clamp(1, CONTEXT);
    let _ = write!(drawn, "\n{pad}{}", "^".repeat(width)); // writing to a String cannot fail
    drawn
}

fn printable(character: char) -> char {
    if character.is_control() && character != '\t' { '\u{fffd}' } else { character }
}
