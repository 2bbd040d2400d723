//! Kimi Delta Attention. Each worker takes a share of the heads of all sequences. The share is the
//! same in every operation here, so a worker reads its own results and needs no barrier.

use crate::context::WorkerContext;
use crate::program::{DeltaRule, GatedNorm, L2Norm, LogDecay, OperandView, ShortConv};
use crate::scratch::{WorkerScratch, resize_scratch};
use latent_backend::{STATE_CHUNK, SeqSpan, SpanState};
use latent_kernels::{DELTA_CHUNK, DeltaChunk, DeltaRow, DeltaScratch, DeltaState};
use std::ops::Range;

/// Maximum number of taps of a convolution, which the config also checks.
const MAX_TAPS: usize = 16;

/// Minimum number of rows for which a chunk is faster than single rows.
const MIN_CHUNK: usize = 4;

const _: () = assert!(STATE_CHUNK.is_multiple_of(DELTA_CHUNK), "steps end where chunks end");

/// The slots of a span's states.
fn slots(span: &SeqSpan) -> &SpanState {
    span.state.as_ref().expect("the engine gives every span of a recurrent model its slots")
}

/// The states that a span stores, as (number of rows, slot): its snapshots, then the state after
/// its last row.
fn stored_states(span: &SeqSpan) -> impl Iterator<Item = (usize, u32)> + use<'_> {
    let states = slots(span);
    states.kept.iter().copied().chain([(span.rows.len(), states.to)])
}

/// The columns of a range of heads in a value that the plan may store as one row of all heads.
fn columns(operand: &OperandView, range: Range<usize>, heads: usize) -> Range<usize> {
    let width = operand.heads * operand.width / heads;
    range.start * width..range.end * width
}

/// The rows of a span and some heads of each, in the order of their memory.
fn by_rows(span: &SeqSpan, heads: Range<usize>) -> impl Iterator<Item = (usize, usize)> + use<> {
    span.rows.clone().flat_map(move |row| heads.clone().map(move |head| (row, head)))
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
        for (span, range) in ctx.own_head_ranges(heads) {
            for (part, (input, out)) in self.inputs.iter().zip(&self.outs).enumerate() {
                let own = columns(input, range.clone(), heads);
                let taps = &ctx.vector(self.taps[part])[own.start * (past + 1)..own.end * (past + 1)];
                let in_state = |row: usize| {
                    let start = (part * past + row) * channels;
                    start + own.start..start + own.end
                };
                // The input `back` rows before a row of the span: from the batch, from the state,
                // or zeros before the first token.
                let input_before = |row: usize, back: usize| match row.checked_sub(back) {
                    Some(row) => ctx.elements(input, span.rows.start + row, own.clone()),
                    None => match slots(span).from {
                        Some(slot) => ctx.state(self.kv_layer, slot, in_state(past + row - back)),
                        None => &zeros[own.clone()],
                    },
                };
                let mut inputs: [&[f32]; MAX_TAPS] = [&[]; MAX_TAPS];
                for row in 0..span.rows.len() {
                    for (j, input) in inputs[..past + 1].iter_mut().enumerate() {
                        *input = input_before(row, past - j);
                    }
                    for head in range.clone() {
                        let of_head = columns(input, head..head + 1, heads);
                        let within = of_head.start - own.start..of_head.end - own.start;
                        let inputs =
                            inputs.each_ref().map(|input| input.get(within.clone()).unwrap_or_default());
                        let taps = &taps[within.start * (past + 1)..within.end * (past + 1)];
                        // SAFETY: heads of a span are in one share, and a row is in one span.
                        let out = unsafe { ctx.head_mut(out, span.rows.start + row, head, 0..out.width) };
                        latent_kernels::short_conv(&inputs[..past + 1], taps, out);
                    }
                }
                for (rows, slot) in stored_states(span) {
                    for row in 0..past {
                        // SAFETY: heads of a span are in one share; the slots that a span writes
                        // are its own.
                        let state = unsafe { ctx.state_mut(self.kv_layer, slot, in_state(row)) };
                        state.copy_from_slice(input_before(rows + row, past));
                    }
                }
            }
        }
    }
}

