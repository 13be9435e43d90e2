//! The cache of free small blocks that each thread has: the fast path, its slow path, thread exit.
//! No system memory and no locks of its own here.
//!
//! A class has an active chain and at most one full chain in reserve; further full chains go whole to the
//! depot. A block freed anywhere goes to the freeing thread's chain: blocks have no owner.
//!
//! Safety: only the owning thread touches `head`, and the registry's links change under the pool's lock.
//! `full` and `left` are written by the owner only and read by others for statistics, hence atomic.
//! The cache has no destructor, so it can be touched at any time; a thread that never used the pool, and one
//! whose exit has begun, has only empty chains without room, which sends it to the slow path.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};

use super::central::{self, Block, Central, Supply};
use super::class::{BATCH, CLASSES, SIZE};
use super::exit;

struct Slot {
    /// The active chain.
    head: Cell<*mut Block>,
    /// A chain of exactly `BATCH` blocks, or null.
    full: AtomicPtr<Block>,
    /// Blocks that still fit on the active chain.
    left: AtomicU32,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    New,
    Live,
    /// The thread's exit has begun: blocks go to and come from the depot one by one.
    Dead,
}

pub struct ThreadCache {
    slots: [Slot; CLASSES],
    state: Cell<State>,
    prev: Cell<*const ThreadCache>,
    next: Cell<*const ThreadCache>,
}

crate::per_thread!(
    /// The calling thread's cache.
    fn own() -> *const ThreadCache = ThreadCache::new()
);

/// Takes a block of a class. None: out of memory.
#[inline(always)]
pub fn take(class: usize) -> Option<NonNull<u8>> {
    let cache = unsafe { &*own() };
    let slot = cache.slot(class);
    let head = slot.head.get();
    if head.is_null() {
        return cache.refill(class);
    }
    slot.head.set(unsafe { (*head).next });
    slot.left.store(slot.left.load(Relaxed) + 1, Relaxed);
    NonNull::new(head.cast())
}

/// Puts a block back.
///
/// # Safety
/// `ptr` came from `take(class)`, on any thread, and is not used again.
#[inline(always)]
pub unsafe fn give(class: usize, ptr: NonNull<u8>) {
    let cache = unsafe { &*own() };
    let slot = cache.slot(class);
    let left = slot.left.load(Relaxed);
    if left == 0 {
        return cache.spill(class, ptr.cast().as_ptr());
    }
    slot.push(ptr.cast().as_ptr(), left);
}

impl Slot {
    const fn new() -> Self {
        Slot {
            head: Cell::new(ptr::null_mut()),
            full: AtomicPtr::new(ptr::null_mut()),
            left: AtomicU32::new(0),
        }
    }

    #[inline(always)]
    fn push(&self, block: *mut Block, left: u32) {
        unsafe { (*block).next = self.head.get() };
        self.head.set(block);
        self.left.store(left - 1, Relaxed);
    }

    /// Hands out the first block of a chain of `len` and keeps the rest.
    fn start(&self, chain: *mut Block, len: u32, batch: u32) -> Option<NonNull<u8>> {
        let first = NonNull::new(chain)?;
        self.head.set(unsafe { first.as_ref() }.next);
        self.left.store(batch - len + 1, Relaxed);
        Some(first.cast())
    }
}

impl ThreadCache {
    const fn new() -> Self {
        ThreadCache {
            slots: [const { Slot::new() }; CLASSES],
            state: Cell::new(State::New),
            prev: Cell::new(ptr::null()),
            next: Cell::new(ptr::null()),
        }
    }

    #[inline(always)]
    fn slot(&self, class: usize) -> &Slot {
        debug_assert!(class < CLASSES);
        unsafe { self.slots.get_unchecked(class) }
    }

    /// The active chain is empty.
    #[cold]
    #[inline(never)]
    fn refill(&self, class: usize) -> Option<NonNull<u8>> {
        let (slot, batch) = (self.slot(class), BATCH[class]);
        let full = slot.full.load(Relaxed);
        if !full.is_null() {
            slot.full.store(ptr::null_mut(), Relaxed);
            return slot.start(full, batch, batch);
        }
        if !self.ready() {
            return or_trim(|| central::lock().take_one(class));
        }
        match or_trim(|| central::lock().supply(class))? {
            Supply::Chain(chain, len) => slot.start(chain, len, batch),
            Supply::Uncut(start, len) => slot.start(unsafe { link_up(start, SIZE[class], len) }, len, batch),
        }
    }

