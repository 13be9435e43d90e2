//! A tensor kept for the backward pass, with the version it had. An output is kept as a detached header over the
//! same storage, for the output itself owns the node; it is tied to the graph again when a rule asks for it while
//! gradients are recorded.

use super::handle::NodeRef;
use super::node::{Node, flag};
use crate::{hooks, meta};
use smallvec::SmallVec;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use tp_dispatch::{Error, Result, state};
use tp_tensor::Tensor;

pub struct SavedTensor {
    tensor: ManuallyDrop<Option<Tensor>>,
    version: u32,
    /// Which output it is, or `INPUT` for a tensor that existed before; with `PACKED` when hooks keep it, with
    /// `HANDED` when the reference is one to the tensor's host object.
    nr: u32,
}

pub(super) const INPUT: u32 = HANDED - 1;
const PACKED: u32 = 1 << 31;
const HANDED: u32 = 1 << 30;
const NR: u32 = HANDED - 1;

impl Clone for SavedTensor {
    fn clone(&self) -> SavedTensor {
        SavedTensor { tensor: self.tensor.clone(), version: self.version, nr: self.nr & !HANDED }
    }
}

impl Drop for SavedTensor {
    #[inline]
    fn drop(&mut self) {
        if self.nr & HANDED != 0 {
            return self.give_back();
        }
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.tensor) }
    }
}

impl SavedTensor {
    #[inline]
    pub fn input(t: &Tensor) -> SavedTensor {
        let storage = t.storage();
        storage.mark_saved();
        SavedTensor { tensor: ManuallyDrop::new(Some(t.clone())), version: storage.version(), nr: INPUT }
    }

    #[inline]
    pub fn output(t: &Tensor, nr: usize) -> SavedTensor {
        let tensor = ManuallyDrop::new(Some(t.detach()));
        SavedTensor { tensor, version: t.storage().version(), nr: nr as u32 }
    }

    pub fn none() -> SavedTensor {
        SavedTensor { tensor: ManuallyDrop::new(None), version: 0, nr: INPUT }
    }

    /// The place of a tensor that hooks keep.
    pub(super) fn packed(nr: u32) -> SavedTensor {
        SavedTensor { tensor: ManuallyDrop::new(None), version: 0, nr: nr | PACKED }
    }

    #[inline]
    pub(crate) fn is_packed(&self) -> bool {
        self.nr & PACKED != 0
    }

    pub(super) fn take(&mut self) -> SavedTensor {
        let left =
            SavedTensor { tensor: ManuallyDrop::new(None), version: self.version, nr: self.nr & !HANDED };
        std::mem::replace(self, left)
    }

    /// Whether it reaches host objects and is not owned by way of one yet.
    pub(super) fn should_hand_over(&self) -> bool {
        self.nr & HANDED == 0 && self.raw().is_some_and(|t| t.needs_tracking() || meta::reaches_host(t))
    }

    /// From now on the reference is one to the host object of `t`, which the caller gives; false where something else
    /// is saved here by now.
    pub(super) fn hand_over(&mut self, t: &Tensor) -> bool {
        if !self.should_hand_over() || !self.raw().is_some_and(|own| own.same(t)) {
            return false;
        }
        // SAFETY: a second handle of what stays readable: `t` keeps the header now, its host object from here on.
        drop(unsafe { std::ptr::read(&raw const self.tensor) }.take());
        self.nr |= HANDED;
        true
    }

    #[cold]
    fn give_back(&mut self) {
        if let (Some(t), Some(hooks)) = (self.raw(), hooks::host_hooks()) {
            hooks.release(t.host());
        }
    }

    /// The host object that the reference is one to.
    pub(crate) fn handed(&self) -> Option<*mut ()> {
        if self.nr & HANDED == 0 { None } else { self.raw().map(Tensor::host) }
    }

    pub(crate) fn raw(&self) -> Option<&Tensor> {
        self.tensor.as_ref()
    }

    /// The tensor as it was saved, or an error when it was written to since. None where none was saved.
    #[inline]
    pub fn unpack(&self, node: &NodeRef) -> Result<Option<Tensor>> {
        Ok(self.checked(node)?.map(|t| self.again(t.clone(), node)))
    }

    /// The same without a new reference; None also for an output while gradients are recorded.
    #[inline]
    pub(crate) fn borrow(&self, node: &NodeRef) -> Result<Option<&Tensor>> {
        if self.nr & NR != INPUT && state::is_grad_enabled() {
            return Ok(None);
        }
        self.checked(node)
    }

