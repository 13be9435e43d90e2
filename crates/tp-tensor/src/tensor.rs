//! `Tensor`: a counted handle to a header over shared storage: its facts, and the slots of the layers above. How
//! tensors are made is in `make`.

use crate::base;
use crate::device::Device;
use crate::dim::{Dim, Dims};
use crate::dtype::DType;
use crate::header::{ExtHead, ExtVisitor, INLINE_DIMS, TensorHeader, ViewHeader, flag, keybits};
use crate::layout::Layout;
use crate::pool;
use crate::storage::{Storage, StorageHeader};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

/// A tensor: dtype, layout and device over shared, versioned storage. Cloning counts a reference and copies
/// nothing; kernels reach the data through raw pointers, for views may overlap.
#[repr(transparent)]
pub struct Tensor(pub(crate) NonNull<TensorHeader>);

// SAFETY: see `header`: shared fields are immutable or atomic; data races on elements are the kernels' duty,
// exactly as with NumPy arrays.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    // ---- facts ----

    #[inline]
    pub(crate) fn head(&self) -> &TensorHeader {
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

    /// A copy of the sizes; without a call for the usual few.
    #[inline]
    pub fn sizes_owned(&self) -> Dims {
        if self.ndim() > INLINE_DIMS {
            return Dims::from_slice(self.sizes());
        }
        // SAFETY: the inline arm has room for more than four, of which the first `ndim` are written.
        unsafe {
            let few = ptr::read(self.head().dims.inline.as_ptr().cast::<MaybeUninit<[i64; 4]>>());
            Dims::from_buf_and_len_unchecked(few, self.ndim())
        }
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
        Layout {
            sizes: Dims::from_slice(self.sizes()),
            strides: Dims::from_slice(self.strides()),
            offset: self.offset(),
        }
    }

    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.flag(flag::CONTIGUOUS)
    }

    #[inline]
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

    /// Stands for one sample of a batch inside of vmap.
    #[inline]
    pub fn is_batched(&self) -> bool {
        self.keys() & keybits::VMAP != 0
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

    /// One handle, one header over memory of its own that may be written, and no object of the host: nobody would notice
    /// a write.
    #[inline]
    pub fn is_unseen(&self) -> bool {
        self.ref_count() == 1
            && self.storage().live_headers() == 1
            && self.storage().is_private()
            && self.host().is_null()
    }

    // ---- flags, keys and slots for the layers above ----

    #[inline]
    pub fn keys(&self) -> u16 {
        self.head().keys.load(Ordering::Relaxed)
    }

    /// Dtype, rank, device, keys and contiguity in one number, to be compared with another tensor's at once.
    #[inline(always)]
    pub fn kind(&self) -> u64 {
        let head = self.head();
        // SAFETY: dtype, rank and device, four bytes side by side (`header` asserts it), written at construction.
        let type_bytes = unsafe { (&raw const head.dtype).cast::<u32>().read() };
        let contiguous = head.flags.load(Ordering::Relaxed) & flag::CONTIGUOUS;
        u64::from(type_bytes) | u64::from(self.keys()) << 32 | u64::from(contiguous) << 48
    }

    #[inline]
    pub(crate) fn flag(&self, bit: u16) -> bool {
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

    #[inline]
    pub fn needs_tracking(&self) -> bool {
        self.flag(flag::NEEDS_TRACKING)
    }

    #[inline]
    pub fn set_needs_tracking(&self) {
        self.head().flags.fetch_or(flag::NEEDS_TRACKING, Ordering::Relaxed);
    }

    /// Same for a tensor nobody else sees yet: a plain store.
    #[inline]
    pub fn mark_needs_tracking_fresh(&self) {
        let flags = &self.head().flags;
        flags.store(flags.load(Ordering::Relaxed) | flag::NEEDS_TRACKING, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_tracked(&self) -> bool {
        self.head().tracked.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn set_tracked(&self, on: bool) {
        self.head().tracked.store(on, Ordering::Relaxed);
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

    /// The tape's part of this tensor, if there is one. It lives as long as the tensor, unless it is garbage and `ext_clear`ed.
    #[inline]
    pub fn ext(&self) -> Option<NonNull<ExtHead>> {
        NonNull::new(self.head().ext.load(Ordering::Acquire))
    }

    /// Puts `new` in the place of `old`; false when something else is there.
    ///
    /// # Safety
    /// On success the tensor owns `new`, and whoever finds it there may use `old` as long as the tensor lives.
    pub unsafe fn ext_replace(&self, old: Option<NonNull<ExtHead>>, new: NonNull<ExtHead>) -> bool {
        let old = old.map_or(ptr::null_mut(), NonNull::as_ptr);
        let slot = &self.head().ext;
        slot.compare_exchange(old, new.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Gives the tape's part to a tensor that has none and that nobody else sees yet: a plain store.
    ///
    /// # Safety
    /// The tensor owns `new` from now on.
    #[inline]
    pub unsafe fn ext_install_fresh(&self, new: NonNull<ExtHead>) {
        let slot = &self.head().ext;
        debug_assert!(slot.load(Ordering::Relaxed).is_null());
        slot.store(new.as_ptr(), Ordering::Release);
    }

    /// Reports what the tape's part reaches, for the collector.
    pub fn ext_trace(&self, visit: &mut ExtVisitor<'_>) {
        if let Some(ext) = self.ext() {
            // SAFETY: installed, so it is alive.
            unsafe { (ext.as_ref().table.trace)(ext, visit) };
        }
    }

    /// Gives up the tape's part of a tensor that only garbage reaches.
    pub fn ext_clear(&self) {
        if let Some(ext) = NonNull::new(self.head().ext.swap(ptr::null_mut(), Ordering::AcqRel)) {
            // SAFETY: taken out, so it is ours.
            unsafe { (ext.as_ref().table.drop)(ext) };
        }
    }

    /// Gives the tape's part away to the caller.
    pub fn ext_take(&self) -> Option<NonNull<ExtHead>> {
        NonNull::new(self.head().ext.swap(ptr::null_mut(), Ordering::AcqRel))
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
        if let Some(ext) = NonNull::new(ext) {
            (ext.as_ref().table.drop)(ext);
        }
        let flags = *h.flags.get_mut();
        if flags & (flag::WIDE | flag::LINKED) != 0 {
            free_rare(head, flags);
        }
        let storage = h.storage;
        if flags & flag::EMBEDDED == 0 {
            pool::free(head.cast(), size_of::<ViewHeader>());
        }
        StorageHeader::release(storage);
    }
}

/// Gives up what few headers own.
unsafe fn free_rare(head: NonNull<TensorHeader>, flags: u16) {
    // SAFETY: last handle; the flags say what there is.
    unsafe {
        if flags & flag::WIDE != 0 {
            ManuallyDrop::drop(&mut (*head.as_ptr()).dims.wide);
        }
        if flags & flag::LINKED != 0 {
            base::give_up(head, flags);
        }
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({})", crate::TensorSpec::of(self))
    }
}
