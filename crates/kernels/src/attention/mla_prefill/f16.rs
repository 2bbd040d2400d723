//! Prefill attention in half precision with AVX512-FP16: expanded keys and values are f16, and so
//! are the factors of their products.
//!
//! Scaling and error are those of [`mla_decode::f16`](crate::attention::mla_decode::f16).
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::driver::{self, PrefillKernel, PrefillTile};
use crate::MatrixViewMut;
use crate::attention::args::{AttendExpandedArgs, ExpandArgs};
use crate::attention::expanded::{ExpandedKv, HeadWidths, KeyOrder};
use crate::attention::gemm_f16::{
    Accumulation, F16_CHAIN, F16_LANES, F16Gemm, LeftFactor, factor_row, multiply,
};
use crate::attention::key_mask::KeyMask;
use crate::attention::kv_element::KEYS;
use crate::attention::scratch::{self, words};
use crate::attention::softmax::f16::{QueryState, softmax_row};
use half::f16;
use std::arch::x86_64::*;

const _: () =
    assert!(KEYS <= F16_CHAIN && KEYS.is_multiple_of(F16_LANES), "a block of keys is one sum in f16");

/// As [`AttendExpandedFn`](crate::AttendExpandedFn).
///
/// # Panics
/// When shapes differ, or the CPU has no AVX512-FP16.
pub(in crate::attention) fn attend(
    args: &AttendExpandedArgs<'_, f16>,
    out: &mut MatrixViewMut<'_>,
    memory: &mut Vec<f32>,
) {
    args.check(out);
    let _proof = crate::isa::Avx512Fp16::expect();
    // SAFETY: the token proves the features that `attend_inner` is compiled for; shapes are
    // checked.
    unsafe { attend_inner(args, out, memory) }
}

crate::isa::isa_fn! { Avx512Fp16;
unsafe fn attend_inner(args: &AttendExpandedArgs<'_, f16>, out: &mut MatrixViewMut<'_>, memory: &mut Vec<f32>) {
    // SAFETY: compiled for AVX512-FP16; the caller has checked shapes.
    unsafe { attend_checked(args, out, memory) }
}
}

/// # Safety
/// The caller is compiled for AVX512-FP16, and has checked shapes.
#[inline(always)]
unsafe fn attend_checked(
    args: &AttendExpandedArgs<'_, f16>,
    out: &mut MatrixViewMut<'_>,
    memory: &mut Vec<f32>,
) {
    let (queries, HeadWidths { nope, rope, value }) = (args.q.rows(), args.expanded.widths);
    // `multiply` stores whole vectors of sums, which may be wider than a row of the result.
    let (line, columns) = ((nope + rope).next_multiple_of(16), value.next_multiple_of(F16_LANES));
    let [scaled, scores, weights, sums, factors, rest] = scratch::resize(
        memory,
        [queries * line, queries * KEYS, queries * KEYS, queries * columns, queries, queries * 6],
    );
    let [max, sum, block_max, block_sum, alpha, beta] = scratch::cut(rest, [queries; 6]);
    let (scaled, weights) = (words(scaled), words(weights));
    // Queries are scaled to a fixed magnitude so that sums of products cannot overflow in f16. The
    // scores, in f32, undo it.
    for (i, line) in scaled.chunks_exact_mut(line).enumerate() {
        // SAFETY: the caller is compiled for AVX512-FP16; `factor_row` asserts that the line has
        // room.
        let undo = unsafe { factor_row(args.q.row(i), line) };
        factors[i] = args.scales[i] * std::f32::consts::LOG2_E * undo;
    }
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    sums.fill(0.0);
    let state = QueryState { max, sum, block_max, block_sum, alpha, beta };
    let expanded = args.expanded;
    let mask = args.mask;
    let mut kernel =
        F16Prefill { expanded, mask, scaled, line, factors, scores, weights, sums, columns, state };
    // SAFETY: the caller is compiled for AVX512-FP16; the kernel has these queries, and keys and
    // values up to the last, as the caller has checked.
    unsafe { driver::run(&mut kernel, args.position, queries) }
    let F16Prefill { sums, state: QueryState { sum, .. }, .. } = kernel;
    for (i, line) in sums.chunks_exact(columns).enumerate() {
        let inverse = 1.0 / sum[i];
        out.row_mut(i).iter_mut().zip(line).for_each(|(o, v)| *o = v * inverse);
    }
}

struct F16Prefill<'a> {
    expanded: &'a ExpandedKv<'a, f16>,
    mask: Option<&'a KeyMask>,
    /// Scaled queries as left factors, `line` elements each.
    scaled: &'a [u32],
    line: usize,
    /// Per query: inverse of its scaling · factor on scores · log₂ e. Scores are then exponents of
    /// 2.
    factors: &'a [f32],
    /// Per query a line of keys.
    scores: &'a mut [f32],
    /// Per query a line of weights, each twice as f16.
    weights: &'a mut [u32],
    /// Weighted sums, `columns` elements per query.
    sums: &'a mut [f32],
    columns: usize,
    state: QueryState<'a>,
}

