//! Branch-free conversion of f16 and bf16 to f32, so that loops over it vectorize on every ISA.

/// f16 to f32: exact, with subnormals, infinities and NaN.
#[inline(always)]
pub(crate) fn f16(bits: u16) -> f32 {
    let size = u32::from(bits & 0x7fff);
    let sign = u32::from(bits & 0x8000) << 16;
    // the exponent is 112 too small after the shift; the product is exact, also for subnormals
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
