//! Size classes: which class serves a request, how big its blocks are, how many make a batch.
//! Pure arithmetic on constants; no memory here.

use super::os::PAGE;

/// Largest request served by the block classes; anything above is a large buffer.
pub const SMALL_MAX: usize = 32 << 10;
/// Largest node served with 16-byte granularity.
pub const NODE_MAX: usize = 512;
/// Blocks of the 64-byte-aligned classes start at multiples of this.
pub const BLOCK_ALIGN: usize = 64;
/// Blocks of the node classes start at multiples of this.
pub const NODE_ALIGN: usize = 16;
/// Large buffers up to this size are runs inside extents; bigger ones are mappings of their own.
pub const RUN_MAX: usize = 1 << 20;
/// Nothing above this is attempted: it exceeds the address space.
pub const LARGE_MAX: usize = 1 << 47;

/// 64 .. 1024 in steps of 64, then four per doubling up to 32 KiB.
const BLOCK_CLASSES: usize = 16 + 5 * 4;
const NODE_CLASSES: usize = NODE_MAX / NODE_ALIGN;
/// Number of small classes: block classes first, then node classes.
pub const CLASSES: usize = BLOCK_CLASSES + NODE_CLASSES;

/// Sixteen per doubling from 32 KiB to `LARGE_MAX`.
pub const LARGE_CLASSES: usize = 32 * 16;

/// Classes of the blocks above 1 KiB, by the last byte's offset in units of their smallest step.
const STEP: usize = 256;
const UPPER_CLASS: [u8; SMALL_MAX / STEP] = {
    let mut table = [0; SMALL_MAX / STEP];
    let (mut index, mut class) = (0, 0);
    while index < table.len() {
        while class_size(class) < (index + 1) * STEP {
            class += 1;
        }
        table[index] = class as u8;
        index += 1;
    }
    table
};

/// Class of a block of `bytes <= SMALL_MAX`.
#[inline(always)]
pub const fn block_class(bytes: usize) -> usize {
    let last = if bytes == 0 { 0 } else { bytes - 1 };
    if last < 1024 { last / 64 } else { UPPER_CLASS[last / STEP] as usize }
}

/// Class of a node of `1 ..= NODE_MAX` bytes.
#[inline(always)]
pub const fn node_class(bytes: usize) -> usize {
    BLOCK_CLASSES + (bytes - 1) / NODE_ALIGN
}

/// Bytes of one block of a small class.
pub const fn class_size(class: usize) -> usize {
    if class >= BLOCK_CLASSES {
        (class - BLOCK_CLASSES + 1) * NODE_ALIGN
    } else if class < 16 {
        (class + 1) * 64
    } else {
        let (doubling, quarter) = ((class - 16) / 4, (class - 16) % 4);
        (5 + quarter) << (8 + doubling)
    }
}

/// Bytes left out at the start of a slab of this class. Slabs start at pages, so without it the first blocks of all
/// classes, which a thread uses most, would fight for the same few sets of the first-level cache, which holds as
/// many lines of one page offset as it has ways. Small blocks give up 3 % of a slab for that, larger ones only
/// what does not make a block.
pub const fn slab_color(class: usize, slab: usize) -> usize {
    let lines = (class * 9 + 8) % (PAGE / BLOCK_ALIGN);
    let (size, wanted) = (class_size(class), lines * BLOCK_ALIGN);
    let spare = slab % size / BLOCK_ALIGN * BLOCK_ALIGN;
    if size <= 1024 || wanted < spare { wanted } else { spare }
}

/// Blocks that move between a thread and the depot at once: about 32 KiB, from 4 to 64 blocks.
const fn batch_size(class: usize) -> u32 {
    let blocks = (32 << 10) / class_size(class);
    if blocks < 4 {
        4
    } else if blocks > 64 {
        64
    } else {
        blocks as u32
    }
}

/// `class_size` and the batch of every small class.
pub static SIZE: [usize; CLASSES] = {
    let mut table = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = class_size(class);
        class += 1;
    }
    table
};

pub static BATCH: [u32; CLASSES] = {
    let mut table = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = batch_size(class);
        class += 1;
    }
    table
};

/// Size of the buffer that serves a large request: whole pages, at most 1/16 more than asked for, so that
/// slowly varying shapes still find their predecessors in the cache. None above `LARGE_MAX`.
pub const fn large_size(bytes: usize) -> Option<usize> {
    if bytes > LARGE_MAX {
        return None;
    }
    let last = if bytes > SMALL_MAX { bytes - 1 } else { SMALL_MAX };
    let step = last.ilog2() - 4;
    let shift = if step > PAGE.ilog2() { step } else { PAGE.ilog2() };
    Some(((last >> shift) + 1) << shift)
}

/// Index of a size returned by `large_size`; different sizes have different indices.
pub const fn large_class(size: usize) -> usize {
    let last = size - 1;
    let exponent = last.ilog2() as usize;
    (exponent - 15) * 16 + ((last >> (exponent - 4)) & 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_classes_cover_every_size_with_the_smallest_block() {
        for bytes in 0..=SMALL_MAX {
            let class = block_class(bytes);
            let size = class_size(class);
            assert!(size >= bytes && size.is_multiple_of(BLOCK_ALIGN) && class < BLOCK_CLASSES);
            assert!(class == 0 || class_size(class - 1) < bytes, "{bytes} fits a smaller class");
        }
        assert_eq!(class_size(BLOCK_CLASSES - 1), SMALL_MAX);
        assert_eq!(
            [1025, 1280, 1281, 2048, 2049].map(|b| class_size(block_class(b))),
            [1280, 1280, 1536, 2048, 2560]
        );
    }

    #[test]
    fn slabs_of_small_classes_start_at_different_lines_of_a_page() {
        let slab = 128 << 10;
        let mut lines = std::collections::HashSet::new();
        for class in 0..CLASSES {
            let (size, color) = (class_size(class), slab_color(class, slab));
            assert!(color < PAGE && color.is_multiple_of(BLOCK_ALIGN));
            assert!(size <= 1024 || (slab - color) / size == slab / size, "class {class} lost a block");
            lines.extend((size <= 1024).then_some(color / BLOCK_ALIGN));
        }
        assert!(lines.len() >= 44, "{} starts for 48 classes", lines.len());
    }

    #[test]
    fn node_classes_are_exact_to_sixteen_bytes() {
        for bytes in 1..=NODE_MAX {
            assert_eq!(class_size(node_class(bytes)), bytes.next_multiple_of(16));
            assert!(node_class(bytes) < CLASSES);
        }
        assert_eq!(class_size(node_class(136)), 144);
    }

    #[test]
    fn large_sizes_are_pages_and_classes_are_injective() {
        let mut previous = (0, usize::MAX);
        for bytes in (SMALL_MAX + 1..8 << 20).step_by(1021).chain((23..=47).map(|e| 1 << e)) {
            let size = large_size(bytes).unwrap();
            assert!(size >= bytes && size.is_multiple_of(PAGE));
            assert!(size - bytes <= (bytes / 16).max(PAGE), "{bytes} wastes too much");
            assert_eq!(large_size(size), Some(size), "a rounded size rounds to itself");
            let class = large_class(size);
            assert!(class < LARGE_CLASSES);
            assert!((size == previous.0) == (class == previous.1), "one class per size");
            previous = (size, class);
        }
        assert_eq!(large_size(64 << 20), Some(64 << 20));
        assert_eq!([LARGE_MAX + 1, 1 << 62, usize::MAX].map(large_size), [None; 3]);
    }
}
