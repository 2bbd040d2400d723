//! Operands of an indexer's scores, and the sum over its heads.

use crate::kv_cache::CacheView;
use std::ops::Range;

/// Heads per vector.
pub(super) const LANES: usize = 16;

/// Operands of the scores of queries over the same cached keys.
pub struct IndexArgs<'a> {
    /// The queries: [queries, heads, width of a key].
    pub q: &'a [f32],
    /// The weight of each head: [queries, heads].
    pub weights: &'a [f32],
    /// Heads of a query.
    pub heads: usize,
    /// Cached keys of the sequence.
    pub cache: &'a CacheView<'a>,
    /// The keys that are scored.
    pub rows: Range<usize>,
    /// Whether products with int8 keys are in f32. Otherwise the query is quantized too.
    pub exact: bool,
    /// Whether the kernels of AVX-512 may be used, which round queries and keys to bf16, and
    /// queries to int8 for keys of int8. Not for keys of f32, and only if the CPU has the
    /// instructions.
    pub avx512: bool,
}

impl IndexArgs<'_> {
    /// The width of a key, the number of heads, and the number of queries.
    ///
    /// # Panics
    /// When shapes differ.
    pub(super) fn check(&self, out: &[f32]) -> (usize, usize, usize) {
        let (width, heads) = (self.cache.width(), self.heads);
        assert!(heads > 0, "an indexer without heads");
        let queries = self.weights.len() / heads;
        assert!(
            self.weights.len() == queries * heads
                && self.q.len() == queries * heads * width
                && out.len() == queries * self.rows.len(),
            "{queries} queries of {heads} heads, {width} wide"
        );
        (width, heads, queries)
    }
}

/// Σ w · max(0, product) over groups of `width` heads. Each slice starts with the products of a
/// group. Sums are in sixteen lanes, which are added in a fixed order.
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
