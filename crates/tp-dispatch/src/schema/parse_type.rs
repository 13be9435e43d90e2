//! The parser's rules for types.

use super::alias::AliasInfo;
use super::error::Result;
use super::lex::Kind;
use super::parse::{Mode, Parser};
use super::types::ArgType;

/// How deep types may nest, suffixes such as `[]` included. Everything that walks a type recurses
/// at most that deep.
pub const MAX_NESTING: usize = 64;

type Alias = Option<Box<AliasInfo>>;

/// A type on its way, with the annotation of the value and the levels that it spans.
struct Typed {
    ty: ArgType,
    alias: Alias,
    height: usize,
}

impl Typed {
    fn plain(ty: ArgType, alias: Alias) -> Typed {
        Typed { ty, alias, height: 1 }
    }
}

impl Parser<'_> {
    /// The type of an argument or a return: the only place for a list size, and the only one
    /// where annotations are kept.
    #[inline]
    pub fn argument_type(&mut self) -> Result<(ArgType, Alias)> {
        let mut typed = self.base_type(0)?;
        if matches!(self.current.kind(), Kind::LBracket | Kind::Question) {
            typed = self.suffixes(typed, 0, true)?;
        }
        Ok((typed.ty, typed.alias))
    }

    /// A type inside another one, `depth` levels down. The script language takes annotations
    /// there and ignores them.
    fn nested_type(&mut self, depth: usize) -> Result<Typed> {
        if depth >= MAX_NESTING {
            return Err(self.unexpected(too_deep()));
        }
        let typed = self.base_type(depth)?;
        self.suffixes(typed, depth, false)
    }

    /// `?`, `[]` and, for an argument, one last `[N]`.
    fn suffixes(&mut self, mut typed: Typed, depth: usize, sizes: bool) -> Result<Typed> {
        let mut is_sized = false;
        while !is_sized || self.current.is(Kind::Question) {
            match self.current.kind() {
                Kind::Question => {
                    self.advance();
                    typed.height += usize::from(!typed.ty.is_optional());
                    typed.ty = typed.ty.optional();
                    if is_sized {
                        break;
                    }
                }
                Kind::LBracket => {
                    self.advance();
                    is_sized = sizes && !self.current.is(Kind::RBracket);
                    let size = if is_sized { Some(self.list_size()?) } else { None };
                    self.expect(Kind::RBracket, "`]`")?;
                    typed = self.list_of(typed, size)?;
                }
                _ => break,
            }
            if depth + typed.height > MAX_NESTING {
                return Err(self.unexpected(too_deep()));
            }
        }
        Ok(typed)
    }

    /// A list of `element`, with the annotation that may follow its brackets.
    fn list_of(&mut self, element: Typed, size: Option<u32>) -> Result<Typed> {
        let own = self.alias()?;
        let alias = match element.alias {
            Some(inner) => Some(Box::new(inner.into_list(own.map(|own| *own)))),
            None => own,
        };
        Ok(Typed { ty: ArgType::List(Box::new(element.ty), size), alias, height: element.height + 1 })
    }

    fn list_size(&mut self) -> Result<u32> {
        let token = self.expect(Kind::Number, "`]` or a list size")?;
        self.slice(token).parse().map_err(|_| self.error_at(token, "a list size"))
    }

    #[inline]
    fn base_type(&mut self, depth: usize) -> Result<Typed> {
        match self.current.kind() {
            Kind::Ident => self.named_type(depth),
            Kind::None => {
                self.advance();
                Ok(Typed::plain(ArgType::NoneType, self.alias()?))
            }
            Kind::LParen => {
                self.advance();
                let (members, height) = self.members(depth)?;
                Ok(Typed { ty: ArgType::Tuple(members.into()), alias: None, height })
            }
            _ => Err(self.unexpected("a type")),
        }
    }

    #[inline]
    fn named_type(&mut self, depth: usize) -> Result<Typed> {
        let token = self.advance();
        let name = self.slice(token);
        if let Some(ty) = ArgType::basic(name.as_bytes()) {
            return Ok(Typed::plain(ty, self.alias()?));
        }
        match name {
            "Dict" => self.dict(depth),
            "Union" => self.union(depth, token.start()),
            "Future" => self.wrapper(depth, ArgType::Future),
            "RRef" => self.wrapper(depth, ArgType::RRef),
            "Await" => self.wrapper(depth, ArgType::Await),
            "__torch__" => self.class(token.start()),
            "Optional" => Err(self.error_at(token, "a type (an optional one is written `T?`)")),
            "List" => Err(self.error_at(token, "a type (a list is written `T[]`)")),
            "Tuple" => Err(self.error_at(token, "a type (a tuple is written `(A, B)`)")),
            _ if self.mode == Mode::Declaration && name.as_bytes()[0].is_ascii_lowercase() => {
                Ok(Typed::plain(ArgType::Var(name.into()), self.alias()?))
            }
            _ => Err(self.error_at(token, "a type")),
        }
    }

    /// `A, B)` after an opening parenthesis: the members, and the levels with their container.
    fn members(&mut self, depth: usize) -> Result<(Vec<ArgType>, usize)> {
        let (mut members, mut height) = (Vec::new(), 1);
        if self.eat(Kind::RParen) {
            return Ok((members, height));
        }
        loop {
            let member = self.nested_type(depth + 1)?;
            height = height.max(member.height + 1);
            members.push(member.ty);
            if !self.eat(Kind::Comma) {
                break;
            }
        }
        self.expect(Kind::RParen, "`,` or `)`")?;
        Ok((members, height))
    }

    fn dict(&mut self, depth: usize) -> Result<Typed> {
        self.expect(Kind::LParen, "`(`")?;
        let start = self.current.start();
        let key = self.nested_type(depth + 1)?.ty;
        if !key.is_dict_key() {
            let expected = "a key type (int, float, complex, bool, str, Tensor or Device)";
            return Err(self.error_since(start, expected));
        }
        self.expect(Kind::Comma, "`,`")?;
        let value = self.nested_type(depth + 1)?;
        self.expect(Kind::RParen, "`)`")?;
        let ty = ArgType::Dict(Box::new((key, value.ty)));
        Ok(Typed { ty, alias: self.alias()?, height: value.height + 1 })
    }

    fn union(&mut self, depth: usize, start: usize) -> Result<Typed> {
        self.expect(Kind::LParen, "`(`")?;
        let (members, height) = self.members(depth)?;
        // A member that is a union is flat itself, so one level of flattening is enough.
        let mut flat = Vec::with_capacity(members.len());
        for member in members {
            match member {
                ArgType::Union(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        flat.sort_by_cached_key(|member| (member.union_rank(), member.to_string()));
        flat.dedup();
        if flat.len() < 2 {
            return Err(self.error_since(start, "at least two different types"));
        }
        Ok(Typed { ty: ArgType::Union(flat.into()), alias: self.alias()?, height })
    }

    fn wrapper(&mut self, depth: usize, wrap: fn(Box<ArgType>) -> ArgType) -> Result<Typed> {
        self.expect(Kind::LParen, "`(`")?;
        let inner = self.nested_type(depth + 1)?;
        self.expect(Kind::RParen, "`)`")?;
        Ok(Typed { ty: wrap(Box::new(inner.ty)), alias: None, height: inner.height + 1 })
    }

    /// `.torch.classes.<namespace>.<Class>` after `__torch__`.
    fn class(&mut self, start: usize) -> Result<Typed> {
        const EXPECTED: &str = "`__torch__.torch.classes.<namespace>.<class>`";
        let mut path = String::from("__torch__");
        for fixed in [Some("torch"), Some("classes"), None, None] {
            self.expect(Kind::Dot, EXPECTED)?;
            let token = self.expect(Kind::Ident, EXPECTED)?;
            let part = self.slice(token);
            if fixed.is_some_and(|fixed| fixed != part) {
                return Err(self.error_since(start, EXPECTED));
            }
            path.push('.');
            path.push_str(part);
        }
        Ok(Typed::plain(ArgType::Class(path.into()), None))
    }
}

fn too_deep() -> String {
    format!("at most {MAX_NESTING} levels of nested types")
}
