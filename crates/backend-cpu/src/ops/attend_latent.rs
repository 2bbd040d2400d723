//! MLA decode: attention over cached latents. Each row's KV range is cut into splits, whose partial
//! results are combined in order.

use super::kv_splits::{self, HeadGroup, RowGroup, kv_len, rows_on, split, split_count};
use crate::context::WorkerContext;
use crate::gathered_rows::GatheredRows;
use crate::program::{AttendLatent, OperandView};
use crate::scratch::{WorkerScratch, resize_scratch};
use latent_backend::SeqSpan;
use latent_graph::ir::AttentionPath;
use latent_kernels::{AttendArgs, CacheView, PartialSoftmax, partial_softmax_len};
use std::ops::Range;

/// Maximum heads per task if one worker computes all splits. The worker's scratch holds the partial
/// results of all splits and heads of a task.
const MAX_TASK_HEADS: usize = 32;

/// Maximum heads per task if a row attends to selected tokens. Their cached rows are gathered once
/// per task, which costs as much as attention with 32 heads.
const MAX_SELECTED_HEADS: usize = 128;

/// The heads per task are a multiple of this: kernels process several heads per cached row that
/// they load.
const MIN_TASK_HEADS: usize = 4;

impl AttendLatent {
    /// In small batches, workers share the KV splits of each row (flash decoding), and the reader
    /// combines the partial results ([`RowGroup::combine`]). Otherwise one worker computes all
    /// splits of its (row, head) tasks. The splits, and so the sums, are the same.
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, path: AttentionPath, scratch: &mut WorkerScratch) {
        if let Some(partials) = kv_splits::shares_splits(ctx, self.partials, path) {
            self.attend_split_kv(ctx, path, &partials, scratch);
            if ctx.traced {
                // A trace reads the results, not the partial results.
                ctx.barrier();
                self.combine_all(ctx, path, &partials);
            }
        } else {
            self.attend_whole(ctx, path, scratch);
        }
    }

    /// Computes tasks of a row and a group of its heads, dealt to the workers in turn. If there are
    /// many rows, workers take rows with all their heads from a queue.
    fn attend_whole(&self, ctx: &WorkerContext<'_>, path: AttentionPath, scratch: &mut WorkerScratch) {
        let heads = self.out.heads;
        let rows = kv_splits::row_count(ctx, path);
        if ctx.takes_from_queues() {
            return ctx.for_each_range(rows, 1, |range| {
                for (span, row) in rows_on(ctx, path).skip(range.start).take(range.len()) {
                    let groups = HeadGroup::of_row(ctx, row, heads, self.task_heads(ctx, row, heads));
                    groups.for_each(|group| self.attend_task(ctx, span, &group, scratch));
                }
            });
        }
        // The size of tasks depends on the number of workers. That does not change results: the
        // sums of a head do not depend on the other heads of its task.
        let share = (rows * heads).div_ceil(ctx.worker.count).next_multiple_of(MIN_TASK_HEADS);
        let mut task = 0;
        for (span, row) in rows_on(ctx, path) {
            for group in HeadGroup::of_row(ctx, row, heads, self.task_heads(ctx, row, share)) {
                if task % ctx.worker.count == ctx.worker.index {
                    self.attend_task(ctx, span, &group, scratch);
                }
                task += 1;
            }
        }
    }

    /// Number of heads per task of a row, at most `share`.
    fn task_heads(&self, ctx: &WorkerContext<'_>, row: usize, share: usize) -> usize {
        let selects = ctx.selected(self.selected.as_ref(), row).is_some();
        share.min(if selects { MAX_SELECTED_HEADS } else { MAX_TASK_HEADS })
    }

    fn attend_task(
        &self,
        ctx: &WorkerContext<'_>,
        span: &SeqSpan,
        group: &HeadGroup,
        scratch: &mut WorkerScratch,
    ) {
        let out = &self.out;
        let cache = ctx.kv_view(span, self.kv_layer);
        let selected = ctx.selected(self.selected.as_ref(), group.row);
        let len = partial_softmax_len(group.heads.len(), out.width);
        let WorkerScratch { partials, attention, gathered, .. } = scratch;
        let partials = resize_scratch(partials, split_count(group.kv_len) * len);
        for (index, partial) in partials.chunks_exact_mut(len).enumerate() {
            let rows = split(group.kv_len, index);
            if let Some(selected) = selected {
                let cache = self.gather(ctx, span, &selected[rows.clone()], gathered);
                self.attend_split(ctx, group, (&cache, 0..rows.len()), partial, attention);
            } else {
                self.attend_split(ctx, group, (&cache, rows), partial, attention);
            }
        }
        // SAFETY: tasks are disjoint in row or heads, and each has one worker.
        let mut result = unsafe { ctx.write_heads(out, group.row, group.heads.clone()) };
        group.combine(partials, group.heads.clone(), out.width, &mut result);
        ctx.beat();
    }

    /// Divides the KV splits of all rows among the workers by their number of cached rows.
    /// Neighbouring splits go to one worker, since a kernel prefetches the rows after its split.
    /// One worker computes all heads of a split, for all rows of the sequence that have it, so that
    /// cached rows are read from memory once. If there are fewer splits than workers, groups of
    /// heads are divided too.
    // measured: docs/notes/attention-kernels.md "Share out KV splits by size"
    fn attend_split_kv(
        &self,
        ctx: &WorkerContext<'_>,
        path: AttentionPath,
        partials: &OperandView,
        scratch: &mut WorkerScratch,
    ) {
        let out = &self.out;
        let all = rows_on(ctx, path).map(|(_, row)| kv_len(ctx, row) * out.heads).sum();
        let own = ctx.worker.share(all, 1);
        let mut before = 0;
        for group in RowGroup::all(ctx, path) {
            let together = group.heads_together(ctx, out.heads);
            for index in 0..group.split_count() {
                let rows = group.work(ctx, index);
                for first in (0..out.heads).step_by(together) {
                    let heads = first..(first + together).min(out.heads);
                    // A task belongs to the worker whose share contains its middle, in units of
                    // cached rows × heads. So tasks of unequal size are divided evenly and each has
                    // one worker.
                    let work = rows * heads.len();
                    if own.contains(&(before + work / 2)) {
                        let (at, elements) = group.partials_of(partials, out.width, &heads, index);
                        // SAFETY: tasks are disjoint in group, split or heads, each has its own
                        // range, and the middle of one is in one share.
                        let partial = unsafe { ctx.elements_mut(partials, at, elements) };
                        self.attend_group(ctx, &group, heads, index, partial, scratch);
                        ctx.beat();
                    }
                    before += work;
                }
            }
        }
    }

    /// Computes the partial results of one split for some heads of all rows of a group: in one call
    /// of the kernel if the split is the same for all rows, otherwise row by row. The bits are the
    /// same.
    fn attend_group(
        &self,
        ctx: &WorkerContext<'_>,
        group: &RowGroup<'_>,
        heads: Range<usize>,
        index: usize,
        partial: &mut [f32],
        scratch: &mut WorkerScratch,
    ) {
        let WorkerScratch { attention: scratch, gathered, .. } = scratch;
        let latent = self.out.width;
        let (cache, count) = (ctx.kv_view(group.span, self.kv_layer), heads.len());
        let scale = |row: usize| ctx.score_scale(ctx.batch.positions[row]);
        let mut partial = PartialSoftmax::in_memory(partial, group.rows.len() * count, latent);
        let one_scale =
            group.rows.clone().all(|row| scale(row).to_bits() == scale(group.rows.start).to_bits());
        // A call of the kernel takes one scale and evenly spaced queries.
        let queries = ctx.read_rows_of_heads(&self.query, group.rows.clone());
        if let (Some(rows), Some(q), true, true) =
            (group.shared_split(index), queries, count == self.out.heads, one_scale)
        {
            let args = AttendArgs { q, cache: &cache, rows, scale: scale(group.rows.start), latent };
            return (self.kernel)(&args, &mut partial, scratch);
        }
        for (i, row) in group.rows.clone().enumerate() {
            let rows = split(kv_len(ctx, row), index);
            // `combine` reads only the splits that a row has, so the others are left unwritten.
            if !rows.is_empty() {
                let q = ctx.read_heads(&self.query, row, heads.clone());
                let args = AttendArgs { q, cache: &cache, rows: rows.clone(), scale: scale(row), latent };
                let mut partial = partial.heads(i * count..(i + 1) * count);
                if let Some(selected) = ctx.selected(self.selected.as_ref(), row) {
                    let cache = self.gather(ctx, group.span, &selected[rows.clone()], gathered);
                    let args = AttendArgs { cache: &cache, rows: 0..rows.len(), ..args };
                    (self.kernel)(&args, &mut partial, scratch);
                } else {
                    (self.kernel)(&args, &mut partial, scratch);
                }
            }
        }
    }

    /// Gathers the cached rows of some selected tokens.
    fn gather<'g>(
        &self,
        ctx: &WorkerContext<'_>,
        span: &SeqSpan,
        positions: &[u32],
        gathered: &'g mut GatheredRows,
    ) -> CacheView<'g> {
        let rows = positions.iter().map(|position| ctx.kv_row(span, self.kv_layer, *position as usize));
        gathered.gather(ctx.kv_format(self.kv_layer), rows)
    }

    /// Computes the partial results of one split, given as a range of cached rows.
    fn attend_split(
        &self,
        ctx: &WorkerContext<'_>,
        group: &HeadGroup,
        (cache, rows): (&CacheView<'_>, Range<usize>),
        partial: &mut [f32],
        scratch: &mut Vec<f32>,
    ) {
        let latent = self.out.width;
        let q = ctx.read_heads(&self.query, group.row, group.heads.clone());
        let mut partial = PartialSoftmax::in_memory(partial, group.heads.len(), latent);
        let scale = ctx.score_scale(ctx.batch.positions[group.row]);
        (self.kernel)(&AttendArgs { q, cache, rows, scale, latent }, &mut partial, scratch);
    }

    /// Combines the splits of all rows and heads into the result.
    fn combine_all(&self, ctx: &WorkerContext<'_>, path: AttentionPath, partials: &OperandView) {
        let out = &self.out;
        for head in ctx.worker.share(out.heads, 1) {
            for group in RowGroup::all(ctx, path) {
                for row in group.rows.clone() {
                    // SAFETY: shares of heads are disjoint, and `head` is in this worker's.
                    let result = unsafe { ctx.head_mut(out, row, head, 0..out.width) };
                    group.combine(ctx, partials, (row, head), result);
                }
            }
        }
    }
}
