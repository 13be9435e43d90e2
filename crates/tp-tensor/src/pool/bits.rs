//! Ranges in a bitmap of `u64` words, as the extents use them for their pages.

/// Sets or clears `len` bits from `start`.
pub fn set(map: &mut [u64], start: usize, len: usize, value: bool) {
    for_words(start, len, |word, mask| {
        if value {
            map[word] |= mask;
        } else {
            map[word] &= !mask;
        }
    });
}

/// Whether any of the `len` bits from `start` is set.
pub fn any(map: &[u64], start: usize, len: usize) -> bool {
    let mut found = false;
    for_words(start, len, |word, mask| found |= map[word] & mask != 0);
    found
}

/// First run of `len` clear bits that starts at a multiple of `align`.
pub fn find_clear(map: &[u64], len: usize, align: usize) -> Option<usize> {
    let bits = map.len() * 64;
    let mut start = 0;
    loop {
        start = next(map, start, false).next_multiple_of(align);
        if start + len > bits {
            return None;
        }
        let end = next(map, start, true);
        if end - start >= len {
            return Some(start);
        }
        // A bit is set at `end`, or `end` is past the last bit and the next round stops.
        start = end.max(start + 1);
    }
}

/// First position from `from` on whose bit has this value; the number of bits if there is none.
fn next(map: &[u64], from: usize, value: bool) -> usize {
    let mut word = from / 64;
    let mut skip = from % 64;
    while word < map.len() {
        let bits = if value { map[word] } else { !map[word] } & (u64::MAX << skip);
        if bits != 0 {
            return word * 64 + bits.trailing_zeros() as usize;
        }
        word += 1;
        skip = 0;
    }
    map.len() * 64
}

/// Calls `f(word, mask)` for every word that the range touches.
fn for_words(start: usize, len: usize, mut f: impl FnMut(usize, u64)) {
    let (mut at, end) = (start, start + len);
    while at < end {
        let (word, bit) = (at / 64, at % 64);
        let count = (64 - bit).min(end - at);
        f(word, (u64::MAX >> (64 - count)) << bit);
        at += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_agree_with_a_plain_vector() {
        let (mut map, mut plain) = ([0u64; 4], [false; 256]);
        let mut seed = 12345u64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        for _ in 0..5000 {
            let start = random(256);
            let len = random(257 - start);
            let value = random(3) == 0;
            set(&mut map, start, len, value);
            plain[start..start + len].fill(value);
            let (from, count) = (random(200), random(56));
            assert_eq!(any(&map, from, count), plain[from..from + count].contains(&true));
            let (len, align) = (1 + random(70), 1 << random(6));
            let fits = |start: usize| start + len <= 256 && !plain[start..start + len].contains(&true);
            assert_eq!(find_clear(&map, len, align), (0..256).step_by(align).find(|&s| fits(s)));
        }
    }
}
