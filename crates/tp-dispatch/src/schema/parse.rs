//! The parser's frame: names, argument list, returns, and the rules over a whole schema.
//!
//! Types, alias annotations and defaults have files of their own, which extend `Parser`. Parsing
//! recurses only into nested types, to a fixed depth.

use std::borrow::Cow;
use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::error::{Result, SchemaError, quote};
use super::lex::{Kind, Lexer, MAX_TEXT, Token};
use super::model::{Argument, Return, Schema, Signature};
use super::name::OpName;
use super::text::Text;

/// What a text is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Any declaration that the script language knows.
    Declaration,
    /// An operator to be defined: no type variables, no argument name twice.
    Definition,
}

/// One token of lookahead over a text.
#[derive(Debug)]
pub(super) struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    pub mode: Mode,
    /// The token to be consumed next.
    pub current: Token,
}

impl<'a> Parser<'a> {
    pub fn new(text: &'a str, mode: Mode) -> Result<Parser<'a>> {
        if text.len() > MAX_TEXT {
            let found = format!("{} bytes", text.len());
            return Err(SchemaError::build(text, 0, 0, format!("at most {MAX_TEXT} bytes"), found));
        }
        let mut lexer = Lexer::new(text);
        let current = lexer.token();
        let mut parser = Parser { text, lexer, mode, current };
        parser.skip_line_breaks();
        Ok(parser)
    }

    pub fn whole_schema(mut self) -> Result<Schema> {
        let name = self.name()?;
        let signature = self.signature()?;
        self.finish()?;
        Ok(Schema { name, signature })
    }

    pub fn whole_signature(mut self) -> Result<Signature> {
        let signature = self.signature()?;
        self.finish()?;
        Ok(signature)
    }

    pub fn whole_name(mut self) -> Result<OpName> {
        let name = self.name()?;
        self.finish()?;
        Ok(name)
    }

    // Tokens

    /// Consumes the current token and returns it.
    #[inline]
    pub fn advance(&mut self) -> Token {
        let token = self.current;
        self.current = self.lexer.token();
        token
    }

    /// Consumes the current token if it is of that kind.
    #[inline]
    pub fn eat(&mut self, kind: Kind) -> bool {
        let found = self.current.is(kind);
        if found {
            self.advance();
        }
        found
    }

    #[inline]
    pub fn expect(&mut self, kind: Kind, expected: &'static str) -> Result<Token> {
        if self.current.is(kind) { Ok(self.advance()) } else { Err(self.unexpected(expected)) }
    }

    /// The text of a token.
    #[inline]
    pub fn slice(&self, token: Token) -> &'a str {
        &self.text[token.start()..token.end()]
    }

    /// An error at the current token.
    #[cold]
    pub fn unexpected(&self, expected: impl Into<Cow<'static, str>>) -> SchemaError {
        self.error_at(self.current, expected)
    }

    /// An error at a token consumed before.
    #[cold]
    pub fn error_at(&self, token: Token, expected: impl Into<Cow<'static, str>>) -> SchemaError {
        SchemaError::at(self.text, token, expected)
    }

    /// An error over several tokens: from `start` up to the current one.
    #[cold]
    pub fn error_since(&self, start: usize, expected: impl Into<Cow<'static, str>>) -> SchemaError {
        let piece = self.text[start..self.current.start()].trim_end();
        SchemaError::build(self.text, start, start + piece.len(), expected, quote(piece))
    }

