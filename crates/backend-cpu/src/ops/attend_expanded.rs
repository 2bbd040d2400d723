//! Naive MLA (prefill): expands keys and values of a group of heads, then computes attention per
//! head.

use super::expand::ExpandGroup;
use super::expanded_layout::ExpandedLayout;
use crate::context::WorkerContext;
use crate::program::{AttendExpanded, ExpandedKernels, NaiveMlaKernels};
use crate::scratch::{WorkerScratch, resize_scratch};
use latent_graph::ir::AttentionPath;
use latent_kernels::{
    AttendExpandedArgs, AttendExpandedFn, ExpandedKv, HeadWidths, KeyMask, KvElement, MatrixView,
};
use std::ops::Range;

/// Minimum query rows per task, unless the step has fewer.
const MIN_QUERIES: usize = 32;

/// Minimum tasks per worker, so that workers finish at about the same time.
const TASKS_PER_WORKER: usize = 8;

impl AttendExpanded {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, path: AttentionPath, scratch: &mut WorkerScratch) {
        match self.kernels {
            ExpandedKernels::F32(kernels) => self.attend(ctx, kernels, path, scratch),
            ExpandedKernels::F16(kernels) => self.attend(ctx, kernels, path, scratch),
            ExpandedKernels::Bf16(kernels) => self.attend(ctx, kernels, path, scratch),
        }
    }

    /// Expands and attends to one group of heads after the other. A group has as many heads as fit
    /// into the shared buffer.
    fn attend<N: KvElement>(
        &self,
        ctx: &WorkerContext<'_>,
        kernels: NaiveMlaKernels<N>,
        path: AttentionPath,
        scratch: &mut WorkerScratch,
    ) {
        let (a, kv_layer) = (&ctx.model.config.attention, self.kv_layer);
        for span in ctx.batch.on_path(path) {
            let layout = ExpandedLayout::new::<N>(span.first + span.rows.len(), a);
            for first in (0..a.heads).step_by(layout.group) {
                let heads = first..(first + layout.group).min(a.heads);
                let group = ExpandGroup { span, kv_layer, heads, layout };
                match &self.kv {
                    Some(kv) => {
                        group.expand_values::<N>(ctx, kv, scratch);
                        // Keys are computed from the rows that `expand_values` has packed.
                        ctx.barrier();
                        group.expand_keys(ctx, kv, kernels, scratch);
                    }
                    None => group.unpack::<N>(ctx, scratch),
                }
                ctx.barrier();
                self.attend_group(ctx, &group, kernels.attend, scratch);
                // The next group overwrites the keys and values.
                ctx.barrier();
            }
        }
    }

    /// Computes attention of the span's rows with one group of heads. A task is a head and some
    /// query rows.
    fn attend_group<N: KvElement>(
        &self,
        ctx: &WorkerContext<'_>,
        group: &ExpandGroup<'_>,
        kernel: AttendExpandedFn<N>,
        scratch: &mut WorkerScratch,
    ) {
        let AttendExpanded { q_nope, q_rope, out, .. } = self;
        let (a, span, layout) = (&ctx.model.config.attention, group.span, &group.layout);
        let (heads, width) = (group.heads.len(), a.nope + a.rope);
        let count = span.rows.len();
        let size = queries_per_task::<N>(count, heads, ctx.worker.count);
        let tasks = count.div_ceil(size);
        let masks = ctx.selected(self.selected.as_ref(), span.rows.end - 1).is_some();
        let mut masked = None;
        for_each_task(ctx, heads * tasks, |task| {
            // Later rows attend to more keys, so tasks are numbered from the last rows: the longest
            // tasks run first, and workers finish at about the same time. Ranges from a queue are
            // tasks of one head, which read the same keys. With masks they are heads of the same
            // rows, which share a mask. Without a queue, heads vary fastest too, so that long tasks
            // come first.
            let (h, task) = match masks || !ctx.takes_from_queues() {
                true => (task % heads, tasks - 1 - task / heads),
                false => (task / tasks, tasks - 1 - task % tasks),
            };
            let head = group.heads.start + h;
            let first = span.rows.start + task * size;
            let rows = first..span.rows.end.min(first + size);
            // The mask in scratch is that of the task before.
            if masked.as_ref() != Some(&rows) {
                self.mask(ctx, rows.clone(), &mut scratch.mask);
                masked = Some(rows.clone());
            }
            let selects = ctx.selected(self.selected.as_ref(), rows.end - 1).is_some();
            let latents = layout.latent * N::KV_BLOCK;
            let keys = ctx.expanded(layout.keys(h, 0), layout.kv_len * layout.nope);
            let rope_keys = ctx.expanded(latents, layout.kv_len * layout.width - latents);
            let values = ctx.expanded(layout.values(h, 0), layout.kv_len * layout.v);
            let widths = HeadWidths { nope: a.nope, rope: a.rope, value: a.v };
            let expanded = ExpandedKv::new(keys, (rope_keys, layout.width * N::KV_BLOCK), values, widths)
                .expect("blocks of the span");
            let queries = resize_scratch(&mut scratch.more, rows.len() * width);
            let scales = resize_scratch(&mut scratch.results, rows.len());
            for ((row, query), scale) in rows.clone().zip(queries.chunks_exact_mut(width)).zip(&mut *scales) {
                query[..a.nope].copy_from_slice(ctx.head(q_nope, row, head));
                if let Some(q_rope) = q_rope {
                    query[a.nope..].copy_from_slice(ctx.head(q_rope, row, head));
                }
                *scale = ctx.score_scale(ctx.batch.positions[row]);
            }
            let position = ctx.batch.positions[rows.start];
            // SAFETY: tasks are disjoint in head or rows, and each has one worker.
            let mut y = unsafe { ctx.write(out, rows.clone(), head * out.head_stride, out.width) };
            let q = MatrixView::new(queries, rows.len(), width, width);
            let args = AttendExpandedArgs {
                q,
                expanded: &expanded,
                position,
                scales,
                mask: selects.then_some(&scratch.mask),
            };
            kernel(&args, &mut y, &mut scratch.attention);
            ctx.beat();
        });
    }

    /// Sets the mask of some rows of a span. Nothing to do if the last row attends to all tokens,
    /// since the rows before it do too.
    fn mask(&self, ctx: &WorkerContext<'_>, rows: Range<usize>, mask: &mut KeyMask) {
        let selected = |row| ctx.selected(self.selected.as_ref(), row);
        if selected(rows.end - 1).is_none() {
            return;
        }
        mask.reset(rows.len(), ctx.batch.positions[rows.end - 1] + 1);
        for (query, row) in rows.enumerate() {
            match selected(row) {
                Some(tokens) => mask.select(query, tokens.iter().map(|token| *token as usize)),
                None => mask.select(query, 0..=ctx.batch.positions[row]),
            }
        }
    }
}

/// Calls `work` with the tasks of this worker: from a queue, or dealt to the workers in turn.
fn for_each_task(ctx: &WorkerContext<'_>, tasks: usize, mut work: impl FnMut(usize)) {
    if ctx.takes_from_queues() {
        return ctx.worker.for_each_range(tasks, 1, |range| range.for_each(&mut work));
    }
    (ctx.worker.index..tasks).step_by(ctx.worker.count).for_each(work);
}

/// Number of query rows per task. More rows per task read keys less often, but there must be enough
/// tasks for all workers.
fn queries_per_task<N: KvElement>(rows: usize, heads: usize, workers: usize) -> usize {
    let mut size = N::Q_TILE;
    while size > MIN_QUERIES && heads * rows.div_ceil(size) < TASKS_PER_WORKER * workers {
        size /= 2;
    }
    size
}
