//! Memory that more than one storage reaches: a NumPy array that was imported twice, a tensor whose own memory came
//! back through a buffer. A write through one of them moves the versions of all, found by the bytes they cover.
//!
//! Only storages over foreign memory and those that were lent out are listed; the others pay nothing.

use crate::storage::StorageHeader;
use parking_lot::Mutex;
use std::collections::BTreeMap;

struct Ranges {
    /// First byte and address of the header, to the byte behind the last.
    by_start: BTreeMap<(usize, usize), usize>,
    /// No range is longer; how far back an overlapping one can begin.
    longest: usize,
}

static RANGES: Mutex<Ranges> = Mutex::new(Ranges { by_start: BTreeMap::new(), longest: 0 });

fn key(header: &StorageHeader) -> (usize, usize) {
    (header.data() as usize, std::ptr::from_ref(header) as usize)
}

/// Lists a storage. It stays listed until `leave`, which comes before its header is freed.
#[cold]
pub(crate) fn join(header: &StorageHeader) {
    let mut ranges = RANGES.lock();
    let start = header.data() as usize;
    ranges.by_start.insert(key(header), start.saturating_add(header.nbytes()));
    ranges.longest = ranges.longest.max(header.nbytes());
}

#[cold]
pub(crate) fn leave(header: &StorageHeader) {
    let mut ranges = RANGES.lock();
    ranges.by_start.remove(&key(header));
    if ranges.by_start.is_empty() {
        ranges.longest = 0;
    }
}

/// Moves the version of every listed storage that has a byte in common with `header`, its own included.
#[cold]
pub(crate) fn bump(header: &StorageHeader) {
    let ranges = RANGES.lock();
    let (start, own) = key(header);
    let end = start.saturating_add(header.nbytes());
    header.bump();
    let from = (start.saturating_sub(ranges.longest), 0);
    for (&(_, other), &stop) in ranges.by_start.range(from..(end, 0)) {
        if stop > start && other != own {
            // SAFETY: a listed header is alive: it leaves the list, which is locked, before it is freed.
            unsafe { (*(other as *const StorageHeader)).bump() };
        }
    }
}
