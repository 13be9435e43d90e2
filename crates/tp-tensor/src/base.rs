//! What a view is a view of. A view operation links its result to the tensor at the root of the storage's views, so
//! that the layer that differentiates can tell that tensor of a write through the view. Headers that only share memory
//! (`detach`, saved values, views inside kernels or of a tensor that is `ALONE`) are not linked.

use crate::header::{TensorHeader, ViewHeader, flag};
use crate::tensor::Tensor;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Gives up a reference to a host object.
pub type HostRelease = fn(*mut ());

static RELEASE: OnceLock<HostRelease> = OnceLock::new();

/// Filled in by the layer that owns host objects; the first registration stays.
pub fn set_host_release(release: HostRelease) -> bool {
    RELEASE.set(release).is_ok()
}

impl Tensor {
    /// The tensor that this one was made a view of; for a view of a view the first of them.
    #[inline]
    pub fn base(&self) -> Option<&Tensor> {
        if !self.flag(flag::LINKED) {
            return None;
        }
        // SAFETY: the flag says that the place behind the header is written, and it is until the header dies.
        unsafe { Some((*self.0.as_ptr().cast::<ViewHeader>()).base.assume_init_ref()) }
    }

    /// Makes this fresh tensor, which nobody else sees yet, a view of `of` (or of what that is a view of). Nothing where
    /// it shares no memory with it, is no header of its own, or is linked already.
    pub fn link(&self, of: &Tensor) {
        let root = of.base().unwrap_or(of);
        if self.flag(flag::EMBEDDED | flag::LINKED)
            || root.flag(flag::ALONE)
            || self.same(root)
            || !self.shares_storage(root)
        {
            return;
        }
        // SAFETY: not embedded, so the block has room for it; nobody else reads it yet.
        unsafe { (*self.0.as_ptr().cast::<ViewHeader>()).base = MaybeUninit::new(root.clone()) };
        self.head().flags.fetch_or(flag::LINKED, Ordering::Release);
    }

    /// While `on`, views made of this tensor only share its memory. For a tensor whose history is about to be made and
    /// will own what is done with it until then: a view that owned it as well would close a cycle that nobody sees.
    pub fn set_alone(&self, on: bool) {
        if on {
            self.head().flags.fetch_or(flag::ALONE, Ordering::AcqRel);
        } else {
            self.head().flags.fetch_and(!flag::ALONE, Ordering::AcqRel);
        }
    }

    /// Makes this fresh tensor, which nobody else sees yet, a root of its own.
    pub fn unlink(&self) {
        let flags = self.head().flags.fetch_and(!(flag::LINKED | flag::HANDED), Ordering::AcqRel);
        if flags & flag::LINKED != 0 {
            // SAFETY: it was linked and is no more, so this is done once.
            unsafe { give_up(self.0, flags) };
        }
    }

    /// From now on the reference to the base is one to its host object, which the caller gives.
    pub fn hand_over_base(&self) -> bool {
        let Some(base) = self.base() else { return false };
        if base.host().is_null()
            || self.head().flags.fetch_or(flag::HANDED, Ordering::AcqRel) & flag::HANDED != 0
        {
            return false;
        }
        // SAFETY: a second handle of what stays readable: the host object keeps the header from here on.
        drop(unsafe { ptr::read(base) });
        true
    }

    /// The host object that the reference to the base is one to.
    pub fn handed_base(&self) -> Option<*mut ()> {
        if self.flag(flag::HANDED) { self.base().map(Tensor::host) } else { None }
    }
}

/// # Safety
/// The header is linked by `flags`, and its base is not used again.
pub(crate) unsafe fn give_up(head: NonNull<TensorHeader>, flags: u16) {
    // SAFETY: the caller's promise.
    let base = unsafe { (*head.as_ptr().cast::<ViewHeader>()).base.assume_init_read() };
    if flags & flag::HANDED == 0 {
        return drop(base);
    }
    let host = base.host();
    std::mem::forget(base);
    if let Some(release) = RELEASE.get() {
        release(host);
    }
}
