//! The text form of a graph: one line per call, types after the values, what is not data as a trailing comment.
//! `Graph::parse` is the exact inverse of `Graph::text`, comments included.
//!
//! ```text
//! graph(%0 x: float32[2, 3], %1 w: float32[3] lifted) {
//!   %2: float32[2, 3] = tp::mul.Scalar(%0, 2.0)  # at model.py:12
//!   %3: float32[2, 3] = tp::add_.Tensor(%2, %1)  # mutates; %3 is %2; at model.py:13
//!   return %3
//! }
//! ```
//!
//! Behind the line of a node of control flow stand its blocks, written as the graph is, with the name of each in place of
//! `graph` (`true(%0 x0: float32[3]) { ... }`).
//!
//! Grammar, by example. Inputs: number, name (quoted unless it is an identifier), type, then the kind unless it is
//! `argument`, then `shares %n`. Types: dtype and sizes, `strides [..]` unless contiguous, `on device` unless cpu;
//! a type without sizes is no tensor. Results: nothing, one, or several in parentheses; a returned list is in
//! brackets. Arguments: values, literals in Python's spelling, sizes (`2*u0 + 1`), lists. Behind the inputs stand the
//! symbolic sizes with their ranges (`size u0 in [2, 10]`, `size u1 >= 0`), those of inputs with the size of the capture
//! (`size s0 >= 2, captured at 5`), then the checks (`check u0 < u1, "why"`, with `# at file:line`), then what runs are
//! held to before they start (`guard s0 > 3`). Comment items, in this order and separated
//! by `; `: effects, alias facts (`%3 views %2`, `%3 is %2`), `backward`, `at file:line`.

mod lex;
mod parse;
mod print;

pub(crate) use print::NodeText;

use crate::ir::{Graph, Node};
use tp_dispatch::Result;

impl Graph {
    pub fn text(&self) -> String {
        self.to_string()
    }

    /// One node as its line of the text.
    pub fn node_text(&self, node: &Node) -> String {
        let _table = tp_tensor::symbols::enter(self.symbols.clone());
        NodeText { graph: self, node }.to_string()
    }

    /// Reads what `text` prints. Ops that nobody defined are kept by name. The result is not verified.
    pub fn parse(text: &str) -> Result<Graph> {
        parse::graph(text)
    }
}
