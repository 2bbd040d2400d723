//! Low-rank terms of LoRA adapters. Each row uses the scale of its sequence. Rows with scale 0 keep
//! their bits, so that a sequence without adapters does not depend on the others in its batch.

use super::matmul::{self, MatmulOperands, OUTPUT_UNIT};
use crate::context::WorkerContext;
use crate::program::{AdapterHeads, AdapterSide, AdapterSum, ExpertAdapter, WeightKernel};
use crate::scratch::{InputFormats, LowRankScratch, PreparedInput, WorkerScratch, resize_scratch};
use latent_graph::circuit::AdapterWeight;
use latent_kernels::{MatmulScratch, MatrixView, MatrixViewMut};
use std::ops::Range;

/// The factor of an adapter's term in a row.
fn factor(ctx: &WorkerContext<'_>, of: AdapterWeight, row: usize) -> f32 {
    (f64::from(ctx.batch.adapter_scale(row, of.adapter)) * of.factor) as f32
}

/// Operands of the product of an expert to which adapters add their terms.
pub(super) struct ExpertOperands<'a> {
    pub expert: usize,
    /// The input of the experts' products.
    pub x: &'a PreparedInput<'a>,
    /// The rows of `x` that belong to this expert; all if None.
    pub index: Option<&'a [u32]>,
    pub outputs: Range<usize>,
    /// Index of the adapted weight in the products.
    pub target: usize,
}

/// Adds the terms of all adapters of an experts' weight. `row_of` maps a row of `y` to its batch
/// row.
pub(super) fn add_expert_terms(
    ctx: &WorkerContext<'_>,
    (adapters, products): (&[ExpertAdapter], &[WeightKernel]),
    operands: &ExpertOperands<'_>,
    row_of: impl Fn(usize) -> usize,
    y: &mut MatrixViewMut<'_>,
    (lora, scratch): (&mut LowRankScratch, &mut MatmulScratch),
) {
    let (rows, cols) = (y.rows(), operands.outputs.len());
    for adapter in adapters.iter().filter(|adapter| adapter.target == operands.target) {
        let factor = |row: usize| factor(ctx, adapter.of, row_of(row));
        if (0..rows).all(|row| factor(row) == 0.0) {
            continue;
        }
        let ExpertOperands { expert: matrix, x, index, .. } = *operands;
        let low = resize_scratch(&mut lora.low, rows * adapter.rank);
        let of_a = MatmulOperands { matrix, x, index, outputs: 0..adapter.rank };
        let mut low_rows = MatrixViewMut::new(low, rows, adapter.rank, adapter.rank);
        products[adapter.a].multiply(ctx, of_a, &mut low_rows, scratch);
        let low = MatrixView::new(low, rows, adapter.rank, adapter.rank);
        let low = lora.acts.prepare(low, None, InputFormats::of_products([&adapter.b]));
        let terms = resize_scratch(&mut lora.terms, rows * cols);
        let of_b = MatmulOperands { matrix, x: &low, index: None, outputs: operands.outputs.clone() };
        adapter.b.multiply(ctx, of_b, &mut MatrixViewMut::new(terms, rows, cols, cols), scratch);
        for (row, terms) in terms.chunks_exact(cols).enumerate() {
            let factor = factor(row);
            if factor != 0.0 {
                latent_kernels::axpy(y.row_mut(row), factor, terms);
            }
        }
    }
}