    #[inline]
    fn checked(&self, node: &NodeRef) -> Result<Option<&Tensor>> {
        let Some(t) = self.raw() else { return Ok(None) };
        let now = t.storage().version();
        if now == self.version { Ok(Some(t)) } else { Err(self.stale(t, now, node)) }
    }

    /// The saved value as a rule sees it: an output is tied to the graph again while gradients are recorded.
    #[inline]
    pub(super) fn again(&self, t: Tensor, node: &NodeRef) -> Tensor {
        let nr = self.nr & NR;
        if nr == INPUT || !state::is_grad_enabled() {
            return t;
        }
        let again = t.detach();
        meta::set_history(&again, node.clone(), nr);
        again
    }

    #[cold]
    fn stale(&self, t: &Tensor, now: u32, node: &NodeRef) -> Error {
        let what = if self.nr & NR == INPUT { "an input" } else { "an output" };
        let message = format!(
            "{what} needed to compute the gradient was modified by an in-place operation: {t:?} is at version {now}, expected version {}",
            self.version
        );
        Error::autograd("TP3003", message).with_op(node.name()).note(
            "clone() the tensor before it is written to, or use the operation that returns a new tensor",
        )
    }
}

/// A gradient kept for the user, or none.
pub(crate) struct Kept(SavedTensor);

impl Kept {
    pub const NONE: Kept = Kept(SavedTensor { tensor: ManuallyDrop::new(None), version: 0, nr: INPUT });

    pub fn new(t: Option<Tensor>) -> Kept {
        Kept(SavedTensor { tensor: ManuallyDrop::new(t), version: 0, nr: INPUT })
    }

    pub fn is_none(&self) -> bool {
        self.0.raw().is_none()
    }

    pub fn get(&self) -> Option<Tensor> {
        self.0.raw().cloned()
    }

    pub fn peek(&self) -> Option<&Tensor> {
        self.0.raw()
    }

    /// Moves it out. Nothing is dropped, so that a lock may be held.
    #[inline]
    pub fn take(&mut self) -> Kept {
        std::mem::replace(self, Kept::NONE)
    }

    /// A handle of its own. Not while a lock is held: code of the host may run.
    #[inline]
    pub fn into_tensor(mut self) -> Option<Tensor> {
        if self.0.nr & HANDED != 0 {
            return self.get();
        }
        self.0.tensor.take()
    }

    pub(super) fn saved(&mut self) -> &mut SavedTensor {
        &mut self.0
    }
}

impl Default for Kept {
    fn default() -> Kept {
        Kept::NONE
    }
}

impl Node {
    pub(super) fn with_saved<R>(&self, f: impl FnOnce(&mut [SavedTensor]) -> R) -> R {
        while self.lock.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: the byte lock gives one thread access.
        let out = f(unsafe { std::slice::from_raw_parts_mut(self.saved_ptr(), self.saved as usize) });
        self.lock.store(false, Ordering::Release);
        out
    }

    /// What was saved, into `out`: copies when the graph is retained, else the originals. False once they were given up.
    #[inline]
    pub(crate) fn open_saved(&self, retain: bool, out: &mut SmallVec<[SavedTensor; 3]>) -> bool {
        if self.saved == 0 {
            return !self.has(flag::FREED);
        }
        self.take_saved(retain, out)
    }

    #[inline(never)]
    fn take_saved(&self, retain: bool, out: &mut SmallVec<[SavedTensor; 3]>) -> bool {
        self.with_saved(|saved| {
            if self.has(flag::FREED) {
                return false;
            }
            if retain {
                out.extend(saved.iter().cloned());
            } else {
                self.flags.fetch_or(flag::FREED, Ordering::Relaxed);
                out.extend(saved.iter_mut().map(SavedTensor::take));
            }
            true
        })
    }

    /// Puts back what `open_saved` took, after a rule failed.
    pub(crate) fn restore_saved(&self, back: SmallVec<[SavedTensor; 3]>) {
        if self.saved == 0 {
            return;
        }
        self.with_saved(|saved| {
            for (slot, tensor) in saved.iter_mut().zip(back) {
                *slot = tensor;
            }
            self.flags.fetch_and(!flag::FREED, Ordering::Relaxed);
        });
    }

    /// Saved tensors as they are, for people.
    pub fn saved_tensors(&self) -> SmallVec<[Option<Tensor>; 3]> {
        self.with_saved(|saved| saved.iter().map(|s| s.raw().cloned()).collect())
    }
}
