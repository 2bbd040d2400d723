//! Elementwise operations that no product took as an epilogue: each worker takes its share of the rows.

use crate::context::Context;
use crate::program::{Add, Relu2, Scale, SiluMul};

impl SiluMul {
    pub(crate) fn run(&self, ctx: &Context<'_>) {
        for row in ctx.own_rows(&self.out) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
            let out = unsafe { ctx.row_mut(&self.out, row) };
            out.copy_from_slice(ctx.row(&self.up, row));
            latent_kernels::silu_mul(ctx.row(&self.gate, row), out);
        }
    }
}

impl Relu2 {
    pub(crate) fn run(&self, ctx: &Context<'_>) {
        for row in ctx.own_rows(&self.out) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
            let out = unsafe { ctx.row_mut(&self.out, row) };
            out.copy_from_slice(ctx.row(&self.input, row));
            latent_kernels::relu2(out);
        }
    }
}

impl Add {
    pub(crate) fn run(&self, ctx: &Context<'_>) {
        for row in ctx.own_rows(&self.out) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
            let out = unsafe { ctx.row_mut(&self.out, row) };
            latent_kernels::axpy(out, self.scale, ctx.row(&self.term, row));
        }
    }
}

impl Scale {
    pub(crate) fn run(&self, ctx: &Context<'_>) {
        for row in ctx.own_rows(&self.out) {
            // SAFETY: shares of rows are disjoint, and `row` is in this worker's.
            let out = unsafe { ctx.row_mut(&self.out, row) };
            latent_kernels::scale(out, self.by);
        }
    }
}
