//! Memory of tensors: blocks, nodes and large buffers, safe on any thread without an interpreter lock.
//! What a block contains, reference counts and devices other than the CPU are not here.
//!
//! * Blocks up to 32 KiB and nodes up to 512 bytes come from per-thread chains of free blocks (`local`) with
//!   a shared depot (`central`). Blocks are 64-byte aligned, in classes of 64 bytes up to 1 KiB and four per
//!   doubling above; nodes are 16-byte aligned and exact to 16 bytes.
//! * Larger buffers are whole pages, reused by exact size from a cache with a byte cap (`large`); up to
//!   1 MiB they lie inside extents (`extent`), above they are mappings of their own, on huge pages from 2 MiB.
//!
//! A block may be freed on any thread. Thread exit hands a thread's blocks to the others; a fork leaves parent
//! and child with a working pool (`fork`). The system gets small blocks back in `trim` only.
//!
//! Safety: a caller frees a block once, with the size it asked for, and does not use it afterwards.

mod bits;
mod central;
mod class;
mod exit;
mod extent;
mod fork;
mod large;
mod local;
mod os;
#[cfg(test)]
mod stress;
#[cfg(test)]
mod tests;

use std::alloc::Layout;
use std::ptr::NonNull;

use class::{NODE_ALIGN, NODE_MAX, SIZE, SMALL_MAX, block_class, class_size, node_class};

pub use class::BLOCK_ALIGN;

/// At least `bytes` of memory with undefined contents at a multiple of `BLOCK_ALIGN`. None: out of memory, or
/// a size that no machine has. With a constant size the compiler folds the choice of class.
#[inline(always)]
pub fn try_alloc(bytes: usize) -> Option<NonNull<u8>> {
    if bytes <= SMALL_MAX { local::take(block_class(bytes)) } else { Some(large::alloc(bytes)?.ptr) }
}

/// As `try_alloc`, but the first `bytes` are zero. Costs nothing for memory fresh from the system.
#[inline]
pub fn try_alloc_zeroed(bytes: usize) -> Option<NonNull<u8>> {
    let (ptr, zeroed) = if bytes <= SMALL_MAX {
        (local::take(block_class(bytes))?, false)
    } else {
        let run = large::alloc(bytes)?;
        (run.ptr, run.zeroed)
    };
    if !zeroed {
        unsafe { ptr.write_bytes(0, bytes) };
    }
    Some(ptr)
}

/// Frees a block of `try_alloc` or `try_alloc_zeroed`, on any thread.
///
/// # Safety
/// `ptr` came from a call with the same `bytes`, was not freed since and is not used again.
#[inline(always)]
pub unsafe fn free(ptr: NonNull<u8>, bytes: usize) {
    if bytes <= SMALL_MAX {
        unsafe { local::give(block_class(bytes), ptr) }
    } else {
        unsafe { large::free(ptr, bytes) }
    }
}

/// Bytes that a block of `bytes` really occupies.
#[inline]
pub const fn block_size(bytes: usize) -> Option<usize> {
    if bytes <= SMALL_MAX { Some(class_size(block_class(bytes))) } else { class::large_size(bytes) }
}

/// Memory for one value, exact to 16 bytes up to 512, like `try_alloc` above that or where the alignment
/// exceeds 16. None: out of memory, or an alignment above `BLOCK_ALIGN`.
#[inline(always)]
pub fn node_alloc(layout: Layout) -> Option<NonNull<u8>> {
    match is_node(layout) {
        true => local::take(node_class(layout.size())),
        false if layout.align() <= BLOCK_ALIGN => try_alloc(layout.size()),
        false => None,
    }
}

/// Frees memory of `node_alloc`, on any thread.
///
/// # Safety
/// `ptr` came from `node_alloc(layout)`, was not freed since and is not used again.
#[inline(always)]
pub unsafe fn node_free(ptr: NonNull<u8>, layout: Layout) {
    if is_node(layout) {
        unsafe { local::give(node_class(layout.size()), ptr) }
    } else {
        unsafe { free(ptr, layout.size()) }
    }
}

#[inline(always)]
const fn is_node(layout: Layout) -> bool {
    layout.align() <= NODE_ALIGN && layout.size() <= NODE_MAX && layout.size() > 0
}

/// What the pool holds. Exact while no other thread uses the pool, otherwise a close estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks, nodes and large buffers in use.
    pub live_blocks: usize,
    /// Their sizes, rounded up as the pool rounds them.
    pub live_bytes: usize,
    /// Bytes freed and kept for reuse, by threads, the depot and the large cache.
    pub cached_bytes: usize,
    /// The part of `cached_bytes` in the large cache, which `set_cache_cap` limits.
    pub large_cached_bytes: usize,
    /// Bytes mapped from the system; not all of them are resident.
    pub mapped_bytes: usize,
    /// Mappings made since the program started.
    pub mappings: u64,
    /// Large requests answered from the cache since the program started.
    pub large_reused: u64,
}

/// Sums what threads and depot hold. Takes the pool's lock, and costs the allocating paths nothing.
pub fn stats() -> Stats {
    let central = central::lock();
    let large = &central.large;
    let mut stats = Stats {
        live_blocks: large.live_blocks,
        live_bytes: large.live_bytes,
        cached_bytes: large.cached_bytes,
        large_cached_bytes: large.cached_bytes,
        mapped_bytes: os::mapped_bytes(),
        mappings: os::maps(),
        large_reused: large.reused,
    };
    for (class, size) in SIZE.iter().enumerate() {
        let (depot, outside) = central.class_counts(class);
        let in_threads: usize = central.caches().map(|cache| cache.cached(class)).sum();
        let live = outside.saturating_sub(in_threads);
        stats.live_blocks += live;
        stats.live_bytes += live * size;
        stats.cached_bytes += (depot + in_threads) * size;
    }
    stats
}

/// Gives cached memory back to the system: the large cache, and slabs without a block in use. Blocks cached
/// by other threads stay there. Walks all free blocks under the lock, so other threads may wait for it.
pub fn trim() {
    local::flush();
    large::release_over(0);
    central::lock().release_slabs();
}

/// Sets the most bytes of freed large buffers that are kept for reuse, and drops the oldest above that.
pub fn set_cache_cap(bytes: usize) {
    large::set_cap(bytes);
}

/// The cap in force; by default a quarter of the machine's memory, at most 4 GiB.
pub fn cache_cap() -> usize {
    large::cap()
}
