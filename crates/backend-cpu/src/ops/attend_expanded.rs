//! Naive MLA (prefill): keys and values of a group of heads are expanded, then attended per head.

use super::expand::ExpandGroup;
use super::expanded_layout::ExpandedLayout;
use crate::context::WorkerContext;
use crate::program::{AttendExpanded, ExpandedKernels, NaiveMlaKernels};
use crate::scratch::{WorkerScratch, resize_scratch};
use latent_backend::SeqSpan;
use latent_graph::ir::AttentionPath;
use latent_kernels::{AttendExpandedArgs, AttendExpandedFn, ExpandedKv, HeadWidths, KvElement, MatrixView};

/// Minimum query rows per task, unless the step has fewer.
const MIN_QUERIES: usize = 32;

/// Tasks per worker, so that all finish together.
const TASKS_PER_WORKER: usize = 8;

impl AttendExpanded {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, path: AttentionPath, scratch: &mut WorkerScratch) {
        match self.kernels {
            ExpandedKernels::F32(kernels) => self.attend(ctx, kernels, path, scratch),
            ExpandedKernels::F16(kernels) => self.attend(ctx, kernels, path, scratch),
            ExpandedKernels::Bf16(kernels) => self.attend(ctx, kernels, path, scratch),
        }
    }

    /// Expands and attends to one group of heads after the other, as many as shared memory holds.
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
                        ctx.barrier();
                        group.expand_keys(ctx, kv, kernels, scratch);
                    }
                    None => group.unpack::<N>(ctx, scratch),
                }
                ctx.barrier();
                self.attend_group(ctx, &group, kernels.attend, scratch);
                ctx.barrier();
            }
            self.attend_selected(ctx, span, scratch);
        }
    }

    /// Attention of the span's rows with one group of heads: tasks of a head and some query rows.
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
        // the rows behind these attend to selected tokens
        let dense =
            span.rows.clone().take_while(|row| ctx.selected(self.selected.as_ref(), *row).is_none()).count();
        let size = queries_per_task::<N>(dense, heads, ctx.worker.count);
        let tasks = dense.div_ceil(size);
        for task in 0..heads * tasks {
            if task % ctx.worker.count != ctx.worker.index {
                continue;
            }
            // the longest first, so that workers finish together
            let (h, task) = (task % heads, tasks - 1 - task / heads);
            let head = group.heads.start + h;
            let first = span.rows.start + task * size;
            let rows = first..(span.rows.start + dense).min(first + size);
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
            // SAFETY: tasks are disjoint in head or rows, and each is dealt to one worker.
            let mut y = unsafe { ctx.write(out, rows.clone(), head * out.head_stride, out.width) };
            let q = MatrixView::new(queries, rows.len(), width, width);
            let args = AttendExpandedArgs { q, expanded: &expanded, position, scales };
            kernel(&args, &mut y, &mut scratch.attention);
            ctx.beat();
        }
    }
}

impl AttendExpanded {
    /// Attention to the stored keys and values of selected tokens, for the rows of a span that attend to such: for comparison alone, since
    /// rows of a latent cache are absorbed then. Tasks are rows and heads.
    fn attend_selected(&self, ctx: &WorkerContext<'_>, span: &SeqSpan, scratch: &mut WorkerScratch) {
        let AttendExpanded { q_nope, q_rope, out, kv_layer, .. } = self;
        let (a, format) = (&ctx.model.config.attention, ctx.kv_format(*kv_layer));
        for row in span.rows.clone() {
            let Some(selected) = ctx.selected(self.selected.as_ref(), row) else { continue };
            if row % ctx.worker.count != ctx.worker.index {
                continue;
            }
            let (width, scale) = (a.nope + a.rope, ctx.score_scale(ctx.batch.positions[row]));
            let rows = resize_scratch(&mut scratch.more, selected.len() * format.width());
            for (stored, position) in rows.chunks_exact_mut(format.width()).zip(selected) {
                latent_kernels::load_row(format, ctx.kv_row(span, *kv_layer, *position as usize), stored);
            }
            for head in 0..a.heads {
                let query = resize_scratch(&mut scratch.results, width);
                query[..a.nope].copy_from_slice(ctx.head(q_nope, row, head));
                if let Some(q_rope) = q_rope {
                    query[a.nope..].copy_from_slice(ctx.head(q_rope, row, head));
                }
                let parts = rows
                    .chunks_exact(format.width())
                    .map(|stored| stored[head * (width + a.v)..][..width + a.v].split_at(width));
                // SAFETY: rows are dealt to workers.
                let result = unsafe { ctx.head_mut(out, row, head, 0..out.width) };
                attend_row(query, parts, scale, result);
            }
            ctx.beat();
        }
    }
}

/// softmax(scale · q · k) · v over keys and values, in f64.
fn attend_row<'r>(
    query: &[f32],
    parts: impl Iterator<Item = (&'r [f32], &'r [f32])> + Clone,
    scale: f32,
    out: &mut [f32],
) {
    let score = |key: &[f32]| -> f64 {
        let products = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k));
        products.sum::<f64>() * f64::from(scale)
    };
    let max = parts.clone().map(|(key, _)| score(key)).fold(f64::NEG_INFINITY, f64::max);
    let (mut sum, mut mix) = (0.0, vec![0.0f64; out.len()]);
    for (key, value) in parts {
        let weight = (score(key) - max).exp();
        sum += weight;
        mix.iter_mut().zip(value).for_each(|(mix, value)| *mix += weight * f64::from(*value));
    }
    out.iter_mut().zip(mix).for_each(|(out, mix)| *out = (mix / sum) as f32);
}

/// Query rows of a task: the more, the less often keys are read, but there must be tasks enough for all
/// workers.
fn queries_per_task<N: KvElement>(rows: usize, heads: usize, workers: usize) -> usize {
    let mut size = N::Q_TILE;
    while size > MIN_QUERIES && heads * rows.div_ceil(size) < TASKS_PER_WORKER * workers {
        size /= 2;
    }
    size
}
