//! Online softmax whose weights are rounded to f16, relative to the max of their block, in powers
//! of two.
//!
//! A block's weighted sum is in f16, so weights are scaled down (see [`MAX_WEIGHT`]). Blocks are
//! combined in f32: new sum = `alpha` · earlier sum + `beta` · block sum. Relative to the running
//! max, the weights of a block with low scores would be subnormal in f16.
#![allow(unsafe_code, reason = "vector instructions over slices whose lengths are asserted")]

use crate::attention::args::HEADS;
use crate::attention::gemm_f16::{F16_CHAIN, splat_pairs_f16};
use crate::attention::kv_element::KEYS;
use crate::attention::split_kv::PartialSoftmax;
use crate::math::exp2_f16;
use std::arch::x86_64::*;

/// Largest weight in f16: [`F16_CHAIN`] products with any f16 stay finite.
pub(in crate::attention) const MAX_WEIGHT: f32 = 1.0 / F16_CHAIN as f32;

/// Running max and sum of decode, heads as lanes.
pub(in crate::attention) struct F16Softmax {
    max: __m512,
    sum: __m512,
    /// Factor of earlier sums of each head, after [`softmax_block`].
    pub(in crate::attention) alpha: [f32; HEADS],
    /// Factor of the block's sum of each head.
    pub(in crate::attention) beta: [f32; HEADS],
}

impl F16Softmax {
    /// Before the first block.
    ///
    /// # Safety
    /// The caller is compiled for AVX512-FP16, and the CPU has it.
    #[inline(always)]
    pub(in crate::attention) unsafe fn new() -> F16Softmax {
        // SAFETY: registers only, in a caller compiled for AVX512-FP16.
        let (max, sum) = unsafe { (_mm512_set1_ps(f32::NEG_INFINITY), _mm512_setzero_ps()) };
        F16Softmax { max, sum, alpha: [0.0; HEADS], beta: [0.0; HEADS] }
    }

    /// Adds a block: its max, and the sum of its weights relative to that max. `undo` is the factor
    /// that turns the block's scaled weights into plain ones.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[inline(always)]
    unsafe fn update_running_max(&mut self, block_max: __m512, block_sum: __m512, undo: f32) {
        // SAFETY: stores of sixteen elements to arrays of sixteen, in a caller compiled for
        // AVX512-FP16.
        unsafe {
            let max = _mm512_max_ps(block_max, self.max);
            // Before the first block: 2^(−∞ − max) = 0.
            let alpha = exp2_f16(_mm512_sub_ps(self.max, max));
            let own = exp2_f16(_mm512_sub_ps(block_max, max));
            self.sum = _mm512_fmadd_ps(self.sum, alpha, _mm512_mul_ps(block_sum, own));
            self.max = max;
            _mm512_storeu_ps(self.alpha.as_mut_ptr(), alpha);
            _mm512_storeu_ps(self.beta.as_mut_ptr(), _mm512_mul_ps(own, _mm512_set1_ps(undo)));
        }
    }

    /// Writes max, as an exponent of e, and sum of the first `heads` lanes.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[inline(always)]
    pub(in crate::attention) unsafe fn finish(&self, part: &mut PartialSoftmax<'_>, heads: usize) {
        let (mut max, mut sum) = ([0.0; HEADS], [0.0; HEADS]);
        // SAFETY: stores of sixteen elements to arrays of sixteen, in a caller compiled for
        // AVX512-FP16.
        unsafe {
            let natural = _mm512_mul_ps(self.max, _mm512_set1_ps(std::f32::consts::LN_2));
            _mm512_storeu_ps(max.as_mut_ptr(), natural);
            _mm512_storeu_ps(sum.as_mut_ptr(), self.sum);
        }
        part.max[..heads].copy_from_slice(&max[..heads]);
        part.sum[..heads].copy_from_slice(&sum[..heads]);
    }

    /// Turns the scores of a block, a line of heads per cached row, into weights, each twice as
    /// f16. Stored weights are multiplied by `weight_factors`; `undo` as in
    /// [`update_running_max`](Self::update_running_max).
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    #[inline(always)]
    pub(in crate::attention) unsafe fn softmax_block<F: WeightFactors>(
        &mut self,
        scores: &[f32],
        weight_factors: F,
        undo: f32,
        weights: &mut [u32],
    ) {
        // SAFETY: loads and stores of the sixteen elements of each line, in a caller compiled for
        // AVX512-FP16.
        unsafe {
            let mut max = _mm512_set1_ps(f32::NEG_INFINITY);
            for line in scores.chunks_exact(HEADS) {
                max = _mm512_max_ps(_mm512_loadu_ps(line.as_ptr()), max);
            }
            let mut sum = _mm512_setzero_ps();
            let lines = scores.chunks_exact(HEADS).zip(weights.chunks_exact_mut(HEADS));
            for (row, (line, out)) in lines.enumerate() {
                let weight = exp2_f16(_mm512_sub_ps(_mm512_loadu_ps(line.as_ptr()), max));
                // The sum of unscaled weights: factors such as the scale of a cached row belong to
                // its values.
                sum = _mm512_add_ps(sum, weight);
                let scaled = _mm512_mul_ps(weight, _mm512_set1_ps(weight_factors.of_row(row)));
                _mm512_storeu_si512(out.as_mut_ptr().cast(), splat_pairs_f16(scaled));
            }
            self.update_running_max(max, sum, undo);
        }
    }
}

