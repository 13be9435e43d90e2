//! Recording a pointwise call the short way. Most of a tape are such nodes, so everything is written straight into
//! the node; what is saved, and in which order, is what `save_inputs` and `save_outputs` of the rule say.

use super::{DTYPE_SHIFT, ExprRule};
use crate::rule::RuleHandle;
use crate::tape::{self, Counts, Draft, Edge, Head, SavedTensor, flag};
use crate::{hooks, meta};
use std::ptr;
use tp_dispatch::{Arg, Call, DispatchKey, Error, Result, Rets, Value, redispatch};
use tp_tensor::{Scalar, Tensor};

/// No pointwise op has more tensor operands.
const MOST: usize = 3;

/// What a call's operands say about its node.
#[derive(Default)]
struct Operands {
    edges: [Option<Edge>; MOST],
    count: usize,
    /// The variables that must be saved, as bits.
    uses: u64,
    /// The latest node among the edges.
    newest: u64,
    reaches: bool,
}

impl Operands {
    fn edges(&self) -> impl Iterator<Item = &Edge> {
        self.edges[..self.count].iter().flatten()
    }
}

impl ExprRule {
    /// Runs a call and records it. Not for ops that write, and not while hooks or anomaly mode are in force.
    pub(crate) fn record(&'static self, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        let mut operands = Operands::default();
        for (i, arg) in call.args.iter().enumerate() {
            if let Arg::Tensor(t) = arg
                && t.requires_grad()
                && self.args >> i & 1 == 1
            {
                let (node, nr) = meta::gradient_edge(t)?;
                operands.uses |= self.uses[i];
                operands.newest = operands.newest.max(node.seq());
                operands.reaches |= node.reaches_host();
                let Some(place) = operands.edges.get_mut(operands.count) else {
                    return Err(Error::internal("TP9012", "too many operands").with_op(call.op.name()));
                };
                *place = Some(Edge::new(node, nr, i, 0));
                operands.count += 1;
            }
        }
        redispatch(call, DispatchKey::Autograd, rets)?;
        match rets.as_slice() {
            [Value::Tensor(out)] if operands.count == 0 || !tape::differentiable(out) => Ok(()),
            [Value::Tensor(out)] => self.tie(call, out, operands),
            _ => Err(Error::internal("TP9008", "a pointwise op gives one tensor").with_op(call.op.name())),
        }
    }

    #[inline]
    fn tie(&'static self, call: &Call<'_>, out: &Tensor, operands: Operands) -> Result<()> {
        let uses = operands.uses;
        let (bits, reduced) = operand_bits(call, out, &operands);
        let mut flags = 0;
        if operands.reaches || self.saves_tracked(call, uses) {
            flags |= flag::REACHES;
        }
        if out.is_view() && call.opt_tensor(0).is_some_and(|x| x.shares_storage(out)) {
            flags |= flag::VIEW;
        }
        let counts = Counts {
            outputs: 1,
            edges: operands.count as u32,
            saved: (uses & self.tensors).count_ones(),
            values: (uses & !self.tensors).count_ones() + reduced,
        };
        let seq = tape::tick(operands.newest);
        let head = Head { op: Some(call.op), bits, flags, seq, extra: ptr::null_mut() };
        let mut draft = Draft::new(RuleHandle::Static(self), head, counts)?;
        // SAFETY: as many writes as counted: one per bit of `uses`, by its kind, one per reduced edge, one per edge.
        let node = unsafe {
            save(call, out, &operands, bits, &mut draft);
            operands.edges.into_iter().flatten().for_each(|e| draft.edge(e));
            draft.finish()
        };
        if flags & flag::REACHES != 0
            && let Some(hooks) = hooks::host_hooks()
        {
            hooks.recorded(&node);
        }
        meta::set_history(out, node, 0);
        Ok(())
    }

    /// Whether a tensor that will be saved leads to host objects.
    fn saves_tracked(&self, call: &Call<'_>, uses: u64) -> bool {
        let saved = uses & self.tensors;
        saved != 0 && (0..call.args.len()).any(|i| saved >> i & 1 == 1 && tracked(call, i))
    }
}

fn tracked(call: &Call<'_>, i: usize) -> bool {
    call.opt_tensor(i).is_some_and(Tensor::needs_tracking)
}

/// The node's bits, and how many operands were broadcast.
#[inline]
fn operand_bits(call: &Call<'_>, out: &Tensor, operands: &Operands) -> (u64, u32) {
    let (mut bits, mut reduced) = (0, 0);
    for (k, edge) in operands.edges().enumerate() {
        let Arg::Tensor(t) = call.args[edge.arg()] else { continue };
        bits |= (t.dtype() as u64) << (DTYPE_SHIFT + 4 * k);
        if !same_sizes(t, out) {
            bits |= 1 << k;
            reduced += 1;
        }
    }
    (bits, reduced)
}

/// Writes saved tensors and values: variables in order, then the sizes of operands that were broadcast.
///
/// # Safety
/// The draft has room for them.
#[inline]
unsafe fn save(call: &Call<'_>, out: &Tensor, operands: &Operands, bits: u64, draft: &mut Draft) {
    let mut left = operands.uses;
    // SAFETY: the caller's promise.
    unsafe {
        while left != 0 {
            let i = left.trailing_zeros() as usize;
            left &= left - 1;
            match call.args.get(i) {
                None => draft.save(SavedTensor::output(out, 0)),
                Some(Arg::Tensor(t)) => draft.save(SavedTensor::input(t)),
                Some(other) => draft.value(Value::Scalar(other.scalar().unwrap_or(Scalar::Int(0)))),
            }
        }
        for (k, edge) in operands.edges().enumerate() {
            if bits >> k & 1 == 1 {
                let sizes = call.opt_tensor(edge.arg()).map_or(&[][..], Tensor::sizes);
                draft.value(Value::Ints(sizes.into()));
            }
        }
    }
}

/// Equality of shapes without a call: they have few dimensions.
#[inline]
fn same_sizes(a: &Tensor, b: &Tensor) -> bool {
    let (a, b) = (a.sizes(), b.sizes());
    a.len() == b.len() && (0..a.len()).all(|i| a[i] == b[i])
}
