//! The naive formulation in half precision: expanded keys and values are f16, and so are the factors of their products.
//!
//! Scaling and error are those of [`f16`](crate::attention::mla_decode::f16).
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use crate::attention::gemm_f16::{
    F16_CHAIN, F16_LANES, Left, Old, Product, bits, exp2, for_vectors, largest, multiply, splat_pairs_f16,
};
use crate::attention::mla_decode::f16::{MAX_QUERY, MAX_WEIGHT};
use crate::attention::{Expanded, HeadWidths, KEYS, KeyBlocks, KeyOrder};
use crate::{Rows, RowsMut};
use half::f16;
use std::arch::x86_64::*;

const _: () =
    assert!(KEYS <= F16_CHAIN && KEYS.is_multiple_of(F16_LANES), "a block of keys is one sum in f16");

/// As [`AttendExpandedFn`](crate::attention::AttendExpandedFn).
///
/// # Panics
/// When shapes differ, or the processor has no AVX512-FP16.
pub(in crate::attention) fn attend(
    q: Rows<'_>,
    expanded: &Expanded<'_, f16>,
    position: usize,
    scales: &[f32],
    out: &mut RowsMut<'_>,
    memory: &mut Vec<f32>,
) {
    expanded.check(&q, position, scales, out);
    let _proof = crate::isa::Avx512Fp16::expect();
    // SAFETY: the processor has the features, and matrices have their sizes, as just checked.
    unsafe { attend_inner(&q, expanded, position, scales, out, memory) }
}

crate::isa::isa_fn! { Avx512Fp16;
unsafe fn attend_inner(
    q: &Rows<'_>,
    expanded: &Expanded<'_, f16>,
    position: usize,
    scales: &[f32],
    out: &mut RowsMut<'_>,
    memory: &mut Vec<f32>,
) {
    let (queries, HeadWidths { nope, rope, value }) = (q.rows(), expanded.widths);
    let (line, columns) = ((nope + rope).next_multiple_of(16), value.next_multiple_of(F16_LANES));
    memory.resize(queries * (line + 2 * KEYS + columns + 7), 0.0);
    let (scaled, rest) = memory.split_at_mut(queries * line);
    let (scores, rest) = rest.split_at_mut(queries * KEYS);
    let (weights, rest) = rest.split_at_mut(queries * KEYS);
    let (sums, rest) = rest.split_at_mut(queries * columns);
    let (factors, rest) = rest.split_at_mut(queries);
    let (max, rest) = rest.split_at_mut(queries);
    let (sum, rest) = rest.split_at_mut(queries);
    let (own, rest) = rest.split_at_mut(queries);
    let (total, rest) = rest.split_at_mut(queries);
    let (alpha, beta) = rest.split_at_mut(queries);
    let (scaled, weights) = (bits(scaled), bits(weights));
    for (i, line) in scaled.chunks_exact_mut(line).enumerate() {
        // SAFETY: with the tier's instructions; the line has room for whole vectors.
        let undo = unsafe { factor_row(q.row(i), MAX_QUERY, line) };
        factors[i] = scales[i] * std::f32::consts::LOG2_E * undo;
    }
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    sums.fill(0.0);
    let length = position + queries;
    for (block, start) in (0..length).step_by(KEYS).enumerate() {
        // queries before the block see nothing of it
        let first = start.saturating_sub(position);
        let (rows, count) = (queries - first, KEYS.min(length - start));
        let keys = expanded.keys[block * nope * KEYS..].as_ptr().cast();
        let found = scores[first * KEYS..].as_mut_ptr();
        let mut product =
            Product { rows, k: nope, columns: KEYS, right: keys, right_row: KEYS, out: found, out_row: KEYS };
        let left =
            |column: usize| Left { start: scaled[first * line + column..].as_ptr(), row: line, column: 1 };
        // SAFETY: lines of keys and scores are there, as asserted on entry.
        unsafe {
            multiply(left(0), &product, Old::Replace, &mut None);
            if rope > 0 {
                product.k = rope;
                product.right = expanded.rope_keys[block * expanded.rope_stride..].as_ptr().cast();
                multiply(left(nope), &product, Old::Add, &mut None);
            }
        }
        for i in first..queries {
            let (scores, weights) = (&scores[i * KEYS..][..KEYS], &mut weights[i * KEYS..][..KEYS]);
            let seen = (position + i + 1 - start).min(KEYS);
            // SAFETY: with the tier's instructions.
            (own[i], total[i]) = unsafe { softmax_block(scores, seen, factors[i], weights) };
        }
        let block = Block { own: &own[first..], total: &total[first..] };
        // SAFETY: with the tier's instructions; as many of each.
        unsafe {
            block.update_running_max(
                &mut max[first..],
                &mut sum[first..],
                &mut alpha[first..],
                &mut beta[first..],
            );
        }
        let left = Left { start: weights[first * KEYS..].as_ptr(), row: KEYS, column: 1 };
        let product = Product {
            rows,
            k: count,
            columns: value,
            right: expanded.values[start * value..].as_ptr().cast(),
            right_row: value,
            out: sums[first * columns..].as_mut_ptr(),
            out_row: columns,
        };
        // SAFETY: `count` rows of values are there, as asserted on entry.
        unsafe { multiply(left, &product, Old::Scale(&alpha[first..], &beta[first..]), &mut None) };
    }
    for (i, line) in sums.chunks_exact(columns).enumerate() {
        let inverse = 1.0 / sum[i];
        out.row_mut(i).iter_mut().zip(line).for_each(|(o, v)| *o = v * inverse);
    }
}
}

