//! Guards on the host's state: a word that moved asks what it stands for, and what holds renews it.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tp_graph::guard::{Context, GuardSet};
use tp_graph::host_guards::{Fetched, HostGuards, Word};
use tp_tensor::Tensor;

/// A place with a version, and a value that is guarded: 0.
#[derive(Debug)]
struct Place {
    version: AtomicUsize,
    value: AtomicUsize,
    other: AtomicUsize,
    asked: AtomicUsize,
}

#[derive(Debug)]
struct Guards {
    place: Arc<Place>,
    has_more: bool,
}

impl HostGuards for Guards {
    fn holds(&self) -> bool {
        self.place.other.load(Ordering::Relaxed) == 0
    }

    fn covered_hold(&self) -> bool {
        self.place.asked.fetch_add(1, Ordering::Relaxed);
        self.place.value.load(Ordering::Relaxed) == 0
    }

    fn miss(&self) -> Option<String> {
        Some("value == 0".to_string())
    }

    fn texts(&self) -> Vec<String> {
        vec!["value == 0".to_string()]
    }

    fn words(&self) -> Vec<Word> {
        // SAFETY: the place lives as long as the guards; one thread runs.
        vec![unsafe { Word::new(self.place.version.as_ptr().cast_const()) }]
    }

    fn is_words_only(&self) -> bool {
        !self.has_more
    }

    fn slot_of(&self, _: &Tensor) -> Option<u32> {
        None
    }

    fn release(&self, _: u32) {}

    fn fetch(&self, _: u32) -> Fetched {
        Fetched::Lost
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn guarded(version: usize, has_more: bool) -> (Arc<Place>, GuardSet) {
    let [value, other, asked] = std::array::from_fn(|_| AtomicUsize::new(0));
    let place = Arc::new(Place { version: AtomicUsize::new(version), value, other, asked });
    let host: Box<dyn HostGuards> = Box::new(Guards { place: place.clone(), has_more });
    (place, GuardSet::new(&[], &[], Context::of_host(host)))
}

#[test]
fn a_word_that_moved_is_looked_behind_once_while_what_it_stands_for_holds() {
    for has_more in [false, true] {
        let (place, guards) = guarded(1, has_more);
        assert!(guards.holds(&[]));
        assert_eq!(place.asked.load(Ordering::Relaxed), 0);
        place.version.store(5, Ordering::Relaxed);
        for _ in 0..3 {
            assert!(guards.holds(&[]));
            assert_eq!(place.asked.load(Ordering::Relaxed), 1);
        }
    }
}

#[test]
fn a_word_that_is_zero_stands_for_nothing() {
    for from in [0, 1] {
        let (place, guards) = guarded(from, false);
        place.version.store(0, Ordering::Relaxed);
        for n in 1..=3 {
            assert!(guards.holds(&[]));
            assert_eq!(place.asked.load(Ordering::Relaxed), n);
        }
        place.value.store(1, Ordering::Relaxed);
        assert!(!guards.holds(&[]));
    }
}

#[test]
fn what_changed_behind_a_word_fails_at_every_call_until_it_is_put_back() {
    for has_more in [false, true] {
        let (place, guards) = guarded(1, has_more);
        place.version.store(5, Ordering::Relaxed);
        place.value.store(1, Ordering::Relaxed);
        for _ in 0..3 {
            assert!(!guards.holds(&[]));
        }
        assert_eq!(guards.check(&[]).unwrap_err(), "value == 0");
        place.value.store(0, Ordering::Relaxed);
        assert!(guards.holds(&[]));
    }
}

#[test]
fn what_no_word_stands_for_is_asked_at_every_call() {
    let (place, guards) = guarded(1, true);
    place.other.store(1, Ordering::Relaxed);
    assert!(!guards.holds(&[]));
    place.other.store(0, Ordering::Relaxed);
    assert!(guards.holds(&[]));
}
