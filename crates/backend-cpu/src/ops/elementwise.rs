//! Elementwise operations that are not fused into a product as an epilogue. Each worker takes a
//! share of the rows.

use crate::context::WorkerContext;
use crate::program::{Bias, Concat, Elementwise};

impl Elementwise {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>) {
        let Elementwise { kernel, overwritten, other, factor, out } = self;
        let in_place = (overwritten.buffer, overwritten.offset) == (out.buffer, out.offset);
        for row in ctx.own_rows(out) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's; an input in place
            // is not read.
            let elements = unsafe { ctx.row_mut(out, row) };
            if !in_place {
                elements.copy_from_slice(ctx.row(overwritten, row));
            }
            match other {
                Some(other) if other.heads > 1 && other.head_stride != other.width => {
                    // A strided view of each head, such as the gates of a projection to queries and
                    // gates.
                    for (head, elements) in elements.chunks_exact_mut(other.width).enumerate() {
                        kernel(elements, ctx.head(other, row, head), *factor);
                    }
                }
                other => kernel(elements, other.as_ref().map_or(&[], |other| ctx.row(other, row)), *factor),
            }
        }
    }
}

impl Concat {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>) {
        for row in ctx.own_rows(&self.out) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
            let out = unsafe { ctx.row_mut(&self.out, row) };
            let [a, b] = self.parts.each_ref().map(|part| ctx.row(part, row));
            out[..a.len()].copy_from_slice(a);
            out[a.len()..].copy_from_slice(b);
        }
    }
}

impl Bias {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>) {
        let bias = ctx.vector(self.weight);
        for row in ctx.own_rows(&self.out) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
            let out = unsafe { ctx.row_mut(&self.out, row) };
            latent_kernels::add(out, bias);
        }
    }
}
