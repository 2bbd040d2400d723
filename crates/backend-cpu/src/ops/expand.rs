//! Expands keys and values of a group of heads: computes them from cached latents, or unpacks them
//! from an expanded KV cache.

use super::expanded_layout::ExpandedLayout;
use super::mla_projection::{HeadProjection, KvProjection, kv_formats};
use crate::context::WorkerContext;
use crate::program::{KvWeights, NaiveMlaKernels};
use crate::scratch::{WorkerScratch, resize_scratch};
use crate::weights::LoadedWeight;
use latent_backend::SeqSpan;
use latent_kernels::{ExpandArgs, KeyBlocks, KeyOrder, KvElement, MatrixView, MatrixViewMut};
use std::ops::Range;

/// Cached rows per task of [`ExpandGroup::expand_keys`]. Each task may dequantize its head's W_UK,
/// which must be little work compared with the product.
const KEY_ROWS: usize = 512;

/// The heads of a span that are expanded in one pass, and the layout of the result.
pub(crate) struct ExpandGroup<'s> {
    pub span: &'s SeqSpan,
    pub kv_layer: usize,
    pub heads: Range<usize>,
    pub layout: ExpandedLayout,
}

impl ExpandGroup<'_> {
    /// Calls `work` with (block, rows) for this worker's blocks of cached rows. The last block may
    /// have fewer rows.
    fn for_each_block<N: KvElement>(
        &self,
        ctx: &WorkerContext<'_>,
        mut work: impl FnMut(usize, Range<usize>),
    ) {
        let kv_len = self.span.first + self.span.rows.len();
        ctx.for_each_range(self.layout.kv_len, N::KV_BLOCK, |rows| {
            for start in rows.step_by(N::KV_BLOCK) {
                work(start / N::KV_BLOCK, start..(start + N::KV_BLOCK).min(kv_len));
            }
        });
    }

    /// Packs a range of elements of cached rows as a block of keys.
    fn pack_cached<N: KvElement>(
        &self,
        ctx: &WorkerContext<'_>,
        rows: &Range<usize>,
        elements: Range<usize>,
        out: &mut [N],
    ) {
        let rows = rows.clone().map(|row| ctx.kv_row(self.span, self.kv_layer, row));
        N::pack_keys(ctx.kv_format(self.kv_layer), rows, elements, out);
    }

    /// Packs this worker's cached rows like keys, and multiplies them by W_UV of each head of the
    /// group.
    pub(crate) fn expand_values<N: KvElement>(
        &self,
        ctx: &WorkerContext<'_>,
        kv: &KvWeights,
        scratch: &mut WorkerScratch,
    ) {
        let (a, layout) = (&ctx.model.config.attention, &self.layout);
        let (formats, width, format) = (kv_formats(kv), a.latent_width(), ctx.kv_format(self.kv_layer));
        let WorkerScratch { acts, scratch, results, more, .. } = scratch;
        self.for_each_block::<N>(ctx, |block, rows| {
            // Packed once per span: all groups of heads read the same rows.
            if self.heads.start == 0 {
                let (latent, all) = (layout.latent * N::KV_BLOCK, layout.width * N::KV_BLOCK);
                // SAFETY: ranges of cached rows are disjoint whole blocks, and this block is this
                // worker's.
                let out: &mut [N] = unsafe { ctx.expanded_mut(block * all, all) };
                self.pack_cached(ctx, &rows, 0..a.kv_lora_rank, &mut out[..latent]);
                self.pack_cached(ctx, &rows, a.kv_lora_rank..width, &mut out[latent..]);
            }
            let lines = resize_scratch(results, rows.len() * width);
            for (row, line) in rows.clone().zip(lines.chunks_exact_mut(width)) {
                latent_kernels::load_row(format, ctx.kv_row(self.span, self.kv_layer, row), line);
            }
            let values = resize_scratch(more, rows.len() * a.v);
            let latent = MatrixView::new(lines, rows.len(), a.kv_lora_rank, width);
            let x = acts.prepare(latent, None, formats);
            for (h, head) in self.heads.clone().enumerate() {
                let mut y = MatrixViewMut::new(values, rows.len(), a.v, a.v);
                if let Some(projection) = HeadProjection::new(ctx, kv, &KvProjection::Uv, head) {
                    projection.project_value(ctx, &x, 0..a.v, &mut y, scratch);
                }
                // SAFETY: ranges of cached rows are disjoint whole blocks, and this block is this
                // worker's.
                let out: &mut [N] =
                    unsafe { ctx.expanded_mut(layout.values(h, block), layout.v * N::KV_BLOCK) };
                N::pack_values(values, a.v, out);
            }
        });
    }

    /// Computes the keys of the group. A task is a head and some blocks of cached rows.
    pub(crate) fn expand_keys<N: KvElement>(
        &self,
        ctx: &WorkerContext<'_>,
        kv: &KvWeights,
        kernels: NaiveMlaKernels<N>,
        scratch: &mut WorkerScratch,
    ) {
        let (a, layout) = (&ctx.model.config.attention, &self.layout);
        let task_blocks = KEY_ROWS / N::KV_BLOCK;
        let tasks = layout.blocks().div_ceil(task_blocks);
        let weights = resize_scratch(&mut scratch.more, a.nope * a.kv_lora_rank);
        let mut decoded = None;
        // Neighbouring tasks have the same head and go to one worker, which dequantizes the head's
        // weights once for them.
        ctx.for_each_range(self.heads.len() * tasks, 1, |range| {
            for task in range {
                let (h, task) = (task / tasks, task % tasks);
                let weight = &ctx.model.weights[kernels.key_weight];
                // A row of k_b belongs to an element of the latents, a row of kv_b to an element of
                // the keys.
                let (matrix, from, order) = match kv {
                    KvWeights::Separate(..) => (self.heads.start + h, 0..a.kv_lora_rank, KeyOrder::Latents),
                    KvWeights::Combined(_) => {
                        let from = (self.heads.start + h) * (a.nope + a.v);
                        (0, from..from + a.nope, KeyOrder::Keys)
                    }
                };
                if decoded.replace(h) != Some(h) {
                    decode_rows(weight, matrix, from, weights, &mut scratch.bytes);
                }
                let blocks = task * task_blocks..((task + 1) * task_blocks).min(layout.blocks());
                let stride = layout.width * N::KV_BLOCK;
                let latents = ctx.expanded(blocks.start * stride, blocks.len() * stride);
                let latents =
                    KeyBlocks::new(latents, stride, a.kv_lora_rank, a.nope).expect("blocks of latents");
                let len = blocks.len() * layout.nope * N::KV_BLOCK;
                // SAFETY: tasks are disjoint in head or blocks, and this one is this worker's; keys
                // are stored behind the latents that are read.
                let keys = unsafe { ctx.expanded_mut(layout.keys(h, blocks.start), len) };
                let args = ExpandArgs { weights, order, blocks: &latents };
                (kernels.keys)(&args, keys, &mut scratch.attention);
            }
        });
    }

    /// Packs this worker's blocks of cached rows of an expanded KV cache.
    pub(crate) fn unpack<N: KvElement>(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let (a, layout, format) = (&ctx.model.config.attention, &self.layout, ctx.kv_format(self.kv_layer));
        let head_width = a.nope + a.rope + a.v;
        self.for_each_block::<N>(ctx, |block, rows| {
            for (h, head) in self.heads.clone().enumerate() {
                let from = head * head_width;
                // SAFETY: ranges of cached rows are disjoint whole blocks, and this block is this
                // worker's.
                let keys: &mut [N] =
                    unsafe { ctx.expanded_mut(layout.keys(h, block), layout.nope * N::KV_BLOCK) };
                self.pack_cached(ctx, &rows, from..from + a.nope, keys);
                let rope = from + a.nope..from + a.nope + a.rope;
                // The rope key is stored with every head, but is the same in all of them.
                if head == 0 {
                    let all = layout.width * N::KV_BLOCK;
                    // SAFETY: ranges of cached rows are disjoint whole blocks, and this block is
                    // this worker's.
                    let out: &mut [N] = unsafe { ctx.expanded_mut(block * all, all) };
                    self.pack_cached(ctx, &rows, rope.clone(), &mut out[layout.latent * N::KV_BLOCK..]);
                }
                let lines = resize_scratch(&mut scratch.more, rows.len() * a.v);
                for (row, line) in rows.clone().zip(lines.chunks_exact_mut(a.v)) {
                    let cached = ctx.kv_row(self.span, self.kv_layer, row);
                    latent_kernels::load_part(format, cached, rope.end, line);
                }
                // SAFETY: ranges of cached rows are disjoint whole blocks, and this block is this
                // worker's.
                let out: &mut [N] =
                    unsafe { ctx.expanded_mut(layout.values(h, block), layout.v * N::KV_BLOCK) };
                N::pack_values(lines, a.v, out);
            }
        });
    }
}

/// Dequantizes rows of a weight and applies its scale.
fn decode_rows(
    weight: &LoadedWeight,
    matrix: usize,
    rows: Range<usize>,
    out: &mut [f32],
    bytes: &mut Vec<u8>,
) {
    let rows = weight.matrix(matrix).slice_rows(rows);
    for (row, line) in out.chunks_exact_mut(rows.cols()).enumerate() {
        latent_kernels::decode_row(&rows, row, line, bytes);
    }
    let scale = weight.scale(matrix);
    if scale != 1.0 {
        latent_kernels::scale(out, scale);
    }
}
