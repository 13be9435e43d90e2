//! Fork safety: the forking thread holds the pool's lock across the fork, so the child never sees half an
//! update, and the child forgets the caches of threads it does not have (their blocks stay unused there).
//!
//! The handlers are idempotent within one fork. So every thread may install them, a fork that happens while
//! another thread is installing them is harmless, and no thread ever waits for an installation.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use super::central;
use super::class::CLASSES;
use super::local;

thread_local! {
    /// This thread is between the handlers before and after a fork, and holds the lock.
    static IN_FORK: Cell<bool> = const { Cell::new(false) };
    /// Blocks cached by the other threads when the fork began.
    static OTHERS: Cell<[usize; CLASSES]> = const { Cell::new([0; CLASSES]) };
}

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Called before every use of the lock.
pub fn install_handlers() {
    if !INSTALLED.load(Ordering::Acquire) {
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
        INSTALLED.store(true, Ordering::Release);
    }
}

/// Whether this thread holds the lock because it is forking.
pub fn in_fork() -> bool {
    IN_FORK.get()
}

unsafe extern "C" fn before() {
    if !IN_FORK.get() {
        central::acquire();
        IN_FORK.set(true);
        OTHERS.set(local::cached_by_others(&central::lock()));
    }
}

unsafe extern "C" fn after_in_parent() {
    if IN_FORK.replace(false) {
        central::release();
    }
}

unsafe extern "C" fn after_in_child() {
    if IN_FORK.get() {
        local::forget_other_threads(&mut central::lock(), &OTHERS.get());
        IN_FORK.set(false);
        central::release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{free, try_alloc};

    #[test]
    fn handlers_nest_and_leave_the_lock_free() {
        install_handlers();
        unsafe {
            before();
            before();
            assert!(in_fork());
            // Another library's fork handler may use the pool while ours hold the lock.
            let block = try_alloc(40 << 10).unwrap();
            free(block, 40 << 10);
            after_in_parent();
            after_in_parent();
        }
        assert!(!in_fork());
        let block = std::thread::spawn(|| try_alloc(40 << 10).unwrap().addr()).join().unwrap();
        assert_eq!(block.get() % 4096, 0);
    }
}
