//! Adding gradients up. The first one is kept as it is, without a copy; a sum is written in place only where
//! nobody else can see the buffer.

use crate::ops;
use crate::tape::Leaf;
use tp_dispatch::{Arg, Result, state};
use tp_tensor::Tensor;

/// Adds `grad` to what a slot holds.
#[inline]
pub(super) fn add_into(slot: &mut Option<Tensor>, grad: Tensor) -> Result<()> {
    match slot.take() {
        None => *slot = Some(grad),
        Some(sum) => *slot = Some(add(sum, grad)?),
    }
    Ok(())
}

/// One handle, one header over the memory, nothing recorded: nobody would notice a write.
#[inline]
fn is_ours(t: &Tensor) -> bool {
    t.ref_count() == 1
        && t.storage().live_headers() == 1
        && !t.storage().is_readonly()
        && !t.requires_grad()
        && !t.is_fake()
        && t.is_contiguous()
        && t.host().is_null()
}

fn same_kind(a: &Tensor, b: &Tensor) -> bool {
    a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.device() == b.device()
}

fn add(sum: Tensor, grad: Tensor) -> Result<Tensor> {
    if state::is_grad_enabled() || !same_kind(&sum, &grad) {
        return ops::add(&sum, &grad);
    }
    if is_ours(&sum) {
        ops::ADD_.call(&[Arg::Tensor(&sum), Arg::Tensor(&grad)])
    } else if is_ours(&grad) {
        ops::ADD_.call(&[Arg::Tensor(&grad), Arg::Tensor(&sum)])
    } else {
        ops::add(&sum, &grad)
    }
}

/// Adds `grad` to a leaf's `.grad`. A first gradient is taken over as it is only where it is nobody else's; a later
/// one is added in place, so that the user's `.grad` stays the same tensor, unless it has a history of its own.
/// No lock is held while ops run: what another thread stored meanwhile is taken out and added too.
pub(super) fn into_leaf(leaf: &Leaf, grad: Tensor) -> Result<()> {
    let mut grad = grad;
    loop {
        let before = leaf.grad.lock().take();
        let sum = match combine(before.as_ref(), &grad) {
            Ok(Some(sum)) => sum,
            Ok(None) => grad,
            Err(e) => {
                *leaf.grad.lock() = before;
                return Err(e);
            }
        };
        let mut slot = leaf.grad.lock();
        if slot.is_none() {
            *slot = Some(sum);
            return Ok(());
        }
        grad = sum;
    }
}

const SMALL: usize = 4096;

/// The new `.grad`; None when the gradient itself can be taken.
fn combine(before: Option<&Tensor>, grad: &Tensor) -> Result<Option<Tensor>> {
    Ok(match before {
        None if is_ours(grad) || grad.requires_grad() => None,
        None => Some(ops::CLONE.call(&[Arg::Tensor(grad)])?),
        // Nobody would notice another tensor in its place, and for few elements that is the shorter way.
        Some(old) if old.nbytes() <= SMALL && is_ours(old) => Some(ops::add(old, grad)?),
        Some(old) if can_write(old, grad) => Some(ops::ADD_.call(&[Arg::Tensor(old), Arg::Tensor(grad)])?),
        Some(old) => Some(ops::add(old, grad)?),
    })
}

fn can_write(old: &Tensor, grad: &Tensor) -> bool {
    !state::is_grad_enabled()
        && !old.requires_grad()
        && !old.is_fake()
        && !grad.is_fake()
        && !old.storage().is_readonly()
        && same_kind(old, grad)
}
