//! The fixed header of a tensor: counts, flag bits, dtype, layout, and three slots that the layers above fill
//! in (`ext` the tape, `host` the Python object, `trace` the capture). This crate never looks into them.
//!
//! # Safety of the shared fields
//! Everything a call reads on its way (dtype, layout, data pointer) is written once, before the header is
//! shared. What changes later is atomic: counts, flags, keys, `ext` (installed once by compare-and-swap),
//! `host` (set and cleared by the door under the interpreter lock) and `trace`.

use crate::device::Device;
use crate::dtype::DType;
use crate::pool;
use crate::storage::StorageHeader;
use std::alloc::{Layout, handle_alloc_error};
use std::any::{Any, TypeId};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64};

/// Bits of `TensorHeader::keys`: which layers a call on this tensor must pass, highest first. tp-dispatch gives
/// them their meaning; two places are reserved above autograd.
pub mod keybits {
    pub const CPU: u16 = 1 << 0;
    pub const CUDA: u16 = 1 << 1;
    pub const META: u16 = 1 << 2;
    pub const CAPTURE: u16 = 1 << 3;
    pub const AUTOGRAD: u16 = 1 << 4;
    pub const AUTOCAST: u16 = 1 << 5;
    pub const VMAP: u16 = 1 << 6;
}

pub(crate) mod flag {
    /// The header lies inside its storage's block and is not freed by itself.
    pub const EMBEDDED: u32 = 1 << 0;
    pub const CONTIGUOUS: u32 = 1 << 1;
    /// Every shell this tensor ever gets must be tracked by the cyclic collector.
    pub const NEEDS_TRACKING: u32 = 1 << 2;
    /// Its present shell is tracked (tracking twice is fatal).
    pub const TRACKED: u32 = 1 << 3;
    /// Sizes and strides are in a heap block.
    pub const WIDE: u32 = 1 << 4;
    /// A view made by a view operation of another tensor (shares its storage on purpose).
    pub const VIEW: u32 = 1 << 5;
}

pub(crate) const INLINE_DIMS: usize = 4;

#[repr(C)]
pub struct TensorHeader {
    pub(crate) refs: AtomicU32,
    pub(crate) flags: AtomicU32,
    pub(crate) storage: NonNull<StorageHeader>,
    pub(crate) data: *mut u8,
    pub(crate) numel: i64,
    pub(crate) dtype: DType,
    pub(crate) ndim: u8,
    pub(crate) device: Device,
    pub(crate) keys: AtomicU16,
    pub(crate) ext: AtomicPtr<ExtHead>,
    pub(crate) host: AtomicPtr<()>,
    pub(crate) trace: AtomicU64,
    pub(crate) offset: i64,
    /// Sizes then strides, `ndim` of each when inline; else `wide[0]` is a pointer to both.
    pub(crate) dims: DimsCell,
}

#[repr(C)]
pub(crate) union DimsCell {
    pub(crate) inline: [i64; 2 * INLINE_DIMS],
    pub(crate) wide: std::mem::ManuallyDrop<WideDims>,
}

pub(crate) type WideDims = Box<[i64]>;

const _: () = assert!(size_of::<TensorHeader>() == 136);

/// What the tape keeps on a tensor. `trace` reports Python objects reachable only through it to the cyclic
/// collector; `clear` breaks cycles.
pub trait TensorExt: Any + Send + Sync {
    fn trace(&self, visit: &mut ExtVisitor<'_>);
    fn clear(&self);
}

/// Called with the opaque host pointer of each object reached.
pub type ExtVisitor<'a> = dyn FnMut(*mut ()) + 'a;

/// First field of every installed extension: its own table of functions, so that the slot is one pointer.
#[repr(C)]
pub struct ExtHead {
    pub(crate) table: &'static ExtTable,
}

pub struct ExtTable {
    pub(crate) type_id: fn() -> TypeId,
    pub(crate) drop: unsafe fn(*mut ExtHead),
    pub(crate) as_dyn: unsafe fn(*const ExtHead) -> *const dyn TensorExt,
}

#[repr(C)]
pub(crate) struct ExtBox<T> {
    pub(crate) head: ExtHead,
    pub(crate) value: T,
}

impl<T: TensorExt> ExtBox<T> {
    const LAYOUT: Layout = Layout::new::<ExtBox<T>>();

    /// A block of the pool that holds `value`.
    #[inline]
    pub(crate) fn new(value: T) -> NonNull<ExtBox<T>> {
        let Some(block) = pool::node_alloc(Self::LAYOUT) else { handle_alloc_error(Self::LAYOUT) };
        let fresh = block.cast::<ExtBox<T>>();
        // SAFETY: a fresh block of the right size.
        unsafe { fresh.write(ExtBox { head: ExtHead { table: Self::TABLE }, value }) };
        fresh
    }

    /// # Safety
    /// `p` came from `new` and is not used again.
    #[inline]
    pub(crate) unsafe fn free(p: *mut ExtBox<T>) {
        // SAFETY: the caller's promise.
        unsafe {
            ptr::drop_in_place(p);
            pool::node_free(NonNull::new_unchecked(p.cast()), Self::LAYOUT);
        }
    }

    pub(crate) const TABLE: &'static ExtTable = &ExtTable {
        type_id: TypeId::of::<T>,
        // SAFETY: called once, with a pointer that `ExtBox::<T>::new` gave.
        drop: |p| unsafe { ExtBox::<T>::free(p.cast()) },
        // SAFETY: `p` points to an ExtBox<T>.
        as_dyn: |p| unsafe { &raw const (*p.cast::<ExtBox<T>>()).value },
    };
}
