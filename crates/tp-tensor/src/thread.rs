//! A value per thread, cheap to reach. A thread-local variable of a shared library costs a call at every access,
//! several times per operation. So one thread of the process, the first that asks, has its values in statics, found
//! by comparing the thread pointer; every other thread pays for the call.
//!
//! # Safety
//! The statics belong to the thread whose pointer is in `FIRST`. It is entered once, before that thread has touched
//! any value of this kind, and never again after that thread ended or stayed behind in a fork: no two threads ever
//! take the statics for theirs.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Nobody has asked yet.
const NONE: usize = 0;
/// The first thread is gone; thread pointers are aligned, so none is 1 or 2.
const GONE: usize = 1;
const NEVER: usize = 2;

static FIRST: AtomicUsize = AtomicUsize::new(NONE);

/// An address that no other running thread has; `NEVER` where there is no cheap way to it.
#[inline(always)]
fn pointer() -> usize {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let p: usize;
        // SAFETY: the first word of the thread control block is its own address, by the ABI.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) p, options(nostack, preserves_flags, readonly, pure))
        };
        p
    }
    #[cfg(all(target_arch = "aarch64", target_os = "linux"))]
    {
        let p: usize;
        // SAFETY: reads the thread pointer register.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) p, options(nostack, preserves_flags, nomem, pure))
        };
        p
    }
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        NEVER
    }
}

/// Whether the calling thread has its values in statics.
#[inline(always)]
pub fn is_first() -> bool {
    pointer() == FIRST.load(Ordering::Relaxed)
}

/// Makes the calling thread the first one if there never was one.
#[cold]
pub fn claim() -> bool {
    let me = pointer();
    if me == NEVER || FIRST.load(Ordering::Relaxed) != NONE {
        return is_first();
    }
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: plain calls of the C library; a key's destructor runs when the thread ends, if its value is not null.
    unsafe {
        if libc::pthread_key_create(&mut key, Some(leave)) != 0 {
            return false;
        }
        let ours = FIRST.compare_exchange(NONE, me, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !ours || libc::pthread_setspecific(key, ptr::dangling::<c_void>()) != 0 {
            libc::pthread_key_delete(key);
            if ours {
                FIRST.store(GONE, Ordering::Relaxed);
            }
            return false;
        }
        libc::pthread_atfork(None, None, Some(forked));
    }
    true
}

unsafe extern "C" fn leave(_: *mut c_void) {
    FIRST.store(GONE, Ordering::Relaxed);
}

/// In a forked child only the forking thread goes on; another one may get the address of the first.
unsafe extern "C" fn forked() {
    if !is_first() {
        FIRST.store(GONE, Ordering::Relaxed);
    }
}

/// The first thread's value.
pub struct First<T>(T);

// SAFETY: only the first thread uses it, see the module.
unsafe impl<T> Sync for First<T> {}

impl<T> First<T> {
    pub const fn new(value: T) -> First<T> {
        First(value)
    }

    #[inline(always)]
    pub fn as_ptr(&'static self) -> *const T {
        &raw const self.0
    }
}

/// `per_thread!(fn name() -> *const T = initial value)`: a function that gives the calling thread's value, which
/// lives as long as the thread. The type needs no destructor.
#[macro_export]
macro_rules! per_thread {
    ($(#[$meta:meta])* $vis:vis fn $name:ident() -> *const $ty:ty = $init:expr) => {
        $(#[$meta])*
        #[inline(always)]
        $vis fn $name() -> *const $ty {
            static FIRST: $crate::thread::First<$ty> = $crate::thread::First::new($init);
            const { assert!(!std::mem::needs_drop::<$ty>()) };
            #[cold]
            #[inline(never)]
            fn other() -> *const $ty {
                thread_local! {
                    static OTHER: $ty = const { $init };
                }
                if $crate::thread::claim() { FIRST.as_ptr() } else { OTHER.with(std::ptr::from_ref) }
            }
            if $crate::thread::is_first() { FIRST.as_ptr() } else { other() }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    per_thread!(fn counter() -> *const Cell<u32> = Cell::new(0));

    fn add(n: u32) -> u32 {
        // SAFETY: this thread's own value.
        let cell = unsafe { &*counter() };
        cell.set(cell.get() + n);
        cell.get()
    }

    #[test]
    fn every_thread_has_its_own_value_and_keeps_it() {
        let threads: Vec<_> = (1..9)
            .map(|n| {
                std::thread::spawn(move || {
                    let address = counter();
                    (0..1000).for_each(|_| {
                        add(n);
                        std::thread::yield_now();
                    });
                    assert_eq!(counter(), address);
                    add(0)
                })
            })
            .collect();
        for (n, thread) in (1..9).zip(threads) {
            assert_eq!(thread.join().unwrap(), 1000 * n);
        }
    }

    #[test]
    fn a_thread_after_the_first_one_starts_anew() {
        for _ in 0..4 {
            std::thread::spawn(|| assert_eq!(add(1), 1)).join().unwrap();
        }
    }
}
