//! Attention over cached rows. All forms make partial results that are merged in the order of the pieces.

mod cache;
mod expanded;
mod latent;

pub use cache::{CacheView, load_row, store_row};
pub use expanded::attend_expanded;
pub use latent::{attend_latent, attend_split};

use crate::elementwise::exp;
use crate::{Rows, RowsMut};
use std::ops::Range;

/// Keys that are scored at a time.
pub(crate) const BLOCK: usize = 64;

/// Partial results of one piece: for each query the largest score, the sum of e^(score − max), and Σ e^(score − max) · value.
pub struct Partials<'a> {
    /// Largest scores.
    pub max: &'a mut [f32],
    /// Sums.
    pub sum: &'a mut [f32],
    /// Weighted values, not divided by the sums.
    pub o: RowsMut<'a>,
}

/// Attention in latent space: `q` has a row a head, `[latent | rope]` wide; cached rows `rows` are read once for all of them; the first
/// `latent` numbers of a row are its value too.
pub type AttendFn = fn(Rows<'_>, &CacheView<'_>, Range<usize>, f32, usize, &mut Partials<'_>);

/// Scores of a block become weights: rescales what was summed before, and returns the factor on it.
#[inline(always)]
pub(crate) fn online_softmax(scores: &mut [f32], max: &mut f32, sum: &mut f32) -> f32 {
    let largest = scores.iter().copied().fold(*max, f32::max);
    let factor = if *max == f32::NEG_INFINITY { 0.0 } else { exp(*max - largest) };
    let mut total = 0.0;
    for s in scores.iter_mut() {
        *s = exp(*s - largest);
        total += *s;
    }
    *sum = *sum * factor + total;
    *max = largest;
    factor
}

/// A dot product in 16 strands, whatever the instruction set.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut strands = [0.0f32; 16];
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let (ac, bc) = (a.chunks_exact(16), b.chunks_exact(16));
    for (s, (x, y)) in strands.iter_mut().zip(ac.remainder().iter().zip(bc.remainder())) {
        *s += x * y;
    }
    for (x, y) in ac.zip(bc) {
        for i in 0..16 {
            strands[i] += x[i] * y[i];
        }
    }
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            strands[i] += strands[i + width];
        }
        width /= 2;
    }
    strands[0]
}

/// Merges pieces in order. `memory` holds, for each piece, `heads` maxima, `heads` sums and `heads` × `width` values; pieces are
/// `stride` numbers apart.
pub fn merge_partials(
    memory: &[f32],
    pieces: usize,
    stride: usize,
    heads: usize,
    width: usize,
    out: &mut RowsMut<'_>,
) {
    for head in 0..heads {
        let at = |piece: usize| &memory[piece * stride..(piece + 1) * stride];
        let max = (0..pieces).map(|p| at(p)[head]).fold(f32::NEG_INFINITY, f32::max);
        let line = out.row_mut(head);
        line.fill(0.0);
        let mut sum = 0.0;
        for piece in 0..pieces {
            let part = at(piece);
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
