//! How much of the thread's stack is left: a call that goes round and round through Python ends as RecursionError, also
//! where `sys.setrecursionlimit` allows more rounds than the stack holds. Not here: Python's own limit, which the
//! interpreter keeps.

use crate::error;
use pyo3::ffi;
use tp_dispatch::Result;
use tp_dispatch::state::with;

/// What is kept free for the code that runs after the check: an eighth of the stack, within these bounds.
const LEAST: usize = 48 << 10;
const MOST: usize = 256 << 10;

/// RecursionError where the thread's stack is nearly used up. Lock held.
#[inline(always)]
pub fn check() -> Result<()> {
    let here = 0u8;
    let is_low = ((&raw const here) as usize) < with(|s| s.stack.get());
    if is_low && is_used_up() { Err(error::fetch()) } else { Ok(()) }
}

/// Whether it is so, with the exception set, where the stack is low or was not measured yet. Lock held.
#[cold]
#[inline(never)]
pub fn is_used_up() -> bool {
    let here = 0u8;
    let at = (&raw const here) as usize;
    let Some((end, size)) = bounds() else {
        with(|s| s.stack.set(0));
        return false;
    };
    let limit = end + (size / 8).clamp(LEAST, MOST);
    with(|s| s.stack.set(limit));
    // Below its end, this is another stack than the thread's own (a coroutine's), of which nothing is known.
    if at >= limit || at < end {
        return false;
    }
    let text = c"maximum recursion depth exceeded: the stack of this thread is used up";
    // SAFETY: lock held.
    unsafe { ffi::PyErr_SetString(ffi::PyExc_RecursionError, text.as_ptr()) };
    true
}

/// The lowest address of this thread's stack and its size.
#[cfg(target_os = "linux")]
fn bounds() -> Option<(usize, usize)> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut end, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are filled by the first call, read by the second, freed by the third.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let found = libc::pthread_attr_getstack(attributes.as_ptr(), &mut end, &mut size) == 0;
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        found.then_some((end as usize, size))
    }
}

#[cfg(not(target_os = "linux"))]
fn bounds() -> Option<(usize, usize)> {
    None
}
