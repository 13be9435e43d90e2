//! Control flow in a graph: a node that holds graphs of its own, its blocks, and runs one of them or repeats them. What
//! makes such a node well formed is written in `verify`; how a run goes on in `run_control`.
//!
//! - `tp::cond(pred, [operands])` has the blocks `true` and `false`, which take the operands and give the results.
//! - `tp::while_loop([carried], [captured])` has the blocks `cond` and `body`, which take what is carried and then what is
//!   captured; `cond` gives one bool, `body` the next of what is carried, which is the result in the end.
//!
//! Blocks are graphs like any other, over the symbols of the graph around them. They read nothing but their inputs and
//! write to none of them, so that a pass which looks at a node's operands and effects alone need not look inside.

use crate::entity::ValueId;
use crate::ir::{Graph, Node, Operand};
use smallvec::SmallVec;
use tp_dispatch::Effects;
use tp_tensor::{DType, TensorSpec};

/// Which of its blocks a node runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Control {
    /// The one that a bool says.
    Cond,
    /// The second for as long as the first gives true.
    WhileLoop,
}

impl Control {
    pub const ALL: [Control; 2] = [Control::Cond, Control::WhileLoop];

    pub fn name(self) -> &'static str {
        match self {
            Control::Cond => "tp::cond",
            Control::WhileLoop => "tp::while_loop",
        }
    }

    pub fn by_name(name: &str) -> Option<Control> {
        Control::ALL.into_iter().find(|c| c.name() == name)
    }

    /// What the text calls the blocks.
    pub fn blocks(self) -> [&'static str; 2] {
        match self {
            Control::Cond => ["true", "false"],
            Control::WhileLoop => ["cond", "body"],
        }
    }
}

/// What a node of control flow is made over, by what stands in its operands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parts {
    /// The bool that a `cond` asks.
    pub pred: Option<ValueId>,
    /// How many of the operands a loop carries from trip to trip.
    pub carried: usize,
    /// What the blocks take, in order.
    pub operands: SmallVec<[ValueId; 4]>,
}

/// The operands of a node of control flow taken apart; None where they have another form.
pub fn parts(control: Control, node: &Node) -> Option<Parts> {
    let list = |operand: &Operand| match operand {
        Operand::List(items) => items.iter().map(Operand::value).collect::<Option<SmallVec<[ValueId; 4]>>>(),
        _ => None,
    };
    match (control, node.inputs.as_slice()) {
        (Control::Cond, [Operand::Value(pred), operands]) => {
            Some(Parts { pred: Some(*pred), carried: 0, operands: list(operands)? })
        }
        (Control::WhileLoop, [carried, captured]) => {
            let mut operands = list(carried)?;
            let carried = operands.len();
            operands.extend(list(captured)?);
            Some(Parts { pred: None, carried, operands })
        }
        _ => None,
    }
}

/// Whether a tensor of that type can be asked which way to go: a bool of one element.
pub fn is_truth(spec: &TensorSpec) -> bool {
    spec.dtype == DType::Bool && spec.sizes.iter().all(|s| *s == 1)
}

/// The effects of a node of control flow: those of any call in its blocks. What is written there is their own.
pub fn effects(blocks: &[Graph]) -> Effects {
    let mut all = Effects::PURE;
    for node in blocks.iter().flat_map(|block| block.nodes.values()) {
        let Effects { mutates: _, random, ordered, nondeterministic } = node.effects;
        all.random |= random;
        all.ordered |= ordered;
        all.nondeterministic |= nondeterministic;
    }
    all
}

/// Every node of a graph and of the blocks in it.
pub fn for_each_node(graph: &Graph, f: &mut dyn FnMut(&Node)) {
    for node in graph.nodes.values() {
        f(node);
        node.blocks.iter().for_each(|block| for_each_node(block, f));
    }
}

/// Every operand of a node, and of the nodes in its blocks: where its literals stand.
pub fn for_each_operand(node: &Node, f: &mut dyn FnMut(&Operand)) {
    node.inputs.iter().for_each(&mut *f);
    for block in &node.blocks {
        block.outputs.iter().for_each(&mut *f);
        block.nodes.values().for_each(|inner| for_each_operand(inner, f));
    }
}
