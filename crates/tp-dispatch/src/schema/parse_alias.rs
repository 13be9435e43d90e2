//! The parser's rules for alias annotations.

use smallvec::SmallVec;

use super::alias::{AliasInfo, AliasSet, AliasSets};
use super::error::Result;
use super::lex::Kind;
use super::parse::Parser;
use super::text::Text;

impl Parser<'_> {
    /// An annotation, if one follows: `(a)`, `(a!)`, `(a! -> a|b)`, `(*)` or `!`.
    #[inline]
    pub fn alias(&mut self) -> Result<Option<Box<AliasInfo>>> {
        match self.current.kind() {
            Kind::LParen => self.alias_in_parentheses().map(Some),
            Kind::Bang => {
                self.advance();
                Ok(Some(Box::new(AliasInfo::fresh())))
            }
            _ => Ok(None),
        }
    }

    fn alias_in_parentheses(&mut self) -> Result<Box<AliasInfo>> {
        self.advance();
        let first = self.alias_set()?;
        if !self.current.is(Kind::Pipe) {
            let write = self.eat(Kind::Bang);
            if self.eat(Kind::RParen) {
                return Ok(Box::new(AliasInfo::one(first, write)));
            }
            return self.alias_transition(SmallVec::from_iter([first]), write);
        }
        let before = self.more_alias_sets(first)?;
        let write = self.eat(Kind::Bang);
        self.alias_transition(before, write)
    }

    /// What follows the sets before the call: `)` or `-> a|b)`.
    fn alias_transition(&mut self, before: AliasSets, write: bool) -> Result<Box<AliasInfo>> {
        let after = if self.eat(Kind::Arrow) {
            let first = self.alias_set()?;
            Some(self.more_alias_sets(first)?)
        } else {
            None
        };
        self.expect(Kind::RParen, if after.is_some() { "`|` or `)`" } else { "`!`, `|`, `->` or `)`" })?;
        Ok(Box::new(AliasInfo::sets(before, write, after)))
    }

    fn more_alias_sets(&mut self, first: AliasSet) -> Result<AliasSets> {
        let mut sets = AliasSets::from_iter([first]);
        while self.eat(Kind::Pipe) {
            sets.push(self.alias_set()?);
        }
        Ok(sets)
    }

    fn alias_set(&mut self) -> Result<AliasSet> {
        if self.eat(Kind::Star) {
            return Ok(AliasSet::Wildcard);
        }
        let token = self.expect(Kind::Ident, "an alias set (a name or `*`)")?;
        Ok(AliasSet::Named(Text::new(self.slice(token))))
    }
}
