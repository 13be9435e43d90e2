//! Shared memory of tensors: one header per allocation, counted by the live tensor headers over it, with the
//! version counter that every view shares.
//!
//! # Memory
//! A CPU allocation of up to `INLINE_DATA` bytes is one pool block: storage header | first tensor header | data
//! at a 64-byte offset. Larger data, foreign memory and fakes keep the two headers in a block of their own.
//! Each live tensor header owns one storage reference; the block goes back to the pool at count 0.

use crate::device::{Device, DeviceKind};
use crate::error::TensorError;
use crate::header::TensorHeader;
use crate::{pool, runtime, shared};
use std::any::Any;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Keeps foreign memory (a NumPy array, a DLPack tensor) alive; dropped when the last tensor over it goes.
/// Dropping may happen on any thread and without the interpreter lock.
pub trait StorageOwner: Send + Sync {
    /// The owner itself, where a layer above looks into it again.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StorageKind {
    /// Data follows the headers in the same block.
    Inline,
    /// Data is a block of its own from the pool or the device runtime.
    Owned,
    /// Data belongs to `owner`.
    Foreign,
    /// No data: shapes only. The value is known to the capture scope that made it.
    Fake,
}

/// `StorageKind` as a header keeps it. From `FOREIGN` on others may reach the same memory: see `shared`. Up to `OWNED` it
/// is private.
mod state {
    pub const INLINE: u8 = 0;
    pub const OWNED: u8 = 1;
    pub const FAKE: u8 = 2;
    pub const FOREIGN: u8 = 3;
    pub const LENT_INLINE: u8 = 4;
    pub const LENT_OWNED: u8 = 5;
}

#[repr(C)]
pub struct StorageHeader {
    refs: AtomicU32,
    version: AtomicU32,
    data: *mut u8,
    nbytes: usize,
    owner: Option<Box<dyn StorageOwner>>,
    device: Device,
    /// Of `mark`.
    marks: AtomicU8,
    /// One of `state`; changes only when the memory is lent for the first time.
    state: AtomicU8,
    fake_id: u32,
    /// Stream that last used device memory (0 = the default stream); meaningless on CPU.
    last_stream: AtomicU64,
}

mod mark {
    pub const READONLY: u8 = 1;
    pub const SAVED: u8 = 2;
    /// A call that was put off will read it.
    pub const AWAITED: u8 = 4;
}

/// Bytes of both headers: data of an inline block starts here.
pub(crate) const HEADERS: usize = size_of::<StorageHeader>() + size_of::<TensorHeader>();
/// Largest data that shares a block with its headers.
pub(crate) const INLINE_DATA: usize = 4096;

const _: () = assert!(size_of::<StorageHeader>() == 56);
const _: () = assert!(HEADERS.is_multiple_of(64));

/// A borrowed view of a tensor's storage.
#[derive(Clone, Copy)]
pub struct Storage<'a>(pub(crate) &'a StorageHeader);

impl<'a> Storage<'a> {
    pub fn data(self) -> *mut u8 {
        self.0.data
    }
    pub fn nbytes(self) -> usize {
        self.0.nbytes
    }
    pub fn kind(self) -> StorageKind {
        self.0.kind()
    }
    /// The memory is its own, and nobody was ever given its address.
    #[inline]
    pub fn is_private(self) -> bool {
        self.0.state.load(Ordering::Relaxed) <= state::OWNED
    }
    pub fn device(self) -> Device {
        self.0.device
    }
    pub fn is_readonly(self) -> bool {
        self.0.marks.load(Ordering::Relaxed) & mark::READONLY != 0
    }
    /// Whether somebody ever kept a tensor over it for later, itself and not a `detach`.
    pub fn was_saved(self) -> bool {
        self.0.marks.load(Ordering::Relaxed) & mark::SAVED != 0
    }
    #[inline]
    pub fn mark_saved(self) {
        let marks = &self.0.marks;
        marks.store(marks.load(Ordering::Relaxed) | mark::SAVED, Ordering::Relaxed);
    }
    /// Whether a call that was put off may be going to read it: before a write that call has to run.
    #[inline]
    pub fn is_awaited(self) -> bool {
        self.0.marks.load(Ordering::Relaxed) & mark::AWAITED != 0
    }
    pub fn set_awaited(self, on: bool) {
        if on {
            self.0.marks.fetch_or(mark::AWAITED, Ordering::Relaxed);
        } else {
            self.0.marks.fetch_and(!mark::AWAITED, Ordering::Relaxed);
        }
    }
    /// Number of in-place writes so far; views share it.
    #[inline]
    pub fn version(self) -> u32 {
        self.0.version.load(Ordering::Acquire)
    }
    /// Counts a write; where the memory is foreign or lent out, for every storage over it.
    #[inline]
    pub fn bump_version(self) {
        if self.0.state.load(Ordering::Relaxed) >= state::FOREIGN {
            return shared::bump(self.0);
        }
        self.0.bump();
    }
    /// Says that others get the address of this memory: a tensor made from it later shares its versions.
    #[cold]
    pub fn lend(self) {
        let lent = match self.0.state.load(Ordering::Relaxed) {
            state::INLINE => state::LENT_INLINE,
            state::OWNED => state::LENT_OWNED,
            _ => return,
        };
        if self.0.nbytes > 0 && self.0.device.is_cpu() {
            shared::join(self.0);
            self.0.state.store(lent, Ordering::Release);
        }
    }
    pub fn fake_id(self) -> Option<u32> {
        (self.0.kind() == StorageKind::Fake).then_some(self.0.fake_id)
    }
    pub fn owner(self) -> Option<&'a dyn StorageOwner> {
        self.0.owner.as_deref()
    }
    pub fn last_stream(self) -> u64 {
        self.0.last_stream.load(Ordering::Relaxed)
    }
    pub fn set_last_stream(self, stream: u64) {
        self.0.last_stream.store(stream, Ordering::Relaxed);
    }
    /// Identity of the storage: equal for a tensor and all its views.
    pub fn id(self) -> usize {
        ptr::from_ref(self.0) as usize
    }
    /// How many live tensors share it.
    pub fn live_headers(self) -> u32 {
        self.0.refs.load(Ordering::Acquire)
    }
}

