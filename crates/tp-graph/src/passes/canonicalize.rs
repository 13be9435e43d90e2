//! Exact simplifications: a pointwise call whose scalar function is the identity (`x * 1`, `x - 0`, a copy, a cast to
//! the dtype it has) gives way to its operand. Exact means every bit of every result, NaN and -0 included: `x + 0` is
//! not among them. The copy stays where somebody could tell it from the original.

use super::rewrite::Rewrite;
use super::{Memory, Removed};
use crate::entity::ValueId;
use crate::ir::{Graph, Node};
use crate::pointwise;
use tp_expr::{Prim, Program, ProgramBuilder};
use tp_tensor::{DType, Scalar};

pub fn run(graph: &Graph) -> (Graph, Vec<Removed>) {
    let memory = Memory::of(graph);
    let mut rewrite = Rewrite::new(graph);
    for (id, node) in graph.nodes.iter() {
        let Some((result, operand)) = identity(graph, node) else { continue };
        let told_apart = memory.is_written(result) || memory.is_written(operand) || memory.escapes(result);
        if !told_apart && graph.values[result].ty == graph.values[operand].ty {
            rewrite.replace(result, operand);
            rewrite.drop_node(id);
        }
    }
    let removed: Vec<Removed> = rewrite.dropped().map(|n| Removed::of(graph, n, "identity")).collect();
    if removed.is_empty() { (graph.clone(), removed) } else { (rewrite.finish(), removed) }
}

/// The result of a node and the operand it always equals, if there is one.
fn identity(graph: &Graph, node: &Node) -> Option<(ValueId, ValueId)> {
    let expr = pointwise::expression(graph, node).ok()?;
    let mut builder = ProgramBuilder::new();
    let mut operands: Vec<ValueId> = Vec::new();
    let value = expr.apply(&mut builder, |builder, v, spec| {
        operands.push(v);
        builder.input(spec.dtype)
    });
    let program = builder.finish(&[value.ok()?]).ok()?;
    let input = identity_input(&program)?;
    Some((expr.result, *operands.get(input)?))
}

/// Which input the one output of the program equals.
fn identity_input(program: &Program) -> Option<usize> {
    let at = |id: u32| &program.instrs()[id as usize];
    let out = at(*program.outputs().first()?);
    let input = |id: u32| (at(id).prim == Prim::Input).then(|| at(id).imm as usize);
    let constant = |id: u32, is: Scalar| at(id).prim == Prim::Const && at(id).imm == is.to_bits(at(id).dtype);
    let one = if out.dtype.is_float() { Scalar::Float(1.0) } else { Scalar::Int(1) };
    let zero = if out.dtype.is_float() { Scalar::Float(0.0) } else { Scalar::Int(0) };
    match (out.prim, out.args()) {
        (Prim::Input, _) => Some(out.imm as usize),
        (_, _) if out.dtype == DType::Bool => None,
        (Prim::Mul, &[a, b]) if constant(b, one) => input(a),
        (Prim::Mul, &[a, b]) if constant(a, one) => input(b),
        (Prim::Div, &[a, b]) if constant(b, one) => input(a),
        // x - (+0) keeps -0 and NaN; x + (+0) does not keep -0.
        (Prim::Sub, &[a, b]) if constant(b, zero) => input(a),
        (Prim::Add, &[a, b]) if constant(b, Scalar::Float(-0.0)) && out.dtype.is_float() => input(a),
        _ => None,
    }
}
