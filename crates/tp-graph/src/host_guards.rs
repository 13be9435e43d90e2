//! Guards on state of the host language, which a captured function read besides its arguments. What they look at is the
//! host's business; but for words of memory, which are compared here, so that an entry for which nothing changed costs no
//! call. The pool of a host's state that one word stands for is asked only when the word moved.

use std::any::Any;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use tp_tensor::Tensor;

pub trait HostGuards: Debug + Send + Sync {
    /// Whether every read of the capture would give what it gave, but for those that `covered_hold` is about.
    fn holds(&self) -> bool;

    /// The same of the reads that the words stand for: asked when one of those changed.
    fn covered_hold(&self) -> bool;

    /// The first guard that does not hold, with what was found; None where all do.
    fn miss(&self) -> Option<String>;

    /// Every guard as text.
    fn texts(&self) -> Vec<String>;

    /// Words of memory; while all of them are what they were, `covered_hold` would be true. They can be read as long as
    /// the guards live.
    fn words(&self) -> Vec<Word>;

    /// Whether the words stand for all there is to look at.
    fn is_words_only(&self) -> bool;

    /// The place where a tensor was read, if it was met there alone and nobody asked which tensor it is.
    fn slot_of(&self, t: &Tensor) -> Option<u32>;

    /// Another tensor of the same kind may stand at the place from now on: runs fetch it.
    fn release(&self, slot: u32);

    /// What stands there.
    fn fetch(&self, slot: u32) -> Fetched;

    /// For the host, to get at its own.
    fn as_any(&self) -> &dyn Any;
}

/// What stands at a place where a tensor was read.
pub enum Fetched {
    /// The tensor of the capture.
    Same,
    Other(Tensor),
    /// Nothing that `holds` would let pass.
    Lost,
}

/// A word of the host's memory, and what it held. One that is 0 stands for nothing: it never holds.
#[derive(Debug)]
pub struct Word {
    at: *const usize,
    value: AtomicUsize,
}

// SAFETY: the word is only read, by whoever may look at the host's state.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

/// No version, and no address.
const UNKNOWN: usize = usize::MAX;
static ALWAYS: usize = 1;

impl Word {
    /// One that never changes.
    pub const fn constant() -> Word {
        Word { at: &raw const ALWAYS, value: AtomicUsize::new(ALWAYS) }
    }

    /// # Safety
    /// The word can be read for as long as this lives, by every thread that checks the guards: nobody writes to it at that
    /// time.
    pub unsafe fn new(at: *const usize) -> Word {
        // SAFETY: the caller's promise.
        let word = Word { at, value: AtomicUsize::new(UNKNOWN) };
        word.renew(unsafe { at.read() });
        word
    }

    #[inline(always)]
    pub fn holds(&self) -> bool {
        self.read() == self.value.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn read(&self) -> usize {
        // SAFETY: by `new`.
        unsafe { self.at.read() }
    }

    /// What it held stands for the same as before.
    pub fn renew(&self, value: usize) {
        if value != 0 {
            self.value.store(value, Ordering::Relaxed);
        }
    }
}
