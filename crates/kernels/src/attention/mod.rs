//! Attention over cached rows. In latent space it makes partial results, which are merged in the order of the pieces.

mod cache;
#[cfg(target_arch = "x86_64")]
mod code_halves;
mod codes;
mod expanded;
#[cfg(target_arch = "x86_64")]
mod expanded_halves;
#[cfg(target_arch = "x86_64")]
mod half_gemm;
#[cfg(target_arch = "x86_64")]
mod halves;
pub(crate) mod latent;
mod number;
pub(crate) mod panels;
mod tiers;

pub use cache::{CacheView, load_part, load_row, store_part, store_row};
pub(crate) use cache::{scale_of, widen_codes};
pub use expanded::KEYS;
pub use half::{bf16, f16};
pub use number::Number;
pub(crate) use tiers::{code_kernels, half_kernels, kernels};

use crate::elementwise::exp;
use crate::{Rows, RowsMut};
use std::ops::Range;

/// Partial results of one piece: for each query the largest score, the sum of e^(score − max), and Σ e^(score − max) · value.
pub struct Partials<'a> {
    /// Largest scores.
    pub max: &'a mut [f32],
    /// Sums.
    pub sum: &'a mut [f32],
    /// Weighted values, not divided by the sums.
    pub o: RowsMut<'a>,
}

impl<'a> Partials<'a> {
    /// Those of so many heads, in memory of [`partials_len`] numbers: maxima, sums, values.
    ///
    /// # Panics
    /// When `memory` is too short.
    pub fn in_memory(memory: &'a mut [f32], heads: usize, width: usize) -> Partials<'a> {
        let (max, rest) = memory.split_at_mut(heads);
        let (sum, o) = rest.split_at_mut(heads);
        Partials { max, sum, o: RowsMut::new(o, heads, width, width) }
    }

    /// Those of some of the heads.
    pub fn heads(&mut self, heads: Range<usize>) -> Partials<'_> {
        let o = self.o.slice_rows(heads.clone());
        Partials { max: &mut self.max[heads.clone()], sum: &mut self.sum[heads], o }
    }
}

/// Numbers that partial results take.
pub fn partials_len(heads: usize, width: usize) -> usize {
    heads * (width + 2)
}

/// Attention in latent space: `q` has a row a head, `[latent | rope]` wide; the first `latent` numbers of a cached row are its value too, and rows
/// come from memory once for all heads. Then the factor on scores, the width of values, the results, and scratch.
pub type AttendFn = fn(Rows<'_>, &CacheView<'_>, Range<usize>, f32, usize, &mut Partials<'_>, &mut Vec<f32>);

/// Keys and values of one head, for all cached rows that some queries see, in blocks as [`Number`] says; where a row of the last block is missing,
/// there are any finite numbers.
#[derive(Clone, Copy)]
pub struct Expanded<'a, N = f32> {
    /// Blocks of keys without position.
    pub keys: &'a [N],
    /// Blocks of the rope part.
    pub rope_keys: &'a [N],
    /// Numbers between the blocks of `rope_keys`.
    pub rope_stride: usize,
    /// Blocks of values.
    pub values: &'a [N],
    /// Numbers of a value.
    pub value_width: usize,
    /// Numbers of a key without position.
    pub nope: usize,
    /// Numbers of its rotated part.
    pub rope: usize,
}

/// Causal attention of queries `[nope | rope]` of one head, the first at the position given, with a factor on the scores of each; the
/// finished results, and scratch.
pub type AttendExpandedFn<N = f32> =
    fn(Rows<'_>, &Expanded<'_, N>, usize, &[f32], &mut RowsMut<'_>, &mut Vec<f32>);

/// How W_UK of a head lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// A row for each number of a key, as in `kv_b`.
    Keys,
    /// A row for each number of the latent, as in `k_b`.
    Latents,
}

/// Cached latents, from which keys of one head are made.
#[derive(Clone, Copy)]
pub struct KeyBlocks<'a, N = f32> {
    /// Blocks of cached rows, laid as keys of `latent` numbers are.
    pub latents: &'a [N],
    /// Numbers between the blocks.
    pub stride: usize,
    /// Numbers of a latent.
    pub latent: usize,
    /// Numbers of a key.
    pub nope: usize,
}

impl<N: Number> KeyBlocks<'_, N> {
    /// Asserts that matrices have their sizes: `keys` gets one block after the other.
    pub(crate) fn check(&self, weights: &[f32], keys: &[N]) {
        assert_eq!(weights.len(), self.nope * self.latent, "W_UK of one head");
        let [block, latents] = [self.nope, self.latent].map(|width| N::padded(width) * N::BLOCK);
        let blocks = keys.len() / block;
        assert!(blocks * block == keys.len() && blocks > 0, "keys of whole blocks");
        assert!(self.latents.len() >= (blocks - 1) * self.stride + latents, "latents");
    }
}

/// Keys of one head from latents: W_UK in the order given, blocks of cached rows, their keys, and scratch.
pub type ExpandKeysFn<N = f32> = fn(&[f32], KeyOrder, &KeyBlocks<'_, N>, &mut [N], &mut Vec<f32>);

/// Does something for each number below a constant of at most sixteen, by name: with numbers that the compiler does not know, arrays of sums
/// would live in memory.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_macros, reason = "for vectors"))]
macro_rules! each_below {
    ($count:ident, $i:ident => $body:expr) => {
        each_below!($count, $i => $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($count:ident, $i:ident => $body:expr; $($number:literal)*) => {$(
        if $number < $count {
            let $i = Ord::min($number, $count - 1);
            $body;
        }
    )*};
}
use each_below;

/// Folds sixteen lanes in pairs.
macro_rules! fold_lanes {
    ($lanes:expr, $a:ident, $b:ident => $fold:expr) => {{
        let mut lanes: [f32; 16] = $lanes;
        let mut width = 8;
        while width > 0 {
            for i in 0..width {
                let ($a, $b) = (lanes[i], lanes[i + width]);
                lanes[i] = $fold;
            }
            width /= 2;
        }
        lanes[0]
    }};
}
use fold_lanes;

/// Sums sixteen lanes in pairs.
#[inline(always)]
pub(crate) fn sum_lanes(lanes: [f32; 16]) -> f32 {
    fold_lanes!(lanes, a, b => a + b)
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
    sum_lanes(strands)
}

crate::tiers::tiers! {
/// Merges pieces in order, of the heads `wanted`, which are the rows of `out`. `memory` holds [`Partials`] of `heads` for each piece, one after the
/// other.
pub fn merge_partials(
    memory: &[f32],
    pieces: usize,
    heads: usize,
    width: usize,
    wanted: std::ops::Range<usize>,
    out: &mut RowsMut<'_>,
) {
    let (first, stride) = (wanted.start, partials_len(heads, width));
    for head in wanted {
        let at = |piece: usize| &memory[piece * stride..(piece + 1) * stride];
        let max = (0..pieces).map(|p| at(p)[head]).fold(f32::NEG_INFINITY, f32::max);
        let line = out.row_mut(head - first);
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
}
