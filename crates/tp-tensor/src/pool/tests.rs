//! Directed tests of the pool. Those that count run in a forked child with an empty pool and one thread, so
//! their statistics are exact whatever the other tests do meanwhile.

use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::mpsc::channel;

use super::*;

/// A block held by a test: filled with a pattern of its own, checked when freed.
pub struct Held {
    ptr: NonNull<u8>,
    bytes: usize,
    seed: u8,
}

unsafe impl Send for Held {}

impl Held {
    pub fn new(bytes: usize, seed: u8) -> Held {
        let ptr = try_alloc(bytes).expect("out of memory");
        assert!(ptr.addr().get().is_multiple_of(BLOCK_ALIGN));
        let mut held = Held { ptr, bytes, seed };
        held.probes().for_each(|(byte, value)| unsafe { *byte = value });
        held
    }

    /// Every byte of a small block; of a large one both ends and one byte in each page between.
    fn probes(&mut self) -> impl Iterator<Item = (*mut u8, u8)> + use<> {
        let (ptr, bytes, seed) = (self.ptr.as_ptr(), self.bytes, self.seed);
        let step = if bytes <= 4096 { 1 } else { 1021 };
        let ends = bytes.saturating_sub(64)..bytes;
        (0..bytes).step_by(step).chain(ends).map(move |at| (unsafe { ptr.add(at) }, seed ^ (at as u8)))
    }

    pub fn check(&mut self) {
        let bytes = self.bytes;
        assert!(self.probes().all(|(byte, value)| unsafe { *byte } == value), "block of {bytes} changed");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.check();
        unsafe { free(self.ptr, self.bytes) };
    }
}

/// Runs `body` in a forked child and fails if it panics, crashes or takes half a minute.
pub fn in_child(body: impl FnOnce()) {
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        unsafe { libc::alarm(30) };
        let code = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(()) => 0,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text =
                    text.or(panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default() + "\n";
                unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
                1
            }
        };
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
}

/// Runs `body` in a child whose pool holds nothing: what other tests did before does not show.
fn with_fresh_pool(body: impl FnOnce()) {
    in_child(|| {
        local::flush();
        *central::lock() = central::Central::new();
        local::forget_other_threads(&mut central::lock(), &[0; class::CLASSES]);
        assert_eq!((stats().live_blocks, stats().cached_bytes), (0, 0));
        body();
    });
}

/// Blocks and bytes in use now, less those at `start`.
fn live_since(start: Stats) -> (usize, usize) {
    let now = stats();
    (now.live_blocks - start.live_blocks, now.live_bytes - start.live_bytes)
}

#[test]
fn blocks_are_aligned_disjoint_and_keep_their_contents() {
    let sizes =
        (0..2000).step_by(7).chain((2000..70_000).step_by(997)).chain([1 << 20, (1 << 20) + 1, 5 << 20]);
    let sizes: Vec<usize> = sizes.collect();
    for round in 0..3 {
        let mut held: Vec<Held> =
            sizes.iter().map(|&bytes| Held::new(bytes, (bytes + round) as u8)).collect();
        held.iter_mut().for_each(Held::check);
        let mut spans: Vec<_> = held.iter().map(|h| (h.ptr.addr().get(), h.bytes)).collect();
        spans.sort();
        assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1.max(1) <= pair[1].0));
    }
}

#[test]
fn a_freed_block_is_the_next_one_of_its_class() {
    let first = try_alloc(304).unwrap();
    unsafe { free(first, 304) };
    let again = try_alloc(320).unwrap();
    assert_eq!(first, again);
    unsafe { free(again, 320) };
}

#[test]
fn statistics_count_blocks_nodes_and_buffers() {
    with_fresh_pool(|| {
        let start = stats();
        let node = Layout::from_size_align(136, 8).unwrap();
        let nodes: Vec<_> = (0..1000).map(|_| node_alloc(node).unwrap()).collect();
        assert_eq!(live_since(start), (1000, 144_000));
        let blocks: Vec<_> = (0..100).map(|_| try_alloc(304).unwrap()).collect();
        let buffer = try_alloc(3 << 20).unwrap();
        assert_eq!(live_since(start), (1101, 144_000 + 32_000 + (3 << 20)));
        assert_eq!(
            [block_size(304), block_size(3 << 20), block_size(1 << 62)],
            [Some(320), Some(3 << 20), None]
        );
        unsafe {
            nodes.into_iter().for_each(|ptr| node_free(ptr, node));
            blocks.into_iter().for_each(|ptr| free(ptr, 304));
            free(buffer, 3 << 20);
        }
        assert_eq!(live_since(start), (0, 0));
        assert!(stats().cached_bytes - start.cached_bytes >= 144_000 + (3 << 20));
    });
}

