//! Extents: 8 MiB mappings on huge pages, cut into runs of pages. A run is either one mid-size buffer or a
//! slab, which the depot cuts into small blocks. No thread state and no lists of small blocks here.
//!
//! Safety: an extent starts at a multiple of its size and its header fills its first page, so masking any
//! address inside it finds the header. Headers are reached only under the pool's lock.

use std::ptr::{self, NonNull};

use super::bits;
use super::class::{CLASSES, SIZE, SMALL_MAX, slab_color};
use super::os::{self, PAGE};

const EXTENT: usize = 8 << 20;
const PAGES: usize = EXTENT / PAGE;
const WORDS: usize = PAGES / 64;
/// Bytes of a slab: the unit in which the block classes get memory.
pub const SLAB: usize = 128 << 10;
const SLAB_PAGES: usize = SLAB / PAGE;
const SLABS: usize = EXTENT / SLAB;
const NO_CLASS: u8 = u8::MAX;
/// An extent with fewer free pages than the smallest run needs is not searched.
const SMALLEST_RUN: u32 = (SMALL_MAX / PAGE + 1) as u32;
/// Extents looked at before a new one is mapped: bounds the search when many hold unsuitable gaps.
const PROBES: usize = 32;
/// Wholly free extents kept for the next request; more go back to the system.
const SPARE: usize = 1;

struct Extent {
    prev: *mut Extent,
    next: *mut Extent,
    /// On the list that is searched.
    open: bool,
    free_pages: u32,
    /// No free run is longer than this.
    longest: u32,
    used: [u64; WORDS],
    /// Pages handed out since they were last known to be zero.
    dirty: [u64; WORDS],
    slab_class: [u8; SLABS],
    /// Free blocks of each slab, counted during a sweep.
    slab_free: [u32; SLABS],
}

const _: () = assert!(size_of::<Extent>() <= PAGE && SLABS <= 64);

impl Extent {
    /// No run is in use; the header's page always is.
    fn is_empty(&self) -> bool {
        self.free_pages == PAGES as u32 - 1
    }

    fn find(&mut self, pages: usize, align: usize) -> Option<usize> {
        if self.longest < pages as u32 || self.free_pages < pages as u32 {
            return None;
        }
        let found = bits::find_clear(&self.used, pages, align);
        if found.is_none() && align == 1 {
            self.longest = pages as u32 - 1;
        }
        found
    }

    /// Bit set of the slabs without a block in use. They stop being slabs, and all counts start again.
    fn take_free_slabs(&mut self, released: &mut impl FnMut(usize)) -> u64 {
        let mut free = 0;
        for index in 0..SLABS {
            let (count, class) = (std::mem::take(&mut self.slab_free[index]), self.slab_class[index]);
            if class != NO_CLASS && count as usize == slab_blocks(class as usize) {
                free |= 1 << index;
                self.slab_class[index] = NO_CLASS;
                released(class as usize);
            }
        }
        free
    }
}

/// Where the blocks of a slab start, by class.
pub static COLOR: [usize; CLASSES] = {
    let mut table = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = slab_color(class, SLAB);
        class += 1;
    }
    table
};

/// Blocks that a whole slab of this class holds.
pub fn slab_blocks(class: usize) -> usize {
    (SLAB - COLOR[class]) / SIZE[class]
}

/// The extent of an address and the index of its page there.
fn locate(ptr: NonNull<u8>) -> (*mut Extent, usize) {
    let offset = ptr.addr().get() % EXTENT;
    (unsafe { ptr.as_ptr().sub(offset).cast() }, offset / PAGE)
}

/// Counts `len` blocks of a slab, from `block` on, as free.
///
/// # Safety
/// They lie in one slab, and the caller holds the pool's lock.
pub unsafe fn count_free(block: NonNull<u8>, len: usize) {
    let (extent, page) = locate(block);
    unsafe { (&mut (*extent).slab_free)[page / SLAB_PAGES] += len as u32 };
}

/// Whether `count_free` has seen every block of this block's slab.
///
/// # Safety
/// As for `count_free`.
pub unsafe fn all_free(block: NonNull<u8>) -> bool {
    let (extent, page) = locate(block);
    let (header, index) = (unsafe { &*extent }, page / SLAB_PAGES);
    header.slab_free[index] as usize == slab_blocks(header.slab_class[index] as usize)
}

/// A run of pages and whether it is known to read as zero.
#[derive(Clone, Copy)]
pub struct Run {
    pub ptr: NonNull<u8>,
    pub zeroed: bool,
}

