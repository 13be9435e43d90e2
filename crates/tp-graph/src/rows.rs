//! Pointwise producers fused with the row op that reads them (a sum over the last axis, a softmax): block by block of
//! rows, so that the producer's result stays in the cache and is never made as a whole. Which ops work row by row their
//! definitions say, by the tag "rows"; what a row gives does not depend on the others, so no bit changes.
//!
//! Threads share the blocks out, and each calls the op's kernel itself. A kernel with that tag does not dispatch, and lets
//! the host's lock go only for more elements than a block has: `BLOCK` stays below `native::LONG`.

use crate::args::{ArgSource, source};
use crate::backend::{NATIVE, Region};
use crate::entity::{NodeId, ValueId};
use crate::ir::{Graph, Node, Output};
use crate::native::{LONG, NativeKernel, kernel_name};
use crate::region::{self, Uses};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use tp_dispatch::kernel::HostArgs;
use tp_dispatch::select::KernelEntry;
use tp_dispatch::{Arg, Call, CodegenMarker, DispatchKey, Error, OpDef, OpHandle, Result, Rets, Value, host};
use tp_expr::pool;
use tp_tensor::{Device, Layout, Tensor, symbols};

/// Elements of a block: what a second-level cache holds beside the producer's operands.
const BLOCK: usize = LONG / 2;
/// From this many on the producer's result would leave the cache before it is read.
const WORTH: usize = 1 << 19;

/// A producer and the op over its rows.
pub(crate) struct RowStep {
    producer: NativeKernel,
    op: OpHandle,
    def: Arc<OpDef>,
    kernel: Arc<KernelEntry>,
    /// None stands for the block.
    args: Box<[Option<Value>]>,
    /// Elements of a row.
    row: usize,
    marker: Arc<CodegenMarker>,
}

/// What a plan needs to know of it.
pub(crate) struct Fused {
    pub step: RowStep,
    pub region: Region,
    pub ops: Arc<[String]>,
    pub result: ValueId,
}

/// The fusion of pointwise `nodes` with the node behind them, where that is possible and pays.
pub(crate) fn fuse(graph: &Graph, uses: &Uses, nodes: &[NodeId], behind: NodeId) -> Option<Fused> {
    let node = &graph.nodes[behind];
    let op = node.target.op()?;
    let [Output::Value(result)] = *node.outputs.as_slice() else { return None };
    let def = op.def()?;
    let kernel = kernel(op, &def)?;
    let (operand, args) = arguments(graph, node, &def)?;
    let spec = graph.spec(operand)?;
    if symbols::any(&spec.sizes) || !spec.device.is_cpu() || !uses.is_read_only_by(operand, behind) {
        return None;
    }
    let row = usize::try_from(*spec.sizes.last()?).ok()?;
    let total = spec.sizes.iter().product::<i64>();
    if row == 0 || usize::try_from(total).ok()? < WORTH || graph.spec(result)?.sizes.is_empty() {
        return None;
    }
    let region = region::build(graph, uses, nodes).ok()?;
    if region.symbolic || *region.writes != [operand] {
        return None;
    }
    let producer = NativeKernel::compile(&region).ok()?;
    producer.pieces(row).filter(|(_, size)| *size <= BLOCK)?;
    let ops: Arc<[String]> = region.ops.iter().cloned().chain([node.target.name()]).collect();
    let made = producer.marker();
    let marker = CodegenMarker { kernel: kernel_name(&ops).into(), ..(**made).clone() };
    let step = RowStep { producer, op, def, kernel, args, row, marker: Arc::new(marker) };
    Some(Fused { step, region, ops, result })
}

/// The one kernel of a row op. Whoever registered another one wants it to be called as it was written.
fn kernel(op: OpHandle, def: &OpDef) -> Option<Arc<KernelEntry>> {
    let by_rows = def.tags.iter().any(|t| &**t == "rows") && !def.custom;
    let mut kernels = op.kernels();
    let only = kernels.pop().filter(|k| kernels.is_empty() && !k.is_conditional())?;
    let own = by_rows && &*only.provenance.executor == NATIVE && op.runs_own_kernel(def, DispatchKey::Cpu);
    own.then_some(only)
}

