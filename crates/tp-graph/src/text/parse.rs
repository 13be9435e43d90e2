//! Parsing: the inverse of `print`, by recursive descent, whose recursion ends at `MAX_DEPTH` blocks within blocks.

use super::lex::{Cursor, unescape};
use crate::builder::{GraphBuilder, NewNode, NewOutput, NewValue};
use crate::control::Control;
use crate::entity::ValueId;
use crate::ir::{Alias, Const, Graph, InputKind, Operand, Target, ValueType};
use smallvec::SmallVec;
use tp_dispatch::host::Location;
use tp_dispatch::{Effects, Phase, Result};
use tp_tensor::symbols::{self, Check, Relation, SizeGuard, Statement, Symbols};
use tp_tensor::{DType, Device, Dim, TensorSpec, dim::Dims};

pub(super) fn graph(text: &str) -> Result<Graph> {
    let table = Symbols::new();
    let _table = symbols::enter(table.clone());
    let mut p = Parser { cursor: Cursor::new(text), builder: GraphBuilder::over(table) };
    p.header("graph")?;
    p.sizes()?;
    let outputs = p.body(0)?;
    p.cursor.skip_space();
    if !p.cursor.rest().is_empty() {
        return Err(p.cursor.error("the end of the graph"));
    }
    Ok(p.builder.finish(outputs))
}

/// Blocks within blocks, at most.
const MAX_DEPTH: usize = 64;

struct Parser<'a> {
    cursor: Cursor<'a>,
    builder: GraphBuilder,
}

/// What a trailing comment says.
struct Comment {
    effects: Effects,
    aliases: Vec<(ValueId, Alias)>,
    phase: Phase,
    location: Option<Location>,
}

/// A result before its alias is known: the number the text gives it, and its type.
struct Typed {
    id: ValueId,
    ty: ValueType,
}

enum Result0 {
    One(Typed),
    List(Vec<Typed>),
}

