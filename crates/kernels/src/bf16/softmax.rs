//! Weights from scores, whose rows have sixteen queries or heads as lanes.
#![allow(unsafe_code, reason = "vector instructions over addresses that the caller keeps in bounds")]

use super::layout::alternate;
use crate::attention::bf16_layout::K_STEP;
use half::bf16;
use std::arch::x86_64::*;

/// The score of what is not seen: far below any other, and yet a number.
pub(super) const MASKED: f32 = -1e30;

/// 2^x for x ≤ 0: relative error below 7e-5, where rounding to bf16 costs 2e-3.
#[inline(always)]
unsafe fn exp2(x: __m512) -> __m512 {
    // SAFETY: register to register, with the caller's instructions.
    unsafe {
        let n = _mm512_roundscale_ps::<0>(x);
        let r = _mm512_sub_ps(x, n);
        // 2^r for |r| ≤ 1/2: the first terms of the series of e^(r ln 2)
        let mut p = _mm512_set1_ps(9.618_129e-3);
        for term in [5.550_411e-2, 0.240_226_5, std::f32::consts::LN_2, 1.0] {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(term));
        }
        _mm512_scalef_ps(p, n)
    }
}

crate::isa::isa_fn! { Avx512Bf16;
/// Scores as exponents of 2, `count` rows of sixteen lanes, `distance` numbers apart, become weights: two rows in a line of pairs of bf16, sixteen
/// lines a step, steps `step` numbers apart. `max` and `sum` are those of the rows before ([`MASKED`] and 0 where there are none), and are brought up to date. Returns what earlier
/// sums are to be multiplied by.
///
/// # Safety
/// Rows and lines lie in memory that is valid for them, `count` is a multiple of 4; the processor has AVX-512 with BF16.
pub(super) unsafe fn softmax_block(
    scores: *const f32,
    distance: usize,
    count: usize,
    max: &mut [f32],
    sum: &mut [f32],
    weights: *mut bf16,
    step: usize,
) -> [f32; 16] {
    assert!(max.len() == 16 && sum.len() == 16 && count.is_multiple_of(4), "lanes and rows");
    // SAFETY: sixteen numbers of each row, of the maxima and of the sums; lines by the caller's promise.
    unsafe {
        macro_rules! row {
            ($i:expr) => {
                _mm512_loadu_ps(scores.add(($i) * distance))
            };
        }
        let before = _mm512_loadu_ps(max.as_ptr());
        // four strands, since a maximum waits for the one before
        let mut strands = [before; 4];
        for i in (0..count).step_by(4) {
            for (strand, largest) in strands.iter_mut().enumerate() {
                *largest = _mm512_max_ps(row!(i + strand), *largest);
            }
        }
        let [a, b, c, d] = strands;
        let largest = _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
        let mut totals = [_mm512_setzero_ps(); 2];
        for i in (0..count).step_by(2) {
            let first = exp2(_mm512_sub_ps(row!(i), largest));
            let second = exp2(_mm512_sub_ps(row!(i + 1), largest));
            totals = [_mm512_add_ps(totals[0], first), _mm512_add_ps(totals[1], second)];
            let at = i / K_STEP * step + i % K_STEP * 16;
            _mm512_storeu_si512(weights.add(at).cast(), alternate(first, second));
        }
        let factor = exp2(_mm512_sub_ps(before, largest));
        let total = _mm512_add_ps(totals[0], totals[1]);
        _mm512_storeu_ps(sum.as_mut_ptr(), _mm512_fmadd_ps(_mm512_loadu_ps(sum.as_ptr()), factor, total));
        _mm512_storeu_ps(max.as_mut_ptr(), largest);
        let mut factors = [0.0; 16];
        _mm512_storeu_ps(factors.as_mut_ptr(), factor);
        factors
    }
}
}
