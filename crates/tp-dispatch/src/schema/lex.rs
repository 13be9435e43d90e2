//! The lexer: one token at a time over the bytes of the text, without copying and without failing.
//!
//! What cannot be a token becomes a token of a kind that no rule accepts (`Invalid`,
//! `UnclosedString`, `BadNumber`), so errors arise in one place, the parser.

/// What a token is. Punctuation has a kind of its own per sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ident,
    /// A word of the script language that may not name anything.
    Keyword,
    True,
    False,
    None,
    Number,
    Str,
    LParen,
    RParen,
    LBracket,
    RBracket,
    Comma,
    Star,
    Dots,
    Dot,
    Colon,
    Bang,
    Pipe,
    Question,
    Arrow,
    Equals,
    Plus,
    Minus,
    /// A line break outside all brackets, where it is not white space.
    Newline,
    Eof,
    Invalid,
    UnclosedString,
    /// A number that runs into a word: `0x10`, `1_000`.
    BadNumber,
}

/// Every kind, at its own number.
const KINDS: [Kind; 28] = {
    use Kind::*;
    [
        Ident,
        Keyword,
        True,
        False,
        None,
        Number,
        Str,
        LParen,
        RParen,
        LBracket,
        RBracket,
        Comma,
        Star,
        Dots,
        Dot,
        Colon,
        Bang,
        Pipe,
        Question,
        Arrow,
        Equals,
        Plus,
        Minus,
        Newline,
        Eof,
        Invalid,
        UnclosedString,
        BadNumber,
    ]
};

/// Longest text that can be read: tokens hold their offsets in 28 bits.
pub(super) const MAX_TEXT: usize = 1 << 20;

/// A token and the bytes it covers, packed to travel in one register: parsing spends most of its
/// time on handing tokens around.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token(u64);

impl Token {
    #[inline]
    fn new(kind: Kind, start: usize, end: usize) -> Token {
        Token(kind as u64 | (start as u64) << 8 | (end as u64) << 36)
    }

    #[inline]
    pub fn is(self, kind: Kind) -> bool {
        self.0 as u8 == kind as u8
    }

    #[inline]
    pub fn kind(self) -> Kind {
        KINDS[self.0 as u8 as usize]
    }

    #[inline]
    pub fn start(self) -> usize {
        (self.0 >> 8) as usize & 0xfff_ffff
    }

    #[inline]
    pub fn end(self) -> usize {
        (self.0 >> 36) as usize
    }
}

/// Cursor over the text. Invariant: `position` is at a character boundary between two calls of
/// `token`, because every token ends at one.
#[derive(Debug)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    position: usize,
    /// Open brackets; inside any of them a line break is white space.
    nesting: u32,
}

impl<'a> Lexer<'a> {
    /// `text` must not be longer than `MAX_TEXT`; the parser refuses longer ones first.
    pub fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, position: 0, nesting: 0 }
    }

    #[inline]
    fn byte(&self, at: usize) -> u8 {
        self.text.as_bytes().get(at).copied().unwrap_or(0)
    }

    /// The next token.
    #[inline]
    pub fn token(&mut self) -> Token {
        if self.byte(self.position) == b' ' {
            self.position += 1;
        }
        let start = self.position;
        let first = self.byte(start);
        let kind = match CLASS[first as usize] {
            Class::Word => self.word(),
            Class::Digit => self.number(),
            Class::Other => self.other(first),
        };
        // `other` may skip white space; it leaves the true start behind in that case.
        match kind {
            Some((kind, end)) => {
                self.position = end;
                Token::new(kind, start, end)
            }
            None => self.token_after_space(),
        }
    }

    /// Skips white space, comments and continued lines, then reads a token.
    #[cold]
    fn token_after_space(&mut self) -> Token {
        loop {
            match self.byte(self.position) {
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => self.position += 1,
                b'\n' if self.nesting > 0 => self.position += 1,
                b'\\' if self.byte(self.position + 1) == b'\n' => self.position += 2,
                b'#' => {
                    let rest = &self.text.as_bytes()[self.position..];
                    let length = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                    self.position += length;
                }
                _ => return self.token(),
            }
        }
    }

    #[inline]
    fn word(&self) -> Option<(Kind, usize)> {
        let start = self.position;
        let rest = &self.text.as_bytes()[start..];
        let length = rest.iter().position(|&byte| !is_word_byte(byte)).unwrap_or(rest.len());
        Some((word_kind(&rest[..length]), start + length))
    }

    /// Signs, strings and the rest; `None` when white space has to be skipped first.
    fn other(&mut self, first: u8) -> Option<(Kind, usize)> {
        let start = self.position;
        let (kind, length) = match first {
            b'(' | b'[' => {
                self.nesting += 1;
                (if first == b'(' { Kind::LParen } else { Kind::LBracket }, 1)
            }
            b')' | b']' => {
                self.nesting = self.nesting.saturating_sub(1);
                (if first == b')' { Kind::RParen } else { Kind::RBracket }, 1)
            }
            b',' => (Kind::Comma, 1),
            b'=' => (Kind::Equals, 1),
            b'?' => (Kind::Question, 1),
            b'!' => (Kind::Bang, 1),
            b'*' => (Kind::Star, 1),
            b'|' => (Kind::Pipe, 1),
            b':' => (Kind::Colon, 1),
            b'+' => (Kind::Plus, 1),
            b'-' if self.byte(start + 1) == b'>' => (Kind::Arrow, 2),
            b'-' => (Kind::Minus, 1),
            b'.' if self.text.as_bytes()[start..].starts_with(b"...") => (Kind::Dots, 3),
            b'.' if self.byte(start + 1).is_ascii_digit() => return self.number(),
            b'.' => (Kind::Dot, 1),
            b'"' | b'\'' => return Some(self.string(first)),
            b'\n' if self.nesting == 0 => (Kind::Newline, 1),
            b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c | b'#' => return None,
            b'\\' if self.byte(start + 1) == b'\n' => return None,
            _ => match self.text[start..].chars().next() {
                Some(character) => (Kind::Invalid, character.len_utf8()),
                None => (Kind::Eof, 0),
            },
        };
        Some((kind, start + length))
    }

    fn number(&self) -> Option<(Kind, usize)> {
        let mut end = self.digits(self.position);
        if self.byte(end) == b'.' {
            end = self.digits(end + 1);
        }
        if matches!(self.byte(end), b'e' | b'E') {
            let sign = usize::from(matches!(self.byte(end + 1), b'+' | b'-'));
            let exponent = end + 1 + sign;
            if self.byte(exponent).is_ascii_digit() {
                end = self.digits(exponent);
            }
        }
        if self.byte(end) == b'j' {
            end += 1;
        }
        if !is_word_byte(self.byte(end)) {
            return Some((Kind::Number, end));
        }
        while is_word_byte(self.byte(end)) {
            end += 1;
        }
        Some((Kind::BadNumber, end))
    }

    fn digits(&self, mut at: usize) -> usize {
        while self.byte(at).is_ascii_digit() {
            at += 1;
        }
        at
    }

    /// A quoted string with its quotes. A backslash takes the next byte with it, line breaks
    /// included; otherwise a string ends on its line.
    fn string(&self, quote: u8) -> (Kind, usize) {
        let bytes = self.text.as_bytes();
        let mut at = self.position + 1;
        while at < bytes.len() {
            match bytes[at] {
                b'\\' if at + 1 < bytes.len() => at += 2,
                b'\n' => return (Kind::UnclosedString, at),
                byte if byte == quote => return (Kind::Str, at + 1),
                _ => at += 1,
            }
        }
        (Kind::UnclosedString, bytes.len())
    }
}

