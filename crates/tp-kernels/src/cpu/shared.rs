//! A raw pointer that the threads of one kernel share.

/// Output memory of one kernel; every thread writes to its own part.
pub struct SharedMut<T>(*mut T);

// SAFETY: only a pointer; whoever dereferences it keeps to its own part.
unsafe impl<T: Send> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    pub fn new(p: *mut T) -> Self {
        SharedMut(p)
    }

    #[inline(always)]
    pub fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}
