//! Weight absorption: projects queries to latent space before attention, and results out of it
//! afterwards. The workers divide heads × outputs.

use super::kv_splits;
use super::matmul::{MatmulOperands, OUTPUT_UNIT, rescale};
use crate::context::WorkerContext;
use crate::program::{AbsorbK, AbsorbV, KvWeights, WeightKernel};
use crate::scratch::{InputFormats, PreparedInput, WorkerScratch, resize_scratch};
use latent_graph::ir::AttentionPath;
use latent_kernels::{MatmulArgs, MatmulScratch, MatrixView, MatrixViewMut};
use std::ops::Range;

/// One of the two projections in W_KV.
pub(crate) enum KvProjection {
    /// W_UK: from latents to keys.
    Uk,
    /// W_UV: from latents to values.
    Uv,
}

/// The product with one head's W_UK or W_UV.
pub(crate) struct HeadProjection {
    product: WeightKernel,
    matrix: usize,
    /// First row of the head in `kv_b`. None if the head has its own matrix.
    first_row: Option<usize>,
}

impl HeadProjection {
    /// None if the plan has no product for this projection.
    pub(crate) fn new(
        ctx: &WorkerContext<'_>,
        kv: &KvWeights,
        projection: &KvProjection,
        head: usize,
    ) -> Option<HeadProjection> {
        let a = &ctx.model.config.attention;
        let first = head * (a.nope + a.v);
        let (product, matrix, first_row) = match (kv, projection) {
            (KvWeights::Separate(Some(k), _), KvProjection::Uk) => (*k, head, None),
            (KvWeights::Separate(_, Some(v)), KvProjection::Uv) => (*v, head, None),
            (KvWeights::Combined(both), KvProjection::Uk) => (*both, 0, Some(first)),
            (KvWeights::Combined(both), KvProjection::Uv) => (*both, 0, Some(first + a.nope)),
            _ => return None,
        };
        Some(HeadProjection { product, matrix, first_row })
    }

    /// W_UKᵀ · q: computes `outputs` of the head's latent columns.
    fn absorb_query(
        &self,
        ctx: &WorkerContext<'_>,
        x: &PreparedInput<'_>,
        outputs: Range<usize>,
        y: &mut MatrixViewMut<'_>,
        scratch: &mut MatmulScratch,
    ) {
        let Some(from) = self.first_row else {
            // The rows of k_b are latent columns.
            let operands = MatmulOperands { matrix: self.matrix, x, index: None, outputs };
            return self.product.multiply(ctx, operands, y, scratch);
        };
        // The rows of kv_b are elements of keys: a transposed product with this head's rows.
        let nope = ctx.model.config.attention.nope;
        let both = &ctx.model.weights[self.product.weight];
        let weight = both.matrix(0).slice_rows(from..from + nope);
        let input = x.acts(self.product.activation);
        let args = MatmulArgs { weight: &weight, input: &input, row_ids: None, outputs, y: &mut *y };
        (self.product.kernel)(args, scratch);
        rescale(both.scale(0), y);
    }

    /// Projects latent rows to `outputs` of the head's keys or values.
    pub(crate) fn project_value(
        &self,
        ctx: &WorkerContext<'_>,
        x: &PreparedInput<'_>,
        outputs: Range<usize>,
        y: &mut MatrixViewMut<'_>,
        scratch: &mut MatmulScratch,
    ) {
        let from = self.first_row.unwrap_or(0);
        let outputs = from + outputs.start..from + outputs.end;
        let operands = MatmulOperands { matrix: self.matrix, x, index: None, outputs };
        self.product.multiply(ctx, operands, y, scratch);
    }
}

/// The formats in which the products of W_KV read latent rows.
pub(crate) fn kv_formats(kv: &KvWeights) -> InputFormats {
    match kv {
        KvWeights::Separate(k, v) => InputFormats::of_products([k, v].into_iter().flatten()),
        KvWeights::Combined(both) => InputFormats::of_products([both]),
    }
}

