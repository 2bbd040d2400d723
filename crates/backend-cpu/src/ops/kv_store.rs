//! Stores rows in the KV cache: latents, or expanded keys and values.

use super::mla_projection::{HeadProjection, KvProjection, kv_formats};
use crate::context::WorkerContext;
use crate::program::{ExpandedStore, LatentStore};
use crate::scratch::{WorkerScratch, resize_scratch};
use latent_backend::{KV_BLOCK, SeqSpan};
use latent_kernels::MatrixViewMut;

/// Consecutive cached rows that are placed on one memory node.
const NODE_ROWS: usize = 2 * KV_BLOCK;

/// The rows of a span, counted from its first, that this worker stores in a KV layer.
///
/// Runs of [`NODE_ROWS`] positions are dealt to the memory nodes in turn. The system places a page
/// on the node that writes it first. So the cache fills the memory of all nodes evenly and reads
/// use all of them, even if each step stores one row. Each layer begins with another node, because
/// a huge page is placed as a whole when its first row is written.
pub(super) fn stored_rows<'c>(
    ctx: &WorkerContext<'c>,
    span: &SeqSpan,
    kv_layer: usize,
) -> impl Iterator<Item = usize> + use<'c> {
    let (worker, first) = (ctx.worker, span.first);
    (0..span.rows.len()).filter(move |row| worker.is_dealt((first + row) / NODE_ROWS + kv_layer, first + row))
}

impl LatentStore {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let LatentStore { latent, norm, key, rotate, kv_layer } = self;
        let format = ctx.kv_format(*kv_layer);
        let elements = resize_scratch(&mut scratch.results, ctx.kv.kv_layer(*kv_layer).0.width);
        for span in &ctx.batch.spans {
            for offset in stored_rows(ctx, span, *kv_layer) {
                let row = span.rows.start + offset;
                let (content, rope) = elements.split_at_mut(latent.width);
                match ctx.norm(*norm) {
                    Some((weight, eps)) => {
                        latent_kernels::rms_norm(ctx.row(latent, row), weight, eps, content);
                    }
                    None => content.copy_from_slice(ctx.row(latent, row)),
                }
                if let Some(key) = key {
                    rope.copy_from_slice(ctx.row(key, row));
                }
                if *rotate {
                    ctx.rotate(rope, row);
                }
                // SAFETY: each position is dealt to one worker, and the slots that a step writes
                // belong to one span: a block that another sequence shares is copied before.
                let stored = unsafe { ctx.kv_row_mut(span, *kv_layer, span.first + offset) };
                latent_kernels::store_row(format, elements, stored);
            }
        }
    }
}

impl ExpandedStore {
    /// Each worker expands all heads of the rows that it stores.
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let ExpandedStore { latent, key, rotate, kv, kv_layer } = self;
        let a = &ctx.model.config.attention;
        let (formats, format) = (kv_formats(kv), ctx.kv_format(*kv_layer));
        let WorkerScratch { acts, scratch, results, more, .. } = scratch;
        let head_width = a.nope + a.rope + a.v;
        let elements = resize_scratch(results, a.expanded_width());
        let rope = resize_scratch(more, a.rope);
        for span in &ctx.batch.spans {
            for offset in stored_rows(ctx, span, *kv_layer) {
                let row = span.rows.start + offset;
                let x = acts.prepare(ctx.read(latent, row..row + 1, 0, a.kv_lora_rank), None, formats);
                if let Some(key) = key {
                    rope.copy_from_slice(ctx.row(key, row));
                }
                if *rotate {
                    ctx.rotate(rope, row);
                }
                for (head, elements) in elements.chunks_exact_mut(head_width).enumerate() {
                    let (k, rest) = elements.split_at_mut(a.nope);
                    let (r, v) = rest.split_at_mut(a.rope);
                    r.copy_from_slice(rope);
                    for (projection, out) in [(KvProjection::Uk, k), (KvProjection::Uv, v)] {
                        let width = out.len();
                        let mut y = MatrixViewMut::new(out, 1, width, width);
                        if let Some(projection) = HeadProjection::new(ctx, kv, &projection, head) {
                            projection.project_value(ctx, &x, 0..width, &mut y, scratch);
                        }
                    }
                }
                // SAFETY: each position is dealt to one worker, and the slots that a step writes
                // belong to one span: a block that another sequence shares is copied before.
                let stored = unsafe { ctx.kv_row_mut(span, *kv_layer, span.first + offset) };
                latent_kernels::store_row(format, elements, stored);
            }
        }
    }
}
