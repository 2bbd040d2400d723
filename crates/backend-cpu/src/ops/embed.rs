//! Rows of the embedding: each worker decodes its share of the rows.

use crate::context::Context;
use crate::program::Embed;
use crate::scratch::WorkerScratch;

impl Embed {
    pub(crate) fn run(&self, ctx: &Context<'_>, scratch: &mut WorkerScratch) {
        let table = ctx.model.weights[self.weight].matrix(0);
        for row in ctx.own_rows(&self.out) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
            let out = unsafe { ctx.row_mut(&self.out, row) };
            latent_kernels::decode_row(&table, ctx.batch.tokens[row] as usize, out, &mut scratch.bytes);
            if self.scale != 1.0 {
                latent_kernels::scale(out, self.scale);
            }
        }
    }
}
