//! A picture of a graph as one self-contained SVG: inputs on top, every node below what it reads, outputs at the
//! bottom. Nothing is fetched and no script runs; colours follow the reader's light or dark scheme.

use crate::control::Control;
use crate::entity::{Entity, ValueId};
use crate::ir::{Def, Graph, Operand};
use std::fmt::Write;
use tp_dispatch::{Effects, Phase};

const CHAR: usize = 7;
const BOX_HEIGHT: usize = 40;
const ROW: usize = 76;
const GAP: usize = 24;
const MARGIN: usize = 16;

const STYLE: &str = "<style>\
.box{fill:#fff;stroke:#555}.input{fill:#eef4ff;stroke:#4a6fa5}.effect{fill:#fff4e0;stroke:#b7791f}\
.backward{stroke-dasharray:4 3}.edge{stroke:#888;fill:none}text{font:12px monospace;fill:#222;text-anchor:middle}\
.small{font-size:10px;fill:#666}\
@media (prefers-color-scheme:dark){.box{fill:#222;stroke:#aaa}.input{fill:#1d2a3f}.effect{fill:#3a2c12}text{fill:#eee}.small{fill:#aaa}}\
</style>";

/// One box: where it stands and what it says.
struct Cell {
    title: String,
    detail: String,
    class: &'static str,
    layer: usize,
    x: usize,
    width: usize,
    /// Boxes it reads.
    from: Vec<usize>,
}

impl Graph {
    pub fn svg(&self) -> String {
        let _table = tp_tensor::symbols::enter(self.symbols.clone());
        let mut body = String::new();
        let (width, height) = self.picture(&mut body);
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">{STYLE}"
        );
        out.push_str(&body);
        out.push_str("</svg>\n");
        out
    }

    /// Draws boxes and edges, and below them the blocks, each under its name; gives the size of all.
    fn picture(&self, out: &mut String) -> (usize, usize) {
        let mut cells = self.cells();
        let (mut width, mut height) = place(&mut cells);
        for cell in &cells {
            for &from in &cell.from {
                edge(out, &cells[from], cell);
            }
        }
        cells.iter().for_each(|cell| draw(out, cell));
        for (id, node) in self.nodes.iter() {
            let names = node.target.control().map_or(["", ""], Control::blocks);
            for (name, block) in names.iter().zip(&node.blocks) {
                let mut inner = String::new();
                let (w, h) = block.picture(&mut inner);
                let title = format!("{id} {} {name}", node.target.name());
                let least = title.chars().count() * CHAR + 2 * MARGIN;
                let _ = write!(
                    out,
                    "<text x=\"{}\" y=\"{}\">{title}</text><g transform=\"translate(0 {})\">{inner}</g>",
                    least / 2,
                    height + MARGIN,
                    height + MARGIN
                );
                width = width.max(w).max(least);
                height += h + 2 * MARGIN;
            }
        }
        (width, height)
    }

    /// Inputs, then nodes, then outputs.
    fn cells(&self) -> Vec<Cell> {
        let mut cells: Vec<Cell> = Vec::new();
        for input in &self.inputs {
            let detail = self.values[input.value].ty.to_string();
            cells.push(cell(format!("{} {}", input.value, input.name), detail, "input", Vec::new(), &[]));
        }
        let inputs = self.inputs.len();
        let at = |v: ValueId| match self.values[v].def {
            Def::Input(i) => i as usize,
            Def::Node(n) => inputs + n.index(),
        };
        for node in self.nodes.values() {
            let class = match (node.effects == Effects::PURE, node.phase) {
                (false, _) => "effect",
                (true, Phase::Backward) => "box backward",
                (true, Phase::Forward) => "box",
            };
            let mut from = Vec::new();
            node.for_each_use(|v| from.push(at(v)));
            let next = cell(node.target.name(), self.result_types(node).join(", "), class, from, &cells);
            cells.push(next);
        }
        let last = cells.iter().map(|c| c.layer).max().unwrap_or(0);
        for (i, output) in self.outputs.iter().enumerate() {
            let mut from = Vec::new();
            output.for_each_value(|v| from.push(at(v)));
            let detail = if let Operand::Const(c) = output { c.to_string() } else { String::new() };
            let mut next = cell(format!("output {i}"), detail, "input", from, &cells);
            next.layer = last + 1;
            cells.push(next);
        }
        cells
    }
}

fn cell(title: String, detail: String, class: &'static str, mut from: Vec<usize>, before: &[Cell]) -> Cell {
    from.sort_unstable();
    from.dedup();
    let layer = from.iter().map(|&i| before[i].layer + 1).max().unwrap_or(0);
    let width = title.chars().count().max(detail.chars().count()) * CHAR + 20;
    Cell { title, detail, class, layer, x: 0, width, from }
}

/// Puts boxes of one layer side by side, centred; gives the size of the picture.
fn place(cells: &mut [Cell]) -> (usize, usize) {
    let layers = cells.iter().map(|c| c.layer + 1).max().unwrap_or(0);
    let mut widths = vec![0usize; layers];
    for cell in cells.iter_mut() {
        cell.x = widths[cell.layer];
        widths[cell.layer] += cell.width + GAP;
    }
    let total = widths.iter().copied().max().unwrap_or(0);
    for cell in cells.iter_mut() {
        cell.x += MARGIN + (total - widths[cell.layer]) / 2;
    }
    (total + 2 * MARGIN, layers * ROW + 2 * MARGIN)
}

fn top(cell: &Cell) -> usize {
    MARGIN + cell.layer * ROW
}

fn edge(out: &mut String, from: &Cell, to: &Cell) {
    let (x1, y1) = (from.x + from.width / 2, top(from) + BOX_HEIGHT);
    let (x2, y2) = (to.x + to.width / 2, top(to));
    let bend = (y2.saturating_sub(y1)) / 2;
    let _ = write!(
        out,
        "<path class=\"edge\" d=\"M{x1} {y1}C{x1} {} {x2} {} {x2} {y2}\"/>",
        y1 + bend,
        y2 - bend
    );
}

fn draw(out: &mut String, cell: &Cell) {
    let (x, y, w) = (cell.x, top(cell), cell.width);
    let middle = x + w / 2;
    let _ = write!(
        out,
        "<rect class=\"{}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{BOX_HEIGHT}\" rx=\"6\"/>\
         <text x=\"{middle}\" y=\"{}\">{}</text><text class=\"small\" x=\"{middle}\" y=\"{}\">{}</text>",
        cell.class,
        y + 17,
        escaped(&cell.title),
        y + 32,
        escaped(&cell.detail)
    );
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
