//! What threads share, under one spin lock that a fork holds: the depot of block batches, the registry of
//! thread caches, the extents and the large cache. No fast path here.
//!
//! Safety: everything below is reached through the guard of the one lock. A block on a depot list belongs to
//! that list alone.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

use super::class::{BATCH, CLASSES, SIZE};
use super::extent::{self, COLOR, Extents, SLAB};
use super::fork;
use super::large::LargeCache;
use super::local::ThreadCache;

/// A free small block. The links live in the block itself, so the smallest block has 16 bytes.
pub struct Block {
    pub next: *mut Block,
    /// Next batch; meaningful in the first block of a batch in the depot.
    batch: *mut Block,
}

/// Free blocks of one class that no thread holds, and the slab being cut.
#[derive(Clone, Copy)]
struct Depot {
    /// Chains of exactly `BATCH` blocks.
    batches: *mut Block,
    /// One chain of fewer blocks.
    loose: *mut Block,
    loose_len: u32,
    /// Blocks in `batches` and `loose`.
    free: usize,
    /// The part of the newest slab that was never handed out.
    uncut: *mut u8,
    uncut_end: *mut u8,
    /// Blocks cut from slabs so far, less those whose slab went back.
    cut: usize,
    /// Blocks cached by threads that a fork left behind.
    lost: usize,
}

const EMPTY_DEPOT: Depot = Depot {
    batches: ptr::null_mut(),
    loose: ptr::null_mut(),
    loose_len: 0,
    free: 0,
    uncut: ptr::null_mut(),
    uncut_end: ptr::null_mut(),
    cut: 0,
    lost: 0,
};

/// Blocks handed to a thread at once.
pub enum Supply {
    /// A ready chain.
    Chain(*mut Block, u32),
    /// Memory never used before, to be linked without the lock.
    Uncut(*mut u8, u32),
}

pub struct Central {
    depots: [Depot; CLASSES],
    registry: *const ThreadCache,
    pub extents: Extents,
    pub large: LargeCache,
}

impl Depot {
    fn push_batch(&mut self, batch: *mut Block, len: u32) {
        unsafe { (*batch).batch = self.batches };
        self.batches = batch;
        self.free += len as usize;
    }

    fn push(&mut self, block: *mut Block, batch: u32) {
        unsafe { (*block).next = self.loose };
        self.loose = block;
        self.loose_len += 1;
        self.free += 1;
        if self.loose_len == batch {
            self.loose_len = 0;
            self.free -= batch as usize;
            let full = std::mem::replace(&mut self.loose, ptr::null_mut());
            self.push_batch(full, batch);
        }
    }

    fn take_chain(&mut self, batch: u32) -> Option<(*mut Block, u32)> {
        let (chain, len) = if !self.batches.is_null() {
            let chain = self.batches;
            self.batches = unsafe { (*chain).batch };
            (chain, batch)
        } else if self.loose_len > 0 {
            (std::mem::replace(&mut self.loose, ptr::null_mut()), std::mem::take(&mut self.loose_len))
        } else {
            return None;
        };
        self.free -= len as usize;
        Some((chain, len))
    }

    /// The blocks not cut yet, if any.
    fn uncut(&self, size: usize) -> Option<(NonNull<u8>, usize)> {
        let len = (self.uncut_end.addr() - self.uncut.addr()) / size;
        NonNull::new(self.uncut).filter(|_| len > 0).map(|start| (start, len))
    }

    /// Takes all free blocks out, as one chain.
    fn drain(&mut self) -> *mut Block {
        let mut all = std::mem::replace(&mut self.loose, ptr::null_mut());
        let mut batch = std::mem::replace(&mut self.batches, ptr::null_mut());
        while let Some(first) = NonNull::new(batch) {
            batch = unsafe { first.as_ref() }.batch;
            for block in walk(first.as_ptr()) {
                unsafe { (*block.as_ptr()).next = all };
                all = block.as_ptr();
            }
        }
        self.loose_len = 0;
        self.free = 0;
        all
    }
}

impl Central {
    pub const fn new() -> Self {
        Central {
            depots: [EMPTY_DEPOT; CLASSES],
            registry: ptr::null(),
            extents: Extents::new(),
            large: LargeCache::new(),
        }
    }

    /// Up to a batch of free blocks. None: out of memory.
    pub fn supply(&mut self, class: usize) -> Option<Supply> {
        if let Some((chain, len)) = self.depots[class].take_chain(BATCH[class]) {
            return Some(Supply::Chain(chain, len));
        }
        let (start, len) = self.cut(class, BATCH[class])?;
        Some(Supply::Uncut(start, len))
    }

    /// Takes a batch of `BATCH` blocks.
    pub fn put_batch(&mut self, class: usize, chain: *mut Block) {
        self.depots[class].push_batch(chain, BATCH[class]);
    }

    /// Takes a chain of any length, block by block.
    pub fn put_chain(&mut self, class: usize, mut chain: *mut Block) {
        while !chain.is_null() {
            let next = unsafe { (*chain).next };
            self.depots[class].push(chain, BATCH[class]);
            chain = next;
        }
    }

