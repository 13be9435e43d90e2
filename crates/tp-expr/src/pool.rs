//! The one place where threads are started: a parallel loop over ranges. Work given to it must not dispatch
//! operators: a pool thread has no call state of its caller.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};

use rayon::{ThreadPool, ThreadPoolBuilder};

/// Chunks per thread: enough to even out threads that lose their core for a while.
const CHUNKS_PER_THREAD: usize = 4;

/// The wanted number of threads; 0 before the first use stands for the machine's parallelism.
static WANTED: AtomicUsize = AtomicUsize::new(0);
/// Set in a forked child, where the threads of the pool do not exist.
static FORKED: AtomicBool = AtomicBool::new(false);
static FORK_HANDLER: Once = Once::new();
static POOL: Mutex<Option<Arc<ThreadPool>>> = Mutex::new(None);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Sets how many threads a parallel loop uses, the caller's own among them; 0 restores the default.
pub fn set_num_threads(n: usize) {
    WANTED.store(n, Ordering::Relaxed);
}

/// How many threads a parallel loop uses here: 1 inside a loop and in a forked child.
pub fn num_threads() -> usize {
    if INSIDE.get() || FORKED.load(Ordering::Relaxed) {
        return 1;
    }
    match WANTED.load(Ordering::Relaxed) {
        0 => {
            let n = std::thread::available_parallelism().map_or(1, |n| n.get());
            // A concurrent `set_num_threads` wins.
            let _ = WANTED.compare_exchange(0, n, Ordering::Relaxed, Ordering::Relaxed);
            n
        }
        n => n,
    }
}

/// Calls `body` with ranges that cover `0..n` once, in no order, on several threads if `n` exceeds `grain`. Inner
/// bounds are multiples of `grain`. Returns when all calls have returned.
pub fn parallel_for(n: usize, grain: usize, body: impl Fn(Range<usize>) + Sync) {
    let grain = grain.max(1);
    if n <= grain {
        if n > 0 {
            body(0..n);
        }
        return;
    }
    let threads = num_threads().min(n.div_ceil(grain));
    let pool = if threads > 1 { pool_of(num_threads() - 1) } else { None };
    match pool {
        Some(pool) => split(&pool, threads, n, grain, &body),
        None => body(0..n),
    }
}

fn split(pool: &ThreadPool, threads: usize, n: usize, grain: usize, body: &(impl Fn(Range<usize>) + Sync)) {
    let grains = n.div_ceil(grain);
    let chunk = grains.div_ceil(threads * CHUNKS_PER_THREAD) * grain;
    let next = AtomicUsize::new(0);
    let work = || {
        let outer = INSIDE.replace(true);
        loop {
            let start = next.fetch_add(chunk, Ordering::Relaxed);
            if start >= n {
                break;
            }
            body(start..n.min(start + chunk));
        }
        INSIDE.set(outer);
    };
    pool.in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| work());
        }
        work();
    });
}

/// The pool with `workers` threads besides the caller's; `None` where threads cannot be had.
fn pool_of(workers: usize) -> Option<Arc<ThreadPool>> {
    FORK_HANDLER.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let mut slot = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(pool) = slot.as_ref().filter(|pool| pool.current_num_threads() == workers) {
        return Some(pool.clone());
    }
    let name = |i| format!("tensorplay-{i}");
    let pool = Arc::new(ThreadPoolBuilder::new().num_threads(workers).thread_name(name).build().ok()?);
    *slot = Some(pool.clone());
    Some(pool)
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_once_and_nesting_is_serial() {
        for (n, grain) in [(0, 1), (1, 1), (7, 3), (1000, 1), (1000, 64), (1000, 5000)] {
            let hits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            parallel_for(n, grain, |range| {
                assert!(range.start % grain == 0);
                for i in range {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{n} {grain}");
        }
        let inner = AtomicUsize::new(0);
        parallel_for(8, 1, |_| {
            if num_threads() > 1 && INSIDE.get() {
                inner.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(inner.load(Ordering::Relaxed), 0);
    }
}
