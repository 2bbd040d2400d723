//! MLA decode: attention over cached latents, each row's KV range cut into splits whose partial results are
//! combined in order.

use super::kv_splits::{self, HeadGroup, RowGroup, kv_len, rows_on, split, split_count};
use crate::context::WorkerContext;
use crate::gathered_rows::GatheredRows;
use crate::program::{AttendLatent, OperandView};
use crate::scratch::{WorkerScratch, resize_scratch};
use latent_backend::SeqSpan;
use latent_graph::ir::AttentionPath;
use latent_kernels::{AttendArgs, CacheView, PartialSoftmax, partial_softmax_len};
use std::ops::Range;

/// Most heads of a task where one worker computes all splits: it keeps the partial results of all of them.
const MAX_TASK_HEADS: usize = 32;

/// The same where a row attends to selected tokens: their cached rows are gathered once for all heads of a task, which costs as much as attention
/// with 32 of them.
const MAX_SELECTED_HEADS: usize = 128;

/// The heads of a task are a multiple of this, however little there is to share out.
const MIN_TASK_HEADS: usize = 4;

impl AttendLatent {
    /// Small batches split each row's KV range across workers (flash decoding), and the consumer combines the
    /// partial results ([`RowGroup::combine`]). Otherwise one worker computes all splits of its (row,
    /// head) tasks. The sums are the same.
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, path: AttentionPath, scratch: &mut WorkerScratch) {
        if let Some(partials) = kv_splits::shares_splits(ctx, self.partials, path) {
            self.attend_split_kv(ctx, path, &partials, scratch);
            if ctx.traced {
                ctx.barrier();
                self.combine_all(ctx, path, &partials);
            }
        } else {
            self.attend_whole(ctx, path, scratch);
        }
    }

    /// Tasks of a row and a group of its heads, dealt to the workers in turn; of many rows, a worker takes some from a queue with all their heads.
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
        // the sums of a head do not depend on the others of its task, so that tasks may depend on the number
        // of workers
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

    /// Heads of a task of a row: at most `share`.
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

    /// The KV splits of all rows, shared out by cached rows: neighbouring splits go to one worker, since a
    /// kernel prefetches the rows after its split. One worker computes all heads of a split, and those of all rows of a
    /// sequence that it is common to, so that its rows are read from memory once; with fewer splits than workers,
    /// groups of heads are shared out too.
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
                    // a task belongs to the worker whose share has its middle, counted in cached rows per
                    // head
                    let work = rows * heads.len();
                    if own.contains(&(before + work / 2)) {
                        let (at, elements) = group.partials_of(partials, out.width, &heads, index);
                        // SAFETY: tasks are disjoint in group, split or heads, each has its own range, and the
                        // middle of one is in one share.
                        let partial = unsafe { ctx.elements_mut(partials, at, elements) };
                        self.attend_group(ctx, &group, heads, index, partial, scratch);
                        ctx.beat();
                    }
                    before += work;
                }
            }
        }
    }

    /// Partial results of one split for some heads of all rows of a group: in one call of the kernel where the split is
    /// the same for all rows, else row by row. The sums are the same.
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
        let queries = ctx.read_rows_of_heads(&self.query, group.rows.clone());
        if let (Some(rows), Some(q), true, true) =
            (group.shared_split(index), queries, count == self.out.heads, one_scale)
        {
            let args = AttendArgs { q, cache: &cache, rows, scale: scale(group.rows.start), latent };
            return (self.kernel)(&args, &mut partial, scratch);
        }
        for (i, row) in group.rows.clone().enumerate() {
            let rows = split(kv_len(ctx, row), index);
            // results of a split that a row does not have are never read
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

    /// The cached rows of some selected tokens.
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

    /// Partial results of one split, given as cached rows.
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
