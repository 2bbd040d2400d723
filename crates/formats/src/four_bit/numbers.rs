//! Decoding of scales, words and group indices that are stored with packed quants.

use crate::error::FourBitError;
use half::{bf16, f16};
use latent_types::TensorType;

/// The 32-bit word at an index.
#[inline(always)]
pub(super) fn word(bytes: &[u8], index: usize) -> u32 {
    let at = index * 4;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The group of each input.
fn groups(bytes: &[u8]) -> impl Iterator<Item = i32> {
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Whether each input belongs to the group of its position.
pub(super) fn in_order(bytes: &[u8], group: usize) -> bool {
    first_moved(bytes, group).is_none()
}

/// Column and group of the first input that does not belong to the group of its position.
pub(super) fn first_moved(bytes: &[u8], group: usize) -> Option<(usize, i32)> {
    // A negative index fails the conversion, so it counts as moved.
    groups(bytes).enumerate().find(|(column, found)| usize::try_from(*found) != Ok(column / group))
}

/// Checks that every input belongs to an existing group.
pub(super) fn check_groups(tensor: &str, bytes: &[u8], count: usize) -> Result<(), FourBitError> {
    let wrong = |(_, found): &(usize, i32)| usize::try_from(*found).map_or(true, |found| found >= count);
    match groups(bytes).enumerate().find(wrong) {
        None => Ok(()),
        Some((column, found)) => {
            Err(FourBitError::GroupIndex { tensor: tensor.to_owned(), column, found, groups: count })
        }
    }
}

/// Scales of one floating-point type.
#[derive(Clone, Copy)]
pub(super) struct FloatScales<'a> {
    bytes: &'a [u8],
    ty: TensorType,
}

/// Biased exponents of BF16 numbers that are normal numbers of f16.
const F16_EXPONENTS: std::ops::Range<u16> = 127 - 14..127 + 16;

impl<'a> FloatScales<'a> {
    pub(super) fn new(ty: TensorType, bytes: &'a [u8]) -> FloatScales<'a> {
        FloatScales { bytes, ty }
    }

    fn len(self) -> usize {
        self.bytes.len() / self.ty.block_bytes()
    }

    fn half(self, index: usize) -> u16 {
        u16::from_le_bytes([self.bytes[2 * index], self.bytes[2 * index + 1]])
    }

    pub(super) fn get(self, index: usize) -> f64 {
        match self.ty {
            TensorType::F16 => f16::from_bits(self.half(index)).to_f64(),
            TensorType::BF16 => bf16::from_bits(self.half(index)).to_f64(),
            _ => f64::from(f32::from_bits(word(self.bytes, index))),
        }
    }

    /// The scale at an index times 2^shift as f16.
    pub(super) fn f16_bits(self, index: usize, shift: i32) -> u16 {
        // Stored f16 scales keep their bits, NaN included.
        if self.ty == TensorType::F16 && shift == 0 {
            return self.half(index);
        }
        // A product with a power of two is exact in f64, so f16 rounds once.
        f16::from_f64(self.get(index) * power(shift)).to_bits()
    }

    /// The exponent of the power of two by which scales are multiplied, so that f16 can represent
    /// them (if `ty` is a block format) or weights of up to sixteen times a scale (if `ty` is F16).
    /// It is 0 if the scales fit as they are. Otherwise the largest scale is moved to the upper end
    /// of f16's range.
    pub(super) fn shift(self, ty: TensorType) -> i32 {
        if self.ty == TensorType::F16 && ty != TensorType::F16 {
            return 0;
        }
        if self.ty == TensorType::BF16 && ty != TensorType::F16 && self.plain_bf16() {
            return 0;
        }
        // Zero, infinity and NaN stay what they are under any shift.
        let finite = || (0..self.len()).map(|i| self.get(i)).filter(|s| s.is_finite() && *s != 0.0);
        let largest = finite().fold(0.0f64, |m, s| m.max(s.abs()));
        if largest == 0.0 {
            return 0;
        }
        let fits = if ty == TensorType::F16 {
            largest * 16.0 <= f16::MAX.to_f64() && finite().all(|s| s.abs() >= f16::MIN_POSITIVE.to_f64())
        } else {
            finite().all(|s| f16::from_f64(s).to_f64() == s)
        };
        // f16's largest exponent is 15. F16 weights are up to sixteen (2^4) times a scale.
        let top = if ty == TensorType::F16 { 10 } else { 14 };
        if fits { 0 } else { (top - exponent(largest)).min(MAX_SHIFT) }
    }

    /// Whether all scales are normal numbers of f16, or zero. f16 has more mantissa bits than BF16,
    /// so they are exact. This is true of nearly all checkpoints, and cheaper than decoding every
    /// scale to f64.
    fn plain_bf16(self) -> bool {
        let plain = |bits: u16| bits & 0x7fff == 0 || F16_EXPONENTS.contains(&(bits >> 7 & 0xff));
        self.bytes.chunks_exact(2).all(|b| plain(u16::from_le_bytes([b[0], b[1]])))
    }
}

/// Maximum shift. The factor 2^-126 that reverts it is the smallest normal f32.
const MAX_SHIFT: i32 = 126;

/// 2^n.
pub(super) fn power(n: i32) -> f64 {
    2f64.powi(n)
}

/// The exponent of a positive normal number.
fn exponent(number: f64) -> i32 {
    // Even the smallest nonzero f32 is a normal number in f64. `number` is positive: no sign bit.
    (number.to_bits() >> 52) as i32 - 1023
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bf16s(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|n| bf16::from_f32(*n).to_le_bytes()).collect()
    }

    #[test]
    fn scales_beyond_f16_are_moved_by_a_power_of_two_that_keeps_them_exact() {
        for numbers in [[1e-3, 2e-5, 0.7], [1e-7, 3e-8, 5e-6], [1e6, 3e4, 1e-2], [1e-38, 1e-37, 2e-36]] {
            let bytes = bf16s(&numbers);
            let scales = FloatScales::new(TensorType::BF16, &bytes);
            let shift = scales.shift(TensorType::Q4_0);
            for i in 0..3 {
                let moved = f16::from_bits(scales.f16_bits(i, shift)).to_f64() * power(-shift);
                assert_eq!(moved, scales.get(i), "{numbers:?} {i}");
            }
        }
        let plain = bf16s(&[1e-3, 2e-4, 0.0]);
        assert_eq!(FloatScales::new(TensorType::BF16, &plain).shift(TensorType::Q5_0), 0);
    }
}