#[derive(Clone, Copy)]
enum Class {
    Word,
    Digit,
    Other,
}

const CLASS: [Class; 256] = {
    let mut table = [Class::Other; 256];
    let mut byte = 0;
    while byte < 256 {
        let value = byte as u8;
        if value.is_ascii_digit() {
            table[byte] = Class::Digit;
        } else if value.is_ascii_alphabetic() || value == b'_' {
            table[byte] = Class::Word;
        }
        byte += 1;
    }
    table
};

#[inline]
fn is_word_byte(byte: u8) -> bool {
    !matches!(CLASS[byte as usize], Class::Other)
}

#[inline]
fn word_kind(word: &[u8]) -> Kind {
    match word {
        b"True" => Kind::True,
        b"False" => Kind::False,
        b"None" => Kind::None,
        b"and" | b"as" | b"assert" | b"break" | b"class" | b"continue" | b"def" | b"del" | b"elif"
        | b"else" | b"for" | b"global" | b"if" | b"import" | b"in" | b"is" | b"not" | b"or" | b"pass"
        | b"raise" | b"return" | b"while" | b"with" => Kind::Keyword,
        _ => Kind::Ident,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        let mut lexer = Lexer::new(text);
        let mut kinds = vec![];
        loop {
            let token = lexer.token();
            if token.is(Kind::Eof) {
                return kinds;
            }
            kinds.push(token.kind());
        }
    }

    #[test]
    fn kinds_survive_packing() {
        for (number, kind) in KINDS.into_iter().enumerate() {
            let token = Token::new(kind, number, MAX_TEXT);
            assert_eq!((token.kind(), token.start(), token.end()), (kind, number, MAX_TEXT));
            assert!(token.is(kind));
        }
        assert_eq!(KINDS.len(), Kind::BadNumber as usize + 1);
    }

    #[test]
    fn numbers_take_their_whole_word() {
        use Kind::*;
        assert_eq!(kinds("1 1. .5 1e-5 1E+5 2j 1.5e3j"), [Number; 7]);
        assert_eq!(kinds("0x10 1_000 1e 1jj"), [BadNumber; 4]);
        assert_eq!(kinds("1...")[..], [Number, Dot, Dot]);
        assert_eq!(kinds("... . .5"), [Dots, Dot, Number]);
    }

    #[test]
    fn line_breaks_count_only_outside_brackets() {
        use Kind::*;
        assert_eq!(kinds("(\n)\n["), [LParen, RParen, Newline, LBracket]);
        assert_eq!(kinds("( # note ) \n )"), [LParen, RParen]);
        assert_eq!(kinds("a\\\nb"), [Ident, Ident]);
    }

    #[test]
    fn strings_end_at_their_quote_or_their_line() {
        use Kind::*;
        assert_eq!(kinds(r#""a" 'b' "\"" '\'' "#), [Str; 4]);
        assert_eq!(kinds("\"a\nb"), [UnclosedString, Newline, Ident]);
        assert_eq!(kinds("'a\\"), [UnclosedString]);
        assert_eq!(kinds("é;")[..], [Invalid, Invalid]);
    }
}
