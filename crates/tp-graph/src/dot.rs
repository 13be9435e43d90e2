//! Pictures of a graph as text: Graphviz, and a table for terminals.

use crate::control::Control;
use crate::entity::ValueId;
use crate::ir::{Def, Graph, Node, Operand};
use std::fmt::Write;
use tp_dispatch::Phase;

impl Graph {
    /// Graphviz text: one box per node, labelled with the op and the types of its results.
    pub fn to_dot(&self) -> String {
        let _table = tp_tensor::symbols::enter(self.symbols.clone());
        let mut out = String::from("digraph {\n  rankdir=TB;\n  node [shape=box, fontname=\"monospace\"];\n");
        self.dot_body("", &mut out);
        out.push_str("}\n");
        out
    }

    /// Boxes and edges; the names of those of a block begin with `at`.
    fn dot_body(&self, at: &str, out: &mut String) {
        for input in &self.inputs {
            let v = input.value;
            let label = format!("{} {}\\n{}", v, quoted(&input.name), self.values[v].ty);
            line(out, format_args!("  {at}v{} [label=\"{label}\", shape=ellipse];", v.0));
        }
        for (id, node) in self.nodes.iter() {
            let shade = if node.phase == Phase::Backward { ", style=dashed" } else { "" };
            let label = format!("{}\\n{}", node.target.name(), self.result_types(node).join("\\n"));
            line(out, format_args!("  {at}n{} [label=\"{label}\"{shade}];", id.0));
            node.for_each_use(|v| line(out, format_args!("  {} -> {at}n{};", self.dot_source(at, v), id.0)));
            let names = node.target.control().map_or(["", ""], Control::blocks);
            for (name, block) in names.iter().zip(&node.blocks) {
                let inner = format!("{at}n{}_{name}_", id.0);
                line(
                    out,
                    format_args!("  subgraph cluster_{inner} {{\n  label=\"{} {name}\";", node.target.name()),
                );
                block.dot_body(&inner, out);
                line(out, format_args!("  }}\n  {at}n{} -> {inner}out0 [style=dotted];", id.0));
            }
        }
        for (i, output) in self.outputs.iter().enumerate() {
            line(out, format_args!("  {at}out{i} [label=\"output {i}\", shape=ellipse];"));
            output.for_each_value(|v| line(out, format_args!("  {} -> {at}out{i};", self.dot_source(at, v))));
        }
    }

    fn dot_source(&self, at: &str, v: ValueId) -> String {
        // The text of a graph that does not pass the verifier may read what nothing defines.
        match self.values.get(v).map(|value| value.def) {
            Some(Def::Input(_)) | None => format!("{at}v{}", v.0),
            Some(Def::Node(n)) => format!("{at}n{}", n.0),
        }
    }

    pub(crate) fn result_types(&self, node: &Node) -> Vec<String> {
        node.defined().map(|v| format!("{v}: {}", self.values[v].ty)).collect()
    }

    /// One row per node: results, op, operands, effects, place. Rows of a block follow that of its node.
    pub fn table(&self) -> String {
        let _table = tp_tensor::symbols::enter(self.symbols.clone());
        let head = ["result", "op", "inputs", "type", "effects", "at"].map(str::to_string);
        let mut rows = vec![head];
        self.rows("", &mut rows);
        columns(&rows)
    }

    fn rows(&self, indent: &str, rows: &mut Vec<[String; 6]>) {
        for input in &self.inputs {
            let ty = self.values[input.value].ty.to_string();
            let what = format!("input {}", input.name);
            rows.push([
                format!("{indent}{}", input.value),
                what,
                input.kind.name().to_string(),
                ty,
                String::new(),
                String::new(),
            ]);
        }
        for node in self.nodes.values() {
            let results: Vec<String> = node.defined().map(|v| v.to_string()).collect();
            let inputs: Vec<String> = node.inputs.iter().map(Operand::to_string).collect();
            let types: Vec<String> = node.defined().map(|v| self.values[v].ty.to_string()).collect();
            let at = node.location.as_ref().map_or_else(String::new, ToString::to_string);
            let effects = node.effects.to_string();
            rows.push([
                format!("{indent}{}", results.join(", ")),
                node.target.name(),
                inputs.join(", "),
                types.join(", "),
                effects,
                at,
            ]);
            let names = node.target.control().map_or(["", ""], Control::blocks);
            for (name, block) in names.iter().zip(&node.blocks) {
                block.rows(&format!("{indent}{name}: "), rows);
                let returned: Vec<String> = block.outputs.iter().map(Operand::to_string).collect();
                let mut row: [String; 6] = Default::default();
                row[0] = format!("{indent}{name}:");
                row[1] = "return".into();
                row[2] = returned.join(", ");
                rows.push(row);
            }
        }
    }
}

/// Writing to a string cannot fail.
fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{text}");
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// Left-aligned columns, two blanks apart.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in rows {
        let mut text = String::new();
        for (width, cell) in widths.iter().zip(row) {
            let _ = write!(text, "{cell:width$}  ");
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}
