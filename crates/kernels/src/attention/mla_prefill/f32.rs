//! Prefill attention in f32, and the expansion of its keys.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use super::driver::{self, PrefillKernel, PrefillTile};
use crate::MatrixViewMut;
use crate::attention::args::{AttendExpandedArgs, ExpandArgs};
use crate::attention::expanded::{ExpandedKv, HeadWidths, KeyOrder};
use crate::attention::key_mask::KeyMask;
use crate::attention::kv_element::KEYS;
use crate::attention::scratch;
use crate::attention::softmax::f32::softmax_row;
use crate::gemm::{LeftOperand, gemm};
use crate::simd::Simd;
use std::marker::PhantomData;

/// As [`AttendExpandedFn`](crate::AttendExpandedFn).
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(in crate::attention) unsafe fn attend<S: Simd>(
    args: &AttendExpandedArgs<'_>,
    out: &mut MatrixViewMut<'_>,
    memory: &mut Vec<f32>,
) {
    args.check(out);
    let HeadWidths { nope, rope, .. } = args.expanded.widths;
    let (queries, width) = (args.q.rows(), nope + rope);
    let lengths = [queries * width, queries * KEYS, queries, queries];
    let [scaled, scores, max, sum] = scratch::resize(memory, lengths);
    // The factor on scores multiplies the queries, once per call instead of once per block of keys.
    for (i, line) in scaled.chunks_exact_mut(width).enumerate() {
        line.iter_mut().zip(args.q.row(i)).for_each(|(s, q)| *s = q * args.scales[i]);
        out.row_mut(i).fill(0.0);
    }
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    let mut kernel = F32Prefill::<S> {
        expanded: args.expanded,
        mask: args.mask,
        scaled,
        scores,
        max,
        sum: &mut *sum,
        out: &mut *out,
        isa: PhantomData,
    };
    // SAFETY: the caller is compiled for `S`; the kernel has these queries, and keys and values up
    // to the last, as just checked.
    unsafe { driver::run(&mut kernel, args.position, queries) }
    // Normalized once at the end instead of per block (online softmax).
    for i in 0..queries {
        let inverse = 1.0 / sum[i];
        out.row_mut(i).iter_mut().for_each(|o| *o *= inverse);
    }
}

struct F32Prefill<'a, 'o, S> {
    expanded: &'a ExpandedKv<'a>,
    mask: Option<&'a KeyMask>,
    /// Queries, multiplied by their factor on scores.
    scaled: &'a [f32],
    /// Per query a line of keys: scores, then weights.
    scores: &'a mut [f32],
    /// Running max and sum of each query.
    max: &'a mut [f32],
    sum: &'a mut [f32],
    /// Weighted sums.
    out: &'a mut MatrixViewMut<'o>,
    isa: PhantomData<S>,
}

impl<S: Simd> PrefillKernel for F32Prefill<'_, '_, S> {
    const KV_BLOCK: usize = KEYS;
    const Q_TILE: usize = 1;

    #[inline(always)]
    unsafe fn qk(&mut self, tile: &PrefillTile) {
        let ExpandedKv { keys, rope_keys, rope_stride, widths, .. } = *self.expanded;
        let HeadWidths { nope, rope, .. } = widths;
        let (block, first, width) = (tile.block, tile.queries.start, nope + rope);
        let keys = &keys[block * nope * KEYS..(block + 1) * nope * KEYS];
        let rope_keys = if rope > 0 { &rope_keys[block * rope_stride..][..rope * KEYS] } else { &[][..] };
        let queries = |column| LeftOperand::Rows(&self.scaled[first * width + column..], width);
        let mut scores = MatrixViewMut::new(&mut self.scores[first * KEYS..], tile.queries.len(), KEYS, KEYS);
        // SAFETY: the caller is compiled for `S`.
        unsafe {
            gemm::<S>(nope, queries(0), (keys, KEYS), &mut scores, false);
            // RoPE keys are separate: all heads share them, so they are packed once per layer.
            if rope > 0 {
                gemm::<S>(rope, queries(nope), (rope_keys, KEYS), &mut scores, true);
            }
        }
    }

    #[inline(always)]
    unsafe fn softmax(&mut self, tile: &PrefillTile) {
        let lines = self.scores[tile.queries.start * KEYS..].chunks_exact_mut(KEYS);
        for (i, line) in tile.queries.clone().zip(lines) {
            if let Some(mask) = self.mask {
                mask.apply(i, tile.start, line);
            }
            let factor = softmax_row(line, tile.visible(i, KEYS), &mut self.max[i], &mut self.sum[i]);
            if factor != 1.0 {
                self.out.row_mut(i).iter_mut().for_each(|o| *o *= factor);
            }
        }
    }

    #[inline(always)]
    unsafe fn pv(&mut self, tile: &PrefillTile) {
        let value = self.expanded.widths.value;
        let values = (&self.expanded.values[tile.start * value..], value);
        let weights = LeftOperand::Rows(&self.scores[tile.queries.start * KEYS..], KEYS);
        let mut out = self.out.slice_rows(tile.queries.clone());
        // `tile.keys` rows: values beyond the last key may not exist.
        // SAFETY: the caller is compiled for `S`.
        unsafe { gemm::<S>(tile.keys, weights, values, &mut out, true) }
    }
}

/// As [`ExpandKeysFn`](crate::ExpandKeysFn).
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(in crate::attention) unsafe fn expand_keys<S: Simd>(
    args: &ExpandArgs<'_>,
    keys: &mut [f32],
    _memory: &mut Vec<f32>,
) {
    args.check(keys);
    let (nope, latent) = (args.blocks.nope, args.blocks.latent);
    let weights = match args.order {
        KeyOrder::Keys => LeftOperand::Rows(args.weights, latent),
        KeyOrder::Latents => LeftOperand::Columns(args.weights, nope),
    };
    for (block, keys) in keys.chunks_exact_mut(nope * KEYS).enumerate() {
        let latents = &args.blocks.latents[block * args.blocks.stride..];
        let mut keys = MatrixViewMut::new(keys, nope, KEYS, KEYS);
        // SAFETY: the caller is compiled for `S`.
        unsafe { gemm::<S>(latent, weights, (latents, KEYS), &mut keys, false) }
    }
}