/// Numbers divided to at most `bound`, as a left factor has them. Returns what undoes it.
#[inline(always)]
unsafe fn factor_row(row: &[f32], bound: f32, out: &mut [u32]) -> f32 {
    assert!(out.len() >= row.len().next_multiple_of(16), "room for whole vectors");
    // SAFETY: lines of sixteen numbers here and there, with the tier's instructions.
    unsafe {
        let largest = largest(row);
        let factor = if largest > 0.0 { bound / largest } else { 0.0 };
        let mut places = out.chunks_exact_mut(16);
        for_vectors!(row, line => {
            let scaled = _mm512_mul_ps(_mm512_loadu_ps(line), _mm512_set1_ps(factor));
            if let Some(place) = places.next() {
                _mm512_storeu_si512(place.as_mut_ptr().cast(), splat_pairs_f16(scaled));
            }
        });
        if largest > 0.0 { largest / bound } else { 0.0 }
    }
}

/// Scores of one query with a block of keys, times `factor`, become weights, those from `seen` on 0. Returns the largest score and the sum of
/// the weights relative to it.
#[inline(always)]
unsafe fn softmax_block(scores: &[f32], seen: usize, factor: f32, weights: &mut [u32]) -> (f32, f32) {
    const LINES: usize = KEYS / 16;
    assert!(scores.len() == KEYS && weights.len() == KEYS, "a block");
    // SAFETY: lines of sixteen numbers here and there, with the tier's instructions.
    unsafe {
        let factor = _mm512_set1_ps(factor);
        let none = _mm512_set1_ps(f32::NEG_INFINITY);
        let mut lines = [none; LINES];
        let mut largest = none;
        for (i, line) in lines.iter_mut().enumerate() {
            let mask = (1u32 << seen.saturating_sub(16 * i).min(16)).wrapping_sub(1) as u16;
            *line = _mm512_mask_mul_ps(none, mask, _mm512_loadu_ps(scores.as_ptr().add(16 * i)), factor);
            largest = _mm512_max_ps(*line, largest);
        }
        let own = _mm512_reduce_max_ps(largest);
        let all = _mm512_set1_ps(own);
        let mut total = _mm512_setzero_ps();
        for (i, line) in lines.into_iter().enumerate() {
            let weight = exp2(_mm512_sub_ps(line, all));
            total = _mm512_add_ps(total, weight);
            let place = weights.as_mut_ptr().add(16 * i).cast();
            _mm512_storeu_si512(place, splat_pairs_f16(_mm512_mul_ps(weight, _mm512_set1_ps(MAX_WEIGHT))));
        }
        (own, _mm512_reduce_add_ps(total))
    }
}

/// Largest scores of a block of keys and sums of its weights, a number a query.
struct Block<'a> {
    own: &'a [f32],
    total: &'a [f32],
}

