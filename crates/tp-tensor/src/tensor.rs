//! `Tensor`: a counted handle to a header over shared storage, and the ways to make one.

use crate::device::{Device, DeviceKind};
use crate::dim::{Dim, Dims};
use crate::dtype::DType;
use crate::error::TensorError;
use crate::header::{DimsCell, ExtBox, ExtHead, INLINE_DIMS, TensorExt, TensorHeader, flag, keybits};
use crate::layout::{self, Layout};
use crate::pool;
use crate::storage::{Storage, StorageHeader, StorageOwner};
use std::any::TypeId;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

type Result<T> = std::result::Result<T, TensorError>;

/// A tensor: dtype, layout and device over shared, versioned storage. Cloning counts a reference and copies
/// nothing; kernels reach the data through raw pointers, for views may overlap.
#[repr(transparent)]
pub struct Tensor(NonNull<TensorHeader>);

// SAFETY: see `header`: shared fields are immutable or atomic; data races on elements are the kernels' duty,
// exactly as with NumPy arrays.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    // ---- construction ----

    /// Uninitialised C-contiguous tensor.
    #[inline]
    pub fn empty(sizes: &[i64], dtype: DType, device: Device) -> Result<Tensor> {
        let numel = layout::checked_numel(sizes, dtype.itemsize())?;
        let nbytes = numel as usize * dtype.itemsize();
        let storage = StorageHeader::new_on(nbytes, device)?;
        Ok(Self::first(storage, sizes, None, numel, 0, dtype, device))
    }

    /// Uninitialised CPU tensor with the sizes of `like` (contiguous). No overflow check is needed when the
    /// item size does not grow.
    #[inline]
    pub fn empty_like_contiguous(like: &Tensor, dtype: DType) -> Result<Tensor> {
        if dtype.itemsize() > like.dtype().itemsize() {
            return Self::empty(like.sizes(), dtype, Device::CPU);
        }
        let storage = StorageHeader::new_cpu(like.numel() as usize * dtype.itemsize())?;
        Ok(Self::first(storage, like.sizes(), None, like.numel(), 0, dtype, Device::CPU))
    }

    /// Uninitialised tensor with given strides over a storage just large enough.
    pub fn empty_strided(sizes: &[i64], strides: &[i64], dtype: DType, device: Device) -> Result<Tensor> {
        let numel = layout::checked_numel(sizes, dtype.itemsize())?;
        let layout = Layout { sizes: sizes.into(), strides: strides.into(), offset: 0 };
        let too_large = || TensorError::TooLarge(sizes.into());
        let (low, high) = layout.extent().ok_or_else(too_large)?;
        let span = high.checked_mul(dtype.itemsize() as i64).ok_or_else(too_large)?;
        if low < 0 {
            return Err(out_of_storage(&layout, 0));
        }
        let storage = StorageHeader::new_on(span as usize, device)?;
        Ok(Self::first(storage, sizes, Some(strides), numel, 0, dtype, device))
    }

    /// Shapes only: storage without data. `id` is the capture's name for the storage.
    pub fn fake(sizes: &[i64], strides: &[i64], dtype: DType, device: Device, id: u32) -> Result<Tensor> {
        let known = sizes.iter().all(|&s| !Dim::from_raw(s).is_symbol());
        let numel = if known { layout::checked_numel(sizes, dtype.itemsize())? } else { 0 };
        let storage = StorageHeader::new_fake(numel as usize * dtype.itemsize(), device, id)?;
        let t = Self::first(storage, sizes, Some(strides), numel, 0, dtype, device);
        t.head().keys.store(keybits::CAPTURE | keybits::META, Ordering::Relaxed);
        Ok(t)
    }

    /// Memory that somebody else owns. `nbytes` is what may be reached from `data`.
    ///
    /// # Safety
    /// `data` is valid for `nbytes` while `owner` lives, and writable unless `readonly`.
    pub unsafe fn from_foreign(
        data: *mut u8,
        nbytes: usize,
        layout: &Layout,
        dtype: DType,
        device: Device,
        owner: Box<dyn StorageOwner>,
        readonly: bool,
    ) -> Result<Tensor> {
        let numel = layout::checked_numel(&layout.sizes, dtype.itemsize())?;
        check_reach(layout, dtype, nbytes)?;
        let storage = StorageHeader::new_foreign(data, nbytes, device, owner, readonly)?;
        Ok(Self::first(storage, &layout.sizes, Some(&layout.strides), numel, layout.offset, dtype, device))
    }

    /// Another layout over the same storage, sharing its version counter. Flags of the tape are not taken over.
    #[inline]
    pub fn view(&self, layout: &Layout) -> Result<Tensor> {
        self.view_as(layout, self.dtype())
    }

    pub fn view_as(&self, layout: &Layout, dtype: DType) -> Result<Tensor> {
        let storage = self.head().storage;
        // SAFETY: the storage lives while self does.
        let s = unsafe { storage.as_ref() };
        let symbolic = layout.sizes.iter().any(|&d| Dim::from_raw(d).is_symbol());
        let numel = if symbolic { 0 } else { layout.numel() };
        if !symbolic {
            check_reach(layout, dtype, Storage(s).nbytes())?;
        }
        let block = pool::try_alloc(size_of::<TensorHeader>())
            .ok_or(TensorError::OutOfMemory { bytes: size_of::<TensorHeader>(), device: self.device() })?;
        s.retain();
        let head = block.cast::<TensorHeader>();
        // SAFETY: a fresh block of the right size.
        unsafe {
            write_header(head.as_ptr(), storage, &layout.sizes, Some(&layout.strides), numel, layout.offset, dtype, self.device(), flag::VIEW);
        }
        let out = Tensor(head);
        let keys = self.head().keys.load(Ordering::Relaxed) & !(keybits::AUTOGRAD | keybits::VMAP);
        out.head().keys.store(keys, Ordering::Relaxed);
        Ok(out)
    }

    /// The same data under a new header without history.
    #[inline]
    pub fn detach(&self) -> Tensor {
        self.view(&self.layout()).unwrap_or_else(|_| self.clone())
    }

    #[inline]
    fn first(
        storage: NonNull<StorageHeader>,
        sizes: &[i64],
        strides: Option<&[i64]>,
        numel: i64,
        offset: i64,
        dtype: DType,
        device: Device,
    ) -> Tensor {
        let head = StorageHeader::first_header(storage);
        // SAFETY: the storage is fresh: its first header is ours to write, and its one reference becomes ours.
        unsafe {
            write_header(head, storage, sizes, strides, numel, offset, dtype, device, flag::EMBEDDED);
            Tensor(NonNull::new_unchecked(head))
        }
    }

    // ---- facts ----

    #[inline]
    fn head(&self) -> &TensorHeader {
        // SAFETY: alive while a handle exists.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub fn dtype(&self) -> DType {
        self.head().dtype
    }

    #[inline]
    pub fn device(&self) -> Device {
        self.head().device
    }

    #[inline]
    pub fn ndim(&self) -> usize {
        self.head().ndim as usize
    }

    /// Number of elements (0 while a size is symbolic).
    #[inline]
    pub fn numel(&self) -> i64 {
        self.head().numel
    }

    #[inline]
    pub fn nbytes(&self) -> usize {
        self.numel() as usize * self.dtype().itemsize()
    }

    #[inline]
    fn raw_dims(&self) -> *const i64 {
        let h = self.head();
        // SAFETY: the flag says which arm of the union is alive.
        unsafe { if h.ndim as usize > INLINE_DIMS { h.dims.wide.as_ptr() } else { h.dims.inline.as_ptr() } }
    }

    #[inline]
    pub fn sizes(&self) -> &[i64] {
        // SAFETY: `ndim` sizes are written at construction.
        unsafe { std::slice::from_raw_parts(self.raw_dims(), self.ndim()) }
    }

    /// Strides in elements.
    #[inline]
    pub fn strides(&self) -> &[i64] {
        // SAFETY: strides follow the sizes.
        unsafe { std::slice::from_raw_parts(self.raw_dims().add(self.ndim()), self.ndim()) }
    }

    pub fn dims(&self) -> &[Dim] {
        Dim::slice(self.sizes())
    }

    #[inline]
    pub fn offset(&self) -> i64 {
        self.head().offset
    }

    pub fn layout(&self) -> Layout {
        Layout { sizes: self.sizes().into(), strides: self.strides().into(), offset: self.offset() }
    }

    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.flag(flag::CONTIGUOUS)
    }

    pub fn is_view(&self) -> bool {
        self.flag(flag::VIEW)
    }

    #[inline]
    pub fn storage(&self) -> Storage<'_> {
        // SAFETY: the storage lives while a header over it does.
        Storage(unsafe { self.head().storage.as_ref() })
    }

    #[inline]
    pub fn is_fake(&self) -> bool {
        self.head().keys.load(Ordering::Relaxed) & keybits::CAPTURE != 0
    }

    pub fn shares_storage(&self, other: &Tensor) -> bool {
        self.head().storage == other.head().storage
    }

    /// Address of element 0; null for fakes.
    #[inline]
    pub fn data_ptr(&self) -> *mut u8 {
        self.head().data
    }

    /// Two handles of one header.
    #[inline]
    pub fn same(&self, other: &Tensor) -> bool {
        self.0 == other.0
    }

    /// Identity of the header while it lives.
    #[inline]
    pub fn id(&self) -> usize {
        self.0.as_ptr() as usize
    }

    #[inline]
    pub fn ref_count(&self) -> u32 {
        self.head().refs.load(Ordering::Acquire)
    }

    // ---- flags, keys and slots for the layers above ----

    #[inline]
    pub fn keys(&self) -> u16 {
        self.head().keys.load(Ordering::Relaxed)
    }

    #[inline]
    fn flag(&self, bit: u32) -> bool {
        self.head().flags.load(Ordering::Relaxed) & bit != 0
    }

    #[inline]
    pub fn requires_grad(&self) -> bool {
        self.keys() & keybits::AUTOGRAD != 0
    }

    /// Routes calls on this tensor through the Autograd key, or no longer.
    #[inline]
    pub fn set_requires_grad(&self, on: bool) {
        if on {
            self.head().keys.fetch_or(keybits::AUTOGRAD, Ordering::Relaxed);
        } else {
            self.head().keys.fetch_and(!keybits::AUTOGRAD, Ordering::Relaxed);
        }
    }

    /// Same as `set_requires_grad(true)` for a tensor nobody else sees yet: a plain store.
    #[inline]
    pub fn mark_requires_grad_fresh(&self) {
        let keys = &self.head().keys;
        keys.store(keys.load(Ordering::Relaxed) | keybits::AUTOGRAD, Ordering::Relaxed);
    }

    pub fn needs_tracking(&self) -> bool {
        self.flag(flag::NEEDS_TRACKING)
    }

    pub fn set_needs_tracking(&self) {
        self.head().flags.fetch_or(flag::NEEDS_TRACKING, Ordering::Relaxed);
    }

    pub fn is_tracked(&self) -> bool {
        self.flag(flag::TRACKED)
    }

    pub fn set_tracked(&self, on: bool) {
        if on {
            self.head().flags.fetch_or(flag::TRACKED, Ordering::Relaxed);
        } else {
            self.head().flags.fetch_and(!flag::TRACKED, Ordering::Relaxed);
        }
    }

    /// The Python object of this tensor, not owned; set and cleared by the door alone.
    #[inline]
    pub fn host(&self) -> *mut () {
        self.head().host.load(Ordering::Acquire)
    }

    #[inline]
    pub fn set_host(&self, host: *mut ()) {
        self.head().host.store(host, Ordering::Release);
    }

    /// What the capture calls this tensor (0 = not captured).
    #[inline]
    pub fn trace_id(&self) -> u64 {
        self.head().trace.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn set_trace_id(&self, id: u64) {
        self.head().trace.store(id, Ordering::Relaxed);
    }

    /// The tape's part of this tensor, if any was installed.
    #[inline]
    pub fn ext<T: TensorExt>(&self) -> Option<&T> {
        let p = self.head().ext.load(Ordering::Acquire);
        // SAFETY: an installed extension stays until the header dies, and its table names its type.
        unsafe {
            if p.is_null() || ((*p).table.type_id)() != TypeId::of::<T>() {
                return None;
            }
            Some(&(*p.cast::<ExtBox<T>>()).value)
        }
    }

    /// Installs the extension unless there is one already; returns the one that holds.
    pub fn ext_or_install<T: TensorExt>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        if self.head().ext.load(Ordering::Acquire).is_null() {
            let fresh = Box::into_raw(Box::new(ExtBox { head: ExtHead { table: ExtBox::<T>::TABLE }, value: make() }));
            let slot = &self.head().ext;
            if slot.compare_exchange(ptr::null_mut(), fresh.cast(), Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: nobody else saw it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
        self.ext::<T>()
    }

    /// Whatever extension there is, for the collector.
    pub fn ext_dyn(&self) -> Option<&dyn TensorExt> {
        let p = self.head().ext.load(Ordering::Acquire);
        // SAFETY: see `ext`.
        unsafe { if p.is_null() { None } else { Some(&*((*p).table.as_dyn)(p)) } }
    }

    /// Gives the handle away as a raw pointer that owns one reference.
    #[inline]
    pub fn into_raw(self) -> *mut () {
        ManuallyDrop::new(self).0.as_ptr().cast()
    }

    /// # Safety
    /// `raw` came from `into_raw` and its reference has not been taken back yet.
    #[inline]
    pub unsafe fn from_raw(raw: *mut ()) -> Tensor {
        // SAFETY: the caller's promise.
        Tensor(unsafe { NonNull::new_unchecked(raw.cast()) })
    }
}

fn out_of_storage(layout: &Layout, nbytes: usize) -> TensorError {
    TensorError::OutOfStorage {
        sizes: layout.sizes.clone(),
        strides: layout.strides.clone(),
        offset: layout.offset,
        nbytes,
    }
}

fn check_reach(layout: &Layout, dtype: DType, nbytes: usize) -> Result<()> {
    let item = dtype.itemsize() as i64;
    let fits = layout.extent().is_some_and(|(low, high)| {
        low >= 0 && (layout.sizes.contains(&0) || high.checked_mul(item).is_some_and(|end| end as u64 <= nbytes as u64))
    });
    if fits { Ok(()) } else { Err(out_of_storage(layout, nbytes)) }
}

/// # Safety
/// `p` is a writable block of a header's size; the caller hands over one storage reference.
#[inline(always)]
unsafe fn write_header(
    p: *mut TensorHeader,
    storage: NonNull<StorageHeader>,
    sizes: &[i64],
    strides: Option<&[i64]>,
    numel: i64,
    offset: i64,
    dtype: DType,
    device: Device,
    flags: u32,
) {
    let contiguous = match strides {
        None => true,
        Some(strides) => layout::is_contiguous(sizes, strides),
    };
    let flags = flags | if contiguous { flag::CONTIGUOUS } else { 0 } | if sizes.len() > INLINE_DIMS { flag::WIDE } else { 0 };
    let keys = match device.kind {
        DeviceKind::Cpu => keybits::CPU,
        DeviceKind::Cuda => keybits::CUDA,
        DeviceKind::Meta => keybits::META,
    };
    // SAFETY: in bounds and not shared yet; field by field to avoid a copy through the stack.
    unsafe {
        let data = storage.as_ref().data();
        let start = if data.is_null() { data } else { data.offset(offset as isize * dtype.itemsize() as isize) };
        ptr::write(&raw mut (*p).refs, AtomicU32::new(1));
        ptr::write(&raw mut (*p).flags, AtomicU32::new(flags));
        ptr::write(&raw mut (*p).storage, storage);
        ptr::write(&raw mut (*p).data, start);
        ptr::write(&raw mut (*p).numel, numel);
        ptr::write(&raw mut (*p).dtype, dtype);
        ptr::write(&raw mut (*p).ndim, sizes.len() as u8);
        ptr::write(&raw mut (*p).device, device);
        ptr::write(&raw mut (*p).keys, AtomicU16::new(keys));
        ptr::write(&raw mut (*p).ext, AtomicPtr::new(ptr::null_mut()));
        ptr::write(&raw mut (*p).host, AtomicPtr::new(ptr::null_mut()));
        ptr::write(&raw mut (*p).trace, AtomicU64::new(0));
        ptr::write(&raw mut (*p).offset, offset);
        write_dims(&raw mut (*p).dims, sizes, strides);
    }
}

#[inline(always)]
unsafe fn write_dims(cell: *mut DimsCell, sizes: &[i64], strides: Option<&[i64]>) {
    let n = sizes.len();
    if n > INLINE_DIMS {
        let strides = strides.map_or_else(|| layout::contiguous_strides(sizes), Dims::from_slice);
        let all: Box<[i64]> = sizes.iter().chain(strides.iter()).copied().collect();
        // SAFETY: the caller's block.
        unsafe { ptr::write(&raw mut (*cell).wide, ManuallyDrop::new(all)) };
        return;
    }
    let out = cell.cast::<i64>();
    let mut step = 1i64;
    for axis in (0..n).rev() {
        // SAFETY: 2 * n <= 8 slots.
        unsafe {
            *out.add(axis) = sizes[axis];
            *out.add(n + axis) = match strides {
                Some(strides) => strides[axis],
                None => step,
            };
        }
        step = step.wrapping_mul(sizes[axis].max(1));
    }
}

impl Clone for Tensor {
    #[inline]
    fn clone(&self) -> Tensor {
        self.head().refs.fetch_add(1, Ordering::Relaxed);
        Tensor(self.0)
    }
}

impl Drop for Tensor {
    #[inline]
    fn drop(&mut self) {
        let head = self.head();
        // A sole owner cannot be joined by anyone, so the atomic subtraction can be saved.
        if head.refs.load(Ordering::Acquire) != 1 && head.refs.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        // SAFETY: this was the last handle.
        unsafe { free_header(self.0) }
    }
}

#[inline]
unsafe fn free_header(head: NonNull<TensorHeader>) {
    // SAFETY: last handle: nobody else reads the header now.
    unsafe {
        let h = &mut *head.as_ptr();
        let ext = *h.ext.get_mut();
        if !ext.is_null() {
            ((*ext).table.drop)(ext);
        }
        let flags = *h.flags.get_mut();
        if flags & flag::WIDE != 0 {
            ManuallyDrop::drop(&mut h.dims.wide);
        }
        let storage = h.storage;
        if flags & flag::EMBEDDED == 0 {
            pool::free(head.cast(), size_of::<TensorHeader>());
        }
        StorageHeader::release(storage);
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({})", crate::TensorSpec::of(self))
    }
}