/// The one tensor operand of a row op along the last axis, and its arguments.
fn arguments(graph: &Graph, node: &Node, def: &OpDef) -> Option<(ValueId, Box<[Option<Value>]>)> {
    let (mut operand, mut args, mut along) = (None, Vec::new(), false);
    for (given, param) in node.inputs.iter().zip(&def.params.all) {
        args.push(match source(given, param).ok()? {
            ArgSource::Value(v) if operand.is_none() => {
                operand = Some(v);
                None
            }
            ArgSource::Literal(value) if &*param.name == "axis" => {
                let ndim = graph.spec(operand?)?.sizes.len() as i64;
                let last = |v: i64| symbols::number(v).is_some_and(|v| v == -1 || v == ndim - 1);
                along = true;
                Some(match value {
                    Value::Int(v) if last(v) => Value::Int(-1),
                    Value::Ints(vs) if vs.len() == 1 && last(vs[0]) => Value::Ints(vec![-1].into()),
                    _ => return None,
                })
            }
            ArgSource::Literal(value) => Some(value),
            _ => return None,
        });
    }
    if !along { None } else { Some((operand?, args.into())) }
}

impl RowStep {
    pub fn marker(&self) -> &Arc<CodegenMarker> {
        &self.marker
    }

    /// Runs over the inputs of the producer.
    ///
    /// # Safety
    /// The inputs have the types of the producer's region; `out` is fresh, contiguous, and of the op's promised type.
    pub unsafe fn run(&self, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let Some((pieces, size)) = self.producer.pieces(self.row) else { return Err(misfit()) };
        let block = (BLOCK / size).max(1).min(pieces);
        let failure = Mutex::new(None);
        let work = || {
            pool::parallel_for(pieces, block, |range| {
                // SAFETY: the caller's promise; each piece of the output is written once.
                if let Err(e) = unsafe { self.blocks(inputs, out, range, block, pieces) } {
                    *failure.lock() = Some(e);
                }
            })
        };
        host::without_lock(work);
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// Some pieces, by way of one scratch.
    ///
    /// # Safety
    /// As for `run`; nobody else writes these pieces of the output.
    unsafe fn blocks(
        &self,
        inputs: &[&Tensor],
        out: &Tensor,
        range: Range<usize>,
        block: usize,
        pieces: usize,
    ) -> Result<()> {
        let (_, size) = self.producer.pieces(self.row).ok_or_else(misfit)?;
        let dtype = self.producer.types().1.first().ok_or_else(misfit)?.dtype;
        let shape = |count: usize| [(count * size / self.row) as i64, self.row as i64];
        let scratch = Tensor::empty(&shape(block), dtype, Device::CPU)?;
        let bytes = out.numel() as usize * out.dtype().itemsize() / pieces;
        for start in range.clone().step_by(block) {
            let count = block.min(range.end - start);
            let part = if count == block { scratch.clone() } else { head(&scratch, &shape(count))? };
            // SAFETY: the caller's promise; the scratch holds `count` pieces, and only this call knows it.
            unsafe { self.producer.run_pieces(inputs, start..start + count, self.row, part.data_ptr())? };
            let made = self.call(&part)?;
            let filled = made.numel() as usize * made.dtype().itemsize() == count * bytes;
            if made.dtype() != out.dtype() || !filled || !made.is_contiguous() {
                return Err(misfit().with_op(self.op.name()));
            }
            // SAFETY: as many bytes of the output are those of these pieces.
            unsafe {
                let to = out.data_ptr().add(start * bytes);
                std::ptr::copy_nonoverlapping(made.data_ptr().cast_const(), to, count * bytes);
            }
        }
        Ok(())
    }

    fn call(&self, part: &Tensor) -> Result<Tensor> {
        let args = self.args.iter().map(|a| a.as_ref().map_or(Arg::Tensor(part), Value::as_arg));
        let args: SmallVec<[Arg<'_>; 8]> = args.collect();
        let keys = DispatchKey::Cpu.set();
        let call = Call { op: self.op, def: &self.def, args: &args, keys, host: HostArgs::NONE, table: None };
        let mut rets = Rets::new();
        self.kernel.kernel.call(&call, &mut rets)?;
        match rets.pop() {
            Some(Value::Tensor(t)) => Ok(t),
            _ => Err(misfit()),
        }
    }
}

/// The first rows of a block.
fn head(scratch: &Tensor, sizes: &[i64]) -> Result<Tensor> {
    let layout = Layout { sizes: sizes.into(), strides: scratch.strides().into(), offset: scratch.offset() };
    Ok(scratch.view(&layout)?)
}

#[cold]
fn misfit() -> Error {
    Error::internal("TP9113", "a fused row op met other rows than it was planned for")
}
