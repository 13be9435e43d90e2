//! Making tensors: fresh, over foreign memory, without data, and as views of others. The header is written here,
//! field by field, before anybody else sees it.

use crate::device::{Device, DeviceKind};
use crate::dim::{Dim, Dims};
use crate::dtype::DType;
use crate::error::TensorError;
use crate::header::{DimsCell, INLINE_DIMS, TensorHeader, ViewHeader, flag, keybits};
use crate::layout::{self, Layout};
use crate::pool;
use crate::storage::{Storage, StorageHeader, StorageKind, StorageOwner};
use crate::symbols;
use crate::tensor::Tensor;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, Ordering};

type Result<T> = std::result::Result<T, TensorError>;

impl Tensor {
    /// Uninitialised C-contiguous tensor.
    #[inline]
    pub fn empty(sizes: &[i64], dtype: DType, device: Device) -> Result<Tensor> {
        let numel = layout::checked_numel(sizes, dtype.itemsize())?;
        let nbytes = numel as usize * dtype.itemsize();
        let storage = match device.kind {
            DeviceKind::Cpu => StorageHeader::new_cpu(nbytes)?,
            _ => StorageHeader::new_on(nbytes, device)?,
        };
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

    /// Uninitialised CPU tensor of one element and no dimension.
    #[inline]
    pub fn empty_scalar(dtype: DType) -> Result<Tensor> {
        let storage = StorageHeader::new_cpu(dtype.itemsize())?;
        Ok(Self::first(storage, &[], None, 1, 0, dtype, Device::CPU))
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
        let known = !symbols::given(sizes);
        let numel = if known { layout::checked_numel(sizes, dtype.itemsize())? } else { 0 };
        let storage = StorageHeader::new_fake(numel as usize * dtype.itemsize(), device, id)?;
        let t = Self::first(storage, sizes, Some(strides), numel, 0, dtype, device);
        t.head().keys.store(keybits::CAPTURE | keybits::META, Ordering::Relaxed);
        Ok(t)
    }

    /// A contiguous tensor without data that stands for what `owner` holds; calls on it pass the Vmap key.
    pub fn stand_in(
        sizes: &[i64],
        dtype: DType,
        device: Device,
        owner: Box<dyn StorageOwner>,
    ) -> Result<Tensor> {
        let known = !symbols::given(sizes);
        let numel = if known { layout::checked_numel(sizes, dtype.itemsize())? } else { 0 };
        let storage = StorageHeader::new_stand_in(numel as usize * dtype.itemsize(), device, owner)?;
        let t = Self::first(storage, sizes, None, numel, 0, dtype, device);
        t.head().keys.store(keybits::CAPTURE | keybits::META | keybits::VMAP, Ordering::Relaxed);
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
        if layout.sizes.len() > layout::MAX_DIMS {
            return Err(TensorError::TooManyDims(layout.sizes.len()));
        }
        let storage = self.head().storage;
        // SAFETY: the storage lives while self does.
        let s = unsafe { storage.as_ref() };
        let symbolic = layout.sizes.iter().any(|&d| Dim::from_raw(d).is_symbol());
        if symbolic && (Storage(s).kind() != StorageKind::Fake || !symbols::given(&layout.sizes)) {
            return Err(no_size(&layout.sizes));
        }
        let numel = if symbolic { 0 } else { layout.numel() };
        // Axes of stride 0 reach no further, but what the tensor would take in a row has a number of bytes.
        if numel.checked_mul(dtype.itemsize() as i64).is_none() {
            return Err(TensorError::TooLarge(layout.sizes.clone()));
        }
        // A fake has no memory to reach outside of, and its storage may stand for a part of a larger one.
        if !symbolic && Storage(s).kind() != StorageKind::Fake {
            check_reach(layout, dtype, Storage(s).nbytes())?;
        }
        let block = pool::try_alloc(size_of::<ViewHeader>())
            .ok_or(TensorError::OutOfMemory { bytes: size_of::<ViewHeader>(), device: self.device() })?;
        s.retain();
        let head = block.cast::<TensorHeader>();
        // SAFETY: a fresh block of the right size.
        unsafe {
            write_header(
                head.as_ptr(),
                storage,
                &layout.sizes,
                Some(&layout.strides),
                numel,
                layout.offset,
                dtype,
                self.device(),
                flag::VIEW,
            );
        }
        let out = Tensor(head);
        let keys = self.head().keys.load(Ordering::Relaxed) & !(keybits::AUTOGRAD | keybits::VMAP);
        out.head().keys.store(keys, Ordering::Relaxed);
        Ok(out)
    }

    /// The same data under a new header without history.
    #[inline]
    pub fn detach(&self) -> Tensor {
        let view = self.header_over(self.sizes(), self.strides(), self.numel());
        view.unwrap_or_else(|_| self.clone())
    }

    /// A view of the wanted sizes in which new axes and axes of size 1 have stride 0. None where that is not all
    /// there is to it: more than four axes, sizes that do not fit, symbols.
    #[inline]
    pub fn broadcast(&self, to: &[i64]) -> Option<Tensor> {
        let (from, lead) = (self.ndim(), to.len().checked_sub(self.ndim())?);
        if to.len() > INLINE_DIMS {
            return None;
        }
        let mut strides = [0; INLINE_DIMS];
        for axis in 0..from {
            let size = self.sizes()[axis];
            if to[lead + axis] == size {
                strides[lead + axis] = self.strides()[axis];
            } else if size != 1 {
                return None;
            }
        }
        let numel = layout::checked_numel(to, self.dtype().itemsize()).ok()?;
        self.header_over(to, &strides[..to.len()], numel).ok()
    }

    /// A new header over the same data. The caller knows that the layout reaches no further than this tensor's.
    #[inline]
    fn header_over(&self, sizes: &[i64], strides: &[i64], numel: i64) -> Result<Tensor> {
        let h = self.head();
        let bytes = size_of::<ViewHeader>();
        let block =
            pool::try_alloc(bytes).ok_or(TensorError::OutOfMemory { bytes, device: self.device() })?;
        let head = block.cast::<TensorHeader>();
        // SAFETY: a fresh block of the right size; the storage lives while this tensor does.
        unsafe {
            h.storage.as_ref().retain();
            let strides = Some(strides);
            write_header(
                head.as_ptr(),
                h.storage,
                sizes,
                strides,
                numel,
                h.offset,
                h.dtype,
                h.device,
                flag::VIEW,
            );
        }
        let out = Tensor(head);
        let keys = h.keys.load(Ordering::Relaxed) & !(keybits::AUTOGRAD | keybits::VMAP);
        out.head().keys.store(keys, Ordering::Relaxed);
        Ok(out)
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
}

/// A tensor with data has known sizes.
#[cold]
fn no_size(sizes: &[i64]) -> TensorError {
    let symbol = sizes.iter().find(|&&d| symbols::given(&[d]));
    symbol.map_or_else(|| TensorError::NegativeSize(sizes.into()), |d| TensorError::Symbolic(*d))
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
        low >= 0
            && (layout.sizes.contains(&0)
                || high.checked_mul(item).is_some_and(|end| end as u64 <= nbytes as u64))
    });
    if fits { Ok(()) } else { Err(out_of_storage(layout, nbytes)) }
}