impl StorageHeader {
    fn kind(&self) -> StorageKind {
        match self.state.load(Ordering::Relaxed) {
            state::INLINE | state::LENT_INLINE => StorageKind::Inline,
            state::OWNED | state::LENT_OWNED => StorageKind::Owned,
            state::FAKE => StorageKind::Fake,
            _ => StorageKind::Foreign,
        }
    }

    pub(crate) fn nbytes(&self) -> usize {
        self.nbytes
    }

    #[inline]
    pub(crate) fn bump(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub(crate) fn data(&self) -> *mut u8 {
        self.data
    }

    #[inline]
    pub(crate) fn first_header(this: NonNull<StorageHeader>) -> *mut TensorHeader {
        // SAFETY: every storage block has room for the first tensor header behind its own.
        unsafe { this.as_ptr().add(1).cast() }
    }

    #[inline]
    pub(crate) fn retain(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// CPU memory of `nbytes`, uninitialised, one reference.
    #[inline(always)]
    pub(crate) fn new_cpu(nbytes: usize) -> Result<NonNull<StorageHeader>, TensorError> {
        let oom = || TensorError::OutOfMemory { bytes: nbytes, device: Device::CPU };
        if nbytes <= INLINE_DATA {
            let block = pool::try_alloc(HEADERS + nbytes).ok_or_else(oom)?;
            // SAFETY: the block holds both headers and the data.
            unsafe {
                Self::write(
                    block,
                    block.as_ptr().add(HEADERS),
                    nbytes,
                    Device::CPU,
                    StorageKind::Inline,
                    None,
                    false,
                    0,
                )
            }
        } else {
            let data = pool::try_alloc(nbytes).ok_or_else(oom)?;
            Self::with_data(data.as_ptr(), nbytes, Device::CPU, StorageKind::Owned, None, false, 0)
        }
    }

    pub(crate) fn new_on(nbytes: usize, device: Device) -> Result<NonNull<StorageHeader>, TensorError> {
        match device.kind {
            DeviceKind::Cpu => Self::new_cpu(nbytes),
            DeviceKind::Meta => Self::new_fake(nbytes, device, 0),
            DeviceKind::Cuda => {
                let data = runtime::runtime(device)?.alloc(device, nbytes)?;
                Self::with_data(data, nbytes, device, StorageKind::Owned, None, false, 0)
            }
        }
    }

    pub(crate) fn new_fake(
        nbytes: usize,
        device: Device,
        id: u32,
    ) -> Result<NonNull<StorageHeader>, TensorError> {
        Self::with_data(ptr::null_mut(), nbytes, device, StorageKind::Fake, None, false, id)
    }

    /// A fake that stands for what its owner holds.
    pub(crate) fn new_stand_in(
        nbytes: usize,
        device: Device,
        owner: Box<dyn StorageOwner>,
    ) -> Result<NonNull<StorageHeader>, TensorError> {
        Self::with_data(ptr::null_mut(), nbytes, device, StorageKind::Fake, Some(owner), false, 0)
    }

    pub(crate) fn new_foreign(
        data: *mut u8,
        nbytes: usize,
        device: Device,
        owner: Box<dyn StorageOwner>,
        readonly: bool,
    ) -> Result<NonNull<StorageHeader>, TensorError> {
        let made = Self::with_data(data, nbytes, device, StorageKind::Foreign, Some(owner), readonly, 0)?;
        if nbytes > 0 && device.is_cpu() {
            // SAFETY: just made.
            shared::join(unsafe { made.as_ref() });
        }
        Ok(made)
    }

    fn with_data(
        data: *mut u8,
        nbytes: usize,
        device: Device,
        kind: StorageKind,
        owner: Option<Box<dyn StorageOwner>>,
        readonly: bool,
        fake_id: u32,
    ) -> Result<NonNull<StorageHeader>, TensorError> {
        let block = pool::try_alloc(HEADERS).ok_or(TensorError::OutOfMemory { bytes: HEADERS, device })?;
        // SAFETY: the block holds both headers.
        unsafe { Self::write(block, data, nbytes, device, kind, owner, readonly, fake_id) }
    }

    /// # Safety
    /// `block` has at least `HEADERS` bytes and nobody else uses it.
    #[inline(always)]
    #[allow(clippy::unnecessary_wraps)] // the two callers return it as it is
    unsafe fn write(
        block: NonNull<u8>,
        data: *mut u8,
        nbytes: usize,
        device: Device,
        kind: StorageKind,
        owner: Option<Box<dyn StorageOwner>>,
        readonly: bool,
        fake_id: u32,
    ) -> Result<NonNull<StorageHeader>, TensorError> {
        let this = block.cast::<StorageHeader>();
        let p = this.as_ptr();
        // Field by field: writing a struct by value goes through the stack and costs twice as much.
        // SAFETY: in bounds, aligned (pool blocks are 64-byte aligned), not yet shared.
        unsafe {
            ptr::write(&raw mut (*p).refs, AtomicU32::new(1));
            ptr::write(&raw mut (*p).version, AtomicU32::new(0));
            ptr::write(&raw mut (*p).data, data);
            ptr::write(&raw mut (*p).nbytes, nbytes);
            ptr::write(&raw mut (*p).owner, owner);
            ptr::write(&raw mut (*p).device, device);
            ptr::write(&raw mut (*p).marks, AtomicU8::new(u8::from(readonly) * mark::READONLY));
            let state = match kind {
                StorageKind::Inline => state::INLINE,
                StorageKind::Owned => state::OWNED,
                StorageKind::Fake => state::FAKE,
                StorageKind::Foreign => state::FOREIGN,
            };
            ptr::write(&raw mut (*p).state, AtomicU8::new(state));
            ptr::write(&raw mut (*p).fake_id, fake_id);
            ptr::write(&raw mut (*p).last_stream, AtomicU64::new(0));
        }
        Ok(this)
    }

    /// Gives back one reference; the last one frees data and block.
    ///
    /// # Safety
    /// The caller owned a reference and does not use the storage again.
    #[inline]
    pub(crate) unsafe fn release(this: NonNull<StorageHeader>) {
        // SAFETY: alive until this reference is gone.
        let header = unsafe { this.as_ref() };
        // A sole owner cannot be joined by anyone, so the atomic subtraction can be saved.
        if header.refs.load(Ordering::Acquire) != 1 && header.refs.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        // SAFETY: this was the last reference.
        unsafe {
            if header.state.load(Ordering::Relaxed) == state::INLINE {
                let bytes = HEADERS + header.nbytes;
                pool::free(this.cast(), bytes);
            } else {
                Self::free_outlined(this);
            }
        }
    }

    #[cold]
    #[inline(never)]
    unsafe fn free_outlined(this: NonNull<StorageHeader>) {
        // SAFETY: last reference, see `release`.
        unsafe {
            if this.as_ref().state.load(Ordering::Relaxed) >= state::FOREIGN {
                shared::leave(this.as_ref());
            }
            let h = &mut *this.as_ptr();
            if h.kind() == StorageKind::Owned {
                match (NonNull::new(h.data), h.device.kind) {
                    (Some(data), DeviceKind::Cpu) => pool::free(data, h.nbytes),
                    (Some(data), _) => {
                        if let Ok(rt) = runtime::runtime(h.device) {
                            rt.free(h.device, data.as_ptr(), h.nbytes);
                        }
                    }
                    (None, _) => {}
                }
            }
            drop(h.owner.take());
            let inline = if h.kind() == StorageKind::Inline { h.nbytes } else { 0 };
            pool::free(this.cast(), HEADERS + inline);
        }
    }
}
