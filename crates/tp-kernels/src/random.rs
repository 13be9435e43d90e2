//! Random bits: Philox4x32-10, a counter-based generator. Element i of a draw depends on the seed, on how much was
//! drawn before, and on i, so the number of threads changes nothing.

use crate::draws;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Copy)]
struct State {
    seed: u64,
    /// Blocks of four words drawn so far.
    blocks: u64,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// Starts the sequence that belongs to `seed`. Nothing happens in what runs again, for its draws are known.
pub fn manual_seed(seed: u64) {
    if draws::replaying() {
        return;
    }
    *STATE.lock().unwrap_or_else(PoisonError::into_inner) = Some(State { seed, blocks: 0 });
}

/// Seed and position: what `set_state` needs to go on from here.
pub fn get_state() -> (u64, u64) {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let s = state.get_or_insert_with(fresh);
    (s.seed, s.blocks)
}

pub fn set_state(seed: u64, blocks: u64) {
    *STATE.lock().unwrap_or_else(PoisonError::into_inner) = Some(State { seed, blocks });
}

/// A seed nobody chose: the standard library's hash keys come from the operating system.
fn fresh() -> State {
    State { seed: RandomState::new().build_hasher().finish(), blocks: 0 }
}

/// A stretch of the sequence that belongs to one draw.
#[derive(Clone, Copy)]
pub struct Stream {
    seed: u64,
    first: u64,
}

/// Reserves `blocks` blocks; of a replay those that it had before.
pub fn reserve(blocks: u64) -> Stream {
    draws::next(|| fresh_stream(blocks))
}

fn fresh_stream(blocks: u64) -> Stream {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let s = state.get_or_insert_with(fresh);
    let stream = Stream { seed: s.seed, first: s.blocks };
    s.blocks = s.blocks.wrapping_add(blocks);
    stream
}

impl Stream {
    /// The four words of block `i`.
    #[inline]
    pub fn block(self, i: u64) -> [u32; 4] {
        let at = self.first.wrapping_add(i);
        philox([at as u32, (at >> 32) as u32, 0, 0], [self.seed as u32, (self.seed >> 32) as u32])
    }
}

/// Philox4x32 with ten rounds (Salmon et al., 2011).
#[inline]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xD251_1F53;
        let b = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// The known answers published with the generator.
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
