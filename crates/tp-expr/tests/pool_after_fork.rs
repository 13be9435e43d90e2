//! The pool in a forked child: its threads are gone, so loops run on the child's one thread and still finish.
//! Alone in its process, since a fork copies whatever other tests hold.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tp_expr::pool;

#[test]
fn loops_run_serially_in_a_forked_child() {
    pool::set_num_threads(2);
    assert_eq!(pool::num_threads(), 2);
    let (sum, threads) = (AtomicUsize::new(0), Mutex::new(HashSet::new()));
    pool::parallel_for(64, 1, |range| {
        sum.fetch_add(range.sum(), Ordering::Relaxed);
        threads.lock().unwrap().insert(std::thread::current().id());
        std::thread::sleep(std::time::Duration::from_millis(2));
    });
    assert_eq!(sum.into_inner(), 2016);
    assert_eq!(threads.into_inner().unwrap().len(), 2);

    // SAFETY: the child only runs the loop, without allocating, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let sum = AtomicUsize::new(0);
        pool::parallel_for(64, 1, |range| {
            sum.fetch_add(range.sum(), Ordering::Relaxed);
        });
        let ok = sum.into_inner() == 2016 && pool::num_threads() == 1;
        unsafe { libc::_exit(if ok { 0 } else { 1 }) };
    }
    let mut status = 0;
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");

    // The parent's threads are still there.
    let sum = AtomicUsize::new(0);
    pool::parallel_for(64, 1, |range| {
        sum.fetch_add(range.sum(), Ordering::Relaxed);
    });
    assert_eq!(sum.into_inner(), 2016);
    assert_eq!(pool::num_threads(), 2);
}
