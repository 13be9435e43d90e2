//! Adding gradients up. The first one is kept as it is, without a copy; a sum is written in place only where
//! nobody else can see the buffer.

use crate::tape::{Kept, Leaf, NodeRef};
use crate::{meta, ops};
use tp_dispatch::{Arg, Result, state};
use tp_tensor::layout::{overlaps, same_dims};
use tp_tensor::{DType, Tensor, keybits};

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
    is_sole(t) && !t.requires_grad()
}

/// The same, whether recorded or not.
#[inline]
fn is_sole(t: &Tensor) -> bool {
    t.is_unseen() && t.is_contiguous()
}

/// A gradient that is given to the user as it is: not the object of somebody else, and with a history only where one
/// is asked for. A rule may have returned what it had saved: a parameter, or a tensor that the user holds.
pub(super) fn own(grad: Tensor) -> Result<Tensor> {
    if !grad.requires_grad() {
        return if grad.host().is_null() { Ok(grad) } else { clone(&grad) };
    }
    if !state::is_grad_enabled() {
        return plain(grad);
    }
    if meta::is_leaf(&grad) || !grad.host().is_null() { clone(&grad) } else { Ok(grad) }
}

/// The values of a gradient with a history, without it.
fn plain(grad: Tensor) -> Result<Tensor> {
    if is_sole(&grad) { Ok(grad.detach()) } else { clone(&grad) }
}

fn clone(t: &Tensor) -> Result<Tensor> {
    ops::CLONE.call(&[Arg::Tensor(t)])
}

fn same_kind(a: &Tensor, b: &Tensor) -> bool {
    a.dtype() == b.dtype() && same_dims(a.sizes(), b.sizes()) && a.device() == b.device()
}

fn add(sum: Tensor, grad: Tensor) -> Result<Tensor> {
    if state::is_grad_enabled() || !same_kind(&sum, &grad) {
        return ops::add(&sum, &grad);
    }
    if is_ours(&sum) && add_small(&sum, &grad) {
        return Ok(sum);
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
pub(super) fn into_leaf(node: &NodeRef, leaf: &Leaf, grad: Tensor) -> Result<()> {
    let added = match leaf.grad.lock().peek() {
        Some(old) => !state::is_grad_enabled() && is_ours(old) && add_small(old, &grad),
        None => false,
    };
    if added { Ok(()) } else { into_leaf_by_ops(node, leaf, grad) }
}

#[inline(never)]
fn into_leaf_by_ops(node: &NodeRef, leaf: &Leaf, grad: Tensor) -> Result<()> {
    let mut grad = grad;
    loop {
        let before = leaf.grad.lock().take().into_tensor();
        let sum = match combine(before.as_ref(), &grad) {
            Ok(Some(sum)) => sum,
            Ok(None) => grad,
            Err(e) => {
                let none = std::mem::replace(&mut *leaf.grad.lock(), Kept::new(before));
                drop(none);
                return Err(e);
            }
        };
        if sum.requires_grad() {
            meta::keeps(node, &sum);
        }
        let mut slot = leaf.grad.lock();
        if slot.is_none() {
            *slot = Kept::new(Some(sum));
            return Ok(());
        }
        grad = sum;
    }
}

const SMALL: usize = 4096;

/// `sum += grad` for a `sum` that is ours and few elements, for which a call costs more than the additions. False
/// where the op has to do it: other dtypes and layouts, and while calls are traced.
#[inline]
fn add_small(sum: &Tensor, grad: &Tensor) -> bool {
    let fits = sum.nbytes() <= SMALL
        && grad.is_contiguous()
        && sum.keys() == keybits::CPU
        && grad.keys() == keybits::CPU
        && same_kind(sum, grad)
        && state::with(|s| s.slow_bit().is_empty());
    // SAFETY: both are contiguous CPU tensors of the same dtype and shape, and nobody else sees `sum`.
    unsafe {
        match sum.dtype() {
            DType::F32 if fits => add_elements::<f32>(sum, grad),
            DType::F64 if fits => add_elements::<f64>(sum, grad),
            _ => return false,
        }
    }
    true
}

/// # Safety
/// Contiguous CPU tensors of `T` with the same number of elements; nobody reads or writes `sum` meanwhile.
unsafe fn add_elements<T: Copy + std::ops::Add<Output = T>>(sum: &Tensor, grad: &Tensor) {
    let (p, q) = (sum.data_ptr().cast::<T>(), grad.data_ptr().cast::<T>());
    for i in 0..sum.numel() as usize {
        // SAFETY: the caller's promise; foreign memory may be unaligned.
        unsafe { p.add(i).write_unaligned(p.add(i).read_unaligned() + q.add(i).read_unaligned()) };
    }
}

/// The new `.grad`; None when the gradient itself can be taken.
fn combine(before: Option<&Tensor>, grad: &Tensor) -> Result<Option<Tensor>> {
    Ok(match before {
        None if is_ours(grad) => None,
        None if !is_sole(grad) || meta::is_leaf(grad) => Some(clone(grad)?),
        None if state::is_grad_enabled() => None,
        None => Some(grad.detach()),
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
        && (old.is_contiguous() || !overlaps(old.sizes(), old.strides()))
}
