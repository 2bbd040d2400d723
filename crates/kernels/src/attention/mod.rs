//! Attention over cached rows. In latent space it makes partial results, which are merged in the order of the pieces.

pub(crate) mod bf16_layout;
mod cache;
#[cfg(target_arch = "x86_64")]
mod gemm_f16;
mod kv_element;
pub(crate) mod mla_decode;
mod mla_prefill;
mod tiers;

pub use cache::{CacheView, load_part, load_row, store_part, store_row};
pub(crate) use cache::{scale_of, widen_codes};
pub use kv_element::KvElement;
pub use mla_prefill::KEYS;
pub(crate) use tiers::{f16_kernels, int8_kernels, kernels};

use crate::elementwise::exp;
use crate::shape::{ShapeError, times};
use crate::{Rows, RowsMut};
use std::ops::Range;

/// Partial results of one piece: for each query the largest score, the sum of e^(score − max), and Σ e^(score − max) · value.
pub struct PartialSoftmax<'a> {
    /// Largest scores.
    pub max: &'a mut [f32],
    /// Sums.
    pub sum: &'a mut [f32],
    /// Weighted values, not divided by the sums.
    pub o: RowsMut<'a>,
}

impl<'a> PartialSoftmax<'a> {
    /// Those of so many heads, in memory of [`partial_softmax_len`] numbers: maxima, sums, values.
    ///
    /// # Panics
    /// When `memory` is too short.
    pub fn in_memory(memory: &'a mut [f32], heads: usize, width: usize) -> PartialSoftmax<'a> {
        let (max, rest) = memory.split_at_mut(heads);
        let (sum, o) = rest.split_at_mut(heads);
        PartialSoftmax { max, sum, o: RowsMut::new(o, heads, width, width) }
    }

    /// Those of some of the heads.
    pub fn heads(&mut self, heads: Range<usize>) -> PartialSoftmax<'_> {
        let o = self.o.slice_rows(heads.clone());
        PartialSoftmax { max: &mut self.max[heads.clone()], sum: &mut self.sum[heads], o }
    }
}

/// Numbers that partial results take.
pub fn partial_softmax_len(heads: usize, width: usize) -> usize {
    heads * (width + 2)
}

/// Attention in latent space: `q` has a row a head, `[latent | rope]` wide; the first `latent` numbers of a cached row are its value too, and rows
/// come from memory once for all heads. Then the factor on scores, the width of values, the results, and scratch.
pub type AttendFn =
    fn(Rows<'_>, &CacheView<'_>, Range<usize>, f32, usize, &mut PartialSoftmax<'_>, &mut Vec<f32>);

/// Keys and values of one head, for all cached rows that some queries see, in blocks as [`KvElement`] says; where a row of the last block is missing,
/// there are any finite numbers. The parts cannot be changed once their sizes were compared:
///
/// ```compile_fail
/// let widths = latent_kernels::HeadWidths { nope: 4, rope: 0, value: 4 };
/// let mut expanded = latent_kernels::Expanded::new(&[0.0; 256], (&[], 0), &[0.0; 256], widths).unwrap();
/// expanded.widths.nope = 1 << 20;
/// ```
#[derive(Clone, Copy)]
pub struct Expanded<'a, N = f32> {
    pub(crate) keys: &'a [N],
    pub(crate) rope_keys: &'a [N],
    pub(crate) rope_stride: usize,
    pub(crate) values: &'a [N],
    pub(crate) widths: HeadWidths,
    rows: usize,
}

/// Numbers of one head's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadWidths {
    /// Numbers of a key without position.
    pub nope: usize,
    /// Numbers of its rotated part.
    pub rope: usize,
    /// Numbers of a value.
    pub value: usize,
}

