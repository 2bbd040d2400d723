//! Products of rows with dense weights. Each worker computes a range of the outputs.

use super::matmul::{self, MatmulOperands, OUTPUT_UNIT};
use crate::context::WorkerContext;
use crate::program::{Linear, WeightKernel};
use crate::scratch::{InputFormats, PreparedInput, WorkerScratch, resize_scratch};
use latent_graph::ir::Epilogue;
use latent_kernels::{MatmulScratch, MatrixView, MatrixViewMut};
use std::ops::Range;

impl Linear {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let x = ctx.read(&self.input, 0..ctx.rows, 0, self.input.heads * self.input.width);
        let formats = InputFormats::of_products(&self.products);
        let WorkerScratch { acts, scratch, results, .. } = scratch;
        let x = matmul::prepare(ctx, x, self.norm, formats, acts);
        match (self.epilogue, &self.products[..]) {
            (Epilogue::SiluMul, [gate, up]) => self.gate_up(ctx, &x, [gate, up], results, scratch),
            _ => self.each_product(ctx, &x, results, scratch),
        }
    }

    fn gate_up(
        &self,
        ctx: &WorkerContext<'_>,
        x: &PreparedInput<'_>,
        [gate, up]: [&WeightKernel; 2],
        results: &mut Vec<f32>,
        scratch: &mut MatmulScratch,
    ) {
        ctx.for_each_range(self.outs[0].width, OUTPUT_UNIT, |outputs| {
            let cols = outputs.len();
            let gated = resize_scratch(results, ctx.rows * cols);
            let mut y = MatrixViewMut::new(gated, ctx.rows, cols, cols);
            let operands = |outputs| MatmulOperands { matrix: 0, x, index: None, outputs };
            gate.multiply(ctx, operands(outputs.clone()), &mut y, scratch);
            // Both products of a range are computed by one worker, so that SiLU needs no barrier
            // and no second pass over memory. Only the gate needs a buffer: `up` is multiplied in
            // place.
            // SAFETY: ranges of outputs are disjoint columns, and this one is this worker's.
            let mut y = unsafe { ctx.write(&self.outs[0], 0..ctx.rows, outputs.start, cols) };
            up.multiply(ctx, operands(outputs), &mut y, scratch);
            for row in 0..ctx.rows {
                latent_kernels::silu_mul(&gated[row * cols..(row + 1) * cols], y.row_mut(row));
            }
        });
    }

    /// Computes all products. Their outputs are divided among the workers as one list, so that a
    /// worker with little of the first product gets more of the second. With many rows each product
    /// has its own queue.
    fn each_product(
        &self,
        ctx: &WorkerContext<'_>,
        x: &PreparedInput<'_>,
        results: &mut Vec<f32>,
        scratch: &mut MatmulScratch,
    ) {
        let lengths = self.products.iter().map(|product| ctx.model.weights[product.weight].outputs());
        if ctx.takes_from_queues() {
            for (index, length) in lengths.enumerate() {
                ctx.for_each_range(length, OUTPUT_UNIT, |outputs| {
                    self.outputs(ctx, x, index, outputs, (results, scratch));
                });
            }
        } else {
            for (index, outputs) in ctx.worker.shares(lengths, OUTPUT_UNIT) {
                self.outputs(ctx, x, index, outputs, (results, scratch));
            }
        }
    }

    /// Computes a range of outputs of one product.
    fn outputs(
        &self,
        ctx: &WorkerContext<'_>,
        x: &PreparedInput<'_>,
        index: usize,
        outputs: Range<usize>,
        (results, scratch): (&mut Vec<f32>, &mut MatmulScratch),
    ) {
        let (rows, from, cols) = (ctx.rows, outputs.start, outputs.len());
        let (product, out) = (&self.products[index], &self.outs[index]);
        let operands = MatmulOperands { matrix: 0, x, index: None, outputs };
        if let Epilogue::AddTo(scale) = self.epilogue {
            // Kernels overwrite their result, so a sum needs a buffer.
            let terms = resize_scratch(results, rows * cols);
            let mut y = MatrixViewMut::new(terms, rows, cols, cols);
            product.multiply(ctx, operands, &mut y, scratch);
            let terms = MatrixView::new(terms, rows, cols, cols);
            // SAFETY: ranges of outputs are disjoint columns, and this one is this worker's.
            let mut sums = unsafe { ctx.write(out, 0..rows, from, cols) };
            (0..rows).for_each(|row| {
                latent_kernels::axpy(sums.row_mut(row), scale as f32, terms.row(row));
            });
        } else {
            // SAFETY: ranges of outputs are disjoint columns, and this one is this worker's.
            let mut y = unsafe { ctx.write(out, 0..rows, from, cols) };
            product.multiply(ctx, operands, &mut y, scratch);
            if self.epilogue == Epilogue::Relu2 {
                (0..rows).for_each(|row| latent_kernels::relu2(y.row_mut(row)));
            }
        }
    }
}
