//! Casts that vectorise: the rules of `tp_tensor::scalar::cast_value`, with the 16-bit floats converted by integer
//! arithmetic without branches.

use std::any::TypeId;

use tp_tensor::scalar::{Element, bf16, cast_value, f16};

/// `cast_value`, in a form whose loop vectorises.
#[inline(always)]
pub fn cast<S: Element, D: Element>(value: S) -> D {
    let from_half = S::DTYPE.is_low_precision();
    let to_half = D::DTYPE.is_low_precision() && !same::<S, D>();
    match (from_half, to_half) {
        (false, false) if D::DTYPE.is_int() && same::<S, f32>() => truncate(cast_value(value)),
        (true, false) if D::DTYPE.is_int() => truncate(widen(value)),
        (false, false) => cast_value(value),
        (true, false) if same::<S, D>() => cast_value(value),
        (true, false) => cast_value(widen(value)),
        (false, true) => narrow(cast_value::<S, f32>(value)),
        (true, true) => narrow(widen(value)),
    }
}

#[inline(always)]
fn same<S: 'static, D: 'static>() -> bool {
    TypeId::of::<S>() == TypeId::of::<D>()
}

/// float32 to an integer: truncated, saturated, NaN to 0. Up to 32 bits by one int32 conversion of the clamped value.
#[inline(always)]
fn truncate<D: Element>(value: f32) -> D {
    let (low, high) = match D::DTYPE.int_info() {
        // The next float32 below 2^31 is the last that converts.
        Some(info) if info.bits == 32 => (info.min as f32, 2_147_483_520.0),
        Some(info) if info.bits < 32 => (info.min as f32, info.max as f32),
        _ => return cast_value(value),
    };
    let x = if value < low { low } else { value };
    let x = if x > high { high } else { x };
    let x = if value.is_nan() { 0.0 } else { x };
    // SAFETY: the clamped value is no NaN and within int32.
    let r: i32 = unsafe { x.to_int_unchecked() };
    let saturates = D::DTYPE.itemsize() == 4 && value >= 2_147_483_648.0;
    D::from_i64(if saturates { i32::MAX as i64 } else { r as i64 })
}

#[inline(always)]
fn widen<S: Element>(value: S) -> f32 {
    let bits = value.to_bits64() as u16;
    if same::<S, bf16>() { f32::from_bits((bits as u32) << 16) } else { f16_to_f32(bits) }
}

#[inline(always)]
fn narrow<D: Element>(value: f32) -> D {
    let bits = if same::<D, f16>() { f32_to_f16(value) } else { f32_to_bf16(value) };
    D::from_bits64(bits as u64)
}

/// Rounds to nearest even; NaN keeps its top bits and is quiet.
#[inline(always)]
fn f32_to_bf16(value: f32) -> u16 {
    let u = value.to_bits();
    let rounded = u.wrapping_add(0x7fff + ((u >> 16) & 1)) >> 16;
    let quiet = (u >> 16) | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}

#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    const EXPONENT: u32 = 0x7c00 << 13;
    let shifted = (bits as u32 & 0x7fff) << 13;
    let exponent = shifted & EXPONENT;
    let normal = shifted + ((127 - 15) << 23);
    // Infinity and NaN: the exponent goes all the way up.
    let special = normal + ((128 - 16) << 23);
    // Denormals: let the float unit normalise them.
    let denormal = (f32::from_bits(normal + (1 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let r = if exponent == EXPONENT { special } else { normal };
    let r = if exponent == 0 { denormal } else { r };
    f32::from_bits(r | ((bits as u32 & 0x8000) << 16))
}

/// Rounds to nearest even; NaN keeps its top bits and is quiet.
#[inline(always)]
fn f32_to_f16(value: f32) -> u16 {
    // The smallest normal float16, and 2^16, from where everything is infinite.
    const MIN_NORMAL: u32 = 113 << 23;
    const OVERFLOW: u32 = 143 << 23;
    // Adding this float shifts a denormal's mantissa into place, rounding as the float unit does.
    const DENORMAL_MAGIC: u32 = ((127 - 15) + (23 - 10) + 1) << 23;
    let u = value.to_bits();
    let magnitude = u & 0x7fff_ffff;
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let shifted = f32::from_bits(magnitude) + f32::from_bits(DENORMAL_MAGIC);
    let denormal = shifted.to_bits().wrapping_sub(DENORMAL_MAGIC);
    let nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    let r = if magnitude < MIN_NORMAL { denormal } else { normal };
    let r = if magnitude >= OVERFLOW { 0x7c00 } else { r };
    let r = if value.is_nan() { nan } else { r };
    (r | ((u >> 16) & 0x8000)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_float_widens_and_comes_back() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            if h.is_nan() {
                assert!(cast::<f16, f32>(h).is_nan());
            } else {
                assert_eq!(cast::<f16, f32>(h).to_bits(), h.to_f32().to_bits());
                assert_eq!(cast::<f32, f16>(h.to_f32()), h);
            }
            if b.is_nan() {
                assert!(cast::<bf16, f32>(b).is_nan());
            } else {
                assert_eq!(cast::<bf16, f32>(b).to_bits(), b.to_f32().to_bits());
                assert_eq!(cast::<f32, bf16>(b.to_f32()), b);
            }
        }
    }

    #[test]
    fn narrowing_agrees_with_the_definition() {
        // A stride coprime to the mantissa's tie patterns, and the neighbours of every tie.
        let ties = (0..=u16::MAX).flat_map(|h| {
            let tie = f16::from_bits(h).to_f32().to_bits();
            let brain = (h as u32) << 16;
            [tie | 0xfff, tie | 0x1000, tie | 0x1001, brain | 0x7fff, brain | 0x8000, brain | 0x8001]
        });
        for bits in (0..=u32::MAX).step_by(4099).chain(ties) {
            let x = f32::from_bits(bits);
            let (h, b) = (cast::<f32, f16>(x), cast::<f32, bf16>(x));
            if x.is_nan() {
                assert!(h.is_nan() && b.is_nan(), "{bits:#x}");
            } else {
                assert_eq!(h.to_bits(), f16::from_f32(x).to_bits(), "{bits:#x}");
                assert_eq!(b.to_bits(), bf16::from_f32(x).to_bits(), "{bits:#x}");
            }
        }
    }
}
