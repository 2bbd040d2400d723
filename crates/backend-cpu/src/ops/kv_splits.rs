//! KV splits (flash decoding): the division of a row's KV range into splits, and the layout of the
//! splits' partial results until they are combined.
//!
//! The partial results are a value of the plan. The pass `share_kv_splits` adds it, with one row
//! for each row of a step whose splits may be shared. The writer
//! ([`AttendLatent`](crate::program::AttendLatent)) and the reader
//! ([`AbsorbV`](crate::program::AbsorbV)) use the same functions to locate a row's results.

use crate::context::WorkerContext;
use crate::program::OperandView;
use latent_backend::{KV_BLOCK, SeqSpan};
use latent_graph::KvSplits;
use latent_graph::ir::{AttentionPath, RowCount};
use latent_kernels::{MatrixViewMut, partial_softmax_len};
use std::ops::Range;

/// Maximum number of splits of a row's KV range.
const MAX_SPLITS: usize = 32;

/// Cached rows per split, unless that gives more than [`MAX_SPLITS`] or fewer than
/// [`ENOUGH_SPLITS`] splits.
const SPLIT_ROWS: usize = 4 * KV_BLOCK;

/// Short ranges are cut into splits smaller than [`SPLIT_ROWS`] to get at least this number.
const ENOUGH_SPLITS: usize = 8;

/// Heads per task if several workers share a split. A kernel reads a cached row for 16 heads at
/// little more than the cost of one.
const HEAD_GROUP: usize = 16;

/// Maximum rows of one sequence that read a split together: the rows of a step that verifies
/// drafts.
const ROWS_TOGETHER: usize = 8;

/// The sizes for which plans of this backend reserve partial results.
pub(crate) const KV_SPLITS: KvSplits =
    KvSplits { most: MAX_SPLITS, head_group: HEAD_GROUP, groups_per_worker: 4, rows_together: ROWS_TOGETHER };

/// The split of `kv_len` cached rows at `index`. Its boundaries, and so the order of sums, depend
/// on the length only: results have the same bits for any number of threads.
pub(crate) fn split(kv_len: usize, index: usize) -> Range<usize> {
    let size = split_size(kv_len);
    (index * size).min(kv_len)..((index + 1) * size).min(kv_len)
}

fn split_size(kv_len: usize) -> usize {
    // Whole KV blocks, whose rows are contiguous in memory.
    let rows = |splits| kv_len.div_ceil(splits).next_multiple_of(KV_BLOCK);
    rows(ENOUGH_SPLITS).clamp(KV_BLOCK, SPLIT_ROWS).max(rows(MAX_SPLITS))
}

pub(crate) fn split_count(kv_len: usize) -> usize {
    kv_len.div_ceil(split_size(kv_len))
}

/// Consecutive rows of a sequence whose KV ranges are cut into splits of the same size. A split
/// that ends before the first row is the same for all rows, and is read once for all of them.
#[derive(Clone)]
pub(crate) struct RowGroup<'c> {
    pub span: &'c SeqSpan,
    pub rows: Range<usize>,
    /// Number of rows on the path before the first one: the index of its partial results.
    before: usize,
    /// KV lengths of the first and the last row.
    kv_lens: [usize; 2],
    /// Whether at least one row attends to selected tokens only.
    selects: bool,
}

