//! Rotation by position (RoPE). Each worker takes a share of every span's rows.

use crate::context::WorkerContext;
use crate::program::Rope;
use latent_graph::ir::AttentionPath;

impl Rope {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, path: AttentionPath) {
        let Rope { input, out } = self;
        let in_place = (input.buffer, input.offset) == (out.buffer, out.offset);
        for span in ctx.batch.on_path(path) {
            for row in ctx.worker.share(span.rows.len(), 1) {
                let row = span.rows.start + row;
                for head in 0..out.heads {
                    // SAFETY: shares of a span's rows are disjoint, and no row is in two spans; an
                    // input in place is not read.
                    let elements = unsafe { ctx.head_mut(out, row, head, 0..out.width) };
                    if !in_place {
                        elements.copy_from_slice(ctx.head(input, row, head));
                    }
                    ctx.rotate(elements, row);
                }
            }
        }
    }
}
