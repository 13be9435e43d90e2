//! Memory from the operating system: map, unmap, discard, and the two counters over them.
//! No size classes, lists or locks here.
//!
//! Safety: every pointer given to `unmap` or `discard` is a page-aligned range inside a mapping made here
//! that nobody uses any more.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Granularity of everything the pool takes from the system: a multiple of the real page size.
pub const PAGE: usize = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) { 4096 } else { 65536 };

/// Size of a transparent huge page; mappings of at least this size are aligned to it and ask for it.
pub const HUGE: usize = 2 << 20;

static MAPPED: AtomicUsize = AtomicUsize::new(0);
static MAPS: AtomicU64 = AtomicU64::new(0);

/// Bytes mapped at the moment.
pub fn mapped_bytes() -> usize {
    MAPPED.load(Ordering::Relaxed)
}

/// Mappings made so far.
pub fn maps() -> u64 {
    MAPS.load(Ordering::Relaxed)
}

/// Physical memory of the machine, or None where the system does not say.
pub fn physical_bytes() -> Option<usize> {
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    usize::try_from(pages).ok()?.checked_mul(usize::try_from(page).ok()?).filter(|&bytes| bytes > 0)
}

/// Maps `bytes` (a multiple of `PAGE`) of zeroed memory at a multiple of `align` (a power of two).
pub fn map(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    debug_assert!(bytes.is_multiple_of(PAGE) && align.is_power_of_two() && align >= PAGE);
    let ptr = match map_raw(bytes)? {
        ptr if ptr.addr().get().is_multiple_of(align) => ptr,
        ptr => {
            unmap_raw(ptr, bytes);
            map_trimmed(bytes, align)?
        }
    };
    if bytes >= HUGE {
        advise_huge(ptr, bytes);
    }
    MAPPED.fetch_add(bytes, Ordering::Relaxed);
    MAPS.fetch_add(1, Ordering::Relaxed);
    Some(ptr)
}

/// Maps more than asked for and gives back what lies before and after the aligned part.
fn map_trimmed(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    let padded = bytes.checked_add(align)?;
    let base = map_raw(padded)?;
    let front = base.addr().get().next_multiple_of(align) - base.addr().get();
    let ptr = unsafe { base.add(front) };
    if front > 0 {
        unmap_raw(base, front);
    }
    if padded > front + bytes {
        unmap_raw(unsafe { ptr.add(bytes) }, padded - front - bytes);
    }
    Some(ptr)
}

fn map_raw(bytes: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
    let ptr = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if ptr == libc::MAP_FAILED { None } else { NonNull::new(ptr.cast()) }
}

/// False when the kernel refuses (splitting a mapping can exceed the mapping limit).
fn unmap_raw(ptr: NonNull<u8>, bytes: usize) -> bool {
    unsafe { libc::munmap(ptr.as_ptr().cast(), bytes) == 0 }
}

fn advise_huge(ptr: NonNull<u8>, bytes: usize) {
    // Advice only: a kernel without huge pages answers with an error that changes nothing.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::madvise(ptr.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (ptr, bytes);
}

/// Returns a range made by `map` to the system.
///
/// # Safety
/// The range came from one `map` call with the same size and is not used again.
pub unsafe fn unmap(ptr: NonNull<u8>, bytes: usize) {
    if unmap_raw(ptr, bytes) {
        MAPPED.fetch_sub(bytes, Ordering::Relaxed);
    } else {
        // The address range stays ours for ever, its memory does not.
        unsafe { discard(ptr, bytes) };
    }
}

/// Gives back the memory of a range but keeps the addresses. True if it now reads as zero.
///
/// # Safety
/// The range lies inside a live mapping and its contents are not needed.
pub unsafe fn discard(ptr: NonNull<u8>, bytes: usize) -> bool {
    // Only Linux promises zeros afterwards; a locked mapping is refused and keeps its contents.
    let done = unsafe { libc::madvise(ptr.as_ptr().cast(), bytes, libc::MADV_DONTNEED) == 0 };
    done && cfg!(target_os = "linux")
}
