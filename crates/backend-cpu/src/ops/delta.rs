//! Kimi Delta Attention: each worker takes its share of the heads of all sequences, the same in every operation here, so that it reads what it
//! has made itself without a barrier.

use crate::context::WorkerContext;
use crate::program::{DeltaRule, GatedNorm, L2Norm, LogDecay, OperandView, ShortConv};
use crate::scratch::{WorkerScratch, resize_scratch};
use latent_backend::{SeqSpan, SpanState};
use latent_kernels::{DeltaRow, DeltaState};
use std::ops::Range;

/// Most tokens that a convolution sees, as the config's limit says.
const MAX_TAPS: usize = 16;

/// The slots of a span's states.
fn slots(span: &SeqSpan) -> &SpanState {
    span.state.as_ref().expect("the engine gives every span of a recurrent model its slots")
}

/// Where a span's states are due: numbers of rows with their slots, the state after the last row at the end.
fn ends(span: &SeqSpan) -> impl Iterator<Item = (usize, u32)> + use<'_> {
    let states = slots(span);
    states.kept.iter().copied().chain([(span.rows.len(), states.to)])
}

/// The columns of one head of a value that may not be cut into heads.
fn columns(operand: &OperandView, head: usize, heads: usize) -> Range<usize> {
    let width = operand.heads * operand.width / heads;
    head * width..(head + 1) * width
}

impl ShortConv {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let heads = self.outs[0].heads;
        let state = ctx.kv.state_layer(self.kv_layer).0;
        let (past, channels) = (state.rows, state.columns);
        let zeros = &*{
            let zeros = resize_scratch(&mut scratch.results, channels);
            zeros.fill(0.0);
            zeros
        };
        for (span, head) in ctx.own_heads(heads) {
            for (part, (input, out)) in self.inputs.iter().zip(&self.outs).enumerate() {
                let of_head = columns(input, head, heads);
                let taps = &ctx.vector(self.taps[part])[of_head.start * (past + 1)..of_head.end * (past + 1)];
                let in_state = |row: usize| {
                    let start = (part * past + row) * channels;
                    start + of_head.start..start + of_head.end
                };
                // the input at a row of the span, or of those before it
                let seen = |row: usize, back: usize| match row.checked_sub(back) {
                    Some(row) => ctx.elements(input, span.rows.start + row, of_head.clone()),
                    None => match slots(span).from {
                        Some(slot) => ctx.state(self.kv_layer, slot, in_state(past + row - back)),
                        None => &zeros[of_head.clone()],
                    },
                };
                let mut inputs: [&[f32]; MAX_TAPS] = [&[]; MAX_TAPS];
                let inputs = &mut inputs[..past + 1];
                for row in 0..span.rows.len() {
                    for (j, input) in inputs.iter_mut().enumerate() {
                        *input = seen(row, past - j);
                    }
                    // SAFETY: heads of a span are in one share, and a row is in one span.
                    let out = unsafe { ctx.head_mut(out, span.rows.start + row, head, 0..out.width) };
                    latent_kernels::short_conv(inputs, taps, out);
                }
                for (rows, slot) in ends(span) {
                    for row in 0..past {
                        // SAFETY: heads of a span are in one share; the slots that a span writes are its own.
                        let kept = unsafe { ctx.state_mut(self.kv_layer, slot, in_state(row)) };
                        kept.copy_from_slice(seen(rows + row, past));
                    }
                }
            }
        }
    }
}

impl L2Norm {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>) {
        for (span, head) in ctx.own_heads(self.out.heads) {
            for row in span.rows.clone() {
                // SAFETY: heads of a span are in one share, and a row is in one span.
                let x = unsafe { ctx.head_mut(&self.out, row, head, 0..self.out.width) };
                latent_kernels::l2_norm(x, self.factor);
            }
        }
    }
}

impl LogDecay {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>) {
        let heads = self.out.heads;
        for (span, head) in ctx.own_heads(heads) {
            let of_head = columns(&self.input, head, heads);
            let bias = &ctx.vector(self.bias)[of_head.clone()];
            let rate = ctx.vector(self.rates)[head];
            let rate = if self.log_rates { latent_kernels::exp(rate) } else { rate.abs() };
            for row in span.rows.clone() {
                let z = ctx.elements(&self.input, row, of_head.clone());
                // SAFETY: heads of a span are in one share, and a row is in one span.
                let out = unsafe { ctx.head_mut(&self.out, row, head, 0..self.out.width) };
                match self.bound {
                    Some(bound) => latent_kernels::bounded_decay(z, bias, (rate, bound), out),
                    None => latent_kernels::softplus_decay(z, bias, rate, out),
                }
            }
        }
    }
}

impl DeltaRule {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>, scratch: &mut WorkerScratch) {
        let heads = self.out.heads;
        let state = ctx.kv.state_layer(self.kv_layer).0;
        let size = state.rows * state.columns;
        for (span, head) in ctx.own_heads(heads) {
            let of_head = head * size..(head + 1) * size;
            let (mut from, mut done) = (slots(span).from, 0);
            for (rows, slot) in ends(span) {
                // SAFETY: heads of a span are in one share; the slots that a span writes are its own, and differ from the one that it reads.
                let to = unsafe { ctx.state_mut(self.kv_layer, slot, of_head.clone()) };
                let mut old = from.map(|from| ctx.state(self.kv_layer, from, of_head.clone()));
                if old.is_none() {
                    to.fill(0.0);
                }
                for row in span.rows.start + done..span.rows.start + rows {
                    let given = DeltaRow {
                        q: ctx.head(&self.q, row, head),
                        k: ctx.head(&self.k, row, head),
                        v: ctx.head(&self.v, row, head),
                        log_decay: ctx.head(&self.log_decay, row, head),
                        beta: ctx.elements(&self.beta, row, head..head + 1)[0],
                    };
                    // SAFETY: heads of a span are in one share, and a row is in one span.
                    let out = unsafe { ctx.head_mut(&self.out, row, head, 0..self.out.width) };
                    let state = match old.take() {
                        Some(old) => DeltaState::From(old, to),
                        None => DeltaState::InPlace(to),
                    };
                    latent_kernels::delta_row(given, state, &mut scratch.delta, out);
                }
                if let Some(old) = old {
                    to.copy_from_slice(old);
                }
                (from, done) = (Some(slot), rows);
            }
        }
    }
}

impl GatedNorm {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>) {
        let heads = self.out.heads;
        let eps = ctx.model.config.rms_eps as f32;
        let weight = ctx.vector(self.weight);
        for (span, head) in ctx.own_heads(heads) {
            for row in span.rows.clone() {
                let gate = ctx.elements(&self.gate, row, columns(&self.gate, head, heads));
                // SAFETY: heads of a span are in one share, and a row is in one span.
                let x = unsafe { ctx.head_mut(&self.out, row, head, 0..self.out.width) };
                latent_kernels::gated_norm(x, weight, gate, eps);
            }
        }
    }
}