    fn skip_line_breaks(&mut self) {
        while self.current.is(Kind::Newline) {
            self.advance();
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.skip_line_breaks();
        self.expect(Kind::Eof, "the end of the text").map(|_| ())
    }

    // Grammar

    fn name(&mut self) -> Result<OpName> {
        let first = self.expect(Kind::Ident, "an operator name")?;
        let (mut namespace, mut name) = (None, first);
        if self.eat(Kind::Colon) {
            self.expect(Kind::Colon, "`::`")?;
            namespace = Some(Text::new(self.slice(first)));
            name = self.expect(Kind::Ident, "an operator name")?;
        }
        let name = Text::new(self.slice(name));
        let overload = if self.eat(Kind::Dot) { Some(self.overload()?) } else { None };
        Ok(OpName { namespace, name, overload })
    }

    fn overload(&mut self) -> Result<Text> {
        let token = self.expect(Kind::Ident, "an overload name")?;
        let overload = self.slice(token);
        if overload == "default" || overload.starts_with("__") {
            return Err(
                self.error_at(token, "an overload name other than `default` and without leading `__`")
            );
        }
        Ok(Text::new(overload))
    }

    fn signature(&mut self) -> Result<Signature> {
        let (arguments, is_vararg) = self.arguments()?;
        self.expect(Kind::Arrow, "`->`")?;
        let (returns, is_varret) = self.returns()?;
        Ok(Signature { arguments, returns, is_vararg, is_varret })
    }

    /// The argument list, and whether it ends in `...`.
    fn arguments(&mut self) -> Result<(Vec<Argument>, bool)> {
        self.expect(Kind::LParen, "`(`")?;
        let mut arguments = Vec::new();
        let mut names = BTreeSet::new();
        let (mut kwarg_only, mut is_vararg) = (false, false);
        if self.eat(Kind::RParen) {
            return Ok((arguments, false));
        }
        arguments.reserve(4);
        loop {
            if is_vararg {
                return Err(self.unexpected("nothing after `...`"));
            } else if self.eat(Kind::Star) {
                kwarg_only = true;
            } else if self.eat(Kind::Dots) {
                is_vararg = true;
            } else {
                let name = self.argument(&mut arguments, kwarg_only)?;
                if self.mode == Mode::Definition && !names.insert(self.slice(name)) {
                    return Err(self.error_at(name, "an argument name that is not taken"));
                }
            }
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RParen, "`,` or `)`")?;
        Ok((arguments, is_vararg))
    }

    /// Reads one argument to the end of `arguments` and returns the token that names it.
    #[inline]
    fn argument(&mut self, arguments: &mut Vec<Argument>, kwarg_only: bool) -> Result<Token> {
        let (ty, alias) = self.argument_type()?;
        let token = self.expect(Kind::Ident, "an argument name")?;
        let default = if self.eat(Kind::Equals) {
            Some(self.default_of(&ty)?)
        } else if kwarg_only || arguments.last().is_none_or(|argument| argument.default.is_none()) {
            None
        } else {
            return Err(self.unexpected("`=`, for a default follows a default"));
        };
        arguments.push(Argument { name: Text::new(self.slice(token)), ty, default, alias, kwarg_only });
        Ok(token)
    }

    /// The returns, and whether they end in `...`.
    fn returns(&mut self) -> Result<(SmallVec<[Return; 1]>, bool)> {
        let mut returns = SmallVec::new();
        if self.eat(Kind::Dots) {
            return Ok((returns, true));
        }
        if !self.eat(Kind::LParen) {
            returns.push(self.return_value()?);
            return Ok((returns, false));
        }
        let mut is_varret = false;
        if self.eat(Kind::RParen) {
            return Ok((returns, is_varret));
        }
        loop {
            if is_varret {
                return Err(self.unexpected("nothing after `...`"));
            } else if self.eat(Kind::Dots) {
                is_varret = true;
            } else {
                returns.push(self.return_value()?);
            }
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RParen, "`,` or `)`")?;
        Ok((returns, is_varret))
    }

    fn return_value(&mut self) -> Result<Return> {
        let (ty, alias) = self.argument_type()?;
        let name = if self.current.is(Kind::Ident) {
            let token = self.advance();
            Some(Text::new(self.slice(token)))
        } else {
            None
        };
        Ok(Return { name, ty, alias })
    }
}