impl<'c> RowGroup<'c> {
    /// The rows on an attention path, in order, as groups.
    pub(crate) fn all(ctx: &WorkerContext<'c>, path: AttentionPath) -> impl Iterator<Item = RowGroup<'c>> {
        let mut spans = ctx.batch.on_path(path);
        let (mut current, mut next, mut before) = (None::<&SeqSpan>, 0, 0);
        std::iter::from_fn(move || {
            if current.is_none_or(|span| next == span.rows.end) {
                current = spans.next();
                next = current?.rows.start;
            }
            let span = current?;
            let size = |row: usize| split_size(kv_len(ctx, row));
            let other = (next..span.rows.end).find(|row| size(*row) != size(next));
            let rows = next..other.unwrap_or(span.rows.end);
            let kv_lens = [kv_len(ctx, rows.start), kv_len(ctx, rows.end - 1)];
            // Rows with selected tokens read different cached rows each.
            let selects = ctx.batch.positions[rows.end - 1] + 1 > kv_lens[1];
            let group = RowGroup { span, rows: rows.clone(), before, kv_lens, selects };
            (next, before) = (rows.end, before + rows.len());
            Some(group)
        })
    }

    /// Number of splits of the longest row.
    pub(crate) fn split_count(&self) -> usize {
        split_count(self.kv_lens[1])
    }

    /// The split at `index`. None if it is not the same for all rows.
    pub(crate) fn shared_split(&self, index: usize) -> Option<Range<usize>> {
        if self.selects {
            return None;
        }
        // Lengths ascend from row to row, so the first and the last row suffice.
        let [first, last] = self.kv_lens.map(|kv_len| split(kv_len, index));
        (first == last).then_some(first)
    }

    /// Sum over the rows of the cached rows that they attend to in the split at `index`.
    pub(crate) fn work(&self, ctx: &WorkerContext<'_>, index: usize) -> usize {
        self.rows.clone().map(|row| split(kv_len(ctx, row), index).len()).sum()
    }

    /// Number of heads per task: all, or groups of [`HEAD_GROUP`] if there are fewer splits than
    /// workers.
    pub(crate) fn heads_together(&self, ctx: &WorkerContext<'_>, heads: usize) -> usize {
        if split_count(self.kv_lens[0]) >= ctx.worker.count { heads } else { HEAD_GROUP }
    }

    /// The location of the partial results of a split for some heads of all rows: the row of
    /// `partials`, and the elements counted from its start. The results of the first row come
    /// first, then those of the next.
    pub(crate) fn partials_of(
        &self,
        partials: &OperandView,
        latent: usize,
        heads: &Range<usize>,
        index: usize,
    ) -> (usize, Range<usize>) {
        let rows = self.rows.len();
        let len = partial_softmax_len(rows * heads.len(), latent);
        let start = rows * heads.start * partials.width + index * len;
        (self.before, start..start + len)
    }

    /// Combines the splits that workers computed of a head of one row.
    pub(crate) fn combine(
        &self,
        ctx: &WorkerContext<'_>,
        partials: &OperandView,
        (row, head): (usize, usize),
        out: &mut [f32],
    ) {
        let latent = ctx.model.config.attention.kv_lora_rank;
        let together = self.heads_together(ctx, partials.heads);
        let first = head / together * together;
        let heads = first..(first + together).min(partials.heads);
        let splits = split_count(kv_len(ctx, row));
        let (at, Range { start, .. }) = self.partials_of(partials, latent, &heads, 0);
        let end = self.partials_of(partials, latent, &heads, splits).1.start;
        let memory = ctx.elements(partials, at, start..end);
        let wanted = (row - self.rows.start) * heads.len() + head - first;
        let mut out = MatrixViewMut::new(out, 1, latent, latent);
        let all = self.rows.len() * heads.len();
        latent_kernels::combine_splits(memory, splits, all, latent, wanted..wanted + 1, &mut out);
    }
}

/// A row, its KV length, and a group of its heads.
pub(crate) struct HeadGroup {
    pub row: usize,
    pub kv_len: usize,
    pub heads: Range<usize>,
}

impl HeadGroup {
    /// Cuts the heads of a row into groups of `size`.
    pub(crate) fn of_row(
        ctx: &WorkerContext<'_>,
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

    /// Combines the partial results of all splits, in order, for some of the group's heads.
    pub(crate) fn combine(
        &self,
        partials: &[f32],
        heads: Range<usize>,
        width: usize,
        out: &mut MatrixViewMut<'_>,
    ) {
        let (all, first) = (self.heads.len(), self.heads.start);
        let wanted = heads.start - first..heads.end - first;
        latent_kernels::combine_splits(partials, split_count(self.kv_len), all, width, wanted, out);
    }
}

/// Number of cached rows that a row attends to.
pub(crate) fn kv_len(ctx: &WorkerContext<'_>, row: usize) -> usize {
    ctx.attended(row)
}

/// Number of rows on an attention path.
pub(crate) fn row_count(ctx: &WorkerContext<'_>, path: AttentionPath) -> usize {
    ctx.batch.on_path(path).map(|span| span.rows.len()).sum()
}

/// The rows on an attention path, in order, with their spans.
pub(crate) fn rows_on<'c>(
    ctx: &WorkerContext<'c>,
    path: AttentionPath,
) -> impl Iterator<Item = (&'c SeqSpan, usize)> + use<'c> {
    ctx.batch.on_path(path).flat_map(|span| span.rows.clone().map(move |row| (span, row)))
}

/// The value for partial results, if workers share the KV splits of the path's rows. They do so for
/// few rows, of which at least one has several splits.
pub(crate) fn shares_splits(
    ctx: &WorkerContext<'_>,
    partials: Option<OperandView>,
    path: AttentionPath,
) -> Option<OperandView> {
    let several = |(_, row): (&SeqSpan, usize)| split_count(kv_len(ctx, row)) > 1;
    let single_rows = ctx.batch.on_path(path).all(|span| span.rows.len() == 1);
    let few = |of: &OperandView| match of.rows {
        // Rows of different sequences have no split in common. With enough of them, every worker is
        // busy without sharing splits.
        RowCount::AtMost(_) if single_rows => {
            row_count(ctx, path) <= KV_SPLITS.rows_apart(of.heads, ctx.worker.count)
        }
        RowCount::AtMost(most) => row_count(ctx, path) <= most,
        _ => false,
    };
    partials.filter(few).filter(|_| rows_on(ctx, path).any(several))
}

/// The value with partial results that the reader must combine. None if attention has combined
/// them, as it always does while values are traced.
pub(crate) fn left_partials(
    ctx: &WorkerContext<'_>,
    partials: Option<OperandView>,
    path: AttentionPath,
) -> Option<OperandView> {
    if ctx.traced { None } else { shares_splits(ctx, partials, path) }
}

/// Combines the splits of a head for some of the path's rows.
pub(crate) fn combine_head(
    ctx: &WorkerContext<'_>,
    partials: &OperandView,
    path: AttentionPath,
    head: usize,
    rows: &Range<usize>,
    out: &mut [f32],
) {
    let latent = ctx.model.config.attention.kv_lora_rank;
    for group in RowGroup::all(ctx, path).filter(|group| rows.contains(&group.rows.start)) {
        for row in group.rows.clone() {
            let out = &mut out[(row - rows.start) * latent..][..latent];
            group.combine(ctx, partials, (row, head), out);
        }
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
