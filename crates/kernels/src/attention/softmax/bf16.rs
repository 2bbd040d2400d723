//! Online softmax whose weights are rounded to bf16, relative to the running max, in powers of two:
//! rows of scores have sixteen queries or heads as lanes.
#![allow(unsafe_code, reason = "vector instructions over addresses that the caller keeps in bounds")]

use crate::bf16::layout::alternate;
use crate::bf16_layout::K_STEP;
use crate::math::exp2_bf16;
use half::bf16;
use std::arch::x86_64::*;

/// The score of a masked key: far below any other, but finite. If all keys of a block are masked,
/// −∞ − −∞ would be NaN. With finite scores their weights are 1, and the first visible key rescales
/// the sums by 2^(−1e30) = 0.
pub(in crate::attention) const MASKED: f32 = -1e30;

/// Rows of sixteen scores, in exponents of 2.
pub(in crate::attention) struct ScoreRows {
    pub start: *const f32,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Rows, a multiple of 4.
    pub count: usize,
    /// Factor of each row's stored weights: the deferred scale of its values. It does not apply to
    /// the running sum.
    pub scales: Option<*const f32>,
}

/// Output for weights as a right factor: two rows per line of bf16 pairs, sixteen lines per k-step.
pub(in crate::attention) struct SoftmaxWeights {
    pub start: *mut bf16,
    /// Elements from one k-step to the next.
    pub step: usize,
}

crate::isa::isa_fn! { Avx512Bf16;
/// Turns scores into weights and updates the running max and sum ([`MASKED`] and 0 before the first
/// block). Returns the factors that rescale earlier sums.
///
/// # Safety
/// The addresses, that of scales too, are valid for `rows.count` rows; the CPU has AVX512-BF16.
pub(in crate::attention) unsafe fn softmax_block(
    rows: &ScoreRows,
    max: &mut [f32],
    sum: &mut [f32],
    weights: SoftmaxWeights,
) -> [f32; 16] {
    let count = rows.count;
    assert!(max.len() == 16 && sum.len() == 16 && count.is_multiple_of(4), "lanes and rows");
    // SAFETY: sixteen elements of `max` and `sum`, as asserted; rows and lines of weights by this
    // function's contract.
    unsafe {
        macro_rules! row {
            ($i:expr) => {
                _mm512_loadu_ps(rows.start.add(($i) * rows.stride))
            };
        }
        let before = _mm512_loadu_ps(max.as_ptr());
        // Four accumulators hide the latency of a maximum.
        let mut lanes = [before; 4];
        for i in (0..count).step_by(4) {
            for (k, largest) in lanes.iter_mut().enumerate() {
                *largest = _mm512_max_ps(row!(i + k), *largest);
            }
        }
        let [a, b, c, d] = lanes;
        let largest = _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
        // The running sum adds weights in f32, before they are rounded to bf16.
        let mut totals = [_mm512_setzero_ps(); 2];
        for i in (0..count).step_by(2) {
            let first = exp2_bf16(_mm512_sub_ps(row!(i), largest));
            let second = exp2_bf16(_mm512_sub_ps(row!(i + 1), largest));
            totals = [_mm512_add_ps(totals[0], first), _mm512_add_ps(totals[1], second)];
            let stored = match rows.scales {
                None => alternate(first, second),
                Some(scales) => {
                    let (a, b) = (_mm512_set1_ps(*scales.add(i)), _mm512_set1_ps(*scales.add(i + 1)));
                    alternate(_mm512_mul_ps(first, a), _mm512_mul_ps(second, b))
                }
            };
            let at = i / K_STEP * weights.step + i % K_STEP * 16;
            _mm512_storeu_si512(weights.start.add(at).cast(), stored);
        }
        let factor = exp2_bf16(_mm512_sub_ps(before, largest));
        let total = _mm512_add_ps(totals[0], totals[1]);
        _mm512_storeu_ps(sum.as_mut_ptr(), _mm512_fmadd_ps(_mm512_loadu_ps(sum.as_ptr()), factor, total));
        _mm512_storeu_ps(max.as_mut_ptr(), largest);
        let mut factors = [0.0; 16];
        _mm512_storeu_ps(factors.as_mut_ptr(), factor);
        factors
    }
}
}