/// Factors of a block's weights, applied before they are rounded to f16.
pub(in crate::attention) trait WeightFactors {
    /// Factor of the weights of a row.
    fn of_row(&self, row: usize) -> f32;
}

/// The same factor for every row.
impl WeightFactors for f32 {
    #[inline(always)]
    fn of_row(&self, _row: usize) -> f32 {
        *self
    }
}

/// The scale of each row times a common factor.
impl WeightFactors for (&[f32], f32) {
    #[inline(always)]
    fn of_row(&self, row: usize) -> f32 {
        self.0[row] * self.1
    }
}

/// Turns the scores of one query of prefill, keys as lanes, times `factor`, into weights; keys from
/// `visible` on are masked. Returns the max of the block and the sum of the weights relative to it.
///
/// # Safety
/// The caller is compiled for AVX512-FP16, and the CPU has it.
#[inline(always)]
pub(in crate::attention) unsafe fn softmax_row(
    scores: &[f32],
    visible: usize,
    factor: f32,
    weights: &mut [u32],
) -> (f32, f32) {
    const LINES: usize = KEYS / 16;
    assert!(scores.len() == KEYS && weights.len() == KEYS, "a block");
    // SAFETY: lines of sixteen elements of slices of `KEYS`, as just asserted, in a caller compiled
    // for AVX512-FP16.
    unsafe {
        let factor = _mm512_set1_ps(factor);
        let none = _mm512_set1_ps(f32::NEG_INFINITY);
        let mut lines = [none; LINES];
        let mut lane_max = none;
        for (i, line) in lines.iter_mut().enumerate() {
            // Masked keys get −∞, whose weight is 0. At least the first key is visible, so the max
            // is finite.
            let mask = (1u32 << visible.saturating_sub(16 * i).min(16)).wrapping_sub(1) as u16;
            *line = _mm512_mask_mul_ps(none, mask, _mm512_loadu_ps(scores.as_ptr().add(16 * i)), factor);
            lane_max = _mm512_max_ps(*line, lane_max);
        }
        let block_max = _mm512_reduce_max_ps(lane_max);
        let max = _mm512_set1_ps(block_max);
        let mut sum = _mm512_setzero_ps();
        for (i, line) in lines.into_iter().enumerate() {
            let weight = exp2_f16(_mm512_sub_ps(line, max));
            sum = _mm512_add_ps(sum, weight);
            let out = weights.as_mut_ptr().add(16 * i).cast();
            _mm512_storeu_si512(out, splat_pairs_f16(_mm512_mul_ps(weight, _mm512_set1_ps(MAX_WEIGHT))));
        }
        (block_max, _mm512_reduce_add_ps(sum))
    }
}

/// Per query of prefill: the running max and sum, and the factors that combine a block with earlier
/// ones.
pub(in crate::attention) struct QueryState<'a> {
    pub max: &'a mut [f32],
    pub sum: &'a mut [f32],
    pub block_max: &'a mut [f32],
    /// Sum of the block's weights relative to `block_max`.
    pub block_sum: &'a mut [f32],
    /// Factor of earlier sums.
    pub alpha: &'a mut [f32],
    /// Factor of the block's sum.
    pub beta: &'a mut [f32],
}

impl QueryState<'_> {
    /// Adds a block for the queries from `first` on, sixteen at a time: one exponential per query
    /// would be scalar.
    ///
    /// # Safety
    /// The caller is compiled for AVX512-FP16, and the CPU has it.
    #[inline(always)]
    pub(in crate::attention) unsafe fn update_running_max(&mut self, first: usize) {
        let count = self.max.len();
        let lengths = [&self.sum, &self.block_max, &self.block_sum, &self.alpha, &self.beta].map(|s| s.len());
        assert!(lengths.iter().all(|length| *length == count), "one element per query");
        for from in (first..count).step_by(16) {
            let mask = (1u32 << (count - from).min(16)).wrapping_sub(1) as u16;
            // SAFETY: masked lanes are neither read nor written, and the others are below `count`;
            // the caller is compiled for AVX512-FP16.
            unsafe {
                macro_rules! load {
                    ($elements:expr) => {
                        _mm512_maskz_loadu_ps(mask, $elements.as_ptr().add(from))
                    };
                }
                macro_rules! store {
                    ($elements:expr, $v:expr) => {
                        _mm512_mask_storeu_ps($elements.as_mut_ptr().add(from), mask, $v)
                    };
                }
                let (block_max, old) = (load!(self.block_max), load!(self.max));
                let new = _mm512_max_ps(block_max, old);
                // Before the first block: 2^(−∞ − max) = 0.
                let earlier = exp2_f16(_mm512_sub_ps(old, new));
                let block = exp2_f16(_mm512_sub_ps(block_max, new));
                let block_sum = _mm512_mul_ps(load!(self.block_sum), block);
                store!(self.sum, _mm512_fmadd_ps(load!(self.sum), earlier, block_sum));
                store!(self.max, new);
                store!(self.alpha, earlier);
                store!(self.beta, _mm512_div_ps(block, _mm512_set1_ps(MAX_WEIGHT)));
            }
        }
    }
}
