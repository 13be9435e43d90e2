//! Random load on the pool: threads that come and go, blocks freed by others than their makers, trims, forks
//! in between. Every block carries a pattern that is checked before it is freed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::tests::{Held, in_child};
use super::{cache_cap, stats, trim};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    fn size(&mut self) -> usize {
        match self.below(1000) {
            0 => (1 << 20) + self.below(8) * 300_000,
            1..10 => 40_000 + self.below(12) * 50_000,
            10..100 => self.below(32 << 10),
            _ => self.below(700),
        }
    }
}

/// Where threads leave blocks for each other.
struct Exchange {
    bins: Vec<Mutex<Vec<Held>>>,
    operations: AtomicUsize,
    stop: AtomicBool,
}

/// One thread's life: makes, checks, passes on and frees blocks.
fn live(exchange: &Exchange, seed: u64, operations: usize) {
    let mut random = Random(seed | 1);
    let mut own: Vec<Held> = Vec::new();
    for _ in 0..operations {
        match random.below(10) {
            0..5 if own.len() < 400 => own.push(Held::new(random.size(), seed as u8)),
            5..8 if !own.is_empty() => drop(own.swap_remove(random.below(own.len()))),
            8 => {
                let mut bin = exchange.bins[random.below(exchange.bins.len())].lock().unwrap();
                std::mem::swap(&mut *bin, &mut own);
            }
            _ => own.iter_mut().rev().take(2).for_each(Held::check),
        }
    }
    exchange.operations.fetch_add(operations, Relaxed);
}

/// What a forked child does: it has the pool and the blocks of the forking thread.
fn child(own: &mut [Held], seed: u64) {
    own.iter_mut().for_each(Held::check);
    let mut random = Random(seed | 1);
    for _ in 0..10 {
        drop((0..100).map(|_| Held::new(random.size(), 3)).collect::<Vec<_>>());
    }
    if seed.is_multiple_of(4) {
        thread::spawn(|| drop(Held::new(90, 4))).join().unwrap();
        trim();
    }
}

fn stress(time: Duration) {
    let exchange = Exchange {
        bins: (0..8).map(|_| Mutex::default()).collect(),
        operations: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    };
    let (mut forks, mut threads) = (0, 0);
    let lives = AtomicUsize::new(0);
    thread::scope(|scope| {
        for worker in 1..=3u64 {
            let (exchange, lives) = (&exchange, &lives);
            scope.spawn(move || {
                while !exchange.stop.load(Relaxed) {
                    let seed = lives.fetch_add(1, Relaxed) as u64 * 3 + worker;
                    let life = move || live(exchange, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 20_000);
                    thread::scope(|inner| inner.spawn(life).join().unwrap());
                }
            });
        }
        let end = Instant::now() + time;
        let mut random = Random(77);
        while Instant::now() < end {
            let mut own: Vec<Held> = (0..50).map(|_| Held::new(random.size(), 7)).collect();
            in_child(|| child(&mut own, forks));
            forks += 1;
            if forks.is_multiple_of(16) {
                trim();
            }
            assert!(stats().large_cached_bytes <= cache_cap());
        }
        exchange.stop.store(true, Relaxed);
        threads += lives.load(Relaxed);
    });
    assert!(forks > 10 && threads > 6, "{forks} forks and {threads} threads are no stress");
    assert!(exchange.operations.load(Relaxed) >= threads * 20_000);
}

#[test]
fn threads_exits_trims_and_forks_together() {
    stress(Duration::from_secs(2));
}

#[test]
#[ignore = "long stress; run with --ignored"]
fn threads_exits_trims_and_forks_for_a_minute() {
    stress(Duration::from_secs(60));
}