impl AbsorbK {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, path: AttentionPath, scratch: &mut WorkerScratch) {
        let AbsorbK { q_nope, q_rope, rotate, kv, out } = self;
        let latent = ctx.model.config.attention.kv_lora_rank;
        let formats = kv_formats(kv);
        let WorkerScratch { acts, scratch, .. } = scratch;
        for (head, outputs) in head_shares(ctx, out.heads, latent, latent_unit(ctx, kv)) {
            let projection = HeadProjection::new(ctx, kv, &KvProjection::Uk, head);
            for rows in ctx.batch.ranges_in(path) {
                let x = ctx.read(q_nope, rows.clone(), head * q_nope.head_stride, q_nope.width);
                let x = acts.prepare(x, None, formats);
                let column = head * out.head_stride + outputs.start;
                // SAFETY: shares of (head, columns) are disjoint, and these columns are in this
                // worker's.
                let mut y = unsafe { ctx.write(out, rows.clone(), column, outputs.len()) };
                if let Some(projection) = &projection {
                    projection.absorb_query(ctx, &x, outputs.clone(), &mut y, scratch);
                }
                // The worker with the head's last columns also copies the rope part.
                if let Some(q_rope) = q_rope.as_ref().filter(|_| outputs.end == latent) {
                    for row in rows {
                        // SAFETY: one worker has the last latent column of a head, and no share has
                        // columns of the tail.
                        let tail = unsafe { ctx.head_mut(out, row, head, latent..out.width) };
                        tail.copy_from_slice(ctx.head(q_rope, row, head));
                        if *rotate {
                            ctx.rotate(tail, row);
                        }
                    }
                }
            }
        }
    }
}

impl AbsorbV {
    /// If attention left partial results, each worker combines the KV splits of the heads that it
    /// reads. Heads that two workers read are combined twice, which is cheaper than a barrier.
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, path: AttentionPath, scratch: &mut WorkerScratch) {
        let AbsorbV { input, partials, kv, out } = self;
        let formats = kv_formats(kv);
        let WorkerScratch { acts, scratch, more, .. } = scratch;
        let partials = kv_splits::left_partials(ctx, *partials, path);
        for (head, outputs) in head_shares(ctx, out.heads, out.width, OUTPUT_UNIT) {
            let projection = HeadProjection::new(ctx, kv, &KvProjection::Uv, head);
            for rows in ctx.batch.ranges_in(path) {
                let x = if let Some(partials) = &partials {
                    let combined = resize_scratch(more, rows.len() * input.width);
                    kv_splits::combine_head(ctx, partials, path, head, &rows, combined);
                    MatrixView::new(combined, rows.len(), input.width, input.width)
                } else {
                    ctx.read(input, rows.clone(), head * input.head_stride, input.width)
                };
                let x = acts.prepare(x, None, formats);
                let column = head * out.head_stride + outputs.start;
                // SAFETY: shares of (head, columns) are disjoint, and these columns are in this
                // worker's.
                let mut y = unsafe { ctx.write(out, rows, column, outputs.len()) };
                if let Some(projection) = &projection {
                    projection.project_value(ctx, &x, outputs.clone(), &mut y, scratch);
                }
            }
        }
    }
}

/// Shares of latent columns are cut at multiples of this. The transposed product with `kv_b` reads
/// columns of its rows, and so can only start at a quantization block.
fn latent_unit(ctx: &WorkerContext<'_>, kv: &KvWeights) -> usize {
    let block = match kv {
        KvWeights::Combined(both) => ctx.model.weights[both.weight].ty().block_len(),
        KvWeights::Separate(..) => 1,
    };
    block.max(OUTPUT_UNIT)
}

/// This worker's share of `heads` × `width` elements, as (head, columns).
fn head_shares(
    ctx: &WorkerContext<'_>,
    heads: usize,
    width: usize,
    unit: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
    let padded = width.next_multiple_of(unit);
    let share = ctx.worker.share(heads * padded, unit);
    let first = share.start / padded;
    let last = share.end.div_ceil(padded);
    (first..last).filter_map(move |head| {
        let from = share.start.saturating_sub(head * padded).min(width);
        let to = (share.end - head * padded).min(width);
        (from < to).then_some((head, from..to))
    })
}
