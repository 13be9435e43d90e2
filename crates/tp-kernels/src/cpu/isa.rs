//! Hand-written loops compiled once per instruction set: the same code, vectorised as wide as the machine allows.
//! No reassociation and no contraction happens (`mul_add` is one instruction where it is
//! written), so every version gives the same bits.

/// The instruction sets that loops are compiled for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub enum Isa {
    Base,
    Avx2,
    Avx512,
}

/// The best one of this machine.
#[inline]
pub fn best() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        // The standard library keeps the answers in a static.
        let fma = is_x86_feature_detected!("fma");
        if fma && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            return Isa::Avx512;
        }
        if fma && is_x86_feature_detected!("avx2") {
            return Isa::Avx2;
        }
    }
    Isa::Base
}

/// Calls `work` compiled for the best instruction set. `work` and what it calls must be `#[inline(always)]` for
/// that to mean anything.
#[inline]
pub fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the features were detected.
        unsafe {
            match best() {
                Isa::Avx512 => return avx512(work),
                Isa::Avx2 => return avx2(work),
                Isa::Base => {}
            }
        }
    }
    work()
}

/// Work too large for the compiler to move by its own decision, which `vectorized` leaves to it.
pub trait Work {
    /// Must be `#[inline(always)]`, and what it calls.
    fn run(self);
}

/// As `vectorized`.
#[inline]
pub fn vectorized_work(work: impl Work) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the features were detected.
        unsafe {
            match best() {
                Isa::Avx512 => return avx512_work(work),
                Isa::Avx2 => return avx2_work(work),
                Isa::Base => {}
            }
        }
    }
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn avx512_work(work: impl Work) {
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2_work(work: impl Work) {
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
unsafe fn avx512<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<R>(work: impl FnOnce() -> R) -> R {
    work()
}
