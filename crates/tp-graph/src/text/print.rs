//! Printing. See the module above for the form.

use crate::control::Control;
use crate::entity::ValueId;
use crate::ir::{Alias, Const, Graph, Input, InputKind, Node, Operand, Output, ValueType};
use std::fmt::{self, Display, Formatter, Write};
use std::sync::Arc;
use tp_dispatch::{Effects, Phase};
use tp_tensor::{Dim, Scalar, symbols};

/// Headers longer than this get one line per input.
const HEADER_WIDTH: usize = 100;

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let _table = symbols::enter(self.symbols.clone());
        header(self, "graph", "", f)?;
        sizes(self, f)?;
        body(self, "", f)?;
        f.write_str("}\n")
    }
}

/// The nodes with their blocks, and what is returned.
fn body(graph: &Graph, indent: &str, f: &mut Formatter<'_>) -> fmt::Result {
    for node in graph.nodes.values() {
        writeln!(f, "{indent}  {}", NodeText { graph, node })?;
        let names = node.target.control().map_or(["", ""], Control::blocks);
        let inner = format!("{indent}    ");
        for (name, block) in names.iter().zip(&node.blocks) {
            header(block, name, &inner, f)?;
            body(block, &inner, f)?;
            writeln!(f, "{inner}}}")?;
        }
    }
    write!(f, "{indent}  return ")?;
    commas(f, &graph.outputs)?;
    f.write_char('\n')
}

fn header(graph: &Graph, name: &str, indent: &str, f: &mut Formatter<'_>) -> fmt::Result {
    let mut inputs = Vec::with_capacity(graph.inputs.len());
    for input in &graph.inputs {
        let mut text = String::new();
        input_text(graph, input, &mut text)?;
        inputs.push(text);
    }
    let width: usize = inputs.iter().map(|t| t.len() + 2).sum();
    if width > HEADER_WIDTH {
        let between = format!(",\n{indent}    ");
        writeln!(f, "{indent}{name}(\n{indent}    {}\n{indent}) {{", inputs.join(&between))
    } else {
        writeln!(f, "{indent}{name}({}) {{", inputs.join(", "))
    }
}

/// What is declared of symbolic sizes, what has been checked of them, and what runs are held to before they start.
fn sizes(graph: &Graph, f: &mut Formatter<'_>) -> fmt::Result {
    for (id, input) in (0..).zip(graph.symbols.inputs()) {
        writeln!(f, "  size {}, captured at {}", input.declared().of(Dim::symbol(id)), input.hint)?;
    }
    for id in 0..graph.symbols.len() as u32 {
        if let Some(range) = graph.symbols.declared(id) {
            writeln!(f, "  size {}", range.of(Dim::unbacked(id)))?;
        }
    }
    for check in graph.symbols.checks() {
        write!(f, "  check {}", check.statement)?;
        if let Some(message) = &check.message {
            f.write_str(", ")?;
            quote(message, f)?;
        }
        place(&check.at, f)?;
    }
    for guard in graph.symbols.guards() {
        write!(f, "  guard {}", guard.statement)?;
        place(&guard.at, f)?;
    }
    Ok(())
}

/// Where a statement was made, and the end of its line.
fn place(at: &Option<(Arc<str>, u32)>, f: &mut Formatter<'_>) -> fmt::Result {
    if let Some((file, line)) = at {
        f.write_str("  # at ")?;
        escape(file, false, f)?;
        write!(f, ":{line}")?;
    }
    f.write_char('\n')
}

fn input_text(graph: &Graph, input: &Input, out: &mut String) -> fmt::Result {
    let data = &graph.values[input.value];
    write!(out, "{} ", input.value)?;
    if is_identifier(&input.name) {
        out.push_str(&input.name);
    } else {
        quote(&input.name, out)?;
    }
    write!(out, ": {}", data.ty)?;
    if input.kind != InputKind::Argument {
        write!(out, " {}", input.kind.name())?;
    }
    match data.alias {
        Some(Alias::Shares(v)) => write!(out, " shares {v}"),
        Some(Alias::View(v)) => write!(out, " views {v}"),
        Some(Alias::Same(v)) => write!(out, " is {v}"),
        None => Ok(()),
    }
}

/// One node as it stands in the text, without indentation and newline.
pub(crate) struct NodeText<'a> {
    pub graph: &'a Graph,
    pub node: &'a Node,
}

