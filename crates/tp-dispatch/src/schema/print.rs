//! Schemas as text. Everything printed parses back into an equal schema.

use std::fmt::{self, Display, Formatter, Write};

use super::alias::{AliasInfo, AliasSet};
use super::default::DefaultValue;
use super::model::{Argument, Return, Schema};
use super::name::OpName;
use super::types::ArgType;

impl Display for Schema {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())?;
        write_signature(self, f)
    }
}

impl Schema {
    /// The schema without its name: `(Tensor self) -> Tensor`.
    pub fn signature_text(&self) -> String {
        let mut text = String::new();
        let _ = write_signature(self, &mut text); // writing to a String cannot fail
        text
    }
}

fn write_signature(schema: &Schema, out: &mut impl Write) -> fmt::Result {
    out.write_char('(')?;
    let mut separator = "";
    let mut kwarg_only = false;
    for argument in schema.arguments() {
        if argument.is_kwarg_only() && !kwarg_only {
            kwarg_only = true;
            write!(out, "{separator}*")?;
            separator = ", ";
        }
        write!(out, "{separator}{argument}")?;
        separator = ", ";
    }
    if schema.is_vararg() {
        write!(out, "{separator}...")?;
    }
    out.write_str(") -> ")?;
    write_returns(schema, out)
}

fn write_returns(schema: &Schema, out: &mut impl Write) -> fmt::Result {
    match schema.returns() {
        [] if schema.is_varret() => return out.write_str("..."),
        [only] if !schema.is_varret() && !starts_with_parenthesis(only.ty()) => return write!(out, "{only}"),
        _ => out.write_char('(')?,
    }
    let mut separator = "";
    for value in schema.returns() {
        write!(out, "{separator}{value}")?;
        separator = ", ";
    }
    if schema.is_varret() {
        write!(out, "{separator}...")?;
    }
    out.write_char(')')
}

/// A lone tuple, or a list of one, needs parentheses of its own, or it reads as several returns.
fn starts_with_parenthesis(ty: &ArgType) -> bool {
    let mut ty = ty;
    while let ArgType::Optional(inner) | ArgType::List(inner, _) = ty {
        ty = inner;
    }
    matches!(ty, ArgType::Tuple(_))
}

impl Display for OpName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = self.namespace() {
            write!(f, "{namespace}::")?;
        }
        f.write_str(self.name())?;
        match self.overload() {
            Some(overload) => write!(f, ".{overload}"),
            None => Ok(()),
        }
    }
}

impl Display for Argument {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_typed(f, self.ty(), self.alias())?;
        write!(f, " {}", self.name())?;
        match self.default() {
            None => Ok(()),
            Some(default) => {
                f.write_char('=')?;
                write_default(f, default, self.ty())
            }
        }
    }
}

impl Display for Return {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_typed(f, self.ty(), self.alias())?;
        match self.name() {
            Some(name) => write!(f, " {name}"),
            None => Ok(()),
        }
    }
}

impl Display for ArgType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_typed(f, self, None)
    }
}

/// A type with each annotation after the type it belongs to: `Tensor(a!)[](b)?`.
fn write_typed(f: &mut Formatter<'_>, ty: &ArgType, alias: Option<&AliasInfo>) -> fmt::Result {
    match ty {
        ArgType::Optional(inner) => {
            write_typed(f, inner, alias)?;
            return f.write_char('?');
        }
        ArgType::List(element, size) => {
            write_typed(f, element, alias.and_then(AliasInfo::element))?;
            match size {
                Some(size) => write!(f, "[{size}]")?,
                None => f.write_str("[]")?,
            }
            let own = alias.filter(|info| !info.before().is_empty() || info.element().is_none());
            return own.map_or(Ok(()), |info| write!(f, "{info}"));
        }
        ArgType::Tuple(members) => write_members(f, "", members)?,
        ArgType::Union(members) => write_members(f, "Union", members)?,
        ArgType::Dict(pair) => write!(f, "Dict({}, {})", pair.0, pair.1)?,
        ArgType::Future(inner) => write!(f, "Future({inner})")?,
        ArgType::RRef(inner) => write!(f, "RRef({inner})")?,
        ArgType::Await(inner) => write!(f, "Await({inner})")?,
        ArgType::Var(name) | ArgType::Class(name) => f.write_str(name)?,
        basic => f.write_str(basic.basic_name().unwrap_or_default())?,
    }
    alias.map_or(Ok(()), |info| write!(f, "{info}"))
}

fn write_members(f: &mut Formatter<'_>, prefix: &str, members: &[ArgType]) -> fmt::Result {
    write!(f, "{prefix}(")?;
    for (index, member) in members.iter().enumerate() {
        write!(f, "{}{member}", if index == 0 { "" } else { ", " })?;
    }
    f.write_char(')')
}