    /// One block, for a thread without a cache.
    pub fn take_one(&mut self, class: usize) -> Option<NonNull<u8>> {
        let depot = &mut self.depots[class];
        if depot.loose_len == 0 {
            match depot.take_chain(BATCH[class]) {
                Some((chain, len)) => {
                    depot.loose = chain;
                    depot.loose_len = len;
                    depot.free += len as usize;
                }
                None => return NonNull::new(self.cut(class, 1)?.0),
            }
        }
        let block = depot.loose;
        depot.loose = unsafe { (*block).next };
        depot.loose_len -= 1;
        depot.free -= 1;
        NonNull::new(block.cast())
    }

    /// Cuts up to `most` blocks from the newest slab, or from a new one.
    fn cut(&mut self, class: usize, most: u32) -> Option<(*mut u8, u32)> {
        let depot = &mut self.depots[class];
        let size = SIZE[class];
        if depot.uncut(size).is_none() {
            let slab = self.extents.alloc_slab(class)?.as_ptr();
            depot.uncut = unsafe { slab.add(COLOR[class]) };
            depot.uncut_end = unsafe { slab.add(SLAB) };
        }
        let (start, uncut) = depot.uncut(size)?;
        let len = uncut.min(most as usize);
        depot.uncut = unsafe { depot.uncut.add(len * size) };
        depot.cut += len;
        Some((start.as_ptr(), len as u32))
    }

    /// Blocks of a class: those in the depot, and those in use or in the caches of threads.
    pub fn class_counts(&self, class: usize) -> (usize, usize) {
        let depot = &self.depots[class];
        (depot.free, depot.cut.saturating_sub(depot.free + depot.lost))
    }

    /// Gives slabs back whose blocks are all in the depot or not cut yet. Walks every free block twice.
    pub fn release_slabs(&mut self) {
        let chains: [*mut Block; CLASSES] = std::array::from_fn(|class| self.depots[class].drain());
        for (class, &chain) in chains.iter().enumerate() {
            walk(chain).for_each(|block| unsafe { extent::count_free(block.cast(), 1) });
            if let Some((uncut, len)) = self.depots[class].uncut(SIZE[class]) {
                unsafe { extent::count_free(uncut, len) };
            }
        }
        for (class, &chain) in chains.iter().enumerate() {
            let depot = &mut self.depots[class];
            for block in walk(chain) {
                if !unsafe { extent::all_free(block.cast()) } {
                    depot.push(block.as_ptr(), BATCH[class]);
                }
            }
            if let Some((uncut, len)) = depot.uncut(SIZE[class])
                && unsafe { extent::all_free(uncut) }
            {
                depot.cut += len;
                (depot.uncut, depot.uncut_end) = (ptr::null_mut(), ptr::null_mut());
            }
        }
        let Central { extents, depots, .. } = self;
        unsafe { extents.sweep(|class| depots[class].cut -= extent::slab_blocks(class)) };
        extents.trim();
    }

    pub fn register(&mut self, cache: &ThreadCache) {
        cache.link(&mut self.registry);
    }

    pub fn unregister(&mut self, cache: &ThreadCache) {
        cache.unlink(&mut self.registry);
    }

    /// The caches of all threads that ever used the pool and still run.
    pub fn caches(&self) -> impl Iterator<Item = &ThreadCache> {
        // A thread leaves the registry, under the lock, before its cache goes away.
        std::iter::successors(unsafe { self.registry.as_ref() }, |cache| unsafe { cache.next().as_ref() })
    }

    /// In a forked child: only the calling thread is left. `lost` are the blocks the others had cached, read
    /// while they ran and so perhaps too many.
    pub fn forget_others(&mut self, own: Option<&ThreadCache>, lost: &[usize; CLASSES]) {
        for (class, lost) in lost.iter().enumerate() {
            let (_, outside) = self.class_counts(class);
            let not_own = outside.saturating_sub(own.map_or(0, |own| own.cached(class)));
            self.depots[class].lost += not_own.min(*lost);
        }
        self.registry = ptr::null();
        if let Some(own) = own {
            own.link(&mut self.registry);
        }
    }
}

/// The blocks of a chain; each may be relinked once it was yielded.
fn walk(chain: *mut Block) -> impl Iterator<Item = NonNull<Block>> {
    let mut at = chain;
    std::iter::from_fn(move || {
        let block = NonNull::new(at)?;
        at = unsafe { block.as_ref() }.next;
        Some(block)
    })
}

struct Pool {
    locked: AtomicBool,
    central: UnsafeCell<Central>,
}

// The lock makes `central` exclusive.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool { locked: AtomicBool::new(false), central: UnsafeCell::new(Central::new()) };

pub struct Guard {
    /// False inside a fork, where the fork handlers hold the lock for this thread.
    release: bool,
}

/// Takes the lock. Held for a few list operations; long only in `trim` and where an extent is mapped.
pub fn lock() -> Guard {
    fork::install_handlers();
    let release = !fork::in_fork();
    if release {
        acquire();
    }
    Guard { release }
}

/// The bare lock, for the fork handlers.
pub fn acquire() {
    let mut spins = 0;
    while POOL.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        while POOL.locked.load(Ordering::Relaxed) {
            spins += 1;
            if spins % 64 == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Undoes `acquire`, in the thread that took it or in its forked copy.
pub fn release() {
    POOL.locked.store(false, Ordering::Release);
}

impl Deref for Guard {
    type Target = Central;
    fn deref(&self) -> &Central {
        unsafe { &*POOL.central.get() }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Central {
        unsafe { &mut *POOL.central.get() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.release {
            release();
        }
    }
}
