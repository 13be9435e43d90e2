//! What a stretch of a program drew from the generator, so that it can run again with the same numbers: whatever other
//! threads draw meanwhile, and without a trace in the sequence of the process.

use crate::random::Stream;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The draws of one stretch, in order.
#[derive(Clone, Default)]
pub struct Draws(Arc<Mutex<Vec<Stream>>>);

enum Frame {
    Record(Draws),
    Replay(Draws, usize),
}

thread_local! {
    /// Recordings and replays that this thread is in, innermost last.
    static FRAMES: RefCell<Vec<(u64, Frame)>> = const { RefCell::new(Vec::new()) };
}

/// Names for frames.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Ends its recording or replay when it is dropped, on the thread that began it.
#[must_use = "it ends when the guard is dropped"]
pub struct Entered(u64);

impl Draws {
    /// Notes what this thread draws.
    pub fn record(&self) -> Entered {
        enter(Frame::Record(self.clone()))
    }

    /// Gives this thread the same draws again; what it draws beyond them is fresh.
    pub fn replay(&self) -> Entered {
        enter(Frame::Replay(self.clone(), 0))
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn enter(frame: Frame) -> Entered {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    FRAMES.with(|frames| frames.borrow_mut().push((id, frame)));
    Entered(id)
}

impl Drop for Entered {
    fn drop(&mut self) {
        // A guard that is dropped while its thread ends has nothing left to end.
        let _ = FRAMES.try_with(|frames| frames.borrow_mut().retain(|(id, _)| *id != self.0));
    }
}

/// The next draw: that of the innermost replay, else a `fresh` one. Recordings inside of that replay note it; those
/// around it do not, for they will run the replay again.
pub(crate) fn next(fresh: impl FnOnce() -> Stream) -> Stream {
    FRAMES.with(|frames| {
        let mut frames = frames.borrow_mut();
        let replay = frames.iter().rposition(|(_, f)| matches!(f, Frame::Replay(..)));
        let given = replay.and_then(|at| match &mut frames[at].1 {
            Frame::Replay(draws, place) => {
                *place += 1;
                draws.streams().get(*place - 1).copied()
            }
            Frame::Record(_) => None,
        });
        let stream = given.unwrap_or_else(fresh);
        for (_, frame) in &frames[replay.map_or(0, |at| at + 1)..] {
            if let Frame::Record(draws) = frame {
                draws.streams().push(stream);
            }
        }
        stream
    })
}

/// Whether this thread runs something again, which leaves the generator of the process alone.
pub(crate) fn replaying() -> bool {
    FRAMES.with(|frames| frames.borrow().iter().any(|(_, f)| matches!(f, Frame::Replay(..))))
}