impl Display for NodeText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let NodeText { graph, node } = *self;
        match &*node.outputs {
            [] => {}
            [one] => {
                output(graph, one, f)?;
                f.write_str(" = ")?;
            }
            several => {
                f.write_char('(')?;
                for (i, o) in several.iter().enumerate() {
                    f.write_str(if i > 0 { ", " } else { "" })?;
                    output(graph, o, f)?;
                }
                f.write_str(") = ")?;
            }
        }
        write!(f, "{}(", node.target.name())?;
        commas(f, &node.inputs)?;
        f.write_char(')')?;
        comment(graph, node, f)
    }
}

fn output(graph: &Graph, output: &Output, f: &mut Formatter<'_>) -> fmt::Result {
    let typed = |v: ValueId, f: &mut Formatter<'_>| match graph.values.get(v) {
        Some(data) => write!(f, "{v}: {}", data.ty),
        None => write!(f, "{v}: ?"),
    };
    match output {
        Output::Value(v) => typed(*v, f),
        Output::List(vs) => {
            f.write_char('[')?;
            for (i, v) in vs.iter().enumerate() {
                f.write_str(if i > 0 { ", " } else { "" })?;
                typed(*v, f)?;
            }
            f.write_char(']')
        }
    }
}

fn comment(graph: &Graph, node: &Node, f: &mut Formatter<'_>) -> fmt::Result {
    let mut items: Vec<String> = Vec::new();
    if node.effects != Effects::PURE {
        items.push(node.effects.to_string());
    }
    for v in node.defined() {
        match graph.values.get(v).and_then(|d| d.alias) {
            Some(Alias::View(of)) => items.push(format!("{v} views {of}")),
            Some(Alias::Same(of)) => items.push(format!("{v} is {of}")),
            Some(Alias::Shares(of)) => items.push(format!("{v} shares {of}")),
            None => {}
        }
    }
    if node.phase == Phase::Backward {
        items.push("backward".to_string());
    }
    if let Some(at) = &node.location {
        let mut text = "at ".to_string();
        escape(&at.file, false, &mut text)?;
        write!(text, ":{}", at.line)?;
        items.push(text);
    }
    if items.is_empty() { Ok(()) } else { write!(f, "  # {}", items.join("; ")) }
}

fn commas(f: &mut Formatter<'_>, operands: &[Operand]) -> fmt::Result {
    for (i, operand) in operands.iter().enumerate() {
        f.write_str(if i > 0 { ", " } else { "" })?;
        Display::fmt(operand, f)?;
    }
    Ok(())
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Value(v) => Display::fmt(v, f),
            Operand::Const(c) => Display::fmt(c, f),
            Operand::List(items) => {
                f.write_char('[')?;
                commas(f, items)?;
                f.write_char(']')
            }
        }
    }
}

impl Display for Const {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Const::None => f.write_str("None"),
            Const::Bool(v) => f.write_str(if *v { "True" } else { "False" }),
            Const::Int(v) => Display::fmt(v, f),
            Const::Size(v) => Display::fmt(v, f),
            // Only the usual NaN has a name; another one keeps its bits.
            Const::Float(v) if v.is_nan() && v.to_bits() != f64::NAN.to_bits() => {
                write!(f, "nan({:#018x})", v.to_bits())
            }
            Const::Float(v) => Display::fmt(&Scalar::Float(*v), f),
            Const::Str(s) => quote(s, f),
            Const::DType(d) => f.write_str(d.name()),
            Const::Device(d) => Display::fmt(d, f),
        }
    }
}

impl Display for ValueType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            ValueType::Tensor(spec) => Display::fmt(spec, f),
            ValueType::Other(name) => f.write_str(name),
            ValueType::Known(value) => write!(f, "{} is {value}", value.type_name()),
        }
    }
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn quote(text: &str, out: &mut impl Write) -> fmt::Result {
    out.write_char('"')?;
    escape(text, true, out)?;
    out.write_char('"')
}

/// Control characters and backslashes always, quotes where asked.
fn escape(text: &str, quotes: bool, out: &mut impl Write) -> fmt::Result {
    for c in text.chars() {
        match c {
            '"' if quotes => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                write!(out, "\\u{{{:x}}}", c as u32)?
            }
            c => out.write_char(c)?,
        }
    }
    Ok(())
}