#[test]
fn nodes_choose_by_size_and_alignment() {
    for (size, align) in [(1, 1), (16, 16), (136, 8), (512, 16), (513, 8), (100, 64), (9000, 32), (0, 1)] {
        let layout = Layout::from_size_align(size, align).unwrap();
        let ptr = node_alloc(layout).unwrap();
        assert!(ptr.addr().get().is_multiple_of(align.max(16)));
        unsafe { ptr.write_bytes(7, size) };
        unsafe { node_free(ptr, layout) };
    }
    assert_eq!(node_alloc(Layout::from_size_align(64, 128).unwrap()), None);
}

#[test]
fn impossible_sizes_are_refused() {
    for bytes in [1 << 46, (1 << 47) + 1, 1 << 62, isize::MAX as usize, usize::MAX] {
        assert_eq!((try_alloc(bytes), try_alloc_zeroed(bytes)), (None, None), "{bytes}");
    }
}

#[test]
fn zeroed_memory_is_zero_whatever_was_there() {
    for bytes in [1, 200, 5000, 32 << 10, 100_000, 1 << 20, 3 << 20] {
        for _ in 0..3 {
            let ptr = try_alloc_zeroed(bytes).unwrap();
            let contents = unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), bytes) };
            assert!(contents.iter().all(|&byte| byte == 0), "{bytes}");
            contents.fill(0xa5);
            unsafe { free(ptr, bytes) };
        }
    }
}

#[test]
fn freed_buffers_are_reused_by_exact_size_without_mappings() {
    with_fresh_pool(|| {
        let sizes = [50_000, 300_000, 1 << 20, 3 << 20, 64 << 20];
        let first = sizes.map(|bytes| try_alloc(bytes).unwrap());
        std::iter::zip(first, sizes).for_each(|(ptr, bytes)| unsafe { free(ptr, bytes) });
        let before = stats();
        for _ in 0..10 {
            let again = sizes.map(|bytes| try_alloc(bytes).unwrap());
            assert_eq!(again, first);
            std::iter::zip(again, sizes).for_each(|(ptr, bytes)| unsafe { free(ptr, bytes) });
        }
        assert_eq!(stats().mappings, before.mappings);
        assert_eq!(stats().large_reused, before.large_reused + 50);
    });
}

#[test]
fn the_cache_drops_the_oldest_buffers_over_its_cap() {
    with_fresh_pool(|| {
        trim();
        set_cache_cap(10 << 20);
        assert_eq!(cache_cap(), 10 << 20);
        let base = stats().mapped_bytes;
        let sizes = [2 << 20, 3 << 20, 4 << 20, 5 << 20, 11 << 20];
        let ptrs = sizes.map(|bytes| try_alloc(bytes).unwrap());
        assert_eq!(stats().mapped_bytes - base, 25 << 20);
        std::iter::zip(ptrs, sizes).for_each(|(ptr, bytes)| unsafe { free(ptr, bytes) });
        // 2, 3, 4 fit; 5 pushes 2 and 3 out; 11 exceeds the cap by itself.
        assert_eq!((stats().large_cached_bytes, stats().mapped_bytes - base), (9 << 20, 9 << 20));
        let reused = stats().large_reused;
        for (bytes, hits) in [(3 << 20, 0), (4 << 20, 1), (5 << 20, 2)] {
            try_alloc(bytes).unwrap();
            assert_eq!(stats().large_reused - reused, hits, "{bytes}");
        }
    });
}

