//! Planning of control flow: every block becomes a plan of its own.

use crate::backend;
use crate::control::{self, Control, Parts};
use crate::entity::NodeId;
use crate::lower::{Planner, plan};
use crate::passes::partition::Break;
use crate::plan::{Block, ControlStep, OutSlot, PlanRegion, Src, Step, Work};
use smallvec::SmallVec;
use std::sync::Arc;
use tp_dispatch::{CodegenMarker, Error, Result};
use tp_tensor::Device;

impl Planner<'_> {
    /// The blocks as plans of their own, whose regions follow that of the node.
    pub(crate) fn control(&mut self, id: NodeId, control: Control) -> Result<()> {
        let graph = self.graph;
        let node = &graph.nodes[id];
        let Some(Parts { pred, carried, operands }) = control::parts(control, node) else {
            return Err(Error::graph("TP5002", format!("{id} ({}) has other operands", control.name())));
        };
        let region = self.regions.len() as u32;
        let (pred, name) = (pred.map(|v| self.src(v)).transpose()?, control.name());
        let operands = operands.iter().map(|v| self.src(*v)).collect::<Result<Box<[Src]>>>()?;
        let outputs = node.defined().map(|v| self.out_slot(v)).collect::<Result<Box<[OutSlot]>>>()?;
        let ops = [name.to_string()].into();
        self.regions.push(PlanRegion { ops, executor: backend::NATIVE.into(), reason: None, view: true });
        let mut blocks = Vec::new();
        for (block, which) in node.blocks.iter().zip(control.blocks()) {
            let (plan, breaks) = plan(block, self.backends, self.artifacts)?;
            let base = self.regions.len();
            self.regions.extend(plan.regions.iter().cloned());
            let inside = |b: Break| Break { target: format!("{} in {which} of {id}", b.target), ..b };
            self.breaks.extend(breaks.into_iter().map(inside));
            let marker = CodegenMarker {
                executor: backend::NATIVE.into(),
                kernel: format!("{name}/{which}").into(),
                proof: None,
                device: Device::CPU,
            };
            blocks.push(Block { plan, base, marker: Arc::new(marker) });
        }
        let location = node.location.clone();
        let blocks = blocks.into();
        let step = ControlStep { control, pred, operands, carried, outputs, blocks, location };
        self.steps.push(Step { region, work: Work::Control(Box::new(step)), free: SmallVec::new() });
        Ok(())
    }
}
