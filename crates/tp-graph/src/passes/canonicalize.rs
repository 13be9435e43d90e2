//! Exact simplifications: a pointwise call whose scalar function is the identity (`x * 1`, `x - 0`, a copy, a cast to
//! the dtype it has, `where(c, x, x)`), alone or together with the call that made its operand (`--x`, a cast there and
//! back, `abs(abs(x))`), gives way to what it equals. `identity` has the list. The copy stays where somebody could tell it
//! from the original: it is returned, one of the two is written to, or a kernel of the user's reads it.

use super::rewrite::Rewrite;
use super::{Memory, Removed, identity};
use crate::entity::ValueId;
use crate::ir::{Def, Graph, Node};
use crate::pointwise::{self, PointwiseNode};
use smallvec::SmallVec;
use tp_expr::{ExprError, Prim, ProgramBuilder};
use tp_tensor::TensorSpec;

pub fn run(graph: &Graph) -> (Graph, Vec<Removed>) {
    let memory = Memory::of(graph);
    let mut rewrite = Rewrite::new(graph);
    for (id, node) in graph.nodes.iter() {
        let Some((result, equal)) = equal(graph, node, &memory, &rewrite) else { continue };
        let told_apart = memory.is_written(result) || memory.escapes(result) || memory.is_shown(result);
        if !told_apart && graph.values[result].ty == graph.values[equal].ty {
            rewrite.replace(result, equal);
            rewrite.drop_node(id);
        }
    }
    let removed: Vec<Removed> = rewrite.dropped().map(|n| Removed::of(graph, n, "identity")).collect();
    if removed.is_empty() { (graph.clone(), removed) } else { (rewrite.finish(), removed) }
}

/// The result of a node and the value it always equals, if there is one: an operand, or an operand of the call that made
/// one of its operands. Nothing writes to any of them.
fn equal(graph: &Graph, node: &Node, memory: &Memory, rewrite: &Rewrite<'_>) -> Option<(ValueId, ValueId)> {
    let outer = pointwise::expression(graph, node).ok()?;
    let of = |maker: Option<&PointwiseNode<'_>>| {
        composed(&outer, maker, rewrite).ok().flatten().filter(|v| !memory.is_written(*v))
    };
    let found = of(None).or_else(|| {
        let mut operands: SmallVec<[ValueId; 4]> = SmallVec::new();
        node.for_each_use(|v| operands.push(rewrite.resolve(v)));
        let made = operands.into_iter().filter(|v| !memory.is_written(*v));
        let makers = made.filter_map(|v| match graph.values[v].def {
            Def::Node(n) => pointwise::expression(graph, &graph.nodes[n]).ok(),
            Def::Input(_) => None,
        });
        makers.into_iter().find_map(|maker| of(Some(&maker)))
    });
    found.map(|v| (outer.result, v))
}

/// The program of a node, over that of the node that made an operand, if one is given; what it always equals.
fn composed(
    outer: &PointwiseNode<'_>,
    maker: Option<&PointwiseNode<'_>>,
    rewrite: &Rewrite<'_>,
) -> Result<Option<ValueId>, ExprError> {
    let mut builder = ProgramBuilder::new();
    let mut reads = Reads { rewrite, inputs: Vec::new(), made: None };
    if let Some(maker) = maker {
        let id = maker.apply(&mut builder, |builder, v, spec| reads.value(builder, v, spec))?;
        reads.made = Some((maker.result, id));
    }
    let out = outer.apply(&mut builder, |builder, v, spec| reads.value(builder, v, spec))?;
    let outputs: SmallVec<[u32; 2]> = [out].into_iter().chain(reads.made.map(|(_, id)| id)).collect();
    let program = builder.finish(&outputs)?;
    let Some(equal) = identity::of(&program) else { return Ok(None) };
    let instr = program.instrs()[equal as usize];
    Ok(match instr.prim {
        Prim::Input => reads.inputs.get(instr.imm as usize).map(|(v, _)| *v),
        _ => reads.made.map(|(v, _)| v),
    })
}

/// What a program reads: each value once.
struct Reads<'a, 'g> {
    rewrite: &'a Rewrite<'g>,
    /// In the order of the program's inputs.
    inputs: Vec<(ValueId, u32)>,
    /// A result that the program computes, for those who read it.
    made: Option<(ValueId, u32)>,
}

impl Reads<'_, '_> {
    fn value(&mut self, builder: &mut ProgramBuilder, v: ValueId, spec: &TensorSpec) -> u32 {
        let v = self.rewrite.resolve(v);
        if let Some((_, id)) = self.inputs.iter().chain(&self.made).find(|(known, _)| *known == v) {
            return *id;
        }
        let id = builder.input(spec.dtype);
        self.inputs.push((v, id));
        id
    }
}