impl AdapterSum {
    /// Each worker adds to its share of the outputs.
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let rows = ctx.rows;
        if (0..rows).all(|row| factor(ctx, self.of, row) == 0.0) {
            return;
        }
        let low = ctx.read(&self.low, 0..rows, 0, self.low.heads * self.low.width);
        let formats = InputFormats::of_products([&self.product]);
        let WorkerScratch { acts, scratch, results, .. } = scratch;
        let low = matmul::prepare(ctx, low, None, formats, acts);
        let outputs = ctx.worker.share(self.out.heads * self.out.width, OUTPUT_UNIT);
        if outputs.is_empty() {
            return;
        }
        let cols = outputs.len();
        let terms = resize_scratch(results, rows * cols);
        let operands = MatmulOperands { matrix: 0, x: &low, index: None, outputs: outputs.clone() };
        self.product.multiply(ctx, operands, &mut MatrixViewMut::new(terms, rows, cols, cols), scratch);
        let terms = MatrixView::new(terms, rows, cols, cols);
        // SAFETY: shares of outputs are disjoint columns, and these are this worker's.
        let mut sums = unsafe { ctx.write(&self.out, 0..rows, outputs.start, cols) };
        for row in 0..rows {
            let factor = factor(ctx, self.of, row);
            if factor != 0.0 {
                latent_kernels::axpy(sums.row_mut(row), factor, terms.row(row));
            }
        }
    }
}

impl AdapterHeads {
    /// Each worker adds to its share of rows × heads.
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        match self.side {
            AdapterSide::Keys => self.add_to_queries(ctx, scratch),
            AdapterSide::Values => self.add_to_results(ctx, scratch),
        }
    }

    /// This worker's share of rows × heads as (row, head, factor), without factors of 0.
    fn own_terms(&self, ctx: &WorkerContext<'_>) -> impl Iterator<Item = (usize, usize, f32)> {
        let heads = self.out.heads;
        let items = ctx.worker.share(ctx.rows * heads, 1);
        let terms = items.map(move |item| (item / heads, item % heads, factor(ctx, self.of, item / heads)));
        terms.filter(|(.., factor)| *factor != 0.0)
    }

    fn add_to_queries(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let attention = &ctx.model.config.attention;
        let (nope, latent) = (attention.nope, attention.kv_lora_rank);
        let (a, b) = (ctx.vector(self.a), ctx.vector(self.b));
        let rank = a.len() / latent;
        for (row, head, factor) in self.own_terms(ctx) {
            let low = resize_scratch(&mut scratch.results, rank);
            low.fill(0.0);
            let first = head * (nope + attention.v);
            let of_head = b[first * rank..(first + nope) * rank].chunks_exact(rank);
            for (weights, q) in of_head.zip(ctx.head(&self.input, row, head)) {
                latent_kernels::axpy(low, *q, weights);
            }
            // SAFETY: shares of (row, head) are disjoint.
            let query = unsafe { ctx.head_mut(&self.out, row, head, 0..latent) };
            for (low, weights) in low.iter().zip(a.chunks_exact(latent)) {
                latent_kernels::axpy(query, factor * low, weights);
            }
        }
    }

    fn add_to_results(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let attention = &ctx.model.config.attention;
        let (v, latent) = (attention.v, attention.kv_lora_rank);
        let (a, b) = (ctx.vector(self.a), ctx.vector(self.b));
        let rank = a.len() / latent;
        for (row, head, factor) in self.own_terms(ctx) {
            let mix = ctx.head(&self.input, row, head);
            let low = resize_scratch(&mut scratch.results, rank);
            for (low, weights) in low.iter_mut().zip(a.chunks_exact(latent)) {
                *low = dot(weights, mix);
            }
            let first = head * (attention.nope + v) + attention.nope;
            let of_head = b[first * rank..(first + v) * rank].chunks_exact(rank);
            // SAFETY: shares of (row, head) are disjoint.
            let out = unsafe { ctx.head_mut(&self.out, row, head, 0..v) };
            for (out, weights) in out.iter_mut().zip(of_head) {
                *out += factor * dot(weights, low);
            }
        }
    }
}

/// Number of partial sums of a dot product. The compiler keeps them in vector registers.
const LANES: usize = 16;

/// Σ aᵢ · bᵢ, in an order that depends on the length only.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (a, rest_of_a) = a.as_chunks::<LANES>();
    let (b, rest_of_b) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = rest_of_a.iter().zip(rest_of_b).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
