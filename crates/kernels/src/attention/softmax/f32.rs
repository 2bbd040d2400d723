//! Online softmax in f32, relative to the running max.

use crate::attention::args::HEADS;
use crate::attention::split_kv::PartialSoftmax;
use crate::math::exp;
use crate::reduce::{fold_lanes, sum_lanes};

/// Running max and sum of decode, heads as lanes.
pub(in crate::attention) struct F32Softmax {
    max: [f32; HEADS],
    sum: [f32; HEADS],
}

impl F32Softmax {
    /// Before the first block.
    #[inline(always)]
    pub(in crate::attention) fn new() -> F32Softmax {
        F32Softmax { max: [f32::NEG_INFINITY; HEADS], sum: [0.0; HEADS] }
    }

    /// Turns the scores of a block, a line of heads per cached row, into weights. Returns the
    /// factor that rescales earlier sums of each head.
    #[inline(always)]
    pub(in crate::attention) fn softmax_block(&mut self, scores: &mut [f32]) -> [f32; HEADS] {
        let mut max = self.max;
        for line in scores.chunks_exact(HEADS) {
            for l in 0..HEADS {
                // One `maxps`. `f32::max` also handles NaN, which takes several instructions.
                max[l] = if line[l] > max[l] { line[l] } else { max[l] };
            }
        }
        let mut factors = [0.0; HEADS];
        for l in 0..HEADS {
            // An unchanged max needs no rescaling. It may be −∞, so that the difference would be
            // NaN.
            factors[l] = if self.max[l] == max[l] { 1.0 } else { exp(self.max[l] - max[l]) };
            self.sum[l] *= factors[l];
        }
        for line in scores.chunks_exact_mut(HEADS) {
            for l in 0..HEADS {
                line[l] = exp(line[l] - max[l]);
                self.sum[l] += line[l];
            }
        }
        self.max = max;
        factors
    }

    /// Writes max and sum of the first `heads` lanes.
    #[inline(always)]
    pub(in crate::attention) fn finish(&self, part: &mut PartialSoftmax<'_>, heads: usize) {
        part.max[..heads].copy_from_slice(&self.max[..heads]);
        part.sum[..heads].copy_from_slice(&self.sum[..heads]);
    }
}

/// Turns the scores of one query of prefill, keys as lanes, into weights, and updates its max and
/// sum. Scores from `visible` on are masked. Returns the factor that rescales earlier sums.
#[inline(always)]
pub(in crate::attention) fn softmax_row(
    scores: &mut [f32],
    visible: usize,
    max: &mut f32,
    sum: &mut f32,
) -> f32 {
    scores[visible..].fill(f32::NEG_INFINITY);
    let mut lanes = [f32::NEG_INFINITY; 16];
    for chunk in scores.chunks_exact(16) {
        for l in 0..16 {
            lanes[l] = if chunk[l] > lanes[l] { chunk[l] } else { lanes[l] };
        }
    }
    let block_max = fold_lanes!(lanes, a, b => if a > b { a } else { b });
    let new_max = if block_max > *max { block_max } else { *max };
    let factor = if *max == new_max { 1.0 } else { exp(*max - new_max) };
    let mut sums = [0.0f32; 16];
    for chunk in scores.chunks_exact_mut(16) {
        for l in 0..16 {
            chunk[l] = exp(chunk[l] - new_max);
            sums[l] += chunk[l];
        }
    }
    *sum = *sum * factor + sum_lanes(sums);
    *max = new_max;
    factor
}
