//! Products of rows with weights: each thread takes its share of the outputs.

use crate::compile::{Product, Slot};
use crate::run::Thread;
use crate::scratch::{ActBuffers, InputFormats, PreparedInput, WorkerScratch, resize_scratch};
use latent_graph::ir::Epilogue;
use latent_kernels::{MatmulArgs, Q8Rows, Rows, RowsMut, Scratch};
use std::ops::Range;

/// Outputs are shared out in units of as many, the rows of a tile.
pub(crate) const UNIT: usize = 16;

/// From so many rows on, the threads convert the inputs of a product together.
const TOGETHER: usize = 16;

impl Thread<'_> {
    pub(crate) fn linear(
        &self,
        input: &Slot,
        norm: Option<usize>,
        products: &[Product],
        outs: &[Slot],
        epilogue: Epilogue,
        local: &mut WorkerScratch,
    ) {
        let x = self.read(input, 0..self.rows, 0, input.heads * input.width);
        let needs = InputFormats::of_products(products);
        let WorkerScratch { acts, scratch, results, .. } = local;
        let x = self.prepare(x, norm, needs, acts);
        match (epilogue, products) {
            (Epilogue::SiluMul, [gate, up]) => self.gate_up(&x, *gate, *up, &outs[0], results, scratch),
            _ => self.each_product(&x, products, outs, epilogue, results, scratch),
        }
    }

    /// The input of a product that all threads compute parts of. Few rows each thread converts for itself, which is quicker than to wait
    /// for others; many rows are converted together.
    pub(crate) fn prepare<'x>(
        &'x self,
        x: Rows<'x>,
        norm: Option<usize>,
        needs: InputFormats,
        acts: &'x mut ActBuffers,
    ) -> PreparedInput<'x> {
        self.prepare_some(x, norm, needs, |_| needs, acts)
    }

    /// The same where a row is read in some of the forms only: those that `of_row` names, if many rows are converted together.
    pub(crate) fn prepare_some<'x>(
        &'x self,
        x: Rows<'x>,
        norm: Option<usize>,
        needs: InputFormats,
        of_row: impl Fn(usize) -> InputFormats,
        acts: &'x mut ActBuffers,
    ) -> PreparedInput<'x> {
        if x.rows() < TOGETHER || needs.f32 {
            return acts.prepare(x, self.norm(norm), needs);
        }
        let row_blocks = Q8Rows::row_blocks(x.cols());
        let all = |needed: bool| if needed { x.rows() * row_blocks } else { 0 };
        // others may still read what an earlier product of this phase was given
        self.worker.barrier();
        for row in self.worker.share(x.rows(), 1) {
            let (needs, at) = (of_row(row), row * row_blocks);
            let lines = needs.bf16.then(|| self.lines_mut(at, row_blocks));
            let blocks = needs.a8.then(|| self.blocks_mut(at, row_blocks));
            acts.convert(x.row(row), self.norm(norm), lines, blocks);
        }
        self.worker.barrier();
        PreparedInput::converted(x, self.lines(all(needs.bf16)), self.blocks(all(needs.a8)))
    }

    /// Results of one weight, into `y`.
    #[allow(clippy::too_many_arguments, reason = "one product")]
    pub(crate) fn multiply(
        &self,
        product: Product,
        matrix: usize,
        x: &PreparedInput<'_>,
        index: Option<&[u32]>,
        outputs: Range<usize>,
        y: &mut RowsMut<'_>,
        scratch: &mut Scratch,
    ) {
        let weight = &self.model.weights[product.weight];
        let (kernel, activation) = product.of(y.rows());
        let (view, input) = (weight.matrix(matrix), x.acts(activation));
        kernel(MatmulArgs { weight: &view, input: &input, row_ids: index, outputs, y }, scratch);
        let scale = weight.scale(matrix);
        if scale != 1.0 {
            for row in 0..y.rows() {
                latent_kernels::scale(y.row_mut(row), scale);
            }
        }
    }

    fn gate_up(
        &self,
        x: &PreparedInput<'_>,
        gate: Product,
        up: Product,
        out: &Slot,
        results: &mut Vec<f32>,
        scratch: &mut Scratch,
    ) {
        let outputs = self.worker.share(out.width, UNIT);
        if outputs.is_empty() {
            return;
        }
        let cols = outputs.len();
        let gated = resize_scratch(results, self.rows * cols);
        let mut y = RowsMut::new(gated, self.rows, cols, cols);
        self.multiply(gate, 0, x, None, outputs.clone(), &mut y, scratch);
        let mut y = self.write(out, 0..self.rows, outputs.start, cols);
        self.multiply(up, 0, x, None, outputs, &mut y, scratch);
        for row in 0..self.rows {
            latent_kernels::silu_mul(&gated[row * cols..(row + 1) * cols], y.row_mut(row));
        }
    }

    /// Each node has its rows of all weights, which its threads share out as one.
    fn each_product(
        &self,
        x: &PreparedInput<'_>,
        products: &[Product],
        outs: &[Slot],
        epilogue: Epilogue,
        results: &mut Vec<f32>,
        scratch: &mut Scratch,
    ) {
        let lengths = products.iter().map(|product| self.model.weights[product.weight].outputs());
        for (index, Range { start: from, end: to }) in self.worker.shares(lengths, UNIT) {
            let (product, out) = (&products[index], &outs[index]);
            match epilogue {
                Epilogue::AddTo(scale) => {
                    let sums = resize_scratch(results, self.rows * (to - from));
                    let mut y = RowsMut::new(sums, self.rows, to - from, to - from);
                    self.multiply(*product, 0, x, None, from..to, &mut y, scratch);
                    let sums = Rows::new(sums, self.rows, to - from, to - from);
                    self.accumulate(out, from, &sums, scale as f32);
                }
                _ => {
                    let mut y = self.write(out, 0..self.rows, from, to - from);
                    self.multiply(*product, 0, x, None, from..to, &mut y, scratch);
                    if epilogue == Epilogue::Relu2 {
                        (0..self.rows).for_each(|row| latent_kernels::relu2(y.row_mut(row)));
                    }
                }
            }
        }
    }

    /// Adds `terms` to columns of `out` from `column` on.
    fn accumulate(&self, out: &Slot, column: usize, terms: &Rows<'_>, scale: f32) {
        let mut y = self.write(out, 0..self.rows, column, terms.cols());
        for row in 0..self.rows {
            latent_kernels::axpy(y.row_mut(row), scale, terms.row(row));
        }
    }
}