impl PrefillKernel for F16Prefill<'_> {
    const KV_BLOCK: usize = KEYS;
    const Q_TILE: usize = 1;

    #[inline(always)]
    unsafe fn qk(&mut self, tile: &PrefillTile) {
        let HeadWidths { nope, rope, .. } = self.expanded.widths;
        let (first, line) = (tile.queries.start, self.line);
        let mut product = F16Gemm {
            rows: tile.queries.len(),
            k: nope,
            columns: KEYS,
            right: self.expanded.keys[tile.block * nope * KEYS..].as_ptr().cast(),
            right_row: KEYS,
            out: self.scores[first * KEYS..].as_mut_ptr(),
            out_row: KEYS,
        };
        let scaled = &self.scaled[first * line..];
        let mut left = LeftFactor { start: scaled.as_ptr(), row: line, column: 1 };
        // SAFETY: `nope` and `rope` lines of keys of the block, as checked on entry; a line of
        // elements and of scores per query; the caller is compiled for AVX512-FP16.
        unsafe {
            multiply(left, &product, Accumulation::Replace, &mut None);
            // As in f32: all heads share the RoPE keys.
            if rope > 0 {
                product.k = rope;
                product.right =
                    self.expanded.rope_keys[tile.block * self.expanded.rope_stride..].as_ptr().cast();
                left.start = scaled[nope..].as_ptr();
                multiply(left, &product, Accumulation::Add, &mut None);
            }
        }
    }

    #[inline(always)]
    unsafe fn softmax(&mut self, tile: &PrefillTile) {
        for i in tile.queries.clone() {
            let (scores, weights) =
                (&mut self.scores[i * KEYS..][..KEYS], &mut self.weights[i * KEYS..][..KEYS]);
            if let Some(mask) = self.mask {
                mask.apply(i, tile.start, scores);
            }
            // SAFETY: the caller is compiled for AVX512-FP16.
            let (max, sum) = unsafe { softmax_row(scores, tile.visible(i, KEYS), self.factors[i], weights) };
            (self.state.block_max[i], self.state.block_sum[i]) = (max, sum);
        }
        // SAFETY: the caller is compiled for AVX512-FP16.
        unsafe { self.state.update_running_max(tile.queries.start) }
    }

    #[inline(always)]
    unsafe fn pv(&mut self, tile: &PrefillTile) {
        let (first, value) = (tile.queries.start, self.expanded.widths.value);
        let left = LeftFactor { start: self.weights[first * KEYS..].as_ptr(), row: KEYS, column: 1 };
        let product = F16Gemm {
            rows: tile.queries.len(),
            k: tile.keys,
            columns: value,
            right: self.expanded.values[tile.start * value..].as_ptr().cast(),
            right_row: value,
            out: self.sums[first * self.columns..].as_mut_ptr(),
            out_row: self.columns,
        };
        let old = Accumulation::Scale(&self.state.alpha[first..], &self.state.beta[first..]);
        // SAFETY: `keys` rows of values, as checked on entry; a line of weights and of sums per
        // query; the caller is compiled for AVX512-FP16.
        unsafe { multiply(left, &product, old, &mut None) };
    }
}

/// As [`ExpandKeysFn`](crate::ExpandKeysFn).
///
/// # Panics
/// When shapes differ, or the CPU has no AVX512-FP16.
pub(in crate::attention) fn expand_keys(args: &ExpandArgs<'_, f16>, keys: &mut [f16], memory: &mut Vec<f32>) {
    args.check(keys);
    let _proof = crate::isa::Avx512Fp16::expect();
    // SAFETY: the token proves the features that `expand_inner` is compiled for; shapes are
    // checked.
    unsafe { expand_inner(args, keys, memory) }
}

crate::isa::isa_fn! { Avx512Fp16;
unsafe fn expand_inner(args: &ExpandArgs<'_, f16>, keys: &mut [f16], memory: &mut Vec<f32>) {
    // SAFETY: compiled for AVX512-FP16; the caller has checked shapes.
    unsafe { expand_checked(args, keys, memory) }
}
}

/// # Safety
/// The caller is compiled for AVX512-FP16, and has checked shapes.
#[inline(always)]
unsafe fn expand_checked(args: &ExpandArgs<'_, f16>, keys: &mut [f16], memory: &mut Vec<f32>) {
    let (nope, latent) = (args.blocks.nope, args.blocks.latent);
    let padded = args.weights.len().next_multiple_of(16);
    let [factors, products] = scratch::resize(memory, [padded, nope * KEYS]);
    let factors = words(factors);
    // SAFETY: the caller is compiled for AVX512-FP16; `factor_row` asserts that `factors` has room.
    let undo = unsafe { factor_row(args.weights, factors) };
    let (row, column) = match args.order {
        KeyOrder::Keys => (latent, 1),
        KeyOrder::Latents => (1, nope),
    };
    let left = LeftFactor { start: factors.as_ptr(), row, column };
    for (block, keys) in keys.chunks_exact_mut(nope * KEYS).enumerate() {
        let product = F16Gemm {
            rows: nope,
            k: latent,
            columns: KEYS,
            right: args.blocks.latents[block * args.blocks.stride..].as_ptr().cast(),
            right_row: KEYS,
            out: products.as_mut_ptr(),
            out_row: KEYS,
        };
        // SAFETY: `latent` lines of latents, as checked on entry, and `nope` lines of products;
        // sixteen elements per chunk; the caller is compiled for AVX512-FP16.
        unsafe {
            multiply(left, &product, Accumulation::Replace, &mut None);
            // Clamped to the finite range, as latents and values are (`KvElement::load`).
            let max = _mm512_set1_ps(f16::MAX.to_f32_const());
            let min = _mm512_sub_ps(_mm512_setzero_ps(), max);
            for (out, line) in keys.chunks_exact_mut(16).zip(products.chunks_exact(16)) {
                let key = _mm512_mul_ps(_mm512_loadu_ps(line.as_ptr()), _mm512_set1_ps(undo));
                let key = _mm512_max_ps(_mm512_min_ps(key, max), min);
                _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_castph_si256(_mm512_cvtxps_ph(key)));
            }
        }
    }
}
