//! The fixed header of a tensor: counts, flag bits, dtype, layout, and three slots that the layers above fill
//! in (`ext` the tape, `host` the Python object, `trace` the capture). This crate never looks into them.
//!
//! # Safety of the shared fields
//! Everything a call reads on its way (dtype, layout, data pointer) is written once, before the header is
//! shared. What changes later is atomic: counts, flags, keys, `ext` (installed once by compare-and-swap),
//! `host` (set and cleared by the door under the interpreter lock) and `trace`.

use crate::device::Device;
use crate::dtype::DType;
use crate::storage::StorageHeader;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64};

/// Bits of `TensorHeader::keys`: which layers a call on this tensor must pass, highest first. tp-dispatch gives
/// them their meaning.
pub mod keybits {
    pub const CPU: u16 = 1 << 0;
    pub const CUDA: u16 = 1 << 1;
    pub const META: u16 = 1 << 2;
    pub const CAPTURE: u16 = 1 << 3;
    pub const AUTOGRAD: u16 = 1 << 4;
    pub const SEGMENT: u16 = 1 << 5;
    pub const AUTOCAST: u16 = 1 << 6;
    pub const VMAP: u16 = 1 << 7;
}

pub(crate) mod flag {
    /// The header lies inside its storage's block and is not freed by itself.
    pub const EMBEDDED: u16 = 1 << 0;
    pub const CONTIGUOUS: u16 = 1 << 1;
    /// Every shell this tensor ever gets must be tracked by the cyclic collector.
    pub const NEEDS_TRACKING: u16 = 1 << 2;
    /// Sizes and strides are in a heap block.
    pub const WIDE: u16 = 1 << 3;
    /// A view made by a view operation of another tensor (shares its storage on purpose).
    pub const VIEW: u16 = 1 << 4;
    /// It owns a reference to the tensor it is a view of (`base`).
    pub const LINKED: u16 = 1 << 5;
    /// That reference is one to the base's Python object.
    pub const HANDED: u16 = 1 << 6;
    /// Views that are made of it now do not get to own it.
    pub const ALONE: u16 = 1 << 7;
}

pub(crate) const INLINE_DIMS: usize = 4;

#[repr(C)]
pub struct TensorHeader {
    pub(crate) refs: AtomicU32,
    pub(crate) flags: AtomicU16,
    /// Its present Python object is tracked by the cyclic collector (tracking twice is fatal). The door's alone.
    pub(crate) tracked: AtomicBool,
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
/// `Tensor::kind` reads dtype, rank and device as one word.
const _: () = assert!(
    offset_of!(TensorHeader, dtype) % 4 == 0
        && offset_of!(TensorHeader, keys) == offset_of!(TensorHeader, dtype) + 4
);

/// A header that is not the first of its storage has room behind it for the tensor it is a view of.
#[repr(C)]
pub(crate) struct ViewHeader {
    pub(crate) head: TensorHeader,
    /// Written where the flag `LINKED` is set.
    pub(crate) base: std::mem::MaybeUninit<crate::Tensor>,
}

/// First field of whatever the tape keeps on a tensor: what to do with it, so that the slot is one pointer.
#[repr(C)]
pub struct ExtHead {
    pub table: &'static ExtTable,
}

pub struct ExtTable {
    /// Gives up the reference that the tensor owned.
    pub drop: unsafe fn(NonNull<ExtHead>),
    /// Reports the host objects reachable only through it, for the cyclic collector.
    pub trace: unsafe fn(NonNull<ExtHead>, &mut ExtVisitor<'_>),
}

/// Called with the opaque host pointer of each object reached.
pub type ExtVisitor<'a> = dyn FnMut(*mut ()) + 'a;
