//! Recording a pointwise call the short way. Most of a tape are such nodes, so everything is written straight into
//! the node; what is saved, and in which order, is what `save_inputs` and `save_outputs` of the rule say.

use super::{DTYPE_SHIFT, ExprRule};
use crate::rule::RuleHandle;
use crate::tape::{self, Counts, Draft, Edge, Head, Node, SavedTensor, flag};
use crate::{meta, view};
use std::ptr;
use tp_dispatch::dispatcher::redispatch_short;
use tp_dispatch::{Arg, Call, DispatchKey, Error, Result, Rets, Value, push_tensor, redispatch};
use tp_tensor::{Scalar, Tensor};

/// What a node keeps when the operands in one set need gradients: sets are numbered by the arguments as bits.
#[derive(Clone, Copy, Default)]
pub(super) struct Plan {
    /// The variables that are saved, as bits.
    pub uses: u64,
    pub edges: u32,
    pub tensors: u32,
    pub numbers: u32,
    /// Where each saved variable lies among those of its kind.
    pub place: [u8; MOST + 1],
}

/// No pointwise op has more arguments.
pub(super) const MOST: usize = 3;

pub(super) type Plans = [Plan; 1 << MOST];

/// One plan per set of arguments, from the variables that each argument's formula uses.
pub(super) fn plans(uses: &[u64], tensors: u64) -> Plans {
    let mut plans = Plans::default();
    for (set, plan) in plans.iter_mut().enumerate() {
        plan.edges = set.count_ones();
        plan.uses = (0..uses.len()).filter(|i| set >> i & 1 == 1).fold(0, |all, i| all | uses[i]);
        plan.tensors = (plan.uses & tensors).count_ones();
        plan.numbers = (plan.uses & !tensors).count_ones();
        for i in 0..=MOST {
            let kind = if tensors >> i & 1 == 1 { tensors } else { !tensors };
            plan.place[i] = (plan.uses & kind & ((1 << i) - 1)).count_ones() as u8;
        }
    }
    plans
}

/// Calls `f` with the positions of the bits of `set`, lowest first.
#[inline(always)]
fn for_each_bit(set: usize, mut f: impl FnMut(usize)) {
    let mut left = set;
    while left != 0 {
        f(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}

impl ExprRule {
    /// Runs a call and records it. Not for ops that write, and not while hooks or anomaly mode are in force.
    pub(crate) fn record(&'static self, call: &Call<'_>, rets: &mut Rets) -> Result<()> {
        let mut set = 0;
        for (i, arg) in call.args.iter().enumerate().take(MOST) {
            if let Arg::Tensor(t) = arg
                && t.requires_grad()
            {
                set |= 1 << i;
            }
        }
        let set = set & self.args as usize;
        match redispatch_short(call, DispatchKey::Autograd) {
            Some(out) => {
                if set != 0 && tape::differentiable(&out) {
                    self.tie(call, &out, set)?;
                }
                push_tensor(rets, out);
                Ok(())
            }
            None => self.record_long(call, rets, set),
        }
    }

    #[inline(never)]
    fn record_long(&'static self, call: &Call<'_>, rets: &mut Rets, set: usize) -> Result<()> {
        redispatch(call, DispatchKey::Autograd, rets)?;
        match rets.as_slice() {
            [Value::Tensor(out)] if set == 0 || !tape::differentiable(out) => Ok(()),
            [Value::Tensor(out)] => self.tie(call, out, set),
            _ => Err(Error::internal("TP9008", "a pointwise op gives one tensor").with_op(call.op.name())),
        }
    }

    fn tie(&'static self, call: &Call<'_>, out: &Tensor, set: usize) -> Result<()> {
        let plan = &self.plans[set];
        let (bits, reduced) = operand_bits(call, out, set);
        let counts = Counts {
            outputs: 1,
            edges: plan.edges,
            saved: plan.tensors,
            values: plan.numbers + reduced,
            specs: false,
        };
        let head = Head { op: Some(call.op), bits, flags: 0, seq: 0, extra: ptr::null_mut() };
        let mut draft = Draft::new(&RuleHandle::Static(self), &head, &counts)?;
        // SAFETY: as many writes as counted: one per saved variable by its kind, one per reduced operand, and one per
        // edge before the node is finished.
        unsafe {
            save(call, out, plan.uses, set, bits, &mut draft);
            let (mut newest, mut reaches, mut left) =
                (0, plan.tensors != 0 && saves_tracked(call, plan.uses), set);
            while left != 0 {
                let i = left.trailing_zeros() as usize;
                left &= left - 1;
                let Some(t) = call.opt_tensor(i) else { continue };
                match meta::gradient_edge(t) {
                    Ok((node, nr)) => {
                        newest = newest.max(node.seq());
                        reaches |= node.reaches_host();
                        draft.edge(Edge::new(node, nr, i, 0));
                    }
                    Err(e) => {
                        draft.abandon(&counts);
                        return Err(e);
                    }
                }
            }
            let mut flags = if reaches { flag::REACHES } else { 0 };
            if out.is_view() {
                flags |= view::made(call, out);
            }
            let node = draft.finish_with(tape::tick(newest), flags);
            if reaches {
                Node::list(&node);
            }
            meta::set_history(out, node, 0);
        }
        Ok(())
    }
}

/// Whether a tensor that is saved leads to host objects.
fn saves_tracked(call: &Call<'_>, uses: u64) -> bool {
    let tracked = |i: usize| call.opt_tensor(i).is_some_and(Tensor::needs_tracking);
    (0..call.args.len()).any(|i| uses >> i & 1 == 1 && tracked(i))
}

/// The node's bits, and how many operands were broadcast.
#[inline]
fn operand_bits(call: &Call<'_>, out: &Tensor, set: usize) -> (u64, u32) {
    let (mut bits, mut reduced, mut k) = (0, 0, 0);
    for_each_bit(set, |i| {
        if let Some(t) = call.opt_tensor(i) {
            bits |= (t.dtype() as u64) << (DTYPE_SHIFT + 4 * k);
            if !same_sizes(t, out) {
                bits |= 1 << k;
                reduced += 1;
            }
        }
        k += 1;
    });
    (bits, reduced)
}

/// Writes saved tensors and values: variables in order, then the sizes of operands that were broadcast.
///
/// # Safety
/// The draft has room for them.
#[inline(always)]
unsafe fn save(call: &Call<'_>, out: &Tensor, uses: u64, set: usize, bits: u64, draft: &mut Draft) {
    // SAFETY: the caller's promise.
    unsafe {
        for_each_bit(uses as usize, |i| match call.args.get(i) {
            None => draft.save(SavedTensor::output(out, 0)),
            Some(Arg::Tensor(t)) => draft.save(SavedTensor::input(t)),
            Some(Arg::Scalar(s)) => draft.value(Value::Scalar(*s)),
            Some(other) => draft.value(Value::Scalar(other.scalar().unwrap_or(Scalar::Int(0)))),
        });
        if bits & ((1 << MOST) - 1) != 0 {
            let mut k = 0;
            for_each_bit(set, |i| {
                if bits >> k & 1 == 1 {
                    let sizes = call.opt_tensor(i).map_or(&[][..], Tensor::sizes);
                    draft.value(Value::Ints(sizes.into()));
                }
                k += 1;
            });
        }
    }
}

/// Equality of shapes without a call: they have few dimensions.
#[inline]
fn same_sizes(a: &Tensor, b: &Tensor) -> bool {
    let (a, b) = (a.sizes(), b.sizes());
    a.len() == b.len() && (0..a.len()).all(|i| a[i] == b[i])
}