/// The annotation without that of a list's elements, which belongs before the brackets.
impl Display for AliasInfo {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.before() == [AliasSet::Fresh] && self.writes_own() {
            return f.write_char('!');
        }
        f.write_char('(')?;
        write_sets(f, self.before())?;
        if self.writes_own() {
            f.write_char('!')?;
        }
        if self.before() != self.after() {
            f.write_str(" -> ")?;
            write_sets(f, self.after())?;
        }
        f.write_char(')')
    }
}

fn write_sets(f: &mut Formatter<'_>, sets: &[AliasSet]) -> fmt::Result {
    for (index, set) in sets.iter().enumerate() {
        write!(f, "{}{set}", if index == 0 { "" } else { "|" })?;
    }
    Ok(())
}

impl Display for AliasSet {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            AliasSet::Named(name) => f.write_str(name),
            AliasSet::Wildcard => f.write_char('*'),
            // It has no name; `Tensor!` is printed without asking for one.
            AliasSet::Fresh => f.write_char('$'),
        }
    }
}

/// `int[2]` lists of equal integers print as the one value that is repeated.
fn write_default(f: &mut Formatter<'_>, default: &DefaultValue, ty: &ArgType) -> fmt::Result {
    if let (DefaultValue::List(items), ArgType::List(element, Some(size))) = (default, ty)
        && let [first, _, ..] = &**items
    {
        let is_repeated = items.windows(2).all(|pair| pair[0] == pair[1]);
        if **element == ArgType::Int && items.len() == *size as usize && is_repeated {
            return write!(f, "{first}");
        }
    }
    write!(f, "{default}")
}

impl Display for DefaultValue {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            DefaultValue::None => f.write_str("None"),
            DefaultValue::Bool(value) => f.write_str(if *value { "True" } else { "False" }),
            DefaultValue::Int(value) => write!(f, "{value}"),
            DefaultValue::Float(value) => write_float(f, *value),
            DefaultValue::Complex(real, imaginary) => {
                write_float(f, *real)?;
                if !imaginary.is_sign_negative() || imaginary.is_nan() {
                    f.write_char('+')?;
                }
                write_float(f, *imaginary)?;
                f.write_char('j')
            }
            DefaultValue::Str(text) | DefaultValue::Device(text) => write_quoted(f, text),
            DefaultValue::Word(word) => f.write_str(word.text()),
            DefaultValue::List(items) => {
                f.write_char('[')?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
                }
                f.write_char(']')
            }
        }
    }
}

/// 17 significant digits without trailing zeros, as C prints with `%.17g`, and always with a
/// point or an exponent, so that it does not read as an integer.
fn write_float(f: &mut Formatter<'_>, value: f64) -> fmt::Result {
    if value.is_nan() {
        return f.write_str("nan");
    }
    if value.is_infinite() {
        return f.write_str(if value > 0.0 { "inf" } else { "-inf" });
    }
    if value.is_sign_negative() {
        f.write_char('-')?;
    }
    let scientific = format!("{:.16e}", value.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits = mantissa.replace('.', "");
    let digits = digits.trim_end_matches('0');
    let digits = if digits.is_empty() { "0" } else { digits };
    match exponent {
        -4..0 => write!(f, "0.{}{digits}", "0".repeat(-exponent as usize - 1)),
        0..17 => {
            let whole = exponent as usize + 1;
            let split = whole.min(digits.len());
            let zeros = "0".repeat(whole - split);
            write!(f, "{}{zeros}.{}", &digits[..split], &digits[split..])
        }
        _ => {
            let (first, rest) = digits.split_at(1);
            let point = if rest.is_empty() { "" } else { "." };
            let sign = if exponent < 0 { '-' } else { '+' };
            write!(f, "{first}{point}{rest}e{sign}{:02}", exponent.abs())
        }
    }
}

/// Quotes a string so that it reads back: other than control characters, which become octal
/// escapes, any character stands for itself.
fn write_quoted(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for character in text.chars() {
        match character {
            '\\' | '\'' | '"' => write!(f, "\\{character}")?,
            '\x07' => f.write_str("\\a")?,
            '\x08' => f.write_str("\\b")?,
            '\t' => f.write_str("\\t")?,
            '\n' => f.write_str("\\n")?,
            '\x0b' => f.write_str("\\v")?,
            '\x0c' => f.write_str("\\f")?,
            '\r' => f.write_str("\\r")?,
            control if control.is_ascii_control() => write!(f, "\\{:03o}", control as u32)?,
            plain => f.write_char(plain)?,
        }
    }
    f.write_char('"')
}