/// Limits the address space of this (child) process to what it has plus `bytes`.
fn limit_address_space(bytes: usize) {
    let pages: usize = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .expect("statm");
    let limit = (pages * 4096 + bytes) as libc::rlim_t;
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

#[test]
#[cfg(target_os = "linux")]
fn out_of_memory_empties_the_cache_first_and_is_then_an_answer() {
    with_fresh_pool(|| {
        limit_address_space(100 << 20);
        let cached = try_alloc(60 << 20).unwrap();
        unsafe { free(cached, 60 << 20) };
        let other = try_alloc(70 << 20).expect("the cached buffer makes room");
        assert_eq!(try_alloc(70 << 20), None);
        let cached = try_alloc(20 << 20).unwrap();
        unsafe { free(cached, 20 << 20) };
        let mut blocks = Vec::with_capacity(1 << 16);
        while let Some(block) = try_alloc(1000) {
            blocks.push(block);
            assert!(blocks.len() < blocks.capacity());
        }
        assert!(try_alloc(1000).is_none() && try_alloc(300_000).is_none());
        blocks.into_iter().for_each(|ptr| unsafe { free(ptr, 1000) });
        unsafe { free(other, 70 << 20) };
        assert!(try_alloc(1000).is_some() && try_alloc(80 << 20).is_some());
    });
}

#[test]
fn trim_returns_everything_that_is_not_in_use() {
    with_fresh_pool(|| {
        trim();
        let start = stats();
        let mut held: Vec<Held> = (0..200_000).map(|i| Held::new(200 + i % 900, i as u8)).collect();
        held.push(Held::new(700_000, 9));
        held.push(Held::new(7 << 20, 9));
        let peak = stats().mapped_bytes;
        let mut kept: Vec<Held> = Vec::new();
        for (index, block) in held.into_iter().enumerate() {
            if index % 50_000 == 0 {
                kept.push(block);
            }
        }
        trim();
        // Four small blocks and the mid-size buffer.
        assert_eq!(stats().live_blocks - start.live_blocks, 5);
        assert!(peak - start.mapped_bytes > 120 << 20);
        assert!(stats().mapped_bytes - start.mapped_bytes <= 48 << 20, "one extent for each at most");
        kept.iter_mut().for_each(Held::check);
        kept.push(Held::new(300, 3));
        drop(kept);
        trim();
        assert!(stats().mapped_bytes <= start.mapped_bytes);
        assert_eq!(live_since(start), (0, 0));
        drop(Held::new(300, 3));
    });
}

#[test]
fn blocks_freed_on_another_thread_come_back_through_the_depot() {
    with_fresh_pool(|| {
        let (send, receive) = channel::<Vec<Held>>();
        let consumer =
            std::thread::spawn(move || receive.into_iter().map(|blocks| blocks.len()).sum::<usize>());
        let mut mapped = 0;
        for round in 0..400 {
            // One element in flight at most: sizes repeat, so the pool must not grow.
            let blocks: Vec<Held> = (0..200).map(|i| Held::new(64 + i * 10, i as u8)).collect();
            send.send(blocks).unwrap();
            while stats().live_blocks > 4000 {
                std::thread::yield_now();
            }
            if round == 100 {
                mapped = stats().mapped_bytes;
            }
        }
        drop(send);
        assert_eq!(consumer.join().unwrap(), 80_000);
        assert!(stats().mapped_bytes <= mapped + (16 << 20));
    });
}

#[test]
fn an_exited_thread_leaves_its_blocks_to_others() {
    with_fresh_pool(|| {
        let work = || drop((0..3000).map(|i| Held::new(100 + i % 700, i as u8)).collect::<Vec<_>>());
        std::thread::spawn(work).join().unwrap();
        let first = stats();
        for _ in 0..100 {
            std::thread::spawn(work).join().unwrap();
        }
        let last = stats();
        assert_eq!((last.mapped_bytes, last.live_blocks), (first.mapped_bytes, first.live_blocks));
        assert_eq!(last.cached_bytes, first.cached_bytes);
    });
}

/// Uses the pool when its thread ends.
struct AtExit(Option<Held>);

impl Drop for AtExit {
    fn drop(&mut self) {
        self.0 = None;
        drop((0..200).map(|i| Held::new(i * 9, i as u8)).collect::<Vec<_>>());
    }
}

thread_local!(static AT_EXIT: std::cell::RefCell<AtExit> = const { std::cell::RefCell::new(AtExit(None)) });

unsafe extern "C" fn use_pool(_: *mut libc::c_void) {
    drop(AtExit(None));
}

#[test]
fn destructors_of_an_exiting_thread_may_use_the_pool() {
    with_fresh_pool(|| {
        // Keys made before and after the pool's own.
        let mut keys: [libc::pthread_key_t; 2] = [0; 2];
        unsafe { libc::pthread_key_create(&mut keys[0], Some(use_pool)) };
        drop(Held::new(100, 1));
        unsafe { libc::pthread_key_create(&mut keys[1], Some(use_pool)) };
        let start = stats();
        let exit_with = move |uses_pool: bool| {
            AT_EXIT.with(|at_exit| at_exit.borrow_mut().0 = uses_pool.then(|| Held::new(500, 3)));
            keys.iter()
                .for_each(|&key| unsafe { assert_eq!(libc::pthread_setspecific(key, 8 as *const _), 0) });
        };
        for uses_pool in [false, true, false, true] {
            std::thread::spawn(move || exit_with(uses_pool)).join().unwrap();
        }
        assert_eq!(live_since(start), (0, 0));
    });
}

#[test]
fn a_forked_child_forgets_other_threads_but_keeps_its_own_blocks() {
    with_fresh_pool(|| {
        let mut mine = Held::new(300, 5);
        let (to_thread, from_main) = channel::<()>();
        let (to_main, from_thread) = channel::<()>();
        let thread = std::thread::spawn(move || {
            drop((0..500).map(|i| Held::new(i, 1)).collect::<Vec<_>>());
            to_main.send(()).unwrap();
            from_main.recv().unwrap();
        });
        from_thread.recv().unwrap();
        let parent = stats();
        in_child(|| {
            assert_eq!((stats().live_blocks, stats().live_bytes), (parent.live_blocks, parent.live_bytes));
            mine.check();
            drop((0..5000).map(|i| Held::new(i, 2)).collect::<Vec<_>>());
            std::thread::spawn(|| drop(Held::new(64, 3))).join().unwrap();
            trim();
            assert_eq!(stats().live_blocks, parent.live_blocks);
        });
        mine.check();
        to_thread.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!(stats().live_blocks, parent.live_blocks);
    });
}
