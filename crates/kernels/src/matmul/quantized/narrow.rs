//! AVX2 without VNNI: products of pairs are added in 16 bits as long as they fit, then widened. Here is what fits; `narrow_avx2` has the code.
//!
//! `vpmaddubsw` adds two products of a quant and an input in 16 bits, which hold ±32 767. With inputs of at most 127 and quants of at most `most`,
//! 32 767 / (2 · 127 · `most`) such sums can be added before a lane may overflow: 8 of 4-bit quants, 4 of 5-bit quants, 2 of 6-bit quants
//! ([`depth`]). So a product costs two instructions in place of three. Sums are exact, and the bits those of every other ISA.

use super::formats::QuantFormat;

/// Largest magnitude of an input quant.
const MAX_INPUT: i32 = 127;

/// How many products of pairs of quants up to `most` can be added in 16 bits: 8, 4, 2 or 1.
pub(super) const fn depth(most: i32) -> usize {
    let fit = i16::MAX as i32 / (2 * MAX_INPUT * most);
    match fit {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Zero point that signed quants of a small range are moved to, so that they are unsigned: a power of two.
pub(super) const SMALL_ZERO_POINT: i32 = 16;

/// Whether a format's signed quants are moved to [`SMALL_ZERO_POINT`]: where at least four sums of the results fit 16 bits.
pub(super) const fn uses_bias16<F: QuantFormat>() -> bool {
    F::SIGNED && F::MAX_QUANT < SMALL_ZERO_POINT
}

/// [`depth`] of a format's quants as they are unpacked.
pub(super) const fn depth_of<F: QuantFormat>() -> usize {
    if uses_bias16::<F>() { depth(SMALL_ZERO_POINT + F::MAX_QUANT) } else { depth(F::MAX_QUANT) }
}

/// How far −128 · Σ inputs is shifted right to become −[`SMALL_ZERO_POINT`] · Σ inputs.
pub(super) const BIAS16_SHIFT: u32 = 128u32.ilog2() - SMALL_ZERO_POINT.ilog2();

/// Whether a format's signed quants are full bytes, of which not even two sums fit 16 bits.
pub(super) const fn full_bytes<F: QuantFormat>() -> bool {
    F::SIGNED && !uses_bias16::<F>()
}

#[cfg(test)]
mod tests {
    use super::super::formats::*;
    use super::*;

    /// The extremes: every quant the largest that a format has, every input the largest.
    #[test]
    fn sums_of_extremes_fit_in_16_bits_and_one_more_would_not() {
        for (most, deep) in [(3, 8), (7, 8), (15, 8), (16, 8), (28, 4), (31, 4), (63, 2), (127, 1), (128, 1)]
        {
            assert_eq!(depth(most), deep, "{most}");
            let pair = 2 * MAX_INPUT * most;
            assert!(deep as i32 * pair <= i32::from(i16::MAX), "{most}");
            assert!(deep == 8 || 2 * deep as i32 * pair > i32::from(i16::MAX), "{most}");
        }
    }

    #[test]
    fn formats_have_the_depth_of_their_range() {
        assert_eq!(
            (depth_of::<Q4_0>(), depth_of::<Q4K>(), depth_of::<Q2K>(), depth_of::<Q3K>()),
            (8, 8, 8, 8)
        );
        assert_eq!((depth_of::<Q5_0>(), depth_of::<Q5_1>(), depth_of::<Q5K>()), (4, 4, 4));
        assert_eq!((depth_of::<Mxfp4>(), depth_of::<Nvfp4>(), depth_of::<Q6K>()), (4, 4, 2));
        assert_eq!((depth_of::<Q8_0>(), depth_of::<Iq4Nl>(), depth_of::<Iq4Xs>()), (1, 1, 1));
    }
}
