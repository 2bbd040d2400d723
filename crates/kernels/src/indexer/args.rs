//! Operands of the scores of an indexer, and the sum over its heads.

use crate::kv_cache::CacheView;
use std::ops::Range;

/// Heads per vector.
pub(super) const LANES: usize = 16;

/// Operands of the scores of one query.
pub struct IndexArgs<'a> {
    /// The query, one head after the other, each as wide as a key.
    pub q: &'a [f32],
    /// The weight of each head.
    pub weights: &'a [f32],
    /// Cached keys of the sequence.
    pub cache: &'a CacheView<'a>,
    /// The keys that are scored.
    pub rows: Range<usize>,
    /// Whether products with keys of int8 are in f32: else the query is quantized too.
    pub exact: bool,
    /// Whether queries, and keys of f16, may be rounded to bf16, where the CPU has AVX512-BF16.
    pub bf16: bool,
}

/// Σ w · max(0, product) over groups of `width` heads, the line of each at the front of a slice: in lanes that are added up in order.
#[inline(always)]
pub(super) fn weighted<'a>(lines: impl Iterator<Item = &'a [f32]>, weights: &[f32], width: usize) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (line, weights) in lines.zip(weights.chunks_exact(width)) {
        for (products, weights) in line[..width].chunks_exact(LANES).zip(weights.chunks_exact(LANES)) {
            for ((lane, product), weight) in lanes.iter_mut().zip(products).zip(weights) {
                *lane += weight * product.max(0.0);
            }
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}