/// All extents, in a list that is searched and a list that is not.
pub struct Extents {
    open: *mut Extent,
    closed: *mut Extent,
    empty: usize,
}

impl Extents {
    pub const fn new() -> Self {
        Extents { open: ptr::null_mut(), closed: ptr::null_mut(), empty: 0 }
    }

    /// A run of `bytes`, a multiple of `PAGE` and at most an eighth of an extent. None: out of memory.
    pub fn alloc(&mut self, bytes: usize) -> Option<Run> {
        self.take(bytes / PAGE, 1)
    }

    /// A slab for one small class. None: out of memory.
    pub fn alloc_slab(&mut self, class: usize) -> Option<NonNull<u8>> {
        let run = self.take(SLAB_PAGES, SLAB_PAGES)?;
        let (extent, page) = locate(run.ptr);
        unsafe { (&mut (*extent).slab_class)[page / SLAB_PAGES] = class as u8 };
        Some(run.ptr)
    }

    fn take(&mut self, pages: usize, align: usize) -> Option<Run> {
        let mut extent = self.open;
        for _ in 0..PROBES {
            if extent.is_null() {
                break;
            }
            if let Some(start) = unsafe { (*extent).find(pages, align) } {
                return Some(self.mark(extent, start, pages));
            }
            extent = unsafe { (*extent).next };
        }
        let extent = self.grow()?;
        let start = unsafe { (*extent).find(pages, align)? };
        Some(self.mark(extent, start, pages))
    }

    fn grow(&mut self) -> Option<*mut Extent> {
        let extent: *mut Extent = os::map(EXTENT, EXTENT)?.as_ptr().cast();
        // Fresh memory is zero: no page used or dirty, no slab counted.
        unsafe {
            (*extent).used[0] = 1;
            (*extent).dirty[0] = 1;
            (*extent).free_pages = PAGES as u32 - 1;
            (*extent).longest = PAGES as u32 - 1;
            (*extent).slab_class = [NO_CLASS; SLABS];
        }
        self.empty += 1;
        self.link(extent, true);
        Some(extent)
    }

    fn mark(&mut self, extent: *mut Extent, start: usize, pages: usize) -> Run {
        let header = unsafe { &mut *extent };
        if header.is_empty() {
            self.empty -= 1;
        }
        bits::set(&mut header.used, start, pages, true);
        let zeroed = !bits::any(&header.dirty, start, pages);
        bits::set(&mut header.dirty, start, pages, true);
        header.free_pages -= pages as u32;
        if header.free_pages < SMALLEST_RUN {
            self.unlink(extent);
            self.link(extent, false);
        }
        let ptr = unsafe { extent.cast::<u8>().add(start * PAGE) };
        Run { ptr: unsafe { NonNull::new_unchecked(ptr) }, zeroed }
    }

    /// Takes a run back; `zeroed` says that it reads as zero again.
    ///
    /// # Safety
    /// The run came from this object with the same size and is not used again.
    pub unsafe fn free(&mut self, ptr: NonNull<u8>, bytes: usize, zeroed: bool) {
        let ((extent, start), pages) = (locate(ptr), bytes / PAGE);
        let header = unsafe { &mut *extent };
        bits::set(&mut header.used, start, pages, false);
        if zeroed {
            bits::set(&mut header.dirty, start, pages, false);
        }
        header.free_pages += pages as u32;
        header.longest = PAGES as u32 - 1;
        let emptied = header.is_empty();
        self.unlink(extent);
        self.link(extent, true);
        if emptied {
            self.empty += 1;
            if self.empty > SPARE {
                self.remove(extent);
            }
        }
    }

    /// Unmaps every extent without a run.
    pub fn trim(&mut self) {
        let mut extent = self.open;
        while !extent.is_null() {
            let next = unsafe { (*extent).next };
            if unsafe { (*extent).is_empty() } {
                self.remove(extent);
            }
            extent = next;
        }
    }

    /// Gives back the slabs whose blocks were all counted by `count_free`, and forgets the counts.
    /// Calls `released` with the class of each.
    ///
    /// # Safety
    /// No list holds a block of such a slab any more.
    pub unsafe fn sweep(&mut self, mut released: impl FnMut(usize)) {
        for list in [self.open, self.closed] {
            let mut extent = list;
            while !extent.is_null() {
                // Freeing moves this extent to another list or unmaps it, but no other.
                let next = unsafe { (*extent).next };
                let slabs = unsafe { (*extent).take_free_slabs(&mut released) };
                for index in (0..SLABS).filter(|index| slabs >> index & 1 == 1) {
                    unsafe {
                        let slab = NonNull::new_unchecked(extent.cast::<u8>().add(index * SLAB));
                        let zeroed = os::discard(slab, SLAB);
                        self.free(slab, SLAB, zeroed);
                    }
                }
                extent = next;
            }
        }
    }

