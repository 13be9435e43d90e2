//! Tensors whose data comes later. A pending tensor is a fake, so that nothing takes it for one with data, until whoever
//! made it fills it: its header then stands for the memory of a real tensor, and everybody who held it has that.
//!
//! # Safety of filling
//! Filling changes fields that are otherwise written once. It is done with the interpreter lock held, by or for the thread
//! that computes with the tensor, between two calls: nobody reads the header meanwhile, and no borrow of its sizes or
//! strides lives across it. A pending header is a block of its own, never the first of its storage.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorError;
use crate::header::{INLINE_DIMS, TensorHeader, ViewHeader, flag, keybits};
use crate::layout;
use crate::pool;
use crate::storage::{StorageHeader, StorageOwner};
use crate::tensor::Tensor;
use std::ptr;
use std::sync::atomic::Ordering;

const KEYS: u16 = keybits::SEGMENT | keybits::CAPTURE | keybits::META;

impl Tensor {
    /// A CPU tensor that `owner` will fill; calls on it pass the Segment key.
    pub fn pending(
        sizes: &[i64],
        strides: &[i64],
        dtype: DType,
        owner: Box<dyn StorageOwner>,
    ) -> Result<Tensor, TensorError> {
        let numel = layout::checked_numel(sizes, dtype.itemsize())?;
        let bytes = size_of::<ViewHeader>();
        let block = pool::try_alloc(bytes).ok_or(TensorError::OutOfMemory { bytes, device: Device::CPU })?;
        let nbytes = numel as usize * dtype.itemsize();
        let storage = match StorageHeader::new_stand_in(nbytes, Device::CPU, owner) {
            Ok(storage) => storage,
            Err(e) => {
                // SAFETY: made above, and nobody else's.
                unsafe { pool::free(block, bytes) };
                return Err(e);
            }
        };
        let head = block.cast::<TensorHeader>();
        let strides = Some(strides);
        // SAFETY: a fresh block of the right size; the storage's one reference becomes the header's.
        unsafe {
            crate::make::write_header(
                head.as_ptr(),
                storage,
                sizes,
                strides,
                numel,
                0,
                dtype,
                Device::CPU,
                0,
            );
        }
        let out = Tensor(head);
        out.head().keys.store(KEYS, Ordering::Relaxed);
        Ok(out)
    }

    /// Whether its data is still to come.
    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        self.keys() & keybits::SEGMENT != 0
    }

    /// From now on a pending tensor is what `with` is: its memory, its place in it, and what it is a view of. What the
    /// tape knows of `with` stays there. False, and nothing done, where this is not pending or `with` is of another
    /// shape, dtype or device.
    ///
    /// # Safety
    /// See the head of this module.
    pub unsafe fn fill(&self, with: &Tensor) -> bool {
        let fits = self.sizes() == with.sizes() && self.dtype() == with.dtype();
        if !self.is_pending() || self.flag(flag::EMBEDDED) || !fits || self.device() != with.device() {
            return false;
        }
        let (this, other) = (self.0.as_ptr(), with.0.as_ptr());
        // SAFETY: both headers live; the caller keeps others away from this one.
        unsafe {
            (*other).storage.as_ref().retain();
            let old = ptr::replace(&raw mut (*this).storage, (*other).storage);
            (*this).data = (*other).data;
            (*this).offset = (*other).offset;
            let n = (*this).ndim as usize;
            let dims = if n > INLINE_DIMS {
                (&raw mut (*this).dims.wide).cast::<*mut i64>().read()
            } else {
                (&raw mut (*this).dims).cast::<i64>()
            };
            ptr::copy_nonoverlapping(with.strides().as_ptr(), dims.add(n), n);
            let taken = flag::CONTIGUOUS | flag::VIEW;
            let flags = (*this).flags.load(Ordering::Relaxed) & !taken;
            let theirs = (*other).flags.load(Ordering::Relaxed) & taken;
            (*this).flags.store(flags | theirs, Ordering::Release);
            (*this).keys.store((*other).keys.load(Ordering::Relaxed), Ordering::Release);
            (*this).trace.store(0, Ordering::Relaxed);
            StorageHeader::release(old);
        }
        if let Some(base) = with.base() {
            self.link(base);
        }
        true
    }
}
