//! Tables by address: a few are asked at every opcode, so that they hash by one multiplication.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub type Addresses<V> = HashMap<usize, V, BuildHasherDefault<Multiply>>;
pub type AddressSet<K = usize> = HashSet<K, BuildHasherDefault<Multiply>>;

#[derive(Default, Clone, Copy)]
pub struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_usize(usize::from(*b)));
    }

    fn write_usize(&mut self, n: usize) {
        let mixed = (self.0.rotate_left(29) ^ n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }
}
