//! Grad mode as a scope. The bit itself belongs to the thread's call state in tp-dispatch.

pub use tp_dispatch::state::{is_grad_enabled, set_grad_enabled};

/// Sets grad mode while it lives and restores the mode before, whatever happens inside.
#[must_use = "grad mode is restored when the guard is dropped"]
pub struct GradMode {
    before: bool,
}

impl GradMode {
    #[inline]
    pub fn set(on: bool) -> GradMode {
        GradMode { before: set_grad_enabled(on) }
    }

    pub fn no_grad() -> GradMode {
        GradMode::set(false)
    }

    pub fn enable() -> GradMode {
        GradMode::set(true)
    }
}

impl Drop for GradMode {
    #[inline]
    fn drop(&mut self) {
        set_grad_enabled(self.before);
    }
}