impl<'a, N: KvElement> Expanded<'a, N> {
    /// Blocks of keys without position; blocks of the rope part, and the numbers from one of them to the next; blocks of values.
    ///
    /// # Errors
    /// When a key or a value has no numbers, or a size overflows.
    pub fn new(
        keys: &'a [N],
        (rope_keys, rope_stride): (&'a [N], usize),
        values: &'a [N],
        widths: HeadWidths,
    ) -> Result<Expanded<'a, N>, ShapeError> {
        let HeadWidths { nope, rope, value } = widths;
        for (what, value) in [("the width of a key", nope), ("the width of a value", value)] {
            if value == 0 {
                return Err(ShapeError::Range { what, value, expected: "at least 1" });
            }
        }
        let mut blocks = (keys.len() / block_len::<N>(nope)?).min(values.len() / block_len::<N>(value)?);
        if rope > 0 {
            blocks = blocks.min(spaced_blocks(rope_keys.len(), block_len::<N>(rope)?, rope_stride)?);
        }
        let rows = times("expanded keys", blocks, N::KV_BLOCK)?;
        Ok(Expanded { keys, rope_keys, rope_stride, values, widths, rows })
    }

    /// Cached rows of the blocks.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Asserts that there are keys and values for all rows that `queries` see, the first at `position`, and that results have their shape.
    #[inline(always)]
    pub(crate) fn check(&self, q: &Rows<'_>, position: usize, scales: &[f32], out: &RowsMut<'_>) {
        let HeadWidths { nope, rope, value } = self.widths;
        let queries = q.rows();
        assert!(q.cols() == nope + rope && scales.len() == queries && out.rows() == queries, "queries");
        assert_eq!(out.cols(), value, "width of values");
        let seen = position.checked_add(queries);
        assert!(
            seen.is_some_and(|seen| seen <= self.rows),
            "{queries} queries at {position} of {}",
            self.rows
        );
    }
}

/// Numbers of a block of keys or values.
///
/// # Errors
/// When they overflow.
fn block_len<N: KvElement>(width: usize) -> Result<usize, ShapeError> {
    // widths are filled up to less than twice as many, or to a step
    if width > usize::MAX / 4 {
        return Err(ShapeError::Overflow { what: "a block of cached rows" });
    }
    times("a block of cached rows", N::padded(width), N::KV_BLOCK)
}

/// Blocks of `block` numbers, `stride` numbers apart, in memory of `len`.
///
/// # Errors
/// When they overlap.
fn spaced_blocks(len: usize, block: usize, stride: usize) -> Result<usize, ShapeError> {
    if len < block {
        return Ok(0);
    }
    if stride < block {
        return Err(ShapeError::Overlap { cols: block, stride });
    }
    Ok((len - block) / stride + 1)
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

/// Cached latents, from which keys of one head are made: blocks of cached rows, laid as keys of `latent` numbers are.
#[derive(Clone, Copy)]
pub struct KeyBlocks<'a, N = f32> {
    pub(crate) latents: &'a [N],
    pub(crate) stride: usize,
    pub(crate) latent: usize,
    pub(crate) nope: usize,
    blocks: usize,
}

