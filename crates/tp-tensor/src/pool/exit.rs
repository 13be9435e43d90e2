//! Thread exit: arranges that a thread's cache is told when its thread ends.
//!
//! A pthread key and not a Rust destructor: its destructors run last, so frees from other destructors still
//! use the cache, and a cache first used by one of them is told in a further round. On the main thread they
//! do not run when the process ends, which is fine.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

type Destructor = unsafe extern "C" fn(*mut c_void);

const UNSET: u64 = u64::MAX;
static KEY: AtomicU64 = AtomicU64::new(UNSET);

/// Calls `destructor(value)` when the calling thread ends. `value` is not null, and `destructor` is always
/// the same. False if the system has no key left.
pub fn at_thread_exit(destructor: Destructor, value: *const c_void) -> bool {
    key(destructor).is_some_and(|key| unsafe { libc::pthread_setspecific(key, value) == 0 })
}

/// The one key. Threads that race to create it keep the first; nobody waits, so a fork cannot get stuck.
fn key(destructor: Destructor) -> Option<libc::pthread_key_t> {
    let known = KEY.load(Ordering::Acquire);
    if known != UNSET {
        return Some(known as libc::pthread_key_t);
    }
    let mut new: libc::pthread_key_t = 0;
    if unsafe { libc::pthread_key_create(&mut new, Some(destructor)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(UNSET, u64::from(new), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(new),
        Err(first) => {
            unsafe { libc::pthread_key_delete(new) };
            Some(first as libc::pthread_key_t)
        }
    }
}