    /// The active chain is full, or this thread has no cache yet or any more.
    #[cold]
    #[inline(never)]
    fn spill(&self, class: usize, block: *mut Block) {
        if !self.ready() {
            unsafe { (*block).next = ptr::null_mut() };
            return central::lock().put_chain(class, block);
        }
        let (slot, batch) = (self.slot(class), BATCH[class]);
        if slot.left.load(Relaxed) == 0 {
            let surplus = slot.full.load(Relaxed);
            slot.full.store(slot.head.replace(ptr::null_mut()), Relaxed);
            slot.left.store(batch, Relaxed);
            if !surplus.is_null() {
                central::lock().put_batch(class, surplus);
            }
        }
        slot.push(block, slot.left.load(Relaxed));
    }

    /// Makes a new thread's cache usable; false once the thread's exit has begun.
    fn ready(&self) -> bool {
        match self.state.get() {
            State::Live => true,
            State::Dead => false,
            State::New => {
                if !exit::at_thread_exit(retire, ptr::from_ref(self).cast()) {
                    self.state.set(State::Dead);
                    return false;
                }
                for (slot, batch) in self.slots.iter().zip(BATCH) {
                    slot.left.store(batch, Relaxed);
                }
                central::lock().register(self);
                self.state.set(State::Live);
                true
            }
        }
    }

    /// Hands every cached block to the depot.
    fn flush(&self, central: &mut Central, room: impl Fn(usize) -> u32) {
        for (class, slot) in self.slots.iter().enumerate() {
            central.put_chain(class, slot.head.replace(ptr::null_mut()));
            let full = slot.full.load(Relaxed);
            slot.full.store(ptr::null_mut(), Relaxed);
            if !full.is_null() {
                central.put_batch(class, full);
            }
            slot.left.store(room(class), Relaxed);
        }
    }

    /// Free blocks of a class in this cache; approximate while its thread runs.
    pub fn cached(&self, class: usize) -> usize {
        let slot = self.slot(class);
        let active = BATCH[class] - slot.left.load(Relaxed).min(BATCH[class]);
        let full = if slot.full.load(Relaxed).is_null() { 0 } else { BATCH[class] };
        (active + full) as usize
    }

    pub fn next(&self) -> *const ThreadCache {
        self.next.get()
    }

    /// Puts this cache at the front of the registry. Under the pool's lock.
    pub fn link(&self, registry: &mut *const ThreadCache) {
        self.prev.set(ptr::null());
        self.next.set(*registry);
        if let Some(next) = unsafe { registry.as_ref() } {
            next.prev.set(self);
        }
        *registry = self;
    }

    /// Takes this cache out of the registry. Under the pool's lock.
    pub fn unlink(&self, registry: &mut *const ThreadCache) {
        match unsafe { self.prev.get().as_ref() } {
            Some(prev) => prev.next.set(self.next.get()),
            None => *registry = self.next.get(),
        }
        if let Some(next) = unsafe { self.next.get().as_ref() } {
            next.prev.set(self.prev.get());
        }
    }
}

/// Tries again with what `trim` gets from the caches when the system has no memory left.
fn or_trim<T>(attempt: impl Fn() -> Option<T>) -> Option<T> {
    attempt().or_else(|| {
        super::trim();
        attempt()
    })
}

/// Links `len` adjoining blocks into a chain in address order.
///
/// # Safety
/// The memory holds `len` blocks of `size` bytes that nobody uses.
unsafe fn link_up(start: *mut u8, size: usize, len: u32) -> *mut Block {
    let mut next = ptr::null_mut();
    for index in (0..len as usize).rev() {
        let block: *mut Block = unsafe { start.add(index * size) }.cast();
        unsafe { (*block).next = next };
        next = block;
    }
    next
}

/// The calling thread ends: its blocks go to the depot, later ones do so one by one.
///
/// # Safety
/// `cache` is the calling thread's registered cache.
unsafe extern "C" fn retire(cache: *mut c_void) {
    let cache: &ThreadCache = unsafe { &*cache.cast() };
    let mut central = central::lock();
    central.unregister(cache);
    cache.flush(&mut central, |_| 0);
    cache.state.set(State::Dead);
}

/// Hands the calling thread's cached blocks to the depot.
pub fn flush() {
    let cache = unsafe { &*own() };
    if cache.state.get() == State::Live {
        cache.flush(&mut central::lock(), |class| BATCH[class]);
    }
}

/// Free blocks per class in the caches of all threads but the calling one.
pub fn cached_by_others(central: &Central) -> [usize; CLASSES] {
    let mut counts = [0; CLASSES];
    for cache in central.caches().filter(|&cache| !ptr::eq(cache, own())) {
        for (class, count) in counts.iter_mut().enumerate() {
            *count += cache.cached(class);
        }
    }
    counts
}

/// In a forked child: drops the caches of all threads but the calling one, which held `lost` blocks.
pub fn forget_other_threads(central: &mut Central, lost: &[usize; CLASSES]) {
    let own = unsafe { &*own() };
    central.forget_others((own.state.get() == State::Live).then_some(own), lost);
}
