//! Python objects dropped by Rust code that does not hold the interpreter lock wait here, and go at the next entry
//! that does.

use super::ffi::{self as x, Obj};
use parking_lot::Mutex;
use pyo3::ffi;
use std::sync::atomic::{AtomicBool, Ordering};

struct Waiting(Vec<usize>);

static WAITING: Mutex<Waiting> = Mutex::new(Waiting(Vec::new()));
static ANY: AtomicBool = AtomicBool::new(false);

/// Gives back one reference, now or later. Null is fine.
pub fn release(obj: Obj) {
    if obj.is_null() {
        return;
    }
    // SAFETY: asks only about this thread; after finalisation nothing may be touched.
    unsafe {
        if ffi::Py_IsInitialized() == 0 {
            return;
        }
        if x::PyGILState_Check() == 1 {
            ffi::Py_DECREF(obj);
            return;
        }
    }
    WAITING.lock().0.push(obj as usize);
    ANY.store(true, Ordering::Release);
}

/// Releases what waits. The interpreter lock is held.
#[inline]
pub fn drain() {
    if ANY.load(Ordering::Relaxed) {
        drain_now();
    }
}

#[cold]
fn drain_now() {
    let waiting = {
        let mut w = WAITING.lock();
        ANY.store(false, Ordering::Relaxed);
        std::mem::take(&mut w.0)
    };
    for obj in waiting {
        // SAFETY: an owned reference, and the lock is held.
        unsafe { ffi::Py_DECREF(obj as Obj) };
    }
}