impl L2Norm {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>) {
        for (span, range) in ctx.own_head_ranges(self.out.heads) {
            for (row, head) in by_rows(span, range) {
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
        for (span, range) in ctx.own_head_ranges(heads) {
            for (row, head) in by_rows(span, range) {
                let of_head = columns(&self.input, head..head + 1, heads);
                let bias = &ctx.vector(self.bias)[of_head.clone()];
                let rate = ctx.vector(self.rates)[head];
                let rate = if self.log_rates { latent_kernels::exp(rate) } else { rate.abs() };
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
            for (rows, slot) in stored_states(span) {
                // SAFETY: heads of a span are in one share. The slots that a span writes are its
                // own, and differ from the one that it reads.
                let to = unsafe { ctx.state_mut(self.kv_layer, slot, of_head.clone()) };
                let mut old = from.map(|from| ctx.state(self.kv_layer, from, of_head.clone()));
                if old.is_none() {
                    to.fill(0.0);
                }
                let mut row = done;
                while row < rows {
                    // Chunks begin at multiples of their length, counted in positions instead of
                    // rows of the step. So a sequence that continues from a snapshot has the same
                    // bits as one that ran as a whole.
                    let within = (span.first + row) % DELTA_CHUNK;
                    let chunk = (DELTA_CHUNK - within).min(rows - row);
                    // A draft may be refused after any row, so drafts must have the bits of single
                    // rows.
                    let single = slots(span).drafted || chunk < MIN_CHUNK;
                    let chunk = if single { 1 } else { chunk };
                    let state = match old.take() {
                        Some(old) => DeltaState::From(old, to),
                        None => DeltaState::InPlace(to),
                    };
                    let first = span.rows.start + row;
                    self.run_rows(ctx, first..first + chunk, head, state, &mut scratch.delta);
                    row += chunk;
                }
                // A snapshot before the first row: no row has consumed the old state.
                if let Some(old) = old {
                    to.copy_from_slice(old);
                }
                (from, done) = (Some(slot), rows);
            }
        }
    }
}

impl DeltaRule {
    /// One head of some rows of a sequence.
    fn run_rows(
        &self,
        ctx: &WorkerContext<'_>,
        rows: Range<usize>,
        head: usize,
        state: DeltaState<'_>,
        scratch: &mut DeltaScratch,
    ) {
        if rows.len() == 1 {
            let row = rows.start;
            let given = DeltaRow {
                q: ctx.head(&self.q, row, head),
                k: ctx.head(&self.k, row, head),
                v: ctx.head(&self.v, row, head),
                log_decay: ctx.head(&self.log_decay, row, head),
                beta: ctx.elements(&self.beta, row, head..head + 1)[0],
            };
            // SAFETY: heads of a span are in one share, and a row is in one span.
            let out = unsafe { ctx.head_mut(&self.out, row, head, 0..self.out.width) };
            return latent_kernels::delta_row(given, state, scratch, out);
        }
        let head_of =
            |value: &OperandView| ctx.read(value, rows.clone(), head * value.head_stride, value.width);
        let given = DeltaChunk {
            q: head_of(&self.q),
            k: head_of(&self.k),
            v: head_of(&self.v),
            log_decay: head_of(&self.log_decay),
            beta: ctx.read(&self.beta, rows.clone(), head, 1),
        };
        // SAFETY: heads of a span are in one share, and a row is in one span.
        let mut out =
            unsafe { ctx.write(&self.out, rows.clone(), head * self.out.head_stride, self.out.width) };
        latent_kernels::delta_chunk(ctx.model.tier, &given, state, scratch, &mut out);
    }
}

impl GatedNorm {
    pub(crate) fn run(&self, ctx: &WorkerContext<'_>) {
        let heads = self.out.heads;
        let eps = ctx.model.config.rms_eps as f32;
        let weight = ctx.vector(self.weight);
        for (span, range) in ctx.own_head_ranges(heads) {
            for (row, head) in by_rows(span, range) {
                let gate = ctx.elements(&self.gate, row, columns(&self.gate, head..head + 1, heads));
                // SAFETY: heads of a span are in one share, and a row is in one span.
                let x = unsafe { ctx.head_mut(&self.out, row, head, 0..self.out.width) };
                latent_kernels::gated_norm(x, weight, gate, eps);
            }
        }
    }
}
