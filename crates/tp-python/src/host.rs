//! What Rust may ask of the interpreter: give up its lock for a while, deliver an interrupt (and let the threads run that
//! would cause one), and tell where in the
//! user's source the call came from.

use crate::error;
use crate::hot::ffi as x;
use crate::hot::queue;
use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tp_dispatch::Result;
use tp_dispatch::host::{Host, Location};

struct Interpreter;

unsafe extern "C" {
    fn PyEval_GetFrame() -> *mut ffi::PyObject;
    fn PyFrame_GetBack(frame: *mut ffi::PyObject) -> *mut ffi::PyObject;
    fn PyFrame_GetCode(frame: *mut ffi::PyObject) -> *mut ffi::PyObject;
    fn PyFrame_GetLineNumber(frame: *mut ffi::PyObject) -> std::os::raw::c_int;
}

/// File names of code objects; None for code of this package. Code objects are kept alive by their entry.
static FILES: Mutex<Option<HashMap<usize, Option<Arc<str>>>>> = Mutex::new(None);

impl Host for Interpreter {
    fn without_lock(&self, work: &mut (dyn FnMut() + Send)) {
        // SAFETY: the thread state that is saved is the one restored, on this thread.
        unsafe {
            if x::PyGILState_Check() == 0 {
                return work();
            }
            let saved = Restore(ffi::PyEval_SaveThread());
            work();
            drop(saved);
        }
        queue::drain();
    }

    fn poll(&self) -> Result<()> {
        // SAFETY: asks about this thread; signals are checked only with the lock held, which is taken back before.
        unsafe {
            if x::PyGILState_Check() == 0 {
                return Ok(());
            }
            yield_lock();
            if ffi::PyErr_CheckSignals() != 0 {
                return Err(error::fetch());
            }
        }
        Ok(())
    }

    fn location(&self) -> Option<Location> {
        // SAFETY: frames are walked with the lock held.
        unsafe { if x::PyGILState_Check() == 1 { user_frame() } else { None } }
    }
}

/// How long a poll keeps the lock. Longer than CPython's switch interval of 5 ms: only a thread that waited that long
/// asks for the lock, and only to one that asked it is handed over. Let go of sooner, the lock wakes those that wait
/// and is taken back before they run, and they never ask.
const KEEP_LOCK: Duration = Duration::from_millis(8);

thread_local! {
    /// When this thread last let go of the lock in a poll.
    static YIELDED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Lets go of the lock for a moment, so that threads that wait for it run: timers, and those that raise a signal.
/// Only now and then, for handing a lock over costs more than the steps between two polls.
///
/// # Safety
/// The lock is held.
unsafe fn yield_lock() {
    let now = Instant::now();
    match YIELDED.get() {
        Some(last) if now.duration_since(last) < KEEP_LOCK => return,
        Some(_) => {
            // SAFETY: the thread state that is saved is the one restored, on this thread.
            unsafe { drop(Restore(ffi::PyEval_SaveThread())) };
            queue::drain();
        }
        // The first poll of a thread starts the clock.
        None => {}
    }
    YIELDED.set(Some(Instant::now()));
}

/// Takes the lock again even when the work panics.
struct Restore(*mut ffi::PyThreadState);

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: saved by this thread.
        unsafe { ffi::PyEval_RestoreThread(self.0) };
    }
}

unsafe fn user_frame() -> Option<Location> {
    // SAFETY: owned references to frames and code objects, given back on the way.
    unsafe {
        let mut frame = PyEval_GetFrame();
        if frame.is_null() {
            return None;
        }
        ffi::Py_INCREF(frame);
        while !frame.is_null() {
            let code = PyFrame_GetCode(frame);
            if let Some(file) = file_of(code) {
                let line = PyFrame_GetLineNumber(frame).max(0) as u32;
                ffi::Py_DECREF(frame);
                return Some(Location { file, line });
            }
            let back = PyFrame_GetBack(frame);
            ffi::Py_DECREF(frame);
            frame = back;
        }
        None
    }
}

/// Where the standard library lies. Found when the module is made: asked for later, Python would run, and hand its lock over,
/// under the lock of `FILES`.
static STANDARD: OnceLock<String> = OnceLock::new();

/// Whether a file is of this package, or part of the interpreter itself.
pub fn is_ours(file: &str) -> bool {
    file.contains("/tensorplay/") && !file.contains("/tests/") || file.starts_with("<frozen ")
}

/// Whether a file is of Python's standard library: what it calls is called for somebody.
pub fn is_standard(file: &str) -> bool {
    let inside = STANDARD.get().and_then(|folder| file.strip_prefix(folder.as_str()));
    inside.is_some_and(|rest| !rest.starts_with("site-packages") && !rest.starts_with("dist-packages"))
}

/// Takes over a reference to `code`.
unsafe fn file_of(code: *mut ffi::PyObject) -> Option<Arc<str>> {
    // SAFETY: a live code object.
    unsafe {
        let mut guard = FILES.lock();
        let files = guard.get_or_insert_default();
        if let Some(known) = files.get(&(code as usize)) {
            let known = known.clone();
            ffi::Py_DECREF(code);
            return known;
        }
        let name = ffi::PyObject_GetAttrString(code, c"co_filename".as_ptr());
        if name.is_null() {
            ffi::PyErr_Clear();
            ffi::Py_DECREF(code);
            return None;
        }
        let text = x::shown(name);
        let own = is_ours(&text) || is_standard(&text);
        let file: Option<Arc<str>> = if own { None } else { Some(text.into()) };
        ffi::Py_DECREF(name);
        files.insert(code as usize, file.clone());
        file
    }
}

pub fn install(py: Python<'_>) -> PyResult<()> {
    let os: Option<String> = py.import("os")?.getattr("__file__").ok().and_then(|file| file.extract().ok());
    if let Some(folder) = os.as_deref().and_then(|file| file.strip_suffix("os.py")) {
        STANDARD.get_or_init(|| folder.to_string());
    }
    tp_dispatch::host::install(&Interpreter);
    Ok(())
}
