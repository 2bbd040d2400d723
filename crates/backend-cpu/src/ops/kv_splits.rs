//! KV splits (flash decoding): how a row's KV range is cut, and where the partial results of the splits are
//! stored until they are combined.
//!
//! The partial results are stored in [`SharedMemory::partials`](crate::context::SharedMemory), which the plan
//! does not know. Both the writer ([`AttendLatent`](crate::program::AttendLatent)) and the reader
//! ([`AbsorbV`](crate::program::AbsorbV)) find them by the same functions; the compiler checks that nothing
//! else reads that attention's result.

use crate::context::Context;
use crate::program::Operand;
use latent_backend::{KV_BLOCK, SeqSpan};
use latent_graph::ir::AttentionPath;
use latent_kernels::{RowsMut, partial_softmax_len};
use std::ops::Range;

/// Most splits of a row's KV range.
const MAX_SPLITS: usize = 32;

/// Cached rows of a split, unless that makes more than [`MAX_SPLITS`] splits, or fewer than
/// [`ENOUGH_SPLITS`].
const SPLIT_ROWS: usize = 4 * KV_BLOCK;

/// Splits are smaller than [`SPLIT_ROWS`] while there would be fewer than this.
const ENOUGH_SPLITS: usize = 8;

/// Heads of a task where several workers share a split: a kernel reads a cached row for 16 heads at little
/// more than the cost of one.
pub(crate) const HEAD_GROUP: usize = 16;

/// The split of `kv_len` cached rows at `index`. Boundaries depend on the length alone, and with them the
/// order of sums.
pub(crate) fn split(kv_len: usize, index: usize) -> Range<usize> {
    let size = split_size(kv_len);
    (index * size).min(kv_len)..((index + 1) * size).min(kv_len)
}

fn split_size(kv_len: usize) -> usize {
    let rows = |splits| kv_len.div_ceil(splits).next_multiple_of(KV_BLOCK);
    rows(ENOUGH_SPLITS).clamp(KV_BLOCK, SPLIT_ROWS).max(rows(MAX_SPLITS))
}

pub(crate) fn split_count(kv_len: usize) -> usize {
    kv_len.div_ceil(split_size(kv_len))
}

/// f32 elements reserved for the partial results of some heads of a row: of as many splits as there may be.
fn partials_of_row(heads: usize, latent: usize) -> usize {
    MAX_SPLITS * partial_softmax_len(heads, latent)
}

/// f32 elements of shared memory for partial results: those of as many rows as are split between workers.
pub(crate) fn shared_partials(heads: usize, latent: usize, threads: usize) -> usize {
    4 * threads.max(heads.div_ceil(HEAD_GROUP)) * partials_of_row(HEAD_GROUP.min(heads), latent)
}

/// Where the partial results of a row's heads from `head` on begin, for the row that `before` rows of its
/// path precede.
pub(crate) fn partials_start(out: &Operand, before: usize, head: usize) -> usize {
    before * partials_of_row(out.heads, out.width) + partials_of_row(head, out.width)
}

/// A row, its KV length, and a group of its heads.
pub(crate) struct HeadGroup {
    pub row: usize,
    pub kv_len: usize,
    pub heads: Range<usize>,
}

impl HeadGroup {
    /// The heads of a row in groups of `size`.
    pub(crate) fn of_row(
        ctx: &Context<'_>,
        row: usize,
        heads: usize,
        size: usize,
    ) -> impl Iterator<Item = HeadGroup> + use<> {
        let kv_len = kv_len(ctx, row);
        (0..heads).step_by(size).map(move |first| HeadGroup {
            row,
            kv_len,
            heads: first..(first + size).min(heads),
        })
    }

    /// Combines the partial results of all splits, in order, of some of the group's heads.
    pub(crate) fn combine(&self, partials: &[f32], heads: Range<usize>, width: usize, out: &mut RowsMut<'_>) {
        let (all, first) = (self.heads.len(), self.heads.start);
        let wanted = heads.start - first..heads.end - first;
        latent_kernels::combine_splits(partials, split_count(self.kv_len), all, width, wanted, out);
    }
}

/// Cached rows that a row attends to, its own included.
pub(crate) fn kv_len(ctx: &Context<'_>, row: usize) -> usize {
    ctx.batch.positions[row] + 1
}

/// Number of rows on an attention path.
pub(crate) fn row_count(ctx: &Context<'_>, path: AttentionPath) -> usize {
    ctx.batch.on_path(path).map(|span| span.rows.len()).sum()
}

/// The rows on an attention path, in order, with their spans.
pub(crate) fn rows_on<'c>(
    ctx: &Context<'c>,
    path: AttentionPath,
) -> impl Iterator<Item = (&'c SeqSpan, usize)> + use<'c> {
    ctx.batch.on_path(path).flat_map(|span| span.rows.clone().map(move |row| (span, row)))
}

/// Whether workers share the KV splits of the path's rows: few rows, several splits, and room for their
/// partial results.
pub(crate) fn shares_splits(ctx: &Context<'_>, out: &Operand, path: AttentionPath) -> bool {
    let rows = row_count(ctx, path);
    let several = |(_, row): (&SeqSpan, usize)| split_count(kv_len(ctx, row)) > 1;
    let few = rows * out.heads.div_ceil(HEAD_GROUP) < 4 * ctx.worker.count;
    let shared = few && rows_on(ctx, path).any(several);
    shared && rows * partials_of_row(out.heads, out.width) <= ctx.partials_len()
}

/// Whether attention leaves partial results for the reader of `out` to combine. A trace wants the results
/// themselves.
pub(crate) fn leaves_partials(ctx: &Context<'_>, out: &Operand, path: AttentionPath) -> bool {
    !ctx.traced && shares_splits(ctx, out, path)
}

/// How many heads of a row go to one worker together, where workers share splits.
pub(crate) fn heads_together(ctx: &Context<'_>, kv_len: usize, heads: usize) -> usize {
    if split_count(kv_len) >= ctx.worker.count { heads } else { HEAD_GROUP }
}

/// Combines the splits that workers computed of a head, for some rows and the number of the path's rows
/// before them.
pub(crate) fn combine_head(
    ctx: &Context<'_>,
    operand: &Operand,
    head: usize,
    (before, rows): (usize, Range<usize>),
    out: &mut [f32],
) {
    for (i, (row, out)) in rows.zip(out.chunks_exact_mut(operand.width)).enumerate() {
        let kv_len = kv_len(ctx, row);
        let together = heads_together(ctx, kv_len, operand.heads);
        let first = head / together * together;
        let group = HeadGroup { row, kv_len, heads: first..(first + together).min(operand.heads) };
        let len = split_count(kv_len) * partial_softmax_len(group.heads.len(), operand.width);
        let partials = ctx.partials(partials_start(operand, before + i, first), len);
        let mut out = RowsMut::new(out, 1, operand.width, operand.width);
        group.combine(partials, head..head + 1, operand.width, &mut out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_cover_every_length_once_and_are_at_most_32() {
        for kv_len in [1, 63, 64, 127, 128, 129, 4096, 4097, 163_840] {
            let count = split_count(kv_len);
            assert!((1..=MAX_SPLITS).contains(&count));
            let mut end = 0;
            for index in 0..count {
                let split = split(kv_len, index);
                assert!(split.start == end && !split.is_empty() && split.start.is_multiple_of(KV_BLOCK));
                end = split.end;
            }
            assert_eq!(end, kv_len);
        }
    }
}
