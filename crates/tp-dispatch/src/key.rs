//! Dispatch keys and sets of them: which layers a call passes, highest first.

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};
use tp_tensor::{Device, DeviceKind, keybits};

/// A layer of the dispatcher. Order: Vmap > Autocast > Segment > Autograd > Capture > {Meta, Cuda, Cpu}. `Slow` is not
/// a layer: it is the bit that sends a call through the path that
/// traces, applies kernel preferences and debug checks, so that they cost nothing when off.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DispatchKey {
    Cpu = 0,
    Cuda = 1,
    Meta = 2,
    Capture = 3,
    Autograd = 4,
    Segment = 5,
    Autocast = 6,
    Vmap = 7,
    Slow = 8,
}

pub const KEY_COUNT: usize = 9;

impl DispatchKey {
    pub const ALL: [DispatchKey; KEY_COUNT] = [
        DispatchKey::Cpu,
        DispatchKey::Cuda,
        DispatchKey::Meta,
        DispatchKey::Capture,
        DispatchKey::Autograd,
        DispatchKey::Segment,
        DispatchKey::Autocast,
        DispatchKey::Vmap,
        DispatchKey::Slow,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            DispatchKey::Cpu => "cpu",
            DispatchKey::Cuda => "cuda",
            DispatchKey::Meta => "meta",
            DispatchKey::Capture => "capture",
            DispatchKey::Autograd => "autograd",
            DispatchKey::Segment => "segment",
            DispatchKey::Autocast => "autocast",
            DispatchKey::Vmap => "vmap",
            DispatchKey::Slow => "slow",
        }
    }

    /// The key of a device's kernels.
    pub const fn of(device: Device) -> DispatchKey {
        match device.kind {
            DeviceKind::Cpu => DispatchKey::Cpu,
            DeviceKind::Cuda => DispatchKey::Cuda,
            DeviceKind::Meta => DispatchKey::Meta,
        }
    }

    pub const fn set(self) -> KeySet {
        KeySet(1 << self as u16)
    }
}

impl fmt::Display for DispatchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of keys in one integer; the bits are those of `tp_tensor::keybits`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct KeySet(pub u16);

const _: () = assert!(keybits::VMAP == DispatchKey::Vmap.set().0);
const _: () = assert!(keybits::SEGMENT == DispatchKey::Segment.set().0);
const _: () = assert!(keybits::AUTOGRAD == DispatchKey::Autograd.set().0);
const _: () = assert!(keybits::CPU == DispatchKey::Cpu.set().0);

impl KeySet {
    pub const EMPTY: KeySet = KeySet(0);
    pub const ALL: KeySet = KeySet((1 << KEY_COUNT) - 1);
    /// Keys of devices.
    pub const BACKENDS: KeySet = KeySet(keybits::CPU | keybits::CUDA | keybits::META);

    #[inline]
    pub const fn contains(self, key: DispatchKey) -> bool {
        self.0 & key.set().0 != 0
    }

    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The highest key as an index into a dispatch table; 0 (Cpu) for the empty set, so that an op without
    /// tensors runs on the CPU.
    #[inline]
    pub const fn highest(self) -> usize {
        15 - ((self.0 | 1).leading_zeros() as usize)
    }

    /// Keys strictly below `key`.
    #[inline]
    pub const fn below(key: DispatchKey) -> KeySet {
        KeySet(key.set().0 - 1)
    }

    pub fn iter(self) -> impl Iterator<Item = DispatchKey> {
        DispatchKey::ALL.into_iter().rev().filter(move |k| self.contains(*k))
    }
}

impl BitOr for KeySet {
    type Output = KeySet;
    #[inline]
    fn bitor(self, rhs: KeySet) -> KeySet {
        KeySet(self.0 | rhs.0)
    }
}

impl BitAnd for KeySet {
    type Output = KeySet;
    #[inline]
    fn bitand(self, rhs: KeySet) -> KeySet {
        KeySet(self.0 & rhs.0)
    }
}

impl Not for KeySet {
    type Output = KeySet;
    #[inline]
    fn not(self) -> KeySet {
        KeySet(!self.0 & Self::ALL.0)
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_wins() {
        let keys = DispatchKey::Cpu.set() | DispatchKey::Autograd.set();
        assert_eq!(keys.highest(), DispatchKey::Autograd as usize);
        assert_eq!((keys & KeySet::below(DispatchKey::Autograd)).highest(), DispatchKey::Cpu as usize);
        assert_eq!(KeySet::EMPTY.highest(), 0);
        assert_eq!(keys.iter().collect::<Vec<_>>(), [DispatchKey::Autograd, DispatchKey::Cpu]);
        assert!(!(!keys).contains(DispatchKey::Cpu));
    }
}
