//! Arguments of attention kernels.

use super::expanded::{ExpandedKv, KeyBlocks, KeyOrder};
use super::key_mask::KeyMask;
use super::kv_element::KvElement;
use super::split_kv::PartialSoftmax;
use crate::kv_cache::CacheView;
use crate::{MatrixView, MatrixViewMut};
use latent_types::CacheRow;
use std::ops::Range;

/// Operands of MLA decode: one token, some of its heads, one KV split.
#[derive(Clone)]
pub struct AttendArgs<'a> {
    /// Absorbed queries, a row `[latent | rope]` per head.
    pub q: MatrixView<'a>,
    /// Cached rows `[latent | rope]` of the sequence. The latent is the value too.
    pub cache: &'a CacheView<'a>,
    /// Cached rows of the split. They are not masked: the query attends to all of them.
    pub rows: Range<usize>,
    /// Factor on the scores.
    pub scale: f32,
    /// Elements of a latent.
    pub latent: usize,
}

/// MLA decode of one KV split: overwrites the partial result, of `q.rows()` heads × `latent`; the
/// last argument is scratch of any length.
///
/// # Panics
/// When shapes differ, or a row of the split is not in the block table.
pub type AttendFn = fn(&AttendArgs<'_>, &mut PartialSoftmax<'_>, &mut Vec<f32>);

/// Operands of causal attention of one head over expanded keys and values.
#[derive(Clone, Copy)]
pub struct AttendExpandedArgs<'a, N = f32> {
    /// Queries, a row `[nope | rope]` per token.
    pub q: MatrixView<'a>,
    /// Keys and values of the head.
    pub expanded: &'a ExpandedKv<'a, N>,
    /// Position of the first query; each query attends to the rows up to its own position.
    pub position: usize,
    /// Factor on the scores of each query.
    pub scales: &'a [f32],
    /// The rows that each query attends to, if an indexer has selected them; `None` for all.
    pub mask: Option<&'a KeyMask>,
}

/// Causal attention of one head: overwrites the results, tokens × width of a value; the last
/// argument is scratch of any length.
///
/// # Panics
/// When shapes differ, or keys of a position are missing.
pub type AttendExpandedFn<N = f32> = fn(&AttendExpandedArgs<'_, N>, &mut MatrixViewMut<'_>, &mut Vec<f32>);

/// Operands of the expansion of one head's keys from cached latents.
#[derive(Clone, Copy)]
pub struct ExpandArgs<'a, N = f32> {
    /// W_UK of the head, `nope` · `latent` elements.
    pub weights: &'a [f32],
    /// Order of `weights`.
    pub order: KeyOrder,
    /// Blocks of latents.
    pub blocks: &'a KeyBlocks<'a, N>,
}

/// Keys = W_UK · latents: overwrites consecutive whole blocks of keys; the last argument is scratch
/// of any length.
///
/// # Panics
/// When shapes differ.
pub type ExpandKeysFn<N = f32> = fn(&ExpandArgs<'_, N>, &mut [N], &mut Vec<f32>);

/// Maximum number of heads per call of most decode kernels: the lanes of a vector.
pub(super) const HEADS: usize = 16;

impl AttendArgs<'_> {
    /// Format of a cached row. Call [`check`](Self::check) first.
    #[inline(always)]
    pub(super) fn row(&self) -> CacheRow {
        CacheRow { ty: self.cache.ty(), content: self.latent, rope: self.cache.width() - self.latent }
    }

    /// Asserts that queries, cached rows and results fit together.
    #[inline(always)]
    pub(super) fn check(&self, part: &PartialSoftmax<'_>) {
        let (heads, width) = (self.q.rows(), self.cache.width());
        assert!(part.o.rows() == heads && part.o.cols() == self.latent, "results");
        assert!(
            heads > 0 && self.q.cols() == width && self.latent <= width,
            "{heads} heads of {}",
            self.q.cols()
        );
    }

    /// [`check`](Self::check) for a kernel with heads as lanes.
    #[inline(always)]
    pub(super) fn check_group(&self, part: &PartialSoftmax<'_>) {
        assert!(self.q.rows() <= HEADS, "{} heads", self.q.rows());
        self.check(part);
    }
}

impl<N: KvElement> AttendExpandedArgs<'_, N> {
    /// Asserts that operands and results fit: every query has its keys and values.
    #[inline(always)]
    pub(crate) fn check(&self, out: &MatrixViewMut<'_>) {
        self.expanded.check(&self.q, self.position, self.scales, out);
        if let Some(mask) = self.mask {
            mask.check(self.q.rows(), self.position + self.q.rows());
        }
    }
}

impl<N: KvElement> ExpandArgs<'_, N> {
    /// Asserts that matrices have their sizes.
    pub(crate) fn check(&self, keys: &[N]) {
        self.blocks.check(self.weights, keys);
    }
}