/// # Safety
/// `p` is a writable block of a header's size; the caller hands over one storage reference.
#[inline(always)]
pub(crate) unsafe fn write_header(
    p: *mut TensorHeader,
    storage: NonNull<StorageHeader>,
    sizes: &[i64],
    strides: Option<&[i64]>,
    numel: i64,
    offset: i64,
    dtype: DType,
    device: Device,
    flags: u16,
) {
    let contiguous = match strides {
        None => true,
        Some(strides) => layout::is_contiguous(sizes, strides),
    };
    let flags = flags
        | if contiguous { flag::CONTIGUOUS } else { 0 }
        | if sizes.len() > INLINE_DIMS { flag::WIDE } else { 0 };
    let keys = match device.kind {
        DeviceKind::Cpu => keybits::CPU,
        DeviceKind::Cuda => keybits::CUDA,
        DeviceKind::Meta => keybits::META,
    };
    // SAFETY: in bounds and not shared yet; field by field to avoid a copy through the stack.
    unsafe {
        let data = storage.as_ref().data();
        let start =
            if data.is_null() { data } else { data.offset(offset as isize * dtype.itemsize() as isize) };
        ptr::write(&raw mut (*p).refs, AtomicU32::new(1));
        ptr::write(&raw mut (*p).flags, AtomicU16::new(flags));
        ptr::write(&raw mut (*p).tracked, AtomicBool::new(false));
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
