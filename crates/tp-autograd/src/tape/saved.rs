//! A tensor kept for the backward pass, with the version it had. An output is kept as a detached header over the
//! same storage, for the output itself owns the node; it is tied to the graph again when a rule asks for it while
//! gradients are recorded.

use super::handle::NodeRef;
use crate::meta;
use tp_dispatch::{Error, Result, state};
use tp_tensor::Tensor;

#[derive(Clone)]
pub struct SavedTensor {
    tensor: Option<Tensor>,
    version: u32,
    /// Which output it is, or `INPUT` for a tensor that existed before; with `PACKED` when hooks keep it.
    nr: u32,
}

pub(super) const INPUT: u32 = PACKED - 1;
const PACKED: u32 = 1 << 31;

impl SavedTensor {
    #[inline]
    pub fn input(t: &Tensor) -> SavedTensor {
        SavedTensor { tensor: Some(t.clone()), version: t.storage().version(), nr: INPUT }
    }

    #[inline]
    pub fn output(t: &Tensor, nr: usize) -> SavedTensor {
        SavedTensor { tensor: Some(t.detach()), version: t.storage().version(), nr: nr as u32 }
    }

    pub fn none() -> SavedTensor {
        SavedTensor { tensor: None, version: 0, nr: INPUT }
    }

    /// The place of a tensor that hooks keep.
    pub(super) fn packed(nr: u32) -> SavedTensor {
        SavedTensor { tensor: None, version: 0, nr: nr | PACKED }
    }

    #[inline]
    pub(crate) fn is_packed(&self) -> bool {
        self.nr & PACKED != 0
    }

    pub(super) fn take(&mut self) -> SavedTensor {
        SavedTensor { tensor: self.tensor.take(), version: self.version, nr: self.nr }
    }

    pub(super) fn raw(&self) -> Option<&Tensor> {
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
        if self.nr & !PACKED != INPUT && state::is_grad_enabled() {
            return Ok(None);
        }
        self.checked(node)
    }

    #[inline]
    fn checked(&self, node: &NodeRef) -> Result<Option<&Tensor>> {
        let Some(t) = &self.tensor else { return Ok(None) };
        let now = t.storage().version();
        if now == self.version { Ok(Some(t)) } else { Err(self.stale(t, now, node)) }
    }

    /// The saved value as a rule sees it: an output is tied to the graph again while gradients are recorded.
    #[inline]
    pub(super) fn again(&self, t: Tensor, node: &NodeRef) -> Tensor {
        let nr = self.nr & !PACKED;
        if nr == INPUT || !state::is_grad_enabled() {
            return t;
        }
        let again = t.detach();
        meta::set_history(&again, node.clone(), nr);
        again
    }

    #[cold]
    fn stale(&self, t: &Tensor, now: u32, node: &NodeRef) -> Error {
        let what = if self.nr == INPUT { "an input" } else { "an output" };
        let message = format!(
            "{what} needed to compute the gradient was modified by an in-place operation: {t:?} is at version {now}, expected version {}",
            self.version
        );
        Error::autograd("TP3003", message).with_op(node.name()).note(
            "clone() the tensor before it is written to, or use the operation that returns a new tensor",
        )
    }
}
