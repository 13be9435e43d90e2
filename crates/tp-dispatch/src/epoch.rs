//! When a retired dispatch table may be freed: no thread is inside dispatch.
//!
//! Readers pay two plain stores per call. The writer makes up for it: after it swapped a table it asks the kernel
//! to run a memory barrier on every thread of the process (`membarrier`), and then reads all depth counters. A
//! reader that entered before the swap is then visible with a depth above zero; one that enters later sees the
//! new table. Where the kernel offers no such barrier, retired tables are kept.

use crate::table::DispatchTable;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};

struct Slots {
    all: Vec<&'static AtomicU32>,
    free: Vec<&'static AtomicU32>,
}

static SLOTS: Mutex<Slots> = Mutex::new(Slots { all: Vec::new(), free: Vec::new() });
#[allow(clippy::vec_box)] // a reader may still hold the address
static RETIRED: Mutex<Vec<Box<DispatchTable>>> = Mutex::new(Vec::new());

/// Gives this thread a depth counter; it returns to the pool when the thread ends.
#[cold]
pub(crate) fn register_thread() -> *const AtomicU32 {
    let mut slots = SLOTS.lock();
    let slot = slots.free.pop().unwrap_or_else(|| {
        let fresh: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
        slots.all.push(fresh);
        fresh
    });
    drop(slots);
    // A thread that is already being torn down keeps its slot: a leak of four bytes.
    let _ = EXIT.try_with(|e| *e.0.borrow_mut() = Some(slot));
    slot
}

struct OnExit(std::cell::RefCell<Option<&'static AtomicU32>>);

impl Drop for OnExit {
    fn drop(&mut self) {
        if let Some(slot) = self.0.borrow_mut().take() {
            SLOTS.lock().free.push(slot);
        }
    }
}

thread_local! {
    static EXIT: OnExit = const { OnExit(std::cell::RefCell::new(None)) };
}

/// Takes over a table that was swapped out, and frees whatever may be freed now.
pub(crate) fn retire(table: Box<DispatchTable>) {
    RETIRED.lock().push(table);
    collect();
}

/// Frees retired tables if no thread is inside dispatch. Dropping a table may run foreign destructors, so no
/// lock is held then.
pub(crate) fn collect() {
    let candidates = std::mem::take(&mut *RETIRED.lock());
    if candidates.is_empty() {
        return;
    }
    let quiet = heavy_barrier() && SLOTS.lock().all.iter().all(|d| d.load(Ordering::Acquire) == 0);
    if quiet {
        drop(candidates);
    } else {
        RETIRED.lock().extend(candidates);
    }
}

#[cfg(target_os = "linux")]
fn heavy_barrier() -> bool {
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    static READY: OnceLock<bool> = OnceLock::new();
    fence(Ordering::SeqCst);
    // SAFETY: plain system calls without pointers.
    unsafe {
        let ready =
            *READY.get_or_init(|| libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0);
        ready && libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) == 0
    }
}

#[cfg(not(target_os = "linux"))]
fn heavy_barrier() -> bool {
    static KEEP: OnceLock<bool> = OnceLock::new();
    fence(Ordering::SeqCst);
    *KEEP.get_or_init(|| false)
}
