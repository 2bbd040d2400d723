//! Expanded keys and values of one head, and the latents that keys are expanded from.

use super::kv_element::KvElement;
use crate::shape::{ShapeError, times};
use crate::{MatrixView, MatrixViewMut};

/// Keys and values of one head for a range of cached rows, in the blocks of [`KvElement`]. Padding
/// rows of the last block may hold arbitrary finite values. Kernels read by address, so fields are
/// private and cannot change after their sizes were checked:
///
/// ```compile_fail
/// let widths = latent_kernels::HeadWidths { nope: 4, rope: 0, value: 4 };
/// let mut expanded = latent_kernels::ExpandedKv::new(&[0.0; 256], (&[], 0), &[0.0; 256], widths).unwrap();
/// expanded.widths.nope = 1 << 20;
/// ```
#[derive(Clone, Copy)]
pub struct ExpandedKv<'a, N = f32> {
    pub(crate) keys: &'a [N],
    pub(crate) rope_keys: &'a [N],
    pub(crate) rope_stride: usize,
    pub(crate) values: &'a [N],
    pub(crate) widths: HeadWidths,
    rows: usize,
}

/// Elements of one head's key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadWidths {
    /// Elements of the part of a key without RoPE.
    pub nope: usize,
    /// Elements of its RoPE part.
    pub rope: usize,
    /// Elements of a value.
    pub value: usize,
}

impl<'a, N: KvElement> ExpandedKv<'a, N> {
    /// From blocks of keys (the part without RoPE), blocks of RoPE keys with the stride between
    /// them in elements, and blocks of values.
    ///
    /// # Errors
    /// When a key or a value has no elements, RoPE blocks overlap, or a size overflows.
    pub fn new(
        keys: &'a [N],
        (rope_keys, rope_stride): (&'a [N], usize),
        values: &'a [N],
        widths: HeadWidths,
    ) -> Result<ExpandedKv<'a, N>, ShapeError> {
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
        Ok(ExpandedKv { keys, rope_keys, rope_stride, values, widths, rows })
    }

    /// Number of cached rows that are in keys, RoPE keys and values.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Asserts that keys and values cover all positions that the queries attend to, and that the
    /// shapes of the results match.
    #[inline(always)]
    pub(crate) fn check(&self, q: &MatrixView<'_>, position: usize, scales: &[f32], out: &MatrixViewMut<'_>) {
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

/// Elements of a block of keys or values.
fn block_len<N: KvElement>(width: usize) -> Result<usize, ShapeError> {
    // Padding adds less than the width itself, or less than a k-step, so `padded` does not
    // overflow.
    if width > usize::MAX / 4 {
        return Err(ShapeError::Overflow { what: "a block of cached rows" });
    }
    times("a block of cached rows", N::padded(width), N::KV_BLOCK)
}

/// Number of blocks of `block` elements, `stride` elements apart, in memory of `len`.
fn spaced_blocks(len: usize, block: usize, stride: usize) -> Result<usize, ShapeError> {
    if len < block {
        return Ok(0);
    }
    if stride < block {
        return Err(ShapeError::Overlap { cols: block, stride });
    }
    // The last block needs no gap after it.
    Ok((len - block) / stride + 1)
}

/// Memory order of W_UK of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// nope × latent, as in `kv_b`.
    Keys,
    /// latent × nope, as in `k_b`.
    Latents,
}

/// Cached latents that keys are expanded from, in blocks packed like keys of `latent` elements.
#[derive(Clone, Copy)]
pub struct KeyBlocks<'a, N = f32> {
    pub(crate) latents: &'a [N],
    pub(crate) stride: usize,
    pub(crate) latent: usize,
    pub(crate) nope: usize,
    blocks: usize,
}

impl<'a, N: KvElement> KeyBlocks<'a, N> {
    /// Blocks of latents of `latent` elements, `stride` elements apart, for keys of `nope`
    /// elements.
    ///
    /// # Errors
    /// When a latent or a key has no elements, blocks overlap, or a size overflows.
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

    /// Asserts the size of W_UK, and that latents cover every block of `keys`.
    pub(crate) fn check(&self, weights: &[f32], keys: &[N]) {
        assert_eq!(weights.len(), self.nope * self.latent, "W_UK of one head");
        let block = N::padded(self.nope) * N::KV_BLOCK;
        let blocks = keys.len() / block;
        assert!(blocks * block == keys.len() && blocks > 0, "keys of whole blocks");
        assert!(blocks <= self.blocks, "latents");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    fn expanded<N: KvElement>(keys: usize, rope: usize, values: usize, widths: HeadWidths) -> Option<usize> {
        let (keys, rope, values) = (vec![N::ZERO; keys], vec![N::ZERO; rope], vec![N::ZERO; values]);
        let stride = N::padded(widths.rope.min(64)) * N::KV_BLOCK + 1;
        ExpandedKv::new(&keys, (&rope, stride), &values, widths).ok().map(|expanded| expanded.rows())
    }

    #[test]
    fn rows_are_the_minimum_over_keys_rope_keys_and_values() {
        let widths = HeadWidths { nope: 4, rope: 2, value: 3 };
        assert_eq!(expanded::<f32>(512, 257, 384, widths), Some(128));
        assert_eq!(expanded::<f32>(512, 256, 384, widths), Some(64));
        assert_eq!(expanded::<f32>(511, 257, 384, widths), Some(64));
        assert_eq!(expanded::<f32>(512, 257, 383, widths), Some(64));
        assert_eq!(expanded::<bf16>(32 * 128, 32 * 128, 32 * 128, widths), Some(128));
        assert_eq!(expanded::<bf16>(32 * 128 - 1, 32 * 128, 32 * 128, widths), Some(0));
        // Widths whose block size would wrap to 0.
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
        let expanded = ExpandedKv::new(&[0.0; 256], (&[], 0), &[0.0; 256], widths).unwrap();
        let (q, mut out) = ([0.0; 8], [0.0; 8]);
        let mut check = |position| {
            let out = MatrixViewMut::new(&mut out, 2, 4, 4);
            expanded.check(&MatrixView::new(&q, 2, 4, 4), position, &[1.0; 2], &out);
        };
        check(62);
        for position in [63, usize::MAX - 1, usize::MAX] {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(position)));
            assert!(caught.is_err(), "{position}");
        }
    }

    #[test]
    fn blocks_of_latents_are_counted_with_their_stride() {
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
