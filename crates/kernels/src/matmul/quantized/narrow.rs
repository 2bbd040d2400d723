//! Bounds of 16-bit sums on AVX2 without VNNI. `narrow_avx2` has the kernels.
//!
//! `vpmaddubsw` adds the products of two pairs of a quant and an input in 16 bits, and saturates
//! beyond ±32 767. With inputs up to 127 and quants up to `max_quant`, 32 767 / (2 · 127 ·
//! `max_quant`) such sums can be added before a lane may overflow: 8 with 4-bit quants, 4 with
//! 5-bit quants, 2 with 6-bit quants ([`depth`]). Widening to 32 bits (`vpmaddwd`) is then needed
//! once per 8, 4 or 2 products. Sums are exact, so the bits are those of every other ISA.

use super::formats::QuantFormat;

/// Largest magnitude of an input quant.
const MAX_INPUT: i32 = 127;

/// Number of `vpmaddubsw` results of quants up to `max_quant` that can be added in 16 bits: 8, 4, 2
/// or 1.
pub(super) const fn depth(max_quant: i32) -> usize {
    let fit = i16::MAX as i32 / (2 * MAX_INPUT * max_quant);
    // Powers of two, since a sub-block has eight vectors.
    match fit {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Bias that makes signed quants of a small range unsigned. A power of two, so that −zero point · Σ
/// inputs is a shift of the bias that a `Q8Block` has.
pub(super) const SMALL_ZERO_POINT: i32 = 16;

/// Whether a format's signed quants are biased by [`SMALL_ZERO_POINT`]. Quants below 16 become
/// unsigned, and at least four sums of them fit 16 bits.
pub(super) const fn uses_bias16<F: QuantFormat>() -> bool {
    F::SIGNED && F::MAX_QUANT < SMALL_ZERO_POINT
}

/// [`depth`] of a format's quants after [biasing](uses_bias16).
pub(super) const fn depth_of<F: QuantFormat>() -> usize {
    if uses_bias16::<F>() { depth(SMALL_ZERO_POINT + F::MAX_QUANT) } else { depth(F::MAX_QUANT) }
}

/// How far −128 · Σ inputs is shifted right to become −[`SMALL_ZERO_POINT`] · Σ inputs.
pub(super) const BIAS16_SHIFT: u32 = 128u32.ilog2() - SMALL_ZERO_POINT.ilog2();

/// Whether a format's signed quants are full bytes: not even two sums of them fit 16 bits.
pub(super) const fn full_bytes<F: QuantFormat>() -> bool {
    F::SIGNED && !uses_bias16::<F>()
}

#[cfg(test)]
mod tests {
    use super::super::formats::*;
    use super::*;

    /// The worst case: every quant and every input is the largest.
    #[test]
    fn sums_of_extremes_fit_in_16_bits_and_one_more_would_not() {
        for (max_quant, deep) in
            [(3, 8), (7, 8), (15, 8), (16, 8), (28, 4), (31, 4), (63, 2), (127, 1), (128, 1)]
        {
            assert_eq!(depth(max_quant), deep, "{max_quant}");
            let pair = 2 * MAX_INPUT * max_quant;
            assert!(deep as i32 * pair <= i32::from(i16::MAX), "{max_quant}");
            assert!(deep == 8 || 2 * deep as i32 * pair > i32::from(i16::MAX), "{max_quant}");
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
