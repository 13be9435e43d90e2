//! Guards on state of the host language, which a captured function read besides its arguments. What they look at is the
//! host's business; but for words of memory, which are compared here, so that an entry that depends on no more costs no
//! call.

use std::any::Any;
use std::fmt::Debug;
use tp_tensor::Tensor;

pub trait HostGuards: Debug + Send + Sync {
    /// Whether every read of the capture would give what it gave.
    fn holds(&self) -> bool;

    /// The first guard that does not hold, with what was found; None where all do.
    fn miss(&self) -> Option<String>;

    /// Every guard as text.
    fn texts(&self) -> Vec<String>;

    /// Words of memory that `holds` leaves to the caller, and that have to be what they were. They can be read as long as
    /// the guards live.
    fn words(&self) -> Vec<Word>;

    /// Whether the words are all there is to look at.
    fn is_words_only(&self) -> bool;

    /// The place where a tensor was read, if it was met there alone and nobody asked which tensor it is.
    fn slot_of(&self, t: &Tensor) -> Option<u32>;

    /// Another tensor of the same kind may stand at the place from now on: runs fetch it.
    fn release(&self, slot: u32);

    /// The tensor that stands there; None where `holds` would not hold.
    fn fetch(&self, slot: u32) -> Option<Tensor>;

    /// For the host, to get at its own.
    fn as_any(&self) -> &dyn Any;
}

/// A word of the host's memory, and what it held.
#[derive(Debug)]
pub struct Word {
    at: *const usize,
    value: usize,
}

// SAFETY: the word is only read, by whoever may look at the host's state.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// # Safety
    /// The word can be read for as long as this lives, by every thread that checks the guards: nobody writes to it at that
    /// time.
    pub unsafe fn new(at: *const usize) -> Word {
        // SAFETY: the caller's promise.
        Word { at, value: unsafe { at.read() } }
    }

    #[inline(always)]
    pub fn holds(&self) -> bool {
        // SAFETY: by `new`.
        unsafe { self.at.read() == self.value }
    }
}
