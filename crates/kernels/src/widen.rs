//! Branch-free conversion of f16 and bf16 to f32, so that loops over it vectorize on every ISA.

/// f16 to f32: exact for normal and subnormal numbers and infinities; NaN stays NaN.
#[inline(always)]
pub(crate) fn f16(bits: u16) -> f32 {
    let size = u32::from(bits & 0x7fff);
    let sign = u32::from(bits & 0x8000) << 16;
    // The shifted exponent is 112 too small, since the biases of f16 and f32 are 15 and 127:
    // multiply by 2^112. A subnormal f16 becomes a subnormal f32, which the same exact product
    // normalizes.
    let value = f32::from_bits(size << 13) * f32::from_bits(0x7780_0000);
    let special = f32::from_bits(0x7f80_0000 | (size << 13));
    let magnitude = if size >= 0x7c00 { special } else { value };
    f32::from_bits(magnitude.to_bits() | sign)
}

#[inline(always)]
pub(crate) fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_half_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (found, truth) = (super::f16(bits), half::f16::from_bits(bits).to_f32());
            assert!(found.to_bits() == truth.to_bits() || (found.is_nan() && truth.is_nan()), "{bits:04x}");
        }
    }
}
