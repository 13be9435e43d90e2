//! Large buffers (above 32 KiB): a cache of freed buffers by exact size, dropped least recently used first
//! when it exceeds its cap. No small blocks here.
//!
//! Safety: a cached buffer belongs to the cache alone, so its first bytes hold the list links. A buffer on
//! its way to the system has left every list.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::central::{self, Central};
use super::class::{LARGE_CLASSES, RUN_MAX, large_class, large_size};
use super::extent::Run;
use super::os::{self, HUGE, PAGE};

/// Links of a cached buffer, written into the buffer.
struct Cached {
    size: usize,
    newer: *mut Cached,
    older: *mut Cached,
    /// Neighbours among the buffers of the same size.
    above: *mut Cached,
    below: *mut Cached,
}

/// Freed large buffers, by size and by age, and the counters of the live ones.
pub struct LargeCache {
    tops: [*mut Cached; LARGE_CLASSES],
    newest: *mut Cached,
    oldest: *mut Cached,
    pub cached_bytes: usize,
    pub live_blocks: usize,
    pub live_bytes: usize,
    /// Requests answered from the cache so far.
    pub reused: u64,
}

/// Not set yet: the default is computed on first use.
const UNSET: usize = usize::MAX;
static CAP: AtomicUsize = AtomicUsize::new(UNSET);

impl LargeCache {
    pub const fn new() -> Self {
        LargeCache {
            tops: [ptr::null_mut(); LARGE_CLASSES],
            newest: ptr::null_mut(),
            oldest: ptr::null_mut(),
            cached_bytes: 0,
            live_blocks: 0,
            live_bytes: 0,
            reused: 0,
        }
    }

    fn push(&mut self, ptr: NonNull<u8>, size: usize) {
        let node: *mut Cached = ptr.as_ptr().cast();
        let top = &mut self.tops[large_class(size)];
        unsafe {
            node.write(Cached {
                size,
                newer: ptr::null_mut(),
                older: self.newest,
                above: ptr::null_mut(),
                below: *top,
            });
            if !(*top).is_null() {
                (**top).above = node;
            }
            if self.newest.is_null() {
                self.oldest = node;
            } else {
                (*self.newest).newer = node;
            }
        }
        *top = node;
        self.newest = node;
        self.cached_bytes += size;
    }

    /// The most recently freed buffer of this size.
    fn take(&mut self, size: usize) -> Option<NonNull<u8>> {
        let node = NonNull::new(self.tops[large_class(size)])?;
        self.remove(node.as_ptr());
        Some(node.cast())
    }

    /// The least recently freed buffer, while more than `cap` bytes are cached.
    fn take_over(&mut self, cap: usize) -> Option<(NonNull<u8>, usize)> {
        let node = NonNull::new(self.oldest).filter(|_| self.cached_bytes > cap)?;
        let size = unsafe { node.as_ref() }.size;
        self.remove(node.as_ptr());
        Some((node.cast(), size))
    }

    fn remove(&mut self, node: *mut Cached) {
        let Cached { size, newer, older, above, below } = unsafe { node.read() };
        unsafe {
            match newer.is_null() {
                true => self.newest = older,
                false => (*newer).older = older,
            }
            match older.is_null() {
                true => self.oldest = newer,
                false => (*older).newer = newer,
            }
            match above.is_null() {
                true => self.tops[large_class(size)] = below,
                false => (*above).below = below,
            }
            if !below.is_null() {
                (*below).above = above;
            }
        }
        self.cached_bytes -= size;
    }
}

/// A buffer of at least `bytes`, at the start of a page. None: out of memory or not addressable.
#[cold]
#[inline(never)]
pub fn alloc(bytes: usize) -> Option<Run> {
    let size = large_size(bytes)?;
    let attempt = || take_or_carve(size).or_else(|| fresh(size));
    attempt().or_else(|| {
        // The system has none left: what the caches hold may be enough.
        super::trim();
        attempt()
    })
}

/// From the cache, or for a mid-size buffer from an extent.
fn take_or_carve(size: usize) -> Option<Run> {
    let mut central = central::lock();
    let Central { large, extents, .. } = &mut *central;
    let cached = large.take(size).map(|ptr| Run { ptr, zeroed: false });
    large.reused += u64::from(cached.is_some());
    let run = match cached {
        None if size <= RUN_MAX => extents.alloc(size),
        other => other,
    }?;
    large.live_blocks += 1;
    large.live_bytes += size;
    Some(run)
}

/// A mapping of its own.
fn fresh(size: usize) -> Option<Run> {
    if size <= RUN_MAX {
        return None;
    }
    let ptr = os::map(size, if size >= HUGE { HUGE } else { PAGE })?;
    let large = &mut central::lock().large;
    large.live_blocks += 1;
    large.live_bytes += size;
    Some(Run { ptr, zeroed: true })
}

/// Puts a buffer into the cache and drops the oldest ones over the cap.
///
/// # Safety
/// `ptr` came from `alloc(bytes)` and is not used again.
#[cold]
#[inline(never)]
pub unsafe fn free(ptr: NonNull<u8>, bytes: usize) {
    let Some(size) = large_size(bytes) else { return };
    let cap = cap();
    let over = {
        let large = &mut central::lock().large;
        large.live_blocks -= 1;
        large.live_bytes -= size;
        if size <= cap {
            large.push(ptr, size);
        }
        large.cached_bytes > cap
    };
    if size > cap {
        unsafe { release(ptr, size) };
    }
    if over {
        release_over(cap);
    }
}

/// Gives cached buffers back to the system, oldest first, until at most `cap` bytes are cached.
pub fn release_over(cap: usize) {
    loop {
        let Some((ptr, size)) = central::lock().large.take_over(cap) else { return };
        unsafe { release(ptr, size) };
    }
}

/// # Safety
/// The buffer has its size from `large_size`, is on no list and is not used again.
unsafe fn release(ptr: NonNull<u8>, size: usize) {
    if size > RUN_MAX {
        unsafe { os::unmap(ptr, size) };
    } else {
        // The system call needs no lock: the run is still marked as used.
        let zeroed = unsafe { os::discard(ptr, size) };
        unsafe { central::lock().extents.free(ptr, size, zeroed) };
    }
}

/// Sets the most bytes that freed large buffers may keep, and drops what exceeds it.
pub fn set_cap(bytes: usize) {
    CAP.store(bytes.min(UNSET - 1), Ordering::Relaxed);
    release_over(bytes);
}

/// The cap in force: by default a quarter of the machine's memory, at most 4 GiB.
pub fn cap() -> usize {
    let cap = CAP.load(Ordering::Relaxed);
    if cap != UNSET {
        return cap;
    }
    let default = os::physical_bytes().map_or(1 << 30, |bytes| (bytes / 4).min(4 << 30));
    match CAP.compare_exchange(UNSET, default, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => default,
        Err(set_meanwhile) => set_meanwhile,
    }
}