impl Parser<'_> {
    /// The nodes, and what is returned.
    fn body(&mut self, depth: usize) -> Result<Vec<Operand>> {
        while !self.cursor.eat_word("return") {
            self.node(depth)?;
        }
        let outputs = self.operands(|p| Ok(p.cursor.peek() == Some('}')))?;
        self.cursor.expect("}")?;
        Ok(outputs)
    }

    /// The blocks of a node of control flow, each a graph over the symbols of this one.
    fn blocks(&mut self, control: Control, depth: usize) -> Result<Vec<Graph>> {
        if depth > MAX_DEPTH {
            return Err(self.cursor.error(&format!("blocks at most {MAX_DEPTH} levels deep")));
        }
        let mut out = Vec::new();
        for name in control.blocks() {
            let inner = GraphBuilder::over(self.builder.graph().symbols.clone());
            let around = std::mem::replace(&mut self.builder, inner);
            self.header(name)?;
            let outputs = self.body(depth + 1)?;
            out.push(std::mem::replace(&mut self.builder, around).finish(outputs));
        }
        Ok(out)
    }

    fn header(&mut self, name: &str) -> Result<()> {
        if !self.cursor.eat_word(name) {
            return Err(self.cursor.error(&format!("\"{name}(\"")));
        }
        self.cursor.expect("(")?;
        while self.cursor.peek() != Some(')') {
            self.input()?;
            if !self.cursor.eat(",") {
                break;
            }
        }
        self.cursor.expect(")")?;
        self.cursor.expect("{")
    }

    fn input(&mut self) -> Result<()> {
        let typed_at = self.cursor.value()?;
        self.check_number(typed_at, 0)?;
        let name = match self.cursor.peek() {
            Some('"') => self.cursor.string()?,
            _ => self.input_name()?,
        };
        self.cursor.expect(":")?;
        let ty = self.value_type()?;
        let kinds = InputKind::ALL.into_iter().filter(|k| *k != InputKind::Argument);
        let mut kind = InputKind::Argument;
        for k in kinds {
            if self.cursor.eat_word(k.name()) {
                kind = k;
            }
        }
        let alias = if self.cursor.eat_word("shares") {
            Some(Alias::Shares(self.cursor.value()?))
        } else if self.cursor.eat_word("views") {
            Some(Alias::View(self.cursor.value()?))
        } else if self.cursor.eat_word("is") {
            Some(Alias::Same(self.cursor.value()?))
        } else {
            None
        };
        self.builder.input(name, kind, ty, alias);
        Ok(())
    }

    /// An identifier; the colon behind it belongs to the type.
    fn input_name(&mut self) -> Result<String> {
        self.cursor.skip_space();
        let rest = self.cursor.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.cursor.error("an input's name"));
        }
        let name = rest[..end].to_string();
        self.cursor.eat(&name);
        Ok(name)
    }

    fn node(&mut self, depth: usize) -> Result<()> {
        let results = self.results()?;
        let name = self.cursor.word()?;
        if !name.contains("::") {
            return Err(self.cursor.error("a call of \"ns::op.overload\""));
        }
        self.cursor.expect("(")?;
        let inputs = self.operands(|p| Ok(p.cursor.peek() == Some(')')))?;
        self.cursor.expect(")")?;
        let comment = self.comment()?;
        let outputs = self.outputs(results, &comment)?;
        let target = Target::resolve(name);
        let blocks = target.control().map_or_else(|| Ok(Vec::new()), |c| self.blocks(c, depth))?;
        let new = NewNode {
            target,
            inputs: inputs.into(),
            blocks,
            effects: comment.effects,
            location: comment.location,
            phase: comment.phase,
        };
        self.builder.node(new, outputs);
        Ok(())
    }

    fn results(&mut self) -> Result<Vec<Result0>> {
        let mut results = Vec::new();
        match self.cursor.peek() {
            Some('(') => {
                self.cursor.expect("(")?;
                loop {
                    results.push(self.result()?);
                    if !self.cursor.eat(",") {
                        break;
                    }
                }
                self.cursor.expect(")")?;
            }
            Some('%' | '[') => results.push(self.result()?),
            _ => return Ok(results),
        }
        self.cursor.expect("=")?;
        Ok(results)
    }

    fn result(&mut self) -> Result<Result0> {
        if !self.cursor.eat("[") {
            return Ok(Result0::One(self.typed()?));
        }
        let mut items = Vec::new();
        while self.cursor.peek() != Some(']') {
            items.push(self.typed()?);
            if !self.cursor.eat(",") {
                break;
            }
        }
        self.cursor.expect("]")?;
        Ok(Result0::List(items))
    }

    fn typed(&mut self) -> Result<Typed> {
        let id = self.cursor.value()?;
        self.cursor.expect(":")?;
        Ok(Typed { id, ty: self.value_type()? })
    }

    fn outputs(&mut self, results: Vec<Result0>, comment: &Comment) -> Result<SmallVec<[NewOutput; 1]>> {
        let mut ahead = 0;
        let mut take = |p: &Self, typed: Typed| {
            p.check_number(typed.id, ahead)?;
            ahead += 1;
            let alias = comment.aliases.iter().find(|(v, _)| *v == typed.id).map(|(_, a)| *a);
            Ok(NewValue { ty: typed.ty, alias })
        };
        let mut out = SmallVec::new();
        for result in results {
            out.push(match result {
                Result0::One(typed) => NewOutput::Value(take(self, typed)?),
                Result0::List(items) => {
                    NewOutput::List(items.into_iter().map(|t| take(self, t)).collect::<Result<_>>()?)
                }
            });
        }
        Ok(out)
    }

    /// Values are numbered in the order in which they are defined.
    fn check_number(&self, id: ValueId, ahead: u32) -> Result<()> {
        let wanted = self.builder.graph().values.len() as u32 + ahead;
        if id.0 == wanted {
            return Ok(());
        }
        Err(self.cursor.error(&format!("the definition of %{wanted} before this one of {id}")))
    }

    fn operands(&mut self, at_end: impl Fn(&mut Self) -> Result<bool>) -> Result<Vec<Operand>> {
        let mut out = Vec::new();
        while !at_end(self)? {
            out.push(self.operand()?);
            if !self.cursor.eat(",") {
                break;
            }
        }
        Ok(out)
    }

    fn operand(&mut self) -> Result<Operand> {
        if !self.cursor.eat("[") {
            return self.atom();
        }
        let mut items = Vec::new();
        while self.cursor.peek() != Some(']') {
            items.push(self.atom()?);
            if !self.cursor.eat(",") {
                break;
            }
        }
        self.cursor.expect("]")?;
        Ok(Operand::List(items.into()))
    }

    fn atom(&mut self) -> Result<Operand> {
        match self.cursor.peek() {
            Some('%') => return Ok(Operand::Value(self.cursor.value()?)),
            Some('u' | 's' | '(' | '-' | '0'..='9') => {
                if let Some(symbolic) = self.size() {
                    return Ok(Operand::Const(Const::Size(Dim::from_raw(symbolic))));
                }
            }
            _ => {}
        }
        Ok(Operand::Const(self.cursor.literal()?))
    }

    /// An expression with a symbol in it.
    fn size(&mut self) -> Option<i64> {
        self.cursor.skip_space();
        let (raw, read) = self.builder.graph().symbols.parse(self.cursor.rest())?;
        let symbolic = Dim::from_raw(raw).is_symbol();
        // `u0` begins no longer word, such as a dtype.
        let ends = !self.cursor.rest()[read..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '.');
        (symbolic && ends).then(|| {
            self.cursor.advance(read);
            raw
        })
    }

    /// The lines about symbolic sizes.
    fn sizes(&mut self) -> Result<()> {
        while self.cursor.eat_word("size") {
            let table = self.builder.graph().symbols.clone();
            let inputs = table.inputs().len() as u32;
            let (input, other) = (Dim::symbol(inputs), Dim::unbacked(table.len() as u32));
            let is_input = match self.size() {
                Some(raw) if raw == input.raw() => true,
                Some(raw) if raw == other.raw() => false,
                _ => return Err(self.cursor.error(&format!("the declaration of {input} or {other}"))),
            };
            let (low, high) = if self.cursor.eat(">=") {
                (self.cursor.int()?, None)
            } else {
                self.cursor.expect("in")?;
                self.cursor.expect("[")?;
                let low = self.cursor.int()?;
                self.cursor.expect(",")?;
                let high = self.cursor.int()?;
                self.cursor.expect("]")?;
                (low, Some(high))
            };
            if low < 0 || high.is_some_and(|high| high < low) {
                return Err(self.cursor.error("a range of sizes"));
            }
            if is_input {
                self.cursor.expect(",")?;
                self.cursor.expect("captured at")?;
                let hint = self.cursor.int()?;
                table.declare_input(low, high, hint);
            } else {
                table.declare(low, high);
            }
        }
        while self.cursor.eat_word("check") {
            let check = self.check()?;
            self.builder.graph().symbols.check(check);
        }
        while self.cursor.eat_word("guard") {
            let statement = self.statement()?;
            let at = self.comment()?.location.map(|at| (at.file, at.line));
            self.builder.graph().symbols.guard(SizeGuard { statement, at });
        }
        Ok(())
    }

    fn check(&mut self) -> Result<Check> {
        let statement = self.statement()?;
        let message = if self.cursor.eat(",") { Some(self.cursor.string()?.into()) } else { None };
        let at = self.comment()?.location.map(|at| (at.file, at.line));
        Ok(Check { statement, message, at })
    }

    fn statement(&mut self) -> Result<Statement> {
        let table = self.builder.graph().symbols.clone();
        let side = |p: &mut Self| {
            p.cursor.skip_space();
            let (poly, read) = table.parse_poly(p.cursor.rest()).ok_or_else(|| p.cursor.error("a size"))?;
            p.cursor.advance(read);
            Ok::<_, tp_dispatch::Error>(poly)
        };
        let left = side(self)?;
        let relation = Relation::ALL.into_iter().find(|r| self.cursor.eat(r.text()));
        let relation = relation.ok_or_else(|| self.cursor.error("a comparison"))?;
        Ok(Statement { left, relation, right: side(self)? })
    }

    fn value_type(&mut self) -> Result<ValueType> {
        let name = self.cursor.word()?;
        if !self.cursor.rest().starts_with('[') {
            return self.other_type(name.to_string());
        }
        let Ok(dtype) = name.parse::<DType>() else {
            self.cursor.expect("[")?;
            let inner = self.cursor.word()?;
            self.cursor.expect("]")?;
            return self.other_type(format!("{name}[{inner}]"));
        };
        let sizes = self.dims()?;
        let mut spec = TensorSpec::contiguous(&sizes, dtype, Device::CPU);
        if self.cursor.eat_word("strides") {
            spec.strides = self.dims()?;
        }
        if self.cursor.eat_word("on") {
            let device = self.cursor.word()?;
            spec.device = device.parse().map_err(|_| self.cursor.error("a device"))?;
        }
        Ok(ValueType::Tensor(spec))
    }

    /// The type of a value that is no tensor, with the value itself where it is known.
    fn other_type(&mut self, name: String) -> Result<ValueType> {
        if self.cursor.eat_word("is") {
            return self.operand().map(ValueType::Known);
        }
        Ok(ValueType::Other(name.into()))
    }

    fn dims(&mut self) -> Result<Dims> {
        self.cursor.expect("[")?;
        let mut out = Dims::new();
        while self.cursor.peek() != Some(']') {
            out.push(match self.size() {
                Some(symbolic) => symbolic,
                None => self.cursor.int()?,
            });
            if !self.cursor.eat(",") {
                break;
            }
        }
        self.cursor.expect("]")?;
        Ok(out)
    }

    fn comment(&mut self) -> Result<Comment> {
        let mut out =
            Comment { effects: Effects::PURE, aliases: Vec::new(), phase: Phase::Forward, location: None };
        self.cursor.skip_blank();
        if !self.cursor.rest().starts_with('#') {
            return Ok(out);
        }
        self.cursor.expect("#")?;
        let mut text = self.cursor.line().trim();
        // A file name may hold anything, so the location comes last and is taken off first.
        let at = if text.starts_with("at ") { Some(0) } else { text.find("; at ").map(|i| i + 2) };
        if let Some(at) = at {
            out.location =
                Some(location(&text[at + 3..]).ok_or_else(|| self.cursor.error("\"at file:line\""))?);
            text = text[..at].trim_end_matches("; ");
        }
        for item in text.split("; ").filter(|item| !item.is_empty()) {
            if !comment_item(item, &mut out) {
                return Err(self.cursor.error(&format!("a comment item, not {item:?},")));
            }
        }
        Ok(out)
    }
}

fn comment_item(item: &str, out: &mut Comment) -> bool {
    if item == "backward" {
        out.phase = Phase::Backward;
        return true;
    }
    if item.starts_with('%') {
        let mut words = item.split(' ');
        let id =
            |w: Option<&str>| w.and_then(|w| w.strip_prefix('%')).and_then(|d| d.parse().ok()).map(ValueId);
        let (value, verb, of) = (id(words.next()), words.next(), id(words.next()));
        let (Some(value), Some(of), None) = (value, of, words.next()) else { return false };
        let alias = match verb {
            Some("views") => Alias::View(of),
            Some("is") => Alias::Same(of),
            Some("shares") => Alias::Shares(of),
            _ => return false,
        };
        out.aliases.push((value, alias));
        return true;
    }
    for name in item.split(", ") {
        match name {
            "mutates" => out.effects.mutates = true,
            "random" => out.effects.random = true,
            "ordered" => out.effects.ordered = true,
            "nondeterministic" => out.effects.nondeterministic = true,
            _ => return false,
        }
    }
    true
}

fn location(text: &str) -> Option<Location> {
    let (file, line) = text.rsplit_once(':')?;
    Some(Location { file: unescape(file)?.into(), line: line.parse().ok()? })
}