    fn remove(&mut self, extent: *mut Extent) {
        self.unlink(extent);
        self.empty -= 1;
        unsafe { os::unmap(NonNull::new_unchecked(extent.cast()), EXTENT) };
    }

    fn list(&mut self, open: bool) -> &mut *mut Extent {
        if open { &mut self.open } else { &mut self.closed }
    }

    fn link(&mut self, extent: *mut Extent, open: bool) {
        let head = self.list(open);
        unsafe {
            (*extent).open = open;
            (*extent).prev = ptr::null_mut();
            (*extent).next = *head;
            if !(*head).is_null() {
                (**head).prev = extent;
            }
        }
        *head = extent;
    }

    fn unlink(&mut self, extent: *mut Extent) {
        unsafe {
            let (prev, next) = ((*extent).prev, (*extent).next);
            if prev.is_null() {
                *self.list((*extent).open) = next;
            } else {
                (*prev).next = next;
            }
            if !next.is_null() {
                (*next).prev = prev;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: usize = 40 * PAGE;

    #[test]
    fn runs_know_whether_they_are_zero() {
        let mut extents = Extents::new();
        let run = extents.alloc(RUN).unwrap();
        assert!(run.zeroed);
        unsafe { extents.free(run.ptr, RUN, false) };
        let again = extents.alloc(RUN / 2).unwrap();
        assert_eq!((again.ptr, again.zeroed), (run.ptr, false));
        unsafe {
            again.ptr.write_bytes(0xff, RUN / 2);
            let zeroed = os::discard(again.ptr, RUN / 2);
            extents.free(again.ptr, RUN / 2, zeroed);
            let third = extents.alloc(RUN / 2).unwrap();
            assert_eq!((third.ptr, third.zeroed), (run.ptr, zeroed));
            assert!(
                !zeroed || std::slice::from_raw_parts(third.ptr.as_ptr(), RUN / 2).iter().all(|&b| b == 0)
            );
            extents.free(third.ptr, RUN / 2, false);
        }
        extents.trim();
        assert!(extents.open.is_null() && extents.closed.is_null());
    }

    #[test]
    fn full_extents_leave_the_search_and_come_back() {
        let mut extents = Extents::new();
        let largest = super::super::class::RUN_MAX;
        let mut runs: Vec<_> = (0..21).map(|_| extents.alloc(largest).unwrap().ptr).collect();
        runs.sort();
        assert!(runs.windows(2).all(|pair| pair[0].addr().get() + largest <= pair[1].addr().get()));
        // Three extents, each with one run less than eight free: slabs fill them up.
        let in_use = |list: *mut Extent| {
            std::iter::successors(unsafe { list.as_ref() }, |extent| unsafe { extent.next.as_ref() }).count()
        };
        assert_eq!((in_use(extents.open), in_use(extents.closed), extents.empty), (3, 0, 0));
        let slabs: Vec<_> = (0..3 * 7).map(|_| extents.alloc_slab(0).unwrap()).collect();
        assert!(slabs.iter().all(|slab| slab.addr().get().is_multiple_of(SLAB)));
        let rest: Vec<_> = (0..3).map(|_| extents.alloc((SLAB_PAGES - 1) * PAGE).unwrap().ptr).collect();
        assert_eq!((in_use(extents.open), in_use(extents.closed)), (0, 3));
        for slab in &slabs {
            unsafe {
                count_free(*slab, slab_blocks(0) - 1);
                assert!(!all_free(*slab));
                count_free(slab.add((slab_blocks(0) - 1) * SIZE[0]), 1);
                assert!(all_free(*slab));
            }
        }
        let mut released = 0;
        unsafe { extents.sweep(|class| released += usize::from(class == 0)) };
        assert_eq!((released, in_use(extents.open), in_use(extents.closed)), (21, 3, 0));
        runs.into_iter().for_each(|run| unsafe { extents.free(run, largest, false) });
        rest.into_iter().for_each(|run| unsafe { extents.free(run, (SLAB_PAGES - 1) * PAGE, false) });
        assert_eq!((in_use(extents.open), extents.empty), (1, 1));
        extents.trim();
        assert_eq!((in_use(extents.open), extents.empty), (0, 0));
    }
}
