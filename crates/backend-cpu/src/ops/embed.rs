//! Embedding lookup. Each worker decodes its share of the rows, or copies rows that are embeddings
//! already.

use crate::context::WorkerContext;
use crate::program::Embed;
use crate::scratch::WorkerScratch;
use latent_backend::InputRow;

impl Embed {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let weight = &ctx.model.weights[self.weight];
        let (table, scale) = (weight.matrix(0), self.scale * weight.scale(0));
        for row in ctx.own_rows(&self.out) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
            let out = unsafe { ctx.row_mut(&self.out, row) };
            let token = match ctx.batch.input(row) {
                InputRow::Token(token) => token as usize,
                // Callers pass embeddings with the model's scale applied.
                InputRow::Embedding(elements) => {
                    out.copy_from_slice(elements);
                    continue;
                }
            };
            latent_kernels::decode_row(&table, token, out, &mut scratch.bytes);
            if scale != 1.0 {
                latent_kernels::scale(out, scale);
            }
        }
    }
}
