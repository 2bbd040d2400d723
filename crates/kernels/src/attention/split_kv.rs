//! KV splits (flash decoding): the partial softmax of a split, and the combination of all splits of
//! a token.

use crate::MatrixViewMut;
use crate::math::exp;
use std::ops::Range;

/// Attention over one KV split, not yet normalized: per head m = max score, l = Σ e^(score − m),
/// and o = Σ e^(score − m) · value.
pub struct PartialSoftmax<'a> {
    /// m, per head.
    pub max: &'a mut [f32],
    /// l, per head.
    pub sum: &'a mut [f32],
    /// o, a row per head.
    pub o: MatrixViewMut<'a>,
}

impl<'a> PartialSoftmax<'a> {
    /// A view of memory of [`partial_softmax_len`] elements: m of all heads, l of all heads, then
    /// o.
    ///
    /// # Panics
    /// When `memory` is too short.
    pub fn in_memory(memory: &'a mut [f32], heads: usize, width: usize) -> PartialSoftmax<'a> {
        let (max, rest) = memory.split_at_mut(heads);
        let (sum, o) = rest.split_at_mut(heads);
        PartialSoftmax { max, sum, o: MatrixViewMut::new(o, heads, width, width) }
    }

    /// The results of some heads.
    pub fn heads(&mut self, heads: Range<usize>) -> PartialSoftmax<'_> {
        let o = self.o.slice_rows(heads.clone());
        PartialSoftmax { max: &mut self.max[heads.clone()], sum: &mut self.sum[heads], o }
    }
}

/// Elements that the partial results of one split take.
pub fn partial_softmax_len(heads: usize, width: usize) -> usize {
    heads * (width + 2)
}

crate::tiers::tiers! {
/// Combines the splits of a token, in order, for the heads `wanted`, which are the rows of `out`.
/// `memory` has consecutive [`PartialSoftmax`]es of `heads` heads, one per split.
// In order of the splits, and the splits depend on the KV length alone: the bits do not depend on
// which thread finished first.
pub fn combine_splits(
    memory: &[f32],
    splits: usize,
    heads: usize,
    width: usize,
    wanted: Range<usize>,
    out: &mut MatrixViewMut<'_>,
) {
    let (first, stride) = (wanted.start, partial_softmax_len(heads, width));
    for head in wanted {
        let at = |split: usize| &memory[split * stride..(split + 1) * stride];
        let max = (0..splits).map(|split| at(split)[head]).fold(f32::NEG_INFINITY, f32::max);
        let line = out.row_mut(head - first);
        line.fill(0.0);
        let mut sum = 0.0;
        for split in 0..splits {
            let part = at(split);
            let factor = exp(part[head] - max);
            sum += part[heads + head] * factor;
            let values = &part[2 * heads + head * width..][..width];
            for (o, v) in line.iter_mut().zip(values) {
                *o += v * factor;
            }
        }
        let inverse = 1.0 / sum;
        line.iter_mut().for_each(|o| *o *= inverse);
    }
}
}
