//! Recording a pointwise call the short way: what is saved, and in which order, is what `save_inputs` and
//! `save_outputs` of the rule say.

use super::{DTYPE_SHIFT, ExprRule};
use crate::rule::RuleHandle;
use crate::tape::single::{self, Kept, for_each_bit};
use crate::tape::{self, Draft, SavedTensor};
use tp_dispatch::dispatcher::redispatch_one;
use tp_dispatch::{Arg, Call, DispatchKey, Result, Value};
use tp_tensor::layout::same_dims;
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

impl ExprRule {
    /// Runs a call and records it. Not for ops that write, and not while hooks or anomaly mode are in force. None where
    /// the call has no short form.
    pub(crate) fn record(&'static self, call: &Call<'_>) -> Option<Result<Tensor>> {
        let mut set = 0u64;
        for (i, arg) in call.args.iter().enumerate().take(MOST) {
            if let Arg::Tensor(t) = arg
                && t.requires_grad()
            {
                set |= 1 << i;
            }
        }
        let set = set & self.args;
        let out = match redispatch_one(call, DispatchKey::Autograd)? {
            Ok(out) => out,
            Err(e) => return Some(Err(e)),
        };
        if set != 0
            && tape::differentiable(&out)
            && let Err(e) = self.tie(call, &out, set)
        {
            return Some(Err(e));
        }
        Some(Ok(out))
    }

    fn tie(&'static self, call: &Call<'_>, out: &Tensor, set: u64) -> Result<()> {
        let plan = &self.plans[set as usize & (self.plans.len() - 1)];
        let (bits, reduced) = operand_bits(call, out, set);
        let kept = Kept {
            bits,
            tensors: plan.tensors,
            values: plan.numbers + reduced,
            specs: false,
            reaches: plan.tensors != 0 && saves_tracked(call, plan.uses),
        };
        let rule = RuleHandle::Static(self);
        // SAFETY: as many writes as counted: one per saved variable by its kind, one per reduced operand.
        single::tie(call, out, set, &rule, &kept, |draft| unsafe {
            save(call, out, plan.uses, set, bits, draft);
        })
    }
}

/// Whether a tensor that is saved leads to host objects.
fn saves_tracked(call: &Call<'_>, uses: u64) -> bool {
    let tracked = |i: usize| call.opt_tensor(i).is_some_and(Tensor::needs_tracking);
    (0..call.args.len()).any(|i| uses >> i & 1 == 1 && tracked(i))
}

/// The node's bits, and how many operands were broadcast.
#[inline]
fn operand_bits(call: &Call<'_>, out: &Tensor, set: u64) -> (u64, u32) {
    let (mut bits, mut reduced, mut k) = (0, 0, 0);
    for_each_bit(set, |i| {
        if let Some(t) = call.opt_tensor(i) {
            bits |= (t.dtype() as u64) << (DTYPE_SHIFT + 4 * k);
            if !same_dims(t.sizes(), out.sizes()) {
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
unsafe fn save(call: &Call<'_>, out: &Tensor, uses: u64, set: u64, bits: u64, draft: &mut Draft) {
    // SAFETY: the caller's promise.
    unsafe {
        for_each_bit(uses, |i| {
            let number = match call.args.get(i) {
                None => return draft.save(SavedTensor::output(out, 0)),
                Some(Arg::Tensor(t)) => return draft.save(SavedTensor::input(t)),
                Some(Arg::Scalar(s)) => *s,
                Some(other) => other.scalar().unwrap_or(Scalar::Int(0)),
            };
            draft.value(Value::Scalar(number));
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
