//! The stamp of the running kernel: a kernel that launches something else (a compiled module, a cubin) leaves
//! its marker here as it launches; the path that records events takes it. A kernel that stamps nothing is
//! described by its registration.

use crate::outcome::CodegenMarker;
use std::cell::RefCell;

thread_local! {
    static STAMP: RefCell<Option<CodegenMarker>> = const { RefCell::new(None) };
}

/// Called by launching code.
pub fn stamp(marker: CodegenMarker) {
    STAMP.with(|s| *s.borrow_mut() = Some(marker));
}

/// Takes the stamp that the last launch on this thread left.
pub fn take() -> Option<CodegenMarker> {
    STAMP.with(|s| s.borrow_mut().take())
}
