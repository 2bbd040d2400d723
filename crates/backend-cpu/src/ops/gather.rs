//! Copies the rows of the residual stream whose logits are wanted. Each worker copies its share.

use crate::context::WorkerContext;
use crate::program::{Buffer, GatherRows, OperandView};

impl GatherRows {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>) {
        let hidden = OperandView { buffer: Buffer::Hidden, offset: 0, ..self.out };
        for row in ctx.own_rows(&self.out) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
            let out = unsafe { ctx.row_mut(&self.out, row) };
            out.copy_from_slice(ctx.row(&hidden, ctx.batch.wanted[row] as usize));
        }
    }
}
