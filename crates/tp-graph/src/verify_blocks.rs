//! The rules of control flow, as `verify` states them.

use crate::control::{self, Control, Parts, is_truth};
use crate::ir::{Def, Graph, Node, Operand, Output};
use crate::verify::{Verifier, Violation};
use std::sync::Arc;
use tp_tensor::TensorSpec;

impl Verifier<'_> {
    pub(crate) fn control(&mut self, control: Control, node: &Node) {
        let effects = control::effects(&node.blocks);
        if node.effects != effects {
            let message = format!("the node says {}, its blocks are {effects}", node.effects);
            self.report("effects", None, message);
        }
        let names = control.blocks();
        if node.blocks.len() != names.len()
            || node.blocks.iter().any(|b| !Arc::ptr_eq(&b.symbols, &self.graph.symbols))
        {
            let message = format!(
                "{} has the blocks {}, with this graph's symbols",
                control.name(),
                names.join(" and ")
            );
            return self.report("blocks", None, message);
        }
        let (Some(parts), [Output::List(_)]) = (control::parts(control, node), node.outputs.as_slice())
        else {
            let message = format!("{} takes and gives lists of tensors", control.name());
            return self.report("control-operands", None, message);
        };
        if let Some(pred) = parts.pred
            && !self.graph.spec(pred).is_some_and(is_truth)
        {
            self.report("control-operands", Some(pred), format!("{pred} is no bool of one element"));
        }
        self.block_types(control, node, &parts);
        for (name, block) in names.into_iter().zip(&node.blocks) {
            self.block_writes(name, block);
            for v in block.verify_with(self.shown.clone()) {
                let message = format!(
                    "in {name}: {}{}",
                    v.node.map_or_else(String::new, |n| format!("{n}: ")),
                    v.message
                );
                let location = v.location.clone();
                self.found.push(Violation { node: self.node, value: None, message, location, ..v });
            }
        }
    }

    fn block_types(&mut self, control: Control, node: &Node, parts: &Parts) {
        let spec = |v| self.graph.spec(v).cloned();
        let operands: Vec<Option<TensorSpec>> = parts.operands.iter().map(|v| spec(*v)).collect();
        let results: Vec<Option<TensorSpec>> = node.defined().map(spec).collect();
        let mut wrong: Vec<String> = Vec::new();
        for (k, (name, block)) in control.blocks().into_iter().zip(&node.blocks).enumerate() {
            let takes: Vec<Option<TensorSpec>> =
                block.inputs.iter().map(|input| block.spec(input.value).cloned()).collect();
            differing(&mut wrong, (name, "takes"), &takes, &operands);
            let gives: Vec<Option<TensorSpec>> = block.outputs.iter().map(|o| given(block, o)).collect();
            if control == Control::WhileLoop && k == 0 {
                if !matches!(gives.as_slice(), [Some(spec)] if is_truth(spec)) {
                    wrong.push(format!("{name} gives something else than one bool of one element"));
                }
            } else {
                differing(&mut wrong, (name, "gives"), &gives, &results);
            }
        }
        if control == Control::WhileLoop {
            let carried = operands.get(..parts.carried).unwrap_or_default();
            differing(&mut wrong, ("the node", "gives"), &results, carried);
        }
        wrong.into_iter().for_each(|message| self.report("block-types", None, message));
    }

    fn block_writes(&mut self, name: &str, block: &Graph) {
        for (id, node) in block.nodes.iter() {
            for v in node.written() {
                let root = block.root(v);
                if matches!(block.values.get(root).map(|d| d.def), Some(Def::Input(_))) {
                    let message =
                        format!("in {name}: {id} writes to {v}, which is memory of the input {root}");
                    self.report("block-writes", None, message);
                }
            }
        }
    }
}

fn given(block: &Graph, output: &Operand) -> Option<TensorSpec> {
    output.value().and_then(|v| block.spec(v)).cloned()
}

/// Where two lists of types are not the same.
fn differing(
    wrong: &mut Vec<String>,
    (who, does): (&str, &str),
    got: &[Option<TensorSpec>],
    want: &[Option<TensorSpec>],
) {
    if got.len() != want.len() {
        wrong.push(format!("{who} {does} {}, not {}", tp_tensor::counted(got.len(), "tensor"), want.len()));
        return;
    }
    let text = |spec: &Option<TensorSpec>| {
        spec.as_ref().map_or_else(|| "no tensor".to_string(), ToString::to_string)
    };
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        if got != want || got.is_none() {
            wrong.push(format!("{who} {does} {} as number {i}, not {}", text(got), text(want)));
        }
    }
}
