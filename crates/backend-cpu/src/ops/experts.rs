//! Mixture of experts as a grouped GEMM: batch rows are sorted by expert, so that each expert's
//! weights are read once.

use super::lora::{ExpertOperands, add_expert_terms};
use super::matmul::{self, MatmulOperands, OUTPUT_UNIT};
use crate::context::WorkerContext;
use crate::expert_rows::ExpertRows;
use crate::program::{ExpertDown, ExpertGateUp, OperandView};
use crate::scratch::{InputFormats, LowRankScratch, PreparedInput, WorkerScratch, resize_scratch};
use latent_kernels::{MatmulScratch, MatrixViewMut};
use std::ops::Range;

/// Sorts the rows by the experts that an earlier phase has chosen.
fn sort(ctx: &WorkerContext<'_>, topk_ids: &OperandView, experts: &mut ExpertRows) {
    experts.sort(ctx.model.config.own_experts().range(), ctx.rows, |row| ctx.ids(topk_ids, row));
}

/// A range of outputs of one expert, for all of its (row, expert) pairs.
struct ExpertStrip {
    expert: usize,
    pairs: Range<usize>,
    outputs: Range<usize>,
}

impl ExpertGateUp {
    /// Experts have very different numbers of rows. Therefore the outputs of all active experts are
    /// cut into chunks of equal work, which workers take from a queue. They take chunks of their
    /// own memory node first.
    // measured: docs/notes/threads-and-placement.md "Work queue for experts"
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let WorkerScratch { acts, scratch, results, experts, lora, .. } = scratch;
        // Without ids, `Route::route_all` has sorted the rows into this worker's scratch.
        if let Some(topk_ids) = &self.topk_ids {
            sort(ctx, topk_ids, experts);
        }
        let x = ctx.read(&self.input, 0..ctx.rows, 0, self.input.width);
        let x = matmul::prepare(ctx, x, self.norm, InputFormats::of_products(&self.products), acts);
        ctx.worker.for_each_chunk(|chunk| {
            let own = ctx.worker.node_share(chunk.node, self.out.width, OUTPUT_UNIT);
            experts.strips(&chunk, own.len().div_ceil(OUTPUT_UNIT), |expert, pairs, tiles| {
                let from = own.start + tiles.start * OUTPUT_UNIT;
                let to = (own.start + tiles.end * OUTPUT_UNIT).min(own.end);
                let rows = experts.rows(pairs.clone());
                self.strip(
                    ctx,
                    &x,
                    rows,
                    ExpertStrip { expert, pairs, outputs: from..to },
                    (results, scratch, lora),
                );
            });
            ctx.beat();
        });
    }

    fn strip(
        &self,
        ctx: &WorkerContext<'_>,
        x: &PreparedInput<'_>,
        rows: &[u32],
        ExpertStrip { expert, pairs, outputs }: ExpertStrip,
        (results, scratch, lora): (&mut Vec<f32>, &mut MatmulScratch, &mut LowRankScratch),
    ) {
        // Files store gate and up as two tensors, or as one tensor with the rows of gate before
        // those of up. The products with A of adapters come after them.
        let (gate, up, up_target, up_from) = match &self.products[..self.products.len() - self.adapters.len()]
        {
            [both] => (both, both, 0, self.out.width),
            products => (&products[0], &products[1], 1, 0),
        };
        let up_outputs = up_from + outputs.start..up_from + outputs.end;
        let cols = outputs.len();
        let operands = |outputs| MatmulOperands { matrix: expert, x, index: Some(rows), outputs };
        let gated = resize_scratch(results, rows.len() * cols);
        let mut y = MatrixViewMut::new(gated, rows.len(), cols, cols);
        gate.multiply(ctx, operands(outputs.clone()), &mut y, scratch);
        let adapters = (&self.adapters[..], &self.products[..]);
        let adapted = |target, outputs| ExpertOperands { expert, x, index: Some(rows), outputs, target };
        let row_of = |row: usize| rows[row] as usize;
        let of_gate = adapted(0, outputs.clone());
        add_expert_terms(ctx, adapters, &of_gate, row_of, &mut y, (lora, scratch));
        // SAFETY: one worker takes a chunk from the queue, and the tiles of chunks are disjoint.
        let mut y = unsafe { ctx.write(&self.out, pairs, outputs.start, cols) };
        up.multiply(ctx, operands(up_outputs.clone()), &mut y, scratch);
        let of_up = adapted(up_target, up_outputs);
        add_expert_terms(ctx, adapters, &of_up, row_of, &mut y, (lora, scratch));
        for (row, gated) in gated.chunks_exact(cols).enumerate() {
            latent_kernels::silu_mul(gated, y.row_mut(row));
        }
    }
}

impl ExpertDown {
    /// Each worker computes ranges of outputs for all experts, and adds the experts of a row in
    /// ascending order. So a sum does not depend on the number of workers.
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let ExpertDown { input, topk_ids, topk_weights, products, adapters, scale, add, out } = self;
        let WorkerScratch { acts, scratch, results, experts, lora, .. } = scratch;
        let product = &products[0];
        sort(ctx, topk_ids, experts);
        let formats = InputFormats::of_products(products);
        let all = ctx.read(input, 0..experts.len(), 0, input.width);
        // The number of rows of a pair's expert decides which kernel, and so which format, reads
        // the pair.
        let formats_of_pair = |pair| {
            let rows = experts.rows_of_expert(pair);
            InputFormats::of(products.iter().map(|product| product.for_rows(rows).1))
        };
        let x = matmul::prepare_some(ctx, all, None, formats, formats_of_pair, acts);
        ctx.for_each_range(out.width, OUTPUT_UNIT, |outputs| {
            let cols = outputs.len();
            // SAFETY: ranges of outputs are disjoint columns, and this one is this worker's. A
            // dense product that adds to `out` in the same phase has the same ranges: in small
            // batches one per worker, and in large ones a phase of its own.
            let mut sums = unsafe { ctx.write(out, 0..ctx.rows, outputs.start, cols) };
            if !add {
                (0..ctx.rows).for_each(|row| sums.row_mut(row).fill(0.0));
            }
            for (expert, pairs) in experts.active() {
                let (rows, x) = (pairs.len(), x.part(pairs.clone()));
                let terms = resize_scratch(results, rows * cols);
                let mut y = MatrixViewMut::new(terms, rows, cols, cols);
                let operands =
                    MatmulOperands { matrix: expert, x: &x, index: None, outputs: outputs.clone() };
                product.multiply(ctx, operands, &mut y, scratch);
                let adapted =
                    ExpertOperands { expert, x: &x, index: None, outputs: outputs.clone(), target: 0 };
                let row_of = |row: usize| experts.row_and_rank(pairs.start + row).0;
                add_expert_terms(ctx, (adapters, products), &adapted, row_of, &mut y, (lora, scratch));
                for (pair, term) in pairs.zip(terms.chunks_exact(cols)) {
                    let (row, rank) = experts.row_and_rank(pair);
                    let weight = ctx.row(topk_weights, row)[rank];
                    latent_kernels::axpy(sums.row_mut(row), weight * scale, term);
                }
                ctx.beat();
            }
        });
    }
}
