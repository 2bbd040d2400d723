//! RMSNorm as a separate operation. Each worker takes a share of the rows. Most norms are fused
//! into the products that read them.

use crate::context::WorkerContext;
use crate::program::RmsNorm;

impl RmsNorm {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>) {
        if let Some((weight, eps)) = ctx.norm(Some(self.weight)) {
            for row in ctx.own_rows(&self.out) {
                // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
                let out = unsafe { ctx.row_mut(&self.out, row) };
                latent_kernels::rms_norm(ctx.row(&self.input, row), weight, eps, out);
            }
        }
    }
}
