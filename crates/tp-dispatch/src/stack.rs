//! How much of its stack a thread has left. A foreign function may call the dispatcher again, and that one another
//! foreign function; whoever calls one asks first, so that endless recursion ends as an error on a stack of any size.
//! Not here: the error, which is the host's.

use crate::state::{self, CallState};

/// What is left to foreign functions, and to the error, once nobody may go deeper: a quarter of a small stack.
const RESERVE: usize = 256 << 10;

/// Whether too little of this thread's stack is left to call a foreign function.
#[inline(always)]
pub fn is_low() -> bool {
    let here = 0u8;
    let at = (&raw const here) as usize;
    state::with(|s| at < s.stack_floor.get() && is_below(s, at))
}

/// Finds the floor anew: nobody has asked on this thread yet, or the limit of the main thread may have been raised.
#[cold]
#[inline(never)]
fn is_below(state: &CallState, at: usize) -> bool {
    let Some((low, size)) = bounds() else {
        state.stack_floor.set(0);
        return false;
    };
    let floor = low + RESERVE.min(size / 4);
    state.stack_floor.set(floor);
    // A coroutine of a C library may run on a stack of its own, whose end is unknown.
    low <= at && at < floor
}

/// Lowest address and size of this thread's stack; None where the system does not say.
#[cfg(target_os = "linux")]
fn bounds() -> Option<(usize, usize)> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: plain calls of the C library about the calling thread; attributes are read only once they are there.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let found = libc::pthread_attr_getstack(attributes.as_ptr(), &mut low, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (found == 0).then_some((low as usize, size))
    }
}

/// Elsewhere the host's own limits are all there is.
#[cfg(not(target_os = "linux"))]
fn bounds() -> Option<(usize, usize)> {
    None
}

#[cfg(test)]
mod tests {
    use super::is_low;

    /// Goes down until the stack is low; the bytes between `top` and the deepest frame.
    #[inline(never)]
    fn down(top: usize) -> usize {
        let frame = std::hint::black_box([0u8; 1024]);
        let used = if is_low() { top - frame.as_ptr() as usize } else { down(top) };
        std::hint::black_box(&frame);
        used
    }

    #[test]
    fn a_stack_of_any_size_is_low_before_it_ends() {
        for size in [128, 512, 2048, 16384].map(|kilobytes| kilobytes << 10) {
            let thread = std::thread::Builder::new().stack_size(size);
            let from_here = || {
                let top = 0u8;
                down(&raw const top as usize)
            };
            let used = thread.spawn(from_here).unwrap().join().unwrap();
            // The C library may give a thread a larger stack that another one left.
            assert!(used > size / 2, "{used} bytes of {size}");
        }
    }

    #[test]
    fn a_thread_that_is_not_deep_has_room() {
        assert!(!is_low());
        std::thread::spawn(|| assert!(!is_low())).join().unwrap();
    }
}