impl Block<'_> {
    /// Joins the queries' running maximum and sum, sixteen at a time: `alpha` is what earlier sums are to be multiplied by, `beta` what the block's
    /// are.
    #[inline(always)]
    unsafe fn update_running_max(
        &self,
        max: &mut [f32],
        sum: &mut [f32],
        alpha: &mut [f32],
        beta: &mut [f32],
    ) {
        let count = self.own.len();
        let lengths = [self.total.len(), max.len(), sum.len(), alpha.len(), beta.len()];
        assert!(lengths.iter().all(|length| *length == count), "a number a query");
        for from in (0..count).step_by(16) {
            let mask = (1u32 << (count - from).min(16)).wrapping_sub(1) as u16;
            // SAFETY: the numbers of the mask lie inside; with the tier's instructions.
            unsafe {
                macro_rules! load {
                    ($numbers:expr) => {
                        _mm512_maskz_loadu_ps(mask, $numbers.as_ptr().add(from))
                    };
                }
                macro_rules! store {
                    ($numbers:expr, $v:expr) => {
                        _mm512_mask_storeu_ps($numbers.as_mut_ptr().add(from), mask, $v)
                    };
                }
                let (own, old) = (load!(self.own), load!(max));
                let new = _mm512_max_ps(own, old);
                // before the first block −∞ − max: 0
                let earlier = exp2(_mm512_sub_ps(old, new));
                let block = exp2(_mm512_sub_ps(own, new));
                store!(sum, _mm512_fmadd_ps(load!(sum), earlier, _mm512_mul_ps(load!(self.total), block)));
                store!(max, new);
                store!(alpha, earlier);
                store!(beta, _mm512_div_ps(block, _mm512_set1_ps(MAX_WEIGHT)));
            }
        }
    }
}

/// As [`ExpandKeysFn`](crate::attention::ExpandKeysFn).
///
/// # Panics
/// When shapes differ, or the processor has no AVX512-FP16.
pub(in crate::attention) fn expand_keys(
    weights: &[f32],
    order: KeyOrder,
    blocks: &KeyBlocks<'_, f16>,
    keys: &mut [f16],
    memory: &mut Vec<f32>,
) {
    blocks.check(weights, keys);
    let _proof = crate::isa::Avx512Fp16::expect();
    // SAFETY: the processor has the features, and matrices have their sizes, as just checked.
    unsafe { expand_inner(weights, order, blocks, keys, memory) }
}

crate::isa::isa_fn! { Avx512Fp16;
unsafe fn expand_inner(
    weights: &[f32],
    order: KeyOrder,
    blocks: &KeyBlocks<'_, f16>,
    keys: &mut [f16],
    memory: &mut Vec<f32>,
) {
    let (nope, latent) = (blocks.nope, blocks.latent);
    let padded = weights.len().next_multiple_of(16);
    memory.resize(padded + nope * KEYS, 0.0);
    let (factors, found) = memory.split_at_mut(padded);
    let factors = bits(factors);
    // SAFETY: with the tier's instructions; whole vectors have room.
    let undo = unsafe { factor_row(weights, MAX_QUERY, factors) };
    let (row, column) = match order {
        KeyOrder::Keys => (latent, 1),
        KeyOrder::Latents => (1, nope),
    };
    let left = Left { start: factors.as_ptr(), row, column };
    for (block, keys) in keys.chunks_exact_mut(nope * KEYS).enumerate() {
        let product = Product {
            rows: nope,
            k: latent,
            columns: KEYS,
            right: blocks.latents[block * blocks.stride..].as_ptr().cast(),
            right_row: KEYS,
            out: found.as_mut_ptr(),
            out_row: KEYS,
        };
        // SAFETY: `latent` lines of latents and `nope` lines of results are there.
        unsafe {
            multiply(left, &product, Old::Replace, &mut None);
            let bound = _mm512_set1_ps(f16::MAX.to_f32_const());
            let below = _mm512_sub_ps(_mm512_setzero_ps(), bound);
            for (out, line) in keys.chunks_exact_mut(16).zip(found.chunks_exact(16)) {
                let number = _mm512_mul_ps(_mm512_loadu_ps(line.as_ptr()), _mm512_set1_ps(undo));
                let number = _mm512_max_ps(_mm512_min_ps(number, bound), below);
                _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_castph_si256(_mm512_cvtxps_ph(number)));
            }
        }
    }
}
}
