//! Stores that go to memory past the caches: for results larger than any cache, which would only be fetched in order to be
//! overwritten.

/// From so many bytes on a result is not found in the cache again by whoever reads it.
pub const STREAM_BYTES: usize = 32 << 20;

/// Copies of one thread to memory past its caches. What was written is in order for other threads from its end on.
#[derive(Default)]
pub struct Stream(());

impl Stream {
    /// # Safety
    /// As for `ptr::copy_nonoverlapping`.
    #[inline]
    pub unsafe fn copy(&mut self, from: *const u8, to: *mut u8, bytes: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
            const LINE: usize = 64;
            const VECTOR: usize = size_of::<__m128i>();
            let head = to.align_offset(LINE).min(bytes);
            let lines = (bytes - head) / LINE * LINE;
            // SAFETY: parts of both; the streamed one starts at a line and is whole lines.
            unsafe {
                std::ptr::copy_nonoverlapping(from, to, head);
                for at in (head..head + lines).step_by(VECTOR) {
                    let value = _mm_loadu_si128(from.add(at).cast());
                    _mm_stream_si128(to.add(at).cast(), value);
                }
                let rest = head + lines;
                std::ptr::copy_nonoverlapping(from.add(rest), to.add(rest), bytes - rest);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, bytes)
        };
    }
}

impl Drop for Stream {
    #[inline]
    fn drop(&mut self) {
        // Such stores are ordered by no lock.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has it.
        unsafe {
            std::arch::x86_64::_mm_sfence()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_wherever_it_starts_and_no_other_is_touched() {
        let from: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
        for start in [0, 1, 13, 63, 64, 65] {
            for bytes in [0, 1, 15, 64, 127, 128, 700] {
                let mut to = vec![255u8; 1000];
                // SAFETY: within both.
                unsafe { Stream::default().copy(from.as_ptr(), to.as_mut_ptr().add(start), bytes) };
                assert_eq!(to[start..start + bytes], from[..bytes]);
                assert!(to[..start].iter().chain(&to[start + bytes..]).all(|&b| b == 255));
            }
        }
    }
}
