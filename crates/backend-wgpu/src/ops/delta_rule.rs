//! The delta rule: row by row, or in chunks as products of matrices.
//!
//! In both forms a workgroup holds some columns of a head's state in workgroup memory for all rows
//! of a run. Chunks take two barriers per tile of the state's rows instead of three per row of the
//! sequence, and read an element of the state from workgroup memory once for four rows.

use crate::commands::{Commands, ShaderBinding, grid};
use crate::device::Device;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use crate::shader::{Shader, ShaderConstant};
use crate::state_runs::{CHUNK_WORDS, DELTA_CHUNK, DeltaRound, NO_SLOT, RUN_WORDS, SPAN_WORDS};
use std::sync::Arc;

/// Maximum head width.
// The rows of a head and some columns of its state must fit the 16 KiB of workgroup memory that
// every device has.
pub(crate) const MAX_WIDTH: usize = 512;

/// Maximum elements of a state per workgroup: 8 KiB.
const STATE_ELEMENTS: usize = 2048;

/// Threads per column of the state, which divide its sums, in runs of single rows.
const SHARES: usize = 8;

/// Columns of a state per workgroup, in runs of single rows.
fn columns(width: usize) -> usize {
    (STATE_ELEMENTS / width).clamp(1, 16)
}

/// Vectors of four columns per workgroup, in runs of chunks: 1, 2 or 4.
fn vectors(width: usize) -> usize {
    // The state's columns of a workgroup must fit its memory: the wider a head, the fewer columns.
    let max_vectors = match width {
        0..=128 => 4,
        129..=256 => 2,
        _ => 1,
    };
    width.div_ceil(4).next_power_of_two().min(max_vectors)
}

pub(super) fn with_spans(shader: Shader) -> Shader {
    shader.count("SPAN_WORDS", SPAN_WORDS).with("NO_SLOT", ShaderConstant::Count(NO_SLOT))
}

fn row_shader(width: usize) -> Shader {
    with_spans(Shader::new("delta_rule", include_str!("delta_rule.wgsl")))
        .count("WIDTH", width)
        .count("COLUMNS", columns(width))
        .count("SHARES", SHARES)
}

fn with_chunks(shader: Shader, width: usize) -> Shader {
    shader.count("WIDTH", width).count("CHUNK", DELTA_CHUNK).count("CHUNK_WORDS", CHUNK_WORDS)
}

fn score_shader(width: usize) -> Shader {
    with_chunks(Shader::new("delta_scores", include_str!("delta_scores.wgsl")), width)
}

fn chunk_shader(width: usize) -> Shader {
    with_chunks(Shader::new("delta_chunks", include_str!("delta_chunks.wgsl")), width)
        .count("VECTORS", vectors(width))
        .count("RUN_WORDS", RUN_WORDS)
        .with("NO_SLOT", ShaderConstant::Count(NO_SLOT))
}

/// All shaders of this file.
#[cfg(test)]
pub(super) fn shaders() -> Vec<Shader> {
    let of_width = |width| [row_shader(width), score_shader(width), chunk_shader(width)];
    [18, 128, 200, MAX_WIDTH].into_iter().flat_map(of_width).collect()
}

/// A value with its offset, row stride and head stride.
type BoundValue = (ShaderBinding, [u32; 3]);

/// Operands of the delta rule.
pub(crate) struct DeltaCall {
    /// The data of a step.
    pub(crate) step: ShaderBinding,
    /// Queries, keys, values and decays.
    pub(crate) inputs: [BoundValue; 4],
    /// The logits of β with their offset and row stride.
    pub(crate) beta: (ShaderBinding, [u32; 2]),
    pub(crate) y: BoundValue,
    pub(crate) heads: u32,
    /// The states of all slots.
    pub(crate) states: ShaderBinding,
    /// [`DeltaShaders::score_bytes`] of scratch memory.
    pub(crate) scores: ShaderBinding,
}

/// Shaders of the delta rule for heads of one width.
pub(crate) struct DeltaShaders {
    width: usize,
    rows: Arc<ShaderPipeline>,
    scores: Arc<ShaderPipeline>,
    chunks: Arc<ShaderPipeline>,
}

impl DeltaShaders {
    /// Compiles the shaders for a width up to [`MAX_WIDTH`].
    pub(crate) fn new(device: &Device, width: usize) -> Result<DeltaShaders, GpuError> {
        Ok(DeltaShaders {
            width,
            rows: device.pipeline(&row_shader(width))?,
            scores: device.pipeline(&score_shader(width))?,
            chunks: device.pipeline(&chunk_shader(width))?,
        })
    }

    /// Bytes of the scores of a step: a row of each of the two matrices (T and QK) per row and
    /// head.
    pub(crate) fn score_bytes(rows: usize, heads: usize) -> u64 {
        // Saturating: a size that overflows exceeds the largest binding and is refused at
        // allocation.
        4 * (2 * DELTA_CHUNK as u64).saturating_mul(rows as u64).saturating_mul(heads as u64)
    }

    /// Records the calls of all rounds in order: each continues from the states of the previous
    /// one.
    pub(crate) fn record(&self, commands: &mut Commands, call: &DeltaCall, rounds: &[DeltaRound]) {
        // The two calls of a round have runs of different spans, so their order does not matter.
        for round in rounds {
            self.record_chunks(commands, call, round);
            self.record_rows(commands, call, round);
        }
    }

    fn record_rows(&self, commands: &mut Commands, call: &DeltaCall, round: &DeltaRound) {
        let (at, count) = round.rows;
        let parts = self.width.div_ceil(columns(self.width));
        let groups = count as usize * call.heads as usize * parts;
        let [q, k, v, g] = &call.inputs;
        let mut params = vec![at, call.heads, parts as u32, groups as u32];
        params.extend([q.1, k.1, v.1, g.1].concat());
        params.extend(call.beta.1);
        params.extend(call.y.1);
        let bindings = [&call.step, &q.0, &k.0, &v.0, &g.0, &call.beta.0, &call.y.0, &call.states];
        commands.call(&self.rows, bindings.map(ShaderBinding::clone), &params, grid(groups, 1));
    }

    fn record_chunks(&self, commands: &mut Commands, call: &DeltaCall, round: &DeltaRound) {
        let [q, k, v, g] = &call.inputs;
        let (at, count) = round.chunks;
        let groups = count as usize * call.heads as usize;
        let mut params = vec![at, call.heads, groups as u32];
        params.extend([q.1, k.1, g.1].concat());
        params.extend(call.beta.1);
        let bindings = [&call.step, &q.0, &k.0, &g.0, &call.beta.0, &call.scores];
        commands.call(&self.scores, bindings.map(ShaderBinding::clone), &params, grid(groups, 1));
        let (at, count) = round.runs;
        let parts = self.width.div_ceil(4 * vectors(self.width));
        let groups = count as usize * call.heads as usize * parts;
        let mut params = vec![at, call.heads, parts as u32, groups as u32];
        params.extend([q.1, k.1, v.1, g.1, call.y.1].concat());
        let bindings = [&call.step, &q.0, &k.0, &v.0, &g.0, &call.scores, &call.y.0, &call.states];
        commands.call(&self.chunks, bindings.map(ShaderBinding::clone), &params, grid(groups, 1));
    }
}
