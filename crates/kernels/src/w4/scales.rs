//! Group scales: f16, E8M0 (MXFP4), or E4M3 with a scale of the tensor (NVFP4).
#![allow(unsafe_code, reason = "vectors are loaded from rows whose length the matrix has checked")]

use super::nibbles::{LANES, Nibbles};

/// Group scales, row-major `[K / group, N]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum W4Scales<'a> {
    /// Bits of f16.
    F16(&'a [u16]),
    /// Exponents: 2^(code − 127); 255 is NaN.
    E8m0(&'a [u8]),
    /// F8_E4M3 codes times the tensor's scale; 0x7f and 0xff are NaN.
    E4m3 { codes: &'a [u8], tensor: f32 },
}

impl W4Scales<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            W4Scales::F16(scales) => scales.len(),
            W4Scales::E8m0(codes) | W4Scales::E4m3 { codes, .. } => codes.len(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.len() * if matches!(self, W4Scales::F16(_)) { 2 } else { 1 }
    }

    /// Sixteen scales from index `at`, times `factor`.
    ///
    /// # Safety
    /// There are sixteen scales from `at`; the caller is compiled for the ISA of `L`, and the CPU
    /// has it.
    #[inline(always)]
    pub(super) unsafe fn load<L: Nibbles>(&self, at: usize, factor: f32) -> L::F32x16 {
        // SAFETY: sixteen scales from `at` by this function's contract, as is the ISA.
        unsafe {
            let (scales, factor) = match self {
                W4Scales::F16(bits) => (L::load_f16(bits.as_ptr().add(at).cast()), factor),
                W4Scales::E8m0(codes) => {
                    let codes = codes.as_ptr().add(at).cast::<[u8; LANES]>().read_unaligned();
                    (L::load_f32(each(codes, e8m0).as_ptr()), factor)
                }
                W4Scales::E4m3 { codes, tensor } => {
                    let codes = codes.as_ptr().add(at).cast::<[u8; LANES]>().read_unaligned();
                    (L::load_f32(each(codes, e4m3).as_ptr()), tensor * factor)
                }
            };
            L::mul(scales, L::splat_f32(factor))
        }
    }
}

/// Applies a function to sixteen codes. The functions have no branches, so that the loop is
/// vectorized.
#[inline(always)]
fn each(codes: [u8; LANES], value: fn(u8) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for (out, code) in out.iter_mut().zip(codes) {
        *out = value(code);
    }
    out
}

/// 2^(code − 127), exact: 2^-127 is subnormal. 255 is NaN.
#[inline(always)]
fn e8m0(code: u8) -> f32 {
    // The code is f32's exponent field, except 0, which would be 0 or a subnormal.
    let bits = u32::from(code) << 23;
    let bits = if code == 0 { 0x0040_0000 } else { bits };
    f32::from_bits(if code == 255 { 0x7fc0_0000 } else { bits })
}

/// The value of an F8_E4M3 code.
#[inline(always)]
fn e4m3(code: u8) -> f32 {
    let (sign, size) = (u32::from(code & 0x80) << 24, u32::from(code & 0x7f));
    let normal = f32::from_bits((size << 20) + ((127 - 7) << 23));
    // Subnormals are eighths of the smallest normal value, 2^-6.
    let magnitude = if size < 8 { size as f32 * (1.0 / 512.0) } else { normal };
    let magnitude = if size == 0x7f { f32::NAN } else { magnitude };
    f32::from_bits(magnitude.to_bits() | sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_code_has_the_value_of_its_fields() {
        for code in 0..=255u8 {
            let power = (i32::from(code) - 127) as f64;
            assert!(f64::from(e8m0(code)) == power.exp2() || code == 255 && e8m0(code).is_nan(), "{code}");
            let (found, truth) = (e4m3(code), latent_quant::f8_e4m3::value(code));
            assert!(found == truth || found.is_nan() && truth.is_nan(), "{code}");
        }
    }
}
