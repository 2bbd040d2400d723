//! Scores of an indexer by AVX512-BF16: keys are the rows of left panels, heads those of right panels.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::args::{IndexArgs, LANES, weighted};
use crate::bf16::dot::{Avx512Bf16Dot, Bf16Dot};
use crate::bf16::layout::{F32Matrix, aligned, pair, right_panel};
use crate::bf16_layout::{K_STEP, PANEL, STEP_LEN, steps};
use half::bf16;
use latent_types::CacheType;
use std::arch::x86_64::*;

/// Elements of the products of 32 keys with 32 heads.
const SQUARE: usize = PANEL * PANEL;

/// Whether keys of this type are read.
pub(super) fn reads(ty: CacheType) -> bool {
    matches!(ty, CacheType::F16 | CacheType::Bf16)
}

/// As [`index_scores`](super::index_scores); queries, and keys of f16, are rounded to bf16.
///
/// # Panics
/// As `index_scores`, and when the CPU has no AVX512-BF16.
pub(super) fn scores(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
    let (width, heads) = (args.cache.width(), args.weights.len());
    assert!(args.q.len() == heads * width && out.len() == args.rows.len(), "{heads} heads of {width}");
    assert!(reads(args.cache.ty()), "keys of {}", args.cache.ty());
    let mut dot = Avx512Bf16Dot::new();
    let (panel, groups) = (steps(width) * STEP_LEN, heads.div_ceil(PANEL));
    let columns = groups * PANEL;
    let memory = aligned(scratch, (groups + 1) * panel / 2 + columns + groups * SQUARE);
    let (panels, rest) = memory.split_at_mut((groups + 1) * panel / 2);
    let (weights, squares) = rest.split_at_mut(columns);
    weights.fill(0.0);
    weights[..heads].copy_from_slice(args.weights);
    let keys: *mut bf16 = panels.as_mut_ptr().cast();
    let queries = keys.wrapping_add(panel);
    for (group, q) in args.q.chunks(PANEL * width).enumerate() {
        let matrix = F32Matrix { start: q.as_ptr(), stride: width, rows: q.len() / width, cols: width };
        // SAFETY: the rows of `q`, and room for a panel per group; `dot` proves the instructions.
        unsafe { right_panel(matrix, &[1.0; PANEL], queries.wrapping_add(group * panel)) }
    }
    for (block, out) in out.chunks_mut(PANEL).enumerate() {
        let first = args.rows.start + block * PANEL;
        for i in 0..out.len() {
            let row = args.cache.row(first + i);
            assert!(row.len() >= 2 * width, "a key");
            // SAFETY: a row of `width` elements, and room for one of each k-step; `dot` proves the instructions.
            unsafe {
                load_key(
                    row.as_ptr(),
                    args.cache.ty() == CacheType::F16,
                    width,
                    keys.wrapping_add(i * K_STEP),
                )
            }
        }
        for (group, square) in squares.chunks_exact_mut(SQUARE).enumerate() {
            let left = [(keys.cast_const(), steps(width)), (std::ptr::null(), 0)];
            // SAFETY: a left panel, a right panel of the group and a square, all of them in `memory`. Rows behind the
            // last key are of earlier keys or zeros, whose products are not read.
            unsafe { dot.panels(left, queries.wrapping_add(group * panel), false, square.as_mut_ptr()) }
        }
        for (i, score) in out.iter_mut().enumerate() {
            *score = weighted(squares[i * PANEL..].chunks(SQUARE), weights, PANEL);
        }
    }
}

const _: () = assert!(PANEL.is_multiple_of(LANES), "whole vectors of heads");

crate::isa::isa_fn! { Avx512Bf16;
/// Copies a key into its row of each k-step of a left panel, in bf16.
///
/// # Safety
/// There are `width` elements of 16 bits at `from`, and room for a row per k-step; the CPU has AVX512-BF16.
unsafe fn load_key(from: *const u8, f16: bool, width: usize, to: *mut bf16) {
    for (step, first) in (0..width).step_by(K_STEP).enumerate() {
        let mask = ((1u64 << (width - first).min(K_STEP)) - 1) as u32;
        // SAFETY: masked lanes are not read; a row of the k-step.
        unsafe {
            let from = from.add(2 * first);
            let line = if f16 {
                let low = _mm256_maskz_loadu_epi16(mask as u16, from.cast());
                let high = _mm256_maskz_loadu_epi16((mask >> 16) as u16, from.wrapping_add(32).cast());
                pair(_mm512_cvtph_ps(low), _mm512_cvtph_ps(high))
            } else {
                _mm512_maskz_loadu_epi16(mask, from.cast())
            };
            _mm512_storeu_si512(to.add(step * STEP_LEN).cast(), line);
        }
    }
}
}