impl<'a, N: KvElement> KeyBlocks<'a, N> {
    /// Blocks of latents of `latent` numbers, `stride` numbers apart, for keys of `nope` numbers.
    ///
    /// # Errors
    /// When a latent or a key has no numbers, blocks overlap, or a size overflows.
    pub fn new(
        latents: &'a [N],
        stride: usize,
        latent: usize,
        nope: usize,
    ) -> Result<KeyBlocks<'a, N>, ShapeError> {
        for (what, value) in [("the width of a latent", latent), ("the width of a key", nope)] {
            if value == 0 {
                return Err(ShapeError::Range { what, value, expected: "at least 1" });
            }
        }
        block_len::<N>(nope)?;
        times("W_UK of one head", nope, latent)?;
        let blocks = spaced_blocks(latents.len(), block_len::<N>(latent)?, stride)?;
        Ok(KeyBlocks { latents, stride, latent, nope, blocks })
    }

    /// Asserts that matrices have their sizes: `keys` gets one block after the other.
    pub(crate) fn check(&self, weights: &[f32], keys: &[N]) {
        assert_eq!(weights.len(), self.nope * self.latent, "W_UK of one head");
        let block = N::padded(self.nope) * N::KV_BLOCK;
        let blocks = keys.len() / block;
        assert!(blocks * block == keys.len() && blocks > 0, "keys of whole blocks");
        assert!(blocks <= self.blocks, "latents");
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

crate::tiers::tiers! {
/// Merges pieces in order, of the heads `wanted`, which are the rows of `out`. `memory` holds [`PartialSoftmax`] of `heads` for each piece, one after the
/// other.
pub fn combine_splits(
    memory: &[f32],
    pieces: usize,
    heads: usize,
    width: usize,
    wanted: std::ops::Range<usize>,
    out: &mut RowsMut<'_>,
) {
    let (first, stride) = (wanted.start, partial_softmax_len(heads, width));
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

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    fn expanded<N: KvElement>(keys: usize, rope: usize, values: usize, widths: HeadWidths) -> Option<usize> {
        let (keys, rope, values) = (vec![N::ZERO; keys], vec![N::ZERO; rope], vec![N::ZERO; values]);
        let stride = N::padded(widths.rope.min(64)) * N::KV_BLOCK + 1;
        Expanded::new(&keys, (&rope, stride), &values, widths).ok().map(|expanded| expanded.rows())
    }

    #[test]
    fn expanded_keys_serve_as_many_rows_as_all_parts_have() {
        let widths = HeadWidths { nope: 4, rope: 2, value: 3 };
        assert_eq!(expanded::<f32>(512, 257, 384, widths), Some(128));
        assert_eq!(expanded::<f32>(512, 256, 384, widths), Some(64));
        assert_eq!(expanded::<f32>(511, 257, 384, widths), Some(64));
        assert_eq!(expanded::<f32>(512, 257, 383, widths), Some(64));
        assert_eq!(expanded::<bf16>(32 * 128, 32 * 128, 32 * 128, widths), Some(128));
        assert_eq!(expanded::<bf16>(32 * 128 - 1, 32 * 128, 32 * 128, widths), Some(0));
        // widths of which a block would wrap to no numbers at all
        for nope in [0, 1 << 58, usize::MAX - 63] {
            assert_eq!(expanded::<f32>(512, 257, 384, HeadWidths { nope, ..widths }), None, "{nope}");
            assert_eq!(expanded::<bf16>(512, 257, 384, HeadWidths { nope, ..widths }), None, "{nope}");
        }
        assert_eq!(expanded::<f32>(512, 257, 384, HeadWidths { rope: 1 << 58, ..widths }), None);
        assert_eq!(expanded::<f32>(512, 257, 384, HeadWidths { value: 1 << 58, ..widths }), None);
    }

    #[test]
    fn queries_at_a_position_that_wraps_are_refused() {
        let widths = HeadWidths { nope: 4, rope: 0, value: 4 };
        let expanded = Expanded::new(&[0.0; 256], (&[], 0), &[0.0; 256], widths).unwrap();
        let (q, mut out) = ([0.0; 8], [0.0; 8]);
        let mut check = |position| {
            let out = RowsMut::new(&mut out, 2, 4, 4);
            expanded.check(&Rows::new(&q, 2, 4, 4), position, &[1.0; 2], &out);
        };
        check(62);
        for position in [63, usize::MAX - 1, usize::MAX] {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(position)));
            assert!(caught.is_err(), "{position}");
        }
    }

    #[test]
    fn blocks_of_latents_are_counted_once() {
        let keys = |latents: &[f32], stride, latent, nope| {
            KeyBlocks::new(latents, stride, latent, nope).ok().map(|keys| keys.blocks)
        };
        let latents = vec![0.0; 2 * 256 + 10];
        assert_eq!(keys(&latents, 256, 4, 3), Some(2));
        assert_eq!(keys(&latents, 266, 4, 3), Some(2));
        assert_eq!(keys(&latents, 267, 4, 3), Some(1));
        assert_eq!(keys(&latents, 255, 4, 3), None);
        assert_eq!(keys(&latents, 256, 0, 3), None);
        assert_eq!(keys(&latents, 256, 4, 1 << 62), None);
        assert_eq!(keys(&latents, 1 << 62, 1 << 58, 3), None);
    }
}
